"""Compiled readers and writers of every message, made at first use or ahead of it, and the errors they map to.

`read_request(api_key, api_version, buffer, at)` and its three siblings are the whole interface. A message is a
plain dict: snake_case names, durations end in `_ms`, error codes are ints, UUIDs are texts, `bytes` are copies,
`records` are slices of the buffer (keep it unchanged while they are used), and so are `bytes` of a request in slices
that are longer than `COPIED_AT_ONCE_BYTES` (`copies_in_slices` copies them). Tagged fields are ordinary keys, with
their default when absent; unknown ones are under `_unknown_tags`, tag to bytes. A writer takes more keys than the
version has and does without those that have a default; a UUID may also be a `uuid.UUID`.

`read_request_in_slices` is a generator that returns the same; its caller can do other work between two yields.
"""

import reprlib
from collections.abc import Callable, Generator, Iterable
from functools import partial
from traceback import walk_tb
from typing import Any

from tidegate.in_slices import release_messages, run_at_once
from tidegate.wire.codec_types import MALFORMED, UNWRITABLE, Buffer, Message
from tidegate.wire.definitions import Direction, Layout, layout
from tidegate.wire.errors import MalformedError, MessageError, ProtocolError
from tidegate.wire.program import Program, failure
from tidegate.wire.reader_source import compile_reader
from tidegate.wire.writer_source import compile_writer

__all__ = [
    "AT_ONCE_BYTES",
    "SLICED_REQUEST_READERS",
    "SLICED_REQUEST_WRITERS",
    "SLICED_RESPONSE_WRITERS",
    "Message",
    "compile_ahead",
    "message_error",
    "protocol_error",
    "read_request",
    "read_request_in_slices",
    "read_request_with_rows",
    "read_response",
    "read_response_in_slices",
    "reader",
    "write_into",
    "write_request",
    "write_response",
    "writer",
]

AT_ONCE_BYTES = 8 * 1024
"""Requests up to this size are read in one step, also where slices are asked for: 2 or 3 ms at most."""

_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 100

COPIED_BYTES = 1024 * 1024
"""Longer requests are not copied to be read faster: 100 MB of zeros behind a name are not worth a copy."""

Key = tuple[int, int]


class _Programs(dict[Key, Program]):
    """Programs by (api key, api version), compiled when first asked for."""

    def __init__(self, compiler: Callable[[Layout], Program], direction: Direction) -> None:
        super().__init__()
        self.compiler = compiler
        self.direction: Direction = direction

    def __missing__(self, key: Key) -> Program:
        try:
            found = layout(*key, self.direction)
        except KeyError:
            known = f"no {self.direction} is known for api_key={key[0]!r}, api_version={key[1]!r}"
            raise ProtocolError(known) from None
        program = self[key] = self.compiler(found)
        return program


_REQUEST_READERS = _Programs(compile_reader, "request")
_ROW_READERS = _Programs(partial(compile_reader, rows="partitions"), "request")
_RESPONSE_READERS = _Programs(compile_reader, "response")
_REQUEST_WRITERS = _Programs(compile_writer, "request")
_RESPONSE_WRITERS = _Programs(compile_writer, "response")
SLICED_REQUEST_READERS = _Programs(partial(compile_reader, in_slices=True), "request")
SLICED_RESPONSE_READERS = _Programs(partial(compile_reader, in_slices=True), "response")
SLICED_REQUEST_WRITERS = _Programs(partial(compile_writer, in_slices=True), "request")
SLICED_RESPONSE_WRITERS = _Programs(partial(compile_writer, in_slices=True), "response")


def reader(api_key: int, api_version: int, direction: Direction) -> Program:
    """Return the compiled reader of a message."""
    return (_REQUEST_READERS if direction == "request" else _RESPONSE_READERS)[api_key, api_version]


def writer(api_key: int, api_version: int, direction: Direction) -> Program:
    """Return the compiled writer of a message."""
    return (_REQUEST_WRITERS if direction == "request" else _RESPONSE_WRITERS)[api_key, api_version]


def compile_ahead(pairs: Iterable[Key]) -> None:
    """Compile what a server needs for these (api key, api version): its request readers and response writers."""
    for pair in pairs:
        _REQUEST_READERS[pair]
        _RESPONSE_WRITERS[pair]


def read_request(api_key: int, api_version: int, buffer: Buffer, at: int = 0) -> Message:
    """Return the request whose body begins at `at`. Bytes after the body are ignored, as by Kafka.

    Raises `ProtocolError` where the bytes are not such a request.
    """
    if len(buffer) - at > COPIED_BYTES:
        return run_at_once(read_request_in_slices(api_key, api_version, buffer, at))
    return _read(_REQUEST_READERS[api_key, api_version], buffer, at)


def read_request_with_rows(api_key: int, api_version: int, buffer: Buffer, at: int = 0) -> Message:
    """Return what `read_request` returns, each array `partitions` as `PlainRows` where all its strings are empty."""
    return _read(_ROW_READERS[api_key, api_version], buffer, at)


def read_request_in_slices(
    api_key: int, api_version: int, buffer: Buffer, at: int = 0
) -> Generator[None, None, Message]:
    """Return what `read_request` returns, and raise what it raises, yielding after each element of an array.

    Parts that were read before an error are freed in slices, too.
    """
    if len(buffer) - at <= AT_ONCE_BYTES:
        return read_request(api_key, api_version, buffer, at)
    return (yield from _read_in_slices(SLICED_REQUEST_READERS[api_key, api_version], buffer, at))


def read_response_in_slices(
    api_key: int, api_version: int, buffer: Buffer, at: int = 0
) -> Generator[None, None, Message]:
    """Return what `read_response` returns, and raise what it raises, yielding after each element of an array."""
    if len(buffer) - at <= AT_ONCE_BYTES:
        return read_response(api_key, api_version, buffer, at)
    return (yield from _read_in_slices(SLICED_RESPONSE_READERS[api_key, api_version], buffer, at))


def _read_in_slices(program: Program, buffer: Buffer, at: int) -> Generator[None, None, Message]:
    try:
        message: Message = yield from program.function(memoryview(buffer), at)
    except MALFORMED as error:
        wrong, unfinished = protocol_error(program, error), _lists(error)
    else:
        return message
    yield from release_messages(*unfinished)
    raise wrong


def read_response(api_key: int, api_version: int, buffer: Buffer, at: int = 0) -> Message:
    """Return the response whose body begins at `at`. Raises `ProtocolError` where it is malformed."""
    return _read(_RESPONSE_READERS[api_key, api_version], buffer, at)


def write_request(api_key: int, api_version: int, message: Message) -> bytes:
    """Return the body of a request. Raises `MessageError` where `message` cannot be written."""
    return _joined(_REQUEST_WRITERS[api_key, api_version], message)


def write_response(api_key: int, api_version: int, message: Message) -> bytes:
    """Return the body of a response. Raises `MessageError` where `message` cannot be written."""
    return _joined(_RESPONSE_WRITERS[api_key, api_version], message)


def write_into(program: Program, message: Message, out: bytearray, buffers: list[Any]) -> int:
    """Append a message to `out`, the last of `buffers`; return the offset of its throttle time, -1 without one."""
    try:
        at: int = program.function(message, out, buffers)
    except UNWRITABLE as error:
        raise message_error(program, error) from error
    if not buffers[-1]:
        buffers.pop()
    return at


def _read(program: Program, buffer: Buffer, at: int) -> Message:
    try:
        message: Message = program.function(buffer if type(buffer) is memoryview else memoryview(buffer), at)
    except MALFORMED as error:
        raise protocol_error(program, error) from None
    return message


def _joined(program: Program, message: Message) -> bytes:
    out = bytearray()
    buffers: list[Any] = [out]
    write_into(program, message, out, buffers)
    try:
        return b"".join(buffers)
    except TypeError as error:
        raise MessageError(
            f"records of {program.title} must be bytes-like to be joined", path="records"
        ) from error


def _lists(error: Exception) -> list[list[Any]]:
    """Return the lists that a reader had begun to fill when it failed."""
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    return [value for frame in frames for value in frame.f_locals.values() if type(value) is list]


def protocol_error(program: Program, error: Exception) -> ProtocolError:
    """Return the error that says what `program` found malformed, and where."""
    where = failure(program, error.__traceback__)
    problem = (
        str(error) if isinstance(error, MalformedError) else f"more bytes expected, {where.remaining} remain"
    )
    message = f"malformed {program.title} at byte {where.at}, {where.path or 'body'}: {problem}"
    return ProtocolError(message, path=where.path or None, byte_offset=where.at)


def message_error(program: Program, error: Exception) -> MessageError:
    """Return the error that says which field of a message `program` could not write."""
    where = failure(program, error.__traceback__)
    problem = str(error)
    if isinstance(error, KeyError):
        problem = f"{error.args[0]!r} is missing"
    elif where.value is not None:
        problem += f", got {_SHOWN.repr(where.value)}"
    return MessageError(
        f"cannot write {program.title}: {where.path or 'message'}: {problem}", path=where.path
    )

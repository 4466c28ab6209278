"""Answers made from a kept encoding: to a Produce or Fetch of one partition, and to repeated requests.

The answers to one partition differ only in a few numbers (see `broker.known_requests`). The ordinary encoder encodes
the rest once. The positions of the numbers are found by encoding values that occur nowhere else.
"""

import struct
from typing import Any

from tidegate import error_codes
from tidegate.api_keys import FETCH, PRODUCE
from tidegate.server.requests.handler import Request
from tidegate.storage.log.file_slice import FileSlice
from tidegate.wire import API_BY_KEY, Encoded, encode_response
from tidegate.wire.encoded import LENGTH_BYTES
from tidegate.wire.primitives import uvarint

__all__ = [
    "COPIED_BYTES",
    "MAX_KEPT_ANSWERS",
    "MAX_KEPT_ANSWER_BYTES",
    "EmptyFetchAnswers",
    "FetchAnswers",
    "KeptAnswers",
    "ProduceAnswers",
    "set_session_id",
]

COPIED_BYTES = 32 * 1024
"""Records up to this size are copied into the answer, larger ones sent from their file."""

MAX_KEPT_ANSWERS = 64
"""Most kept answers of an API. When there are more, all are removed, and kept again when they are next needed."""
MAX_KEPT_ANSWER_BYTES = 4 * 1024 * 1024
"""Most memory of all kept answers; larger answers are encoded each time."""
_MAX_KEPT_REQUEST_BYTES = 1024

_MARKS = (0x5A01_7B3C_C6D4_E2F1, 0x5A02_7B3C_C6D4_E2F2, 0x5A03_7B3C_C6D4_E2F3)
"""Values by which the position of three consecutive 64-bit numbers is found."""
_RECORDS_MARK = struct.pack(">3Q", *(mark ^ 0xFF for mark in _MARKS))

_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_TWO_NUMBERS = struct.Struct(">qq")
_THREE_NUMBERS = struct.Struct(">qqq")
_SIZE_AND_CORRELATION_ID = struct.Struct(">ii")
_CORRELATION_ID_AT = 4
_SESSION_ID_BEHIND_THROTTLE = 6  # bytes behind where the throttle time begins: behind it and the error code


Key = tuple[Any, ...]


class KeptAnswers:
    """A cache of answers by request, for handlers that answer equal requests alike until something changes."""

    __slots__ = ("_answers", "_bytes", "get")

    def __init__(self) -> None:
        self._answers: dict[Key | None, Encoded] = {}
        self._bytes = 0
        self.get = self._answers.get
        """Return the answer that is kept under a key, or None. It is the dictionary's own method, for speed."""

    def key(self, request: Request, more: Any = None) -> Key | None:
        """Return the key of a request and of what else its answer depends on; None if the request is too long."""
        body = request.frame[request.header.body_at :]
        if len(body) > _MAX_KEPT_REQUEST_BYTES:
            return None
        return request.header.api_version, bytes(body), more

    def store_answer(self, key: Key | None, answer: Encoded) -> None:
        """Keep a copy of an answer, unless it is a large one."""
        size = answer.size + _MAX_KEPT_REQUEST_BYTES
        if key is None or size > MAX_KEPT_ANSWER_BYTES:
            return
        if len(self._answers) >= MAX_KEPT_ANSWERS or self._bytes + size > MAX_KEPT_ANSWER_BYTES:
            self.clear()
        self._answers[key] = answer.with_correlation_id(0)
        self._bytes += size

    def clear(self) -> None:
        """Forget all."""
        self._answers.clear()
        self._bytes = 0


class ProduceAnswers:
    """Successful answers to one partition in one version.

    topic: `{"name": …}` or, from version 13, `{"topic_id": …}`.
    """

    __slots__ = ("_body_size", "_first", "_numbers_at", "_size", "_throttle_at", "_with_start_offset")

    def __init__(self, version: int, topic: dict[str, str], index: int) -> None:
        base_offset, append_time_ms, start_offset = _MARKS
        partition = {
            "index": index,
            "error_code": error_codes.NONE,
            "base_offset": base_offset,
            "log_append_time": append_time_ms,
            "log_start_offset": start_offset,
            "record_errors": (),
            "error_message": None,
        }
        message = {"responses": [{**topic, "partition_responses": [partition]}], "throttle_time_ms": 0}
        encoded = encode_response(PRODUCE, version, 0, message)
        (first,) = encoded.buffers
        self._first = bytes(first)
        self._size, self._body_size = encoded.size, encoded.body_size
        self._throttle_at = encoded.throttle_at
        self._with_start_offset = _THREE_NUMBERS.pack(*_MARKS) in first
        self._numbers_at = first.index(_INT64.pack(base_offset))

    def encode(
        self, correlation_id: int, base_offset: int, append_time_ms: int, start_offset: int
    ) -> Encoded:
        """Return the answer with these numbers."""
        first = bytearray(self._first)
        _INT32.pack_into(first, _CORRELATION_ID_AT, correlation_id)
        if self._with_start_offset:
            _THREE_NUMBERS.pack_into(first, self._numbers_at, base_offset, append_time_ms, start_offset)
        else:
            _TWO_NUMBERS.pack_into(first, self._numbers_at, base_offset, append_time_ms)
        return Encoded([first], self._size, self._body_size, self._throttle_at)


def set_session_id(response: Encoded, session_id: int) -> None:
    """Write the id of a session into the answer to a Fetch, in a version that has one."""
    _INT32.pack_into(response.buffers[0], response.throttle_at + _SESSION_ID_BEHIND_THROTTLE, session_id)


class EmptyFetchAnswers:
    """Answers without news to a Fetch in a session, in one version."""

    __slots__ = ("_answer",)

    def __init__(self, version: int) -> None:
        message = {
            "throttle_time_ms": 0,
            "error_code": error_codes.NONE,
            "session_id": 0,
            "responses": [],
        }
        self._answer = encode_response(FETCH, version, 0, message)

    def encode(self, correlation_id: int, session_id: int) -> Encoded:
        """Return the answer of a session."""
        answer = self._answer.with_correlation_id(correlation_id)
        set_session_id(answer, session_id)
        return answer


class FetchAnswers:
    """Answers without error to one partition in one version.

    topic: `{"topic": …}` or, from version 13, `{"topic_id": …}`. committed: whether the client reads committed records:
    its list of aborted transactions is then empty, else null.
    """

    __slots__ = (
        "_flexible",
        "_head",
        "_header_bytes",
        "_numbers_at",
        "_tail",
        "_throttle_at",
        "_with_start_offset",
    )

    def __init__(self, version: int, topic: dict[str, str], index: int, *, committed: bool) -> None:
        end_offset, stable_offset, start_offset = _MARKS
        partition: dict[str, Any] = {
            "partition_index": index,
            "error_code": error_codes.NONE,
            "high_watermark": end_offset,
            "last_stable_offset": stable_offset,
            "log_start_offset": start_offset,
            "aborted_transactions": [] if committed else None,
            "preferred_read_replica": -1,
            "records": _RECORDS_MARK,
        }
        message = {
            "throttle_time_ms": 0,
            "error_code": error_codes.NONE,
            "session_id": 0,
            "responses": [{**topic, "partitions": [partition]}],
        }
        encoded = encode_response(FETCH, version, 0, message)
        data = b"".join(encoded.buffers)
        records_at = data.index(_RECORDS_MARK)
        self._flexible = API_BY_KEY[FETCH].is_flexible(version)
        self._head = data[: records_at - (1 if self._flexible else 4)]  # without the length of the records
        self._tail = data[records_at + len(_RECORDS_MARK) :]
        self._header_bytes = encoded.size - encoded.body_size
        self._throttle_at = encoded.throttle_at
        self._with_start_offset = _THREE_NUMBERS.pack(*_MARKS) in data
        self._numbers_at = data.index(_INT64.pack(end_offset))

    def encode(
        self,
        correlation_id: int,
        end_offset: int,
        stable_offset: int,
        start_offset: int,
        records: FileSlice | None,
        session_id: int = 0,
    ) -> Encoded:
        """Return the answer. Read a small piece of a file, so that all of the answer is sent in one call and packet."""
        count = 0 if records is None else records.size
        first = bytearray(self._head)
        first += uvarint(count + 1) if self._flexible else _INT32.pack(count)
        size = len(first) - LENGTH_BYTES + count + len(self._tail)
        _SIZE_AND_CORRELATION_ID.pack_into(first, 0, size, correlation_id)
        if self._with_start_offset:
            _THREE_NUMBERS.pack_into(first, self._numbers_at, end_offset, stable_offset, start_offset)
        else:
            _TWO_NUMBERS.pack_into(first, self._numbers_at, end_offset, stable_offset)
        if session_id:
            _INT32.pack_into(first, self._throttle_at + _SESSION_ID_BEHIND_THROTTLE, session_id)
        buffers: list[Any] = [first]
        if count > COPIED_BYTES:
            buffers += [records, self._tail] if self._tail else [records]
        else:
            if records is not None:
                first += records.read()
            first += self._tail
        return Encoded(buffers, size, size - self._header_bytes, self._throttle_at)

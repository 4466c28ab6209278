"""The files of request logs: which there are, and their lines, packed or not."""

import gzip
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path

from tidegate.errors import ConfigError, TidegateError

__all__ = ["BLOCK_BYTES", "LINE_BYTES_MAX", "LogFileError", "Source", "blocks", "find_logs", "open_log"]

BLOCK_BYTES = 8 << 20
"""Of lines that are read at once."""
LINE_BYTES_MAX = 64 << 20
"""A longer line is none of a request log."""

_HINT = "give request logs of Apache Kafka, or directories that have some: docs/import.md"


class LogFileError(TidegateError):
    """Raise when a file cannot be read as text or gzip: which one, and why."""


@dataclass(frozen=True, slots=True)
class Source:
    """Request logs of one node: a file, or a directory of them."""

    node_id: int
    path: Path


def find_logs(sources: Iterable[Source], out: Path) -> list[Source]:
    """Return every file of the sources, directories searched, by name within one; not what was imported to `out`.

    Raises `ConfigError` where there is none.
    """
    found: list[Source] = []
    for source in sources:
        if os.path.isfile(source.path):  # unlike `Path.is_file` also where it is too long
            found.append(source)
        elif os.path.isdir(source.path):
            inside = sorted(path for path in source.path.rglob("*") if _is_log(path, out))
            found += [Source(source.node_id, path) for path in inside]
        else:
            raise ConfigError(
                f"no request log at {str(source.path)!r}, expected a file or a directory", hint=_HINT
            )
    if not found:
        raise ConfigError("no request logs in the directories given", hint=_HINT)
    return found


def _is_log(path: Path, out: Path) -> bool:
    return path.name[0] != "." and path.is_file() and not path.resolve().is_relative_to(out.resolve())


@contextmanager
def open_log(path: Path) -> Iterator[BufferedIOBase]:
    """Give a file to read, unpacked. Raises `OSError`, `EOFError` or `zlib.error` where it cannot be, also later."""
    with path.open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not is_gzip:
            yield file
        else:
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield unpacked


def blocks(file: BufferedIOBase, path: Path) -> Iterator[bytes]:
    """Yield whole lines, many at a time; a last line without an end is left for when it has one."""
    rest = b""
    while block := file.read(BLOCK_BYTES):
        end = block.rfind(b"\n") + 1
        if end:
            yield rest + block[:end]
            rest = block[end:]
        else:
            rest += block
            if len(rest) > LINE_BYTES_MAX:
                raise LogFileError(
                    f"{str(path)!r} has a line of more than {LINE_BYTES_MAX} bytes: no request log",
                    hint=_HINT,
                )

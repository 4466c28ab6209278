"""The files of request logs: which there are, and their lines, packed or not."""

import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from gzip import GzipFile
from io import BufferedReader
from pathlib import Path

from tidegate.errors import ConfigError, TidegateError

__all__ = ["BLOCK_BYTES", "LINE_BYTES_MAX", "LogFile", "LogFileError", "Source", "find_logs"]

BLOCK_BYTES = 8 << 20
"""Bytes of lines that are read at a time."""
LINE_BYTES_MAX = 64 << 20
"""A longer line is none of a request log."""

_CORRUPT = "the gzip file is corrupt; the last requests before the damage may be wrong"
_GZIP = b"\x1f\x8b"
_PIECE_BYTES = 1 << 16
"""Read at once: what comes before a damage is read up to the last of them."""
_HINT = "give request logs of Apache Kafka, or directories that contain them; see docs/import.md"


class LogFileError(TidegateError):
    """Raise when a log cannot be read, or has no requests: which one, and why."""


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
        raise ConfigError("no request logs in the given directories", hint=_HINT)
    return found


def _is_log(path: Path, out: Path) -> bool:
    return path.name[0] != "." and path.is_file() and not path.resolve().is_relative_to(out.resolve())


class LogFile:
    """A log that is open for reading, packed or not, from its beginning.

    damage: why no more can be read, None while nothing is wrong. What comes before the damage is read.
    rest: after `blocks`, what stands behind the last line's end.
    """

    def __init__(self, path: Path) -> None:
        """Open a file. Raises `OSError`."""
        self.path = path
        self.damage: str | None = None
        self.rest = b""
        self._raw = path.open("rb")
        self._is_gzip = self._raw.read(len(_GZIP)) == _GZIP
        self._file: BufferedReader | GzipFile
        self.rewind()

    def __enter__(self) -> "LogFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    @property
    def position(self) -> int:
        """Return how many bytes of the file on disk have been read."""
        return self._raw.tell()

    def rewind(self) -> None:
        """Read from the beginning again."""
        self.damage = None
        self._raw.seek(0)
        self._file = GzipFile(fileobj=self._raw) if self._is_gzip else self._raw

    def read(self, size: int) -> bytes:
        """Return so many bytes, unpacked; fewer at the end and before a damage."""
        parts, left = [], size
        while left and self.damage is None:
            try:
                part = self._file.read1(min(left, _PIECE_BYTES))
            except EOFError:
                self.damage = "the gzip file is truncated"
            except zlib.error:
                self.damage = _CORRUPT
            except OSError as error:
                self.damage = error.strerror or _CORRUPT  # an error of gzip has no number
            else:
                if not part:
                    break
                parts.append(part)
                left -= len(part)
        return b"".join(parts)

    def blocks(self) -> Iterator[bytes]:
        """Yield whole lines, many at a time; a last line without an end is left in `rest`."""
        while block := self.read(BLOCK_BYTES):
            end = block.rfind(b"\n") + 1
            if end:
                yield self.rest + block[:end]
                self.rest = block[end:]
            else:
                self.rest += block
                if len(self.rest) > LINE_BYTES_MAX:
                    self.damage = (
                        f"a line has more than {LINE_BYTES_MAX} bytes, so the file is not a request log"
                    )

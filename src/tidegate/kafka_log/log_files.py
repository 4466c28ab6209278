"""The files of request logs: which there are, their lines, packed or not, and the error where none has a request."""

import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from gzip import GzipFile
from io import BufferedReader
from pathlib import Path

from tidegate.errors import ConfigError, TidegateError

__all__ = [
    "BLOCK_BYTES",
    "LINE_BYTES_MAX",
    "LogFile",
    "LogFileError",
    "Source",
    "bytes_on_disk",
    "find_logs",
    "names_text",
    "no_requests_error",
]

BLOCK_BYTES = 8 << 20
"""Bytes of lines that are read at a time."""
LINE_BYTES_MAX = 64 << 20
"""Longest line of a request log; a longer one belongs to another file."""

_CORRUPT = "the gzip file is corrupt; the last requests before the damage may be wrong"
_GZIP = b"\x1f\x8b"
_PIECE_BYTES = 1 << 16
"""Bytes that are read at once: the readable part of a damaged file ends with the last whole piece."""
_HINT = "give request logs of Apache Kafka, or directories that contain them; see docs/import.md"
_NAMED_MAX = 3

_SWITCH_ON = (
    "set the logger kafka.request.logger to DEBUG on the broker, then import the file that it writes "
    "(docs/import.md)"
)
_REASONS = {
    "text": (
        "all requests are in the text format of Kafka before 2.8",
        "import logs of Kafka 2.8 or later: the text format does not contain the sizes of records",
    ),
    "json": (
        "all requests are inside JSON objects, as JSON layouts of log4j and log collectors write them",
        "log with a PatternLayout (docs/import.md), or extract the lines first, for example: jq -r .log FILE",
    ),
    "begun before": (
        "all requests began before the logger was switched on",
        "leave the logger on while clients send requests, and import again",
    ),
    "forwarded": (
        "all requests were forwarded to this controller by brokers",
        "import the request logs of the brokers: they also contain these requests",
    ),
}
"""Error and hint, by the reason why lines were skipped; the first reason that applies is reported."""


class LogFileError(TidegateError):
    """Raise when a log cannot be read, or has no requests: which one, and why."""


@dataclass(frozen=True, slots=True)
class Source:
    """Request logs of one node: a file, or a directory of them."""

    node_id: int
    path: Path


def find_logs(sources: Iterable[Source], out: Path) -> list[Source]:
    """Return the files of the sources; directories are searched, by name, and files below `out` are left out.

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


def no_requests_error(
    files: Sequence[Path],
    damaged: Sequence[tuple[Path, str]],
    skipped: Counter[str],
    bad: int,
    rejected: Path,
) -> LogFileError:
    """Return the error for files of which no request could be read.

    damaged: files that could not be read, and why; skipped: number of lines that are not client requests, by reason;
    bad: number of rejected lines, which `rejected` lists.
    """
    names = names_text(files)
    for reason, (what, hint) in _REASONS.items():
        if skipped[reason]:
            return LogFileError(f"nothing imported from {names}: {what}", hint=hint)
    if damaged:
        path, damage = damaged[0]
        return LogFileError(
            f"nothing imported: cannot read {str(path)!r}: {damage}",
            hint="remove it from the command, or copy it again",
        )
    if bad:
        return LogFileError(
            f"nothing imported from {names}: no request can be read ({bad:,} rejected; see {rejected})",
            hint="import logs of Apache Kafka 2.8 or newer (docs/import.md)",
        )
    return LogFileError(f"nothing imported from {names}: no line contains a request", hint=_SWITCH_ON)


def names_text(files: Sequence[Path]) -> str:
    """Return the names of files, the first of them where there are many.

    >>> names_text([Path("a"), Path("b"), Path("c"), Path("d"), Path("e")])
    "'a', 'b', 'c' and 2 more"
    """
    text = ", ".join(repr(str(path)) for path in files[:_NAMED_MAX])
    more = len(files) - _NAMED_MAX
    return f"{text} and {more:,} more" if more > 0 else text


def bytes_on_disk(path: Path) -> int:
    """Return the size of a file, 0 where it is gone."""
    try:
        return path.stat().st_size
    except OSError:
        return 0

"""The Parquet files of the usage record: their names, and which of them are superseded.

    <parquet>/date=YYYY-MM-DD/hour=HH/node-N-<first seq>-<last seq>.parquet
    <parquet>/date=YYYY-MM-DD/hour=HH/node-N-<first seq>-<last seq>-compacted.parquet

A file contains the rows of its sequence range that belong to its hour (UTC, by `ts_ms`). A compacted file contains all
rows of its node's files in its range, and supersedes these files. They stay for a while, for readers that listed them
before. `list_files` omits them, so read the files that it returns, not the directory. Files whose names begin with `.`
are incomplete.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tidegate.errors import ConfigError

__all__ = [
    "HOUR_MS",
    "HOUR_US",
    "IMPORT_MANIFEST",
    "ParquetFile",
    "has_imported",
    "hour_directories",
    "hour_directory",
    "hour_of",
    "in_hours",
    "is_imported",
    "list_files",
    "listed",
    "node_files",
    "parquet_path",
    "remove_hour",
    "remove_temporary_files",
    "split_superseded",
    "temporary_path",
]

HOUR_MS = 3_600_000
HOUR_US = HOUR_MS * 1000
IMPORT_MANIFEST = "import.json"
"""File next to `parquet` that marks a record as imported from the logs of another broker."""

_NAME = re.compile(r"node-(\d{1,10})-(\d{20})-(\d{20})(-compacted)?\.parquet")
_HOUR = re.compile(r"date=(\d{4}-\d\d-\d\d)/hour=(\d\d)")
_TEMPORARY = re.compile(r"\.node-(\d{1,10})-.*\.parquet\.tmp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetFile:
    """Parts of a Parquet file's name: node, sequence range, and whether it supersedes others within the range."""

    path: Path
    node_id: int
    first_seq: int
    last_seq: int
    compacted: bool

    @classmethod
    def parse(cls, path: Path) -> "ParquetFile | None":
        """Return the parts of the name of `path`; None if it is not the name of a file of the record."""
        match = _NAME.fullmatch(path.name)
        if match is None:
            return None
        node_id, first_seq, last_seq, compacted = match.groups()
        return cls(
            path=path,
            node_id=int(node_id),
            first_seq=int(first_seq),
            last_seq=int(last_seq),
            compacted=compacted is not None,
        )


def hour_directory(parquet: Path, ts_ms: int) -> Path:
    """Return the directory for rows with the time `ts_ms`.

    >>> hour_directory(Path("out"), 1_700_000_000_000).as_posix()
    'out/date=2023-11-14/hour=22'
    """
    return parquet / datetime.fromtimestamp(ts_ms // HOUR_MS * 3600, UTC).strftime("date=%Y-%m-%d/hour=%H")


def hour_directories(parquet: Path) -> Iterator[tuple[int, Path]]:
    """Yield the first millisecond and the directory of each hour that has one, oldest first."""
    for path in sorted(parquet.glob("date=*/hour=*")):
        hour_ms = _hour_ms(path)
        if hour_ms is not None:
            yield hour_ms, path


def in_hours(files: Iterable[Path], *, from_ms: int | None, to_ms: int | None) -> list[Path]:
    """Return the files of the hours that begin at `from_ms` or later, and before `to_ms`; None: no limit.

    A file outside the directories of hours may have rows of any hour, so it is always returned.

    >>> names = ["date=2023-11-14/hour=22/a.parquet", "date=2023-11-14/hour=23/b.parquet"]
    >>> [file.name for file in in_hours(map(Path, names), from_ms=1_700_002_800_000, to_ms=None)]
    ['b.parquet']
    """
    found = []
    for file in files:
        hour_ms = hour_of(file.absolute())
        if hour_ms is None or (
            (from_ms is None or from_ms <= hour_ms) and (to_ms is None or hour_ms < to_ms)
        ):
            found.append(file)
    return found


def hour_of(file: Path) -> int | None:
    """Return the first millisecond of the hour whose directory a file is in; None: it is in no such directory."""
    return _hour_ms(file.parent)


def parquet_path(
    directory: Path, *, node_id: int, first_seq: int, last_seq: int, compacted: bool = False
) -> Path:
    """Return the path of a file in the directory of its hour."""
    suffix = "-compacted" if compacted else ""
    return directory / f"node-{node_id}-{first_seq:020d}-{last_seq:020d}{suffix}.parquet"


def temporary_path(path: Path) -> Path:
    """Return the path for writing a file until it is complete. Spark and `list_files` ignore such paths."""
    return path.with_name(f".{path.name}.tmp")


def list_files(path: Path) -> list[Path]:
    """Return the Parquet files that together hold every row under `path` once, in order of time and sequence.

    `path`: the server's usage directory, its `parquet` directory, one date or hour in it, or one file.
    Parquet files with other names are always included. Raises `ConfigError` if nothing exists at `path`.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ConfigError(f"no usage record at {str(path)!r}, expected a directory or a Parquet file")
    root = path / "parquet" if (path / "parquet").is_dir() else path
    return listed(Path(directory, name) for directory, _, names in os.walk(root) for name in names)


def listed(paths: Iterable[Path]) -> list[Path]:
    """Return the files that `list_files` returns for a directory. paths: all paths in it and below."""
    by_directory: dict[Path, list[Path]] = {}
    for path in paths:
        if path.name.endswith(".parquet") and path.name[0] not in "._":
            by_directory.setdefault(path.parent, []).append(path)
    found: list[Path] = []
    for of_directory in by_directory.values():
        superseded = {file.path for file in split_superseded(_parse_all(of_directory))[1]}
        found += [path for path in of_directory if path not in superseded]
    return sorted(found)


def is_imported(path: Path) -> bool:
    """Return whether a record was imported from the logs of another broker. path: as for `list_files`."""
    path = path.absolute()
    levels_below = 4  # of a file: parquet, date, hour, its name
    return any((above / IMPORT_MANIFEST).is_file() for above in (path, *path.parents[:levels_below]))


def has_imported(path: Path) -> bool:
    """Return whether a record, or one of several below a directory, was imported. path: as for `list_files`."""
    if is_imported(path):
        return True
    for _, directories, names in os.walk(path / "parquet" if (path / "parquet").is_dir() else path):
        if IMPORT_MANIFEST in names:
            return True
        directories[:] = [name for name in directories if not name.startswith("date=")]
    return False


def node_files(directory: Path, node_id: int) -> list[ParquetFile]:
    """Return the files of one node in the directory of an hour."""
    return [file for file in _parse_all(directory.glob("node-*.parquet")) if file.node_id == node_id]


def split_superseded(files: Iterable[ParquetFile]) -> tuple[list[ParquetFile], list[ParquetFile]]:
    """Return the current files of one hour, in order of node and sequence, and the superseded ones."""
    current: list[ParquetFile] = []
    superseded: list[ParquetFile] = []
    compacted_to: dict[int, int] = {}  # node -> last seq of the compacted files seen so far
    for file in sorted(files, key=lambda f: (f.node_id, f.first_seq, -f.last_seq, not f.compacted)):
        if file.last_seq <= compacted_to.get(file.node_id, -1):
            superseded.append(file)
            continue
        current.append(file)
        if file.compacted:
            compacted_to[file.node_id] = file.last_seq
    return current, superseded


def remove_hour(directory: Path) -> None:
    """Delete the record's files in the directory of an hour, and the directory if it is empty then."""
    for path in list(directory.glob("*.parquet")) + list(directory.glob(".node-*.tmp")):
        if _NAME.fullmatch(path.name) or _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)
    for empty in (directory, directory.parent):
        with contextlib.suppress(OSError):
            empty.rmdir()


def remove_temporary_files(parquet: Path, node_id: int) -> None:
    """Delete the incomplete files of a killed writer of the node."""
    for path in parquet.glob(f"date=*/hour=*/.node-{node_id}-*.tmp"):
        if _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _hour_ms(directory: Path) -> int | None:
    """Return the first millisecond of the hour that a directory belongs to; None: it is not an hour's."""
    match = _HOUR.fullmatch(f"{directory.parent.name}/{directory.name}")
    if match is not None:
        with contextlib.suppress(ValueError):
            return int(datetime.strptime(f"{match[1]} {match[2]} +0000", "%Y-%m-%d %H %z").timestamp()) * 1000
    return None


def _parse_all(paths: Iterable[Path]) -> list[ParquetFile]:
    return [file for file in map(ParquetFile.parse, paths) if file is not None]

"""Compact a complete record by hand, as the writer of a running broker does.

Convert the spools to Parquet, and merge the files of each hour and node into one. Meanwhile, hold the locks of all
nodes, so that no broker or writer can use the record. The steps and their order are those of the writer: if the process
is killed at any point, no row is lost or duplicated, and the next run continues.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidegate.clock import SystemClock
from tidegate.errors import ConfigError
from tidegate.usage.convert import compact, convert_all
from tidegate.usage.directory import (
    WRITER_LOCK,
    SpoolDirectory,
    lock_file,
    node_of,
    parquet_directory,
    spool_directory,
)
from tidegate.usage.files import (
    HOUR_MS,
    ParquetFile,
    hour_directories,
    remove_temporary_files,
    split_superseded,
)
from tidegate.usage.segment import BAD_SUFFIX, segment_paths

__all__ = ["Compacted", "compact_record"]

_END_OF_TIME_MS = 2**62  # a time at which every hour is over
_HINT = "stop the broker first; its writer then ends by itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """Result of `compact_record`: segments converted to Parquet, files before (and from the spool) and after.

    Superseded files are not counted. unreadable: hours left unchanged because a file in them cannot be read; damaged:
    segments set aside.
    """

    segments: int
    files_before: int
    files: int
    damaged: int
    unreadable: tuple[Path, ...]


def compact_record(
    directory: Path, *, from_ms: int | None = None, to_ms: int | None = None, last_ms: int | None = None
) -> Compacted:
    """Merge the files of a usage record, including its spools, into one file per hour and node.

    from_ms, to_ms: only hours that overlap the range from `from_ms` to before `to_ms`; None: no limit. last_ms: the
    length of a range that ends with the newest hour, instead. The spools are always converted completely. Raises
    `ConfigError` if there is no record or another process uses it, and `OSError`.
    """
    parquet = parquet_directory(directory)
    spools = sorted(path for path in directory.glob("spool/node-*") if path.is_dir())
    if not spools and not parquet.is_dir():
        raise ConfigError(
            f"no usage record in {str(directory)!r}, expected a directory with 'parquet' or 'spool' in it",
            hint="give the usage directory itself, not a part of it",
        )
    with ExitStack() as stack:
        nodes = {stack.enter_context(_held(spool)): spool for spool in spools}
        segments = damaged = 0
        for node_id, spool in nodes.items():
            bad_before = len(segment_paths(spool, BAD_SUFFIX))
            segments += convert_all(spool, parquet, node_id=node_id)
            damaged += len(segment_paths(spool, BAD_SUFFIX)) - bad_before
        files_before = _files(parquet)
        if last_ms is not None:
            newest_ms = max((hour_ms for hour_ms, _ in hour_directories(parquet)), default=0)
            from_ms = newest_ms + HOUR_MS - last_ms
        unreadable: set[Path] = set()
        for node_id in sorted({*nodes, *(file.node_id for file in files_before)}):
            remove_temporary_files(parquet, node_id)
            for _ in compact(
                parquet,
                node_id=node_id,
                now_ms=_END_OF_TIME_MS,
                wall_ms=SystemClock().now_ms(),
                unreadable=unreadable,
                from_ms=from_ms or 0,
                to_ms=to_ms,
            ):
                pass
    return Compacted(
        segments=segments,
        files_before=len(files_before),
        files=len(_files(parquet)),
        damaged=damaged,
        unreadable=tuple(sorted(unreadable)),
    )


@contextmanager
def _held(spool: Path) -> Iterator[int]:
    """Hold the locks of a node, close its open segments, and yield its id. Raises `ConfigError` if a lock is taken."""
    node_id = node_of(spool)
    if spool != spool_directory(spool.parent.parent, node_id):
        raise ConfigError(
            f"{str(spool)!r} is the spool of node {node_id}, expected another directory name",
            hint=f"rename it to node-{node_id}",
        )
    try:
        broker = SpoolDirectory(spool, node_id=node_id, now_ms=SystemClock().now_ms())
    except ConfigError:
        raise ConfigError(f"a broker is using {str(spool)!r}", hint=_HINT) from None
    try:
        writer = lock_file(spool / WRITER_LOCK)
        if writer is None:
            raise ConfigError(f"a writer is using {str(spool)!r}", hint=_HINT)
        try:
            yield node_id
        finally:
            os.close(writer)
    finally:
        broker.close()


def _files(parquet: Path) -> list[ParquetFile]:
    """Return the files that are not superseded."""
    hours = (hour.iterdir() for _, hour in hour_directories(parquet))
    found = ([file for file in map(ParquetFile.parse, hour) if file is not None] for hour in hours)
    return [file for hour in found for file in split_superseded(hour)[0]]

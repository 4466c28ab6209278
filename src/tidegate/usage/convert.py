"""The work of the writer: convert spool segments to Parquet, compact past hours, and delete expired hours.

If the writer is killed at any point, no row is lost or duplicated: the names of a segment's files follow from the
segment, which is deleted only after they are on disk. A repeated conversion replaces the same files. Segments are
converted in order, and none is skipped, so no rows can come later for a sequence range that was compacted.
pyarrow is loaded only when there is a segment to convert, so an idle writer uses little memory.
"""

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from tidegate.errors import ConfigError
from tidegate.usage.directory import WRITER_LOCK, lock_file, node_of
from tidegate.usage.files import (
    HOUR_MS,
    ParquetFile,
    hour_directories,
    hour_directory,
    node_files,
    parquet_path,
    remove_hour,
    split_superseded,
)
from tidegate.usage.segment import (
    BAD_SUFFIX,
    CLOSED_SUFFIX,
    NAMES_SUFFIX,
    ROW_BYTES,
    SpoolError,
    load_segment,
    segment_paths,
)

__all__ = [
    "COMPACT_AFTER_MS",
    "SUPERSEDED_KEEP_MS",
    "compact",
    "convert_all",
    "convert_segment",
    "delete_expired",
    "drain",
]

COMPACT_AFTER_MS = 300_000
"""An hour is compacted when it has been over for this long."""
SUPERSEDED_KEEP_MS = 3_600_000
"""Files that a compacted one supersedes are deleted after this long: a job that listed them can still read them."""

_log = logging.getLogger(__name__)


def drain(spool: Path, parquet: Path, *, timeout_s: float = 60.0) -> int:
    """Convert all closed segments in `spool` to Parquet now, and return how many there were.

    First wait for a writer that is still finishing. Raises `ConfigError` if it has not ended after `timeout_s`.
    `Recorder.close` closes a recorder's last segment.
    """
    node_id = node_of(spool)
    lock = _wait_for_lock(spool, time.monotonic() + timeout_s)
    try:
        return convert_all(spool, parquet, node_id=node_id)
    finally:
        os.close(lock)


def _wait_for_lock(spool: Path, deadline_s: float) -> int:
    while (lock := lock_file(spool / WRITER_LOCK)) is None:
        if time.monotonic() >= deadline_s:
            raise ConfigError(
                f"a writer is using the usage spool {str(spool)!r}",
                hint="stop the broker first; its writer then ends by itself",
            )
        time.sleep(0.05)
    return lock


def convert_all(spool: Path, parquet: Path, *, node_id: int) -> int:
    """Convert all closed segments to Parquet, in order, and return how many there were. Raises `OSError`."""
    paths = segment_paths(spool, CLOSED_SUFFIX)
    for path in paths:
        convert_segment(path, parquet, node_id=node_id)
    return len(paths)


def convert_segment(path: Path, parquet: Path, *, node_id: int) -> None:
    """Write the rows of a closed segment to the directories of their hours, then delete it.

    A segment with bytes that no recorder wrote is kept as `.bad` for inspection, and becomes a `gap` row.
    """
    from tidegate.usage.arrow import write_table
    from tidegate.usage.segment_table import segment_table

    try:
        write_table(segment_table(load_segment(path)), parquet, node_id=node_id)
    except SpoolError as error:
        _log.error("set aside a damaged usage segment, recorded its events as a gap: %s", error)
        _set_aside(path, parquet, node_id=node_id)
        return
    # Rows first: rows without a names file would count as lost (`load_segment`).
    path.unlink()
    path.with_suffix(NAMES_SUFFIX).unlink(missing_ok=True)


def _set_aside(path: Path, parquet: Path, *, node_id: int) -> None:
    from tidegate.usage.arrow import gap_table, write_parquet

    seq, status = int(path.stem), path.stat()
    lost = max(1, status.st_size // ROW_BYTES - 1)
    ts_ms = status.st_mtime_ns // 1_000_000
    table = gap_table(node_id=node_id, seq=seq, ts_ms=ts_ms, lost_events=lost)
    directory = hour_directory(parquet, ts_ms)
    write_parquet(parquet_path(directory, node_id=node_id, first_seq=seq, last_seq=seq + lost - 1), table)
    path.rename(path.with_suffix(BAD_SUFFIX))


def compact(
    parquet: Path,
    *,
    node_id: int,
    now_ms: int,
    wall_ms: int | None = None,
    unreadable: set[Path] | None = None,
    from_ms: int = 0,
    to_ms: int | None = None,
) -> Iterator[None]:
    """Merge a node's files of each past hour into one, sorted by `seq`, and delete the files that it supersedes.

    Superseded files stay for `SUPERSEDED_KEEP_MS`, for readers that have listed them. wall_ms: the wall clock, if
    `now_ms` is not. from_ms, to_ms: only hours that overlap the range from `from_ms` to before `to_ms`.
    Yields from time to time, so that the caller can convert segments that were closed in the meantime. Hours with a
    file that cannot be read, or with files that overlap, are left unchanged and added to `unreadable`.
    """
    unreadable = set() if unreadable is None else unreadable
    for hour_ms, directory in hour_directories(parquet):
        if hour_ms + HOUR_MS + COMPACT_AFTER_MS > now_ms or directory in unreadable:
            continue
        if hour_ms + HOUR_MS <= from_ms or (to_ms is not None and hour_ms >= to_ms):
            continue
        current, superseded = split_superseded(node_files(directory, node_id))
        if len(current) > 1:
            yield from _compact_hour(directory, current, unreadable)
        elif superseded:
            _delete_superseded(current[0], superseded, now_ms if wall_ms is None else wall_ms)


def _compact_hour(directory: Path, files: list[ParquetFile], unreadable: set[Path]) -> Iterator[None]:
    from tidegate.usage.arrow import ParquetError, merge_files

    if any(after.first_seq <= before.last_seq for before, after in pairwise(files)):
        _log.error("cannot compact %s: sequence numbers of its files overlap", directory)
        unreadable.add(directory)
        return
    target = parquet_path(
        directory,
        node_id=files[0].node_id,
        first_seq=files[0].first_seq,
        last_seq=max(file.last_seq for file in files),
        compacted=True,
    )
    try:
        yield from merge_files([file.path for file in files], target)
    except ParquetError as error:
        _log.error("cannot compact %s: %s", directory, error)
        unreadable.add(directory)


def _delete_superseded(by: ParquetFile, files: list[ParquetFile], now_ms: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        if by.path.stat().st_mtime_ns // 1_000_000 + SUPERSEDED_KEEP_MS > now_ms:
            return
        for file in files:
            file.path.unlink(missing_ok=True)


def delete_expired(parquet: Path, *, retention_ms: int, now_ms: int, wall_ms: int) -> None:
    """Delete the hours that ended at least `retention_ms` ago, both by their names and by the age of their files.

    now_ms: engine time, as in the names; wall_ms: the wall clock, as in the file system. Hours that were recorded
    before the clock was set (1970) have old names, and stay until their files are old.
    """
    for hour_ms, directory in hour_directories(parquet):
        if hour_ms + HOUR_MS + retention_ms > now_ms:
            continue
        if _newest_file_ms(directory) + retention_ms <= wall_ms:
            _log.info("deleted usage record %s: older than %d ms", directory, retention_ms)
            remove_hour(directory)


def _newest_file_ms(directory: Path) -> int:
    """Return when a file in the directory of an hour was last written; 0 without files."""
    newest = 0
    for path in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):
            newest = max(newest, path.stat().st_mtime_ns // 1_000_000)
    return newest

"""Readers of the usage record: which files to read, the rows that are still in a spool, and those of a segment.

A job that reads the usage directory of a running or killed broker needs the rows in the spool, too. So `complete_files`
copies these rows to separate Parquet files before it lists the Parquet files. If the writer converts a segment in the
meantime, its rows are in both, with the same sequence numbers, and the copy is omitted. Nothing in the usage directory
is changed.
"""

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidegate.usage.arrow import ParquetError, write_table
from tidegate.usage.events import Event, read_segment
from tidegate.usage.files import ParquetFile, list_files
from tidegate.usage.segment import (
    CLOSED_SUFFIX,
    OPEN_SUFFIX,
    Segment,
    SpoolError,
    load_segment,
    segment_path,
    segment_paths,
)
from tidegate.usage.segment_table import segment_table

__all__ = ["Event", "ParquetError", "complete_files", "list_files", "read_segment"]

_log = logging.getLogger("tidegate.usage.unconverted")  # a name that users may have set


@contextmanager
def complete_files(path: Path) -> Iterator[list[Path]]:
    """Yield the Parquet files that together contain each row under `path` once, including rows in the spool.

    `path`: as for `list_files`; only a usage directory has a spool. The copies are in a new directory in the system's
    temporary directory (`TMPDIR`), which is removed afterwards. Damaged segments are left out. Raises `ConfigError` if
    nothing exists at `path`, `SpoolError` if only damaged segments do.
    """
    waiting = _segments(path)
    if not waiting:
        yield list_files(path)
        return
    with tempfile.TemporaryDirectory(prefix="tidegate-usage-") as name:
        damaged = [error for place in waiting if (error := _copy(*place, Path(name))) is not None]
        files = list_files(path)
        copies = [copy for copy in list_files(Path(name)) if not _is_converted(copy, files)]
        if damaged and not files and not copies:
            raise damaged[0]
        yield sorted([*files, *copies], key=lambda file: (file.parts[-3:], file))


def _segments(path: Path) -> list[tuple[Path, int]]:
    """Return the spool directory and first sequence number of each segment, in order."""
    spools = sorted(path.glob("spool/node-*"))
    found = {
        (spool, int(segment.stem))
        for spool in spools
        for suffix in (OPEN_SUFFIX, CLOSED_SUFFIX)
        for segment in segment_paths(spool, suffix)
    }
    return sorted(found)


def _copy(spool: Path, first_seq: int, parquet: Path) -> SpoolError | None:
    """Copy the rows of a segment to a Parquet file; return the error of a damaged one."""
    try:
        segment = _load(spool, first_seq)
        if segment is not None:
            write_table(segment_table(segment), parquet, node_id=segment.header.node_id)
    except SpoolError as error:
        _log.warning("skipped a damaged usage segment: %s", error)
        return error
    return None


def _load(spool: Path, first_seq: int) -> Segment | None:
    """Return the segment, open or closed; None: it was converted in the meantime."""
    for suffix in (OPEN_SUFFIX, CLOSED_SUFFIX):  # in this order: an open segment may be closed in between
        try:
            return load_segment(segment_path(spool, first_seq, suffix))
        except FileNotFoundError:
            continue
    return None


def _is_converted(copy: Path, files: list[Path]) -> bool:
    """Return whether one of `files` has the rows of `copy`: the same node, hour and sequence numbers."""
    mine = ParquetFile.parse(copy)
    assert mine is not None, "we named it"
    others = (ParquetFile.parse(file) for file in files if file.parts[-3:-1] == copy.parts[-3:-1])
    return any(
        other.node_id == mine.node_id and other.first_seq <= mine.first_seq <= other.last_seq
        for other in others
        if other is not None
    )

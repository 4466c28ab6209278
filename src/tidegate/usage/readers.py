"""Readers of the usage record: which files to read, the rows that are still in a spool, and those of a segment.

A job that reads the usage directory of a running broker, or of one that was killed, needs the last rows, too. So
`complete_files` copies the rows in the spool to Parquet files of their own, before it lists the Parquet files. A
segment that the writer converts meanwhile is then in both, by the same sequence numbers, and its copy is left out.
Nothing in the usage directory is changed.
"""

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidegate.usage.arrow import ParquetError, write_table
from tidegate.usage.events import Event, read_segment
from tidegate.usage.files import ParquetFile, is_imported, list_files
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

__all__ = ["Event", "ParquetError", "complete_files", "is_imported", "list_files", "read_segment"]

_log = logging.getLogger("tidegate.usage.unconverted")  # a name that users may have set


@contextmanager
def complete_files(path: Path) -> Iterator[list[Path]]:
    """Yield the Parquet files that together hold every row under `path` once, including rows still in the spool.

    `path`: as for `list_files`; only a usage directory has a spool. The copies are in a directory of their own under
    the system's temporary one (`TMPDIR`), which is removed afterwards. Raises `ConfigError` if nothing is at `path`.
    """
    waiting = _segments(path)
    if not waiting:
        yield list_files(path)
        return
    with tempfile.TemporaryDirectory(prefix="tidegate-usage-") as name:
        for spool, first_seq in waiting:
            _copy(spool, first_seq, Path(name))
        files = list_files(path)
        copies = [copy for copy in list_files(Path(name)) if not _is_converted(copy, files)]
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


def _copy(spool: Path, first_seq: int, parquet: Path) -> None:
    try:
        segment = _load(spool, first_seq)
        if segment is not None:
            write_table(segment_table(segment), parquet, node_id=segment.header.node_id)
    except SpoolError as error:
        _log.warning("skipped a damaged usage segment: %s", error)


def _load(spool: Path, first_seq: int) -> Segment | None:
    """Return the segment, open or closed; None: it was converted meanwhile."""
    for suffix in (OPEN_SUFFIX, CLOSED_SUFFIX):  # in this order: it may be closed between the two
        try:
            return load_segment(segment_path(spool, first_seq, suffix))
        except FileNotFoundError:
            continue
    return None


def _is_converted(copy: Path, files: list[Path]) -> bool:
    """Return whether the rows of `copy` are in one of `files`: of its node and hour, with its sequence numbers."""
    mine = ParquetFile.parse(copy)
    assert mine is not None, "we named it"
    others = (ParquetFile.parse(file) for file in files if file.parts[-3:-1] == copy.parts[-3:-1])
    return any(
        other.node_id == mine.node_id and other.first_seq <= mine.first_seq <= other.last_seq
        for other in others
        if other is not None
    )

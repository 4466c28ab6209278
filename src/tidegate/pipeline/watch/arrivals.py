"""Arrivals of rows in a live record. An offset is, for each node, the `seq` up to which all rows have arrived.

A row is identified by its node and its `seq`, not by its file: a compacted file repeats the rows of other files and
adds none after the offset. The name of a file states its range of `seq`; its statistics state which part it contains.

Files may arrive in any order: a writer puts the rows of a segment that spans two hours into two files of the same
range, and a copy of a record brings its files in any order. A watch needs the rows of a node in order. Rows after a
missing or incomplete range therefore wait until the range arrives, for at most the lateness; then the range counts as
lost. A row that arrives later is not decided any more: `Arrivals.late` counts it and names its file.

The rows of the processes of one broker are taken in the order of time (`processes`). Their node id in an offset stands
for all processes of the broker, and its `seq` is made of the time.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import ConfigError
from tidegate.pipeline.errors import UsageFilesError, VanishedFileError
from tidegate.pipeline.read.chunks import Chunk, read_chunk
from tidegate.pipeline.read.columns import first_seq_at, ms_of_seq
from tidegate.pipeline.read.ingest import newest_ms
from tidegate.pipeline.watch.pieces import Piece, lost_events, pieces_of
from tidegate.pipeline.watch.processes import EVERY_SEQ, all_processes, is_of_process, waiting_since_ms
from tidegate.usage.files import HOUR_MS, ParquetFile, hour_directories, in_hours, is_imported, list_files
from tidegate.usage.process_nodes import broker_of_node

__all__ = [
    "LATENESS_S",
    "Arrivals",
    "LateFile",
    "Missing",
    "Offsets",
    "check_watched",
    "last_from_ms",
    "newest_hour_ms",
]

Offsets = Mapping[int, int]
"""The last `seq` of each node."""

Missing = Mapping[int, Sequence[tuple[int, int]]]
"""By node, in rising order, the ranges of `seq` (first, last) behind its offset of which no row was taken."""

LATENESS_S = 60.0
"""By default, seconds for which rows wait for earlier rows of their node."""

_FIRST_SEQ = 1  # of a node's first row
_HINT = "give the usage directory of `tidegate serve` or `tidegate gateway`"
_BEGUN = ("parquet", "spool", "date=*", "import.lock", "*/parquet", "*/spool")
"""Patterns of paths that a record, or a directory of several, can contain before its first file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateFile:
    """A file with rows that arrived after rows behind them were taken: so many of them, from `first_seq` on."""

    node_id: int
    path: str
    rows: int
    first_seq: int
    last_seq: int


class Arrivals:
    """The files of a record, from the hour of `from_ms` on. What is known of a file is kept while the file exists.

    lateness_s: seconds for which rows wait for earlier rows of their node. 0: rows do not wait.
    """

    def __init__(self, directory: Path, *, from_ms: int | None, lateness_s: float = LATENESS_S) -> None:
        self._directory = directory
        self._usage = directory.parent if directory.name == "parquet" else directory
        self._from_ms = None if from_ms is None else from_ms - from_ms % HOUR_MS
        self._lateness_s = lateness_s
        self._pieces: dict[Path, list[Piece]] = {}
        self._checked: set[Path] = set()
        self._is_imported = is_imported(directory)

    def latest(self, after: Offsets, *, most_rows: int | None = None) -> dict[int, int]:
        """Return the offsets up to which all rows are there, at most about so many rows after `after`.

        Raises `UsageFilesError` where a file cannot be read, or there is no directory.
        """
        waiting = waiting_since_ms(self._usage)
        # A range can span two hours. It is complete only with its file in an hour before `from_ms`.
        listed, here = self._files(after, all_hours=True), self._files(after)
        found = {
            node_id: self._frontier(listed[node_id], after.get(node_id, _FIRST_SEQ - 1))
            for node_id in here
            if not is_of_process(node_id)
        }
        found |= self._frontiers_of_processes(here, after, waiting)
        ends = {node_id: end for node_id, end in found.items() if end > after.get(node_id, -1)}
        if most_rows is not None:
            share = max(1, most_rows // max(1, len(ends)))
            for node_id, end in ends.items():
                ends[node_id] = self._end_of_share(node_id, after.get(node_id, -1), end, share)
        return {**after, **ends}

    def pieces(self, node_id: int, after_seq: int, end_seq: int) -> list[Piece]:
        """Return the pieces with rows of a node after `after_seq` and up to `end_seq`, in order. Raises likewise."""
        if is_of_process(node_id):
            by_process = self._files({}).items()
            of_broker = (files for process, files in by_process if all_processes(process) == node_id)
            after_ms = ms_of_seq(after_seq + 1)
            recent = (file for files in of_broker for file in self._newest_first(files, after_ms))
            pieces = [piece.of_broker() for file in recent for piece in self._of_file(file)]
        else:
            files = self._files({node_id: after_seq}).get(node_id, [])
            pieces = [piece for file in files for piece in self._of_file(file)]
        wanted = [piece for piece in pieces if piece.last_seq > after_seq and piece.first_seq <= end_seq]
        return sorted(wanted, key=lambda piece: (piece.first_seq, piece.last_seq))

    def _files(self, after: Offsets, *, all_hours: bool = False) -> dict[int, list[ParquetFile]]:
        """Return the files of each node that may have rows after `after`: of the wanted hours, or of all."""
        try:
            paths = list_files(self._directory)
        except ConfigError as error:
            raise UsageFilesError(str(error), hint=_HINT) from error
        by_node: dict[int, list[ParquetFile]] = {}
        named = {file.path: file for file in map(ParquetFile.parse, paths) if file is not None}
        for path in named if all_hours else in_hours(named, from_ms=self._from_ms, to_ms=None):
            file = named[path]
            if file.last_seq > after.get(file.node_id, -1):
                by_node.setdefault(file.node_id, []).append(file)
        self._pieces = {path: pieces for path, pieces in self._pieces.items() if path in named}
        self._checked &= named.keys()
        return by_node

    def late(self, missing: Missing, last_seq: Offsets, before_ms: Mapping[int, int]) -> list[LateFile]:
        """Return the files that have rows of `missing` ranges. Raises likewise.

        last_seq: the last `seq` taken from each node. before_ms: by broker, the time before which the rows of its
        processes were taken; later rows are not late yet. A file is not read again once no row of it comes after these.
        """
        found: list[LateFile] = []
        all_files = self._files({}) if before_ms or any(missing.values()) else {}
        for node_id, files in all_files.items():
            end_ms = before_ms.get(broker_of_node(node_id), 0) if is_of_process(node_id) else None
            ranges = missing.get(node_id, () if end_ms is None else (EVERY_SEQ,))
            for file in files:
                may_have = any(first <= file.last_seq and last >= file.first_seq for first, last in ranges)
                if may_have and file.path not in self._checked:
                    found += self._late_rows(file, ranges, end_ms)
                    if self._is_before(file, last_seq.get(node_id, -1), end_ms):
                        self._checked.add(file.path)
        return found

    def _is_before(self, file: ParquetFile, last_seq: int, end_ms: int | None) -> bool:
        """Return whether no row of a file comes after the rows that were taken."""
        if end_ms is None:
            return file.last_seq <= last_seq
        return all(piece.last_ms < end_ms for piece in self._of_file(file))

    def _late_rows(
        self, file: ParquetFile, ranges: Sequence[tuple[int, int]], end_ms: int | None
    ) -> Iterator[LateFile]:
        """Yield the rows of a file that are in `ranges` and before a time, if any, as a `LateFile`."""
        firsts, lasts = (np.array([edges[place] for edges in ranges], np.int64) for place in (0, 1))
        seqs = []
        for piece in self._of_file(file):
            if end_ms is not None and piece.first_ms >= end_ms:
                continue
            is_wanted = pc.field("node_id") == file.node_id
            if end_ms is not None:
                is_wanted &= pc.field("ts_ms") < end_ms
            seq = read_chunk(Chunk(piece.path, piece.row_group), ("node_id", "seq", "ts_ms"))
            of_node = seq.filter(is_wanted)["seq"].to_numpy()
            place = np.searchsorted(firsts, of_node, side="right") - 1
            seqs.append(of_node[(place >= 0) & (of_node <= lasts[place])])
        late = np.concatenate(seqs) if seqs else np.zeros(0, np.int64)
        if len(late):
            yield LateFile(
                node_id=file.node_id,
                path=str(file.path),
                rows=len(late),
                first_seq=int(late.min()),
                last_seq=int(late.max()),
            )

    def _frontiers_of_processes(
        self, listed: Mapping[int, Sequence[ParquetFile]], after: Offsets, waiting: Mapping[int, int | None]
    ) -> dict[int, int]:
        """Return for each broker the `seq` up to which all rows of its processes have arrived or are overdue.

        waiting: `waiting_since_ms` before the files were listed.
        """
        of_processes = [node_id for node_id in listed if is_of_process(node_id)]
        if not of_processes:
            return {}
        # A process may have begun a segment after its spool was found empty, and before the files were listed.
        also_waiting = waiting_since_ms(self._usage)
        spools = {
            node_id: min(
                (each for each in (since_ms, also_waiting.get(node_id)) if each is not None), default=None
            )
            for node_id, since_ms in waiting.items()
        }
        found = {}
        for node_id in {all_processes(process) for process in of_processes}:
            after_ms = ms_of_seq(after.get(node_id, -1) + 1)
            files = {
                process: listed[process] for process in of_processes if all_processes(process) == node_id
            }
            of_broker = {process: ms for process, ms in spools.items() if all_processes(process) == node_id}
            found[node_id] = first_seq_at(self._complete_ms(files, of_broker, after_ms)) - 1
        return found

    def _complete_ms(
        self,
        files: Mapping[int, Sequence[ParquetFile]],
        spools: Mapping[int, int | None],
        after_ms: int,
    ) -> int:
        """Return the time before which all rows of the processes have arrived, or have been waited for long enough.

        files, spools: for each process, its files, and the time of the first row in its spool. after_ms: the previous
        result.
        """
        begins = [since_ms for since_ms in spools.values() if since_ms is not None]
        end_ms = overdue_ms = after_ms
        now_s = time.time()
        for process, of_process in files.items():
            end_seq = None if process in spools else self._frontier(of_process, _FIRST_SEQ - 1)
            known_ms = after_ms
            for file in self._newest_first(of_process, after_ms):
                last_ms = max((piece.last_ms for piece in self._of_file(file)), default=0)
                end_ms = max(end_ms, last_ms + 1)
                if now_s - _arrived_s([file]) > self._lateness_s:
                    overdue_ms = max(overdue_ms, last_ms + 1)
                if end_seq is not None and file.last_seq <= end_seq:
                    known_ms = max(known_ms, last_ms)
            if end_seq is not None:
                begins.append(known_ms)  # more rows of this millisecond may come
        if self._lateness_s == 0:
            return end_ms
        return max(after_ms, overdue_ms, min([end_ms, *begins]))

    def _newest_first(self, files: Sequence[ParquetFile], after_ms: int) -> Iterator[ParquetFile]:
        """Yield the files of a process with rows from `after_ms` on, the newest first."""
        for file in sorted(files, key=lambda file: (file.last_seq, file.path), reverse=True):
            pieces = self._of_file(file)
            if pieces and max(piece.last_ms for piece in pieces) < after_ms:
                return
            yield file

    def _frontier(self, files: Sequence[ParquetFile], after_seq: int) -> int:
        """Return the `seq` up to which all rows of a node have arrived, or have been waited for long enough.

        files: those with rows after `after_seq`.
        """
        ranges: dict[tuple[int, int], list[ParquetFile]] = {}
        for file in files:
            ranges.setdefault((file.first_seq, file.last_seq), []).append(file)
        if self._is_imported or self._lateness_s == 0:
            return max(last_seq for _, last_seq in ranges)
        behind = sorted(ranges.items())
        # Rows wait from the time at which the first file at or behind them arrived (decision 0108).
        oldest = list(accumulate((_arrived_s(of_range) for _, of_range in reversed(behind)), min))[::-1]
        end_seq, now_s = after_seq, time.time()
        for ((first_seq, last_seq), of_range), arrived_s in zip(behind, oldest, strict=True):
            is_over = now_s - arrived_s > self._lateness_s
            if not is_over:
                follows = first_seq <= end_seq + 1 or self._begins_a_run(of_range)
                if not self._is_complete(of_range, after_seq=first_seq - 1 if follows else end_seq):
                    break
            end_seq = max(end_seq, last_seq)
        return end_seq

    def _begins_a_run(self, of_range: Sequence[ParquetFile]) -> bool:
        """Return whether no row can be missing before a range although the `seq` of earlier rows ends far before it.

        Each run of a broker begins with a new block of `seq`. On the broker's own disk, which has the spool, the rows
        of the earlier run exist before those of a new run; in a copy they may still arrive.
        """
        if not (self._usage / "spool" / f"node-{of_range[0].node_id}").is_dir():
            return False
        pieces = [piece for file in of_range for piece in self._of_file(file)]
        first = min(pieces, key=lambda piece: piece.first_seq, default=None)
        if first is None:
            return False
        rows = read_chunk(Chunk(first.path, first.row_group), ("seq", "kind"))
        (kind,) = rows.filter(pc.field("seq") == first.first_seq)["kind"].cast(pa.string()).to_pylist()[:1]
        return bool(kind == "start")

    def _is_complete(self, of_range: Sequence[ParquetFile], *, after_seq: int) -> bool:
        """Return whether the files of one range have all rows after `after_seq`, except those that the node lost."""
        if any(file.compacted for file in of_range):
            return of_range[0].first_seq == after_seq + 1
        pieces = [piece for file in of_range for piece in self._of_file(file)]
        # `gap` rows say how many events the node lost, and nothing waits for those (decision 0108).
        missing = of_range[0].last_seq - after_seq - sum(piece.rows for piece in pieces)
        return missing <= 0 or missing <= sum(map(lost_events, pieces))

    def _end_of_share(self, node_id: int, after_seq: int, end_seq: int, most_rows: int) -> int:
        rows = 0
        for piece in sorted(self.pieces(node_id, after_seq, end_seq), key=lambda piece: piece.last_seq):
            rows += piece.rows
            if rows >= most_rows:
                return min(piece.last_seq, end_seq)
        return end_seq

    def _of_file(self, file: ParquetFile) -> list[Piece]:
        found = self._pieces.get(file.path)
        if found is None:
            found = self._pieces[file.path] = pieces_of(file)
        return found


def check_watched(directory: Path) -> None:
    """Raise `UsageFilesError` for a file, and for a directory that cannot become a record: it has other things."""
    if directory.is_file():
        raise UsageFilesError(f"{str(directory)!r} is a file, expected a usage directory", hint=_HINT)
    _, directories, names = next(os.walk(directory), ("", [], []))
    has_more = any(name[0] != "." and name != "lost+found" for name in (*directories, *names))
    if has_more and not list_files(directory) and not any(any(directory.glob(begun)) for begun in _BEGUN):
        raise UsageFilesError(f"{str(directory)!r} has files, but no usage record", hint=_HINT)


def newest_hour_ms(directory: Path) -> int | None:
    """Return the first millisecond of the newest hour that has files; None: there is none."""
    root = directory / "parquet" if (directory / "parquet").is_dir() else directory
    hours = [hour_ms for hour_ms, path in hour_directories(root) if any(path.glob("node-*.parquet"))]
    return max(hours, default=None)


def last_from_ms(directory: Path, last_ms: int) -> int | None:
    """Return the beginning of the last part of a record; None: it has no rows yet, so that all future rows count.

    Raises `UsageFilesError`.
    """
    if not directory.is_dir():
        return None  # the watch raises the error
    try:
        found_ms = _newest_ms(directory)
    except VanishedFileError:  # compacted meanwhile
        found_ms = _newest_ms(directory)
    return max(0, found_ms + 1 - last_ms) if found_ms else None


def _newest_ms(directory: Path) -> int:
    return newest_ms([path for path in list_files(directory) if ParquetFile.parse(path) is not None])


def _arrived_s(of_range: Sequence[ParquetFile]) -> float:
    """Return when the first of the files arrived in its directory (ctime): a copy may keep an older mtime."""
    arrived_s = float("inf")
    for file in of_range:
        with suppress(FileNotFoundError):
            arrived_s = min(arrived_s, file.path.stat().st_ctime)
    return arrived_s

"""`tidegate import`: request logs of real brokers become a usage record, in processes side by side.

The files are read here, block by block; other processes make columns of the lines; hour by hour they are sorted and
written as Parquet. Memory holds the rows of one hour, the blocks under way, and the topics and quotas that requests
state.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow.compute as pc

from tidegate.config.quotas_file import QuotasFile
from tidegate.errors import ConfigError
from tidegate.kafka_log.import_directory import (
    REJECTED,
    check_directory,
    finished_import,
    staging,
    written_to,
)
from tidegate.kafka_log.import_summary import ImportSummary
from tidegate.kafka_log.line import has_fractions
from tidegate.kafka_log.log_files import (
    BLOCK_BYTES,
    LogFile,
    LogFileError,
    Source,
    bytes_on_disk,
    find_logs,
    no_requests_error,
)
from tidegate.kafka_log.manifest import HEAD_BYTES, ImportedFile, Manifest, TimeRange, time_text
from tidegate.kafka_log.node_hours import LINES_PER_FILE, HourWriter, NodeRows, parts_by_hour
from tidegate.kafka_log.workers import ReadBlock, SubmitBlock, read_block, workers_for
from tidegate.usage.directory import make_private_directory

__all__ = ["import_logs"]

HELD_ROWS = 2_000_000
"""Rows held in memory before they are written aside."""
REJECTED_MAX = 100_000

Progress = Callable[[Path, int, int], None]

_NEVER_US = 2**62


@dataclass(slots=True, eq=False)
class _File:
    """A file under way. number: its place among all; lines and requests: how many of it have been added."""

    path: Path
    number: int
    node: NodeRows
    lines: int = 0
    requests: int = 0


def import_logs(
    sources: Sequence[Source],
    out: Path,
    *,
    zone: ZoneInfo,
    in_force: QuotasFile | None = None,
    processes: int | None = None,
    strict: bool = False,
    wanted: TimeRange | None = None,
    last_ms: int | None = None,
    on_progress: Progress = lambda path, done, total: None,
) -> ImportSummary:
    """Add the new requests in the logs to the record at `out`.

    zone: the brokers' time zone; in_force: quotas that were set before the first request of a new node;
    strict: raise `LogFileError` for a damaged file, and import nothing; otherwise import its readable part.
    wanted: the range of the requests that are imported, None: all; last_ms: instead, the last so many ms of the logs,
    up to their newest request. The record keeps the range of its first import.
    on_progress: called with a file, the bytes on disk that have been read of all files, and their total.
    Raises `ConfigError` for a directory that is in use, holds something else or another range, or cannot be written,
    `LogFileError` if no file has a request, or none of the range.
    """
    files = find_logs(sources, out)
    with written_to(out):
        check_directory(out)
        make_private_directory(out)
        with finished_import(out) as manifest, staging(out), workers_for(files, processes) as submit:
            return _Import(
                out, manifest, zone, in_force, submit, strict, wanted or TimeRange(), last_ms, on_progress
            ).run(files)


class _Import:
    """One import, from the files to the finished manifest."""

    def __init__(
        self,
        out: Path,
        manifest: Manifest,
        zone: ZoneInfo,
        in_force: QuotasFile | None,
        submit: SubmitBlock | None,
        strict: bool,
        wanted: TimeRange,
        last_ms: int | None,
        on_progress: Progress,
    ) -> None:
        self._out = out
        self._manifest = manifest
        self._zone = zone
        self._in_force = in_force
        self._submit = submit
        self._strict = strict
        self._wanted = wanted
        self._last_ms = last_ms
        self._on_progress = on_progress
        self._oldest_us, self._newest_us = _NEVER_US, 0
        self._bytes_done = self._bytes_total = 0
        self._files: list[_File] = []
        self._summary = ImportSummary()
        self._nodes: dict[int, NodeRows] = {}
        self._rejected: list[str] = []
        self._under_way: list[tuple[_File, Future[ReadBlock]]] = []

    def run(self, files: Sequence[Source]) -> ImportSummary:
        """Read all files, write their rows and the manifest, and return the summary."""
        new_nodes = {source.node_id for source in files} - {file.node_id for file in self._manifest.files}
        is_new_record = not self._manifest.files
        if self._last_ms is None and not is_new_record:
            self._check_range()
        self._bytes_total = sum(bytes_on_disk(source.path) for source in files)
        for number, source in enumerate(files):
            self._take_file(number, source)
        self._collect(0)
        self._note_files_without_requests()
        if self._last_ms is not None and self._newest_us:
            from_ms = self._newest_us // 1000 + 1 - self._last_ms
            self._wanted = TimeRange(from_ms=from_ms if from_ms > 0 else None)
            if not is_new_record:
                self._check_range()
        hours = HourWriter(
            out=self._out,
            manifest=self._manifest,
            wanted=self._wanted,
            in_force=self._in_force,
            summary=self._summary,
            rejected=self._rejected,
        )
        for node in self._nodes.values():
            hours.write_node(node, is_new=node.node_id in new_nodes)
        if is_new_record and self._summary.outside and not self._summary.requests:
            raise self._none_in_range()
        self._manifest.from_ms, self._manifest.to_ms = self._wanted.from_ms, self._wanted.to_ms
        self._write_rejected()
        self._manifest.estimated_fetches += self._summary.estimated_fetches
        self._manifest.unpriced += self._summary.unpriced
        # The manifest lists the moves before they happen, so the next import can finish those of a killed one.
        self._manifest.save(self._out)
        self._manifest.finish(self._out)
        return self._summary

    def _check_range(self) -> None:
        """Raise `ConfigError` where the record is of another range."""
        of_record = TimeRange(from_ms=self._manifest.from_ms, to_ms=self._manifest.to_ms)
        if self._wanted != of_record:
            options = f"give {of_record}" if str(of_record) else "give no range"
            raise ConfigError(
                f"{str(self._out)!r} was imported with {str(of_record) or 'no range of time'}, "
                f"which excludes {str(self._wanted) or 'an import of all requests'}",
                hint=f"{options}, or give --out another directory",
            )

    def _none_in_range(self) -> LogFileError:
        oldest, newest = (time_text(us // 1000) for us in (self._oldest_us, self._newest_us))
        return LogFileError(
            f"nothing imported: no request in the range {self._wanted}",
            hint=f"the logs have requests from {oldest} to {newest}; --time-zone says in which zone they are written",
        )

    def _note_files_without_requests(self) -> None:
        """Note the files of other loggers. Raises `LogFileError` where nothing else is there."""
        summary = self._summary
        summary.without_requests = [file.path for file in self._files if file.lines and not file.requests]
        if summary.requests or summary.outside or summary.files_known:
            return
        if self._rejected:
            with written_to(self._out):
                self._write_rejected()
        raise no_requests_error(
            [file.path for file in self._files],
            summary.damaged,
            summary.skipped,
            summary.bad,
            self._out / REJECTED,
        )

    def _take_file(self, number: int, source: Source) -> None:
        node = self._nodes.setdefault(source.node_id, NodeRows(source.node_id))
        under_way = _File(source.path, number, node)
        self._files.append(under_way)
        try:
            log = LogFile(source.path)
        except OSError as error:
            self._note_damage(source.path, error.strerror or str(error))
        else:
            with log:
                self._take_open_file(source, under_way, log)
                if log.damage is not None:
                    self._note_damage(source.path, log.damage)
        self._bytes_done += bytes_on_disk(source.path)
        self._on_progress(source.path, self._bytes_done, self._bytes_total)

    def _note_damage(self, path: Path, damage: str) -> None:
        if self._strict:
            raise LogFileError(
                f"cannot read {str(path)!r}: {damage}",
                hint="remove it from the command, copy it again, or import its readable part without --strict",
            )
        self._summary.damaged.append((path, damage))

    def _take_open_file(self, source: Source, under_way: _File, log: LogFile) -> None:
        whole_seconds = not has_fractions(log.read(HEAD_BYTES))
        log.rewind()
        known, digest, head = self._known_start(source, log)
        start = size = 0 if known is None else known.size
        for block in log.blocks():
            digest.update(block)
            size += len(block)
            self._start(under_way, block)
            self._on_progress(source.path, self._bytes_done + log.position, self._bytes_total)
        self._summary.unfinished += bool(log.rest) and log.damage is None
        if size == start:
            self._summary.files_known += known is not None
            return
        self._summary.files += 1
        self._summary.whole_seconds += whole_seconds
        self._summary.bytes += size - start
        if known is not None:
            self._manifest.files.remove(known)
        taken = ImportedFile(
            node_id=source.node_id,
            name=source.path.name,
            head=head,
            digest=digest.hexdigest(),
            size=size,
        )
        self._manifest.files.append(taken)

    def _known_start(self, source: Source, log: LogFile) -> tuple[ImportedFile | None, Any, str]:
        """Return the imported part of a file, its digest, and that of the head. Position the log after that part."""
        head = log.read(HEAD_BYTES)
        head_digest = blake2b(head, digest_size=16).hexdigest()
        for known in self._manifest.files_that_begin_like(source.node_id, head_digest):
            log.rewind()
            digest = blake2b(digest_size=16)
            left = known.size
            while left and (block := log.read(min(left, BLOCK_BYTES))):
                digest.update(block)
                left -= len(block)
            if not left and digest.hexdigest() == known.digest:
                return known, digest, head_digest
        log.rewind()
        return None, blake2b(digest_size=16), head_digest

    def _start(self, file: _File, block: bytes) -> None:
        if self._submit is None:
            self._add(file, read_block(self._zone.key, block))
        else:
            self._under_way.append((file, self._submit(self._zone.key, block)))
            # A bound on the blocks that are in memory.
            self._collect(2 * (os.cpu_count() or 1))

    def _collect(self, leave: int) -> None:
        """Add the results of blocks, in order, until at most `leave` blocks are under way."""
        while len(self._under_way) > leave:
            file, future = self._under_way.pop(0)
            self._add(file, future.result())

    def _add(self, file: _File, taken: ReadBlock) -> None:
        summary, node = self._summary, file.node
        summary.requests += taken.requests
        file.requests += (
            taken.requests + taken.bad_lines + taken.skipped.total() - taken.skipped["no request"]
        )
        summary.bad += taken.bad_lines
        summary.skipped += taken.skipped
        for number, reason in taken.bad[: max(REJECTED_MAX - len(self._rejected), 0)]:
            self._rejected.append(f"{file.path}:{file.lines + number}: {reason}\n")
        # Numbered over all files: requests of one microsecond keep the order of the log.
        before = file.number * LINES_PER_FILE + file.lines
        file.lines += taken.lines
        for exchange in taken.exchanges:
            exchange.line += before
        node.exchanges += taken.exchanges
        self._manifest.topic_names |= taken.topic_names
        node.has_zookeeper |= taken.has_zookeeper
        at = taken.table.column_names.index("line")
        table = taken.table.set_column(at, "line", pc.add(taken.table["line"], before))
        if len(table):
            ends = pc.min_max(table["decided_us"]).as_py()
            self._oldest_us = min(self._oldest_us, ends["min"])
            self._newest_us = max(self._newest_us, ends["max"])
        for hour, part in parts_by_hour(table):
            if self._wanted.may_hold_hour(hour):
                node.held[hour].append(part)
            else:
                self._summary.leave_out(len(part))
        if sum(len(part) for held in node.held.values() for part in held) >= HELD_ROWS:
            node.spill_rows(self._out)

    def _write_rejected(self) -> None:
        if self._rejected:
            fd = os.open(self._out / REJECTED, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(self._rejected[:REJECTED_MAX])

"""`tidegate import`: request logs of real brokers become a usage record, in processes side by side.

The files are read here, block by block; other processes make columns of the lines; hour by hour they are sorted and
written as Parquet. What is held in memory is the rows of one hour, blocks under way, and what requests state
about topics and quotas.
"""

import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.config.quotas_file import QuotasFile
from tidegate.errors import ConfigError
from tidegate.kafka_log.exchanges import (
    Topics,
    events_before,
    exchange_events,
    move_to_controller,
    move_to_handler_start,
)
from tidegate.kafka_log.line import has_fractions
from tidegate.kafka_log.log_files import (
    BLOCK_BYTES,
    LogFile,
    LogFileError,
    Source,
    find_logs,
    no_requests_error,
)
from tidegate.kafka_log.manifest import HEAD_BYTES, ImportedFile, Manifest, TimeRange, time_text
from tidegate.kafka_log.merge import PlacedEvent, hour_table, with_times
from tidegate.kafka_log.requests import LoggedExchange, RequestColumns
from tidegate.kafka_log.workers import worker_processes
from tidegate.usage.arrow import arrow_schema, table_in_order, table_schema, write_parquet
from tidegate.usage.columns import SEQ_PER_US
from tidegate.usage.directory import lock_file, make_private_directory, parquet_directory
from tidegate.usage.files import HOUR_MS, HOUR_US, IMPORT_MANIFEST, hour_directory, node_files, parquet_path

__all__ = ["ImportSummary", "finished_import", "import_logs"]

IN_PROCESS_BYTES = 16 << 20
"""Smaller input is not worth other processes."""
HELD_ROWS = 2_000_000
"""Rows held in memory before they are written aside."""
REJECTED_MAX = 100_000

Progress = Callable[[Path, int, int], None]

_STAGING, _LOCK, _REJECTED = ".import", "import.lock", "import-rejected.txt"
_LINES_PER_FILE = 1 << 40
_NEVER_US = 2**62


@dataclass(slots=True, kw_only=True)
class ImportSummary:
    """The result of an import. skipped: lines that are not client requests, by reason; bad: lines that cannot be read.

    damaged: files that could be read only in part or not at all, with the reason;
    without_requests: files of other loggers;
    doubles: new requests that look like another request of the same time;
    whole_seconds: files whose first line has no fraction of a second;
    unfinished: files whose last line is incomplete; that line is left for a later import;
    requests: those that were imported; outside: those that are not in the range.
    """

    files: int = 0
    files_known: int = 0
    unfinished: int = 0
    damaged: list[tuple[Path, str]] = field(default_factory=list)
    without_requests: list[Path] = field(default_factory=list)
    bytes: int = 0
    requests: int = 0
    outside: int = 0
    bad: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    estimated_fetches: int = 0
    doubles: int = 0
    whole_seconds: int = 0
    unpriced: int = 0
    quotas: int = 0
    first_ms: int | None = None
    last_ms: int | None = None


@dataclass(slots=True)
class _Taken:
    """The result of reading a block of lines."""

    table: pa.Table
    exchanges: list[LoggedExchange]
    has_zookeeper: bool
    lines: int
    requests: int
    bad_lines: int
    bad: list[tuple[int, str]]
    skipped: Counter[str]
    topic_names: dict[str, str]


@dataclass(slots=True, eq=False)
class _File:
    """A file under way. number: its place among all; lines and requests: how many of it have been added."""

    path: Path
    number: int
    node: "_Node"
    lines: int = 0
    requests: int = 0


@dataclass(slots=True)
class _Node:
    """The unfinished import of one node: rows by hour, in memory or in files, and what its requests state."""

    node_id: int
    exchanges: list[LoggedExchange] = field(default_factory=list)
    has_zookeeper: bool = False
    held: dict[int, list[pa.Table]] = field(default_factory=lambda: defaultdict(list))
    aside: dict[int, list[Path]] = field(default_factory=lambda: defaultdict(list))


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
    with _written(out):
        _check_directory(out)
        make_private_directory(out)
        with finished_import(out) as manifest, _staging(out), _workers(files, processes) as pool:
            return _Import(
                out, manifest, zone, in_force, pool, strict, wanted or TimeRange(), last_ms, on_progress
            ).run(files)


@contextmanager
def _written(out: Path) -> Iterator[None]:
    """Raise `ConfigError` where a file of the record cannot be written."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"cannot write to {str(out)!r}: {error.strerror or error}", hint="give --out another directory"
        ) from error


@contextmanager
def _staging(out: Path) -> Iterator[None]:
    """Create a directory for new files, and remove it at the end unless the manifest lists files to move from it."""
    shutil.rmtree(out / _STAGING, ignore_errors=True)
    make_private_directory(out / _STAGING)
    try:
        yield
    finally:
        if not Manifest.load(out).moves:
            shutil.rmtree(out / _STAGING, ignore_errors=True)


class _Import:
    """One import, from the files to the finished manifest."""

    def __init__(
        self,
        out: Path,
        manifest: Manifest,
        zone: ZoneInfo,
        in_force: QuotasFile | None,
        pool: Executor | None,
        strict: bool,
        wanted: TimeRange,
        last_ms: int | None,
        on_progress: Progress,
    ) -> None:
        self._out = out
        self._manifest = manifest
        self._zone = zone
        self._in_force = in_force
        self._pool = pool
        self._strict = strict
        self._wanted = wanted
        self._last_ms = last_ms
        self._on_progress = on_progress
        self._oldest_us, self._newest_us = _NEVER_US, 0
        self._bytes_done = self._bytes_total = 0
        self._files: list[_File] = []
        self._summary = ImportSummary()
        self._nodes: dict[int, _Node] = {}
        self._rejected: list[str] = []
        self._under_way: list[tuple[_File, Future[_Taken]]] = []

    def run(self, files: Sequence[Source]) -> ImportSummary:
        """Read all files, write their rows and the manifest, and return the summary."""
        new_nodes = {source.node_id for source in files} - {file.node_id for file in self._manifest.files}
        is_new_record = not self._manifest.files
        if self._last_ms is None and not is_new_record:
            self._check_range()
        self._bytes_total = sum(_bytes_on_disk(source.path) for source in files)
        for number, source in enumerate(files):
            self._take_file(number, source)
        self._collect(0)
        self._note_files_without_requests()
        if self._last_ms is not None and self._newest_us:
            from_ms = self._newest_us // 1000 + 1 - self._last_ms
            self._wanted = TimeRange(from_ms=from_ms if from_ms > 0 else None)
            if not is_new_record:
                self._check_range()
        for node in self._nodes.values():
            self._write_node(node, is_new=node.node_id in new_nodes)
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
            with _written(self._out):
                self._write_rejected()
        raise no_requests_error(
            [file.path for file in self._files],
            summary.damaged,
            summary.skipped,
            summary.bad,
            self._out / _REJECTED,
        )

    def _take_file(self, number: int, source: Source) -> None:
        node = self._nodes.setdefault(source.node_id, _Node(source.node_id))
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
        self._bytes_done += _bytes_on_disk(source.path)
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
        """Return what was taken of a file already, with the digest of that; the file stands behind it."""
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
        if self._pool is None:
            self._add(file, _take(self._zone.key, block))
        else:
            self._under_way.append((file, self._pool.submit(_take, self._zone.key, block)))
            # A bound on the blocks that are in memory.
            self._collect(2 * (os.cpu_count() or 1))

    def _collect(self, leave: int) -> None:
        """Wait for blocks, in their order, until so many are under way."""
        while len(self._under_way) > leave:
            file, future = self._under_way.pop(0)
            self._add(file, future.result())

    def _add(self, file: _File, taken: _Taken) -> None:
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
        before = file.number * _LINES_PER_FILE + file.lines
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
        for hour, part in _by_hour(table):
            if self._wanted.may_hold_hour(hour):
                node.held[hour].append(part)
            else:
                self._leave_out(len(part))
        if sum(len(part) for held in node.held.values() for part in held) >= HELD_ROWS:
            self._put_aside(node)

    def _leave_out(self, requests: int) -> None:
        self._summary.outside += requests
        self._summary.requests -= requests

    def _put_aside(self, node: _Node) -> None:
        for hour, parts in node.held.items():
            path = self._out / _STAGING / f"{node.node_id}-{hour}-{len(node.aside[hour])}.arrow"
            table = pa.concat_tables(parts).unify_dictionaries()
            with (
                _written(self._out),
                pa.OSFile(str(path), "wb") as sink,
                pa.ipc.new_file(sink, table.schema) as writer,
            ):
                writer.write_table(table)
            node.aside[hour].append(path)
        node.held.clear()

    def _write_node(self, node: _Node, *, is_new: bool) -> None:
        if node.has_zookeeper:
            move_to_handler_start(node.exchanges)
        moved_us = move_to_controller(node.exchanges)
        # The lines of controllers were needed only for their times: brokers have lines of the same requests.
        node.exchanges = [exchange for exchange in node.exchanges if not exchange.forwarded]
        all_events = self._events(node)
        events = _placed_by_hour(event for event in all_events if self._wanted.holds(event.decided_us))
        first_us = min(
            (
                us
                for us in (
                    _first_us(node, self._wanted),
                    *(each.decided_us for of in events.values() for each in of),
                )
                if us
            ),
            default=None,
        )
        began_us = None if is_new else self._began_us(node.node_id)
        moved: set[int] = set()  # the hour that began with what stands before the first request
        if first_us is not None and (began_us is None or first_us < began_us):
            events[first_us // HOUR_US] += events_before(first_us, self._in_force)
            events[first_us // HOUR_US] += self._wanted.quotas_before(all_events, first_us)
            moved |= set() if began_us is None else {began_us // HOUR_US}
        for hour in sorted({*node.held, *node.aside, *events, *moved}):
            parts = [
                pa.ipc.open_file(pa.memory_map(str(path))).read_all() for path in node.aside.get(hour, ())
            ]
            parts += node.held.get(hour, ())
            requests = with_times(pa.concat_tables(parts), moved_us) if parts else None
            if requests is not None:
                asked = len(requests)
                requests = self._wanted.requests_in(requests)
                self._leave_out(asked - len(requests))
                if not len(requests) and not events.get(hour) and hour not in moved:
                    continue
            self._write_hour(node.node_id, hour, requests, events.get(hour, []), begins_later=hour in moved)

    def _began_us(self, node_id: int) -> int | None:
        """Return the time of the `start` before the first request that was imported; None: there is none."""
        hours = sorted(parquet_directory(self._out).glob("date=*/hour=*"))
        files = next((found for hour in hours if (found := node_files(hour, node_id))), [])
        for file in files:
            table = pq.read_table(file.path, columns=["kind", "seq"], partitioning=None)
            starts = table.filter(pc.field("kind") == "start")["seq"].to_pylist()
            if starts:
                return int(min(starts)) // SEQ_PER_US
        return None

    def _write_hour(
        self,
        node_id: int,
        hour: int,
        requests: pa.Table | None,
        events: Sequence[PlacedEvent],
        *,
        begins_later: bool,
    ) -> None:
        """Write an hour, merged with its earlier files. begins_later: without their `start` and `gap`, which move."""
        directory = hour_directory(parquet_directory(self._out), hour * HOUR_MS)
        files = node_files(directory, node_id) if directory.is_dir() else []
        superseded = [file.path for file in files]
        there = (
            pa.concat_tables([table_in_order(pq.read_table(path, partitioning=None)) for path in superseded])
            if superseded
            else None
        )
        if there is not None and begins_later:
            there = there.filter(~pc.field("kind").isin(["start", "gap"]))
        table, estimated, doubles = hour_table(
            node_id,
            requests,
            events,
            None if there is None else there.cast(arrow_schema()),
            topic_names=self._manifest.topic_names,
        )
        self._summary.estimated_fetches += estimated
        self._summary.doubles += doubles
        times = table.column("ts_ms")
        first_ms, last_ms = times[0].as_py(), times[-1].as_py()
        self._summary.first_ms = min(self._summary.first_ms or first_ms, first_ms)
        self._summary.last_ms = max(self._summary.last_ms or last_ms, last_ms)
        seq = table.column("seq")
        place = parquet_path(
            directory,
            node_id=node_id,
            first_seq=seq[0].as_py(),
            last_seq=max(seq[-1].as_py(), *(file.last_seq for file in files), 0),
            compacted=bool(superseded),  # who reads meanwhile leaves out those that it is made of
        )
        made = self._out / _STAGING / f"{node_id}-{hour}.parquet"
        write_parquet(made, table.cast(table_schema()))
        made_name, place_name, *others = (
            str(path.relative_to(self._out)) for path in (made, place, *superseded)
        )
        self._manifest.moves.append((made_name, place_name, others))

    def _events(self, node: _Node) -> list[PlacedEvent]:
        """Return the events that the requests of a node state, in or before the range."""
        key = str(node.node_id)
        topics = Topics(self._manifest.topics.get(key, {}), has_zookeeper=node.has_zookeeper)
        found: list[PlacedEvent] = []
        for exchange in sorted(node.exchanges, key=lambda exchange: (exchange.asked_us, exchange.line)):
            try:
                found += exchange_events(exchange, topics)
            except (
                KeyError,
                TypeError,
                ValueError,
                AttributeError,
            ):  # the request counts, what it states does not
                self._summary.bad += 1
                self._rejected.append(
                    f"line {exchange.line % _LINES_PER_FILE}: a field has an unexpected type\n"
                )
        self._summary.quotas += sum(event.behind and self._wanted.holds(event.decided_us) for event in found)
        self._summary.unpriced += topics.unpriced
        self._manifest.topics[key] = topics.partitions
        return found

    def _write_rejected(self) -> None:
        if self._rejected:
            fd = os.open(self._out / _REJECTED, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(self._rejected[:REJECTED_MAX])


def _take(zone: str, block: bytes) -> _Taken:
    """Make columns of a block of whole lines, numbered from 1: the work of another process."""
    columns = RequestColumns(ZoneInfo(zone))
    lines = block.split(b"\n")
    for number, line in enumerate(lines, 1):
        columns.add_line(number, line)
    return _Taken(
        columns.table(),
        columns.exchanges,
        columns.has_zookeeper,
        len(lines) - 1,
        columns.requests,
        columns.bad_lines,
        columns.bad,
        columns.skipped,
        columns.topic_names,
    )


def _bytes_on_disk(path: Path) -> int:
    """Return the size of a file, 0 where it is gone."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _placed_by_hour(events: Iterable[PlacedEvent]) -> dict[int, list[PlacedEvent]]:
    by_hour: dict[int, list[PlacedEvent]] = defaultdict(list)
    for event in events:
        by_hour[event.decided_us // HOUR_US].append(event)
    return by_hour


def _first_us(node: _Node, wanted: TimeRange) -> int | None:
    """Return the time of the first request in the range; None: there is none."""
    held = [part for parts in node.held.values() for part in parts]
    aside = [
        pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        for paths in node.aside.values()
        for path in paths
    ]
    times = (wanted.times_in(table.column("decided_us").to_numpy()) for table in [*held, *aside])
    return min((int(np.min(found)) for found in times if len(found)), default=None)


def _by_hour(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    hours = table.column("decided_us").to_numpy() // HOUR_US
    for hour in np.unique(hours):
        yield int(hour), table.filter(pa.array(hours == hour))


@contextmanager
def finished_import(out: Path) -> Iterator[Manifest]:
    """Lock a directory against other imports, finish a killed import, and yield the manifest.

    Raises `ConfigError` while an import into it is under way.
    """
    lock = lock_file(out / _LOCK)
    if lock is None:
        raise ConfigError(
            f"another import into {str(out)!r} is running",
            hint="wait until it ends, then run the command again",
        )
    try:
        manifest = Manifest.load(out)
        manifest.finish(out)
        yield manifest
    finally:
        os.close(lock)


def _check_directory(out: Path) -> None:
    """Refuse a directory with files that no import wrote, such as the spool of a broker."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ConfigError(f"{str(out)!r} is not a directory", hint="give --out another directory")
    others = {path.name for path in out.iterdir()} - {_STAGING, _LOCK, _REJECTED, "parquet", IMPORT_MANIFEST}
    others = {name for name in others if not name.startswith(".")}
    if others or ((out / "parquet").exists() and not (out / IMPORT_MANIFEST).exists()):
        raise ConfigError(
            f"{str(out)!r} contains files that `tidegate import` did not write",
            hint="give --out a new or empty directory, or one of an earlier import",
        )


def _workers(files: Sequence[Source], processes: int | None) -> AbstractContextManager[Executor | None]:
    is_little = sum(_bytes_on_disk(source.path) for source in files) < IN_PROCESS_BYTES
    count = processes or (1 if is_little else os.cpu_count() or 1)
    return nullcontext(None) if count == 1 else worker_processes(count)

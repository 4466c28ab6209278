"""The rows of one imported node by hour, and the Parquet files that they become.

Rows wait in memory, and aside in files where they are many, until all logs are read. Then each hour is merged with what
the record has of it already, and written anew.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.config.quotas_file import QuotasFile
from tidegate.kafka_log.exchanges import (
    Topics,
    events_before,
    exchange_events,
    move_to_controller,
    move_to_handler_start,
)
from tidegate.kafka_log.import_directory import STAGING, written_to
from tidegate.kafka_log.import_summary import ImportSummary
from tidegate.kafka_log.manifest import Manifest, TimeRange
from tidegate.kafka_log.merge import PlacedEvent, hour_table, with_times
from tidegate.kafka_log.requests import LoggedExchange
from tidegate.usage.arrow import arrow_schema, read_parquet, table_in_order, table_schema, write_parquet
from tidegate.usage.columns import SEQ_PER_US
from tidegate.usage.directory import parquet_directory
from tidegate.usage.files import HOUR_MS, HOUR_US, hour_directory, node_files, parquet_path

__all__ = ["LINES_PER_FILE", "HourWriter", "NodeRows", "parts_by_hour"]

LINES_PER_FILE = 1 << 40
"""Lines are numbered over all files: number of the file times this, and the number in the file."""


@dataclass(slots=True)
class NodeRows:
    """The unfinished import of one node: rows by hour, in memory or in files, and what its requests state."""

    node_id: int
    exchanges: list[LoggedExchange] = field(default_factory=list)
    has_zookeeper: bool = False
    held: dict[int, list[pa.Table]] = field(default_factory=lambda: defaultdict(list))
    aside: dict[int, list[Path]] = field(default_factory=lambda: defaultdict(list))

    def spill_rows(self, out: Path) -> None:
        """Write the rows that are held to files, and hold none."""
        for hour, parts in self.held.items():
            path = out / STAGING / f"{self.node_id}-{hour}-{len(self.aside[hour])}.arrow"
            table = pa.concat_tables(parts).unify_dictionaries()
            with (
                written_to(out),
                pa.OSFile(str(path), "wb") as sink,
                pa.ipc.new_file(sink, table.schema) as writer,
            ):
                writer.write_table(table)
            self.aside[hour].append(path)
        self.held.clear()


@dataclass(slots=True, kw_only=True)
class HourWriter:
    """Writes the rows of nodes as files of the staging directory, and lists their moves in the manifest.

    rejected: gets a line for each request whose fields have unexpected types.
    """

    out: Path
    manifest: Manifest
    wanted: TimeRange
    in_force: QuotasFile | None
    summary: ImportSummary
    rejected: list[str]

    def write_node(self, node: NodeRows, *, is_new: bool) -> None:
        """Write the hours of a node. is_new: the record has no rows of it yet."""
        if node.has_zookeeper:
            move_to_handler_start(node.exchanges)
        moved_us = move_to_controller(node.exchanges)
        # The lines of controllers were needed only for their times: brokers have lines of the same requests.
        node.exchanges = [exchange for exchange in node.exchanges if not exchange.forwarded]
        all_events = self._events(node)
        events = _placed_by_hour(event for event in all_events if self.wanted.holds(event.decided_us))
        first_us = min(
            (
                us
                for us in (
                    _first_us(node, self.wanted, moved_us),
                    *(each.decided_us for of in events.values() for each in of),
                )
                if us
            ),
            default=None,
        )
        began_us = None if is_new else self._began_us(node.node_id)
        moved: set[int] = set()  # the hour in which the record began so far: its start and gap move
        if first_us is not None and (began_us is None or first_us < began_us):
            events[first_us // HOUR_US] += events_before(first_us, self.in_force)
            events[first_us // HOUR_US] += self.wanted.quotas_before(all_events, first_us)
            moved |= set() if began_us is None else {began_us // HOUR_US}
        for hour in sorted({*node.held, *node.aside, *events, *moved}):
            parts = [
                pa.ipc.open_file(pa.memory_map(str(path))).read_all() for path in node.aside.get(hour, ())
            ]
            parts += node.held.get(hour, ())
            requests = with_times(pa.concat_tables(parts), moved_us) if parts else None
            if requests is not None:
                asked = len(requests)
                requests = self.wanted.requests_in(requests)
                self.summary.leave_out(asked - len(requests))
                if not len(requests) and not events.get(hour) and hour not in moved:
                    continue
            self._write_hour(node.node_id, hour, requests, events.get(hour, []), begins_later=hour in moved)

    def _began_us(self, node_id: int) -> int | None:
        """Return the time of the `start` before the first request that was imported; None: there is none."""
        hours = sorted(parquet_directory(self.out).glob("date=*/hour=*"))
        files = next((found for hour in hours if (found := node_files(hour, node_id))), [])
        for file in files:
            table = read_parquet(file.path, ["kind", "seq"])
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
        directory = hour_directory(parquet_directory(self.out), hour * HOUR_MS)
        files = node_files(directory, node_id) if directory.is_dir() else []
        superseded = [file.path for file in files]
        there = (
            pa.concat_tables([table_in_order(read_parquet(path)) for path in superseded])
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
            topic_names=self.manifest.topic_names,
        )
        self.summary.estimated_fetches += estimated
        self.summary.doubles += doubles
        times = table.column("ts_ms")
        first_ms, last_ms = times[0].as_py(), times[-1].as_py()
        self.summary.first_ms = min(self.summary.first_ms or first_ms, first_ms)
        self.summary.last_ms = max(self.summary.last_ms or last_ms, last_ms)
        seq = table.column("seq")
        place = parquet_path(
            directory,
            node_id=node_id,
            first_seq=seq[0].as_py(),
            last_seq=max(seq[-1].as_py(), *(file.last_seq for file in files), 0),
            compacted=bool(superseded),  # a reader ignores the files that a compacted one replaces
        )
        made = self.out / STAGING / f"{node_id}-{hour}.parquet"
        write_parquet(made, table.cast(table_schema()))
        made_name, place_name, *others = (
            str(path.relative_to(self.out)) for path in (made, place, *superseded)
        )
        self.manifest.moves.append((made_name, place_name, others))

    def _events(self, node: NodeRows) -> list[PlacedEvent]:
        """Return the events that the requests of a node state, in or before the range."""
        key = str(node.node_id)
        topics = Topics(self.manifest.topics.get(key, {}), has_zookeeper=node.has_zookeeper)
        found: list[PlacedEvent] = []
        for exchange in sorted(node.exchanges, key=lambda exchange: (exchange.asked_us, exchange.line)):
            try:
                found += exchange_events(exchange, topics)
            except (KeyError, TypeError, ValueError, AttributeError):
                # The request still counts; only the topics or quotas in it are ignored.
                self.summary.bad += 1
                self.rejected.append(
                    f"line {exchange.line % LINES_PER_FILE}: a field has an unexpected type\n"
                )
        self.summary.quotas += sum(event.behind and self.wanted.holds(event.decided_us) for event in found)
        self.summary.unpriced += topics.unpriced
        self.manifest.topics[key] = topics.partitions
        return found


def _placed_by_hour(events: Iterable[PlacedEvent]) -> dict[int, list[PlacedEvent]]:
    by_hour: dict[int, list[PlacedEvent]] = defaultdict(list)
    for event in events:
        by_hour[event.decided_us // HOUR_US].append(event)
    return by_hour


def _first_us(node: NodeRows, wanted: TimeRange, moved_us: Mapping[int, int]) -> int | None:
    """Return the time of the first request in the range, as `with_times` changes it; None: there is none."""
    held = [part for parts in node.held.values() for part in parts]
    aside = [
        pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        for paths in node.aside.values()
        for path in paths
    ]
    tables = (with_times(table, moved_us) for table in [*held, *aside])
    times = (wanted.times_in(table.column("decided_us").to_numpy()) for table in tables)
    return min((int(np.min(found)) for found in times if len(found)), default=None)


def parts_by_hour(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield the hours of the rows of a table, each with its rows."""
    hours = table.column("decided_us").to_numpy() // HOUR_US
    for hour in np.unique(hours):
        yield int(hour), table.filter(pa.array(hours == hour))

"""Several processes of one gateway at the same ports: their settings, and the memory in which they share their usage.

The processes of one gateway serve the same brokers. They share the quotas of each broker in the same way as gateways
share cluster-wide quotas (`sharing`). Twice a second, each process writes a report to its part of a shared memory, and
reads the reports of the others. The buckets of mutation quotas, and the numbers and rates of connections, are in shared
memory, too (`shared_states`, `connection_counts`).
"""

import asyncio
import logging
import mmap
import struct
import sys
import zlib
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

from tidegate.errors import ConfigError
from tidegate.gateway.connection_counts import ConnectionCounts, SharedConnections
from tidegate.gateway.shared_states import SharedBuckets, SharedRates
from tidegate.gateway.sharing import TICK_MS, Sharing, follow_sensors
from tidegate.gateway.usage_report import UsageReport, decode_report, encode_report
from tidegate.in_slices import run_at_once
from tidegate.quota import UNLIMITED, QuotaManagers
from tidegate.quota.admin.entity_selection import EntitySelection
from tidegate.quota.admin.sanitizer import name_of_tag
from tidegate.quota.managers.extensions import CLUSTER_WIDE, SMOOTH, entity_of
from tidegate.quota.measure.cluster_sensor import ClusterSensor
from tidegate.server.listening.accept_queues import Spread
from tidegate.server.settings.config import ServerConfig
from tidegate.server.settings.table import KAFKA_EXACT
from tidegate.usage.process_nodes import MAX_BROKER_ID, node_of_process
from tidegate.wire.records import Record

__all__ = [
    "METRICS_STEP",
    "ONLY",
    "Process",
    "ProcessSharing",
    "SharedReports",
    "check_processes",
    "record_node",
]

_log = logging.getLogger("tidegate.gateway")

METRICS_STEP = 1000
"""Distance of the ports at which two processes serve the metrics of the same broker."""
REPORT_ROOM = 256 * 128 * 1024
"""Bytes for the report of a process with 256 brokers. That of a broker has at most 110 KB (`MAX_FOLLOWED` quotas)."""
_HEADER = struct.Struct("=QII")  # number of the report, bytes, CRC of both and of the report
_PART = struct.Struct("=iI")  # broker, bytes


class SharedReports:
    """The last report of each process, in memory that all processes share. A process writes only its own.

    Made before the processes are forked. room: the most bytes of a report. Only pages that are used take memory.
    """

    def __init__(self, processes: int, *, room: int = REPORT_ROOM) -> None:
        self._room = room
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self._memory = mmap.mmap(-1, processes * (_HEADER.size + room), flags)

    def write(self, process: int, report: bytes) -> None:
        """Replace the report of a process."""
        assert len(report) <= self._room, "the room is that of the largest report"
        at = self._place(process)
        number = _HEADER.unpack_from(self._memory, at)[0] + 1
        begin = at + _HEADER.size
        self._memory[begin : begin + len(report)] = report
        _HEADER.pack_into(self._memory, at, number, len(report), _checksum(number, report))

    def read(self, process: int, *, after: int = 0) -> tuple[int, bytes] | None:
        """Return number and bytes of the report of a process; None if its number is `after`, or it is being written."""
        at = self._place(process)
        number, size, checksum = _HEADER.unpack_from(self._memory, at)
        if number == after or size > self._room:
            return None
        begin = at + _HEADER.size
        report = bytes(self._memory[begin : begin + size])
        return (number, report) if _checksum(number, report) == checksum else None

    def _place(self, process: int) -> int:
        return (process - 1) * (_HEADER.size + self._room)


def _checksum(number: int, report: bytes) -> int:
    return zlib.crc32(report, number & 0xFFFFFFFF)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One of the processes of a gateway, and what it shares with the others.

    number: from 1. has_others: others have bound the ports before it starts. gateway: a name that the processes of
    a gateway have in common; "": it has one.
    """

    number: int = 1
    count: int = 1
    has_others: bool = False
    gateway: str = ""
    reports: SharedReports | None = None
    connections: ConnectionCounts | None = None
    buckets: SharedBuckets | None = None
    rates: SharedRates | None = None

    def others_of(self, broker_id: int, now_ms: Callable[[], int]) -> SharedConnections | None:
        """Return the connections of a broker's clients in the other processes."""
        if self.connections is None or self.rates is None:
            return None
        return SharedConnections(
            self.connections, self.rates, process=self.number, broker_id=broker_id, now_ms=now_ms
        )

    def spread(self, *, is_started: bool) -> Spread:
        """Return how connections are spread. Only the first process, at its start, requires that the ports are free."""
        is_joining = self.count > 1 and (self.has_others or is_started)
        return Spread(processes=self.count, joins=is_joining)


ONLY = Process()
"""The only process of a gateway without `--processes`."""


def check_processes(given: ServerConfig) -> None:
    """Raise `ConfigError` where several processes cannot serve with these settings."""
    if sys.platform != "linux":
        raise ConfigError(
            "--processes needs Linux, which spreads the connections of a port",
            hint="start several gateways, each with its own --brokers",
        )
    if given[KAFKA_EXACT]:
        raise ConfigError(
            f"{KAFKA_EXACT} is true, and --processes shares quotas, which Kafka does not do",
            hint=f"remove {KAFKA_EXACT} or --processes",
        )
    if given[SMOOTH] not in ("", "none"):
        raise ConfigError(
            f"{SMOOTH} is {given[SMOOTH]!r}, and quotas that several processes share are not smooth",
            hint=f"remove {SMOOTH} or --processes",
        )


def record_node(broker_id: int, process: Process) -> int:
    """Return the node id of a process in the usage record. Raises `ConfigError`.

    >>> record_node(3, ONLY), record_node(3, Process(number=2, count=4))
    (3, 1073742018)
    """
    if process.count == 1:
        return broker_id
    if broker_id > MAX_BROKER_ID:
        raise ConfigError(
            f"broker {broker_id} cannot be served with --processes, expected an id of at most {MAX_BROKER_ID}",
            hint="serve it with a gateway of its own: --brokers",
        )
    return node_of_process(broker_id, process.number)


class ProcessSharing:
    """The quotas of a gateway with several processes: of each broker, shared with the other processes.

    cluster: shares the cluster-wide ones with all gateways.
    """

    def __init__(
        self, process: Process, cluster: Sharing, *, window_ms: int, now_ms: Callable[[], int]
    ) -> None:
        assert process.reports is not None
        self._reports = process.reports
        self._process = process
        self._name = uuid4().hex  # a process that replaces a killed one has a new name
        self._cluster = cluster
        self._window_ms = window_ms
        self._now_ms = now_ms
        self._brokers: dict[int, Sharing] = {}
        self._seen: dict[int, int] = {}  # number of the last report, by process
        self._wide = EntitySelection()

    def set_cluster_wide(self, given: ServerConfig) -> None:
        """Share the quotas that the settings name with all gateways, and the others with the own processes."""
        records = [record for record in given.extension_records() if record.key == CLUSTER_WIDE]
        before, self._wide = self._wide, EntitySelection(entity_of(record) for record in records)
        if set(before) == set(self._wide):
            return
        for sharing in (self._cluster, *self._brokers.values()):
            sharing.forget_all()

    def add_node(self, broker_id: int, managers: QuotaManagers) -> None:
        """Share the quotas of a broker's node."""
        own = Sharing(self._name, window_ms=self._window_ms, what=f"the quotas of broker {broker_id}")
        own.new_node()
        own.begin(self._now_ms())
        self._brokers[broker_id] = own
        for other in self._others():
            run_at_once(self._receive_in_slices(other, {broker_id: own}))
        follow_sensors(managers, partial(self._follow, own, self._cluster.new_node()))
        if self._process.buckets is not None:
            managers.controller_mutation.new_bucket = self._process.buckets.buckets(self._now_ms)

    def processes(self, broker_id: int) -> int:
        """Return the number of processes that share the quotas of a broker."""
        return self._brokers[broker_id].processes

    async def run(self) -> None:
        """Publish the usage of this process, and use that of the others. Never ends."""
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while True:
            next_s = max(next_s + TICK_MS / 1000, loop.time())
            for _ in self.tick_in_slices():
                await asyncio.sleep(0)
            await asyncio.sleep(next_s - loop.time())

    def tick_in_slices(self) -> Generator[None, None, None]:
        """Read the reports of the other processes, set the shares, and write the report of this process."""
        for other in self._others():
            yield from self._receive_in_slices(other, self._brokers, after=self._seen.get(other, 0))
        parts = []
        for broker_id, sharing in list(self._brokers.items()):
            now_ms = self._now_ms()
            sharing.begin(now_ms)  # no network: the process is never cut off
            report = yield from sharing.tick_in_slices(now_ms)
            sharing.receive(report, now_ms)
            parts.append(_encoded(broker_id, report))
        self._reports.write(self._process.number, b"".join(parts))

    def close(self) -> None:
        """Report that this process stops, so that the others use its share."""
        last = [_encoded(broker_id, sharing.last_report()) for broker_id, sharing in self._brokers.items()]
        self._reports.write(self._process.number, b"".join(last))

    def _others(self) -> Iterable[int]:
        return (number for number in range(1, self._process.count + 1) if number != self._process.number)

    def _receive_in_slices(
        self, other: int, brokers: Mapping[int, Sharing], *, after: int = 0
    ) -> Generator[None, None, None]:
        """Process the report of another process, unless its number is `after`."""
        found = self._reports.read(other, after=after)
        if found is not None:
            self._seen[other], report = found
            for broker_id, of_broker in _parts(report):
                if broker_id in brokers:
                    brokers[broker_id].receive(of_broker, self._now_ms())
                yield

    def _follow(self, own: Sharing, node: int, sensor: ClusterSensor, now_ms: int) -> None:
        names = name_of_tag(sensor.tags.get("user", "")), sensor.tags.get("client-id", "")
        sensor.is_of_broker = not self._wide.selects(*names)
        if sensor.bound >= UNLIMITED:
            return  # nothing to share
        if not sensor.is_of_broker:
            self._cluster.follow(node, sensor, now_ms)
        else:
            own.follow(0, sensor, now_ms)


def _encoded(broker_id: int, report: UsageReport) -> bytes:
    record = encode_report(report)
    assert record.key is not None
    assert record.value is not None
    text = record.key + b" " + record.value
    return _PART.pack(broker_id, len(text)) + text


def _parts(report: bytes) -> Iterable[tuple[int, UsageReport]]:
    """Yield the report of each broker."""
    at = 0
    while at < len(report):
        broker_id, size = _PART.unpack_from(report, at)
        at += _PART.size
        name, _, value = report[at : at + size].partition(b" ")
        at += size
        decoded = decode_report(Record(key=name, value=value))
        if decoded is not None:
            yield broker_id, decoded

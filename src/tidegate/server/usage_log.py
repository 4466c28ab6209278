"""Write what the engine was asked into the usage record (`tidegate.usage`), in the order in which it was asked."""

import logging
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Protocol

from tidegate.clock import Clock
from tidegate.quota import (
    UNLIMITED,
    WINDOW_SETTINGS,
    MutationQuota,
    QuotaManagers,
    QuotaRecord,
    QuotaType,
    sanitize,
)
from tidegate.quota.measure.sensors import Sensor
from tidegate.server.config import ServerConfig
from tidegate.server.connection.channel import Channel
from tidegate.server.exchange import Exchange
from tidegate.server.handler import Connection
from tidegate.usage.directory import parquet_directory, spool_directory
from tidegate.usage.files import HOUR_MS
from tidegate.usage.snapshots import BEGINS, ends, sensor_texts
from tidegate.usage.spool import EXEMPT, FORWARDED, OBSERVED_ONLY, REJECTED, STRICT, Client, Recorder
from tidegate.usage.writer_process import WriterProcess, start_writer
from tidegate.wire import RequestHeader

__all__ = [
    "LONGEST_KEPT_CLIENT_ID_CHARS",
    "ForwardingUsageLog",
    "NoUsageLog",
    "RecordedUsageLog",
    "UsageLog",
    "open_usage_log",
]

_log = logging.getLogger("tidegate.server")

SNAPSHOT_PAUSE_MS = 10_000
"""After a gap a snapshot follows at once, but not sooner after the last one: it takes room itself."""
LONGEST_KEPT_CLIENT_ID_CHARS = 255
"""Longer client ids are not kept between requests: the names kept for a connection take 2 KB at most."""


class UsageLog(Protocol):
    """Interface of the usage record for the front."""

    def next_connection_id(self) -> int: ...
    def start(self, now_ms: int, config: ServerConfig) -> None: ...
    def quota(self, record: QuotaRecord, now_ms: int) -> None: ...
    def callback(self, name: str | None, now_ms: int) -> None: ...
    def tags(self, quota_type: QuotaType, user: str, client_id: str, sensor: Sensor, now_ms: int) -> None: ...
    def mutation(
        self,
        connection: Connection,
        header: RequestHeader,
        permits: int,
        quota: MutationQuota,
        granted: bool,
        now_ms: int,
    ) -> None: ...
    def request(self, exchange: Exchange) -> None: ...
    def forwarded(self, exchange: Exchange, connection: Connection) -> None: ...
    def commit(self) -> None: ...
    def network(
        self, channel: Channel, header: RequestHeader, now_ms: int, network_ns: int, exempt: bool
    ) -> None: ...
    def expire(self, now_ms: int) -> None: ...
    def clock(self, now_ms: int, wall_offset_ms: int) -> None: ...
    def maybe_roll(self, now_ms: int) -> None: ...
    def snapshot_due(self, now_ms: int) -> bool: ...
    def snapshot_in_slices(
        self, managers: QuotaManagers, now_ms: Callable[[], int]
    ) -> Generator[None, None, None]: ...
    def close(self) -> None: ...


class NoUsageLog:
    """Keeps nothing: `tidegate.usage.enable=false`."""

    def __init__(self) -> None:
        self._connections = 0

    def next_connection_id(self) -> int:
        """Return an id that no connection of this run has had."""
        self._connections += 1
        return self._connections

    def start(self, now_ms: int, config: ServerConfig) -> None:
        """Keep nothing."""

    def quota(self, record: QuotaRecord, now_ms: int) -> None:
        """Keep nothing."""

    def callback(self, name: str | None, now_ms: int) -> None:
        """Keep nothing."""

    def tags(self, *event: object) -> None:
        """Keep nothing."""

    def mutation(self, *event: object) -> None:
        """Keep nothing."""

    def request(self, exchange: Exchange) -> None:
        """Keep nothing."""

    def forwarded(self, exchange: Exchange, connection: Connection) -> None:
        """Keep nothing."""

    def commit(self) -> None:
        """Keep nothing."""

    def network(self, *event: object) -> None:
        """Keep nothing."""

    def expire(self, now_ms: int) -> None:
        """Keep nothing."""

    def clock(self, now_ms: int, wall_offset_ms: int) -> None:
        """Keep nothing."""

    def maybe_roll(self, now_ms: int) -> None:
        """Keep nothing."""

    def snapshot_due(self, now_ms: int) -> bool:
        """Return False: there is nothing to begin again from."""
        return False

    def snapshot_in_slices(
        self, managers: QuotaManagers, now_ms: Callable[[], int]
    ) -> Generator[None, None, None]:
        """Keep nothing."""
        yield from ()

    def close(self) -> None:
        """Keep nothing."""


class RecordedUsageLog:
    """Keeps everything in the spool of one node."""

    def __init__(self, recorder: Recorder, start_writer: Callable[[], WriterProcess]) -> None:
        self._recorder = recorder
        self._requests: list[Exchange] = []  # whose rows are not made yet
        self._start_writer = start_writer  # when the node serves already: it takes a processor for a while
        self._writer: WriterProcess | None = None
        self._writer_error = ""
        self._reported_losses = 0
        self._closed = False
        self._in_snapshot = False
        self._snapshot_ms = self._snapshot_gaps = 0  # when the last began, and how many gaps there had been
        self.next_connection_id = recorder.next_connection_id
        self.request = self._requests.append

    def start(self, now_ms: int, config: ServerConfig) -> None:
        """Record that the node starts, and its window settings."""
        self._record_requests()
        self._snapshot_ms, self._snapshot_gaps = now_ms, self._recorder.gaps
        self._recorder.start(now_ms)
        for key in WINDOW_SETTINGS:
            self._recorder.quota(
                now_ms, user=None, client_id=None, ip=None, key=key, value=float(config[key])
            )

    def quota(self, record: QuotaRecord, now_ms: int) -> None:
        """Record that a definition is in force from now on."""
        self._record_requests()
        names = {kind: "<default>" if name is None else sanitize(name) for kind, name in record.entity}
        self._recorder.quota(
            now_ms,
            user=names.get("user"),
            client_id=names.get("client-id"),
            ip=names.get("ip"),
            key=record.key,
            value=record.value,
        )

    def callback(self, name: str | None, now_ms: int) -> None:
        """Record that another quota callback is asked from now on: the class `name`, or none."""
        self._record_requests()
        self._recorder.callback(now_ms, name)

    def tags(self, quota_type: QuotaType, user: str, client_id: str, sensor: Sensor, now_ms: int) -> None:
        """Record which tags the callback chose for a client that is about to be charged, and their limit."""
        bound = sensor.bound
        limit = None if bound == UNLIMITED else bound
        answer = user, client_id, quota_type.key, sensor.name, sensor.tags, limit
        if not self._recorder.says_tags(*answer):
            self._record_requests()
            self._recorder.tags(now_ms, *answer)

    def mutation(
        self,
        connection: Connection,
        header: RequestHeader,
        permits: int,
        quota: MutationQuota,
        granted: bool,
        now_ms: int,
    ) -> None:
        """Record that a handler asked for permits."""
        self._record_requests()
        self._recorder.mutation(
            self._client(connection, header),
            now_ms,
            connection.id,
            header.api_key,
            header.api_version,
            permits,
            (STRICT if quota.strict else 0) | (0 if granted else REJECTED),
        )

    def forwarded(self, exchange: Exchange, connection: Connection) -> None:
        """Record what this node, the controller, decided of a request that another node answers: the mutation throttle.

        connection: the client's, as it is numbered here. The request itself is in the record of the other node.
        """
        self._record_requests()
        header = exchange.header
        self._recorder.forwarded(
            self._client(connection, header),
            exchange.now_ms,
            connection.id,
            header.api_key,
            header.api_version,
            exchange.mutation_ms,
            EXEMPT | (exchange.row_flags & OBSERVED_ONLY),
        )

    def commit(self) -> None:
        """Make the rows of all requests since the last time, in one loop, and write what is not written yet."""
        self._record_requests()
        self._recorder.commit()

    def network(
        self, channel: Channel, header: RequestHeader, now_ms: int, network_ns: int, exempt: bool
    ) -> None:
        """Record network time that is charged by itself."""
        self._record_requests()
        self._recorder.network(
            self._client(channel.connection, header),
            now_ms,
            channel.connection.id,
            header.api_key,
            header.api_version,
            network_ns,
            EXEMPT if exempt else 0,
        )

    def expire(self, now_ms: int) -> None:
        """Record that idle sensors were swept."""
        self._record_requests()
        self._recorder.expire(now_ms)

    def clock(self, now_ms: int, wall_offset_ms: int) -> None:
        """Record how far the wall clock is from engine time from now on."""
        self._record_requests()
        self._recorder.clock(now_ms, wall_offset_ms)

    def maybe_roll(self, now_ms: int) -> None:
        """Hand old segments to the writer, which is kept running; report losses once."""
        self._record_requests()
        self._recorder.maybe_roll(now_ms)
        self._keep_writer_running()
        lost = self._recorder.lost_events
        if lost > self._reported_losses:
            _log.error("lost %d events of the usage record so far", lost)
            self._reported_losses = lost

    def snapshot_due(self, now_ms: int) -> bool:
        """Return whether the engine's state should be written: in each hour of engine time, and after each gap.

        After a start it need not be: it is empty.
        """
        is_new = now_ms // HOUR_MS != self._snapshot_ms // HOUR_MS
        is_after_gap = self._recorder.gaps != self._snapshot_gaps
        is_possible = not self._in_snapshot and not self._recorder.is_dropping
        return is_possible and (is_new or (is_after_gap and now_ms - self._snapshot_ms >= SNAPSHOT_PAUSE_MS))

    def snapshot_in_slices(
        self, managers: QuotaManagers, now_ms: Callable[[], int]
    ) -> Generator[None, None, None]:
        """Write the engine's state, and the quotas in force before it, yielding in between.

        Not under a quota callback nor in smooth mode: what a replay does not know it does not need a state for. Where
        events are lost meanwhile it has no end.
        """
        recorder = self._recorder
        self._snapshot_ms, self._snapshot_gaps = now_ms(), recorder.gaps
        if managers.callback is not None or managers.extensions.smooth.any:
            return
        self._in_snapshot = True
        try:
            self._record_requests()
            recorder.snapshot(self._snapshot_ms, None, None, BEGINS)
            for _ in recorder.quotas_in_slices(now_ms):
                yield
                self._record_requests()
            rows = 0
            for tags, at_ms, state in managers.snapshots(now_ms):
                self._record_requests()
                for text in sensor_texts(state):
                    recorder.snapshot(at_ms, tags["user"], tags["client-id"], text)
                    rows += 1
                yield
                if managers.callback is not None or recorder.gaps != self._snapshot_gaps:
                    return
            self._record_requests()
            recorder.snapshot(now_ms(), None, None, ends(rows))
        finally:
            self._in_snapshot = False

    def close(self) -> None:
        """Hand the last segment over; the writer converts it and ends by itself."""
        if not self._closed:
            self._closed = True
            self._record_requests()
            self._recorder.close()
            self._keep_writer_running()
            if self._writer is not None:
                self._writer.stop()

    def _record_requests(self) -> None:
        """Make the rows of requests that have none: before those of whatever the engine is asked next."""
        if self._requests:
            try:
                self._recorder.requests(self._requests, self._client_of)
            finally:
                self._requests.clear()

    def _client_of(self, exchange: Exchange) -> Client:
        return self._client(exchange.channel.connection, exchange.header)

    def _keep_writer_running(self) -> None:
        try:
            if self._writer is None:
                self._writer = self._start_writer()
            self._writer.keep_running()
        except OSError as error:  # no process or descriptor to be had: tried again when the timer comes
            if str(error) != self._writer_error:
                _log.error("cannot start the usage writer: %s; events stay in the spool", error)
            self._writer_error = str(error)

    def _client(self, connection: Connection, header: RequestHeader) -> Client:
        """Return the names of this connection and client id, as the recorder wants them; the last are kept."""
        client: Client | None = connection.recorded
        if client is not None and client.client_id == header.client_id:
            return client
        software, software_version = connection.software
        client = self._recorder.client(
            listener=connection.listener,
            user=connection.user,
            client_id=header.client_id,
            client_host=connection.client_host,
            client_software=software,
            client_software_version=software_version,
        )
        if len(header.client_id) <= LONGEST_KEPT_CLIENT_ID_CHARS:
            connection.recorded = client
        return client


class ForwardingUsageLog:
    """The usage log of a node that forwards (B§5.4): what the controller's engine was asked, its record has.

    That is the permits, and a row with the throttle time that came of them; the request's row in this node's own record
    says that it is not its own. So each record has all that its node's engine did, and can be replayed by itself.
    """

    def __init__(self, own: UsageLog, controller: UsageLog) -> None:
        self._own = own
        self._controller = controller
        self._uncommitted = False
        self.next_connection_id = own.next_connection_id
        self.start = own.start
        self.quota = own.quota
        self.callback = own.callback
        self.tags = own.tags
        self.network = own.network
        self.expire = own.expire
        self.clock = own.clock
        self.maybe_roll = own.maybe_roll
        self.snapshot_due = own.snapshot_due
        self.snapshot_in_slices = own.snapshot_in_slices
        self.forwarded = own.forwarded
        self.close = own.close

    def mutation(
        self,
        connection: Connection,
        header: RequestHeader,
        permits: int,
        quota: MutationQuota,
        granted: bool,
        now_ms: int,
    ) -> None:
        """Record at the controller that a handler asked for permits."""
        if connection.at_controller is None:
            number = self._controller.next_connection_id()
            connection.at_controller = replace(connection, id=number, recorded=None)
        self._uncommitted = True
        self._controller.mutation(connection.at_controller, header, permits, quota, granted, now_ms)

    def request(self, exchange: Exchange) -> None:
        """Record a decided request, and at the controller what that decided of it."""
        connection = exchange.channel.connection.at_controller
        if exchange.mutation is None or connection is None:
            self._own.request(exchange)
            return
        self._uncommitted = True
        self._controller.forwarded(exchange, connection)
        exchange.row_flags |= FORWARDED
        self._own.request(exchange)

    def commit(self) -> None:
        """Write the rows of both records that are not written yet."""
        if self._uncommitted:
            self._uncommitted = False
            self._controller.commit()
        self._own.commit()


def open_usage_log(config: ServerConfig, clock: Clock) -> UsageLog:
    """Return the usage log that the settings ask for."""
    if not config["tidegate.usage.enable"]:
        return NoUsageLog()
    node_id = config["node.id"]
    spool = spool_directory(config.usage_dir, node_id)
    recorder = Recorder(
        spool,
        node_id=node_id,
        clock=clock,
        max_spool_bytes=config["tidegate.usage.spool.max.bytes"],
        segment_age_ms=config["tidegate.usage.segment.ms"],
    )

    def start() -> WriterProcess:
        return start_writer(
            spool,
            parquet_directory(config.usage_dir),
            node_id=node_id,
            clock=clock,
            retention_ms=config["tidegate.usage.retention.ms"],
            engine_offset_ns=clock.now_ms() * 1_000_000 - clock.monotonic_ns(),
        )

    return RecordedUsageLog(recorder, start)

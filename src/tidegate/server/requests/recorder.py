"""The recorder: one row of the usage record for each event of a node's quota engine, in their order.

    recorder = open_recorder(config, clock)                   # None: `tidegate.usage.enable=false`
    recorder.start(now_ms, config.window_records())           # then quota(...) for each quota in force
    recorder.request(exchange)                                # its row is made at the next event or `commit`
    recorder.commit()                                         # before the answers of a turn leave
    recorder.maybe_roll(now_ms)                               # from a timer, every second or so
    recorder.close()

The node and the front call it directly, from one thread. No call raises when there is no room: the lost events are
counted, and a `gap` row contains their number once there is room again. After a gap the definitions in force are
written again, as the lost events may have changed them.

A row survives `kill -9` after `commit` has returned: the kernel has it then. One call writes all rows since the call
before, so requests that are answered together share it. `maybe_roll` and `close` commit, too.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path

from tidegate.clock import Clock
from tidegate.log_format import TEXT
from tidegate.quota import UNLIMITED, MutationQuota, QuotaManagers, QuotaRecord, QuotaType, sanitize
from tidegate.quota.measure.sensors import Sensor
from tidegate.server.requests.exchange import Exchange
from tidegate.server.requests.handler import Connection
from tidegate.server.requests.request_rows import RequestRecorder
from tidegate.server.settings.config import ServerConfig
from tidegate.usage.columns import EXEMPT, OBSERVED_ONLY, REJECTED, STRICT
from tidegate.usage.directory import parquet_directory, spool_directory
from tidegate.usage.files import HOUR_MS
from tidegate.usage.segment import ROW_BYTES, Names
from tidegate.usage.texts import BEGINS, ends, sensor_texts, tags_text
from tidegate.usage.writer_process import WriterProcess, start_writer
from tidegate.wire import RequestHeader

__all__ = ["Recorder", "open_recorder"]

SNAPSHOT_PAUSE_MS = 10_000
"""Shortest time from a snapshot to the next one that follows a gap: a snapshot takes room in the spool itself."""

_NOT_SAID = -1.0  # no limit is below 0

_log = logging.getLogger("tidegate.server")


class Recorder(RequestRecorder):
    """Append the events of one node to its spool directory; see the module for the calls, `Appender` for `limits`.

    start_writer: starts the process that converts the spool. It is called by the first `maybe_roll`, when the node
    already serves, as the start takes much processor time. None: the spool is not converted.
    """

    def __init__(
        self,
        directory: Path,
        *,
        node_id: int,
        clock: Clock,
        start_writer: Callable[[], WriterProcess] | None = None,
        **limits: int,
    ) -> None:
        super().__init__(directory, node_id=node_id, clock=clock, **limits)
        self._connection_id = self._directory.next_number
        self._quotas: dict[Names, float] = {}
        self._swept = self._swept_ms = 0  # where the row of the last sweep ends, and its time
        self._wall_offset_ms = 0
        self._callbacks: list[str | None] = []  # the callback in force; empty if there never was one
        # The tags and limits that are in this segment: at most as many as a segment can have names.
        self._said_tags: dict[tuple[str, str, str], Mapping[str, str]] = {}
        self._said_limits: dict[tuple[str, str], float | None] = {}
        self._in_snapshot = False
        self._snapshot_ms = self._snapshot_gaps = 0  # when the last began, and how many gaps there had been
        self._start_writer = start_writer
        self._writer: WriterProcess | None = None
        self._writer_error = ""
        self._reported_losses = 0
        self._closed = False

    def next_connection_id(self) -> int:
        """Return an id that no connection of this node has had."""
        number = self._connection_id
        # Numbers are reserved on disk in blocks: after `kill -9` some are left out, but none is used twice.
        self._directory.reserve(number)
        self._connection_id = number + 1
        return number

    # --- the state of the engine ----------------------------------------------------------------------------------

    def start(self, now_ms: int, settings: Iterable[QuotaRecord] = ()) -> None:
        """Record that the node starts, with window settings: sensors are empty; rows of the quotas in force follow."""
        self._record_requests()
        self._snapshot_ms, self._snapshot_gaps = now_ms, self._gaps
        self._quotas.clear()
        self._callbacks.clear()
        self._forget_said()
        self._write("start", now_ms)
        for record in settings:
            self.quota(record, now_ms)

    def quota(self, record: QuotaRecord, now_ms: int) -> None:
        """Record a definition or a window setting that is in force from now on, or removed (its value is None)."""
        self._record_requests()
        entity = {kind: "<default>" if name is None else sanitize(name) for kind, name in record.entity}
        names = (entity.get("user"), entity.get("client-id"), entity.get("ip"), record.key)
        if record.value is None:
            self._quotas.pop(names, None)
        else:
            self._quotas[names] = record.value
        self._write("quota", now_ms, names, quota_value=record.value)

    def callback(self, name: str | None, now_ms: int) -> None:
        """Record that another quota callback is in use from now on, with empty sensors. name: its class; None: none."""
        self._record_requests()
        self._callbacks = [name]
        self._forget_said()
        self._write("callback", now_ms, (name,))

    def tags(self, quota_type: QuotaType, user: str, client_id: str, sensor: Sensor, now_ms: int) -> None:
        """Record the tags that the callback chose for a client, and their limit, unless the segment says so already.

        It is called before each charge to the sensor.
        """
        key, tags = quota_type.key, sensor.tags
        limit = None if sensor.bound == UNLIMITED else sensor.bound
        if (
            self._segment is not None
            and self._said_tags.get((key, user, client_id)) == tags
            and self._said_limits.get((key, sensor.name), _NOT_SAID) == limit
        ):
            return
        self._record_requests()
        callback = self._callbacks[0] if self._callbacks else None
        names = (user, client_id, key, callback, tags_text(tags))
        if self._write("tags", now_ms, names, quota_value=limit):
            self._said_tags[key, user, client_id] = tags
            self._said_limits[key, sensor.name] = limit

    def expire(self, now_ms: int) -> None:
        """Record that idle sensors were swept.

        Sweeps without another event in between become one row, that of the last sweep, which removes every sensor that
        the earlier ones removed. After the clock has gone back that does not hold, so the sweep gets a row of its own.
        """
        self._record_requests()
        if self._at > 0 and self._swept == self._rows_at + self._at and now_ms >= self._swept_ms:
            # The next row replaces that of the last sweep, also in the file if that row is already written.
            self._at -= ROW_BYTES
            self._written = min(self._written, self._at)
        self._write("expire", now_ms)
        self._swept, self._swept_ms = self._rows_at + self._at, now_ms

    def clock(self, now_ms: int, wall_offset_ms: int) -> None:
        """Record the new difference between the wall clock and engine time, after the wall clock was stepped."""
        self._record_requests()
        self._wall_offset_ms = wall_offset_ms
        self._write("clock", now_ms, wall_offset_ms=wall_offset_ms)

    # --- requests -------------------------------------------------------------------------------------------------

    def network(
        self, connection: Connection, header: RequestHeader, now_ms: int, network_ns: int, exempt: bool
    ) -> None:
        """Record network time of sending an earlier request's answer, charged unchecked at `now_ms`."""
        flags = EXEMPT if exempt else 0
        self._write_client_row("network", connection, header, now_ms, flags, network_ns=network_ns)

    def mutation(
        self,
        connection: Connection,
        header: RequestHeader,
        permits: int,
        quota: MutationQuota,
        granted: bool,
        now_ms: int,
    ) -> None:
        """Record that a handler asked for permits, and whether they were granted."""
        flags = (STRICT if quota.strict else 0) | (0 if granted else REJECTED)
        self._write_client_row("mutation", connection, header, now_ms, flags, mutations=permits)

    def forwarded(self, exchange: Exchange, connection: Connection) -> None:
        """Record the mutation throttle that this node, the controller, decided for a request that another node answers.

        connection: the client's connection, by its number in this record. The other node records the request itself.
        """
        flags = EXEMPT | (exchange.row_flags & OBSERVED_ONLY)
        throttle_ms = exchange.mutation_ms
        self._write_client_row(
            "forwarded", connection, exchange.header, exchange.now_ms, flags, mutation_throttle_ms=throttle_ms
        )

    # --- snapshots ------------------------------------------------------------------------------------------------

    def snapshot_due(self, now_ms: int) -> bool:
        """Return whether the engine's state should be written: once in each hour of engine time, and after each gap.

        It is not written after a start, when it is empty.
        """
        is_new = now_ms // HOUR_MS != self._snapshot_ms // HOUR_MS
        is_after_gap = self._gaps != self._snapshot_gaps
        is_possible = not self._in_snapshot and not self._lost
        return is_possible and (is_new or (is_after_gap and now_ms - self._snapshot_ms >= SNAPSHOT_PAUSE_MS))

    def snapshot_in_slices(
        self, managers: QuotaManagers, now_ms: Callable[[], int]
    ) -> Generator[None, None, None]:
        """Write the quotas in force and then the engine's state, yielding in between.

        Under a quota callback and in smooth mode nothing is written, as a replay could not use the state. A snapshot
        during which events are lost has no last row.
        """
        self._snapshot_ms, self._snapshot_gaps = now_ms(), self._gaps
        if managers.callback is not None or managers.extensions.smooth.any:
            return
        self._in_snapshot = True
        try:
            self.snapshot(self._snapshot_ms, None, None, BEGINS)
            for names in list(self._quotas):
                yield
                self._record_requests()
                if names in self._quotas:  # the quota may have been removed during a yield
                    self._write("quota", now_ms(), names, quota_value=self._quotas[names])
            rows = 0
            for tags, at_ms, state in managers.snapshots(now_ms):
                for text in sensor_texts(state):
                    self.snapshot(at_ms, tags["user"], tags["client-id"], text)
                    rows += 1
                yield
                # Without its last row a reader does not use the snapshot.
                if managers.callback is not None or self._gaps != self._snapshot_gaps:
                    return
            self.snapshot(now_ms(), None, None, ends(rows))
        finally:
            self._in_snapshot = False

    def snapshot(self, now_ms: int, user: str | None, client_id: str | None, text: str) -> None:
        """Record a part of a snapshot: for a sensor, its tags and its state as text (`tidegate.usage.texts`)."""
        self._record_requests()
        self._write("snapshot", now_ms, (user, client_id, text))

    # --- segments and their writer --------------------------------------------------------------------------------

    def maybe_roll(self, now_ms: int) -> None:
        """Hand old segments to the writer, which is kept running; report losses once."""
        self._record_requests()
        super().maybe_roll(now_ms)
        self._keep_writer_running()
        if self.lost_events > self._reported_losses:
            _log.error(
                "lost %d events of the usage record so far",
                self.lost_events,
                extra={"repeats": f"lost events of node {self._node_id}"},  # twice a second on a full disk
            )
            self._reported_losses = self.lost_events

    def close(self) -> None:
        """Hand the last segment over; the writer converts it and ends by itself. No other calls may follow."""
        if not self._closed:
            self._closed = True
            self._record_requests()
            super().close()
            self._keep_writer_running()
            if self._writer is not None:
                self._writer.stop()

    def _keep_writer_running(self) -> None:
        try:
            if self._writer is None and self._start_writer is not None:
                self._writer = self._start_writer()
            if self._writer is not None:
                self._writer.keep_running()
        except OSError as error:  # no process or descriptor is available; the timer tries again
            if str(error) != self._writer_error:
                _log.error("cannot start the usage writer: %s; events stay in the spool", error)
            self._writer_error = str(error)

    def _is_due(self, now_ms: int) -> bool:
        """Return whether the segment is old enough to be handed over. One with only a sweep of idle sensors stays."""
        is_one_sweep = self._swept == self._rows_at + self._at == (self._segment_seq + 1) * ROW_BYTES
        return super()._is_due(now_ms) and not is_one_sweep

    def _open_segment(self, now_ms: int) -> None:
        self._forget_said()
        super()._open_segment(now_ms)

    def _forget_said(self) -> None:
        self._said_tags.clear()
        self._said_limits.clear()

    def _after_gap(self, now_ms: int) -> None:
        for name in self._callbacks:
            self._write("callback", now_ms, (name,))
        for names, value in list(self._quotas.items()):
            self._write("quota", now_ms, names, quota_value=value)
        if self._wall_offset_ms:
            self._write("clock", now_ms, wall_offset_ms=self._wall_offset_ms)


def open_recorder(config: ServerConfig, clock: Clock, log_format: str = TEXT) -> Recorder | None:
    """Return the recorder that the settings ask for; None: `tidegate.usage.enable` is false.

    log_format: that of the writer's log lines (`tidegate.log_format`).
    """
    if not config["tidegate.usage.enable"]:
        return None
    node_id = config["node.id"]
    spool = spool_directory(config.usage_dir, node_id)

    def start() -> WriterProcess:
        return start_writer(
            spool,
            parquet_directory(config.usage_dir),
            node_id=node_id,
            clock=clock,
            retention_ms=config["tidegate.usage.retention.ms"],
            engine_offset_ns=clock.now_ms() * 1_000_000 - clock.monotonic_ns(),
            log_format=log_format,
        )

    return Recorder(
        spool,
        node_id=node_id,
        clock=clock,
        start_writer=start if config["tidegate.usage.parquet.enable"] else None,
        max_spool_bytes=config["tidegate.usage.spool.max.bytes"],
        segment_age_ms=config["tidegate.usage.segment.ms"],
    )

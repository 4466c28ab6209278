"""A node without sockets: has requests decided as the front does, and keeps the events of the usage record."""

from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

from tidegate.api_keys import CREATE_TOPICS
from tidegate.in_slices import run_at_once
from tidegate.pipeline.replay.levels import FETCH_ANSWER_BYTES
from tidegate.quota import UNLIMITED, ClientQuotaCallback, QuotaType
from tidegate.quota.admin.definitions import QuotaRecord
from tidegate.quota.admin.sanitizer import sanitize
from tidegate.quota.managers.mutation import STRICT_SINCE, MutationKind, MutationQuota
from tidegate.quota.managers.quota_managers import QuotaManagers
from tidegate.quota.measure.sensors import Sensor
from tidegate.quota.measure.throttle import saturate_to_int32
from tidegate.quota.measure.window import QuotaWindow
from tidegate.server.requests.decision import Decider
from tidegate.server.requests.exchange import Exchange
from tidegate.server.requests.handler import Answer, Charge, Connection, FetchAnswer
from tidegate.usage.columns import OBSERVED_ONLY, empty_event
from tidegate.usage.segment import PRODUCED
from tidegate.usage.texts import BEGINS, ends, sensor_texts, tags_text
from tidegate.wire import RequestHeader

__all__ = ["RecordingNode"]

Event = dict[str, Any]
METADATA = 3


class RecordingNode:
    """One node: every call is a decision of `Decider` or of a manager, and an event in `events`."""

    def __init__(self, node_id: int = 1, *, first_seq: int = 1, fetches_are_capped: bool = False) -> None:
        self.events: list[Event] = []
        self._node_id = node_id
        self._seq = first_seq
        self.managers = QuotaManagers()
        self._open: dict[int, MutationQuota] = {}
        self._in_force: dict[tuple[Any, str], QuotaRecord] = {}
        self._callback: str | None = None
        self._said: dict[tuple[str, ...], Any] = {}
        self._snapshot: Iterator[None] | None = None
        self._now_ms = 0
        self._fetches_are_capped = fetches_are_capped

    def start(
        self,
        now_ms: int,
        *,
        window: QuotaWindow | None = None,
        controller_window: QuotaWindow | None = None,
        records: tuple[QuotaRecord, ...] = (),
    ) -> None:
        """Start anew: no sensors; window settings, then definitions."""
        window, controller_window = window or QuotaWindow(), controller_window or QuotaWindow()
        self.managers = QuotaManagers(
            window=window, controller_window=controller_window, note_tags=self._note_tags
        )
        self._open.clear()
        self._in_force.clear()
        self._callback = None
        self._snapshot = None
        self._add("start", now_ms)
        self._state_windows(now_ms, window, controller_window)
        for record in records:
            self.quota(record, now_ms)

    def _state_windows(self, now_ms: int, window: QuotaWindow, controller_window: QuotaWindow) -> None:
        for prefix, part in (("", window), ("controller.", controller_window)):
            settings = {"num": part.samples, "size.seconds": part.window_ms // 1000}
            for name, value in settings.items():
                self._add("quota", now_ms, quota_key=f"{prefix}quota.window.{name}", quota_value=float(value))

    def quota(self, record: QuotaRecord, now_ms: int) -> None:
        """Put a definition in force."""
        self.managers.apply(record)
        self._in_force[record.entity, record.key] = record
        self._state_quota(record, now_ms)

    def _state_quota(self, record: QuotaRecord, now_ms: int) -> None:
        names = {kind: "<default>" if name is None else sanitize(name) for kind, name in record.entity}
        self._add(
            "quota",
            now_ms,
            quota_user=names.get("user"),
            quota_client_id=names.get("client-id"),
            quota_ip=names.get("ip"),
            quota_key=record.key,
            quota_value=record.value,
        )

    def exchange(self, callback: ClientQuotaCallback | None, name: str | None, now_ms: int) -> None:
        """Ask a callback from now on, or Kafka's own rules."""

        def note() -> None:
            self._add("callback", now_ms, callback=name)

        self._callback = name
        self._said.clear()
        run_at_once(self.managers.exchange_in_slices(callback, [*self._in_force.values()], at_exchange=note))

    def segment(self) -> None:
        """Say again what a callback answers, as in each segment of the spool."""
        self._said.clear()

    def snapshot(self, now_ms: int, *, steps: int = 10**9) -> None:
        """State quotas and sensors, so many steps of the snapshot that is under way; begins one where none is."""
        self._now_ms = now_ms
        if self._snapshot is None:
            self._snapshot = self._snapshot_in_slices()
        for _ in islice(self._snapshot, steps):
            pass

    def _snapshot_in_slices(self) -> Iterator[None]:
        self._add("snapshot", self._now_ms, snapshot=BEGINS)
        self._state_windows(
            self._now_ms, self.managers.produce.window, self.managers.controller_mutation.window
        )
        for key in list(self._in_force):
            yield
            self._state_quota(self._in_force[key], self._now_ms)
        rows = 0
        for tags, at_ms, state in self.managers.snapshots(lambda: self._now_ms):
            for text in sensor_texts(state):
                names = {"quota_user": tags["user"], "quota_client_id": tags["client-id"]}
                self._add("snapshot", at_ms, snapshot=text, **names)
                rows += 1
            yield
        self._add("snapshot", self._now_ms, snapshot=ends(rows))
        self._snapshot = None

    def expire(self, now_ms: int) -> None:
        """Sweep idle sensors."""
        for _ in self.managers.expire_in_slices(now_ms):
            pass
        self._add("expire", now_ms)

    def clock(self, now_ms: int, wall_offset_ms: int) -> None:
        """Notice that the wall clock was stepped: nothing to the engine."""
        self._add("clock", now_ms, wall_offset_ms=wall_offset_ms)

    def gap(self, now_ms: int, lost_events: int = 1) -> None:
        """Lose events."""
        self._seq += lost_events
        self._add("gap", now_ms, lost_events=lost_events)

    def produce(
        self, user: str, client_id: str, size: int, now_ms: int, *, handler_ns: int = 0, network_ns: int | None = 0,
        exempt: bool = False, close: bool = False,
    ) -> Event:  # fmt: skip
        """Decide a produce request (B§6.2); exempt: acks=0; close: and it failed."""
        answer = Answer(None, Charge.PRODUCE, close=close)
        exchange = self._decide(
            user, client_id, now_ms, answer, handler_ns, network_ns, size=size, exempt=exempt
        )
        charged = size if exchange.row_flags & PRODUCED else None
        return self._add_request(exchange, network_ns, api_key=0, produce_bytes=charged)

    def fetch(
        self,
        user: str,
        client_id: str,
        size: int,
        now_ms: int,
        *,
        handler_ns: int = 0,
        network_ns: int | None = 0,
    ) -> Event:
        """Decide a consumer's fetch (B§6.3); capped ones are given no more than the quota allows (B§3.7)."""
        if self._fetches_are_capped:
            cap = self.managers.fetch.max_value_in_window(user, client_id, lambda: now_ms)
            size = min(size, saturate_to_int32(cap) + FETCH_ANSWER_BYTES)
        answer = FetchAnswer(SimpleNamespace(body_size=size - 4), SimpleNamespace)
        exchange = self._decide(user, client_id, now_ms, answer, handler_ns, network_ns)
        return self._add_request(exchange, network_ns, api_key=1, fetch_bytes=_charged(exchange.fetch_bytes))

    def mutate(
        self,
        user: str,
        client_id: str,
        permits: int,
        now_ms: int,
        *,
        strict: bool = True,
        connection_id: int = 1,
    ) -> Event:
        """Ask for the permits of one topic of a CreateTopics request (B§5.2)."""
        if self._is_exempt(user, client_id):
            return {}
        api_version = STRICT_SINCE[CREATE_TOPICS] if strict else 5
        quota = self._open.get(connection_id)
        if quota is None:
            quota = self._new_quota(user, client_id, CREATE_TOPICS, api_version, now_ms)
            self._open[connection_id] = quota
        admitted = quota.record(permits, now_ms)
        return self._add(
            "mutation", now_ms, user=user, client_id=client_id, api_key=CREATE_TOPICS, api_version=api_version,
            connection_id=connection_id, mutations=permits, strict=quota.strict, rejected=not admitted,
        )  # fmt: skip

    def auto_create(
        self, user: str, client_id: str, permits: int, now_ms: int, *, connection_id: int = 1
    ) -> Event:
        """Ask for the permits of a topic that Metadata creates: strict, and no answer tells the throttle (B§5.5)."""
        if self._is_exempt(user, client_id):
            return {}
        quota = self._new_quota(user, client_id, METADATA, 12, now_ms)
        admitted = quota.record(permits, now_ms)
        return self._add(
            "mutation", now_ms, user=user, client_id=client_id, api_key=METADATA, api_version=12,
            connection_id=connection_id, mutations=permits, strict=quota.strict, rejected=not admitted,
        )  # fmt: skip

    def other(
        self, user: str, client_id: str, now_ms: int, *, handler_ns: int = 0, network_ns: int | None = 0,
        connection_id: int = 1, api_key: int = 3, exempt: bool = False, forwarded: bool = False,
    ) -> Event:  # fmt: skip
        """Decide a request that charges no bytes; it ends the CreateTopics request of its connection, if any."""
        mutation = self._open.pop(connection_id, None)
        answer = Answer(None, Charge.REQUEST if mutation is None else Charge.MUTATION)
        exchange = self._decide(
            user, client_id, now_ms, answer, handler_ns, network_ns, exempt=exempt, mutation=mutation
        )
        columns = {"api_key": api_key, "connection_id": connection_id, "forwarded": forwarded}
        return self._add_request(exchange, network_ns, **columns)

    def forwarded(
        self, user: str, client_id: str, now_ms: int, *, connection_id: int = 1, api_key: int = CREATE_TOPICS
    ) -> Event:
        """End the CreateTopics request of a connection that another node answers."""
        mutation = self._open.pop(connection_id, None)
        return self._add(
            "forwarded", now_ms, user=user, client_id=client_id, connection_id=connection_id, api_key=api_key,
            exempt=True, mutation_throttle_ms=mutation.throttle_time_ms(now_ms) if mutation is not None else 0,
        )  # fmt: skip

    def network(
        self, user: str, client_id: str, network_ns: int, now_ms: int, *, exempt: bool = False
    ) -> None:
        """Charge network time of an earlier request by itself."""
        decider, channel, header = Decider(self.managers), _channel(user), _header(client_id)
        decider.charge_network(channel, header, network_ns, exempt=exempt, now_ms=now_ms)
        self._add("network", now_ms, user=user, client_id=client_id, network_ns=network_ns, exempt=exempt)

    def _note_tags(
        self, quota_type: QuotaType, user: str, client_id: str, sensor: Sensor, now_ms: int
    ) -> None:
        key, limit = quota_type.key, None if sensor.bound == UNLIMITED else sensor.bound
        said = {(key, user, client_id): sensor.name, (key, sensor.name): limit}
        if self._said | said != self._said:
            self._said |= said
            self._add(
                "tags", now_ms, user=user, client_id=client_id, quota_key=key, quota_value=limit,
                callback=self._callback, tags=tags_text(sensor.tags),
            )  # fmt: skip

    def _is_exempt(self, user: str, client_id: str) -> bool:
        return self.managers.extensions.exempt.selects(user, client_id)

    def _new_quota(
        self, user: str, client_id: str, api_key: int, api_version: int, now_ms: int
    ) -> MutationQuota:
        manager = self.managers.controller_mutation
        if self.managers.extensions.observe.selects(user, client_id):
            return manager.new_quota_of(MutationKind.PERMISSIVE, user, client_id, now_ms)
        return manager.new_quota(user, client_id, api_key, api_version, now_ms)

    def _decide(
        self, user: str, client_id: str, now_ms: int, answer: Answer, handler_ns: int, network_ns: int | None,
        *, size: int = 100, exempt: bool = False, mutation: MutationQuota | None = None,
    ) -> Exchange:  # fmt: skip
        exchange = Exchange(_channel(user), _header(client_id), size, 0)
        exchange.answer, exchange.mutation = answer, mutation
        exchange.exempt = exempt or self._is_exempt(user, client_id)
        exchange.handler_ns, exchange.network_ns, exchange.now_ms = handler_ns, network_ns or 0, now_ms
        Decider(self.managers).decide(exchange)
        return exchange

    def _add_request(self, exchange: Exchange, network_ns: int | None, **columns: Any) -> Event:
        return self._add(
            "request",
            exchange.now_ms,
            user=exchange.channel.connection.user,
            client_id=exchange.header.client_id,
            request_bytes=100,
            handler_ns=exchange.handler_ns,
            network_ns=network_ns,
            exempt=exchange.exempt,
            produce_throttle_ms=exchange.produce_ms,
            fetch_throttle_ms=exchange.fetch_ms,
            request_throttle_ms=exchange.request_ms,
            mutation_throttle_ms=exchange.mutation_ms,
            observed_only=bool(exchange.row_flags & OBSERVED_ONLY),
            **columns,
        )

    def _add(self, kind: str, now_ms: int, **columns: Any) -> Event:
        event = empty_event(kind) | {"node_id": self._node_id, "seq": self._seq, "ts_ms": now_ms} | columns
        self._seq += 1
        self.events.append(event)
        return event


def _charged(charged_bytes: int) -> int | None:
    return None if charged_bytes < 0 else charged_bytes


def _channel(user: str) -> Any:
    """Return as much of a channel as a decision looks at."""
    connection = Connection(
        id=1, listener="PLAINTEXT", client_host="", local_host="", local_port=0, user=user
    )
    return SimpleNamespace(connection=connection)


def _header(client_id: str) -> RequestHeader:
    return RequestHeader(api_key=0, api_version=0, correlation_id=0, client_id=client_id, body_at=0)

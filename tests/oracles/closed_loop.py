"""A closed loop in plain Python: a heap, connections as objects, and a node that decides with the live engine.

Written from `docs/closed-loop.md`, apart from the replay kernel. It knows one run of a node, whose times do not fall.
"""

import heapq
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.replaying.node import RecordingNode

from tidegate.quota import ClientQuotaCallback
from tidegate.quota.admin.definitions import QuotaRecord
from tidegate.quota.managers.mutation import STRICT_SINCE

__all__ = ["simulated"]

Event = dict[str, Any]
_LIBRDKAFKA = "librdkafka"
_PIPELINING = (_LIBRDKAFKA, "apache-kafka-java", "kafka-python")
_READING_AHEAD = (_LIBRDKAFKA, "apache-kafka-java")
_LOOKING_IN_STEPS, _STEP_MS = "kafka-python", 100
_IN_FLIGHT, _GIVES_UP_MS, _BACKOFF_MS, _IDLE_MS, _ATTEMPTS = 5, 60_000, 100, 600_000, 100
_THROTTLES = ("produce_throttle_ms", "fetch_throttle_ms", "request_throttle_ms", "mutation_throttle_ms")


@dataclass(slots=True)
class _Connection:
    queue: deque[Event] = field(default_factory=deque)
    answered: list[int] = field(default_factory=list)
    last_shift_ms: int = 0
    muted_until_ms: int | None = None
    recorded_ms: int = 0
    sent_ms: int | None = None
    is_asking: bool = False
    has_delivered: bool = False
    attempts: int = 0
    ready_ms: int = 0
    send_shift_ms: int = 0
    answer_shift_ms: int = 0


def simulated(
    events: Sequence[Event],
    records: Iterable[QuotaRecord],
    *,
    callback: ClientQuotaCallback | None = None,
    attempts: int = _ATTEMPTS,
    **windows: Any,
) -> list[tuple[int, ...]]:
    """Return what is decided: seq, when, throttle of bytes or permits, of the request quota, refused, amount.

    attempts: so often a fetch is tried.
    """
    return _Simulation(records, callback, attempts, **windows).run(events)


class _Simulation:
    def __init__(
        self,
        records: Iterable[QuotaRecord],
        callback: ClientQuotaCallback | None,
        attempts: int,
        **windows: Any,
    ) -> None:
        self._attempts = attempts
        self._node = RecordingNode(fetches_are_capped=True)
        self._node.start(0, records=tuple(records), **windows)
        if callback is not None:
            self._node.exchange(callback, "callback", 0)
        self._connections: dict[int, _Connection] = {}
        self._heap: list[tuple[int, int, int, int | None]] = []  # when, seq, when exactly, connection
        self._decisions: list[tuple[int, ...]] = []

    def run(self, events: Sequence[Event]) -> list[tuple[int, ...]]:
        """Go through all that happens, in order of time."""
        for event in events:
            if event["kind"] in ("request", "mutation", "network"):
                connection_id = -1 if _is_untold(event) else event["connection_id"]
                self._connections.setdefault(connection_id, _Connection()).queue.append(dict(event))
            elif event["kind"] == "expire":
                heapq.heappush(self._heap, (event["ts_ms"], event["seq"], event["ts_ms"], None))
        for connection_id in self._connections:
            self._schedule(connection_id)
        while self._heap:
            _, _, now_ms, connection_id = heapq.heappop(self._heap)
            if connection_id is None:
                self._node.expire(now_ms)
            else:
                self._take(connection_id, now_ms)
        return self._decisions

    def _schedule(self, connection_id: int) -> None:
        connection = self._connections[connection_id]
        event = connection.queue[0]
        ts_ms = event["ts_ms"]
        if connection.is_asking:
            connection.ready_ms = ts_ms + connection.last_shift_ms
            return self._push(connection_id, connection.ready_ms)
        if connection.sent_ms is not None and ts_ms - connection.sent_ms > _IDLE_MS:
            connection.answered.clear()
            connection.recorded_ms = connection.answer_shift_ms = connection.send_shift_ms = 0
        ready_ms = self._sent_ms(connection, event)
        connection.ready_ms = ready_ms
        taken_ms = ready_ms
        if connection.muted_until_ms is not None:
            taken_ms = max(taken_ms, connection.muted_until_ms)
        if event["client_software"] == _LIBRDKAFKA:
            taken_ms = min(taken_ms, ready_ms + _GIVES_UP_MS + _BACKOFF_MS)
        return self._push(connection_id, taken_ms)

    @staticmethod
    def _sent_ms(connection: _Connection, event: Event) -> int:
        in_flight = 0
        if event["produce_bytes"] is not None and event["client_software"] in _PIPELINING:
            in_flight = _IN_FLIGHT
        if event["fetch_bytes"] is not None and event["client_software"] in _READING_AHEAD:
            in_flight = 1
        shift_ms = connection.send_shift_ms if in_flight else connection.answer_shift_ms
        sent_ms = event["ts_ms"] + max(0, shift_ms - connection.recorded_ms)
        if in_flight and len(connection.answered) >= in_flight:
            sent_ms = max(sent_ms, connection.answered[-in_flight])
        return sent_ms

    def _push(self, connection_id: int, now_ms: int) -> None:
        seq = self._connections[connection_id].queue[0]["seq"]
        heapq.heappush(self._heap, (now_ms, seq, now_ms, connection_id))

    def _take(self, connection_id: int, now_ms: int) -> None:
        connection = self._connections[connection_id]
        event = connection.queue[0]
        recorded_ms = max(event[name] for name in _THROTTLES)
        if connection.has_delivered and event["fetch_bytes"] is not None:
            connection.has_delivered = recorded_ms > 0
            connection.recorded_ms += max(recorded_ms, 0)
            return self._next(connection_id)
        decided = self._decide(event, now_ms)
        throttle_ms = max(0, *(decided.get(name, 0) for name in _THROTTLES))
        if event["kind"] != "request":
            connection.is_asking |= event["kind"] == "mutation"
            connection.last_shift_ms = now_ms - event["ts_ms"]
            return self._next(connection_id)
        if connection.attempts == 0:
            connection.recorded_ms = max(recorded_ms, 0)
        connection.attempts += 1
        late_ms = 1 + (event["seq"] + connection.attempts) % 2
        if event["fetch_bytes"] is not None and connection.attempts < self._attempts:
            rest = event["fetch_bytes"] - decided["fetch_bytes"]
            if throttle_ms == 0 and recorded_ms > 0:
                connection.has_delivered = True
            if throttle_ms == 0 and rest > 0 and decided["fetch_bytes"] > 0:
                event |= {"fetch_bytes": rest, "fetch_throttle_ms": 0, "request_throttle_ms": 0}
                return self._push(connection_id, now_ms)
            if throttle_ms > 0 and recorded_ms <= 0:
                is_over = event["client_software"] == _LIBRDKAFKA and throttle_ms > _GIVES_UP_MS
                again_ms = min(throttle_ms, _GIVES_UP_MS + _BACKOFF_MS) if is_over else throttle_ms
                if event["client_software"] == _LOOKING_IN_STEPS:
                    again_ms = math.ceil(throttle_ms / _STEP_MS) * _STEP_MS
                return self._push(connection_id, now_ms + again_ms + late_ms)
        shift_ms = now_ms - event["ts_ms"]
        connection.muted_until_ms = now_ms if shift_ms > 0 else None
        if throttle_ms > 0:
            connection.muted_until_ms = now_ms + throttle_ms + late_ms
        connection.answered.append(now_ms)
        connection.last_shift_ms = connection.answer_shift_ms = shift_ms
        connection.send_shift_ms = connection.ready_ms - event["ts_ms"]
        connection.is_asking = False
        return self._next(connection_id)

    def _next(self, connection_id: int) -> None:
        connection = self._connections[connection_id]
        connection.attempts = 0
        connection.sent_ms = connection.queue.popleft()["ts_ms"]
        if connection.queue:
            self._schedule(connection_id)

    def _decide(self, event: Event, now_ms: int) -> Event:
        client = event["user"], event["client_id"]
        times = {"handler_ns": event["handler_ns"], "network_ns": event["network_ns"]}
        asked = {"connection_id": event["connection_id"], "api_key": event["api_key"]}
        amount = 0
        if event["kind"] == "network":
            self._node.network(*client, event["network_ns"], now_ms, exempt=event["exempt"])
            decided: Event = {}
        elif event["kind"] == "mutation":
            amount = event["mutations"]
            if _is_untold(event):
                decided = self._node.auto_create(*client, amount, now_ms)
            else:
                is_strict = event["api_version"] >= STRICT_SINCE[event["api_key"]]
                number = event["connection_id"]
                decided = self._node.mutate(*client, amount, now_ms, strict=is_strict, connection_id=number)
        elif event["produce_bytes"] is not None:
            amount = event["produce_bytes"]
            decided = self._node.produce(*client, amount, now_ms, exempt=event["exempt"], **times)
        elif event["fetch_bytes"] is not None:
            decided = self._node.fetch(*client, event["fetch_bytes"], now_ms, **times)
            amount = decided["fetch_bytes"]
        else:
            decided = self._node.other(*client, now_ms, exempt=event["exempt"], **asked, **times)
        byte_ms = next((decided[name] for name in _BYTES if decided.get(name)), 0)
        request_ms, is_rejected = decided.get("request_throttle_ms", 0), decided.get("rejected", False)
        if event["kind"] == "mutation":
            byte_ms = request_ms = 0
        elif event["kind"] == "request" and event["produce_bytes"] is None and event["fetch_bytes"] is None:
            amount = 0
        self._decisions.append((event["seq"], now_ms, byte_ms, request_ms, int(is_rejected), amount))
        return decided


_BYTES = ("produce_throttle_ms", "fetch_throttle_ms", "mutation_throttle_ms")


def _is_untold(event: Event) -> bool:
    """Return whether no answer tells the throttle of these permits: its connection is not known to the replay."""
    return event["kind"] == "mutation" and event["api_key"] not in STRICT_SINCE

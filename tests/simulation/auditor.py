"""What holds at every moment of a simulation, seen from outside the node: by its clients, its handlers and its rows.

* Requests are served in order, one of a connection at a time, and each is answered once, in that order, or its
  connection closes for a reason that is on the list.
* The answer tells the throttle time that was decided. While it lasts nothing of the connection is served (B§6.6); when
  it is over the connection is served again: when nothing is left to do, nobody waits who could be served.
"""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.server.memory_network import MemoryPoller, MemoryTransport
from tests.simulation.accounts import Answered, Window
from tests.simulation.clock import NS_PER_MS, VirtualClock
from tests.simulation.connections import Connections
from tests.simulation.rules import CAP_MS, DEFAULT_NAME, EXEMPT, OBSERVE, Limits, Names, Rules

from tidegate.error_codes import NOT_LEADER_OR_FOLLOWER
from tidegate.quota import QuotaRecord
from tidegate.server.closing import MAX_SEND_STALL_S
from tidegate.server.connection.buffers import SCRATCH_BYTES
from tidegate.server.connection.channel import COLLECTED_BYTES, PENDING_BYTES
from tidegate.server.connection.request_memory import GRACE_S, REVOKE_AFTER_S
from tidegate.server.requests.exchange import Exchange
from tidegate.server.requests.handler import Handler, Request
from tidegate.wire import API_BY_KEY, read_response

__all__ = ["Auditor", "Line", "NodeAuditor", "Sent", "ViolationError"]

IDLE_NS = 600_000 * NS_PER_MS  # connections.max.idle.ms
STALL_NS = int(MAX_SEND_STALL_S * 1000) * NS_PER_MS
SLOW_NS = int(GRACE_S * 1e9)
REVOKE_AFTER_NS = int(REVOKE_AFTER_S * 1e9)
LATE_NS = 300 * NS_PER_MS
"""How long the turns of the others may take in which a throttle, or a long poll, is over."""


class ViolationError(AssertionError):
    """Something that must not happen."""


@dataclass(slots=True, eq=False)
class Sent:
    """A request on its way to its answer.

    ends_connection: the node closes instead of an answer. wait_ms: how long it may let the client wait.
    floor: the last acknowledged offset of its partition when it was sent. throttle_ms: what was decided. due_ns: when
    it has to be answered, since it is served. ends_at: of all bytes of its connection.
    controller_number: of its connection at the controller, where another node asked that for permits.
    """

    id: int
    api_key: int
    version: int
    line: "Line"
    frame_bytes: int
    expects_answer: bool = True
    ends_connection: bool = False
    wait_ms: int = 0
    floor: int = -1
    partition: tuple[str, int] | None = None
    throttle_ms: int | None = None
    due_ns: int = 0
    ends_at: int = 0
    controller_number: int | None = None


class Line(MemoryTransport):
    """A connection whose both ends are watched."""

    def __init__(
        self, poller: MemoryPoller, local_address: tuple[str, int], *, node: "NodeAuditor", user: str, host: str,
        **limits: int,
    ) -> None:  # fmt: skip
        super().__init__(poller, local_address, **limits)
        self.auditor, self.node = node.auditor, node
        self.user, self.host, self.listener = user, host, local_address[0]
        self.number = -1
        self.unserved: deque[Sent] = deque()
        self.awaiting: deque[Sent] = deque()
        self.in_flight: Sent | None = None
        self.admitted = self.writing = self.muted = self.left = self.doomed = False
        self.throttle_ms = 0
        self.decided_ns = self.mute_ends_ns = 0  # before that nothing is served
        self.mute_over_ns = 0  # after that it is muted no longer
        self.active_ns = self.taken_ns = self.made_ns = self.auditor.clock.ns
        node.connections.waiting[self] = None
        self.received_bytes = self.served_bytes = self.sent_bytes = self.planned_bytes = 0

    def client_plan(self, requests: list[Sent]) -> None:
        """Say what is sent next, maybe in parts."""
        for sent in requests:
            self.planned_bytes += sent.frame_bytes
            sent.ends_at = self.planned_bytes
        self.unserved.extend(requests)
        self.awaiting.extend(sent for sent in requests if sent.expects_answer)

    def client_send(self, data: bytes) -> None:
        """Send a part of it, or all."""
        self.sent_bytes += len(data)
        super().client_send(data)

    def client_take(self, room: int = 1 << 62) -> bytes:
        """Return what has come, and make room for more."""
        if room:
            self.taken_ns = self.auditor.clock.ns
        return super().client_take(room)

    @property
    def half_sent(self) -> bool:
        """Whether a request has come in part."""
        return self.sent_bytes < self.planned_bytes

    @property
    def is_collecting(self) -> bool:
        """Return whether a request needs memory of its own (decision 0098) and has not arrived completely."""
        if self.in_flight is not None or self.muted or not self.unserved:
            return False
        return COLLECTED_BYTES <= self.received_bytes - self.served_bytes < self.unserved[0].frame_bytes

    @property
    def memory_bytes(self) -> int:
        """Return the bytes of memory that a request holds or waits for."""
        if self.is_collecting:
            return self.unserved[0].frame_bytes
        # One that is served may hold its memory until it is answered.
        return 0 if self.in_flight is None else self.in_flight.frame_bytes

    def client_end(self) -> None:
        """Send the last byte."""
        self.left = True
        super().client_end()

    def client_break(self) -> None:
        """Leave at once."""
        self.left = self.doomed = True
        super().client_break()

    def recv_into(self, target: memoryview, /) -> int:
        """Receive; what is received and not served is bounded."""
        count = super().recv_into(target)
        self.active_ns = self.auditor.clock.ns
        self.received_bytes += count
        largest = max((sent.frame_bytes for sent in self.unserved), default=0)
        if self.received_bytes - self.served_bytes > PENDING_BYTES + SCRATCH_BYTES + largest:
            self.auditor.fail(self, f"{self.received_bytes - self.served_bytes} bytes are kept")
        return count

    def start_reading(self, on_readable: Callable[[], None]) -> None:
        """Read: for the first time when the connection was admitted."""
        if not self.admitted:
            self.admitted = True
            self.node.on_admitted(self)
        super().start_reading(on_readable)

    def start_writing(self, on_writable: Callable[[], None]) -> None:
        """Wait for room."""
        self.writing = True
        super().start_writing(on_writable)

    def stop_writing(self) -> None:
        """Wait no longer."""
        self.writing = False
        self.active_ns = self.auditor.clock.ns
        super().stop_writing()

    def watch(self, on_early: Callable[[], None], on_gone: Callable[[bool], None]) -> None:
        """Begin to be muted."""
        self.auditor.on_muted(self)
        super().watch(on_early, on_gone)

    def unwatch(self) -> None:
        """Be muted no longer."""
        if self.muted:
            self.auditor.on_unmuted(self)
        super().unwatch()

    def close(self) -> None:
        """Close, for a reason."""
        was_closed, was_admitted = self.closed, self.admitted
        super().close()
        if not was_closed:
            self.node.on_closed(self, was_admitted=was_admitted)


class NodeAuditor:
    """One node from its start to its end.

    settings: returns what it was given and what was changed since, by name. rules, quotas: what was put in force, as it
    said. answers: those that came, by the number of their connection.
    """

    def __init__(
        self,
        auditor: "Auditor",
        node_id: int,
        *,
        window: Window,
        settings: Callable[[], Mapping[str, str]],
        listeners: tuple[str, ...],
        protected: str | None,
    ) -> None:
        self.auditor, self.node_id, self.settings = auditor, node_id, settings
        self.listeners = listeners
        self.rules = Rules()
        self.quotas: dict[tuple[Names, str], float] = {}
        self.answers: defaultdict[int, list[Answered]] = defaultdict(list)
        self._followed: Mapping[str, str] = {}
        limits = Limits.of(self._followed, listeners)
        self.connections = Connections(auditor.clock, window, limits, protected)

    def on_quota(self, record: QuotaRecord) -> None:
        """Learn of a definition that is in force from now on."""
        parts = {kind: DEFAULT_NAME if name is None else name for kind, name in record.entity}
        if "ip" in parts:
            name = None if parts["ip"] == DEFAULT_NAME else parts["ip"]
            self.connections.set_ip_rate(name, record.value)
            return
        names = parts.get("user"), parts.get("client-id")
        if self.rules.apply(record.key, names, record.value):
            return
        if record.value is None:
            self.quotas.pop((names, record.key), None)
        else:
            self.quotas[names, record.key] = record.value

    def on_decided(self, exchange: Exchange) -> None:
        """Learn what was decided about a request; its answer leaves next."""
        sent = self.auditor.on_decided(exchange)
        sent.line.number = exchange.channel.connection.id
        at_controller = exchange.channel.connection.at_controller
        if exchange.mutation is not None and at_controller is not None:
            sent.controller_number = at_controller.id
        cap_ms, throttle_ms = self.rules.numbers[CAP_MS], exchange.throttle_ms
        if 0 < cap_ms < throttle_ms:
            self.auditor.fail(sent.line, f"is throttled for {throttle_ms} ms, past the cap of {cap_ms} ms")
        if throttle_ms:
            for key in (OBSERVE, EXEMPT):
                if self.rules.selects(key, sent.line.user, exchange.header.client_id):
                    self.auditor.fail(sent.line, f"is throttled, and {key} names it")

    def on_admitted(self, line: Line) -> None:
        """Learn that a connection is served."""
        self._follow_limits()
        line.active_ns = line.taken_ns = self.auditor.clock.ns
        problem = self.connections.on_admitted(line)
        if problem is not None:
            self.auditor.fail(line, problem)

    def on_closed(self, line: Line, *, was_admitted: bool) -> None:
        """Learn that the node closed a connection."""
        self._follow_limits()
        self.connections.on_closed(line)
        line.doomed = line.doomed or self.auditor.restarting
        all_answered = not (line.unserved or line.in_flight or line.writing)
        if not (line.doomed or (line.left and all_answered)):
            self.auditor.note(f"{self._reason(line, was_admitted=was_admitted)} closed {line.host}")
            line.doomed = True

    def _reason(self, line: Line, *, was_admitted: bool) -> str:
        now_ns = self.auditor.clock.ns
        if not was_admitted:
            refusal = self.connections.refusal(line)
            if refusal is None:
                self.auditor.fail(line, "is refused, and no rate of connections is limited")
            return refusal or ""
        if line.writing and now_ns - line.taken_ns > STALL_NS:
            return "stalled"
        if now_ns - line.active_ns > IDLE_NS:
            return "idle"
        if line.half_sent and now_ns - line.active_ns > SLOW_NS:
            return "slow"
        if self._is_needed_elsewhere(line):
            return "revoked"
        if self.connections.is_excess(line):
            return "excess"
        if self.connections.is_displaced(line):
            return "displaced"
        self.auditor.fail(line, f"is closed for no reason, {len(line.awaiting)} requests are not answered")
        return ""

    def _is_needed_elsewhere(self, line: Line) -> bool:
        """Return whether another address, which holds less, may have waited long for this request's memory.

        A connection has no principal but its address: clients do not log in.
        """
        lines = [line, *self.connections.open]
        available_bytes = int(self.settings()["queued.max.request.bytes"])
        if not line.is_collecting or sum(one.memory_bytes for one in lines) <= available_bytes:
            return False
        held_bytes = sum(one.memory_bytes for one in lines if one.host == line.host)
        since_ns = self.auditor.clock.ns - REVOKE_AFTER_NS
        return any(
            one.is_collecting and one.active_ns <= since_ns and one.memory_bytes < held_bytes
            for one in lines
            if one.host != line.host
        )

    def check_all(self) -> None:
        """Look at all connections."""
        self._follow_limits()
        for line in list(self.connections.open):
            self.auditor.check(line)
        surplus = self.connections.surplus()
        if surplus is not None:
            self.auditor.fail(surplus, f"stays, and there are {len(self.connections.open)} connections")
        forgotten = self.connections.forgotten()
        if forgotten is not None:
            self.auditor.fail(forgotten, "is not admitted, and there is room")

    def _follow_limits(self) -> None:
        settings = self.settings()
        if settings is not self._followed:
            self._followed = settings
            self.connections.follow(Limits.of(settings, self.listeners))


class Auditor:
    """Keeps what was sent, and says when something is wrong.

    restarting: the nodes end, so that connections close. nodes: those there are. leader: returns who leads a partition.
    recent: what happened last, for who reads of a failure.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.restarting = False
        self.recent: deque[str] = deque(maxlen=40)
        self.seen: Counter[str] = Counter()
        self.nodes: list[NodeAuditor] = []
        self.leader: Callable[[str, int], int] = lambda topic, partition: 1
        self.acked: dict[tuple[str, int], int] = {}
        self.latest_unmute_ns = 0
        self._by_id: dict[int, Sent] = {}
        self._last_id = 0
        self._due: list[tuple[int, int, Line]] = []
        self._pushed = 0

    def fail(self, line: Line | None, problem: str) -> None:
        """Raise `ViolationError`."""
        where = "" if line is None else f" (user {line.user!r}, {line.host})"
        raise ViolationError(f"at {self.clock.ns / 1e9:.6f} s{where}: {problem}\n" + "\n".join(self.recent))

    def note(self, text: str) -> None:
        """Remember what happened."""
        self.seen[text.partition(" ")[0]] += 1
        self.recent.append(f"{self.clock.ns / 1e9:.6f} {text}")

    def next_id(self) -> int:
        """Return a correlation id that no request has had."""
        self._last_id += 1
        return self._last_id

    def on_sent(self, sent: Sent) -> None:
        """Learn of a request that is about to be sent."""
        self._by_id[sent.id] = sent

    @property
    def open(self) -> list[Line]:
        """Return the connections that are served."""
        return [line for node in self.nodes for line in node.connections.open]

    # --- the node's side --------------------------------------------------------------------------------------------

    def probe(self, handler: Handler, work_ns: Callable[[], int]) -> Handler:
        """Return a handler that tells of its requests; each takes `work_ns` longer."""

        def handle(request: Request) -> Any:
            sent = self._by_id[request.header.correlation_id]
            request.connection.user = sent.line.user
            self._on_served(sent)
            self.clock.ns += work_ns()
            return handler(request)

        return handle

    def _on_served(self, sent: Sent) -> None:
        line = sent.line
        if line.closed:
            self.fail(line, f"request {sent.id} is served when its connection is closed")
        if line.in_flight is not None:
            self.fail(line, f"request {sent.id} is served while {line.in_flight.id} is under way")
        if line.unserved.popleft() is not sent:
            self.fail(line, f"request {sent.id} is served out of order")
        if self.clock.ns < line.mute_ends_ns:
            early_ms = (line.mute_ends_ns - self.clock.ns) / NS_PER_MS
            self.fail(line, f"request {sent.id} is served {early_ms} ms before the end of a throttle")
        line.in_flight = sent
        line.active_ns = self.clock.ns
        line.served_bytes += sent.frame_bytes
        if sent.ends_connection:
            line.doomed = True
        sent.due_ns = self.clock.ns + sent.wait_ms * NS_PER_MS
        if sent.wait_ms:
            self._look_at(line, sent.due_ns)

    def on_decided(self, exchange: Exchange) -> Sent:
        """Learn what was decided about a request, and return it."""
        sent = self._by_id.pop(exchange.header.correlation_id)
        line = sent.line
        if line.in_flight is not sent:
            self.fail(line, f"request {sent.id} is decided and was not served")
        line.in_flight = None
        line.decided_ns, line.throttle_ms = self.clock.ns, exchange.throttle_ms
        line.mute_ends_ns = self.clock.ns + exchange.throttle_ms * NS_PER_MS
        sent.throttle_ms = exchange.throttle_ms
        self.seen["throttled" if exchange.throttle_ms else "not throttled"] += 1
        return sent

    def on_muted(self, line: Line) -> None:
        """Learn that a connection is muted."""
        if line.throttle_ms <= 0 or line.muted:
            self.fail(line, f"is muted after a throttle time of {line.throttle_ms} ms")
        line.muted = True
        line.mute_over_ns = self.clock.ns + line.throttle_ms * NS_PER_MS
        self._look_at(line, line.mute_over_ns)

    def on_unmuted(self, line: Line) -> None:
        """Learn that a connection is muted no longer: its throttle is over, or it closes next."""
        line.muted = False
        late_ns = self.clock.ns - line.mute_over_ns
        self.latest_unmute_ns = max(self.latest_unmute_ns, late_ns)
        if late_ns > LATE_NS:
            self.fail(line, f"is muted for {late_ns / NS_PER_MS} ms longer than its throttle")

    # --- the client's side ------------------------------------------------------------------------------------------

    def on_answer(self, line: Line, answer: bytes) -> int:
        """Learn of an answer, without its length; return its throttle time."""
        correlation_id = int.from_bytes(answer[:4], "big", signed=True)
        if not line.awaiting:
            self.fail(line, f"answer {correlation_id} has no request")
        sent = line.awaiting.popleft()
        if sent.id != correlation_id:
            self.fail(line, f"answer {correlation_id} comes where {sent.id} is due")
        if sent.throttle_ms is None:
            self.fail(line, f"answer {sent.id} comes before it was decided")
        api = API_BY_KEY[sent.api_key]
        header_bytes = 5 if api.has_tagged_response_header(sent.version) else 4
        message = read_response(sent.api_key, sent.version, answer, header_bytes)
        told_ms = message.get("throttle_time_ms")
        if told_ms not in (None, sent.throttle_ms):
            self.fail(line, f"answer {sent.id} says {told_ms} ms, {sent.throttle_ms} ms were decided")
        line.node.answers[line.number].append(
            (sent.api_key, sent.version, sent.frame_bytes - 4, len(answer), told_ms, sent.controller_number)
        )
        self._check_offsets(line, sent, message)
        return sent.throttle_ms

    def _check_offsets(self, line: Line, sent: Sent, message: dict[str, Any]) -> None:
        """Nothing that was acknowledged is lost or given away twice."""
        if sent.partition is None or not message["responses"]:
            return
        (topic,) = message["responses"]
        if sent.api_key == 0:
            (part,) = topic["partition_responses"]
            if self._is_elsewhere(line, sent.partition, part):
                return
            if part["error_code"]:
                self.fail(line, f"records of request {sent.id} are refused: {part}")
            if part["base_offset"] <= sent.floor:
                self.fail(line, f"offset {part['base_offset']} is given away again")
            self.acked[sent.partition] = max(part["base_offset"], self.acked.get(sent.partition, -1))
        else:
            (part,) = topic["partitions"]
            if self._is_elsewhere(line, sent.partition, part):
                return
            if part["high_watermark"] <= sent.floor:
                self.fail(line, f"offset {sent.floor} was acknowledged and is gone: {part['high_watermark']}")

    def _is_elsewhere(self, line: Line, partition: tuple[str, int], part: dict[str, Any]) -> bool:
        """Return whether another node leads a partition, which the answer says then."""
        leader = self.leader(*partition)
        is_refused = part["error_code"] == NOT_LEADER_OR_FOLLOWER
        if is_refused is (leader == line.node.node_id):
            self.fail(line, f"node {line.node.node_id} answers for {partition}, led by {leader}: {part}")
        return is_refused

    def on_last_answer(self, line: Line) -> None:
        """Learn that a connection is closed and all that came on it was taken."""
        if line.awaiting and not line.doomed:
            self.fail(line, f"{len(line.awaiting)} requests before the client's end have no answer")

    # --- when nothing is left to do ---------------------------------------------------------------------------------

    def _look_at(self, line: Line, at_ns: int) -> None:
        self._pushed += 1
        heapq.heappush(self._due, (at_ns, self._pushed, line))

    def check_due(self) -> None:
        """Look at connections whose waiting is over."""
        due = self._due
        while due and due[0][0] + LATE_NS < self.clock.ns:
            self.check(heapq.heappop(due)[2])

    def check(self, line: Line) -> None:
        """Look at one connection when the loop has nothing to do: it waits for a reason, or not at all."""
        if line.closed or line.writing or not line.admitted:
            return
        if line.muted:
            if self.clock.ns > line.mute_over_ns + LATE_NS:
                self.fail(line, "is muted although its throttle is over")
        elif line.in_flight is not None:
            late_ns = LATE_NS if line.in_flight.wait_ms else 0
            if self.clock.ns > line.in_flight.due_ns + late_ns:
                self.fail(line, f"request {line.in_flight.id} is served and not answered")
        elif line.unserved and line.unserved[0].ends_at <= line.sent_bytes:
            if line.unserved[0].frame_bytes > COLLECTED_BYTES and any(
                other.half_sent for other in line.node.connections.open
            ):
                self.seen["waited for memory"] += 1
            else:
                self.fail(line, f"request {line.unserved[0].id} is not served")

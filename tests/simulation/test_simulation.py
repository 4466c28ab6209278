"""100,000 steps of fixed seeds, what they meet on their way, and that the auditor notices what must not happen."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.server.memory_network import ManualTimer
from tests.simulation.accounts import KEYS, LeakingBucket, Window
from tests.simulation.administrator import SETTINGS
from tests.simulation.auditor import Line, ViolationError
from tests.simulation.callbacks import CALLBACK_CLASS
from tests.simulation.clock import VirtualClock, VirtualLoop
from tests.simulation.rules import CAP_MS, DEBT_S, EXEMPT, OBSERVE, SMOOTH
from tests.simulation.world import simulate

from tidegate.callbacks.own_rules import OwnRules
from tidegate.quota import QuotaType
from tidegate.quota.admin.entity_selection import EntitySelection
from tidegate.quota.connections.limits import ConnectionLimits
from tidegate.quota.managers.extensions import Extensions
from tidegate.server.connection.request_memory import GrantHolder, RequestMemory
from tidegate.server.node import Node
from tidegate.server.requests.exchange import Exchange

SEEDS, MORE_SEEDS, STEPS = (3, 12, 7, 15, 5, 13, 20, 19, 14, 2), 5, 20_000
FEW_STEPS = 1500

EVENTS = (
    "requests", "throttled", "not throttled", "client", "clock", "restart", "kill", "sleep", "several nodes", "exact",
    "calm", "refused change", "callback exchanged",
)  # fmt: skip
EFFECTS = ("observed", "exempt", "capped", "held by callback")
LEVELS = (
    "user, client-id", "user, default client-id", "user", "default user, client-id",
    "default user, default client-id", "default user", "client-id", "default client-id", "ip", "default ip",
)  # fmt: skip
ENDS = ("half", "break", "close", "idle", "stalled", "parked", "refused", "excess")


class FastClock(VirtualClock):
    """A clock by which the node's nanoseconds pass faster than everybody else's."""

    def monotonic_ns(self) -> int:
        """Return the time, and a hundredth more."""
        return super().monotonic_ns() * 101 // 100


class ForgetfulLoop(VirtualLoop):
    """A loop that does not end throttles."""

    def call_later(self, delay: float, callback: Any, *args: Any) -> ManualTimer:
        """Call, unless it is for a throttle."""
        if callback.__name__ == "_reap":
            return ManualTimer(callback)
        return super().call_later(delay, callback, *args)


class LossyLine(Line):
    """A connection on which one answer gets lost."""

    sends = 0
    was_whole = True

    def send(self, data: Any, /) -> int:
        """Take it all, and deliver it but for the third time, or the next one at which an answer begins."""
        self.sends += 1
        if self.sends >= 3 and self.was_whole:
            self.sends = -(1 << 30)
            return len(data)
        sent = super().send(data)
        self.was_whole = sent == len(data)
        return sent


def test_a_node_keeps_its_promises(tmp_path: Path) -> None:
    """Whatever clients and the world do, for 100,000 steps; all of it happens, or some more seeds see to that."""
    seen: Counter[str] = Counter()
    for number, seed in enumerate(SEEDS):
        if number >= len(SEEDS) - MORE_SEEDS and not _missing(seen):
            break
        world = simulate(seed, STEPS, tmp_path / str(seed))
        seen += world.auditor.seen
        for accounts in world.accounts:
            seen.update(accounts.admitted)
            seen += accounts.seen
    assert _missing(seen) == set()
    assert len(LEVELS) == 8 + 2


def _missing(seen: Counter[str]) -> set[str]:
    set_, held = (f"level {level}" for level in LEVELS), (f"held by {level}" for level in LEVELS[:8])
    changed = (f"setting {name}" for name in SETTINGS)
    return {name for name in (*EVENTS, *EFFECTS, *ENDS, *set_, *held, *changed, *KEYS) if not seen[name]}


def test_a_seed_gives_the_same_again(tmp_path: Path) -> None:
    """To the last row of the usage record, times included, on one node and on several."""
    nodes, digests = set(), set()
    for seed in (6, 7, 9):
        first, again = (simulate(seed, FEW_STEPS, tmp_path / f"{seed}{name}") for name in "ab")
        assert (first.events, first.digest) == (again.events, again.digest)
        digests.add(first.digest)
        nodes.add(len(first.auditor.nodes))
    assert len(digests) == 3
    assert nodes == {1, 3}


class Nobody(EntitySelection):
    """A list that names nobody."""

    def selects(self, user: str, client_id: str) -> bool:
        """Return False."""
        return False


class Uncapped(Extensions):
    """A node that does not know the longest throttle time."""

    __slots__ = ()
    throttle_max_ms = property(lambda self: 0, lambda self, value: None)  # type: ignore[assignment]


class Unfair(RequestMemory):
    """Memory of requests that is revoked from any principal."""

    __slots__ = ()

    def _slowest_but_of(self, owner: str, size: int, now_ns: int) -> GrantHolder | None:
        return next(iter(self._granted))


def _observe_nobody(node: Node) -> None:
    node.managers.extensions.observe = Nobody()


def _exempt_nobody(node: Node) -> None:
    node.managers.extensions.exempt = Nobody()


def _forget_the_cap(node: Node) -> None:
    node.managers.extensions.__class__ = Uncapped


def _smooth_nobody(node: Node) -> None:
    node.managers.extensions.smooth = Nobody()


def _forgive_nothing(node: Node) -> None:
    for manager in (node.managers.produce, node.managers.controller_mutation):
        manager._extensions = Extensions()


def _keep_sensors(node: Node) -> None:
    """Have a new callback take over what was used under the one before."""
    manager = node.managers.produce
    exchange = manager.exchange

    def keeping(*args: Any) -> Any:
        kept = manager.sensors
        emptied = exchange(*args)
        manager.sensors = kept
        return type(emptied)(window=manager.window)

    manager.exchange = keeping  # type: ignore[method-assign]


def _grow(node: Node) -> None:
    for manager in node.managers:
        manager._max_sensor_bytes *= 20
        manager.sensors = manager._new_table()


def _forget_all(node: Node) -> None:
    for manager in node.managers:
        manager._max_sensor_bytes //= 10
        manager._is_protected = lambda *args: False  # type: ignore[method-assign]
        manager.sensors = manager._new_table()


def _revoke_from_all(node: Node) -> None:
    node._memory.__class__ = Unfair


def _record_other_sizes(node: Node) -> None:
    recorder = node._recorder
    assert recorder is not None
    request = recorder.request

    def record(exchange: Exchange) -> None:
        exchange.frame_bytes += 1
        request(exchange)

    recorder.request = record


def _admit_everybody(node: Node) -> None:
    node.connections.slot_available = lambda listener: True  # type: ignore[method-assign]


def _refuse_nobody(node: Node) -> None:
    node.connections.update_limits(ConnectionLimits())
    node.connections.update_limits = lambda limits: None  # type: ignore[method-assign]


def _ignore_settings(node: Node) -> None:
    node.activate_in_slices = lambda config, prepared: iter(())  # type: ignore[method-assign,assignment]


class Generous(OwnRules):
    """Gives everybody twice what is stored."""

    def quota_limit(self, quota_type: QuotaType, tags: Mapping[str, str]) -> float | None:
        """Return twice the bound."""
        limit = super().quota_limit(quota_type, tags)
        return None if limit is None else 2 * limit


OTHERWISE = "_throttle_ms should be|too much was admitted"
LOW_QUOTAS = {"quota.producer.default": "1K", "quota.consumer.default": "1K"}
SCARCE_MEMORY = {
    "quota.producer.default": "1G", "queued.max.request.bytes": "70000", "socket.request.max.bytes": "70000",
}  # fmt: skip
GENEROUS = {CALLBACK_CLASS: f"{__name__}:Generous"}


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ({"clock": FastClock}, "before the end of a throttle"),
        ({"loop": ForgetfulLoop}, "is muted"),
        ({"line": LossyLine}, "is due"),
        ({"spoil": _observe_nobody, "texts": {OBSERVE: "all"}}, "is throttled, and .*observe names it"),
        ({"spoil": _exempt_nobody, "texts": {EXEMPT: "all"}}, "an exempt client is charged|exempt names it"),
        ({"spoil": _forget_the_cap, "texts": {CAP_MS: "50"}}, "past the cap of 50 ms"),
        ({"spoil": _smooth_nobody, "texts": {SMOOTH: "all"}}, OTHERWISE),
        ({"spoil": _forgive_nothing, "texts": {SMOOTH: "all", DEBT_S: "1"}}, OTHERWISE),
        ({"spoil": _keep_sensors}, OTHERWISE),
        ({"texts": GENEROUS}, OTHERWISE),
        ({"spoil": _grow, "small_tables": True}, "bytes are kept of"),
        ({"spoil": _forget_all, "small_tables": True}, "is forgotten, and over its bound"),
        ({"spoil": _revoke_from_all, "texts": SCARCE_MEMORY}, "is closed for no reason"),
        ({"spoil": _record_other_sizes}, "the answer was|_throttle_ms should be"),
        ({"spoil": _admit_everybody, "texts": {"max.connections": "8"}}, "is one connection too many, 8"),
        ({"spoil": _refuse_nobody, "texts": {"max.connections.per.ip": "2"}}, "too many of its address"),
        ({"spoil": _ignore_settings}, "where .* are set"),
    ],
)  # fmt: skip
def test_the_auditor_notices(tmp_path: Path, parts: dict[str, Any], problem: str) -> None:
    """Whatever a node does that it has promised not to do, and soon; it says how to see it again."""
    parts = {**parts, "texts": {**LOW_QUOTAS, **parts.get("texts", {})}}
    for seed in range(60):
        noticed = _violation(seed, tmp_path / str(seed), parts)
        if noticed is not None:
            assert re.search(problem, noticed)
            assert f"make soak ARGS='simulation --seed {seed} --steps {FEW_STEPS}'" in noticed
            return
    raise AssertionError("nothing was noticed")


def _violation(seed: int, directory: Path, parts: dict[str, Any]) -> str | None:
    try:
        simulate(seed, FEW_STEPS, directory, **parts)
    except ViolationError as error:
        return str(error)
    return None


def test_a_burst_and_the_bound_are_all_that_is_admitted() -> None:
    """A bucket takes n + 1 windows at once, and then what runs out."""
    bucket = LeakingBucket.of_samples(10.0, Window(samples=11, window_ms=1000), 0)
    assert bucket.admit(120.0, 0) <= 0
    assert bucket.admit(10.0, 1000) <= 0
    assert bucket.admit(1.0, 1000) > 0

"""100,000 steps of fixed seeds, what they meet on their way, and that the auditor notices what must not happen."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.server.memory_network import ManualTimer
from tests.simulation.accounts import LeakingBucket, Window
from tests.simulation.auditor import Line, ViolationError
from tests.simulation.clock import VirtualClock, VirtualLoop
from tests.simulation.world import simulate

SEEDS, STEPS = (1, 2, 3, 4, 5), 20_000
FEW_STEPS = 1500

EVENTS = ("requests", "throttled", "not throttled", "client", "clock", "restart", "kill", "sleep")
LEVELS = (
    "user, client-id", "user, default client-id", "user", "default user, client-id",
    "default user, default client-id", "default user", "client-id", "default client-id", "ip", "default ip",
)  # fmt: skip
ENDS = ("half", "break", "close", "idle", "stalled", "parked")


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

    def send(self, data: Any, /) -> int:
        """Take it all, and deliver it but for the third time."""
        self.sends += 1
        return len(data) if self.sends == 3 else super().send(data)


def test_a_node_keeps_its_promises(tmp_path: Path) -> None:
    """Whatever clients and the world do, for 100,000 steps; all of it happens."""
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        world = simulate(seed, STEPS, tmp_path / str(seed))
        seen += world.auditor.seen
        for accounts in world.accounts:
            seen.update(accounts.admitted)
    expected = (*EVENTS, *ENDS, *(f"level {level}" for level in LEVELS), *accounts.admitted)
    assert {name for name in expected if not seen[name]} == set()
    assert len(LEVELS) == 8 + 2


def test_a_seed_gives_the_same_again(tmp_path: Path) -> None:
    """To the last row of the usage record, times included."""
    first, again = (simulate(6, FEW_STEPS, tmp_path / name) for name in "ab")
    assert (first.events, first.digest) == (again.events, again.digest)
    assert simulate(7, FEW_STEPS, tmp_path / "c").digest != first.digest


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ({"clock": FastClock}, "before the end of a throttle"),
        ({"loop": ForgetfulLoop}, "is muted"),
        ({"line": LossyLine}, "is due"),
    ],
)
def test_the_auditor_notices(tmp_path: Path, parts: dict[str, Any], problem: str) -> None:
    """An early unmute, a throttle without an end and a lost answer; it says how to see them again."""
    with pytest.raises(ViolationError, match=problem) as caught:
        simulate(8, FEW_STEPS, tmp_path, **parts)
    assert f"make soak ARGS='simulation --seed 8 --steps {FEW_STEPS}'" in str(caught.value)


def test_a_burst_and_the_bound_are_all_that_is_admitted() -> None:
    """A bucket takes n + 1 windows at once, and then what runs out."""
    bucket = LeakingBucket(10.0, Window(samples=11, window_ms=1000), 0)
    assert bucket.admit(120.0, 0) <= 0
    assert bucket.admit(10.0, 1000) <= 0
    assert bucket.admit(1.0, 1000) > 0

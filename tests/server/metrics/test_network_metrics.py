"""Totals and rates of a network thread, on a clock that is told to move."""

from types import SimpleNamespace

import pytest

from tidegate.server.connection.request_memory import RequestMemory
from tidegate.server.metrics.network_metrics import NetworkMetrics
from tidegate.server.metrics.request_metrics import RequestMetrics
from tidegate.testing import ManualClock


class Thread:
    """A front that has had turns, and the processor time of its thread."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.front = SimpleNamespace(
            requests=RequestMetrics([], ["PLAINTEXT"], self.clock.monotonic_ns), turns=0, waiting=0
        )
        self.busy_ns = 5
        memory = RequestMemory(1000, monotonic_ns=self.clock.monotonic_ns, later=lambda run: None)
        self.metrics = NetworkMetrics(
            self.front,  # type: ignore[arg-type]
            memory,
            clock=self.clock,
            thread_time_ns=lambda: self.busy_ns,
        )

    def pass_s(self, seconds: int, *, turns: int, busy: float) -> None:
        """Let so many seconds pass with so many turns in each, busy for this share of the time."""
        for second in range(1, seconds + 1):
            self.clock.advance(1000)
            self.front.turns += turns
            self.busy_ns += int(busy * 1e9)
            if second % 5 == 0:
                self.metrics.tick()

    def read(self) -> dict[str, float]:
        """Return the metrics by name; of a meter the rate over one minute."""
        metrics = self.metrics.metrics(self.clock.now_ms())
        return {m.name: m.value for m in metrics if m.attribute in (None, "OneMinuteRate")}


def test_rates_are_those_of_the_last_minute() -> None:
    """Of all seconds until the reading, whenever the last tick was."""
    thread = Thread()
    thread.pass_s(300, turns=100, busy=0.25)
    found = thread.read()
    assert (found["select-total"], found["select-rate"]) == (30_000.0, 100.0)
    assert (found["io-ratio"], found["io-wait-ratio"]) == (0.25, 0.75)
    assert found["NetworkProcessorAvgIdlePercent"] == 0.75
    assert (found["io-time-ns-total"], found["io-wait-time-ns-total"]) == (75e9, 225e9)
    assert (found["io-time-ns-avg"], found["io-wait-time-ns-avg"]) == (2.5e6, 7.5e6)
    thread.pass_s(33, turns=0, busy=1.0)
    found = thread.read()
    assert found["select-rate"] == pytest.approx(100 * 30 / 63)
    assert found["io-ratio"] == pytest.approx((0.25 * 30 + 33) / 63)
    thread.pass_s(62, turns=0, busy=1.0)
    assert thread.read()["NetworkProcessorAvgIdlePercent"] == 0.0


def test_a_fresh_thread_is_measured_over_thirty_seconds() -> None:
    """One event at the start is no high rate."""
    thread = Thread()
    thread.pass_s(2, turns=30, busy=0.0)
    assert thread.read()["select-rate"] == 2.0


def test_nothing_divided_by_nothing_is_nan() -> None:
    """A mean of nothing."""
    found = Thread().read()
    assert found["request-size-avg"] != found["request-size-avg"]
    assert found["io-time-ns-avg"] != found["io-time-ns-avg"]


def test_idle_handlers_are_seen_as_a_share() -> None:
    """A meter of idle nanoseconds by nanoseconds."""
    thread = Thread()
    thread.pass_s(60, turns=1, busy=0.0)
    assert thread.read()["RequestHandlerAvgIdlePercent"] == pytest.approx(1.0)

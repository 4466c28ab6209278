"""Forecasts beside clients that are played in a time of their own, without a busy machine: what a model can know.

Each plays an application that makes a record in 50 ms: first without quotas, which is recorded, then under a limit. The
record is replayed in closed loop. `tests/e2e/long_forecast.py` does the same with real clients.
"""

from collections import deque
from random import Random

import pytest
from tests.replaying.kernel import forecast_events
from tests.replaying.node import RecordingNode

from tidegate.pipeline.replay.plan import Plan
from tidegate.quota.admin.definitions import QuotaRecord

_T0 = 1_700_000_000_000
_SIZE, _THINK_MS, _IN_FLIGHT, _STEP_MS = 50_000, 50.0, 5, 100
_RECORDS = {0.2: 500, 0.5: 900, 0.8: 1300}
_POINTS, _FACTOR = 10, 1.5


class _Node:
    """A node and one connection to it: requests are taken one after another, and not while it is muted."""

    def __init__(self, rng, api, software, limit):
        self._rng, self._api, self._software = rng, api, software
        self.node = RecordingNode()
        self.node.start(_T0, records=() if limit is None else (_quota(api, limit),))
        self._taken_ms = self._muted_ms = 0.0
        self.throttles = []

    def take(self, sent_ms):
        """Return when the request is answered, and its throttle."""
        served_ms = 0.25 + self._rng.expovariate(10)
        self._taken_ms = max(sent_ms + 0.15, self._taken_ms, self._muted_ms) + served_ms
        now_ms = _T0 + int(self._taken_ms)
        event = getattr(self.node, self._api)("u", "c", _SIZE, now_ms)
        event |= {"client_software": self._software, "connection_id": 1}
        throttle_ms = event[f"{self._api}_throttle_ms"]
        self.throttles.append(throttle_ms)
        self._muted_ms = self._taken_ms + throttle_ms + self._rng.uniform(0.6, 2.2) if throttle_ms else 0.0
        return self._taken_ms + 0.1, throttle_ms

    def slept(self):
        """Return how long a sleep of the think time takes."""
        return _THINK_MS + 0.06 + self._rng.expovariate(10)


def _sends_on(node, records):
    """Play a producer that thinks after each send; it waits when five are on their way."""
    now_ms, answers = 0.0, deque([0.0] * _IN_FLIGHT, _IN_FLIGHT)
    for _ in range(records):
        now_ms = max(now_ms, answers[0])
        answers.append(node.take(now_ms)[0])
        now_ms += node.slept()


def _by_the_clock(node, records):
    """Play a producer that makes a record each 50 ms, and makes up for lost time."""
    now_ms, answers = 0.0, deque([0.0] * _IN_FLIGHT, _IN_FLIGHT)
    for number in range(records):
        now_ms = max(now_ms + 0.05, number * _THINK_MS, answers[0])
        answers.append(node.take(now_ms)[0])


def _waits(node, records):
    """Play a producer that thinks after each answer."""
    now_ms = 0.0
    for _ in range(records):
        now_ms = node.take(now_ms)[0] + node.slept()


def _reads_ahead(node, records):
    """Play a consumer that fetches while its application works on what came before."""
    sent_ms = ready_ms = 0.0
    for _ in range(records):
        sent_ms, throttle_ms = node.take(sent_ms)
        while throttle_ms:
            sent_ms, throttle_ms = node.take(sent_ms)
        sent_ms = max(ready_ms, sent_ms)
        ready_ms = sent_ms + node.slept()


def _looks_in_steps(node, records):
    """Play a consumer that fetches when its application is done, and sleeps 100 ms at a time while it is throttled."""
    now_ms = 0.0
    for _ in range(records):
        now_ms, throttle_ms = node.take(now_ms)
        while throttle_ms:
            now_ms, throttle_ms = node.take(now_ms + -(-throttle_ms // _STEP_MS) * _STEP_MS + 1)
        now_ms += node.slept()


def _quota(api, limit):
    key = "producer_byte_rate" if api == "produce" else "consumer_byte_rate"
    return QuotaRecord(entity=(("client-id", "c"),), key=key, value=float(limit))


def _told(throttles):
    """Return the throttled share in percent, the total and the longest delay."""
    waits = [throttle_ms for throttle_ms in throttles if throttle_ms]
    return 100 * len(waits) / len(throttles), sum(waits), max(waits)


def _foretold_and_real(client, api, software, share):
    free = _Node(Random(1), api, software, None)
    client(free, _RECORDS[share])
    times = [event["ts_ms"] for event in free.node.events if event["kind"] == "request"]
    limit = round(share * _SIZE * len(times) * 1000 / (times[-1] - times[0]))
    limited = _Node(Random(2), api, software, limit)
    client(limited, _RECORDS[share])
    plan = Plan(name="p", records=(_quota(api, limit),), is_closed=True)
    decisions = forecast_events(free.node.events, plan, batch_rows=1000).decisions
    return _told([decision[2] for decision in decisions]), _told(limited.throttles)


def _missed(foretold, real):
    """Return what of the forecast is further off than is asked."""
    kept = [abs(foretold[0] - real[0]) <= _POINTS]
    kept += [max(pair) <= _FACTOR * min(pair) for pair in zip(foretold[1:], real[1:], strict=True)]
    return {what for what, is_kept in zip(("share", "total", "longest"), kept, strict=True) if not is_kept}


@pytest.mark.parametrize("share", _RECORDS)
@pytest.mark.parametrize(
    ("client", "api", "software"),
    [
        (_sends_on, "produce", "librdkafka"),
        (_by_the_clock, "produce", "apache-kafka-java"),
        (_waits, "produce", ""),
        (_reads_ahead, "fetch", "librdkafka"),
        (_looks_in_steps, "fetch", "kafka-python"),
    ],
)
def test_what_is_foretold_comes_true(client, api, software, share):
    """Near the client's own rate, too."""
    assert _missed(*_foretold_and_real(client, api, software, share)) == set()


@pytest.mark.parametrize(("share", "missed"), [(0.2, set()), (0.5, set()), (0.8, {"share", "total"})])
def test_who_waits_for_each_answer_where_its_software_need_not_is_foretold_too_much(share, missed):
    """What no record tells: near its own rate it is throttled less often than who sends on."""
    foretold, real = _foretold_and_real(_waits, "produce", "kafka-python", share)
    assert _missed(foretold, real) == missed
    assert foretold[1] > real[1]

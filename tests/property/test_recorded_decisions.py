"""A record is enough: the engine, and a plain port of Kafka's classes, decide random traffic again as recorded."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.oracles.recorded import ported_differences
from tests.replaying.callbacks import disturbed_node
from tests.replaying.engine import decisions, replay_with_engine
from tests.replaying.logs import CLIENTS

from tidegate.quota import QuotaRecord

_SEEDS = st.integers(0, 2**32 - 1)
_LONG = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
_THROTTLES = ("produce_throttle_ms", "fetch_throttle_ms", "request_throttle_ms", "mutation_throttle_ms")
_EXTENSIONS = (
    QuotaRecord(entity=(("client-id", "c1"),), key="tidegate.quota.observe", value=1.0),
    QuotaRecord(entity=(("user", "bob"),), key="tidegate.quota.exempt", value=1.0),
    QuotaRecord(entity=(), key="tidegate.quota.throttle.max.ms", value=700.0),
)
_BEYOND_THE_PORT = (
    QuotaRecord(entity=(("user", "alice"),), key="tidegate.quota.smooth", value=1.0),
    QuotaRecord(entity=(), key="tidegate.quota.debt.max.seconds", value=3.0),
)


@_LONG
@given(_SEEDS)
def test_the_engine_decides_again_as_recorded(seed):
    """With callbacks that are exchanged and change their minds, and with all that goes beyond Kafka."""
    events = disturbed_node(seed, extensions=_EXTENSIONS + _BEYOND_THE_PORT).events
    assert decisions(replay_with_engine(events)) == decisions(events)


@_LONG
@given(_SEEDS, st.booleans())
def test_the_port_decides_again_as_recorded(seed, callbacks):
    """By Kafka's rules alone, with clients that are observed or exempt, and with callbacks."""
    events = disturbed_node(seed, extensions=_EXTENSIONS, callbacks=callbacks).events
    assert ported_differences(events) == []


@pytest.mark.parametrize("callback", [None, "groups", "led", "fickle"])
def test_the_random_logs_have_every_kind_of_decision(callback):
    """Throttles of all four quotas under each callback, and of several clients that share a limit."""
    seen: Counter[str] = Counter()
    for seed in range(60):
        current, sharing = None, {}
        for event in disturbed_node(seed, extensions=_EXTENSIONS).events:
            if event["kind"] in ("start", "callback"):
                current = event["callback"]
            if current != callback:
                continue
            if event["kind"] == "tags":
                sharing.setdefault((event["quota_key"], event["tags"]), set()).add(
                    (event["user"], event["client_id"])
                )
            for name in _THROTTLES:
                seen[name] += event[name] > 0
            seen["rejected"] += event["rejected"]
        seen["shared"] += max((len(clients) for clients in sharing.values()), default=0) > len(CLIENTS) // 8
    expected = {*_THROTTLES, "rejected", *(("shared",) if callback in ("groups", "fickle") else ())}
    assert {name for name in expected if seen[name] < 5} == set(), seen

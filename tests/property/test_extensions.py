"""What goes beyond Kafka, switched on and off in random traffic: the engine decides the rows again as recorded."""

from collections import Counter
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.replaying.broken import broken
from tests.replaying.callbacks import disturbed_node
from tests.replaying.engine import decisions, replay_with_engine
from tests.replaying.kernel import differences, replay_events
from tests.replaying.logs import START_MS, random_records, random_traffic
from tests.replaying.node import RecordingNode

from tidegate.pipeline.replay.plan import in_force_plan
from tidegate.quota import EXTENSION_SETTINGS, QuotaRecord

_SELECTIONS = ("tidegate.quota.observe", "tidegate.quota.exempt", "tidegate.quota.smooth")
_KEYS = sorted(EXTENSION_SETTINGS - {"tidegate.quota.cluster.wide"})
"""Settings that are replayed exactly. Of cluster-wide quotas, the record lacks the usage at other gateways."""
_ENTITIES = (
    (),
    (("user", None),),
    (("user", "a b:c"),),
    (("client-id", "c1"),),
    (("client-id", "c2"), ("user", "bob")),
)


_RECORDS = (
    QuotaRecord(entity=(("client-id", "c1"),), key="tidegate.quota.observe", value=1.0),
    QuotaRecord(entity=(), key="tidegate.quota.smooth", value=1.0),
    QuotaRecord(entity=(), key="tidegate.quota.debt.max.seconds", value=3.0),
)


def _switch(node, rng, now_ms):
    key = rng.choice(_KEYS)
    value = rng.choice([None, None, 1.0]) if key in _SELECTIONS else rng.choice([None, 1.0, 20.0, 5000.0])
    entity = rng.choice(_ENTITIES) if key in _SELECTIONS else ()
    node.quota(QuotaRecord(entity=entity, key=key, value=value), now_ms)


def _random_node(seed):
    rng = Random(seed)
    node = RecordingNode()
    node.start(START_MS, records=random_records(rng, at_most=8))
    now_ms = START_MS
    for _ in range(8):
        for _ in range(4):
            _switch(node, rng, now_ms)
        now_ms = random_traffic(node, rng, events=40, now_ms=now_ms)
    return node


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32 - 1))
def test_the_record_says_all_that_decides(seed):
    """Each throttle time, refusal and observed request comes out again."""
    events = _random_node(seed).events
    assert decisions(replay_with_engine(events)) == decisions(events)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32 - 1), st.integers(1, 50))
def test_the_quotas_in_force_are_replayed_with_all_of_it(seed, batch_rows):
    """As recorded, and exact: smooth, observed and exempt clients, bounds on debt, switched on and off."""
    events = _random_node(seed).events
    replayed = replay_events(events, in_force_plan(), batch_rows=batch_rows)
    assert differences(replayed, [_as_done(event) for event in replayed.events]) == []
    assert sum(result["approximate_requests"] for result in replayed.results) == 0
    assert sum(result["different_decisions"] for result in replayed.results) == 0


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32 - 1))
def test_what_counts_as_exact_is_as_recorded_where_rows_are_missing(seed):
    """With callbacks that are exchanged, too; a setting may be in a row that is not there."""
    rng = Random(seed)
    node = disturbed_node(seed, extensions=_RECORDS) if rng.random() < 0.5 else _random_node(seed)
    replayed = replay_events(broken(node.events, rng), in_force_plan())
    assert sum(result["different_decisions"] for result in replayed.results) == 0


def _as_done(event):
    """Return the event with what was done of the decisions."""
    if not event["observed_only"]:
        return event
    return event | {name: 0 for name in event if name.endswith("throttle_ms")}


def test_the_random_logs_have_all_of_it():
    """Requests of observed, exempt and smooth clients among them."""
    seen = Counter()
    for seed in range(40):
        for event in _random_node(seed).events:
            seen["observed"] += event["observed_only"]
            seen["exempt"] += event["kind"] == "request" and event["exempt"]
            seen["throttled"] += event["produce_throttle_ms"] > 0 and not event["observed_only"]
    assert min(seen.values()) > 50, seen
    assert len(seen) == 3

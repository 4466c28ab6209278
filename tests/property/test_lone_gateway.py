"""A gateway process alone in its cluster: cluster-wide quotas decide as Kafka's do, to the last bit."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.gateway.sharing import TICK_MS, Sharing
from tidegate.in_slices import run_at_once
from tidegate.quota import QuotaManagers, QuotaRecord
from tidegate.quota.managers.extensions import CLUSTER_WIDE

START_MS = 1_000_000
WINDOW_MS = 11_000
KEYS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")
bounds = st.one_of(st.floats(1.0, 1e7), st.sampled_from([1e-300, 5e-324, 0.1, 1e6, 2.0**63, 9.2e18]))
sizes = st.one_of(st.integers(0, 10**7).map(float), st.floats(0.0, 1e7), st.sampled_from([0.0, 1e12]))
operations = st.lists(
    st.tuples(
        st.sampled_from(["produce", "fetch", "refused fetch", "largest fetch", "request", "look"]),
        sizes,
        st.one_of(st.integers(0, 900), st.integers(0, 40_000)),
        st.integers(0, 1),
    ),
    max_size=60,
)


def managers(limits: tuple[float, ...]) -> QuotaManagers:
    """Return the managers of a broker with a quota of each type for alice."""
    made = QuotaManagers()
    for key, limit in zip(KEYS, limits, strict=True):
        made.apply(QuotaRecord(entity=(("user", "alice"),), key=key, value=limit))
    return made


def decide(of: QuotaManagers, operation: str, size: float, client_id: str, now_ms: int) -> float:
    """Return the result of one operation."""
    who = "alice", client_id
    if operation == "produce":
        return of.produce.record(*who, size, now_ms)
    if operation == "fetch":
        return of.fetch.record(*who, size, now_ms)
    if operation == "refused fetch":
        throttle_ms = of.fetch.record(*who, size, now_ms)
        of.fetch.unrecord(*who, size, now_ms)
        return throttle_ms
    if operation == "largest fetch":
        return of.fetch.max_value_in_window(*who, lambda: now_ms)
    if operation == "request":
        return of.request.record_times(*who, int(size), int(size * 100), now_ms)
    return of.produce.sensor(*who, now_ms, charges=False).peek_throttle_ms(now_ms)


@given(limits=st.tuples(bounds, bounds, bounds), steps=operations)
@settings(max_examples=150)
def test_lone_process_decides_as_kafka(limits: tuple[float, float, float], steps: list) -> None:
    """Throttle times of Produce, Fetch and request time and the size of a Fetch are those of a broker, bit for bit."""
    alone, one = managers(limits), managers(limits)
    alone.apply(QuotaRecord(entity=(), key=CLUSTER_WIDE, value=1.0))
    sharing = Sharing("p", window_ms=WINDOW_MS)
    sharing.add_node(alone)
    now_ms, next_ms = START_MS, START_MS
    for operation, size, step_ms, client in steps:
        now_ms += step_ms
        while next_ms <= now_ms:
            sharing.receive(run_at_once(sharing.tick_in_slices(next_ms)), next_ms)
            next_ms += TICK_MS
        name = f"c{client}"
        assert decide(alone, operation, size, name, now_ms) == decide(one, operation, size, name, now_ms)

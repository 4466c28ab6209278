"""Managers against a straightforward port of Kafka's, over whatever order of calls hypothesis makes up."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.oracles.quota_manager import PortedManager

from tidegate.quota import DEFAULT, ClientQuotaManager, QuotaEntity, QuotaType, QuotaWindow
from tidegate.quota.measure.sensor_table import THROTTLE_BYTES, sensor_bytes, text_bytes
from tidegate.quota.measure.sensors import RateSensor

START_MS = 1_700_000_000_000
UNUSED = {"bound": 1.0, "cap_ms": 0, "now_ms": 0}
users = st.sampled_from(["alice", "bob", "a b", "<default>", ""])
client_ids = st.sampled_from(["c1", "c2", "<default>", "a:b", ""])
entities = st.builds(
    QuotaEntity,
    user=st.one_of(st.none(), st.just(DEFAULT), users.filter(bool)),
    client_id=st.one_of(st.none(), st.just(DEFAULT), client_ids.filter(bool)),
).filter(lambda entity: entity.user is not None or entity.client_id is not None)
bounds = st.one_of(st.none(), st.sampled_from([0.5, 100.0, 1e6, float(2**63 - 1)]))
values = st.one_of(st.integers(0, 10**6), st.floats(0, 1e6), st.floats(-1e3, 1e15))


class Managers(RuleBasedStateMachine):
    """The same calls to both; peeks and snapshots only to the engine's."""

    @initialize(
        samples=st.sampled_from([1, 2, 11]),
        window_ms=st.sampled_from([1000, 3000]),
        cap=st.booleans(),
    )
    def begin(self, samples: int, window_ms: int, cap: bool) -> None:
        """Make both managers, with or without the request quota's cap."""
        self.now_ms = START_MS
        window = QuotaWindow(samples=samples, window_ms=window_ms)
        capped = {"cap_ms": window_ms} if cap else {}
        self.engine = ClientQuotaManager(QuotaType.PRODUCE, window, **capped)
        self.port = PortedManager(samples=samples, window_ms=window_ms, **capped)

    @rule(ms=st.one_of(st.integers(0, 50), st.integers(0, 40_000), st.integers(-5_000, 0)))
    def pass_time(self, ms: int) -> None:
        """Let time pass, sometimes backwards."""
        self.now_ms += ms

    @rule(entity=entities, bound=bounds)
    def update_quota(self, entity: QuotaEntity, bound: float | None) -> None:
        """Set or remove a quota."""
        self.engine.update_quota(entity, bound)
        self.port.update_quota(entity, bound)

    @rule(user=users, client_id=client_ids, value=values)
    def record(self, user: str, client_id: str, value: float) -> None:
        """Charge: the throttle times are equal."""
        expected = self.port.record(user, client_id, value, self.now_ms)
        assert self.engine.record(user, client_id, value, self.now_ms) == expected

    @rule(user=users, client_id=client_ids, value=values)
    def record_unchecked(self, user: str, client_id: str, value: float) -> None:
        """Charge without a verdict."""
        self.engine.record_unchecked(user, client_id, value, self.now_ms)
        self.port.record_unchecked(user, client_id, value, self.now_ms)

    @rule(user=users, client_id=client_ids, value=values)
    def unrecord(self, user: str, client_id: str, value: float) -> None:
        """Take back."""
        self.engine.unrecord(user, client_id, value, self.now_ms)
        self.port.record_unchecked(user, client_id, -value, self.now_ms)

    @rule(user=users, client_id=client_ids, ahead_ms=st.integers(-50_000, 50_000))
    def look(self, user: str, client_id: str, ahead_ms: int) -> None:
        """Scrape and peek at any time: nothing that follows may change."""
        self.engine.peek(user, client_id, self.now_ms + ahead_ms)
        list(self.engine.metrics(self.now_ms + ahead_ms))
        self.engine.explain(user, client_id)
        self.engine.max_value_in_window(user, client_id, lambda: self.now_ms + ahead_ms)


TestManagers = Managers.TestCase
TestManagers.settings = settings(max_examples=60, stateful_step_count=40)


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 2000).map(float), st.integers(0, 4000)), max_size=120
    ),
    st.integers(2, 6),
)
def test_dropping_idle_sensors_changes_no_decision(requests: list, max_sensors: int) -> None:
    """As long as only sensors go that were idle for longer than their windows, throttle times are Kafka's."""
    window = QuotaWindow(samples=3, window_ms=1000)
    sample = RateSensor("Produce-:client-0", {"user": "", "client-id": "client-0"}, window=window, **UNUSED)
    each_bytes = sensor_bytes(sample, window) + THROTTLE_BYTES + text_bytes(sample.name)
    engine = ClientQuotaManager(QuotaType.PRODUCE, window, max_sensor_bytes=max_sensors * each_bytes)
    port = PortedManager(samples=3, window_ms=1000)
    for manager in (engine, port):
        manager.update_quota(QuotaEntity(client_id=DEFAULT), 500.0)
    now_ms = START_MS
    for client, value, step_ms in requests:
        now_ms += step_ms
        throttle_ms = engine.record("u", f"client-{client}", value, now_ms)
        if engine.sensors.dropped_in_use or engine.folded:
            return
        assert throttle_ms == port.record("u", f"client-{client}", value, now_ms)
    assert len(engine.sensors) <= max_sensors

"""`RequestQuotaManager.record_times` is `record_unchecked`, then `record`, in one go: to the last bit."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate.quota import QuotaEntity, RequestQuotaManager
from tidegate.quota.managers.request import PERCENT_PER_NS

START_MS = 1_700_000_000_000
NS = st.integers(0, 2_000_000_000) | st.integers(0, 50_000)


@given(
    bound=st.sampled_from([0.001, 1.0, 37.5, 400.0]),
    requests=st.lists(st.tuples(st.integers(0, 4000), NS, NS), min_size=1, max_size=60),
)
def test_both_times_at_once(bound: float, requests: list[tuple[int, int, int]]) -> None:
    """The same throttles and the same rates as with two calls, within a sample, across samples and over the bound."""
    together, apart = RequestQuotaManager(), RequestQuotaManager()
    for manager in (together, apart):
        manager.update_quota(QuotaEntity(user="alice"), bound)
    now_ms = START_MS
    for passed_ms, network_ns, handler_ns in requests:
        now_ms += passed_ms
        apart.record_unchecked("alice", "c1", network_ns * PERCENT_PER_NS, now_ms)
        expected = apart.record("alice", "c1", handler_ns * PERCENT_PER_NS, now_ms)
        assert together.record_times("alice", "c1", network_ns, handler_ns, now_ms) == expected
        assert together.peek("alice", "c1", now_ms).hex() == apart.peek("alice", "c1", now_ms).hex()

"""What the kernel does besides deciding: starts, gaps, sweeps, caps, tallies."""

from dataclasses import replace

import pytest
from tests.oracles.recorded import ported_differences
from tests.replaying.kernel import differences, forecast_events, replay_events
from tests.replaying.node import RecordingNode

from tidegate.api_keys import FETCH
from tidegate.callbacks.own_rules import OwnRules
from tidegate.config.windows import Windows
from tidegate.pipeline import layout
from tidegate.pipeline.replay.levels import FETCH_ANSWER_BYTES
from tidegate.pipeline.replay.plan import Plan, in_force_plan
from tidegate.quota.admin.definitions import QuotaRecord
from tidegate.quota.managers.extensions import CLUSTER_WIDE, MUTATIONS_SHARED
from tidegate.quota.measure.window import QuotaWindow
from tidegate.usage.columns import SEQ_PER_US, empty_event
from tidegate.wire import encode_response

_T0 = 1_700_000_000_000
_HOUR_MS = 3_600_000


def _quota(key, value, user="alice"):
    return QuotaRecord(entity=(("user", user),), key=key, value=value)


def _plan(*records):
    return Plan(name="p", records=records)


def _free_node():
    node = RecordingNode()
    node.start(_T0)
    return node


def _result(replayed, quota_type):
    (found,) = [result for result in replayed.results if result["quota_type"] == quota_type]
    return found


def test_tallies_of_a_throttled_producer():
    """30 kB against 1 kB/s: the first passes the burst of ten, the rest waits; nothing was recorded."""
    node = _free_node()
    for second in range(3):
        node.produce("alice", "c1", 10_000, _T0 + second * 100)
    replayed = replay_events(node.events, _plan(_quota("producer_byte_rate", 1000.0)))
    result = _result(replayed, "Produce")
    assert replayed.decisions[:, layout.BYTE_MS].tolist() == [0, 9_900, 19_800]
    assert result["requests"] == 3
    assert result["throttled_requests"] == 2
    assert (result["throttle_ms"], result["longest_throttle_ms"]) == (29_700, 19_800)
    assert result["first_throttled_ts_ms"] == _T0 + 100
    assert (result["amount"], result["delayed_amount"]) == (30_000, 20_000)
    assert (result["entity_user"], result["entity_client_id"], result["bound"]) == ("alice", None, 1000.0)
    assert result["recorded_throttled_requests"] == 0
    assert result["recorded_first_throttled_ts_ms"] is None


def test_a_plan_is_replayed_whatever_a_callback_decided():
    """Its rows are passed over, and a plan's quotas decide; as if there had been none."""
    node = _free_node()
    node.exchange(OwnRules(), "a:Callback", _T0)
    for second in range(3):
        node.produce("alice", "c1", 10_000, _T0 + second * 100)
    node.exchange(None, None, _T0 + 250)
    node.produce("alice", "c1", 10_000, _T0 + 300)
    replayed = replay_events(node.events, _plan(_quota("producer_byte_rate", 1000.0)))
    assert {"callback", "tags"} <= {event["kind"] for event in node.events}
    assert replayed.decisions[:, layout.BYTE_MS].tolist() == [0, 9_900, 19_800, 29_700]


def test_what_was_recorded_stands_beside():
    """Throttles of the quota in force are tallied next to those of a plan without it."""
    node = RecordingNode()
    node.start(_T0, records=(_quota("producer_byte_rate", 1000.0),))
    for second in range(3):
        node.produce("alice", "c1", 10_000, _T0 + second * 100)
    result = _result(replay_events(node.events, _plan()), "Produce")
    assert result["throttled_requests"] == 0
    assert (result["recorded_throttled_requests"], result["recorded_longest_throttle_ms"]) == (2, 19_800)
    assert result["recorded_delayed_amount"] == 20_000
    assert result["different_decisions"] == 2


def test_a_start_empties_the_sensors():
    """What a node used before its restart does not count after it."""
    node = _free_node()
    node.produce("alice", "c1", 20_000, _T0)
    node.start(_T0 + 10)
    node.produce("alice", "c1", 5_000, _T0 + 20)
    replayed = replay_events(node.events, _plan(_quota("producer_byte_rate", 1000.0)))
    assert replayed.decisions[:, layout.BYTE_MS].tolist() == [10_000, 0]


def _reasons(replayed, column=layout.BYTE_REASON):
    return [layout.REASON_NAMES[reason] for reason in replayed.decisions[:, column].tolist()]


def test_after_a_gap_a_rate_is_known_when_all_that_it_holds_is():
    """Its samples are known from the first record after a pause of a window; exact when the others have expired."""
    node = _free_node()
    node.produce("alice", "c1", 20_000, _T0)
    node.gap(_T0 + 10)
    for ms in (20, 900, 2000, 12_999, 13_000):
        node.produce("alice", "c1", 6_000, _T0 + ms)
    replayed = replay_events(node.events, _plan(_quota("producer_byte_rate", 1000.0)))
    assert _reasons(replayed) == ["", *["gap"] * 4, ""]
    result = _result(replayed, "Produce")
    approximate = [result[f"approximate_{name}"] for name in ("requests", "after_gap", "missing_rows")]
    assert (result["requests"], approximate) == (6, [4, 4, 0])
    assert (result["different_decisions"], result["approximate_different_decisions"]) == (2, 4)


def test_who_never_pauses_stays_approximate_after_a_gap():
    """When its samples begin depends for ever on what was lost, unless it is far below its bound."""
    node = _free_node()
    node.gap(_T0)
    for number in range(300):
        node.produce("alice", "c1", 5_000, _T0 + number * 100)
        node.produce("bob", "c1", 1, _T0 + number * 100)
    quotas = (_quota("producer_byte_rate", 1000.0), _quota("producer_byte_rate", 1000.0, user="bob"))
    reasons = _reasons(replay_events(node.events, _plan(*quotas)))
    assert reasons[0::2] == ["gap"] * 300
    assert reasons[1::2] == ["gap"] * 120 + [""] * 180


def test_a_bucket_is_known_again_after_an_hour_without_a_use():
    """Its debt may be of any size, until a sweep has forgotten it (B§1.2)."""
    node = _free_node()
    node.gap(_T0)
    for ms in (0, 60_000, 60_000 + _HOUR_MS + 1):
        node.expire(_T0 + ms)
        node.mutate("alice", "c1", 1, _T0 + ms)
        node.other("alice", "c1", _T0 + ms, api_key=19)
    replayed = replay_events(node.events, _plan(_quota("controller_mutation_rate", 1.0)))
    assert _reasons(replayed) == ["gap"] * 4 + [""] * 2


def test_a_fetch_that_may_have_been_throttled_leaves_unknown_bytes():
    """Its bytes were taken back, or not: its own sensor is known again twelve windows later, whatever the other is."""
    node = _free_node()
    for ms in (0, 1000, 2500, 14_400, 26_400):
        if ms == 1000:
            node.gap(_T0 + ms)
        node.fetch("alice", "c1", 8_000, _T0 + ms, handler_ns=50_000_000)
    quotas = _quota("consumer_byte_rate", 1000.0), _quota("request_percentage", 0.4)
    replayed = replay_events(node.events, _plan(*quotas))
    assert _reasons(replayed) == ["", "gap", "gap", "gap", ""]
    assert _reasons(replayed, layout.REQUEST_REASON) == ["", "gap", "gap", "", ""]


def test_a_request_after_a_gap_may_have_asked_for_permits_in_it():
    """What it was told then is not known; of requests that ask for none, or under no such quota, it is."""
    node = _free_node()
    node.gap(_T0)
    for api_key in (19, 3):
        node.other("alice", "c1", _T0 + 1, api_key=api_key)
    quota = _quota("controller_mutation_rate", 1.0)
    assert _reasons(replay_events(node.events, _plan(quota))) == ["gap", ""]
    assert _reasons(replay_events(node.events, _plan())) == ["", ""]


def test_where_seq_jumps_without_a_start_rows_are_missing():
    """A file is not there: decisions are approximate; what a start or a gap explains is no such hole."""
    node = _free_node()
    node.produce("alice", "c1", 6_000, _T0)
    node.produce("alice", "c1", 6_000, _T0 + 1)
    node.produce("alice", "c1", 6_000, _T0 + 2)
    quota = _plan(_quota("producer_byte_rate", 1000.0))
    assert _reasons(replay_events(node.events, quota)) == [""] * 3
    assert _reasons(replay_events([*node.events[:-2], node.events[-1]], quota)) == ["", "missing rows"]
    other = RecordingNode(first_seq=1000)
    other.start(_T0 + 5)
    other.produce("alice", "c1", 6_000, _T0 + 6)
    assert _reasons(replay_events([*node.events, *other.events], quota)) == [""] * 4


def test_imported_rows_are_never_exact_where_there_is_a_limit():
    """Their times are estimates, and the holes in their `seq` mean nothing."""
    node = _free_node()
    for ms in (0, 5, 60_000):
        node.produce("alice", "c1", 6_000, _T0 + ms)
        node.produce("bob", "c1", 6_000, _T0 + ms)
    for place, event in enumerate(node.events):
        event["seq"] = event["ts_ms"] * 1000 * SEQ_PER_US + place
    replayed = replay_events(node.events, _plan(_quota("producer_byte_rate", 1000.0)))
    assert _reasons(replayed) == ["imported", ""] * 3


@pytest.mark.parametrize("is_in_force", [True, False])
def test_a_cluster_wide_quota_is_never_exact(is_in_force):
    """The record lacks the usage of other brokers and processes; other quotas stay exact."""
    limits = tuple(_quota("producer_byte_rate", 1e6, user) for user in ("alice", "bob"))
    wide = QuotaRecord(entity=(("user", "alice"),), key=CLUSTER_WIDE, value=1.0)
    node = RecordingNode()
    node.start(_T0, records=(*limits, wide))
    for user in ("alice", "bob", "carol"):
        node.produce(user, "c1", 100, _T0 + 10)
    node.produce("alice", "c1", 100, _T0 + 60_000)
    node.quota(replace(wide, value=None), _T0 + 60_001)
    for now_ms in (_T0 + 60_002, _T0 + 90_000):
        node.produce("alice", "c1", 100, now_ms)
    replayed = replay_events(node.events, in_force_plan() if is_in_force else _plan(*limits))
    assert _reasons(replayed) == ["cluster-wide", "", "", "cluster-wide", "cluster-wide", ""]
    assert sum(result["approximate_cluster_wide"] for result in replayed.results) == 3
    forecast = forecast_events(node.events, replace(_plan(*limits), is_closed=True))
    assert sum(result["approximate_cluster_wide"] for result in forecast.results) == 3


@pytest.mark.parametrize("is_in_force", [True, False])
def test_shared_mutations_are_never_exact(is_in_force):
    """The record lacks what other gateways have charged; other quotas stay exact, and so do earlier rows."""
    limits = _quota("controller_mutation_rate", 1.0), _quota("producer_byte_rate", 1e6)
    node = RecordingNode()
    node.start(_T0, records=limits)

    def create(user, now_ms):
        node.mutate(user, "c1", 3, now_ms)
        node.other(user, "c1", now_ms, api_key=19)

    create("alice", _T0 + 10)
    node.quota(QuotaRecord(entity=(), key=MUTATIONS_SHARED, value=1.0), _T0 + 20)
    for user in ("alice", "bob"):
        create(user, _T0 + 30)
    node.produce("alice", "c1", 100, _T0 + 40)
    node.start(_T0 + 50, records=limits)
    create("alice", _T0 + 60)
    replayed = replay_events(node.events, in_force_plan() if is_in_force else _plan(*limits))
    assert _reasons(replayed) == [*[""] * 2, *["cluster-wide"] * 2, *[""] * 5]
    assert sum(result["approximate_cluster_wide"] for result in replayed.results) == 1


def test_cluster_wide_request_time_is_not_exact():
    """The request quota is cluster-wide, too; permits are not."""
    node = RecordingNode()
    wide = QuotaRecord(entity=(), key=CLUSTER_WIDE, value=1.0)
    node.start(_T0, records=(_quota("request_percentage", 50.0), wide))
    node.produce("alice", "c1", 100, _T0 + 10)
    node.start(_T0 + 20)
    node.produce("alice", "c1", 100, _T0 + 30)
    replayed = replay_events(node.events, _plan(_quota("request_percentage", 50.0)))
    assert _reasons(replayed, layout.REQUEST_REASON) == ["cluster-wide", ""]


def test_before_the_first_start_the_quotas_in_force_are_unknown():
    """A record whose beginning was deleted is approximate until a node starts."""
    node = _free_node()
    node.produce("alice", "c1", 100, _T0)
    node.start(_T0 + 10)
    node.produce("alice", "c1", 100, _T0 + 20)
    replayed = replay_events(node.events[5:], in_force_plan())
    assert _reasons(replayed) == ["cold start", ""]
    assert _reasons(replayed, layout.REQUEST_REASON) == ["cold start", ""]


@pytest.mark.parametrize(("idle_ms", "expected_ms"), [(_HOUR_MS, 30_000), (_HOUR_MS + 1, 0)])
def test_a_sweep_forgets_what_idled_for_more_than_an_hour(idle_ms, expected_ms):
    """A bucket far below zero is full again when its sensor was forgotten, else it is still below (B§3.5)."""
    node = _free_node()
    for permits in (1, 3_640):
        node.mutate("alice", "c1", permits, _T0)
    node.other("alice", "c1", _T0)
    node.expire(_T0 + idle_ms)
    node.mutate("alice", "c1", 1, _T0 + idle_ms)
    node.other("alice", "c1", _T0 + idle_ms)
    replayed = replay_events(node.events, _plan(_quota("controller_mutation_rate", 1.0)))
    assert replayed.decisions[-1, layout.BYTE_MS] == expected_ms


def test_a_fetch_above_the_cap_is_replayed_at_the_cap_and_marked():
    """A consumer under 1 kB/s is given at most 10 kB of records at a time (B§3.7); that answer itself is throttled.

    It is charged for what is beside the records, too (B§6.3).
    """
    node = _free_node()
    node.fetch("alice", "c1", 50_000, _T0)
    replayed = replay_events(node.events, _plan(_quota("consumer_byte_rate", 1000.0)))
    result = _result(replayed, "Fetch")
    assert (result["amount"], result["capped_fetches"]) == (10_049, 1)
    assert replayed.decisions[0, layout.IS_CAPPED] == 1
    assert replayed.decisions[0, layout.BYTE_MS] == 49
    assert _reasons(replayed) == ["capped fetch"]


@pytest.mark.parametrize(("samples", "bound", "throttle_ms"), [(11, 1000.0, 49), (1, 1.0, 48_999)])
def test_engine_port_and_kernel_throttle_the_first_answer_at_the_cap(samples, bound, throttle_ms):
    """The cap is on records, the charge on the whole answer (B§6.3): the decisions of all three, and a plan's."""
    window, quota = QuotaWindow(samples=samples), _quota("consumer_byte_rate", bound)
    node = RecordingNode(fetches_are_capped=True)
    node.start(_T0, window=window, records=(quota,))
    assert node.fetch("alice", "c1", 50_000, _T0)["fetch_throttle_ms"] == throttle_ms
    assert ported_differences(node.events) == []
    assert replay_events(node.events, in_force_plan()).decisions[0, layout.BYTE_MS] == throttle_ms
    plan = Plan(name="p", records=(quota,), windows=Windows(rate=window))
    free = _free_node()
    free.fetch("alice", "c1", 50_000, _T0)
    assert replay_events(free.events, plan).decisions[0, layout.BYTE_MS] == throttle_ms


def test_the_least_answer_to_a_fetch_is_no_larger():
    """One partition of a topic with the shortest name, in the version that says least."""
    partition = {
        "partition_index": 0, "error_code": 0, "high_watermark": 0, "last_stable_offset": 0,
        "aborted_transactions": [], "records": b"",
    }  # fmt: skip
    topic = {"topic": "t", "partitions": [partition]}
    answer = encode_response(FETCH, 4, 0, {"throttle_time_ms": 0, "responses": [topic]})
    assert 4 + answer.body_size == FETCH_ANSWER_BYTES


def test_a_request_throttle_takes_fetch_bytes_back_without_a_fetch_quota():
    """Taking back is not guarded: the credit shows when a fetch quota is set within the window (B§6.3)."""
    node = RecordingNode()
    node.start(_T0, records=(_quota("request_percentage", 0.1),))
    node.other("alice", "c1", _T0, handler_ns=2_000_000_000)
    node.fetch("alice", "c1", 30_000, _T0 + 1)
    node.quota(QuotaRecord(entity=(("client-id", "c1"),), key="consumer_byte_rate", value=1000.0), _T0 + 2)
    node.fetch("bob", "c1", 35_000, _T0 + 3)
    replayed = replay_events(node.events, in_force_plan())
    assert node.events[-1]["fetch_throttle_ms"] == 0
    assert replayed.decisions[-1, layout.BYTE_MS] == 0


def test_refused_permits_are_tallied():
    """A strict request is refused while the bucket is below zero; its throttle counts for the request."""
    node = _free_node()
    for permits in (200, 5, 6):
        node.mutate("alice", "c1", permits, _T0)
    node.other("alice", "c1", _T0 + 1000, api_key=19)
    replayed = replay_events(node.events, _plan(_quota("controller_mutation_rate", 10.0)))
    result = _result(replayed, "ControllerMutation")
    assert replayed.decisions[:, layout.IS_REJECTED].tolist() == [0, 1, 1, 0]
    assert (result["amount"], result["rejected_mutations"]) == (211, 11)
    assert (result["throttled_requests"], result["throttle_ms"]) == (1, 8000)


def test_two_connections_keep_their_quota_objects_apart():
    """A throttle belongs to the request of the connection that asked for the permits."""
    node = _free_node()
    node.mutate("alice", "c1", 200, _T0, connection_id=1)
    node.mutate("alice", "c1", 5, _T0, connection_id=2)
    node.other("alice", "c1", _T0, connection_id=1)
    node.other("alice", "c1", _T0, connection_id=2)
    node.other("alice", "c1", _T0, connection_id=2)
    replayed = replay_events(node.events, _plan(_quota("controller_mutation_rate", 10.0)))
    assert replayed.decisions[2:, layout.BYTE_MS].tolist() == [0, 9000, 0]


def _window_setting(events):
    """Return where a window setting of the start is that others follow."""
    return next(
        place for place, event in enumerate(events) if event["quota_key"] == "quota.window.size.seconds"
    )


def _snapshot_begins(events):
    """Return where a snapshot begins."""
    return next(place for place, event in enumerate(events) if event["kind"] == "snapshot")


@pytest.mark.parametrize(("states_all", "expected"), [(True, 0), (False, 10_000)])
def test_after_a_gap_only_what_is_stated_anew_is_in_force(states_all, expected):
    """A quota that was removed among the lost events is gone; where nothing is stated, all stays as it was."""
    node = RecordingNode()
    node.start(_T0, records=(_quota("producer_byte_rate", 1000.0),))
    node.gap(_T0 + 10, lost_events=2)
    if states_all:
        node.quota(QuotaRecord(entity=(), key="quota.window.num", value=11.0), _T0 + 10)
        node.quota(_quota("producer_byte_rate", 1000.0, user="bob"), _T0 + 10)
    node.produce("alice", "c1", 20_000, _T0 + 12_000)
    replayed = replay_events(node.events, in_force_plan())
    assert replayed.decisions[0, layout.BYTE_MS] == expected


@pytest.mark.parametrize("lost", [_window_setting, _snapshot_begins], ids=["a setting", "the beginning"])
def test_window_settings_behind_a_damaged_row_state_nothing(lost):
    """Those that go on are of a start, or of a snapshot, whose quotas are stated later: nothing is exact."""
    node = RecordingNode()
    node.start(
        _T0, window=QuotaWindow(samples=9, window_ms=2000), records=(_quota("producer_byte_rate", 10.0),)
    )
    node.snapshot(_T0 + 10, steps=1)
    node.exchange(OwnRules(), "own", _T0 + 20)  # sensors are known from here on
    node.produce("alice", "c1", 20_000, _T0 + 12_000)
    place = lost(node.events)
    gone = node.events[place]
    node.events[place] = empty_event("gap") | {
        **{name: gone[name] for name in ("node_id", "seq", "ts_ms")},
        "lost_events": 1,
    }
    assert node.events[place + 1]["quota_key"].endswith(("window.num", "window.size.seconds"))
    replayed = replay_events(node.events, in_force_plan())
    assert _reasons(replayed) == ["gap"]
    assert replayed.results[0]["different_decisions"] == 0


@pytest.mark.parametrize("asked_again", [False, True])
@pytest.mark.parametrize("before", ["snapshot", "sensors"])
def test_a_request_that_ends_after_a_snapshot_may_have_asked_for_permits_before_it(before, asked_again):
    """Its throttle is not known, whether or not it asks again when the tokens are; that of the next request is."""
    node = RecordingNode()
    node.start(0, records=(_quota("controller_mutation_rate", 1.0),))
    node.mutate("alice", "c1", 200, 1_000_000, strict=False, connection_id=9)
    node.other("alice", "c1", 1_000_000, connection_id=9, api_key=19)
    node.events.clear()
    if before == "sensors":
        node.snapshot(1_000_000, steps=1)
    node.mutate("alice", "c1", 1, 1_000_000, strict=False, connection_id=1)
    node.snapshot(1_000_000)
    if asked_again:
        node.mutate("alice", "c1", 0, 1_400_000, strict=False, connection_id=1)
    node.other("alice", "c1", 1_000_000, connection_id=1, api_key=19)
    node.mutate("alice", "c1", 50, 1_000_000, strict=False, connection_id=2)
    node.other("alice", "c1", 1_000_000, connection_id=2, api_key=19)
    decided = [event["kind"] for event in node.events if event["kind"] in ("mutation", "request")]
    reasons = zip(decided, _reasons(replay_events(node.events, in_force_plan())), strict=True)
    assert [reason for kind, reason in reasons if kind == "request"] == ["cold start", ""]


@pytest.mark.parametrize("key", ["controller_mutation_rate", "producer_byte_rate", "consumer_byte_rate"])
def test_rows_before_a_snapshot_has_stated_all_quotas_leave_nothing_in_sensors(key):
    """By the quotas that it has come to they are charged to a sensor that the node does not have until later."""
    node = RecordingNode()
    both = QuotaRecord(entity=(("user", "alice"), ("client-id", "c1")), key=key, value=1e9)
    node.start(_T0, records=(_quota(key, 1.0, user=None), both))

    def use(now_ms):
        if key == "controller_mutation_rate":
            node.mutate("alice", "c1", 100, now_ms)
            node.other("alice", "c1", now_ms, api_key=19)
        elif key == "producer_byte_rate":
            node.produce("alice", "c1", 100, now_ms)
        else:
            node.fetch("alice", "c1", 100, now_ms)

    node.events.clear()
    node.snapshot(_T0, steps=2)
    use(_T0)
    node.snapshot(_T0)
    node.quota(QuotaRecord(entity=both.entity, key=key, value=None), _T0 + 1)
    for ms in (1, 2):
        use(_T0 + ms)
    replayed = replay_events(node.events, in_force_plan())
    rows = 2 if key == "controller_mutation_rate" else 1
    assert _reasons(replayed) == ["cold start"] * rows + [""] * (2 * rows)
    other = [event["seq"] for event, _ in differences(replayed, replayed.events)]
    assert [seq for seq in other if seq >= replayed.events[rows]["seq"]] == []


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_permits_asked_for_while_quotas_are_stated_are_not_known_when_the_snapshot_ends(steps):
    """Be it that windows are stated since, or that the quotas so far have none for the client. The next one's are."""
    node = RecordingNode()
    bob = _quota("controller_mutation_rate", 5.0, user="bob")
    window = QuotaWindow(samples=3, window_ms=2000)
    node.start(_T0, controller_window=window, records=(bob, _quota("controller_mutation_rate", 1.0)))
    node.mutate("alice", "c1", 200, _T0, strict=False, connection_id=9)
    node.other("alice", "c1", _T0, connection_id=9, api_key=19)
    node.events.clear()
    node.snapshot(_T0, steps=steps)
    node.mutate("alice", "c1", 1, _T0, strict=False, connection_id=1)
    node.snapshot(_T0)
    node.other("alice", "c1", _T0, connection_id=1, api_key=19)
    node.mutate("alice", "c1", 0, _T0, strict=False, connection_id=2)
    node.other("alice", "c1", _T0, connection_id=2, api_key=19)
    assert _reasons(replay_events(node.events, in_force_plan())) == ["cold start", "cold start", "", ""]


def _limit(replayed, quota_type="Produce"):
    result = _result(replayed, quota_type)
    return result["bound"], result["bound_of"], result["bound_changed"]


def test_the_limit_is_that_of_whose_quota_it_is():
    """A name, or the default for all of them; none where nobody limits."""
    node = _free_node()
    node.produce("alice", "c1", 10_000, _T0)
    both = (("client-id", None), ("user", "alice"))
    pair = QuotaRecord(entity=both, key="producer_byte_rate", value=5.0)
    assert _limit(replay_events(node.events, _plan(_quota("producer_byte_rate", 7.0)))) == (
        7.0,
        "user",
        False,
    )
    by_default = _plan(_quota("producer_byte_rate", 7.0, user=None))
    assert _limit(replay_events(node.events, by_default)) == (7.0, "default user", False)
    assert _limit(replay_events(node.events, _plan(pair))) == (5.0, "user and default client-id", False)
    assert _limit(replay_events(node.events, _plan())) == (None, None, False)


def test_a_limit_that_changed_is_none_of_those_that_were_in_force():
    """Not the last: what was throttled under the first would stand beside it. Unused ones do not count."""
    node = _free_node()
    node.quota(_quota("producer_byte_rate", 1000.0), _T0)
    node.produce("alice", "c1", 50_000, _T0)
    node.quota(_quota("producer_byte_rate", 10.0**12), _T0 + 50)
    assert _limit(replay_events(node.events, in_force_plan())) == (1000.0, "user", False)
    node.produce("alice", "c1", 10_000, _T0 + 100)
    assert _limit(replay_events(node.events, in_force_plan())) == (None, None, True)


def test_a_limit_that_is_stated_again_has_not_changed():
    """At a start, and by a snapshot, while it is not known what is in force."""
    node = _free_node()
    node.quota(_quota("producer_byte_rate", 1000.0), _T0)
    node.produce("alice", "c1", 10, _T0)
    node.start(_T0 + 1000, records=[_quota("producer_byte_rate", 1000.0)])
    node.produce("alice", "c1", 10, _T0 + 1000)
    assert _limit(replay_events(node.events, in_force_plan())) == (1000.0, "user", False)
    node.events.clear()
    node.produce("alice", "c1", 10, _T0 + 1100)
    node.snapshot(_T0 + 1200)
    node.produce("alice", "c1", 10, _T0 + 1300)
    replayed = replay_events(node.events, in_force_plan())
    replayed.results = [result for result in replayed.results if result["entity_user"] == "alice"]
    assert _limit(replayed) == (1000.0, "user", False)


def _imported_node():
    """Return a node whose record begins while it runs, as that of an import does: which quotas it has is not known."""
    node = _free_node()
    node.events.clear()
    return node


def test_a_limit_that_changes_in_a_record_without_a_start_has_changed():
    """All limits of an imported record are guesses; the first of them does not stay for ever."""
    node = _imported_node()
    node.quota(_quota("producer_byte_rate", 8_000.0), _T0)
    node.produce("alice", "c1", 10, _T0)
    assert _limit(replay_events(node.events, in_force_plan())) == (8_000.0, "user", False)
    node.quota(_quota("producer_byte_rate", 3_000.0), _T0 + 50)
    node.produce("alice", "c1", 10, _T0 + 100)
    assert _limit(replay_events(node.events, in_force_plan())) == (None, None, True)

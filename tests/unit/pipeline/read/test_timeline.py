"""Control events, in order and checked."""

import pytest
from tests.replaying.kernel import sweeps_of
from tests.replaying.node import RecordingNode

from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.layout import AFTER_GAP, COLD_START, MISSING_ROWS
from tidegate.pipeline.read.control_events import CONTROL_KINDS, NEXT_TS_MS, control_events
from tidegate.pipeline.read.timeline import Run, callback_in, timelines
from tidegate.quota.admin.definitions import QuotaRecord
from tidegate.quota.measure.window import QuotaWindow
from tidegate.usage.columns import empty_event

_ALICE = QuotaRecord(entity=(("client-id", None), ("user", "a b%")), key="producer_byte_rate", value=10.0)


def _quota(**columns):
    return empty_event("quota") | {"node_id": 7, "seq": 3} | columns


def test_steps_come_in_order_of_seq():
    """Start, settings, definitions and gaps are steps; sweeps stand apart."""
    node = RecordingNode()
    node.start(1000, window=QuotaWindow(samples=5, window_ms=2000), records=(_ALICE,))
    node.expire(2000)
    node.gap(3000)
    node.quota(QuotaRecord(entity=_ALICE.entity, key=_ALICE.key, value=None), 4000)
    control = [event for event in reversed(node.events) if event["kind"] in CONTROL_KINDS]
    node.expire(5000)
    runs = [Run(1, 1, 7, 1000, False), Run(1, 9, 11, 3000, False)]
    timeline = timelines(control_events(control), runs, sweeps_of(node.events[::-1]))[1]
    assert [step.kind for step in timeline.steps] == ["start", *["quota"] * 5, "gap", "quota"]
    assert timeline.steps[1].setting == ("quota.window.num", 5)
    assert timeline.steps[5].record == _ALICE
    assert timeline.steps[7].record.value is None
    assert timeline.sweeps.tolist() == [[7, 2000], [11, 5000]]


def test_each_node_has_its_own():
    """Events of two nodes make two timelines."""
    nodes = [RecordingNode(1), RecordingNode(2)]
    for node in nodes:
        node.expire(1)
    events = [*nodes[1].events, *nodes[0].events]
    found = timelines(sweeps=sweeps_of(events))
    assert {node_id: each.sweeps.tolist() for node_id, each in found.items()} == {1: [[1, 1]], 2: [[1, 1]]}
    assert all(each.sweeps.flags.c_contiguous for each in found.values())


def _breaks(control, *runs):
    """Return kind, seq, time and reason of each break of a node."""
    timeline = timelines(control_events(control), [Run(1, *run, False) for run in runs])[1]
    return [(step.kind, step.seq, step.ts_ms, step.reason) for step in timeline.steps if step.reason]


def _gap(seq, lost_events):
    return empty_event("gap") | {"node_id": 1, "seq": seq, "ts_ms": 50, "lost_events": lost_events}


def test_a_hole_is_a_break_unless_something_explains_it():
    """A start does, a gap before or behind it does as far as it goes; the first row of all must be a start."""
    start = empty_event("start") | {"node_id": 1, "seq": 1, "ts_ms": 0}
    runs = (1, 5, 0), (9, 12, 90)
    assert _breaks([], (1, 5, 10)) == [("break", 1, 10, COLD_START)]
    assert _breaks([start], (1, 5, 0), (6, 9, 60)) == []
    assert _breaks([start], *runs) == [("break", 9, 90, MISSING_ROWS)]
    assert _breaks([start, start | {"seq": 9}], *runs) == []
    assert _breaks([start, _gap(9, 3) | {NEXT_TS_MS: 91}], *runs) == [("gap", 9, 91, AFTER_GAP)]
    assert _breaks([start, _gap(5, 4)], *runs) == [("gap", 5, 90, AFTER_GAP)]
    assert _breaks([start, _gap(5, 3)], *runs)[1:] == [("break", 9, 90, MISSING_ROWS)]


def test_a_gap_behind_the_start_is_a_cold_start():
    """Right behind it, as an import has it; with any row in between, read here or not, the node has lost it."""
    start = empty_event("start") | {"node_id": 1, "seq": 1, "ts_ms": 0}
    for seq, reason in ((2, COLD_START), (3, AFTER_GAP)):
        assert _breaks([start, _gap(seq, None)], (1, 4, 0)) == [("gap", seq, 50, reason)]


def test_what_is_there_twice_is_named():
    """Ranges that overlap would be charged twice."""
    reason = r"^seq 4 to 5 of node 1 occur twice$"
    with pytest.raises(UsageFilesError, match=reason):
        _breaks([], (1, 5, 0), (4, 9, 0))


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (
            _quota(quota_key="nonsense"),
            "quota_key must be a quota type of Kafka or a setting, got 'nonsense'",
        ),
        (_quota(quota_key=None), "got None"),
        (_quota(quota_key="quota.window.num", quota_value=0.0), "number of samples must be from 1 to"),
        (_quota(quota_key="quota.window.num", quota_value=1e9), "number of samples must be from 1 to"),
        (_quota(quota_key="quota.window.num", quota_value=1.5), "must be a whole number, got 1.5"),
        (_quota(quota_key="quota.window.num", quota_value=None), "must be a whole number, got None"),
        (_quota(quota_key="quota.window.num", quota_value=float("nan")), "must be a whole number, got nan"),
        (_quota(quota_key="producer_byte_rate", quota_value=1.0), "needs a user, a client id or an ip"),
        (
            _quota(quota_key="producer_byte_rate", quota_user="%zz", quota_value=1.0),
            "cannot decode '%zz'",
        ),
    ],
)
def test_senseless_events_are_named(event, reason):
    """A row that no engine wrote is named by node and seq."""
    with pytest.raises(UsageFilesError, match=r"^quota event seq=3 of node 7: ") as caught:
        timelines(control_events([event]))
    assert reason in str(caught.value)


@pytest.mark.parametrize("value", [-1.0, 1.5, 1e300, float("nan"), float("inf")])
def test_settings_beyond_kafka_are_whole_numbers(value):
    """They are steps like quotas, and need no entity."""
    key = "tidegate.quota.debt.max.seconds"
    with pytest.raises(UsageFilesError, match=rf"{key} must be a whole number from 0 to 2147483647, got"):
        timelines(control_events([_quota(quota_key=key, quota_value=value)]))
    steps = timelines(control_events([_quota(quota_key=key, quota_value=7.0)]))[7].steps
    assert [step.record for step in steps] == [QuotaRecord(entity=(), key=key, value=7.0)]


def _said(seq, tags='{"group":"etl"}', limit=1.0, kind="tags", **columns):
    names = {"quota_key": "producer_byte_rate", "user": "alice", "client_id": "c1", "callback": "a:B"}
    said = {"tags": tags, "quota_value": limit} if kind == "tags" else {}
    return empty_event(kind) | {"node_id": 1, "seq": seq, "ts_ms": 0} | names | said | columns


def test_answers_of_a_callback_are_steps_where_they_are_news():
    """Whoever is said to share a limit, or has another one; after a break, and another callback, all over again."""
    events = [
        empty_event("start") | {"node_id": 1, "seq": 1, "ts_ms": 0},
        _said(2, kind="callback"),
        _said(3),
        _said(4),
        _said(5, limit=None),
        _said(6, client_id="c2", limit=None),
        _said(7, tags='{"x":"etl"}', limit=None),
        _gap(8, 1),
        _said(9, kind="callback"),
        _said(10, tags='{"user":"a","client-id":""}'),
        _said(11, kind="callback"),
        _said(12, tags='{"user":"%"}'),
    ]
    steps = timelines(control_events(events))[1].steps
    assert [step.seq for step in steps] == [1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12]
    assert [step.is_exchange for step in steps if step.kind == "callback"] == [True, False, True]
    answers = [step.answer for step in steps if step.answer is not None]
    assert [answer.name for answer in answers] == ["etl"] * 4 + ["a:", "%"]
    assert [answer.pair for answer in answers] == [None] * 4 + [("a", ""), None]
    assert callback_in(timelines(control_events(events))) == "client.quota.callback.class=a:B"


@pytest.mark.parametrize("tags", [None, "", "7", "[]", '{"a":1}', "{", "[" * 100_000])
def test_senseless_answers_are_named(tags):
    """No JSON, or none of names with values."""
    with pytest.raises(UsageFilesError, match=r"^tags event seq=3 of node 1: tags are not "):
        timelines(control_events([_said(3, tags=tags)]))
    with pytest.raises(UsageFilesError, match="quota_key must be a quota type of Kafka, got 'x'"):
        timelines(control_events([_said(3, quota_key="x")]))

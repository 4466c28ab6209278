"""Control events as arrays: what they say comes back, and a million of them is small."""

import pickle
from random import Random

import pytest

from tidegate.pipeline.read.steps import (
    CONTROL_COLUMNS,
    NO_EVENTS,
    Step,
    Steps,
    control_events,
    events_together,
)
from tidegate.pipeline.read.timeline import timelines
from tidegate.quota.admin.definitions import QuotaRecord
from tidegate.usage.columns import empty_event

_BYTES_OF_A_STEP = 40


def _quotas(count, *, seed=1):
    """Changes by a controller, now and then a removal, a setting or a start; names repeat."""
    rng = Random(seed)
    for seq in range(1, count + 1):
        event = empty_event("start" if seq % 97 == 0 else "quota") | {
            "node_id": 3,
            "seq": seq,
            "ts_ms": seq * 9,
        }
        if event["kind"] == "quota":
            value = rng.choice([None, 0.5, float("inf"), rng.uniform(1, 1e9)])
            event |= {"quota_user": f"u{rng.randrange(5)}", "quota_key": "producer_byte_rate"}
            event["quota_value"] = value
            if seq % 31 == 0:
                event |= {"quota_user": None, "quota_key": "quota.window.num"}
                event["quota_value"] = float(rng.randrange(2, 9))
        yield {name: event[name] for name in CONTROL_COLUMNS}


def _said(event):
    """Return the step that an event is."""
    step = {"seq": event["seq"], "ts_ms": event["ts_ms"], "kind": event["kind"]}
    if event["kind"] == "start":
        return Step(**step, states_all=True)
    if event["quota_key"] == "quota.window.num":
        return Step(**step, setting=(event["quota_key"], int(event["quota_value"])))
    entity = (("user", event["quota_user"]),)
    record = QuotaRecord(entity=entity, key=event["quota_key"], value=event["quota_value"])
    return Step(**step, record=record)


@pytest.mark.parametrize("rows", [7, 90, 500])
def test_steps_say_what_the_events_say(rows):
    """Whatever the order in which they come, and however many together."""
    events = list(_quotas(500))
    expected = [_said(event) for event in events]
    Random(2).shuffle(events)
    parts = [control_events(events[first : first + rows]) for first in range(0, 500, rows)]
    together = events_together([*parts[:3], NO_EVENTS, *parts[3:]])
    found = Steps.of_events(together)
    assert list(found) == [3]
    assert list(found[3]) == expected
    assert list(found[3].after(490)) == expected[490:]
    assert found[3][7:9][1] == expected[8]
    assert found[3][-1] == expected[-1]
    assert found[3].at_seq(97) == expected[96]
    assert found[3].at_seq(501) is None
    starts = found[3].where(lambda step: step.kind == "start")
    assert list(found[3].only(starts)) == [step for step in expected if step.kind == "start"]
    assert [event["seq"] for event in together.of_kinds("start")] == [97, 194, 291, 388, 485]


def test_a_break_is_before_the_row_where_it_shows():
    """Whichever of the two was there first."""
    row, hole = Step(seq=5, ts_ms=0, kind="quota"), Step(seq=5, ts_ms=0, kind="break")
    later = Step(seq=9, ts_ms=0, kind="start")
    assert list(Steps.of([later, row]).replaced((), [hole])) == [hole, row, later]
    assert list(Steps.of([later, hole]).replaced((), [row])) == [hole, row, later]
    assert list(Steps.of([row, later]).replaced([0], [hole])) == [hole, later]


def test_a_controller_that_never_rests_takes_little():
    """What goes to the tasks of a node, for each change of a quota; long names are there once."""
    rows = [event | {"quota_user": "u" * 30_000} for event in _quotas(20_000) if event["quota_user"]]
    events = control_events(rows)
    (timeline,) = timelines(events).values()
    assert len(timeline.steps) == len(rows)
    assert len(pickle.dumps(timeline)) < _BYTES_OF_A_STEP * len(rows) + 200_000
    assert len(pickle.dumps(events)) < _BYTES_OF_A_STEP * len(rows) + 200_000
    assert events.size_bytes < _BYTES_OF_A_STEP * len(rows)


def test_names_count_as_long_as_they_are():
    """Of events that all differ each is held."""
    rows = [event | {"quota_user": f"u{event['seq']}" + "u" * 30_000} for event in _quotas(60)]
    assert control_events(rows).size_bytes > 60 * 30_000


def test_no_events():
    """Are no steps."""
    assert Steps.of_events(events_together([])) == {}
    assert timelines(control_events([])) == {}

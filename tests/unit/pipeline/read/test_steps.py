"""Steps: what the events say comes back."""

from random import Random

import pytest
from tests.unit.pipeline.read.test_control_events import controller_events

from tidegate.pipeline.read.control_events import NO_EVENTS, control_events, events_together
from tidegate.pipeline.read.steps import Step, Steps
from tidegate.pipeline.read.timeline import timelines
from tidegate.quota.admin.definitions import QuotaRecord


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
    events = list(controller_events(500))
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


def test_no_events():
    """Are no steps."""
    assert Steps.of_events(events_together([])) == {}
    assert timelines(control_events([])) == {}

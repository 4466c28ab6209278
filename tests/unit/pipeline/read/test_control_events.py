"""Control events as arrays: a million of them is small."""

import pickle
from random import Random

from tidegate.pipeline.read.control_events import CONTROL_COLUMNS, control_events
from tidegate.pipeline.read.timeline import timelines
from tidegate.usage.columns import empty_event

_BYTES_OF_A_STEP = 40


def controller_events(count, *, seed=1):
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


def test_a_controller_that_never_rests_takes_little():
    """A task gets a few bytes for each change of a quota, and each long name once."""
    rows = [
        event | {"quota_user": "u" * 30_000} for event in controller_events(20_000) if event["quota_user"]
    ]
    events = control_events(rows)
    (timeline,) = timelines(events).values()
    assert len(timeline.steps) == len(rows)
    assert len(pickle.dumps(timeline)) < _BYTES_OF_A_STEP * len(rows) + 200_000
    assert len(pickle.dumps(events)) < _BYTES_OF_A_STEP * len(rows) + 200_000
    assert events.size_bytes < _BYTES_OF_A_STEP * len(rows)


def test_names_count_as_long_as_they_are():
    """Events that all differ are held one by one."""
    rows = [event | {"quota_user": f"u{event['seq']}" + "u" * 30_000} for event in controller_events(60)]
    assert control_events(rows).size_bytes > 60 * 30_000

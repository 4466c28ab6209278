"""States that wait for their sensors."""

import numpy as np

from tidegate.pipeline.layout import AFTER_GAP, EXACT, REASON, UNKNOWN_MS
from tidegate.pipeline.read.steps import SensorState
from tidegate.pipeline.replay.state.keys import SensorKeys
from tidegate.pipeline.replay.state.settings import SettingsBeyondKafka
from tidegate.pipeline.replay.state.stated import StatedSensors
from tidegate.pipeline.replay.state.tables import SensorTable
from tidegate.quota.measure.bucket_kernel import BUCKET_FLOATS, BUCKET_INTS
from tidegate.quota.measure.rate_kernel import FLOAT_SLOTS, INT_SLOTS

_TAGS = ("alice", "")
_TEXT = '{"quota_key":"producer_byte_rate","recorded_ms":0,"samples":[[7.0,-100,-50]],"current":0}'


def test_a_state_that_waits_is_not_known_after_a_gap() -> None:
    """What was recorded meanwhile is lost to it as to the sensors that are in use; what is stated again is known."""
    rates = SensorTable(floats=FLOAT_SLOTS + 12, ints=INT_SLOTS + 24)
    keys = SensorKeys()
    buckets = SensorTable(floats=BUCKET_FLOATS, ints=BUCKET_INTS)
    stated = StatedSensors(rates, buckets, SettingsBeyondKafka(), keys)
    state = SensorState("producer_byte_rate", _TAGS, 5000, _TEXT)
    stated.set_states([state], sweep=0)
    rates.make_unknown(AFTER_GAP, 6000)
    stated.lose(AFTER_GAP, 6000)
    key = keys.key(0, _TAGS)
    (number,) = rates.rows_for([key], np.array([1.0]))
    stated.note_used([key], np.array([number]))
    assert rates.use[number, [REASON, UNKNOWN_MS]].tolist() == [AFTER_GAP, 6000]
    assert rates.floats[number].any()
    stated.forget()
    for _ in range(2):
        stated.set_states([state._replace(tags=("bob", ""))], sweep=0)
    key = keys.key(0, ("bob", ""))
    (number,) = rates.rows_for([key], np.array([1.0]))
    stated.note_used([key], np.array([number]))
    assert rates.use[number, REASON] == EXACT

"""The decision of a row by itself: at the time that its caller says, against as many states as there are plans."""

import numpy as np
from tests.replaying.kernel import kernel_rows
from tests.replaying.node import RecordingNode

from tidegate.pipeline import layout
from tidegate.pipeline.read.timeline import empty_timeline
from tidegate.pipeline.replay.kernel.open_loop import driver_names
from tidegate.pipeline.replay.kernel.row_decision import Decided
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.replay.plan_replay import PlanReplay
from tidegate.quota.admin.definitions import QuotaRecord

_T0 = 1_700_000_000_000
_ALICE = [("alice", "c1")]


def _producing_rows(*times_ms):
    node = RecordingNode()
    for time_ms in times_ms:
        node.produce("alice", "c1", 10_000, time_ms)
    return kernel_rows(node.events, {("alice", "c1"): 0}.__getitem__)


def _state(rows, bound):
    """Return the state of a plan with one quota, its accounts opened and nothing charged yet."""
    record = QuotaRecord(entity=(("user", "alice"),), key="producer_byte_rate", value=bound)
    replay = PlanReplay(Plan(name="p", records=(record,)), names=_ALICE, timeline=empty_timeline())
    replay.replay(rows, np.zeros((0, layout.DECISIONS), np.int32))
    state = replay.state()
    state.rate_use[:, layout.READY] = -1
    state.rate_floats.fill(0.0)
    state.rate_ints.fill(0)
    return state


def test_a_row_is_decided_at_the_time_that_it_is_given():
    """Whoever waited comes later: the same rows, but the second only when the first one's throttle is over."""
    decide_row = driver_names()["decide_row"]
    rows = _producing_rows(_T0, _T0, _T0)
    as_recorded, later = _state(rows, 1000.0), _state(rows, 1000.0)
    assert [decide_row(as_recorded, rows, at, _T0).byte_ms for at in range(3)] == [0, 10_000, 20_000]
    assert [decide_row(later, rows, at, _T0 + at * 11_001).byte_ms for at in range(3)] == [0, 0, 0]


def test_several_plans_are_decided_in_one_pass():
    """A row is charged in each state by itself, and nothing is kept between two calls but in the states."""
    decide_row = driver_names()["decide_row"]
    rows = _producing_rows(_T0, _T0 + 100, _T0 + 200)
    states = [_state(rows, bound) for bound in (500.0, 1000.0, 1e9)]
    found = [[decide_row(state, rows, at, rows.ts_ms[at]).byte_ms for state in states] for at in range(3)]
    assert found == [[10_000, 0, 0], [29_900, 9_900, 0], [49_800, 19_800, 0]]


def test_what_is_decided_has_names():
    """Throttle times, then what came of it, then who is charged how much."""
    rows = _producing_rows(_T0)
    state = _state(rows, 500.0)
    account = state.account_of[layout.PRODUCE, 0]
    assert driver_names()["decide_row"](state, rows, 0, _T0) == Decided(
        byte_ms=10_000, request_ms=0, is_rejected=False, is_capped=False, account=account, amount=10_000,
        byte_reason=layout.EXACT, request_reason=layout.EXACT,
    )  # fmt: skip


def test_the_arrays_are_their_callers():
    """Compiled code does not count who uses an array: after many calls each has as many users as before."""
    import gc
    import sys

    rows = _producing_rows(_T0)
    state = _state(rows, 500.0)
    arrays = [*rows, *state]
    driver_names()["decide_row"](state, rows, 0, _T0)
    gc.collect()  # what other tests have left may use what nobody writes to, as no sweeps
    users = [sys.getrefcount(array) for array in arrays]
    for _ in range(10):
        driver_names()["decide_row"](state, rows, 0, _T0)
    assert [sys.getrefcount(array) for array in arrays] == users

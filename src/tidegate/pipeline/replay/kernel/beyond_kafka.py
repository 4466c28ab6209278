"""The kernel's decisions with features beyond Kafka: smooth mode, bounds on debt, observed clients.

These are separate kernels: the same `replay` of open loop and `run` of closed loop, compiled with the functions of this
module in place of those in `row_decision.EXCHANGED`. A replay without these features therefore runs code that knows
nothing of them.

A sensor has a place among the rates and, in the same row of `State.smooth_floats`, a bucket. As in the engine, a sensor
whose mode has changed is replaced on its next use (`tidegate.quota.managers.client_quota`).
"""

import sys
from collections.abc import Callable
from typing import Any

from tidegate.pipeline.layout import (
    BURST_S,
    CHECKS_FIRST,
    DEBT_MAX_S,
    EXACT,
    FETCH,
    HELD,
    IS_OBSERVED,
    MODE_DEBT_S,
    OBSERVED,
    OBSERVES,
    READY,
    REASON,
    SENSOR,
    SWEEP,
    WANTED,
)
from tidegate.pipeline.replay.kernel.certainty import begin_unknown, follow_bucket
from tidegate.pipeline.replay.kernel.closed_loop import CLOSED_LOOP_MODULES, loop_names, run
from tidegate.pipeline.replay.kernel.compiled import compile_cached, compile_together, made_once
from tidegate.pipeline.replay.kernel.loop_state import ClosedLoop
from tidegate.pipeline.replay.kernel.open_loop import KERNEL_MODULES, Kernel, driver_names, replay
from tidegate.pipeline.replay.kernel.row_decision import decide_bytes as decide_by_rate
from tidegate.pipeline.replay.kernel.row_decision import decide_row, note_swept, ready_rate, take_permits
from tidegate.pipeline.replay.kernel.row_decision import take_back as take_back_from_rate
from tidegate.quota.measure.bucket_kernel import (
    BUCKET_FLOATS,
    bucket_configure,
    bucket_forgive,
    bucket_record,
    bucket_throttle_ms,
)
from tidegate.quota.measure.smooth import BURST_WINDOW_MS
from tidegate.quota.measure.throttle import MAX_INT32, UNLIMITED

__all__ = ["SMOOTH_FLOATS", "replay_kernel_beyond_kafka", "run_kernel_beyond_kafka"]

MOST_ATTEMPTS = 1000
"""Most attempts of a fetch in closed loop: each returns a tenth of a quota, and every other one returns nothing."""

FORGIVEN = BUCKET_FLOATS
"""Column of `State.smooth_floats` beside those of a bucket: what was forgiven of the last charge."""
SMOOTH_FLOATS = BUCKET_FLOATS + 1


@made_once
def replay_kernel_beyond_kafka() -> Kernel:
    """Return `replay` compiled so that it knows all that goes beyond Kafka."""
    return compile_cached(replay, driver_names() | _decision(), modules=REPLAY_MODULES)


@made_once
def run_kernel_beyond_kafka() -> Callable[[Any, ClosedLoop, int, int], bool]:
    """Return `run` of the closed loop compiled so."""
    names = loop_names(MOST_ATTEMPTS=MOST_ATTEMPTS) | _decision()
    return compile_cached(run, names, modules=RUN_MODULES)


@made_once
def _decision() -> dict[str, Any]:
    """Return what decides a row, compiled, by its names in `row_decision`."""
    plain = driver_names()
    # Outside smooth mode the functions here call the plain ones. Those are named apart, as both have the same name.
    by_rate = {"decide_by_rate": plain["decide_bytes"], "take_back_from_rate": plain["take_back"]}
    names = {**globals(), **plain, **by_rate}
    return compile_together((*_SMOOTH, take_permits), names, inlined=(*_EXCHANGED, decide_row))


def is_observed(state: Any, flags: int) -> bool:
    """Return whether the client of the row was observed, under the quotas that it was observed under."""
    return bool(state.settings[OBSERVES] != 0 and flags & OBSERVED != 0)


def decide_bytes(state: Any, account: int, amount: int, most: int, now_ms: int) -> tuple[int, int]:
    """Charge bytes to the account's bucket, or outside smooth mode to its rate, as `row_decision.decide_bytes` does."""
    rate = _ready_sensor(state, account, now_ms)
    if state.modes[rate, HELD] == 0:
        return decide_by_rate(state, account, amount, most, now_ms)
    byte_ms, use = _decide_smooth(state, rate, amount, now_ms), state.rate_use[rate]
    if use[REASON] != EXACT:
        follow_bucket(use, now_ms)
    if state.bounds[account] == UNLIMITED:
        return 0, EXACT
    return byte_ms, use[REASON]


def take_back(state: Any, account: int, amount: int, most: int, now_ms: int) -> None:
    """Subtract the bytes of a fetch that is answered empty, whether or not they were charged (B§6.3).

    Follows: `tidegate.quota.measure.smooth.SmoothSensor.record`.
    """
    rate = _ready_sensor(state, account, now_ms)
    if state.modes[rate, HELD] == 0:
        take_back_from_rate(state, account, amount, most, now_ms)
        return
    floats, value = state.smooth_floats[rate], -float(amount)
    if value < 0.0:
        # What was forgiven is not owed any more. Subtracting it as well would give the client a credit.
        value += floats[FORGIVEN]
        if value > 0.0:
            value = 0.0
    bucket_record(floats, state.smooth_ints[rate], value, now_ms)
    floats[FORGIVEN] = 0.0
    if not state.settings[FETCH] and state.rate_use[rate, REASON] != EXACT:
        follow_bucket(state.rate_use[rate], now_ms)


def charge_permits(state: Any, bucket: int, permits: int, now_ms: int) -> None:
    """Charge permits to a bucket, whose debt may have a bound."""
    floats, ints = state.bucket_floats[bucket], state.bucket_ints[bucket]
    bucket_record(floats, ints, float(permits), now_ms)
    if state.settings[DEBT_MAX_S] > 0:
        bucket_forgive(floats, ints, state.settings[DEBT_MAX_S], now_ms)


def _decide_smooth(state: Any, rate: int, amount: int, now_ms: int) -> int:
    """Charge a bucket. Follows: `tidegate.quota.measure.smooth.SmoothSensor.decide`."""
    floats, ints, mode = state.smooth_floats[rate], state.smooth_ints[rate], state.modes[rate]
    before_ms = bucket_throttle_ms(floats, ints, now_ms)
    bucket_record(floats, ints, float(amount), now_ms)
    forgiven = 0.0
    if mode[MODE_DEBT_S] > 0:
        forgiven = bucket_forgive(floats, ints, mode[MODE_DEBT_S], now_ms)
    throttle_ms = before_ms if mode[CHECKS_FIRST] else bucket_throttle_ms(floats, ints, now_ms)
    if mode[IS_OBSERVED]:
        forgiven += bucket_forgive(floats, ints, 0, now_ms)
    floats[FORGIVEN] = forgiven
    return min(throttle_ms, MAX_INT32)


def _ready_sensor(state: Any, account: int, now_ms: int) -> int:
    """Return the account's sensor, in the mode that it is to be in, ready for a record at `now_ms`."""
    rate: int = state.accounts[account, SENSOR]
    mode, use = state.modes[rate], state.rate_use[rate]
    is_other = mode[HELD] != mode[WANTED]
    is_swept = use[READY] != state.settings[SWEEP] and note_swept(
        state.settings, state.rate_use, state.sweeps, rate
    )  # before its mode is another, which makes what is not known begin now
    if is_other:
        mode[HELD] = mode[WANTED]
        # With -1, `ready_rate` configures the cleared rate below.
        use[READY] = -1
        state.rate_floats[rate, :] = 0.0
        state.rate_ints[rate, :] = 0
        if use[REASON] != EXACT:
            begin_unknown(use, now_ms)
    if is_other or is_swept:
        state.smooth_floats[rate, :] = 0.0
        state.smooth_ints[rate, :] = 0
    ready_rate(state, account, now_ms)
    floats, ints, bound = state.smooth_floats[rate], state.smooth_ints[rate], state.bounds[account]
    bucket_configure(floats, ints, bound, mode[BURST_S], BURST_WINDOW_MS)
    return rate


REPLAY_MODULES = (*KERNEL_MODULES, sys.modules[__name__])
"""The modules that go into `replay` here."""
RUN_MODULES = (*CLOSED_LOOP_MODULES, sys.modules[__name__])
"""Those that go into `run`."""

_SMOOTH = (_decide_smooth, _ready_sensor)
_EXCHANGED = (is_observed, decide_bytes, take_back, charge_permits)

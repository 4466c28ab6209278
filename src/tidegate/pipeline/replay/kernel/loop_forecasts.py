"""The forecasts of accounts in closed loop: what requests waited, when the last came, and what was recorded of them.

Written for numba, as `closed_loop` is, which calls these functions.
"""

from tidegate.pipeline.layout import (
    BEFORE_RANGE,
    CHARGE_BITS,
    EXEMPT,
    FETCH_CHARGE,
    KIND_BITS,
    MUTATION_ROW,
    REQUEST,
    REQUEST_ROW,
    State,
)
from tidegate.pipeline.replay.kernel.loop_state import CULPRIT, ClosedLoop
from tidegate.pipeline.replay.kernel.open_loop import _add
from tidegate.pipeline.replay.kernel.row_decision import was_taken_back

__all__ = [
    "FORECASTS",
    "FORECAST_KERNEL",
    "LAST_TS_MS",
    "LONGEST_WAIT_MS",
    "RECORDED_AMOUNT",
    "RECORDED_LAST_TS_MS",
    "RECORDED_REQUESTS",
    "SENT_AGAIN",
    "WAITED_MS",
    "add_wait",
    "note_last",
    "note_recorded",
    "note_sent_again",
]

# Columns of `ClosedLoop.forecasts`, one row per account.
WAITED_MS, LONGEST_WAIT_MS, LAST_TS_MS, RECORDED_LAST_TS_MS, SENT_AGAIN = range(5)
RECORDED_REQUESTS, RECORDED_AMOUNT = 5, 6
FORECASTS = 7


def add_wait(loop: ClosedLoop, number: int, account: int, waited_ms: int) -> None:
    """Count how long a request waited for its connection to be read, with the quota that muted it."""
    if account >= 0 and waited_ms > 0:
        loop.forecasts[account, WAITED_MS] += waited_ms
        loop.forecasts[account, LONGEST_WAIT_MS] = max(loop.forecasts[account, LONGEST_WAIT_MS], waited_ms)


def note_last(loop: ClosedLoop, account: int, now_ms: int, ts_ms: int) -> None:
    """Note when the last request of an account was decided, and when it was recorded."""
    loop.forecasts[account, LAST_TS_MS] = max(loop.forecasts[account, LAST_TS_MS], now_ms)
    loop.forecasts[account, RECORDED_LAST_TS_MS] = max(loop.forecasts[account, RECORDED_LAST_TS_MS], ts_ms)


def note_recorded(state: State, loop: ClosedLoop, slot: int, account: int) -> None:
    """Count what was recorded of a row: once, however often it is tried."""
    rows, forecasts = loop.rows, loop.forecasts
    is_request = 1 if rows.flags[slot] & KIND_BITS == REQUEST_ROW else 0
    if account >= 0:
        forecasts[account, RECORDED_REQUESTS] += is_request
        if rows.flags[slot] & CHARGE_BITS != FETCH_CHARGE or not was_taken_back(rows, slot):
            _add(forecasts, account, RECORDED_AMOUNT, rows.amount[slot])
    if rows.flags[slot] & (MUTATION_ROW | EXEMPT) == 0:
        of_time = state.account_of[REQUEST, rows.client[slot]]
        forecasts[of_time, RECORDED_REQUESTS] += is_request
        _add(forecasts, of_time, RECORDED_AMOUNT, rows.network_ns[slot] + is_request * rows.handler_ns[slot])


def note_sent_again(loop: ClosedLoop, number: int, slot: int) -> None:
    """Count a request that its client has sent again, with the quota that muted its connection."""
    account = loop.connections[number, CULPRIT]
    if account >= 0 and loop.rows.flags[slot] & BEFORE_RANGE == 0:
        loop.forecasts[account, SENT_AGAIN] += 1


FORECAST_KERNEL = (note_sent_again, note_last, note_recorded, add_wait)

"""Requests that come later because their connection was muted: a heap of connections by the time of their next one.

Written for numba, as `row_decision` is. What a connection has sent and the broker has not read waits in the queue of
the connection; the heap has every connection that has a queue, by the time at which its first row is taken.
`docs/closed-loop.md` states the model.
"""

import sys
from collections.abc import Callable

from tidegate.pipeline.layout import (
    BEFORE_RANGE,
    CHARGE_BITS,
    EXEMPT,
    FETCH,
    FETCH_CHARGE,
    KIND_BITS,
    MUTATION_ROW,
    RECORDED,
    REQUEST,
    REQUEST_ROW,
    SWEEP,
    Int32s,
    Int64s,
    Rows,
    State,
)
from tidegate.pipeline.replay.kernel import loop_clients, loop_forecasts, loop_state
from tidegate.pipeline.replay.kernel.compiled import compile_cached, compile_together, made_once
from tidegate.pipeline.replay.kernel.loop_clients import (
    IN_FLIGHT,
    LOOP_CLIENTS_KERNEL,
    advance,
    ask_again,
    forget_refused,
    gather,
    give_up,
    schedule,
    try_again,
)
from tidegate.pipeline.replay.kernel.loop_forecasts import (
    FORECAST_KERNEL,
    add_wait,
    note_last,
    note_recorded,
)
from tidegate.pipeline.replay.kernel.loop_state import (
    ANSWER_SHIFT_MS,
    ARRIVED_MS,
    ASKED,
    ATTEMPTS,
    BY_THE_CLOCK,
    CLIENTS,
    CONNECTION,
    CULPRIT,
    FREE,
    FREE_SLOTS,
    HAS_DELIVERED,
    HAS_THROTTLED,
    HEAD,
    IN_HEAP,
    IS_ASKING,
    LOG_AMOUNT,
    LOG_BYTE_MS,
    LOG_IS_REJECTED,
    LOG_NOW_MS,
    LOG_REQUEST_MS,
    LOG_SEQ,
    LOGGED,
    LOOP_STATE_KERNEL,
    MUTATIONS,
    MUTED_UNTIL_MS,
    NEVER_MS,
    NOW_MS,
    ONE_BY_ONE,
    ORDER_MS,
    READY_MS,
    RECORDED_MS,
    REFUSED,
    REQUESTS_DONE,
    SEND_SHIFT_MS,
    SHIFT_MS,
    TAIL,
    ClosedLoop,
    heap_pop,
)
from tidegate.pipeline.replay.kernel.open_loop import (
    KERNEL_MODULES,
    _tally_row,
    _tally_throttle,
    driver_names,
)
from tidegate.pipeline.replay.kernel.row_decision import decide_row, pass_sweeps

__all__ = ["CLOSED_LOOP_MODULES", "loop_names", "run", "run_kernel", "take_in_kernel"]

MOST_ATTEMPTS = 100
"""Most attempts of a fetch that is throttled each time, or that returns in parts."""
AT_ONCE = 1 << 20
"""Decisions in one call: less than a second."""


def take_in(loop: ClosedLoop, rows: Rows, connection: Int32s, order_ms: Int64s, first: int, end: int) -> None:
    """Append the rows `first` to `end` (not included) to the queues of their connections, which must have room.

    connection, order_ms: of the rows from `first` on.
    """
    connections, waiting, counts = loop.connections, loop.rows, loop.counts
    for at in range(first, end):
        slot = counts[FREE]
        counts[FREE] = loop.links[slot]
        counts[FREE_SLOTS] -= 1
        waiting.seq[slot] = rows.seq[at]
        waiting.ts_ms[slot] = rows.ts_ms[at]
        waiting.amount[slot] = rows.amount[at]
        waiting.handler_ns[slot] = rows.handler_ns[at]
        waiting.network_ns[slot] = rows.network_ns[at]
        waiting.connection_id[slot] = rows.connection_id[at]
        waiting.client[slot] = rows.client[at]
        waiting.throttle_ms[slot] = rows.throttle_ms[at]
        waiting.request_throttle_ms[slot] = rows.request_throttle_ms[at]
        waiting.flags[slot] = rows.flags[at]
        loop.order_ms[slot] = order_ms[at - first]
        loop.links[slot] = -1
        if rows.flags[at] & KIND_BITS == MUTATION_ROW:
            counts[MUTATIONS] += 1
        number = connection[at - first]
        connections[number, ARRIVED_MS] = rows.ts_ms[at]
        if connections[number, HEAD] < 0:
            connections[number, HEAD] = slot
            connections[number, TAIL] = slot
            schedule(loop, number)
        else:
            loop.links[connections[number, TAIL]] = slot
            connections[number, TAIL] = slot


def run(state: State, loop: ClosedLoop, until_ms: int, end_seq: int) -> bool:
    """Decide what is taken up to `until_ms`, in order; sweeps only before `end_seq`.

    Returns whether that was all: not after the first throttle or refusal, nor after `AT_ONCE` decisions, for Ctrl-C to
    be heard.
    """
    counts, heap, rows = loop.counts, loop.heap, loop.rows
    gathers, gives_up = counts[CLIENTS] == BY_THE_CLOCK, counts[CLIENTS] == ONE_BY_ONE
    is_first = counts[HAS_THROTTLED] == 0
    for _ in range(AT_ONCE):
        if counts[IN_HEAP] == 0 or heap[0, ORDER_MS] > until_ms:
            return True
        number, now_ms = heap[0, CONNECTION], heap[0, NOW_MS]
        slot = loop.connections[number, HEAD]
        # Popped before the decision: what follows may push the connection again, under its next time.
        heap_pop(heap, counts)
        if gives_up and give_up(loop, number, slot, now_ms):
            continue
        pass_sweeps(state, rows.seq[slot])
        # A late row also meets the sweeps of its own time, though their `seq` is higher.
        if now_ms > rows.ts_ms[slot]:
            _pass_later_sweeps(state, now_ms, end_seq)
        if loop.connections[number, HAS_DELIVERED] and rows.flags[slot] & CHARGE_BITS == FETCH_CHARGE:
            _leave_out(state, loop, number, slot)
            continue
        # A request on time carries only its own data: nothing was recorded while it waited.
        if gathers and now_ms > rows.ts_ms[slot]:
            gather(loop, number, slot, now_ms)
        decided = decide_row(state, rows, slot, now_ms)
        is_empty = rows.flags[slot] & CHARGE_BITS == FETCH_CHARGE and (
            decided.byte_ms > 0 or decided.request_ms > 0
        )
        counts_here = rows.flags[slot] & BEFORE_RANGE == 0
        if counts_here:
            _tally_row(state, rows, slot, now_ms, decided, not is_empty)
        if counts_here and loop.connections[number, ATTEMPTS] == 0:
            note_recorded(state, loop, slot, decided.account)
        logged = counts[LOGGED]
        if logged < len(loop.log):
            loop.log[logged, LOG_SEQ] = rows.seq[slot]
            loop.log[logged, LOG_NOW_MS] = now_ms
            loop.log[logged, LOG_BYTE_MS] = decided.byte_ms
            loop.log[logged, LOG_REQUEST_MS] = decided.request_ms
            loop.log[logged, LOG_IS_REJECTED] = decided.is_rejected
            loop.log[logged, LOG_AMOUNT] = decided.amount
            counts[LOGGED] += 1
        _follow(
            state, loop, number, slot, now_ms, decided.byte_ms, decided.request_ms, decided.is_capped,
            decided.account, decided.amount, decided.is_rejected,
        )  # fmt: skip
        # Up to here all three kinds of clients give the same result (decision 0106). The caller copies the state for
        # the other two kinds before this replay continues.
        if is_first and (decided.byte_ms > 0 or decided.request_ms > 0 or decided.is_rejected):
            counts[HAS_THROTTLED] = 1
            return False
    return False


# --- what comes of a decision -----------------------------------------------------------------------------------------


def _follow(
    state: State,
    loop: ClosedLoop,
    number: int,
    slot: int,
    now_ms: int,
    byte_ms: int,
    request_ms: int,
    is_capped: bool,
    account: int,
    amount: int,
    is_rejected: bool,
) -> None:
    """Mute the connection for as long as was decided, and have it send what it sends next."""
    connections, rows = loop.connections, loop.rows
    flags = rows.flags[slot]
    shift_ms = now_ms - rows.ts_ms[slot]
    if flags & KIND_BITS != REQUEST_ROW:
        # Refused rows are also kept before the first throttle: the copy by the clock is made after it, and asks again.
        is_wanted = loop.counts[CLIENTS] == BY_THE_CLOCK or loop.counts[HAS_THROTTLED] == 0
        is_kept = is_rejected and is_wanted and rows.connection_id[slot] >= 0
        if flags & KIND_BITS == MUTATION_ROW:
            connections[number, IS_ASKING] = 1
            if not is_kept:
                loop.counts[MUTATIONS] -= 1
        connections[number, SHIFT_MS] = shift_ms
        advance(loop, number, slot, is_kept)
        return

    throttle_ms = max(byte_ms, request_ms, 0)
    recorded_ms = max(rows.throttle_ms[slot], rows.request_throttle_ms[slot], 0)
    if connections[number, ATTEMPTS] == 0:
        connections[number, RECORDED_MS] = recorded_ms
    connections[number, ATTEMPTS] += 1
    request_account = -1 if flags & EXEMPT else state.account_of[REQUEST, rows.client[slot]]
    late_ms = 0
    if throttle_ms > 0:
        # Ties go to the request quota (B§6.2, B§6.3).
        connections[number, CULPRIT] = account if byte_ms > request_ms else request_account
        # A mute begins when the answer has been sent, and clocks count whole milliseconds: it ends 1 or 2 ms late
        # (docs/closed-loop.md, *The model*).
        late_ms = 1 + (rows.seq[slot] + connections[number, ATTEMPTS]) % 2
    # The broker serves one request of a connection at a time (B§6.6). So a late request holds back the next one
    # even if it is not throttled.
    muted_until_ms = now_ms + throttle_ms + late_ms if throttle_ms > 0 or shift_ms > 0 else NEVER_MS

    if flags & CHARGE_BITS == FETCH_CHARGE and connections[number, ATTEMPTS] < MOST_ATTEMPTS:
        is_partial = throttle_ms == 0 and is_capped and 0 < amount < rows.amount[slot]
        # The next recorded fetches were retries for the data that this one has returned. `_leave_out` skips them.
        if throttle_ms == 0 and recorded_ms > 0:
            connections[number, HAS_DELIVERED] = 1
        if is_partial or (throttle_ms > 0 and recorded_ms == 0):
            if is_partial:
                # The rest is fetched next. The recorded throttle was tallied with the first part, and counts once.
                rows.amount[slot] -= amount
                rows.throttle_ms[slot] = 0
                rows.request_throttle_ms[slot] = 0
            try_again(loop, number, slot, now_ms, throttle_ms, late_ms)
            return

    if flags & BEFORE_RANGE == 0:
        add_wait(loop, number, connections[number, CULPRIT], now_ms - connections[number, READY_MS])
        if account >= 0:
            note_last(loop, account, now_ms, rows.ts_ms[slot])
        if request_account >= 0:
            note_last(loop, request_account, now_ms, rows.ts_ms[slot])
    done = connections[number, REQUESTS_DONE]
    loop.answered_ms[number, done % IN_FLIGHT] = now_ms if shift_ms > 0 else NEVER_MS
    connections[number, REQUESTS_DONE] = done + 1
    connections[number, SHIFT_MS] = connections[number, ANSWER_SHIFT_MS] = shift_ms
    connections[number, SEND_SHIFT_MS] = connections[number, READY_MS] - rows.ts_ms[slot]
    connections[number, MUTED_UNTIL_MS] = muted_until_ms
    connections[number, IS_ASKING] = 0
    if connections[number, REFUSED] >= 0:
        if loop.counts[CLIENTS] == BY_THE_CLOCK and connections[number, ASKED] < MOST_ATTEMPTS:
            ask_again(loop, number, slot)
            return
        forget_refused(loop, number)
    connections[number, ASKED] = 0
    advance(loop, number, slot, False)


def _leave_out(state: State, loop: ClosedLoop, number: int, slot: int) -> None:
    """Pass over a fetch that was recorded because the one before it was throttled, and here it was not."""
    connections, rows = loop.connections, loop.rows
    account = state.account_of[FETCH, rows.client[slot]]
    counts_here = rows.flags[slot] & BEFORE_RANGE == 0
    if counts_here and connections[number, ATTEMPTS] == 0:  # else it is the rest of one that came in parts
        note_recorded(state, loop, slot, account)
    recorded_ms = max(rows.throttle_ms[slot], rows.request_throttle_ms[slot], 0)
    if recorded_ms == 0:
        connections[number, HAS_DELIVERED] = 0
    if counts_here and rows.throttle_ms[slot] > 0:
        ts_ms, throttle_ms = rows.ts_ms[slot], rows.throttle_ms[slot]
        _tally_throttle(state.tallies, account, RECORDED, ts_ms, rows.amount[slot], throttle_ms)
    if counts_here and rows.request_throttle_ms[slot] > 0 and rows.flags[slot] & EXEMPT == 0:
        of_time, spent_ns = (
            state.account_of[REQUEST, rows.client[slot]],
            rows.network_ns[slot] + rows.handler_ns[slot],
        )
        ts_ms, throttle_ms = rows.ts_ms[slot], rows.request_throttle_ms[slot]
        _tally_throttle(state.tallies, of_time, RECORDED, ts_ms, spent_ns, throttle_ms)
    connections[number, RECORDED_MS] += recorded_ms
    advance(loop, number, slot, False)


def _pass_later_sweeps(state: State, now_ms: int, end_seq: int) -> None:
    """Count the sweeps of idle sensors that were recorded after a row which comes late, and were before it then."""
    sweeps, sweep = state.sweeps, state.settings[SWEEP]
    while sweep < len(sweeps) and sweeps[sweep, 1] < now_ms and sweeps[sweep, 0] < end_seq:
        sweep += 1
    state.settings[SWEEP] = sweep


_CLOSED_LOOP_KERNEL = (
    *LOOP_STATE_KERNEL,
    _pass_later_sweeps,
    *FORECAST_KERNEL,
    *LOOP_CLIENTS_KERNEL,
    _leave_out,
    _follow,
)


@made_once
def take_in_kernel() -> Callable[[ClosedLoop, Rows, Int32s, Int64s, int, int], None]:
    """Return `take_in` compiled."""
    return compile_cached(take_in, loop_names(), modules=CLOSED_LOOP_MODULES)


@made_once
def run_kernel() -> Callable[[State, ClosedLoop, int, int], bool]:
    """Return `run` compiled."""
    return compile_cached(run, loop_names(), modules=CLOSED_LOOP_MODULES)


@made_once
def loop_names(**others: object) -> dict[str, object]:
    """Return what `run` and `take_in` see, compiled; others: in place of what is called so here."""
    names = {
        **vars(loop_state),
        **vars(loop_forecasts),
        **vars(loop_clients),
        **globals(),
        **driver_names(),
        **others,
    }
    return names | compile_together(_CLOSED_LOOP_KERNEL, names)


CLOSED_LOOP_MODULES = (*KERNEL_MODULES, loop_state, loop_forecasts, loop_clients, sys.modules[__name__])

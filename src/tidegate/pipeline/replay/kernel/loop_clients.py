"""Clients in closed loop: when they send each request of a connection, what they send again, and what they give up.

Written for numba, as `closed_loop` is, which calls these functions. `docs/closed-loop.md` states the model.
"""

from tidegate.pipeline.layout import (
    CHARGE_BITS,
    FETCH_CHARGE,
    KIND_BITS,
    LOOKS_IN_STEPS,
    MUTATION_ROW,
    NO_CHARGE,
    PIPELINES,
    PRODUCE_CHARGE,
    READS_AHEAD,
    REQUEST_ROW,
    SENDS_ON,
)
from tidegate.pipeline.replay.kernel.loop_forecasts import note_sent_again
from tidegate.pipeline.replay.kernel.loop_state import (
    ANSWER_SHIFT_MS,
    ASKED,
    ATTEMPTS,
    BY_SOFTWARE,
    BY_THE_CLOCK,
    CLIENTS,
    HEAD,
    IS_ASKING,
    IS_GIVEN_UP,
    LAST_REFUSED,
    MUTATIONS,
    MUTED_UNTIL_MS,
    READY_MS,
    RECORDED_MS,
    REFUSED,
    REQUESTS_DONE,
    SEND_SHIFT_MS,
    SENT_MS,
    SHIFT_MS,
    TAIL,
    ClosedLoop,
    free_slot,
    heap_push,
)

__all__ = [
    "IDLE_MS",
    "IN_FLIGHT",
    "LOOP_CLIENTS_KERNEL",
    "advance",
    "ask_again",
    "forget_refused",
    "gather",
    "give_up",
    "schedule",
    "try_again",
]

IN_FLIGHT = 5
"""Produce requests that a client with several in flight has: `max.in.flight.requests.per.connection` of Java's."""
REQUEST_TIMEOUT_MS = 60_000
"""Time after which a client that sends on gives up an answer: `socket.timeout.ms` of librdkafka."""
BACKOFF_MS = 100
"""Time until it sends again, on another connection: `reconnect.backoff.ms` of librdkafka."""
IDLE_MS = 600_000
"""A connection without a request for so long begins anew: `connections.max.idle.ms`."""
STEP_MS = 100
"""Time between two polls of a consumer without a fetch in flight: `retry_backoff_ms` of kafka-python."""
MOST_TOGETHER = 1 << 20
"""Bytes of one request of a client that catches up: `max.partition.fetch.bytes`, and `batch.size` of librdkafka."""
BATCH_BYTES = 1 << 14
"""Bytes of one Produce request of such a client unless it `SENDS_ON`: `batch.size` of Java's producer."""


def schedule(loop: ClosedLoop, number: int) -> None:
    """Add the connection to the heap, by the time at which its first row is taken."""
    connections, rows = loop.connections, loop.rows
    slot = connections[number, HEAD]
    ts_ms, flags = rows.ts_ms[slot], rows.flags[slot]
    # Permits are asked for while the handler runs, so all rows of one request move by the same time.
    if connections[number, IS_ASKING]:
        now_ms = ready_ms = ts_ms + connections[number, SHIFT_MS]
    else:
        if ts_ms - connections[number, SENT_MS] > IDLE_MS:
            for column in (REQUESTS_DONE, RECORDED_MS, ANSWER_SHIFT_MS, SEND_SHIFT_MS):
                connections[number, column] = 0
        ready_ms = _sent_ms(loop, number, ts_ms, flags)
        now_ms = max(ready_ms, connections[number, MUTED_UNTIL_MS])
        if flags & SENDS_ON and now_ms - ready_ms > REQUEST_TIMEOUT_MS + BACKOFF_MS:
            now_ms = ready_ms + REQUEST_TIMEOUT_MS + BACKOFF_MS
            note_sent_again(loop, number, slot)
    connections[number, READY_MS] = ready_ms
    # `order_ms` never falls from row to row: where the recorded clock stepped back, rows keep the order of the record.
    heap_push(loop.heap, loop.counts, max(loop.order_ms[slot], now_ms), rows.seq[slot], number, now_ms)


def _sent_ms(loop: ClosedLoop, number: int, ts_ms: int, flags: int) -> int:
    """Return when the connection's client sends what was recorded at `ts_ms`."""
    connections, charge, clients = loop.connections, flags & CHARGE_BITS, loop.counts[CLIENTS]
    in_flight = 0
    if charge == PRODUCE_CHARGE and (
        clients == BY_THE_CLOCK or (clients == BY_SOFTWARE and flags & PIPELINES)
    ):
        in_flight = IN_FLIGHT
    elif clients == BY_THE_CLOCK or (
        clients == BY_SOFTWARE and flags & READS_AHEAD and charge == FETCH_CHARGE
    ):
        in_flight = 1
    sent_ms = ts_ms
    if clients != BY_THE_CLOCK:
        shift_ms = connections[number, SEND_SHIFT_MS if in_flight else ANSWER_SHIFT_MS]
        # The recorded throttle is not think time, so it is subtracted. No request is earlier than recorded.
        sent_ms = max(ts_ms, ts_ms + shift_ms - connections[number, RECORDED_MS])
    done = connections[number, REQUESTS_DONE]
    if 0 < in_flight <= done:
        sent_ms = max(sent_ms, loop.answered_ms[number, (done - in_flight) % IN_FLIGHT])
    return sent_ms


def advance(loop: ClosedLoop, number: int, slot: int, is_refused: bool) -> None:
    """Remove the first row from the connection's queue; a row of refused permits is kept."""
    connections = loop.connections
    connections[number, SENT_MS] = loop.rows.ts_ms[slot]
    connections[number, ATTEMPTS] = 0
    following = loop.links[slot]
    connections[number, HEAD] = following
    if following < 0:
        connections[number, TAIL] = -1
    if not is_refused:
        free_slot(loop, slot)
    else:
        loop.links[slot] = -1
        if connections[number, REFUSED] < 0:
            connections[number, REFUSED] = slot
        else:
            loop.links[connections[number, LAST_REFUSED]] = slot
        connections[number, LAST_REFUSED] = slot
    if following >= 0:
        schedule(loop, number)


def try_again(loop: ClosedLoop, number: int, slot: int, now_ms: int, throttle_ms: int, late_ms: int) -> None:
    """Schedule the same fetch on the connection again.

    The client sends the fetch at once, and the broker reads it when the throttle is over.
    """
    wait_ms = throttle_ms
    if loop.rows.flags[slot] & LOOKS_IN_STEPS:
        wait_ms = (throttle_ms + STEP_MS - 1) // STEP_MS * STEP_MS
    if loop.rows.flags[slot] & SENDS_ON and throttle_ms > REQUEST_TIMEOUT_MS:
        wait_ms = min(throttle_ms, REQUEST_TIMEOUT_MS + BACKOFF_MS)
        note_sent_again(loop, number, slot)
    again_ms = now_ms + wait_ms + late_ms
    order_ms = max(loop.order_ms[slot], again_ms)
    heap_push(loop.heap, loop.counts, order_ms, loop.rows.seq[slot], number, again_ms)


def ask_again(loop: ClosedLoop, number: int, slot: int) -> None:
    """Queue the refused permits of the request at the head of the queue again: the client asks for them once more."""
    connections = loop.connections
    connections[number, HEAD] = connections[number, REFUSED]
    connections[number, ATTEMPTS] = 0
    connections[number, ASKED] += 1
    loop.links[connections[number, LAST_REFUSED]] = slot
    connections[number, REFUSED] = -1
    schedule(loop, number)


def forget_refused(loop: ClosedLoop, number: int) -> None:
    """Free the rows of the permits that a request was refused each time."""
    connections = loop.connections
    while connections[number, REFUSED] >= 0:
        slot = connections[number, REFUSED]
        connections[number, REFUSED] = loop.links[slot]
        loop.counts[MUTATIONS] -= 1
        free_slot(loop, slot)


def gather(loop: ClosedLoop, number: int, slot: int, now_ms: int) -> None:
    """Add to the first row of a queue what was recorded up to `now_ms`, as one request that carries all of it."""
    rows, links = loop.rows, loop.links
    flags = rows.flags[slot]
    if flags & CHARGE_BITS == NO_CHARGE or rows.throttle_ms[slot] > 0 or rows.request_throttle_ms[slot] > 0:
        return
    most_bytes = MOST_TOGETHER
    if flags & CHARGE_BITS == PRODUCE_CHARGE and flags & SENDS_ON == 0:
        most_bytes = BATCH_BYTES
    while True:
        following = links[slot]
        if (
            following < 0
            or rows.ts_ms[following] > now_ms
            or rows.flags[following] != flags
            or rows.client[following] != rows.client[slot]
            or rows.throttle_ms[following] > 0
            or rows.request_throttle_ms[following] > 0
            or rows.amount[slot] > most_bytes - rows.amount[following]
        ):
            return
        rows.amount[slot] += rows.amount[following]
        rows.handler_ns[slot] += rows.handler_ns[following]
        rows.network_ns[slot] += rows.network_ns[following]
        links[slot] = links[following]
        if links[slot] < 0:
            loop.connections[number, TAIL] = slot
        free_slot(loop, following)


def give_up(loop: ClosedLoop, number: int, slot: int, now_ms: int) -> bool:
    """Pass over the first row if it is of a request that is not sent because its connection was throttled.

    kafka-python's admin client raises an error for such a request (`NodeNotReadyError`).
    """
    connections, flags = loop.connections, loop.rows.flags[slot]
    is_mutation = flags & KIND_BITS == MUTATION_ROW
    if is_mutation and flags & LOOKS_IN_STEPS and not connections[number, IS_ASKING]:
        is_waiting = now_ms > connections[number, READY_MS] and loop.rows.connection_id[slot] >= 0
        connections[number, IS_GIVEN_UP] = 1 if is_waiting else 0
    if not connections[number, IS_GIVEN_UP]:
        return False
    if is_mutation:
        loop.counts[MUTATIONS] -= 1
    elif flags & KIND_BITS == REQUEST_ROW:
        connections[number, IS_GIVEN_UP] = 0
    advance(loop, number, slot, False)
    return True


LOOP_CLIENTS_KERNEL = (_sent_ms, schedule, advance, try_again, ask_again, forget_refused, gather, give_up)

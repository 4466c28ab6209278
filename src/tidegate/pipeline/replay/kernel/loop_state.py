"""The connections of one plan in closed loop, as arrays: their columns, their queues of rows, and the heap.

Written for numba, as `closed_loop` is, which changes them. A connection with a queue is in the heap, by the time at
which its first row is taken.
"""

from typing import NamedTuple

from tidegate.pipeline.layout import Int64s, Rows

__all__ = [
    "ANSWER_SHIFT_MS",
    "ARRIVED_MS",
    "ASKED",
    "ATTEMPTS",
    "BY_SOFTWARE",
    "BY_THE_CLOCK",
    "CLIENTS",
    "CONNECTION",
    "CULPRIT",
    "FREE",
    "FREE_SLOTS",
    "HAS_DELIVERED",
    "HAS_THROTTLED",
    "HEAD",
    "IN_HEAP",
    "IS_ASKING",
    "IS_GIVEN_UP",
    "LAST_REFUSED",
    "LOGGED",
    "LOG_AMOUNT",
    "LOG_BYTE_MS",
    "LOG_IS_REJECTED",
    "LOG_NOW_MS",
    "LOG_REQUEST_MS",
    "LOG_SEQ",
    "LOOP_STATE_KERNEL",
    "MUTATIONS",
    "MUTED_UNTIL_MS",
    "NEVER_MS",
    "NOW_MS",
    "ONE_BY_ONE",
    "ORDER_MS",
    "READY_MS",
    "RECORDED_MS",
    "REFUSED",
    "REQUESTS_DONE",
    "SEND_SHIFT_MS",
    "SENT_MS",
    "SHIFT_MS",
    "TAIL",
    "ClosedLoop",
    "free_slot",
    "heap_pop",
    "heap_push",
]

# Columns of `ClosedLoop.connections`.
HEAD, TAIL = 0, 1
"""Slots of its queue, -1 where it has none."""
SHIFT_MS = 2
"""Delay of its last row after the recorded time."""
MUTED_UNTIL_MS = 3
"""Time before which none of its requests is read."""
RECORDED_MS = 4
"""Time that it was muted in the record since its last answer."""
CULPRIT = 5
"""The account that muted it last, -1 if none."""
REQUESTS_DONE = 6
IS_ASKING = 7
"""Its last row asked for permits: what follows is of the same request."""
HAS_DELIVERED = 8
"""It has what the record's next fetches, up to one that was not throttled, were sent for."""
ATTEMPTS = 9
"""Number of decisions about the first row of its queue."""
READY_MS = 10
"""Time when its first row would be read if it were not muted."""
SENT_MS = 11
"""Recorded time of its last row."""
ARRIVED_MS = 12
"""Recorded time of the last row of its queue."""
ANSWER_SHIFT_MS = 13
"""Delay of its last answer after the recorded time."""
SEND_SHIFT_MS = 14
"""Delay of its last request after the recorded time."""
REFUSED, LAST_REFUSED = 15, 16
"""Slots of the permits that its request was refused and asks for again, -1 if none."""
ASKED = 17
"""Number of repeated attempts of the request at the head of its queue."""
IS_GIVEN_UP = 18
"""Its client gives up the request that the first rows of its queue are of."""
CONNECTION_COLUMNS = 19

# Columns of `ClosedLoop.heap`.
ORDER_MS, SEQ, CONNECTION, NOW_MS = range(4)
HEAP_COLUMNS = 4

# Entries of `ClosedLoop.counts`.
FREE, FREE_SLOTS, IN_HEAP, MUTATIONS, LOGGED, CLIENTS, HAS_THROTTLED = range(7)
COUNTS = 7

# Values of `counts[CLIENTS]`: how the clients send.
BY_SOFTWARE = 0
"""By the software that they name: one request in flight or five."""
ONE_BY_ONE = 1
"""They think when the answer is there. The least load that leads to the record."""
BY_THE_CLOCK = 2
"""Their data comes at the recorded times, whatever is throttled. The greatest load that leads to the record."""

# Columns of `ClosedLoop.log`.
LOG_SEQ, LOG_NOW_MS, LOG_BYTE_MS, LOG_REQUEST_MS, LOG_IS_REJECTED, LOG_AMOUNT = range(6)
LOG_COLUMNS = 6

NEVER_MS = -(2**62)


class ClosedLoop(NamedTuple):
    """The connections of one plan in one partition, and their rows that wait."""

    connections: Int64s  # [connection, column]
    answered_ms: Int64s  # [connection, request modulo `IN_FLIGHT`]: when, `NEVER_MS` if not late
    rows: Rows  # [slot]
    order_ms: Int64s  # [slot]: the latest time that was recorded up to it
    links: Int64s  # [slot]: the next of its queue, or the next that is free
    heap: Int64s  # [place, column]
    counts: Int64s
    forecasts: Int64s  # [account, column]
    log: Int64s  # [decision, column], for the tests: the first decisions; no rows otherwise


def free_slot(loop: ClosedLoop, slot: int) -> None:
    """Count a slot as free."""
    loop.links[slot] = loop.counts[FREE]
    loop.counts[FREE] = slot
    loop.counts[FREE_SLOTS] += 1


def heap_push(heap: Int64s, counts: Int64s, order_ms: int, seq: int, number: int, now_ms: int) -> None:
    """Add a connection to the heap, which must have room."""
    at = counts[IN_HEAP]
    counts[IN_HEAP] += 1
    while at > 0:
        above = (at - 1) >> 1
        if heap[above, ORDER_MS] < order_ms or (heap[above, ORDER_MS] == order_ms and heap[above, SEQ] < seq):
            break
        _heap_copy(heap, above, at)
        at = above
    heap[at, ORDER_MS] = order_ms
    heap[at, SEQ] = seq
    heap[at, CONNECTION] = number
    heap[at, NOW_MS] = now_ms


def heap_pop(heap: Int64s, counts: Int64s) -> None:
    """Remove the first connection from the heap."""
    last = counts[IN_HEAP] - 1
    counts[IN_HEAP] = last
    at = 0
    while True:
        below = 2 * at + 1
        if below >= last:
            break
        if below + 1 < last and _is_before(heap, below + 1, below):
            below += 1
        if not _is_before(heap, below, last):
            break
        _heap_copy(heap, below, at)
        at = below
    _heap_copy(heap, last, at)


def _is_before(heap: Int64s, one: int, other: int) -> bool:
    if heap[one, ORDER_MS] != heap[other, ORDER_MS]:
        return bool(heap[one, ORDER_MS] < heap[other, ORDER_MS])
    return bool(heap[one, SEQ] < heap[other, SEQ])


def _heap_copy(heap: Int64s, source: int, target: int) -> None:
    for column in range(HEAP_COLUMNS):
        heap[target, column] = heap[source, column]


LOOP_STATE_KERNEL = (_heap_copy, _is_before, heap_push, heap_pop, free_slot)

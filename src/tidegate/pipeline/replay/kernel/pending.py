"""Controller-mutation quota objects between a request's `mutation` rows and its `request` row.

A request that creates or deletes topics has one quota object, which remembers its last throttle (B§5.2). One
request per connection is in flight, so the connection finds it. The table is open-addressed with linear probing,
written for numba: six columns of int64, a power of two long and never more than half full.

Follows: Kafka `ControllerMutationQuota` (`lastThrottleTimeMs`, `lastRecordedTimeMs`), B§5.2.
"""

import numpy as np
import numpy.typing as npt

__all__ = [
    "PENDING_KERNEL",
    "TAKEN",
    "empty_pending",
    "lose_pending",
    "pending_put",
    "pending_take",
    "roomy_pending",
]

Table = npt.NDArray[np.int64]

CONNECTION, LAST_MS, AT_MS, ACCOUNT, REASON, TAKEN = range(6)
_COLUMNS = 6
_SMALLEST = 64
_SPREAD = 0x9E3779B1  # 2**32 / golden ratio: neighbouring connection ids land far apart


def empty_pending(rows: int = _SMALLEST) -> Table:
    """Return a table with nothing in it; `rows` is a power of two."""
    return np.zeros((rows, _COLUMNS), np.int64)


def roomy_pending(table: Table, more: int) -> Table:
    """Return `table`, or a larger copy of it, with room for `more` connections."""
    taken = table[table[:, TAKEN] == 1]
    rows = len(table)
    while 2 * (len(taken) + more) > rows:
        rows *= 2
    if rows == len(table):
        return table
    # Compiled code cannot make an array (decision 0042), so the caller grows the table before the kernel runs.
    larger = empty_pending(rows)
    for entry in taken:
        pending_put(larger, *entry[:TAKEN].tolist())
    return larger


def lose_pending(table: Table, reason: int) -> None:
    """Set the reason of all remembered throttles: their bucket is not known."""
    table[table[:, TAKEN] == 1, REASON] = reason


def pending_put(table: Table, connection: int, last_ms: int, at_ms: int, account: int, reason: int) -> None:
    """Remember the connection's last throttle, in place of an earlier one. reason: why it is not exact."""
    at = _find(table, connection)
    table[at, CONNECTION] = connection
    table[at, LAST_MS] = last_ms
    table[at, AT_MS] = at_ms
    table[at, ACCOUNT] = account
    table[at, REASON] = reason
    table[at, TAKEN] = 1


def pending_take(table: Table, connection: int) -> tuple[int, int, int, int]:
    """Forget and return the connection's (last throttle in ms, when, account, reason); account -1: there is none."""
    at = _find(table, connection)
    if table[at, TAKEN] == 0:
        return 0, 0, -1, 0
    found = (table[at, LAST_MS], table[at, AT_MS], table[at, ACCOUNT], table[at, REASON])
    _close_gap(table, at)
    return found


def _find(table: Table, connection: int) -> int:
    """Return the row of `connection`, or the free row where it belongs."""
    mask = len(table) - 1
    at = _home(table, connection)
    while table[at, TAKEN] == 1 and table[at, CONNECTION] != connection:
        at = (at + 1) & mask
    return at


def _home(table: Table, connection: int) -> int:
    """Return where the search for `connection` begins."""
    low = (connection ^ (connection >> 32)) & 0x7FFFFFFF  # the product stays within 63 bits
    return ((low * _SPREAD) >> 8) & (len(table) - 1)


def _close_gap(table: Table, gap: int) -> None:
    """Free the row `gap`, and move up those behind it that would not be found any more."""
    # A search stops at the first free row, so a removed entry must not leave a free row inside a chain.
    mask = len(table) - 1
    at = (gap + 1) & mask
    while table[at, TAKEN] == 1:
        home = _home(table, table[at, CONNECTION])
        if ((at - home) & mask) >= ((at - gap) & mask):
            for column in range(_COLUMNS):
                table[gap, column] = table[at, column]
            gap = at
        at = (at + 1) & mask
    table[gap, TAKEN] = 0


PENDING_KERNEL = (_home, _find, _close_gap, pending_put, pending_take)

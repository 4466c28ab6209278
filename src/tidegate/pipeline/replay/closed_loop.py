"""Replay of the rows of one node against one plan in closed loop: a throttled client sends later.

Rows are queued as they were recorded, and decided when the broker would have read them from their connection. No
request is earlier than recorded, so all requests up to the time of the last queued row can be decided. At most
`MAX_WAITING_ROWS` rows wait, in memory or, if they are more than `MEMORY_ROWS`, in a temporary file. At a start of the
node, at a gap and where events are missing, all waiting rows are decided first: a new forecast begins there.

A record does not tell whether a client waits for its answers or sends by the clock. So the same rows are also replayed
with clients of both kinds (`_BOUNDING`). The least and the greatest of the three results are a range. Up to the first
throttle all three are the same: the bounding replays begin there, as copies.
"""

import copy
import mmap
import os
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.layout import LONGEST_MS, ROW_TYPES, THROTTLED, TOTAL_MS, Int32s, Int64s, Rows
from tidegate.pipeline.read.steps import Step
from tidegate.pipeline.read.timeline import Timeline
from tidegate.pipeline.replay.kernel import loop_clients, loop_forecasts, loop_state
from tidegate.pipeline.replay.kernel.beyond_kafka import run_kernel_beyond_kafka
from tidegate.pipeline.replay.kernel.closed_loop import run_kernel, take_in_kernel
from tidegate.pipeline.replay.kernel.loop_state import ClosedLoop
from tidegate.pipeline.replay.names import ClientNames
from tidegate.pipeline.replay.plan import Definitions, Plan
from tidegate.pipeline.replay.plan_replay import PlanReplay
from tidegate.pipeline.replay.state.lookup import SharedWanted
from tidegate.pipeline.replay.state.steps import STOPS
from tidegate.pipeline.replay.state.tables import with_room
from tidegate.quota.measure.throttle import MAX_INT64

__all__ = ["MAX_WAITING_ROWS", "MEMORY_ROWS", "ClosedLoopReplay"]

MAX_WAITING_ROWS = 1 << 27
"""Most rows that wait at once: 11 GB in a temporary file."""
MEMORY_ROWS = 1 << 20
"""Rows that wait in memory: 84 MB; where there are more, all lie in a file."""

_BOUNDING = (loop_state.ONE_BY_ONE, loop_state.BY_THE_CLOCK)
_FEW = 1 << 10
_SLOT_TYPES: tuple[np.dtype[Any], ...] = (*ROW_TYPES, np.dtype("<i8"), np.dtype("<i8"))
_RANGES = {"throttled_requests": THROTTLED, "throttle_ms": TOTAL_MS, "longest_throttle_ms": LONGEST_MS}
_CROWD = 1 << 16  # number of connections from which on idle ones are removed


class ClosedLoopReplay(PlanReplay):
    """The forecast of a plan for one node, or for those of its clients that are in a partition."""

    def __init__(
        self,
        plan: Plan,
        *,
        names: ClientNames,
        timeline: Timeline,
        definitions: Definitions | None = None,
        wanted: SharedWanted | None = None,
        log_rows: int = 0,
    ) -> None:
        super().__init__(plan, names=names, timeline=timeline, definitions=definitions, wanted=wanted)
        self._name = plan.name
        self._numbers: dict[int, int] = {}
        self._free_numbers: list[int] = []
        self._idle_wanted_at = _CROWD
        self._latest_ms = loop_state.NEVER_MS
        self._take_in = take_in_kernel()
        self._run_loop = run_kernel_beyond_kafka() if self._state.sensors.beyond.is_needed else run_kernel()
        waiting = _slots(_FEW)
        self._loop = ClosedLoop(
            connections=np.zeros((0, loop_state.CONNECTION_COLUMNS), np.int64),
            answered_ms=np.zeros((0, loop_clients.IN_FLIGHT), np.int64),
            rows=Rows._make(waiting[: len(ROW_TYPES)]),
            order_ms=waiting[-2],
            links=waiting[-1],
            heap=np.zeros((0, loop_state.HEAP_COLUMNS), np.int64),
            counts=np.zeros(loop_state.COUNTS, np.int64),
            forecasts=np.zeros((0, loop_forecasts.FORECASTS), np.int64),
            log=np.zeros((log_rows, loop_state.LOG_COLUMNS), np.int64),
        )
        self._bounding: list[ClosedLoopReplay] = []
        _chain(self._loop, 0)

    def begin_as(self, clients: int) -> None:
        """Set the kind of all clients, `ONE_BY_ONE` or `BY_THE_CLOCK`; this replay then has no ranges."""
        self._loop.counts[loop_state.CLIENTS] = clients
        self._loop.counts[loop_state.HAS_THROTTLED] = 1

    def finish(self) -> None:
        """Decide all waiting rows: no more rows follow."""
        for replay in self._bounding:
            replay.finish()
        self._decide(MAX_INT64, MAX_INT64)

    def forecasts(self, numbers: Int64s) -> dict[str, pa.Array]:
        """Return the forecasts of some accounts, by the columns of `FORECAST_COLUMNS`; null for a missing time."""
        forecasts = with_room(self._loop.forecasts, int(numbers.max(initial=-1)) + 1)[numbers]
        last_ms, recorded_ms = (
            forecasts[:, loop_forecasts.LAST_TS_MS],
            forecasts[:, loop_forecasts.RECORDED_LAST_TS_MS],
        )
        return {
            "waited_ms": pa.array(forecasts[:, loop_forecasts.WAITED_MS]),
            "longest_wait_ms": pa.array(forecasts[:, loop_forecasts.LONGEST_WAIT_MS]),
            "last_ts_ms": pa.array(last_ms, mask=last_ms == 0),
            "recorded_last_ts_ms": pa.array(recorded_ms, mask=recorded_ms == 0),
            "sent_again": pa.array(forecasts[:, loop_forecasts.SENT_AGAIN]),
            "recorded_requests": pa.array(forecasts[:, loop_forecasts.RECORDED_REQUESTS]),
            "recorded_amount": pa.array(forecasts[:, loop_forecasts.RECORDED_AMOUNT]),
            **self._ranges(numbers),
        }

    def _ranges(self, numbers: Int64s) -> dict[str, pa.Array]:
        """Return the ranges of the forecasts of some accounts, by the columns that end in `_low` and `_high`."""
        replays = [self, *self._bounding]
        forecasts = [
            with_room(replay._loop.forecasts, int(numbers.max(initial=-1)) + 1)[numbers] for replay in replays
        ]
        tallies = [replay._accounts.tallies[numbers] for replay in replays]
        found = {name: [tally[:, column] for tally in tallies] for name, column in _RANGES.items()}
        found["last_ts_ms"] = [columns[:, loop_forecasts.LAST_TS_MS] for columns in forecasts]
        ranges = {}
        for name, values in found.items():
            for end, of in (("low", np.minimum), ("high", np.maximum)):
                column = of.reduce(values)
                ranges[f"{name}_{end}"] = pa.array(column, mask=column == 0 if name == "last_ts_ms" else None)
        return ranges

    def _take(self, step: Step) -> None:
        is_cut = step.kind in STOPS
        if is_cut:
            self._decide(MAX_INT64, step.seq)
        # The bounding replays get steps and rows only through this replay.
        for replay in self._bounding:
            replay._take(step)
        if is_cut:
            self._forget_connections()
        super()._take(step)

    def _run(self, rows: Rows, decisions: Int32s, first: int, end: int) -> None:
        if first == end:
            return
        for replay in self._bounding:
            replay._run(rows, decisions, first, end)
        mutations = self._state.lookup.open_accounts(rows, first, end)
        self._state.permits.make_room(mutations + int(self._loop.counts[loop_state.MUTATIONS]))
        self._make_room(end - first)
        order_ms = np.maximum.accumulate(np.append(self._latest_ms, rows.ts_ms[first:end]))[1:]
        connection = self._connections(rows.connection_id[first:end])
        self._latest_ms = int(order_ms[-1])
        self._take_in(self._loop, rows, connection, order_ms, first, end)
        # No request is earlier than recorded, so rows that are not read yet are not due before this time (0065).
        self._decide(self._latest_ms, MAX_INT64)
        self._forget_idle()

    def _decide(self, until_ms: int, end_seq: int) -> None:
        self._loop = self._loop._replace(
            forecasts=with_room(self._loop.forecasts, len(self._accounts.bounds)), heap=self._roomy_heap()
        )
        state = self._state.sensors.beyond.extended(self.state())
        has_throttled = self._loop.counts[loop_state.HAS_THROTTLED]
        while not self._run_loop(state, self._loop, until_ms, end_seq):
            if has_throttled != self._loop.counts[loop_state.HAS_THROTTLED]:
                has_throttled = self._loop.counts[loop_state.HAS_THROTTLED]
                self._bounding = [self._with_clients(clients) for clients in _BOUNDING]
                # The copies catch up to the same time, because the next rows go to all three replays.
                for replay in self._bounding:
                    replay._decide(until_ms, end_seq)

    def _with_clients(self, clients: int) -> "ClosedLoopReplay":
        """Return a copy that continues with clients of another kind."""
        # Not copied: they never change, or hold for all copies, such as the names of all clients.
        shared = (
            self._plan, self._names, self._timeline, self._steps, self._take_in, self._run_loop,
            self._state.lookup.definitions, self._state.lookup.wanted,
        )  # fmt: skip
        other = copy.deepcopy(self, {id(each): each for each in shared})
        other._loop = other._loop._replace(log=self._loop.log[:0])
        other.begin_as(clients)
        return other

    # --- connections, and room for waiting rows -------------------------------------------------------------------

    def _connections(self, connection_ids: Int64s) -> Int32s:
        """Return the numbers of connections, from 0; new connections get one."""
        found, place = np.unique(connection_ids, return_inverse=True)
        numbers = np.array([self._number(connection_id) for connection_id in found.tolist()], np.int32)
        connections = len(self._numbers) + len(self._free_numbers)
        if connections > len(self._loop.connections):
            before = len(self._loop.connections)
            self._loop = self._loop._replace(
                connections=with_room(self._loop.connections, connections),
                answered_ms=with_room(self._loop.answered_ms, connections),
            )
            self._begin(slice(before, None))
        self._loop = self._loop._replace(heap=self._roomy_heap())
        return numbers[place.reshape(-1)]

    def _number(self, connection_id: int) -> int:
        number = self._numbers.get(connection_id)
        if number is None:
            number = self._free_numbers.pop() if self._free_numbers else len(self._numbers)
            self._numbers[connection_id] = number
        return number

    def _begin(self, numbers: Any) -> None:
        """Reset connections to the state of new ones."""
        connections = self._loop.connections
        connections[numbers] = 0
        for column in (loop_state.HEAD, loop_state.TAIL, loop_state.CULPRIT, loop_state.REFUSED):
            connections[numbers, column] = -1
        for column in (loop_state.MUTED_UNTIL_MS, loop_state.SENT_MS, loop_state.ARRIVED_MS):
            connections[numbers, column] = loop_state.NEVER_MS

    def _forget_connections(self) -> None:
        """Forget all connections: they end with the node."""
        self._numbers.clear()
        self._free_numbers.clear()
        self._begin(slice(None))
        self._latest_ms = loop_state.NEVER_MS

    def _forget_idle(self) -> None:
        """Forget connections that are idle, not muted, and have no waiting row."""
        if len(self._numbers) < self._idle_wanted_at:
            return
        connections = self._loop.connections
        is_idle = connections[:, loop_state.HEAD] < 0
        is_idle &= connections[:, loop_state.ARRIVED_MS] < self._latest_ms - loop_clients.IDLE_MS
        is_idle &= connections[:, loop_state.MUTED_UNTIL_MS] < self._latest_ms
        for connection_id, number in list(self._numbers.items()):
            if is_idle[number]:
                del self._numbers[connection_id]
                self._free_numbers.append(number)
        self._begin(np.array(self._free_numbers, np.int64))
        self._idle_wanted_at = max(_CROWD, 2 * len(self._numbers))

    def _roomy_heap(self) -> Int64s:
        # A connection is in the heap at most once, so one row per connection is enough.
        return with_room(self._loop.heap, len(self._loop.connections))

    def _make_room(self, more: int) -> None:
        """Grow the slots until `more` rows fit. Raises `UsageFilesError` if too many rows would wait."""
        before = len(self._loop.links)
        size, free = before, int(self._loop.counts[loop_state.FREE_SLOTS])
        while free + size - before < more:
            size *= 2
        if size == before:
            return
        if size > MAX_WAITING_ROWS:
            raise UsageFilesError(
                f"more than {MAX_WAITING_ROWS} requests would wait at once under plan {self._name!r}",
                hint="give fewer hours, or --loop open",
            )
        larger = _slots(size)
        smaller = (*self._loop.rows, self._loop.order_ms, self._loop.links)
        for column, old in zip(larger, smaller, strict=True):
            column[:before] = old
        self._loop = self._loop._replace(
            rows=Rows._make(larger[: len(ROW_TYPES)]), order_ms=larger[-2], links=larger[-1]
        )
        _chain(self._loop, before)


def _slots(size: int) -> list[npt.NDArray[Any]]:
    """Return columns for `size` waiting rows, in an unnamed file if they are more than `MEMORY_ROWS`.

    Raises `UsageFilesError` if the disk has no room for the file.
    """
    if size <= MEMORY_ROWS:
        return [np.zeros(size, dtype) for dtype in _SLOT_TYPES]
    width = sum(dtype.itemsize for dtype in _SLOT_TYPES)
    try:
        # `mmap` keeps the unnamed file open. Its blocks are freed with the last array, however the process ends.
        with tempfile.TemporaryFile() as file:
            os.posix_fallocate(
                file.fileno(), 0, size * width
            )  # a hole that cannot be filled ends the process
            room = mmap.mmap(file.fileno(), size * width)
    except OSError as error:
        raise UsageFilesError(
            f"requests that wait need {size * width:,} bytes in {tempfile.gettempdir()!r}: {error.strerror}",
            hint="set TMPDIR to a directory with more room, give fewer hours, or --loop open",
        ) from error
    columns, at = [], 0
    for dtype in _SLOT_TYPES:
        columns.append(np.frombuffer(room, dtype, size, at))
        at += size * dtype.itemsize
    return columns


def _chain(loop: ClosedLoop, first: int) -> None:
    """Add the slots from `first` on to the front of the list of free slots."""
    size = len(loop.links)
    loop.links[first:] = np.arange(first + 1, size + 1)
    loop.links[size - 1] = loop.counts[loop_state.FREE] if loop.counts[loop_state.FREE_SLOTS] else -1
    loop.counts[loop_state.FREE] = first
    loop.counts[loop_state.FREE_SLOTS] += size - first

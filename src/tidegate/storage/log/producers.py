"""Idempotent producers that a partition remembers: their epoch and last five batches.

A batch that is already stored is answered with its first offset instead of being stored again; a gap in the sequence
is refused. The state is kept in memory, written to a snapshot file from time to time, and completed by reading the
headers of the batches after the snapshot. Follows: Kafka `ProducerStateManager`, `ProducerAppendInfo`, KIP-98.

Both bounds, that of a node and that of a partition, are divided between the principals that write: when a bound is
full, the principal that holds most loses its oldest producers. A retry of a forgotten producer would be stored twice.
The principal is kept in memory only: state read from files belongs to the owner that the table was made with.
"""

import struct
from collections import deque
from collections.abc import Generator
from heapq import heapify, heapreplace
from itertools import chain, starmap
from pathlib import Path

from tidegate import error_codes
from tidegate.fair_share import UNKNOWN_OWNER, ReclaimableBound
from tidegate.in_slices import batched
from tidegate.storage.errors import AppendError
from tidegate.storage.log.records import last_sequence
from tidegate.wire import checksum

__all__ = [
    "MAX_PRODUCERS",
    "MAX_PRODUCER_BYTES",
    "NO_TRANSACTION",
    "PACKED_AT_ONCE",
    "REMEMBERED_BATCHES",
    "ProducerMemory",
    "ProducerState",
    "Producers",
]

MAX_PRODUCER_BYTES = 64 * 1024 * 1024
"""Most memory of the producers of all partitions of a node."""
MAX_PRODUCERS = 3_000
"""Producers of one partition: all are copied in one step when a snapshot is made. Past it a tenth is forgotten."""
PACKED_AT_ONCE = 250
"""Producers whose batches become rows of a snapshot within a millisecond."""
REMEMBERED_BATCHES = 5
"""Kafka's `ProducerStateEntry.NUM_BATCHES_TO_RETAIN`: what a producer may have in flight."""

_STATE_BYTES = 560  # of a producer, with its places in three tables (measured by a test)
_BATCH_BYTES = 240  # of each batch that is remembered
# By batches. A sum that is made for each producer would be an integer of 32 bytes in the table of sizes.
_SIZES = tuple(_STATE_BYTES + batches * _BATCH_BYTES for batches in range(REMEMBERED_BATCHES + 1))
_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_ROW = struct.Struct(">qhiqiqiq")
_BATCH = struct.Struct(">qhiqiq")  # with which a row begins; what follows is the same in all
_CRC_COVERS_FROM = 6
NO_TRANSACTION = -1
_ROW_END = struct.pack(">iq", -1, NO_TRANSACTION)  # no coordinator epoch, no transaction
_LARGEST_SEQUENCE = 2**31 - 1

Batch = tuple[int, int, int, int, int, int]
"""A remembered batch as the row of a snapshot: producer id, epoch, last sequence, last offset, how many records come
before its last one, largest time in ms."""


class ProducerState:
    """One producer's epoch and its last batches, oldest first. owner: the principal that wrote the last of them."""

    __slots__ = ("batches", "epoch", "owner", "period", "producer_id", "table")

    def __init__(self, table: "Producers", producer_id: int, epoch: int, period: int, owner: str) -> None:
        self.table = table
        self.producer_id = producer_id
        self.epoch = epoch
        self.period = period
        self.owner = owner
        self.batches: list[Batch] = []


class ProducerMemory:
    """Memory for the producers of all partitions of a node: at most `max_bytes`.

    The producers of a principal are ordered by the period in which they last wrote.
    """

    __slots__ = ("_bound", "period")

    def __init__(self, max_bytes: int = MAX_PRODUCER_BYTES) -> None:
        self.period = 0
        self._bound: ReclaimableBound[ProducerState] = ReclaimableBound(max_bytes)

    def begin_period(self) -> None:
        """Begin a period: producers that write from now on count as newer than those that wrote before."""
        self.period += 1

    def record_first_write(self, state: ProducerState) -> None:
        """Note the first write of a producer in this period."""
        state.period = self.period
        self._bound.touch(state)

    def add_producer(self, state: ProducerState) -> None:
        """Add a new producer."""
        self._bound.add_entry(state, state.owner, _SIZES[0])

    def hand_over(self, state: ProducerState, owner: str) -> None:
        """Count a producer for another principal from now on."""
        self._bound.remove(state)
        state.owner = owner
        self._bound.add_entry(state, owner, _SIZES[len(state.batches)])

    def resize(self, state: ProducerState) -> None:
        """Count how many batches of a producer are remembered; past the bound, forget others."""
        bound = self._bound
        bound.resize(state, _SIZES[len(state.batches)])
        while bound.used > bound.capacity:
            oldest = bound.victim(state.owner, 0)
            assert oldest is not None
            oldest.table.forget(oldest)

    def drop(self, state: ProducerState) -> None:
        """Remove a producer that its partition has forgotten."""
        self._bound.remove(state)


class Producers:
    """The producers of one partition."""

    __slots__ = ("_states", "changed", "expiration_ms", "memory", "owner")

    def __init__(
        self, expiration_ms: int, memory: ProducerMemory | None = None, owner: str = UNKNOWN_OWNER
    ) -> None:
        """Make an empty table. memory: shared by all partitions of a node. owner: of producers read from files."""
        self.expiration_ms = expiration_ms
        self.owner = owner
        self.changed = True  # since they were saved or loaded
        self.memory = ProducerMemory() if memory is None else memory
        self._states: dict[int, ProducerState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def states(self) -> list[ProducerState]:
        """Return the producers that are remembered."""
        return list(self._states.values())

    def check(
        self, producer_id: int, epoch: int, base_sequence: int, last_delta: int
    ) -> tuple[int, int] | None:
        """Return None where a batch comes next, else (offset, time) of the stored batch that it repeats.

        Raises `AppendError` with Kafka's code for an old epoch (47) and for a gap (45).
        """
        state = self._states.get(producer_id)
        if state is None:
            return None
        if epoch == state.epoch:
            last = last_sequence(base_sequence, last_delta)
            for _, _, batch_last, last_offset, delta, time_ms in state.batches:
                if batch_last == last and delta == last_delta:
                    return last_offset - delta, time_ms
            last = state.batches[-1][2]
            expected = last + 1 if last != _LARGEST_SEQUENCE else 0
            if base_sequence == expected:
                return None
        elif epoch < state.epoch:
            raise AppendError(
                error_codes.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} has epoch {epoch}, expected {state.epoch} or more",
                log_start_known=True,
            )
        elif base_sequence == 0:
            return None
        else:
            expected = 0
        raise AppendError(
            error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {producer_id} sent sequence {base_sequence}, expected {expected}",
            log_start_known=True,
        )

    def record_batch(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        last_delta: int,
        base_offset: int,
        time_ms: int,
        owner: str | None = None,
    ) -> None:
        """Remember a batch that was stored. owner: the principal that wrote it; None: it was read from a file."""
        self.changed = True
        memory = self.memory
        state = self._states.get(producer_id)
        if owner is None:
            owner = self.owner
        if state is None:
            if len(self._states) >= MAX_PRODUCERS:
                self._make_room()
            state = ProducerState(self, producer_id, epoch, memory.period, owner)
            self._states[producer_id] = state
            memory.add_producer(state)
        else:
            if state.epoch != epoch:
                state.epoch = epoch
                # Sequences begin anew with an epoch: a batch of the earlier one must not pass for a repetition.
                state.batches.clear()
            if state.owner != owner:
                memory.hand_over(state, owner)
        if state.period != memory.period:
            memory.record_first_write(state)
        # Already a row of the snapshot, which packs thousands of them without a loop in Python.
        batch = (
            producer_id,
            epoch,
            (base_sequence + last_delta) & _LARGEST_SEQUENCE,
            base_offset + last_delta,
            last_delta,
            time_ms,
        )
        batches = state.batches
        if not batches:
            state.batches = [batch]  # an `append` would make room for four
            memory.resize(state)
        elif len(batches) < REMEMBERED_BATCHES:
            batches.append(batch)
            memory.resize(state)
        else:
            # The size stays the same, and need not be counted.
            del batches[0]
            batches.append(batch)

    def expire(self, now_ms: int) -> int:
        """Forget producers silent for `producer.id.expiration.ms`; return how many."""
        oldest_ms = now_ms - self.expiration_ms
        gone = [state for state in self._states.values() if state.batches[-1][5] <= oldest_ms]
        for state in gone:
            self.forget(state)
        return len(gone)

    def forget(self, state: ProducerState) -> None:
        """Forget a producer."""
        self.changed = True
        del self._states[state.producer_id]
        self.memory.drop(state)

    def _make_room(self) -> None:
        """Forget a tenth: each time, of the principal with most producers, the one with the smallest last offset."""
        by_owner: dict[str, deque[ProducerState]] = {}
        for state in sorted(self._states.values(), key=lambda state: state.batches[-1][3]):
            by_owner.setdefault(state.owner, deque()).append(state)
        most = [(-len(states), owner) for owner, states in by_owner.items()]
        heapify(most)
        for _ in range(MAX_PRODUCERS // 10):
            count, owner = most[0]
            self.forget(by_owner[owner].popleft())
            heapreplace(most, (count + 1, owner))

    def clear(self) -> None:
        """Forget all."""
        for state in list(self._states.values()):
            self.forget(state)

    def snapshot_in_slices(self) -> Generator[None, None, list[bytes]]:
        """Return the parts of a snapshot of the producers as they are now, whatever is recorded meanwhile.

        Kafka's format, with a row for each remembered batch: Kafka takes each producer's last row.
        """
        taken = [tuple(state.batches) for state in self._states.values()]
        self.changed = False
        yield
        count = struct.pack(">i", sum(map(len, taken)))
        parts, crc = [b"", count], checksum.crc32c(count)
        for some in batched(taken, PACKED_AT_ONCE):
            rows = _ROW_END.join(chain(starmap(_BATCH.pack, chain.from_iterable(some)), (b"",)))
            parts.append(rows)
            crc = checksum.crc32c(rows, crc)
            yield
        parts[0] = struct.pack(">hI", _SNAPSHOT_VERSION, crc)
        return parts

    def load(self, path: Path) -> bool:
        """Read a snapshot; False, and nothing remembered, when it is broken."""
        self.clear()
        data = path.read_bytes()
        if len(data) < _SNAPSHOT_HEAD.size:
            return False
        version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
        rows = data[_SNAPSHOT_HEAD.size :]
        if (
            version != _SNAPSHOT_VERSION
            or crc != checksum.crc32c(data[_CRC_COVERS_FROM:])
            or len(rows) != count * _SNAPSHOT_ROW.size
        ):
            return False
        for producer_id, epoch, last, last_offset, delta, time_ms, _, _ in _SNAPSHOT_ROW.iter_unpack(rows):
            self.record_batch(producer_id, epoch, (last - delta) % 2**31, delta, last_offset - delta, time_ms)
        self.changed = False
        return True

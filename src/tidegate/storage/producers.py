"""What a partition remembers of idempotent producers: their epoch and last five batches.

A batch that came before is answered with its first offset instead of being stored again; a gap in the sequence
is refused. Kept in memory, written to a snapshot file from time to time, and completed by reading the headers of
the batches after the snapshot. Follows: Kafka `ProducerStateManager`, `ProducerAppendInfo`, KIP-98.
"""

import struct
from collections import deque
from pathlib import Path

from tidegate.storage import error_codes
from tidegate.storage.errors import AppendError
from tidegate.storage.private_files import replace_private_file
from tidegate.storage.records import last_sequence
from tidegate.wire import checksum

__all__ = ["MAX_PRODUCERS", "REMEMBERED_BATCHES", "ProducerState", "Producers"]

MAX_PRODUCERS = 10_000  # of one partition; past it the tenth that was silent longest is forgotten
REMEMBERED_BATCHES = (
    5  # Kafka's `ProducerStateEntry.NUM_BATCHES_TO_RETAIN`: what a producer may have in flight
)

_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_ROW = struct.Struct(">qhiqiqiq")
_CRC_COVERS_FROM = 6
_NO_COORDINATOR_EPOCH = -1
_NO_TRANSACTION = -1
_LAST_SEQUENCE_BEFORE_ZERO = 2**31 - 1

Batch = tuple[int, int, int, int]
"""A remembered batch: first and last sequence, first offset, largest time in ms."""


class ProducerState:
    """One producer's epoch and its last batches, oldest first."""

    __slots__ = ("batches", "epoch")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[Batch] = deque(maxlen=REMEMBERED_BATCHES)


class Producers:
    """The producers of one partition."""

    __slots__ = ("_states", "expiration_ms")

    def __init__(self, expiration_ms: int) -> None:
        self.expiration_ms = expiration_ms
        self._states: dict[int, ProducerState] = {}

    def __len__(self) -> int:
        return len(self._states)

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
            for batch in state.batches:
                if batch[0] == base_sequence and batch[1] == last:
                    return batch[2], batch[3]
            expected = state.batches[-1][1] + 1 if state.batches[-1][1] != _LAST_SEQUENCE_BEFORE_ZERO else 0
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

    def note(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        last_delta: int,
        base_offset: int,
        time_ms: int,
    ) -> None:
        """Remember a batch that was stored."""
        state = self._states.get(producer_id)
        if state is None:
            if len(self._states) >= MAX_PRODUCERS:
                self._make_room()
            state = self._states[producer_id] = ProducerState(epoch)
        elif state.epoch != epoch:
            state.epoch = epoch
            state.batches.clear()
        state.batches.append((base_sequence, last_sequence(base_sequence, last_delta), base_offset, time_ms))

    def expire(self, now_ms: int) -> int:
        """Forget producers silent for `producer.id.expiration.ms`; return how many."""
        oldest_ms = now_ms - self.expiration_ms
        gone = [key for key, state in self._states.items() if state.batches[-1][3] <= oldest_ms]
        for producer_id in gone:
            del self._states[producer_id]
        return len(gone)

    def _make_room(self) -> None:
        by_age = sorted(self._states, key=lambda key: self._states[key].batches[-1][3])
        for producer_id in by_age[: MAX_PRODUCERS // 10]:
            del self._states[producer_id]

    def clear(self) -> None:
        """Forget all."""
        self._states.clear()

    def save(self, path: Path) -> None:
        """Write a snapshot: Kafka's format, a row per remembered batch (Kafka takes each producer's last row)."""
        rows = [
            _SNAPSHOT_ROW.pack(
                producer_id,
                state.epoch,
                last,
                offset + (last - first) % 2**31,
                (last - first) % 2**31,
                time_ms,
                _NO_COORDINATOR_EPOCH,
                _NO_TRANSACTION,
            )
            for producer_id, state in self._states.items()
            for first, last, offset, time_ms in state.batches
        ]
        count = struct.pack(">i", len(rows))
        body = b"".join((count, *rows))
        replace_private_file(path, struct.pack(">hI", _SNAPSHOT_VERSION, checksum.crc32c(body)) + body)

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
            self.note(producer_id, epoch, (last - delta) % 2**31, delta, last_offset - delta, time_ms)
        return True

"""Buckets of mutation quotas and rates of connections, in memory that the processes of a gateway share.

All processes charge the same state of a quota, so a client with one connection can use all of its quota. Each process
has the limit and the window of the quota. The numbers that change with charges are in a place of a shared table. A
process locks the place to read or change it, with a record lock of the kernel, which is released if the process ends.

A state is identified by a digest, which selects the first of `PROBES` consecutive places that it may have. A place is
free when no process has charged it for an hour, the time after which sensors expire. If none is free, a new state
replaces the one that was charged least recently; the quota of that state begins again.
"""

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from tidegate.quota.measure.bucket_kernel import TOKENS, UPDATED
from tidegate.quota.measure.rate import SampledRate
from tidegate.quota.measure.rate_kernel import (
    BOUND,
    CAP_MS,
    SAMPLES,
    WINDOW_MS,
    rate_configure,
    rate_state,
)
from tidegate.quota.measure.token_bucket import TokenBucket
from tidegate.quota.measure.window import QuotaWindow

__all__ = ["IDLE_MS", "MAX_BYTES", "PLACES", "PROBES", "SharedBuckets", "SharedRates"]

PLACES = 1 << 17
PROBES = 32
MAX_BYTES = 96 << 20
"""Most memory of a table: with many samples in a window it has fewer places."""
LATE_MS = 10_000
"""Longest time until all processes have read a record of the topic; a slower process is cut off.

A smaller offset after that time belongs to a new topic.
"""
IDLE_MS = 3_600_000
"""Time without a charge after which a state begins anew, as a sensor that has expired."""
_HEAD = struct.Struct("=Qq")  # digest, time of the last charge
_KEY_BYTES = 8
_YIELDS, _SLEEPS, _SLEEP_S = 50, 100, 50e-6
"""Tries to lock, some 10 ms. After them, a process continues without the lock if its holder was stopped.

The process sleeps after the first tries, so that the holder gets a processor.
"""
_LONGEST_S = 0.25
"""Longest time to lock while the holder can run: on a busy machine the holder may wait for a processor."""
_FLOCK = struct.Struct("@hhqqi4x")  # of Linux on 64 bits: type, whence, start, bytes, process

_P = ParamSpec("_P")
_R = TypeVar("_R")


class SharedStates:
    """The table of all processes of a gateway. Made before the processes are forked.

    numbers: the `struct` format of the numbers of a state.
    """

    def __init__(self, numbers: str, *, places: int = PLACES) -> None:
        self._numbers = struct.Struct(f"={numbers}")
        self._size = _HEAD.size + self._numbers.size
        self._places = min(places, MAX_BYTES // self._size)
        self._end = self._places * self._size
        self._fd = os.memfd_create("tidegate-quotas", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, self._end)
        self._memory = mmap.mmap(self._fd, self._end)

    def find(self, key: int, now_ms: int) -> int:
        """Return the offset of the place of a state. If it has none, assign it a place, filled with zeros."""
        first = key % (self._places - PROBES) * self._size
        best, best_ms, idle_ms = first, now_ms, now_ms - IDLE_MS
        with self.locked(self._end):  # the offset after the last place locks the whole table
            for at in range(first, first + PROBES * self._size, self._size):
                found, charged_ms = _HEAD.unpack_from(self._memory, at)
                if found == key and charged_ms >= idle_ms:
                    return at
                if found == key or idle_ms <= best_ms > charged_ms:
                    best, best_ms = at, charged_ms
                if found in (key, 0):
                    break
            self._memory[best : best + self._size] = _HEAD.pack(key, now_ms) + bytes(self._numbers.size)
        return best

    def holds(self, at: int, key: int) -> bool:
        """Return whether a place still belongs to a state."""
        return bool(_HEAD.unpack_from(self._memory, at)[0] == key)

    def load(self, at: int) -> tuple[Any, ...]:
        """Return the numbers of a place."""
        return self._numbers.unpack_from(self._memory, at + _HEAD.size)

    def store(self, at: int, key: int, numbers: tuple[Any, ...], charged_ms: int | None) -> None:
        """Store the numbers of a state. charged_ms: the time of the charge; None: nothing was charged."""
        if charged_ms is not None:
            _HEAD.pack_into(self._memory, at, key, charged_ms)
        self._numbers.pack_into(self._memory, at + _HEAD.size, *numbers)

    @contextmanager
    def locked(self, at: int) -> Iterator[None]:
        """Lock a place of the table for the duration of the block."""
        has_lock = self._lock(at)
        try:
            yield
        finally:
            if has_lock:
                fcntl.lockf(self._fd, fcntl.LOCK_UN, self._size, at)

    def _lock(self, at: int) -> bool:
        """Lock a place. Return False if the process that holds the lock does not continue."""
        end_s = 0.0
        for tries in count():
            with suppress(OSError):
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, self._size, at)
                return True
            if tries < _YIELDS:
                os.sched_yield()
                continue
            end_s = end_s or time.monotonic() + _LONGEST_S
            time.sleep(_SLEEP_S)
            if tries >= _YIELDS + _SLEEPS and (time.monotonic() > end_s or not self._holder_can_run(at)):
                break
        return False

    def _holder_can_run(self, at: int) -> bool:
        """Return whether the process that holds the lock of a place runs, or waits for a processor or for memory."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, self._size, 0)
        kind, _, _, _, process = _FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_GETLK, asked))
        if kind == fcntl.F_UNLCK:
            return True
        try:
            state = Path(f"/proc/{process}/stat").read_bytes().rpartition(b") ")[2][:1]
        except OSError:
            return True  # the process has ended, which released the lock
        return state in (b"R", b"D")


class _Place:
    """The place of one state in a table."""

    __slots__ = ("_at", "_key", "_now_ms", "_table")

    def __init__(self, table: SharedStates, now_ms: Callable[[], int], name: str) -> None:
        digest = blake2b(name.encode(), digest_size=_KEY_BYTES).digest()
        self._table, self._now_ms = table, now_ms
        self._key = int.from_bytes(digest, "big") or 1
        self._at = table.find(self._key, now_ms())

    @contextmanager
    def opened(self, state: "_SharedBucket | _SharedRate", charged_ms: int | None) -> Iterator[None]:
        """Load a state from its place, and store it at the end. charged_ms: when it is charged."""
        table, key = self._table, self._key
        if not table.holds(self._at, key):
            self._at = table.find(key, self._now_ms())
        at = self._at
        with table.locked(at):
            has_place = table.holds(at, key)
            if has_place:
                state.load(table.load(at))
            yield
            # Check again: `find`, which locks the whole table, may have assigned the place to a new state.
            if has_place and table.holds(at, key):
                table.store(at, key, state.numbers(), charged_ms)


def _shared(
    method: Callable[Concatenate[Any, _P], _R], *, charges: bool = False
) -> Callable[Concatenate[Any, _P], _R]:
    """Return a method that works on the shared state. charges: its last argument is the time of a charge."""

    def with_place(self: Any, /, *args: _P.args, **options: _P.kwargs) -> _R:
        charged_ms: Any = args[-1] if charges else None
        with self.place.opened(self, charged_ms):
            return method(self, *args, **options)

    return with_place


class _SharedBucket(TokenBucket):
    """A bucket whose balance is shared. Its rate and window are those of this process.

    The place also has the offset of the last record that was charged, and when that was.
    """

    __slots__ = ("_offset", "_offset_ms", "place")

    def __init__(self, place: _Place, window: QuotaWindow, rate: float) -> None:
        self.place = place
        self._offset = self._offset_ms = 0
        super().__init__(samples=window.samples, window_ms=window.window_ms, rate=rate)

    def _note_offset(self, offset: int, now_ms: int, /) -> bool:
        """Return False if a process has charged the record at an offset, or a later one; otherwise store the offset."""
        if offset <= self._offset and now_ms - self._offset_ms < LATE_MS:
            return False
        self._offset, self._offset_ms = offset, now_ms
        return True

    is_first = _shared(_note_offset, charges=True)
    record = _shared(TokenBucket.record, charges=True)
    tokens = _shared(TokenBucket.tokens)
    throttle_ms = _shared(TokenBucket.throttle_ms)
    forgive = _shared(TokenBucket.forgive)
    peek = _shared(TokenBucket.peek)
    peek_throttle_ms = _shared(TokenBucket.peek_throttle_ms)
    snapshot = _shared(TokenBucket.snapshot)

    def load(self, numbers: tuple[Any, ...]) -> None:
        """Use the balance of the place."""
        self.floats[TOKENS], self.ints[UPDATED], self._offset, self._offset_ms = numbers

    def numbers(self) -> tuple[Any, ...]:
        """Return the balance."""
        return self.floats[TOKENS], self.ints[UPDATED], self._offset, self._offset_ms


class _SharedRate(SampledRate):
    """A rate whose samples are shared. Its bound and window are those of this process.

    Only the methods that connection quotas use work on the samples of all processes.
    """

    __slots__ = ("place",)

    def __init__(self, place: _Place, *, samples: int, window_ms: int, bound: float, cap_ms: int) -> None:
        self.place = place
        super().__init__(samples=samples, window_ms=window_ms, bound=bound, cap_ms=cap_ms)

    record = _shared(SampledRate.record, charges=True)
    decide = _shared(SampledRate.decide, charges=True)
    peek = _shared(SampledRate.peek)

    def load(self, numbers: tuple[Any, ...]) -> None:
        """Use the samples of the place, with the own bound: what follows from both is computed again."""
        floats, ints = self._floats, self._ints
        own = floats[BOUND], ints[SAMPLES], ints[WINDOW_MS], ints[CAP_MS]
        floats[:], ints[:] = numbers[: len(floats)], numbers[len(floats) :]
        rate_configure(floats, ints, *own)
        self._take()

    def numbers(self) -> tuple[Any, ...]:
        """Return all that the kernel keeps."""
        floats, ints = self._give()
        return *floats, *ints


class SharedBuckets(SharedStates):
    """The balances of all buckets. A bucket is that of all brokers, as that of Kafka's controller is."""

    def __init__(self, *, places: int = PLACES) -> None:
        super().__init__("dqqq", places=places)

    def buckets(self, now_ms: Callable[[], int]) -> Callable[[str, QuotaWindow, float], TokenBucket]:
        """Return what makes the bucket of a sensor, from the sensor's name, window and rate."""
        place_of = partial(_Place, self, now_ms)
        return lambda name, window, rate: _SharedBucket(place_of(name), window, rate)


class SharedRates(SharedStates):
    """The samples of all rates of connections. samples: how many a rate has, without the extra one."""

    def __init__(self, samples: int, *, places: int = PLACES) -> None:
        floats, ints = rate_state(samples)
        super().__init__(f"{len(floats)}d{len(ints)}q", places=places)
        self._samples = samples

    def rate(
        self, broker_id: int, now_ms: Callable[[], int], name: str, *, samples: int, **settings: Any
    ) -> SampledRate:
        """Return a rate of a broker with the arguments of `SampledRate`."""
        if samples != self._samples:
            return SampledRate(
                samples=samples, **settings
            )  # the settings were changed before this process started
        place = _Place(self, now_ms, f"{broker_id} {name}")
        return _SharedRate(place, samples=samples, **settings)

"""The buckets of mutation quotas, in memory that the processes of a gateway share.

A bucket has one balance, whichever process charges it: a client with one connection has its whole quota. Each process
keeps the rate and the window of its quota, and finds the balance in a place of the shared table. It locks the place
while it reads or changes it, with a record lock of the kernel, which ends with the process that holds it.

A bucket of a broker is named by a digest, and has one of the `PROBES` places from that of its digest on. A place that
no process has charged for an hour is free, because sensors expire then. Without a free place, the bucket of a process
is its own.
"""

import fcntl
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b

from tidegate.quota.measure.bucket_kernel import TOKENS, UPDATED
from tidegate.quota.measure.snapshot import Snapshot
from tidegate.quota.measure.token_bucket import TokenBucket
from tidegate.quota.measure.window import QuotaWindow

__all__ = ["IDLE_MS", "PLACES", "PROBES", "SharedBuckets"]

PLACES = 1 << 17
PROBES = 32
IDLE_MS = 3_600_000
"""Time without a charge after which a bucket is full again, as a sensor that has expired."""
_PLACE = struct.Struct("=Qqdq")  # digest, time of the last charge, tokens, time of the last touch
_KEY_BYTES = 8
_TRIES = 1000
"""Tries to lock before a process goes on without: another one was stopped while it held the lock."""


class SharedBuckets:
    """The table of all processes of a gateway. Made before the processes are forked."""

    def __init__(self, *, places: int = PLACES) -> None:
        self._places = places
        self._fd = os.memfd_create("tidegate-buckets", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, places * _PLACE.size)
        self._memory = mmap.mmap(self._fd, places * _PLACE.size)

    def of_broker(
        self, broker_id: int, now_ms: Callable[[], int]
    ) -> Callable[[str, QuotaWindow, float], TokenBucket]:
        """Return what makes the bucket of a sensor of a broker, from the sensor's name, window and rate."""
        return partial(self._bucket, broker_id, now_ms)

    def _bucket(
        self, broker_id: int, now_ms: Callable[[], int], name: str, window: QuotaWindow, rate: float
    ) -> TokenBucket:
        digest = blake2b(f"{broker_id} {name}".encode(), digest_size=_KEY_BYTES).digest()
        key = int.from_bytes(digest, "big") or 1
        return _SharedBucket(self, key, now_ms, samples=window.samples, window_ms=window.window_ms, rate=rate)

    def find(self, key: int, now_ms: int) -> int | None:
        """Return where the place of a bucket begins, taken if it has none; None: all are taken by others."""
        first = key % (self._places - PROBES)
        free = None
        with self.locked(self._places * _PLACE.size):  # behind the last place: the table as a whole
            for at in range(first * _PLACE.size, (first + PROBES) * _PLACE.size, _PLACE.size):
                found, charged_ms, _, _ = _PLACE.unpack_from(self._memory, at)
                is_idle = charged_ms < now_ms - IDLE_MS
                if found == key and not is_idle:
                    return at
                if is_idle and (free is None or found == key):
                    free = at
                if found in (key, 0):
                    break
            if free is not None:
                _PLACE.pack_into(self._memory, free, key, now_ms, 0.0, 0)
        return free

    def load(self, at: int, key: int) -> tuple[float, int] | None:
        """Return tokens and the time of the last touch; None: the place has become another bucket's."""
        found, _, tokens, updated_ms = _PLACE.unpack_from(self._memory, at)
        return (tokens, updated_ms) if found == key else None

    def store(self, at: int, key: int, tokens: float, updated_ms: int, charged_ms: int | None) -> None:
        """Keep a balance. charged_ms: None: nothing was charged."""
        if charged_ms is None:
            _, charged_ms, _, _ = _PLACE.unpack_from(self._memory, at)
        _PLACE.pack_into(self._memory, at, key, charged_ms, tokens, updated_ms)

    @contextmanager
    def locked(self, at: int) -> Iterator[None]:
        """Keep the other processes from a place of the table."""
        has_lock = False
        for _ in range(_TRIES):
            with suppress(OSError):
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, _PLACE.size, at)
                has_lock = True
                break
            os.sched_yield()
        try:
            yield
        finally:
            if has_lock:
                fcntl.lockf(self._fd, fcntl.LOCK_UN, _PLACE.size, at)


class _SharedBucket(TokenBucket):
    """A bucket whose balance is shared. Its rate and window are those of this process."""

    __slots__ = ("_at", "_key", "_now_ms", "_table")

    def __init__(
        self,
        table: SharedBuckets,
        key: int,
        now_ms: Callable[[], int],
        *,
        samples: int,
        window_ms: int,
        rate: float,
    ) -> None:
        self._table, self._key, self._now_ms = table, key, now_ms
        self._at = table.find(key, now_ms())
        super().__init__(samples=samples, window_ms=window_ms, rate=rate)

    def record(self, value: float, now_ms: int) -> None:
        """Subtract `value` tokens, even if there are fewer."""
        with self._balance(now_ms):
            super().record(value, now_ms)

    def tokens(self, now_ms: int) -> float:
        """Refill and return the tokens."""
        with self._balance():
            return super().tokens(now_ms)

    def throttle_ms(self, now_ms: int) -> int:
        """Refill and return the ms until the bucket is at zero again; 0 while it is not below."""
        with self._balance():
            return super().throttle_ms(now_ms)

    def forgive(self, debt_max_s: float, now_ms: int) -> float:
        """Leave a debt of so many seconds of the rate at most; return how many tokens that takes."""
        with self._balance():
            return super().forgive(debt_max_s, now_ms)

    def peek(self, now_ms: int) -> float:
        """Return what `tokens` would return, without any effect."""
        with self._balance():
            return super().peek(now_ms)

    def peek_throttle_ms(self, now_ms: int) -> int:
        """Return what `throttle_ms` would return, without any effect."""
        with self._balance():
            return super().peek_throttle_ms(now_ms)

    def snapshot(self, now_ms: int) -> Snapshot:
        """Return the tokens as of the last touch, without any effect."""
        with self._balance():
            return super().snapshot(now_ms)

    @contextmanager
    def _balance(self, charged_ms: int | None = None) -> Iterator[None]:
        """Load the balance from its place, and store it at the end. charged_ms: when it is charged."""
        table, key = self._table, self._key
        if self._at is None or table.load(self._at, key) is None:
            self._at = table.find(key, self._now_ms())
        at = self._at
        if at is None:
            yield
            return
        with table.locked(at):
            balance = table.load(at, key)
            if balance is not None:
                self.floats[TOKENS], self.ints[UPDATED] = balance
            yield
            if balance is not None:
                table.store(at, key, self.floats[TOKENS], self.ints[UPDATED], charged_ms)

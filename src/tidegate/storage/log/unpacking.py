"""Decompression of stored record batches, for lookups by time: on a thread of its own, in bounded memory.

A client chooses what a batch expands to, and zstd makes gigabytes of a few kilobytes. At most `MAX_UNPACKED_BYTES` of a
batch are decompressed, one batch at a time; the records behind them are not read (row L2). The event loop runs while a
codec works, because codecs release the interpreter's lock.
Principals take turns: the lookups of one tenant do not wait for a thousand of another. At most `_HELD_AT_ONCE` batches
of a principal are in memory, because the thread is faster than the event loop, which reads them.
Follows: Kafka `CompressionType`, `SnappyInputStream`.
"""

import mmap
import os
import struct
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

from tidegate.error_codes import UNKNOWN_SERVER_ERROR
from tidegate.fair_share import UNKNOWN_OWNER, Rounds
from tidegate.storage.errors import UnreadableBatchError
from tidegate.storage.log.file_slice import SegmentFile
from tidegate.wire.batch import HEADER_BYTES, BatchHeader
from tidegate.wire.records import GZIP_WINDOW

__all__ = ["MAX_UNPACKED_BYTES", "Outcome", "Unpack", "Unpacked", "Unpacker", "unpack"]

MAX_UNPACKED_BYTES: Final = 8 << 20
"""Most bytes that are decompressed of a batch, and that a compressed batch may have. Producers begin a new batch at
16 KB (Java) to 1 MB (librdkafka) of records. To free so much at once takes 2.5 ms."""
_FREED_AT_ONCE = 1 << 20
_HELD_AT_ONCE = 2
"""Batches of a principal that are decompressed and not freed yet: one is read while the thread works at the next."""
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
_EXPANSION = 8  # what is tried first, times the compressed size: most batches expand less
_LEAST_BYTES = 64 * 1024
_XERIAL = b"\x82SNAPPY\x00"  # what a stream of `SnappyOutputStream` begins with
_XERIAL_HEADER_BYTES = 16  # magic and two versions
_SIZE = struct.Struct(">i")
_MOST_SNAPPY_EXPANSION = 64  # a copy of 64 bytes takes at least two


class Unpacked(NamedTuple):
    """Records of a batch, and whether that is all of them. `data` may have zero bytes behind them."""

    data: bytes | bytearray | mmap.mmap
    size: int
    is_all: bool

    def free_in_slices(self) -> Iterator[None]:
        """Free the memory of the records a part at a time. They cannot be read any more."""
        if isinstance(self.data, mmap.mmap):
            for start in range(0, len(self.data), _FREED_AT_ONCE):
                self.data.madvise(mmap.MADV_DONTNEED, start, min(_FREED_AT_ONCE, len(self.data) - start))
                yield
            self.data.close()


class Outcome(NamedTuple):
    """Result of decompressing a batch: its records or the error, and the processor time that it took.

    on_freed: to be called once, when the records are not needed any more.
    """

    unpacked: Unpacked | None
    error: Exception | None
    took_ns: int
    on_freed: Callable[[], None]

    def result(self) -> Unpacked:
        """Return the records. Raises `UnreadableBatchError`, `OSError` or `MemoryError`."""
        if self.error is not None:
            raise self.error
        assert self.unpacked is not None
        return self.unpacked


Unpack = Callable[..., "Future[Outcome]"]
"""`Unpacker.unpack` for one principal."""
_Entry = tuple["Future[Outcome]", Callable[[], Outcome]]


class Unpacker:
    """A thread that decompresses batches one after another, in rounds over principals. The first batch starts it."""

    def __init__(self) -> None:
        self._worker: ThreadPoolExecutor | None = None
        self._lock = threading.RLock()  # reentrant: garbage collection can free a lookup's batch anywhere
        self._waiting: Rounds[_Entry] = Rounds()
        # By principal: how many batches are queued or not freed yet, and the batches that wait for one to be freed.
        self._held: Counter[str] = Counter()
        self._put_off: dict[str, deque[_Entry]] = {}

    def unpack(
        self,
        file: SegmentFile,
        position: int,
        batch: BatchHeader,
        *,
        most: bool,
        owner: str = UNKNOWN_OWNER,
    ) -> "Future[Outcome]":
        """Begin to decompress the batch at `position` for a principal.

        most: decompress up to the bound; False: up to a multiple of the compressed size.
        """
        future: Future[Outcome] = Future()
        on_freed = partial(self._free, owner)
        entry = future, partial(_timed, file, position, batch, most, on_freed)
        with self._lock:
            if self._held[owner] < _HELD_AT_ONCE:
                self._begin(entry, owner)
            else:
                self._put_off.setdefault(owner, deque()).append(entry)
        return future

    def _begin(self, entry: _Entry, owner: str) -> None:
        """Queue a batch for the thread. Called with the lock held; the thread waits for the lock."""
        if self._worker is None:
            self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tidegate-unpack")
        self._worker.submit(self._unpack_next)
        self._waiting.append(entry, owner)
        self._held[owner] += 1

    def _free(self, owner: str) -> None:
        """Queue the next batch of a principal, now that one of its batches was freed."""
        with self._lock:
            self._held[owner] -= 1
            entries = self._put_off.get(owner)
            if entries:
                self._begin(entries.popleft(), owner)
            else:
                self._put_off.pop(owner, None)
                if not self._held[owner]:
                    del self._held[owner]

    def _unpack_next(self) -> None:
        """Decompress the batch whose turn it is: there is one for each call."""
        with self._lock:
            future, work = self._waiting.popleft()
        future.set_result(work())

    def close(self) -> None:
        """End the thread; batches that it has not begun are not decompressed."""
        with self._lock:
            put_off, self._put_off = self._put_off, {}
        if self._worker is not None:
            self._worker.shutdown(wait=True, cancel_futures=True)
        while self._waiting:
            self._waiting.popleft()[0].cancel()
        for entries in put_off.values():
            for future, _ in entries:
                future.cancel()


def _timed(
    file: SegmentFile, position: int, batch: BatchHeader, most: bool, on_freed: Callable[[], None]
) -> Outcome:
    begun_ns = time.thread_time_ns()
    unpacked: Unpacked | None = None
    error: Exception | None = None
    try:
        unpacked = _unpack_stored(file, position, batch, most)
    except Exception as raised:
        error = raised.with_traceback(None)  # a frame that keeps it is a cycle
    except BaseException as raised:
        # A panic of a codec is no `Exception`, and would end the event loop.
        error = _unreadable(f"decompression failed: {raised!r}")
    return Outcome(unpacked, error, time.thread_time_ns() - begun_ns, on_freed)


def _unpack_stored(file: SegmentFile, position: int, batch: BatchHeader, most: bool) -> Unpacked:
    size = batch.size - HEADER_BYTES
    if size > MAX_UNPACKED_BYTES:
        return Unpacked(b"", 0, False)
    packed = os.pread(file.fd, size, position + HEADER_BYTES)
    room = MAX_UNPACKED_BYTES if most else min(max(size * _EXPANSION, _LEAST_BYTES), MAX_UNPACKED_BYTES)
    return unpack(batch.compression, packed, room)


def unpack(codec: int, packed: bytes, room: int) -> Unpacked:
    """Return what `packed` expands to, at most `room` bytes of it. Raises `UnreadableBatchError`.

    codec: as in a batch's attributes.

    >>> unpack(GZIP, zlib.compress(b"records", wbits=31), 4)
    Unpacked(data=b'reco', size=4, is_all=False)
    """
    if codec == GZIP:
        return _gunzipped(packed, room)
    if codec == SNAPPY:
        return _unsnapped(packed, room)
    if codec in (LZ4, ZSTD):
        return _expanded(codec, packed, room)
    raise _unreadable(f"unknown codec {codec}")


def _gunzipped(packed: bytes, room: int) -> Unpacked:
    unpacker = zlib.decompressobj(GZIP_WINDOW)
    try:
        data = unpacker.decompress(packed, room)
    except zlib.error as error:
        raise _unreadable(f"gzip: {error}") from error
    if not unpacker.eof and len(data) < room:
        raise _unreadable("gzip: stream is truncated")
    return Unpacked(data, len(data), unpacker.eof)


def _expanded(codec: int, packed: bytes, room: int) -> Unpacked:
    """Decompress lz4 or zstd into memory that is taken as it is written to."""
    import cramjam  # 1.6 MB, where such a batch is looked into

    module = cramjam.lz4 if codec == LZ4 else cramjam.zstd
    try:
        data = mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE)  # of a shared one no part can be given back
    except OSError as error:  # not one of the log, which would count as damaged
        raise _unreadable(f"no memory to decompress it: {error}") from error
    try:
        return Unpacked(data, module.decompress_into(packed, data), True)
    except cramjam.DecompressionError as error:
        if "failed to write whole buffer" in str(error):  # there is no other way to tell
            return Unpacked(data, room, False)
        data.close()
        raise _unreadable(f"{module.__name__}: {error}") from error


def _unsnapped(packed: bytes, room: int) -> Unpacked:
    """Decompress snappy, in the blocks of Java's stream or as a whole."""
    if not packed.startswith(_XERIAL):
        block = _snappy_block(packed, room)
        return Unpacked(b"", 0, False) if block is None else Unpacked(block, len(block), True)
    data, at = bytearray(), _XERIAL_HEADER_BYTES
    while at < len(packed):
        size = _SIZE.unpack_from(packed, at)[0] if at + _SIZE.size <= len(packed) else -1
        at += _SIZE.size
        if not 0 <= size <= len(packed) - at:
            raise _unreadable(
                f"snappy: block at byte {at} has {size} bytes, but only {len(packed) - at} remain"
            )
        block = _snappy_block(packed[at : at + size], room - len(data))
        if block is None:
            return Unpacked(data, len(data), False)
        data += block
        at += size
    return Unpacked(data, len(data), True)


def _unreadable(why: str) -> UnreadableBatchError:
    return UnreadableBatchError(why, UNKNOWN_SERVER_ERROR)


def _snappy_block(packed: bytes, room: int) -> bytes | None:
    """Return what a block expands to, None where that is more than `room` bytes."""
    import cramjam

    try:
        size = cramjam.snappy.decompress_raw_len(packed)
        if size > len(packed) * _MOST_SNAPPY_EXPANSION:
            raise _unreadable(f"snappy: block of {len(packed)} bytes claims to decompress to {size}")
        return None if size > room else bytes(cramjam.snappy.decompress_raw(packed))
    except cramjam.DecompressionError as error:
        raise _unreadable(f"snappy: {error}") from error

"""What producers were promised, and what a log has: who was acknowledged what, and every record as it was read.

A value names its producer and counts: "7 1234 ....". So a log says by itself whether a record is there twice, is
missing between others or comes in the wrong order; what was acknowledged is then looked up at its offset.
"""

import enum
from array import array
from collections import deque
from typing import NoReturn

from tests.simulation.auditor import ViolationError

__all__ = ["Delivery", "Partition", "Stream", "ViolationError", "value_of"]

_NOT_READ = -1
_FILLING = b"." * 4096
_SIZES = (20, 90, 100, 250, 1000, 30, 100, 3000)
_COUNTS = 40  # bits of a code that are the count of a record, the producer's number lies above


class Delivery(enum.Enum):
    """What a producer is promised beside that all it was acknowledged is there."""

    EXACTLY_ONCE = "idempotent"
    AT_MOST_ONCE = "without retries"
    AT_LEAST_ONCE = "with retries"


def value_of(producer: int, count: int) -> bytes:
    """Return the value of a producer's record: 20 to 3000 bytes.

    >>> value_of(7, 8)
    b'7 8 ................'
    """
    value = b"%d %d " % (producer, count)
    return value + _FILLING[: _SIZES[count % len(_SIZES)] - len(value)]


class Stream:
    """The records of one producer to one partition. It alone adds to it, `Partition.check` takes away."""

    def __init__(self, producer: int, delivery: Delivery) -> None:
        self.producer = producer
        self.delivery = delivery
        self.sent = 0
        self.acknowledged = 0
        self.unchecked: deque[tuple[int, int]] = deque()  # count and offset of what was acknowledged
        self.next = 0  # the count that comes next in the log

    def send(self) -> tuple[int, bytes]:
        """Return the count and the value of the next record."""
        count = self.sent
        self.sent += 1
        return count, value_of(self.producer, count)

    def acknowledge(self, count: int, offset: int) -> None:
        """Note that a record was acknowledged at an offset."""
        self.acknowledged += 1
        self.unchecked.append((count, offset))


class Partition:
    """A partition as its producers and its readers see it. streams: by the number of their producer."""

    def __init__(self, topic: str, number: int) -> None:
        self.topic, self.number = topic, number
        self.streams: dict[int, Stream] = {}
        self.start = 0  # of the log: what is before was deleted by retention
        self.codes = array("q")  # of each offset: who wrote it, and as which of its records

    @property
    def end(self) -> int:
        """The offset that is read next."""
        return len(self.codes)

    def stream(self, producer: int, delivery: Delivery) -> Stream:
        """Return the stream of a producer, made where there is none."""
        return self.streams.setdefault(producer, Stream(producer, delivery))

    def begin(self, start: int) -> None:
        """Take note of where the log begins. What has gone was not there to be read."""
        self.start = start
        if start > self.end:
            self.codes.extend([_NOT_READ] * (start - self.end))
            for stream in self.streams.values():
                stream.next = -1

    def read(self, offset: int, value: bytes | None) -> None:
        """Take a record that was read, in order of offset or once more. Raises `ViolationError`."""
        if offset < self.end:
            self.check_read(offset, value)
            return
        producer, count = self._decode(offset, value)
        if offset > self.end:
            self._fail(f"has offset {offset} after {self.end - 1}")
        self._follow(self.streams[producer], count, offset)
        self.codes.append(producer << _COUNTS | count)

    def check_read(self, offset: int, value: bytes | None) -> None:
        """Compare a record with the one that was read at its offset, if one was. Raises `ViolationError`."""
        producer, count = self._decode(offset, value)
        code = producer << _COUNTS | count
        if self.codes[offset] not in (code, _NOT_READ):
            self._fail(f"had at offset {offset} {_named(self.codes[offset])} and has {_named(code)}")

    def check(self, due: dict[int, int]) -> int:
        """Look up what each producer (by number) was acknowledged first, as many as are due; return how many.

        The log must have been read to an end that was asked for later. Raises `ViolationError`.
        """
        checked = 0
        for producer, records in due.items():
            stream = self.streams[producer]
            lost = []
            for _ in range(records):
                count, offset = stream.unchecked.popleft()
                code = self.codes[offset] if offset < self.end else _NOT_READ
                if code != (producer << _COUNTS | count) and not (code == _NOT_READ and offset < self.start):
                    lost.append((count, offset))
            if lost:
                (count, offset), (last, last_offset) = lost[0], lost[-1]
                self._fail(
                    f"has lost {len(lost)} acknowledged records of producer {producer} ({stream.delivery.value}): "
                    f"{count} at offset {offset} to {last} at offset {last_offset}; it ends at {self.end}"
                )
            checked += records
        return checked

    def unchecked(self) -> dict[int, int]:
        """Return how many acknowledged records of each producer were not looked up yet."""
        return {producer: len(stream.unchecked) for producer, stream in self.streams.items()}

    def _decode(self, offset: int, value: bytes | None) -> tuple[int, int]:
        producer, count = -1, -1
        parts = (value or b"").split(b" ", 2)
        if len(parts) == 3 and parts[0].isdigit() and parts[1].isdigit():
            producer, count = int(parts[0]), int(parts[1])
        if producer in self.streams and value == value_of(producer, count):
            return producer, count
        return self._fail(f"has at offset {offset} what nobody sent: {(value or b'')[:60]!r}")

    def _follow(self, stream: Stream, count: int, offset: int) -> None:
        wanted = count if stream.next < 0 else stream.next
        if count >= stream.sent:
            self._fail(f"has at offset {offset} record {count} of producer {stream.producer}, not sent yet")
        if count < wanted and stream.delivery is not Delivery.AT_LEAST_ONCE:
            self._fail(
                f"has record {count} of producer {stream.producer} ({stream.delivery.value}) twice or too late, "
                f"at offset {offset}, where {wanted} was due"
            )
        if count > wanted and stream.delivery is not Delivery.AT_MOST_ONCE:
            self._fail(
                f"lacks records {wanted} to {count - 1} of producer {stream.producer} ({stream.delivery.value}) "
                f"before offset {offset}"
            )
        stream.next = max(count + 1, wanted)

    def _fail(self, problem: str) -> NoReturn:
        raise ViolationError(f"{self.topic}-{self.number} {problem}")


def _named(code: int) -> str:
    return f"record {code & ((1 << _COUNTS) - 1)} of producer {code >> _COUNTS}"

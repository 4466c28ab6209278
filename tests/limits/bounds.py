"""What one request may cost others: the bars that every test here is judged by."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.limits.watched import Exchanged, Seen, WatchedBroker, exchange

HOLD_MS = 20.0
"""Longest that the event loop may serve nobody else: four orders of the neighbour's, who sends one every 5 ms."""

NEIGHBOUR_MS = 100.0
"""Longest that the neighbour may wait for an answer, besides for a processor: a few turns of others, of a hold each."""

PEAK_BYTES = 1_000_000
KEPT_BYTES = 1_000_000
"""What may come on top in any case: a socket's buffers, the neighbour's own."""

ATTEMPTS = 3
"""What is the broker's own shows each time, what a busy machine adds does not: the best attempt counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """How many bytes of memory a byte of a request, and of its answer, may take until it is answered, and why."""

    per_byte: float
    per_answer_byte: float = 1
    why: str


ANY = Memory(per_byte=0, why="what is said of the piece of work itself counts")

MEMORY: Mapping[str, Memory] = {
    "Frame": Memory(per_byte=3, why="the bytes as they came, and a copy of a text that is read"),
    "Produce": Memory(
        per_byte=180, why="a partition of 6 bytes is a dict, an error with its text, and an answer"
    ),
    "Fetch": Memory(
        per_byte=100, why="a partition of 16 bytes or more is a dict, what is to be read, and its answer"
    ),
    "ListOffsets": Memory(
        per_byte=100,
        why="a partition of 12 bytes is read as a dict, answered by one, and an entry of a third",
    ),
    "Metadata": Memory(per_byte=100, why="a name of 8 bytes is read as a dict, and each is answered by one"),
    "OffsetCommit": Memory(
        per_byte=100, why="a position of 14 bytes or more is two dicts, an object, and three entries"
    ),
    "OffsetFetch": Memory(
        per_byte=60,
        per_answer_byte=24,
        why="an index of 4 bytes is answered by a dict; so is a whole group of 8 bytes, up to 100,000 positions",
    ),
    "FindCoordinator": Memory(per_byte=100, why="a key of one byte is a text in a list, and looked up once"),
    "CreateTopics": Memory(
        per_byte=60,
        per_answer_byte=2,
        why="a topic of 16 bytes or more is a dict, a plan, and an answer with all its settings, a part at a time",
    ),
    "DeleteTopics": Memory(
        per_byte=100, why="a name of one or two bytes is a text in a list, and answered once"
    ),
    "DescribeConfigs": Memory(per_byte=64, why="a key of one byte is a text in a list, and looked up once"),
    "CreatePartitions": Memory(
        per_byte=100,
        why="a topic of 6 bytes or more is a dict with a list, counted by its name, and answered by one",
    ),
    "DescribeClientQuotas": Memory(per_byte=30, why="a component of 19 bytes or more is a dict"),
    "AlterClientQuotas": Memory(
        per_byte=50, why="an entry of 50 bytes is four dicts, an alteration, and an answer"
    ),
    "DescribeTopicPartitions": Memory(per_byte=100, why="a name of 8 bytes is a dict, and answered by one"),
    "JoinGroup": Memory(per_byte=60, why="a protocol of 2 bytes or more is a dict"),
    "ConsumerGroupHeartbeat": Memory(per_byte=60, why="a name of one byte is a text in a list"),
}
"""By API; where no array can be repeated there is nothing to say. What an element becomes, by its fields, over the
least bytes that it has on the wire; at most what the handler's own description says. A third to two thirds is seen."""

PARTITION_BYTES = 20_000
"""What a partition may keep: its log, its files' buffers, its names. There are at most 4,000 (row L7)."""

DEFINITION_BYTES = 3000
"""What a quota definition may keep: its row's names, its place in the tables by level, its record."""

PRODUCER_BYTES = 1000
"""What the state of a producer id of a partition may keep; the node's bound is `MAX_PRODUCER_BYTES`."""


def judge(
    broker: WatchedBroker, api: str, *attempts: Sequence[bytes], may_keep_bytes: int = 0, ends: bool = False
) -> Seen:
    """Send requests, one after the other's answer, and assert that no bar was passed; return what was seen first.

    attempts: what to send at each; the last is sent again where there are fewer. ends: the connection may be closed
    for it.
    """
    works = [lambda frames=frames: exchange(broker.port, frames, ends=ends) for frames in attempts]
    return judge_work(broker, *works, memory=MEMORY[api], may_keep_bytes=may_keep_bytes)


def judge_work(
    broker: WatchedBroker,
    *attempts: Callable[[], Exchanged],
    memory: Memory = ANY,
    may_take_bytes: int = 0,
    may_keep_bytes: int = 0,
) -> Seen:
    """Do a piece of work and assert that no bar was passed; return what was seen first.

    The first attempt alone says how much memory it takes: later ones find what it left.
    """
    first = None
    for attempt in range(ATTEMPTS):
        seen = broker.watch(attempts[min(attempt, len(attempts) - 1)], may_keep_bytes + KEPT_BYTES)
        found = _slow(seen)
        if first is None:
            first = seen
            fat = _fat(seen, memory=memory, may_take_bytes=may_take_bytes, may_keep_bytes=may_keep_bytes)
            assert not fat, f"{'; '.join(found + fat)}\n{seen}"
        if not found:
            return first
    raise AssertionError(f"{'; '.join(found)}, {ATTEMPTS} times\n{seen}")


def _slow(seen: Seen) -> list[str]:
    wait_ms = max(seen.neighbour_ms, default=0.0) - seen.processor_wait_ms
    return _over(
        ("the longest hold", seen.hold_ms, HOLD_MS, "ms"),
        ("the neighbour's longest wait", wait_ms, NEIGHBOUR_MS, "ms"),
    )


def _fat(seen: Seen, *, memory: Memory, may_take_bytes: int, may_keep_bytes: int) -> list[str]:
    peak_bytes = memory.per_byte * seen.sent_bytes + memory.per_answer_byte * seen.answer_bytes
    peak_bytes += max(may_take_bytes, may_keep_bytes) + PEAK_BYTES
    return _over(
        ("the memory taken", seen.peak_bytes, peak_bytes, "bytes"),
        ("the memory kept", seen.kept_bytes, may_keep_bytes + KEPT_BYTES, "bytes"),
    )


def _over(*measured: tuple[str, float, float, str]) -> list[str]:
    return [
        f"{what} is {value:,.0f} {unit}, at most {bar:,.0f}"
        for what, value, bar, unit in measured
        if value > bar
    ]

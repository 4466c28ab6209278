"""What one request may cost others: the bars that every test here is judged by."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.limits.watched import Exchanged, Seen, WatchedBroker, exchange

HOLD_MS = 20.0
"""Longest that the event loop may serve nobody else: four orders of the neighbour's, who sends one every 5 ms."""

STEP_CPU_MS = 5.0
"""Longest step of work in slices, by the thread's own processor time: what can be interrupted no sooner.
A slice ends at the first yield after `SLICE_NS`. A fast machine measures 2 at most, a slow one twice as much."""

NEIGHBOUR_MS = 100.0
"""Longest that the neighbour may wait for an answer, besides for a processor: a few turns of others, of a hold each."""

PEAK_BYTES = 1_000_000
KEPT_BYTES = 1_000_000
"""What may come on top in any case: a socket's buffers, the neighbour's own."""

ATTEMPTS = 3
"""What is the broker's own shows each time, what a busy machine adds does not: the best attempt counts.
Of steps, the best attempt at each place. The last one has stacks."""


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
        per_byte=260, why="174 of a partition of 6 bytes: two dicts, a tuple, an error with its text"
    ),
    "Fetch": Memory(per_byte=48, why="32 of a partition of 16 bytes: three dicts and an object"),
    "ListOffsets": Memory(
        per_byte=72, why="48 of a partition of 12 bytes: two dicts, and an entry of a third"
    ),
    "Metadata": Memory(
        per_byte=60, why="39 of a name of 7 bytes that is named again: a dict; 34 of names that differ: two"
    ),
    "OffsetCommit": Memory(
        per_byte=64, why="43 of a topic of 26 bytes: dicts of it and its position, an object, three entries"
    ),
    "OffsetFetch": Memory(
        per_byte=15,
        per_answer_byte=24,
        why="10 of a topic of 16 bytes; an index of 4 bytes, and a group's position, is a dict of its answer",
    ),
    "FindCoordinator": Memory(per_byte=420, why="280 of an empty key of one byte: a dict"),
    "CreateTopics": Memory(
        per_byte=48,
        per_answer_byte=2,
        why="31 of a topic of 16 bytes or more: a dict, a plan, an answer with all settings, a part at a time",
    ),
    "DeleteTopics": Memory(
        per_byte=310, why="205 of an empty name of one byte: a text in a list, and one answer"
    ),
    "DescribeConfigs": Memory(
        per_byte=48, why="32 of a resource of 10 bytes, which is described while its answer is written"
    ),
    "IncrementalAlterConfigs": Memory(per_byte=56, why="37 of a setting of 11 bytes: a dict and a tuple"),
    "DeleteRecords": Memory(per_byte=75, why="a partition of 12 bytes: two dicts, and two entries"),
    "OffsetForLeaderEpoch": Memory(per_byte=60, why="a partition of 12 bytes: two dicts"),
    "AlterConfigs": Memory(per_byte=56, why="a setting of 5 bytes: a dict and a tuple"),
    "DescribeLogDirs": Memory(per_byte=60, why="a partition of 4 bytes: a number in a set"),
    "ElectLeaders": Memory(per_byte=130, why="a partition of 4 bytes: a dict, and an error with its text"),
    "AlterPartitionReassignments": Memory(
        per_byte=130, why="a partition of 5 bytes: two dicts, and an error with its text"
    ),
    "ListPartitionReassignments": Memory(per_byte=40, why="a topic of 3 bytes: a dict"),
    "DescribeProducers": Memory(per_byte=120, why="a partition of 4 bytes: a dict"),
    "ListConfigResources": Memory(per_byte=16, why="a type of 1 byte: a number in a list"),
    "ConsumerGroupHeartbeat": Memory(per_byte=60, why="a name of one byte: a text in a list"),
    "CreatePartitions": Memory(
        per_byte=54, why="35 of a topic of 15 bytes: two dicts, and an entry of a third"
    ),
    "DescribeClientQuotas": Memory(per_byte=27, why="18 of a component of 19 bytes: a dict"),
    "AlterClientQuotas": Memory(per_byte=34, why="22 of an entity's part of 18 bytes: a dict"),
    "CreateAcls": Memory(per_byte=100, why="65 of an ACL of 8 bytes: a dict and a tuple"),
    "DeleteAcls": Memory(
        per_byte=100,
        per_answer_byte=4,
        why="65 of a filter of 8 bytes: a dict and a tuple; an ACL that is found is a place in a list",
    ),
    "DescribeAcls": Memory(
        per_byte=1,
        per_answer_byte=16,
        why="an ACL of 30 bytes is a place in two lists, and a list and an entry for its resource",
    ),
    "DescribeUserScramCredentials": Memory(
        per_byte=400,
        why="a name of two bytes: a dict, an entry of a second, a result and a dict of the answer",
    ),
    "AlterUserScramCredentials": Memory(
        per_byte=400, why="a deletion of four bytes: a dict, a tuple, a result and a dict of the answer"
    ),
    "DescribeTopicPartitions": Memory(
        per_byte=60, why="40 of a name of 10 bytes: two dicts, and an entry of a third"
    ),
    "JoinGroup": Memory(per_byte=45, why="30 of a protocol of 9 bytes: a dict"),
    "SyncGroup": Memory(per_byte=130, why="an assignment of 3 bytes: a dict, and an entry of a second"),
    "LeaveGroup": Memory(per_byte=210, why="a member of 4 bytes: a dict, and one of its answer"),
    "DescribeGroups": Memory(
        per_byte=750, why="an empty name of one byte: a dict of its answer, with a text"
    ),
    "ListGroups": Memory(per_byte=60, why="an empty name of one byte: a text in a list and in a set"),
    "DeleteGroups": Memory(per_byte=80, why="a name of 9 bytes: a text, a dict and an entry of a second"),
    "OffsetDelete": Memory(per_byte=210, why="a partition of 4 bytes: a dict, and one of its answer"),
}
"""By API; where no array can be repeated there is nothing to say. One and a half times the most that was measured, less
the answer's part: every array of `repeats.py`, 33,000, 49,000 and 99,000 long, the worst of each API three times with a
broker of its own, and what `test_requests.py` repeats. At most what the handler's own description says."""

PARTITION_BYTES = 20_000
"""What a partition may keep: its log, its files' buffers, its names. There are at most 4,000 (row L7)."""

DEFINITION_BYTES = 3000
"""What a quota definition may keep: its row's names, its place in the tables by level, its record."""

ACL_BYTES = 2500
"""What an ACL may keep: `Acl.memory_bytes` of one with short names, and its row."""

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
    prepare: Callable[[], object] = lambda: None,
    memory: Memory = ANY,
    may_take_bytes: int = 0,
    may_keep_bytes: int = 0,
) -> Seen:
    """Do a piece of work and assert that no bar was passed; return what was seen first.

    The first attempt alone says how much memory it takes: later ones find what it left. prepare: called before each
    attempt, and not watched.
    """
    first: Seen | None = None
    steps_cpu_ms: dict[str, float] = {}
    for attempt in range(ATTEMPTS):
        prepare()
        work = attempts[min(attempt, len(attempts) - 1)]
        seen = broker.watch(work, may_keep_bytes + KEPT_BYTES, is_sampled=attempt == ATTEMPTS - 1)
        best = seen.steps_cpu_ms if first is None else steps_cpu_ms
        steps_cpu_ms = {at: min(ms, best[at]) for at, ms in seen.steps_cpu_ms.items() if at in best}
        found = _slow(seen, steps_cpu_ms)
        if first is None:
            first = seen
            fat = _fat(seen, memory=memory, may_take_bytes=may_take_bytes, may_keep_bytes=may_keep_bytes)
            assert not fat, f"{'; '.join(found + fat)}\n{seen}"
        if not found:
            return first
    added_ms = _added_by_machine_ms(seen.took_s)
    raise AssertionError(
        f"{'; '.join(found)}, {ATTEMPTS} times\n{seen}\nthis machine alone added up to {added_ms:.1f} ms to equal steps"
    )


def _added_by_machine_ms(for_s: float) -> float:
    """Return the most processor time that this machine has added to one of many equal steps, within `for_s`.

    It is reported and changes no bar. The processor time of a thread contains what the host of a virtual machine takes
    meanwhile.
    """
    steps_ns: list[int] = []
    until_s = time.monotonic() + for_s
    while time.monotonic() < until_s:
        began_ns = time.thread_time_ns()
        sum(range(10_000))
        steps_ns.append(time.thread_time_ns() - began_ns)
    return (max(steps_ns) - statistics.median(steps_ns)) / 1e6 if steps_ns else 0.0


def _slow(seen: Seen, steps_cpu_ms: Mapping[str, float]) -> list[str]:
    wait_ms = max(seen.neighbour_ms, default=0.0) - seen.processor_wait_ms
    return _over(
        ("the longest hold", seen.hold_ms, HOLD_MS, "ms"),
        ("the longest step of work in slices", max(steps_cpu_ms.values(), default=0.0), STEP_CPU_MS, "ms"),
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

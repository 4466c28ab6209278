"""Tests of the cache of fetch sessions: who has to go, and what it takes."""

import random
import tracemalloc

import pytest

from tidegate.broker.fetching.session import NO_SESSION, FetchedPartition, Partitions, next_epoch
from tidegate.broker.fetching.sessions import (
    EVICTED_AFTER_MS,
    MAX_SESSION_BYTES,
    PARTITION_BYTES,
    SESSION_BYTES,
    FetchSessions,
    session_bytes,
)
from tidegate.storage.config import MAX_PARTITIONS

NOW_MS = 1_700_000_000_000
LATER_MS = EVICTED_AFTER_MS + 1
_BYTES = PARTITION_BYTES + 4  # of a partition of a topic with a name of one letter


def of(count: int, topic: str = "t") -> Partitions:
    """Return so many partitions."""
    return {(topic, index): FetchedPartition(topic, index, 0, 1, -1, -1) for index in range(count)}


def create(
    sessions: FetchSessions,
    count: int,
    now_ms: int = NOW_MS,
    *,
    privileged: bool = False,
    topic: str = "t",
    owner: str = "",
) -> int:
    """Make a session of so many partitions; return its id."""
    return sessions.create(of(count, topic), by_ids=False, privileged=privileged, now_ms=now_ms, owner=owner)


def use(sessions: FetchSessions, session_id: int, now_ms: int) -> None:
    """Use a session."""
    session = sessions.session_of(session_id)
    assert session is not None
    sessions.touch(session, now_ms)


def test_young_sessions_stay() -> None:
    """Nobody's takes the place of one that is used and not old yet, however large it is."""
    sessions = FetchSessions(2)
    assert create(sessions, 1)
    assert create(sessions, 1)
    assert create(sessions, 100, NOW_MS + EVICTED_AFTER_MS) == NO_SESSION
    assert len(sessions) == 2


def test_the_one_unused_longest_goes_first() -> None:
    """After two minutes of no use, for a new one of any size."""
    sessions = FetchSessions(2)
    first, second = create(sessions, 50), create(sessions, 50)
    use(sessions, first, NOW_MS + 1)
    assert create(sessions, 1, NOW_MS + LATER_MS)
    assert (sessions.session_of(first) is None, sessions.session_of(second) is None) == (False, True)


def test_larger_sessions_take_the_place_of_smaller_old_ones() -> None:
    """Of those in use the smallest that is old; not one as large."""
    sessions = FetchSessions(3)
    ids = [create(sessions, count) for count in (3, 2, 4)]
    for session_id in ids:
        use(sessions, session_id, NOW_MS + LATER_MS)
    assert create(sessions, 2, NOW_MS + LATER_MS) == NO_SESSION
    assert create(sessions, 3, NOW_MS + LATER_MS)
    assert [sessions.session_of(each) is None for each in ids] == [False, True, False]


def test_brokers_come_before_consumers() -> None:
    """A broker's takes the place of a consumer's at once, and none of a consumer's that of a broker's."""
    sessions = FetchSessions(2)
    consumer, broker = create(sessions, 9), create(sessions, 1, privileged=True)
    assert create(sessions, 1, privileged=True)
    assert sessions.session_of(consumer) is None
    use(sessions, broker, NOW_MS + LATER_MS)
    assert create(sessions, 1, NOW_MS + LATER_MS + 1, privileged=True)  # the other one was not used
    use(sessions, broker, NOW_MS + LATER_MS + 2)
    assert create(sessions, 50, NOW_MS + LATER_MS + 2) == NO_SESSION


def test_closed_sessions_leave_room() -> None:
    """What is closed is not found and counts no more."""
    sessions = FetchSessions(1)
    session_id = create(sessions, 1)
    sessions.close(session_id)
    sessions.close(session_id)
    assert (len(sessions), sessions._bytes.used, sessions.session_of(session_id)) == (0, 0, None)
    assert create(sessions, 1)
    assert FetchSessions(0).create(of(1), by_ids=False, privileged=False, now_ms=0) == NO_SESSION


def test_sessions_have_a_bound_in_bytes() -> None:
    """One that is too large gets none; for one that fits older ones go by the same rules."""
    sessions = FetchSessions(1000, 20 * _BYTES + 4 * SESSION_BYTES)
    assert create(sessions, 40) == NO_SESSION
    assert create(sessions, 1, topic="x" * 30_000) == NO_SESSION
    first, second = create(sessions, 8), create(sessions, 8)
    assert create(sessions, 9) == NO_SESSION
    for session_id in (first, second):
        use(sessions, session_id, NOW_MS + LATER_MS)
    assert create(sessions, 25, NOW_MS + LATER_MS)
    assert (len(sessions), sessions.session_of(first), sessions.session_of(second)) == (1, None, None)
    assert create(FetchSessions(10), MAX_PARTITIONS + 1) == NO_SESSION


def test_a_part_goes_where_very_much_would_have_to() -> None:
    """Letting go of all sessions of a node at once would hold everybody up: the client asks again."""
    large = "t" * 30_000
    sessions = FetchSessions(1000)
    for _ in range(20):
        assert create(sessions, MAX_PARTITIONS)
    assert create(sessions, 500, NOW_MS + LATER_MS, topic=large) == NO_SESSION
    assert len(sessions) == 16
    while not create(sessions, 500, NOW_MS + LATER_MS, topic=large):
        pass
    assert len(sessions) < 6


def test_what_grows_past_the_bound_is_closed_uncounted() -> None:
    """Its names are not added up, however many there are."""
    sessions = FetchSessions(10)
    session = sessions.session_of(create(sessions, 1))
    assert session is not None
    session.partitions.update(of(MAX_PARTITIONS + 1))
    assert not sessions.has_room(session)
    assert (len(sessions), sessions._bytes.used) == (0, 0)


def test_what_was_closed_meanwhile_is_not_counted() -> None:
    """Another connection may close a session, or take its place, while a long request of it is read."""
    sessions = FetchSessions(10)
    session = sessions.session_of(create(sessions, 1))
    assert session is not None
    sessions.close(session.id)
    session.partitions.update(of(2))
    assert not sessions.has_room(session)
    assert (len(sessions), sessions._bytes.used) == (0, 0)


def test_a_session_that_grows_is_counted() -> None:
    """And is closed where it does not fit any more."""
    sessions = FetchSessions(10, 9 * _BYTES + SESSION_BYTES)
    session = sessions.session_of(create(sessions, 1))
    assert session is not None
    session.partitions.update(of(5))
    assert sessions.has_room(session)
    assert sessions._bytes.used == session_bytes(session.partitions)
    session.partitions.update(of(5, "u"))
    assert not sessions.has_room(session)
    assert (len(sessions), sessions._bytes.used) == (0, 0)


def test_the_largest_holder_makes_room_for_others() -> None:
    """Its oldest goes at once, until both hold the same; then each one's sessions follow Kafka's rule."""
    sessions = FetchSessions(8)
    mallorys = [create(sessions, 5, owner="User:mallory") for _ in range(8)]
    assert create(sessions, 9, owner="User:mallory") == NO_SESSION
    alices = [create(sessions, 1, owner="User:alice") for _ in range(4)]
    assert all(alices)
    assert [sessions.session_of(each) is None for each in mallorys] == [True] * 4 + [False] * 4
    assert create(sessions, 1, owner="User:alice") == NO_SESSION
    assert create(sessions, 1, owner="User:mallory") == NO_SESSION
    bobs = [create(sessions, 1, owner="User:bob") for _ in range(3)]
    assert [each != NO_SESSION for each in bobs] == [True, True, False]
    assert len(sessions) == 8


def test_principals_do_not_evict_each_other_in_turn() -> None:
    """Where all hold the same, or one more, nobody's session goes for another's: it would come back at once."""
    sessions = FetchSessions(5)
    for owner in ("User:a", "User:b", "User:a", "User:b", "User:c"):
        assert create(sessions, 1, owner=owner)
    before = set(sessions._by_id)
    for owner in ("User:a", "User:b", "User:c"):
        assert create(sessions, 1, owner=owner) == NO_SESSION
    assert set(sessions._by_id) == before
    assert create(sessions, 1, owner="User:d")


def test_bytes_are_divided_too() -> None:
    """Few large sessions of one principal make room for another's, when that is created and when it grows."""
    sessions = FetchSessions(1000, 20 * _BYTES + 4 * SESSION_BYTES)
    large = [create(sessions, 9, owner="User:mallory") for _ in range(2)]
    session = sessions.session_of(create(sessions, 3, owner="User:alice"))
    assert session is not None
    session.partitions.update(of(9))
    assert sessions.has_room(session)
    assert [sessions.session_of(each) is None for each in large] == [True, False]
    session.partitions.update(of(25))
    assert not sessions.has_room(session)
    large.append(create(sessions, 9, owner="User:mallory"))
    assert create(sessions, 9, owner="User:alice")
    assert [sessions.session_of(each) is None for each in large] == [True, True, False]


def test_nothing_is_kept_of_principals_without_sessions() -> None:
    """However many come and go."""
    sessions = FetchSessions(3)
    for number in range(1000):
        sessions.close(create(sessions, 1, owner=f"User:{number}"))
    assert not sessions._ranks


def test_epochs_go_round() -> None:
    """After the largest comes 1."""
    assert (next_epoch(1), next_epoch(2**31 - 1)) == (2, 1)


def test_eviction_is_kafkas() -> None:
    """Against a straightforward port of `FetchSessionCacheShard`, whatever comes in whatever order."""
    rng = random.Random(5)
    sessions, model, now_ms = FetchSessions(8), _Model(8), NOW_MS
    for _ in range(5000):
        now_ms += rng.choice((0, 1, 1000, 30_000))
        privileged, count = rng.random() < 0.2, rng.randint(1, 4)
        kind = rng.random()
        if model.all and kind < 0.6:
            session_id = rng.choice(list(model.all))
            use(sessions, session_id, now_ms)
            model.touch(session_id, now_ms)
        elif model.all and kind < 0.65:
            session_id = rng.choice(list(model.all))
            sessions.close(session_id)
            del model.all[session_id]
        else:
            session_id = create(sessions, count, now_ms, privileged=privileged)
            assert model.create(session_id, count, now_ms, privileged=privileged) is (
                session_id != NO_SESSION
            )
        assert model.all.keys() == set(sessions._by_id)


class _Model:
    """Session id → (privileged, size), when it was made and used, and whether it was old when it was used last."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.all: dict[int, tuple[tuple[bool, int], int, int, bool]] = {}

    def touch(self, session_id: int, now_ms: int) -> None:
        rank, created_ms, _, _ = self.all.pop(session_id)
        self.all[session_id] = rank, created_ms, now_ms, now_ms - created_ms > EVICTED_AFTER_MS

    def create(self, session_id: int, count: int, now_ms: int, *, privileged: bool) -> bool:
        if len(self.all) >= self.most and not self._evict((privileged, count), now_ms):
            return False
        self.all[session_id] = (privileged, count), now_ms, now_ms, False
        return True

    def _evict(self, rank: tuple[bool, int], now_ms: int) -> bool:
        oldest = min(self.all, key=lambda each: self.all[each][2])
        if now_ms - self.all[oldest][2] > EVICTED_AFTER_MS:
            del self.all[oldest]
            return True
        may_go = [
            (*each, session_id)
            for session_id, (each, _, _, old) in self.all.items()
            if old or (rank[0] and not each[0])
        ]
        if not may_go or (*rank, 0) < min(may_go):
            return False
        del self.all[min(may_go)[2]]
        return True


@pytest.mark.parametrize("topic", ["t", "a-topic-with-a-name-of-usual-length", "\N{PILE OF POO}" * 100])
def test_what_is_counted_is_no_less_than_the_memory_it_takes(topic: str) -> None:
    """With numbers that are no small ones, and names that are each partition's own."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        sessions = FetchSessions(1000, MAX_SESSION_BYTES)
        for _ in range(5):
            partitions: Partitions = {}
            for index in range(1000):
                own = f"{topic}{index}"
                partitions[own, 10**6 + index] = FetchedPartition(
                    own, 10**6 + index, 10**12 + index, 10**9 + index, -1, -1
                )
            for number, partition in enumerate(partitions.values()):
                partition.answered_high_watermark = 10**12 + number
                partition.high_watermark = 10**13 + number
                partition.start_offset = 10**14 + number
                partition.answered_start_offset = 10**15 + number
            sessions.create(partitions, by_ids=False, privileged=False, now_ms=NOW_MS)
        del partitions, partition
        assert tracemalloc.get_traced_memory()[0] - before <= sessions._bytes.used
    finally:
        tracemalloc.stop()

"""Fetch sessions (KIP-227): what a client fetches is remembered, so that it names, and is told, only what has changed.

A full fetch with epoch 0 makes a session when its answer leaves, if there is room; from then on each request has the
session's next epoch. A throttled answer changes nothing that the client knows: `FetchSession.delivered` says whether
the last answer was given, and only then is what it said of each partition (`FetchedPartition.answered_*`) taken for
known (B§6.3).

There is one cache; Kafka's is cut into eight shards by chance. Where it is full:

1. A session that is unused for two minutes goes, as in Kafka.
2. Otherwise, where another principal holds more than the one that asks, that one loses its oldest session.
3. Otherwise the principal's own sessions follow Kafka's rule: one that is as old and smaller than the new one goes,
   those of consumers before those of brokers; where there is none, there is no room.

Where all sessions have one owner, as with `tidegate.kafka.exact=true`, this is Kafka's rule. Beyond Kafka, a session
has at most as many partitions as a node, and all together take at most `MAX_SESSION_BYTES`.
Follows: Kafka `FetchSessionCacheShard`, `FetchSession`, `FetchManager`.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from random import randrange

from tidegate import error_codes
from tidegate.broker.fetching.session import (
    NO_SESSION,
    FetchSession,
    PartitionKey,
    Partitions,
    Rank,
)
from tidegate.fair_share import UNKNOWN_OWNER, ReclaimableBound
from tidegate.quota.measure.throttle import MAX_INT32
from tidegate.storage.config import MAX_PARTITIONS

__all__ = [
    "EVICTED_AFTER_MS",
    "MAX_SESSION_BYTES",
    "PARTITION_BYTES",
    "SESSION_BYTES",
    "FetchSessions",
    "session_bytes",
]

EVICTED_AFTER_MS = 120_000
"""Kafka's `MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS`."""
MAX_SESSION_BYTES = 64 * 1024 * 1024
"""Most memory of all sessions of a node: 100,000 partitions with short names."""
PARTITION_BYTES = 600
"""Memory of a partition of a session, without its topic's name (measured by a test)."""
SESSION_BYTES = 2500
"""Memory of a session besides, with its prepared answers (measured by a test)."""
_LETTER_BYTES = 4
_EVICTED_AT_ONCE = 16_000  # partitions: letting go of so many takes 2 ms


class _Ranks:
    """The sessions of one principal that may be evicted for another of it, the least valuable first.

    by_all: by any session; by_brokers: by one of a broker.
    """

    __slots__ = ("by_all", "by_brokers")

    def __init__(self) -> None:
        self.by_all: list[Rank] = []
        self.by_brokers: list[Rank] = []

    def add_session(self, rank: Rank, *, is_old: bool) -> None:
        """Add a session: any other may evict it once it is old, brokers those of consumers at once."""
        if is_old:
            insort(self.by_all, rank)
        if is_old or not rank[0]:
            insort(self.by_brokers, rank)

    def remove(self, rank: Rank) -> None:
        """Remove a session from where it was put."""
        for ranks in (self.by_all, self.by_brokers):
            at = bisect_left(ranks, rank)
            if at < len(ranks) and ranks[at] == rank:
                del ranks[at]


class FetchSessions:
    """The sessions of a node, in the order of their last use."""

    __slots__ = ("_by_id", "_bytes", "_max_partitions", "_ranks", "_slots")

    def __init__(
        self, max_sessions: int, max_bytes: int = MAX_SESSION_BYTES, max_partitions: int = MAX_PARTITIONS
    ) -> None:
        """Make an empty cache. max_sessions: `max.incremental.fetch.session.cache.slots`."""
        self._max_partitions = max_partitions
        self._by_id: dict[int, FetchSession] = {}
        self._slots: ReclaimableBound[int] = ReclaimableBound(max_sessions)
        self._bytes: ReclaimableBound[int] = ReclaimableBound(max_bytes)
        self._ranks: dict[str, _Ranks] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def session_of(self, session_id: int) -> FetchSession | None:
        """Return the session of an id."""
        return self._by_id.get(session_id)

    def create(
        self,
        partitions: Partitions,
        *,
        by_ids: bool,
        privileged: bool,
        now_ms: int,
        owner: str = UNKNOWN_OWNER,
    ) -> int:
        """Make a session and return its id, `NO_SESSION` where there is no room for it.

        privileged: the client is a broker. owner: the principal that it counts for. Where very much would have to go, a
        part goes, and the client may ask again.
        Follows: Kafka `FetchSessionCacheShard.maybeCreateSession`.
        """
        count = len(partitions)
        size = session_bytes(partitions)
        if count > self._max_partitions or size > self._bytes.capacity:
            return NO_SESSION
        left = _EVICTED_AT_ONCE
        while not (self._slots.fits() and self._bytes.fits(size)):
            evicted = None
            if left > 0:
                # In the order of the module's text. Past `left` the client gets no session, and asks again.
                evicted = self._unused(now_ms) or self._of_largest(owner, size)
                evicted = evicted or self._least_valuable(owner, privileged, count)
            if evicted is None:
                return NO_SESSION
            self.close(evicted.id)
            left -= len(evicted.partitions)
        session_id = randrange(1, MAX_INT32)
        while session_id in self._by_id:
            session_id = randrange(1, MAX_INT32)
        session = FetchSession(
            session_id, partitions, by_ids=by_ids, privileged=privileged, now_ms=now_ms, owner=owner
        )
        self._by_id[session_id] = session
        self._slots.add_entry(session_id, owner)
        self._bytes.add_entry(session_id, owner, size)
        self._rank(session, now_ms)
        return session_id

    def touch(self, session: FetchSession, now_ms: int) -> None:
        """Note that a session is used."""
        by_id = self._by_id
        # To the end: `_unused` looks at the first only.
        by_id[session.id] = by_id.pop(session.id)
        session.used_ms = now_ms
        rank = session.rank
        if (
            rank is None
            or rank[1] != len(session.partitions)
            or (not session.is_old and now_ms - session.created_ms > EVICTED_AFTER_MS)
        ):
            self._rank(session, now_ms)

    def has_room(self, session: FetchSession) -> bool:
        """Count a session that has grown or shrunk; return whether there is room for it, else close it.

        Sessions of a principal that holds more are closed instead. One that was closed while a request of it was read
        has no room.
        """
        if self._by_id.get(session.id) is session and len(session.partitions) <= self._max_partitions:
            self._bytes.resize(session.id, session_bytes(session.partitions))
            left = _EVICTED_AT_ONCE
            while not self._bytes.fits(0) and left > 0:
                evicted = self._of_largest(session.owner, 0)
                if evicted is None:
                    break
                self.close(evicted.id)
                left -= len(evicted.partitions)
            if self._bytes.fits(0):
                return True
        self.close(session.id)
        return False

    def close(self, session_id: int) -> None:
        """Forget a session, if there is one of this id."""
        session = self._by_id.pop(session_id, None)
        if session is not None:
            self._slots.remove(session_id)
            self._bytes.remove(session_id)
            self._unrank(session)

    def forget_deleted(self) -> Iterator[None]:
        """Remove deleted logs, which unused sessions would keep in memory. Yields after each partition."""
        for session in list(self._by_id.values()):
            for partition in list(session.partitions.values()):
                if partition.log is not None and partition.log.deleted:
                    partition.log, partition.error_code = None, error_codes.UNKNOWN_TOPIC_OR_PARTITION
                    session.known = None
                yield

    def _unused(self, now_ms: int) -> FetchSession | None:
        """Return the session that is unused for longest, if that is long enough for any other to take its place."""
        session = next(iter(self._by_id.values()), None)
        return session if session is not None and now_ms - session.used_ms > EVICTED_AFTER_MS else None

    def _of_largest(self, owner: str, size: int) -> FetchSession | None:
        """Return the oldest session of the principal that holds most, where it holds more than `owner` will.

        size: bytes that `owner` asks for. Where both would hold the same none goes: they would evict each other's in
        turn.
        """
        bound, more = (self._slots, 1) if size and not self._slots.fits() else (self._bytes, size)
        victim = bound.victim(owner, more)
        if victim is None or bound.used_by(bound.owner(victim)) <= bound.used_by(owner) + more:
            return None
        return self._by_id[victim]

    def _least_valuable(self, owner: str, privileged: bool, count: int) -> FetchSession | None:
        """Return the session of `owner` that goes for another of it with `count` partitions; None where none may."""
        own = self._ranks.get(owner)
        ranks = () if own is None else own.by_brokers if privileged else own.by_all
        if not ranks or (privileged, count, NO_SESSION) < ranks[0]:
            return None
        return self._by_id[ranks[0][2]]

    def _rank(self, session: FetchSession, now_ms: int) -> None:
        """Insert a session into the eviction order of its owner."""
        self._unrank(session)
        session.rank = rank = session.privileged, len(session.partitions), session.id
        session.is_old = now_ms - session.created_ms > EVICTED_AFTER_MS
        if session.owner not in self._ranks:
            self._ranks[session.owner] = _Ranks()
        self._ranks[session.owner].add_session(rank, is_old=session.is_old)

    def _unrank(self, session: FetchSession) -> None:
        rank, session.rank = session.rank, None
        if rank is not None:
            self._ranks[session.owner].remove(rank)
            if not self._slots.used_by(session.owner):
                del self._ranks[session.owner]


def session_bytes(partitions: Iterable[PartitionKey]) -> int:
    """Return what a session with these partitions takes at most."""
    return SESSION_BYTES + sum([PARTITION_BYTES + _LETTER_BYTES * len(topic) for topic, _ in partitions])

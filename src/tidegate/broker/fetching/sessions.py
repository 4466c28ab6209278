"""Fetch sessions (KIP-227): the broker stores a client's partitions, so that requests and answers contain only changes.

A full fetch with epoch 0 creates a session when its answer leaves, if there is room. Each later request has the next
epoch of the session. A throttled client gets no news: `FetchSession.delivered` tells whether the last answer was
delivered, and only then do its values for each partition (`FetchedPartition.answered_*`) count as known to the client
(B§6.3).

There is one cache; Kafka has eight shards, chosen at random. When the cache is full:

1. Evict a session that was not used for two minutes, as in Kafka.
2. Otherwise, if another principal holds more than the client's principal, evict the other principal's oldest session.
3. Otherwise apply Kafka's rule to the principal's own sessions: evict one that is two minutes old and smaller than the
   new one, those of consumers before those of brokers. If there is none, there is no room.

If all sessions have one owner, as with `tidegate.kafka.exact=true`, this is Kafka's rule. Beyond Kafka, a session has
at most as many partitions as a node, and all sessions together take at most `MAX_SESSION_BYTES`.
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
"""Memory of a session without its partitions, with its prepared answers (measured by a test)."""
_LETTER_BYTES = 4
_EVICTED_AT_ONCE = 16_000  # partitions: to free them takes 2 ms


class _Ranks:
    """The sessions of one principal that it may replace by a new one, the least valuable first.

    by_all: any new session may replace them; by_brokers: only a broker's may.
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
        """Create a session and return its id, `NO_SESSION` if there is no room for it.

        privileged: the client is a broker. owner: the principal that the session counts for. If sessions with more than
        `_EVICTED_AT_ONCE` partitions must go, evict only some; there may be room when the client asks again.
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
                # The order of the rules in the module's docstring. Past `left` the client gets no session.
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
        """Record that a session is used."""
        by_id = self._by_id
        # Move it to the end: `_unused` looks only at the first.
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
        """Count a session whose size has changed. Return whether there is room for it; if not, close it.

        Before that, close sessions of a principal that holds more. A session that was closed while a request of it was
        read has no room.
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
        """Close the session with this id, if there is one."""
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
        """Return the session that was not used for the longest time, if that is long enough to evict it."""
        session = next(iter(self._by_id.values()), None)
        return session if session is not None and now_ms - session.used_ms > EVICTED_AFTER_MS else None

    def _of_largest(self, owner: str, size: int) -> FetchSession | None:
        """Return the oldest session of the principal that holds most; None unless it holds more than `owner` will.

        size: bytes that `owner` asks for. Between equals nothing is evicted: they would evict each other's sessions in
        turn.
        """
        bound, more = (self._slots, 1) if size and not self._slots.fits() else (self._bytes, size)
        victim = bound.victim(owner, more)
        if victim is None or bound.used_by(bound.owner(victim)) <= bound.used_by(owner) + more:
            return None
        return self._by_id[victim]

    def _least_valuable(self, owner: str, privileged: bool, count: int) -> FetchSession | None:
        """Return the session of `owner` to evict for its new one with `count` partitions; None if there is none."""
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
    """Return an upper bound on the memory of a session with these partitions, in bytes."""
    return SESSION_BYTES + sum([PARTITION_BYTES + _LETTER_BYTES * len(topic) for topic, _ in partitions])

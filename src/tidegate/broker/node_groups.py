"""The groups of a node: connects the coordinator's state machine with the storage and the event loop.

The coordinator decides which groups to store, and when it next has to run. This module stores them
(`Storage.group_writes`), and runs the coordinator at that time. Offsets of groups without consumers expire after
`offsets.retention.minutes`.
"""

from collections.abc import Callable, Generator, Iterator
from functools import partial

from tidegate import error_codes
from tidegate.broker.cluster import ClusterView
from tidegate.broker.late_answers import LateAnswers
from tidegate.groups import GroupCoordinator, GroupSettings, GroupState, StoredGroup
from tidegate.groups.group import Group
from tidegate.groups.subscription import CONSUMER, Subscription
from tidegate.scheduling import Scheduler, Timer
from tidegate.server.requests.handler import Deferred, Message, Request, Work
from tidegate.storage.groups.committed_offsets import CommittedOffset
from tidegate.storage.groups.group_rows import GroupChange
from tidegate.storage.housekeeping import start_chore
from tidegate.storage.storage import Storage

__all__ = ["NodeGroups", "Writes"]

_AT_ONCE = (
    50  # most ended sessions and rebalances in one turn: to end the rebalance of a large group takes some ms
)
_RUN_NS = 2_000_000  # longest run, without the one that is under way
_MEMBERS_AT_ONCE = 32  # of one answer
_BYTES_AT_ONCE = 64 * 1024  # of their metadata, or of an assignment
_MS_PER_MINUTE = 60_000


class NodeGroups:
    """The groups that one node coordinates."""

    def __init__(self, storage: Storage, cluster: ClusterView, scheduler: Scheduler) -> None:
        """Restore the stored groups that this node coordinates, and start the sessions of their members."""
        config = storage.config
        self.storage = storage
        self._cluster = cluster
        self._scheduler = scheduler
        self.late = LateAnswers(scheduler, storage.clock.monotonic_ns)
        self._timer: Timer | None = None
        self._timer_ms = 0
        self.coordinator = GroupCoordinator(
            GroupSettings(
                min_session_timeout_ms=config.group_min_session_timeout_ms,
                max_session_timeout_ms=config.group_max_session_timeout_ms,
                initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
                max_size=config.group_max_size,
                exact=config.kafka_exact,
            ),
            self,
        )
        now_ms = self.now_ms()
        for stored in storage.store.groups.load():
            if self.coordinates(stored.group_id):
                self.coordinator.restore(stored, now_ms)
        self.wake()
        start_chore(
            storage, scheduler, config.offsets_retention_check_interval_ms / 1000, self.expire_in_slices
        )

    def now_ms(self) -> int:
        """Return engine time, which sessions and rebalances use. It is never stepped."""
        return self.storage.clock.now_ms()

    def coordinates(self, group_id: str) -> bool:
        """Return whether this node is the coordinator of a group."""
        return self._cluster.coordinator(group_id) == self._cluster.node_id

    # --- calls of the coordinator

    def answer_later(
        self,
        request: Request,
        call: Callable[[Callable[[Message], None]], None],
        to_body: Callable[[Message], Message],
    ) -> Deferred:
        """Return the answer to a request that `call` passes to the coordinator, with a callback for the result.

        to_body: converts the result to the body of the answer, in the request's version. If the client leaves before,
        only the answer is dropped: the member stays, as it may return on another connection.
        """
        deferred = Deferred()
        deferred.on_cancel = _nothing

        def respond(message: Message) -> None:
            body = to_body(message)
            if _is_long(body):
                self.late.complete(deferred, request.answer_in_slices(body))
            else:
                deferred.complete_by(partial(request.answer, body))

        call(respond)
        self.wake()
        return deferred

    def wake(self) -> None:
        """Set the timer for the coordinator's next event. Call it after each call of the coordinator."""
        next_ms = self.coordinator.next_ms()
        if next_ms is None or (self._timer is not None and self._timer_ms <= next_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = next_ms
        self._timer = self._scheduler.call_later(max(next_ms - self.now_ms(), 0) / 1000, self._run)

    def _run(self) -> None:
        self._timer = None
        if not self.storage.closed:
            try:
                self._run_some()
            finally:
                self.wake()  # after an error in one group, the sessions of the others continue

    def _run_some(self) -> None:
        """Run events of the coordinator that are due. Many large rebalances that end at once take several turns."""
        clock = self.storage.clock
        now_ms, until_ns = clock.now_ms(), clock.monotonic_ns() + _RUN_NS
        for _ in range(_AT_ONCE):
            if not self.coordinator.run(now_ms, 1) or clock.monotonic_ns() >= until_ns:
                return

    # --- the storage of groups: a `GroupStore`

    @property
    def max_bytes(self) -> int:
        """Return the node's `message.max.bytes`, which may change while it runs."""
        return self.storage.config.message_max_bytes

    def save(self, group: StoredGroup, on_stored: Callable[[bool, int], None]) -> None:
        """Store a group, then call `on_stored` with whether that succeeded, and the time."""

        def written(is_kept: bool) -> None:
            on_stored(is_kept, self.now_ms())
            self.wake()

        self.storage.group_writes.add_change(GroupChange(group=group), written)

    def forget(self, group_id: str) -> None:
        """Remove a group from the storage."""
        self.storage.group_writes.add_change(GroupChange(removed=group_id), _nothing)

    # --- groups with and without members

    def is_known(self, group_id: str) -> bool:
        """Return whether a group has members, had some, or has offsets."""
        return group_id in self.coordinator.groups or group_id in self.storage.offsets

    def owner(self, group_id: str) -> str | None:
        """Return the principal that created a group, None for one that is not there."""
        group = self.coordinator.groups.get(group_id)
        return self.storage.offsets.owner(group_id) if group is None else group.owner

    def simple_groups(self) -> Iterator[str]:
        """Yield the ids of this node's groups that have offsets and never had members; each takes some microseconds."""
        for group_id in self.storage.offsets.group_ids():
            if (
                group_id in self.storage.offsets
                and group_id not in self.coordinator.groups
                and self.coordinates(group_id)
            ):
                yield group_id

    def delete_in_slices(self, group_id: str, writes: "Writes") -> Generator[None, None, int]:
        """Delete a group and its offsets through `writes`; return an error code."""
        problem = self.coordinator.delete_problem(group_id)
        if problem:
            return problem
        if problem is None and group_id not in self.storage.offsets:
            return error_codes.GROUP_ID_NOT_FOUND
        if problem is not None:
            self.coordinator.delete(group_id)
            writes.add_change(GroupChange(removed=group_id))
        for page in self.storage.offsets.pages(group_id):
            writes.add_change(
                GroupChange(forgotten=[at._replace(metadata="") for at in page])
            )  # metadata may be long
            yield
        return error_codes.NONE

    def subscription_in_slices(
        self, group: Group | None, known: Subscription | None
    ) -> Generator[None, None, Subscription | None]:
        """Return the existing topics that a group subscribes to.

        known: an earlier result of this method, which is valid until the group's next generation.
        """
        while group is not None and (known is None or known.generation != group.generation):
            known = yield from group.subscription_in_slices(self.storage.topics.by_name)
        return known

    # --- expiry

    def expire_in_slices(self) -> Iterator[None]:
        """Delete offsets past their retention, and groups without members and offsets.

        Follows: Kafka `ClassicGroup.offsetExpirationCondition`, `OffsetMetadataManager.cleanupExpiredOffsets`.
        """
        is_left: dict[str, bool] = {}
        for group_id in self.storage.offsets.group_ids():
            if self.coordinates(group_id):
                is_left[group_id] = yield from self._expire_group(group_id)
            yield
        for group_id, group in list(self.coordinator.groups.items()):
            if (
                group.state is GroupState.EMPTY
                and not group.pending
                and not is_left.get(group_id, group_id in self.storage.offsets)
            ):
                self.coordinator.delete(group_id)
                self.forget(group_id)
            yield

    def _expire_group(self, group_id: str) -> Generator[None, None, bool]:
        """Delete the expired offsets of one group; return whether any offset is left."""
        now_ms = self.now_ms()
        retention_ms = self.storage.config.offsets_retention_minutes * _MS_PER_MINUTE
        group = self.coordinator.groups.get(group_id)
        subscription: Subscription | None = None
        is_left = False
        for page in self.storage.offsets.pages(group_id):
            subscription = yield from self.subscription_in_slices(group, subscription)
            expired = [at for at in page if _is_expired(group, subscription, at, now_ms, retention_ms)]
            is_left = is_left or len(expired) < len(page)
            if expired:
                self.storage.group_writes.add_change(GroupChange(forgotten=expired), _nothing)
            yield
        return is_left


class Writes:
    """The changes of one request, whose answer waits until all of them are stored or have failed.

    failed: the changes that were not stored.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._open = 0
        self.failed: list[GroupChange] = []
        self._on_over: Callable[[list[GroupChange]], None] | None = None

    @property
    def are_over(self) -> bool:
        """Return whether all added changes are stored or have failed."""
        return not self._open

    def add_change(self, change: GroupChange) -> None:
        """Store a change."""
        self._open += 1
        self._storage.group_writes.add_change(change, partial(self._over, change))

    def answer(self, make: Callable[[list[GroupChange]], Work], late: LateAnswers) -> Deferred:
        """Return the result of `make` for the failed changes, in slices, when all have ended. Add no more after it.

        The work cannot be cancelled: it is charged even if the client has left.
        """
        deferred = Deferred()

        def complete(failed: list[GroupChange]) -> None:
            late.complete(deferred, make(failed))

        if self.are_over:
            complete(self.failed)
        else:
            self._on_over = complete
        return deferred

    def _over(self, change: GroupChange, is_kept: bool) -> None:
        if not is_kept:
            self.failed.append(change)
        self._open -= 1
        if not self._open and self._on_over is not None:
            self._on_over(self.failed)


def _is_long(body: Message) -> bool:
    """Return whether a JoinGroup's or SyncGroup's answer takes more than a moment to write."""
    members = body.get("members", ())
    return (
        len(members) > _MEMBERS_AT_ONCE
        or len(body.get("assignment", b"")) + sum([len(member["metadata"]) for member in members])
        > _BYTES_AT_ONCE
    )


def _is_expired(
    group: Group | None,
    subscription: Subscription | None,
    at: CommittedOffset,
    now_ms: int,
    retention_ms: int,
) -> bool:
    if group is None or subscription is None or group.protocol_type is None:
        since_ms = at.commit_ms
    elif group.state is GroupState.EMPTY:
        since_ms = group.state_at_ms
    elif (
        group.state is GroupState.STABLE
        and group.protocol_type == CONSUMER
        and subscription.topics is not None
    ):
        since_ms = at.commit_ms
    else:
        return False
    if subscription is not None and subscription.has(at.topic):
        return False
    if at.expire_ms is not None:
        return now_ms >= at.expire_ms
    return now_ms - since_ms >= retention_ms


def _nothing(*_: object) -> None:
    """Ignore the arguments."""

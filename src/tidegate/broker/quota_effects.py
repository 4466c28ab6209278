"""Warnings about new quotas that make the consumers of a group fall behind, or end the sessions of its members.

After a fetch quota is set, the growth of the partitions that its consumers read is measured for `MEASURED_MS`.
Consumers whose partitions grow faster than the quota never catch up: the warning contains their lag. Only the
partitions that a group has assigned to its members are known, so consumers without a group are ignored.

A request quota delays a member by up to a window of one sample. Only with `tidegate.kafka.exact=true` does that
time count toward session timeouts (docs/groups.md), so only then is a window as long as a session a danger.

Requests do not wait for this work: a timer checks once a second whether a quota has changed, and works in slices.
"""

import logging
import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tidegate.broker.cluster import ClusterView
from tidegate.broker.node_groups import NodeGroups
from tidegate.config.values import cut, entity_text, groups_text
from tidegate.fair_share import ANONYMOUS
from tidegate.groups.group import Group
from tidegate.groups.member import Member
from tidegate.groups.subscription import CONSUMER, assigned_partitions_in_slices
from tidegate.in_slices import release
from tidegate.quota import QuotaEntity, QuotaRecord
from tidegate.quota.admin.keys import CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE
from tidegate.quota.managers.callback import sanitized
from tidegate.quota.managers.extensions import entity_of
from tidegate.quota.managers.quota_managers import QuotaManagers
from tidegate.scheduling import Scheduler
from tidegate.server.audit import AUDIT_LOGGER
from tidegate.storage.housekeeping import start_chore
from tidegate.storage.log.partition_log import PartitionLog
from tidegate.storage.storage import Storage

__all__ = ["MAX_CHANGES", "MAX_PARTITIONS", "MAX_WARNINGS", "MEASURED_MS", "QuotaEffects"]

MEASURED_MS = 10_000
"""Time over which the growth of partitions is measured: the default window of quotas, 10 samples of a second."""
MAX_CHANGES = 1_000
"""Most changed quotas of one measurement. Further ones are ignored."""
MAX_PARTITIONS = 50_000
"""Most partitions of one measurement. Further ones are not counted."""
MAX_WARNINGS = 100
"""Most warnings of one measurement. One more gives the number of further quotas."""

_LOOK_EVERY_S = 1.0
_MS_PER_S = 1000
_KEYS = (CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)
_OWNER_PREFIX = "User:"

_log = logging.getLogger(AUDIT_LOGGER)


@dataclass(slots=True)
class _Reading:
    """A partition that a group reads, and where its log ended when the measurement began."""

    group_id: str
    topic: str
    partition: int
    leader: int
    log: PartitionLog
    base_offset: int
    size: int

    def grown_bytes(self) -> int:
        """Return how many bytes were appended since; less, if some of them were deleted meanwhile."""
        new = [segment.size for segment in self.log.segments if segment.base_offset >= self.base_offset]
        return max(sum(new) - self.size, 0)


@dataclass(slots=True)
class _Readers:
    """The consumers that share a changed quota: the name of one, and all partitions that they read, by group."""

    record: QuotaRecord
    user: str
    client_id: str
    readings: dict[tuple[str, str, int], _Reading] = field(default_factory=dict)


class QuotaEffects:
    """A subscriber to quotas that warns about the effects of new quotas on the groups of a cluster.

    groups: those of each node. managers: those of one node, which knows all definitions.
    throttle_max_ms: the longest throttle time (`tidegate.quota.throttle.max.ms`), 0: no limit.
    """

    def __init__(
        self,
        groups: Sequence[NodeGroups],
        managers: QuotaManagers,
        storage: Storage,
        cluster: ClusterView,
        *,
        throttle_max_ms: int,
    ) -> None:
        self._groups = groups
        self._managers = managers
        self._storage = storage
        self._cluster = cluster
        self._throttle_max_ms = throttle_max_ms
        self._changed: dict[tuple[QuotaEntity, str], QuotaRecord] = {}
        self._measured: list[_Readers] = []
        self._began_ms = 0
        self._is_started = False

    def start(self, scheduler: Scheduler) -> None:
        """Begin to watch for changes. Definitions that were passed before are not new."""
        self._is_started = True
        start_chore(self._storage, scheduler, _LOOK_EVERY_S, self.look_in_slices)

    def on_quota(self, record: QuotaRecord) -> None:
        """Store a changed definition for the next measurement."""
        if self._is_started and record.key in _KEYS:
            key = sanitized(entity_of(record)), record.key
            if record.value is None:
                self._changed.pop(key, None)
            elif key in self._changed or len(self._changed) < MAX_CHANGES:
                self._changed[key] = record

    def on_ip_rate(self, address: str | None, rate: float | None) -> None:
        """Ignore rates of connections."""

    def look_in_slices(self) -> Iterator[None]:
        """Begin a measurement for the changes since the last one, or end the one that has been running long enough."""
        now_ms = self._storage.clock.now_ms()
        if self._has_callback:
            self._changed.clear()
            self._measured.clear()
        elif self._measured:
            if now_ms - self._began_ms >= MEASURED_MS:
                measured, self._measured = self._measured, []
                yield from self._judge(measured, now_ms - self._began_ms)
        elif self._changed:
            changed, self._changed = self._changed, {}
            self._began_ms = now_ms
            self._measured = yield from self._readers(changed)

    @property
    def _has_callback(self) -> bool:
        """Return whether a quota callback decides limits. It may be asked only for decisions (B§8)."""
        return self._managers.callback is not None

    # --- the beginning: the groups that share a changed quota, and what they read

    def _readers(
        self, changed: Mapping[tuple[QuotaEntity, str], QuotaRecord]
    ) -> Generator[None, None, list[_Readers]]:
        found: dict[tuple[str, ...], _Readers] = {}
        at_risk: dict[QuotaEntity, list[Member]] = {}
        partitions = 0
        is_lossy = self._storage.config.kafka_exact and any(key == REQUEST_PERCENTAGE for _, key in changed)
        for group, member in self._members():
            yield
            user = _user_of(member)
            if self._has_callback:
                return []
            if user is None:
                continue
            if is_lossy and self._longest_request_throttle_ms >= member.session_timeout_ms:
                entity = self._managers.request.explain(user, member.client_id).entity
                if entity is not None and (entity, REQUEST_PERCENTAGE) in changed:
                    at_risk.setdefault(entity, []).append(member)
            explained = self._managers.fetch.explain(user, member.client_id)
            entity = explained.entity
            record = None if entity is None else changed.get((entity, CONSUMER_BYTE_RATE))
            if record is None or group.protocol_type != CONSUMER or partitions >= MAX_PARTITIONS:
                continue
            readers = found.setdefault(
                tuple(explained.tags.values()), _Readers(record, user, member.client_id)
            )
            before = len(readers.readings)
            assigned = yield from assigned_partitions_in_slices(
                member.assignment, most=MAX_PARTITIONS - partitions
            )
            for number, (topic, partition) in enumerate(assigned):
                reading = self._reading(group.group_id, topic, partition)
                if reading is not None:
                    readers.readings.setdefault((group.group_id, topic, partition), reading)
                if number % _AT_ONCE == 0:
                    yield
            partitions += len(readers.readings) - before
        for entity, members in at_risk.items():
            self._warn_of_lost_members(changed[entity, REQUEST_PERCENTAGE], members)
            yield
        return [readers for readers in found.values() if readers.readings]

    def _members(self) -> Iterator[tuple[Group, Member]]:
        for groups in self._groups:
            for group in list(groups.coordinator.groups.values()):
                for member in list(group.members.values()):
                    yield group, member

    def _reading(self, group_id: str, name: str, partition: int) -> _Reading | None:
        topic = self._storage.topics.by_name.get(name)
        log = None if topic is None else topic.log(partition)
        if topic is None or log is None or log.deleted:
            return None
        newest = log.segments[-1]
        leader = self._cluster.leader(topic, partition)
        return _Reading(group_id, name, partition, leader, log, newest.base_offset, newest.size)

    # --- members whose sessions a throttle can outlast

    @property
    def _longest_request_throttle_ms(self) -> int:
        window_ms = self._managers.request.window.window_ms
        return min(window_ms, self._throttle_max_ms) if self._throttle_max_ms > 0 else window_ms

    def _warn_of_lost_members(self, record: QuotaRecord, members: Sequence[Member]) -> None:
        session_ms = min(member.session_timeout_ms for member in members)
        count = "1 member" if len(members) == 1 else f"{len(members)} members"
        _log.warning(
            "%s %r of %s can make %s lose %s: a throttle can last %d ms, and their session timeout of %d ms includes "
            "muted time (tidegate.kafka.exact=true); hint: set quota.window.size.seconds below %d, or a longer "
            "session.timeout.ms in the clients",
            record.key,
            record.value,
            entity_text(record.entity),
            groups_text(member.group_id for member in members),
            count,
            self._longest_request_throttle_ms,
            session_ms,
            math.ceil(session_ms / _MS_PER_S),
        )

    # --- the end: how much the partitions have grown

    def _judge(self, measured: Sequence[_Readers], elapsed_ms: int) -> Iterator[None]:
        warnings = 0
        for readers in measured:
            grown: dict[int, int] = {}
            for number, reading in enumerate(readers.readings.values()):
                if not reading.log.deleted:
                    grown[reading.leader] = grown.get(reading.leader, 0) + reading.grown_bytes()
                if number % _AT_ONCE == 0:
                    yield
            if grown:
                leader = max(grown, key=grown.__getitem__)
                rate = grown[leader] * _MS_PER_S / elapsed_ms
                if self._is_too_low(readers, rate):
                    warnings += 1
                    if warnings <= MAX_WARNINGS:
                        yield from self._warn_of_lag(readers, leader, rate)
            yield from release(readers.readings)
        if warnings > MAX_WARNINGS:
            _log.warning("%d more quotas are too low for their consumers", warnings - MAX_WARNINGS)

    def _is_too_low(self, readers: _Readers, rate: float) -> bool:
        """Return whether the quota still applies to these consumers, and is lower than a rate in bytes a second."""
        if self._has_callback:
            return False
        explained = self._managers.fetch.explain(readers.user, readers.client_id)
        value = readers.record.value
        assert value is not None
        return (
            explained.entity == sanitized(entity_of(readers.record))
            and explained.bound == value
            and rate > value
        )

    def _warn_of_lag(self, readers: _Readers, leader: int, rate: float) -> Iterator[None]:
        records = size = 0
        group_ids: dict[str, None] = {}
        partitions: set[tuple[str, int]] = set()
        for number, reading in enumerate(readers.readings.values()):
            if number % _AT_ONCE == 0:
                yield
            if reading.leader != leader or reading.log.deleted:
                continue
            group_ids[reading.group_id] = None
            partitions.add((reading.topic, reading.partition))
            position = self._storage.offsets.position(reading.group_id, reading.topic, reading.partition)
            if position is not None:
                lag = max(reading.log.end_offset - max(position.offset, reading.log.start_offset), 0)
                records += lag
                size += max(reading.log.lag_bytes(lag), 0)
        if not group_ids:
            return  # deleted meanwhile
        record = readers.record
        where = f" on node {leader}" if len(self._cluster.ids) > 1 else ""
        _log.warning(
            "%s %r of %s is too low for %s (client-id=%r): %s%s grew by %d bytes/s in the last %d s, more "
            "than the quota lets the consumers fetch; they lag %d records (about %d bytes) and fall further behind; "
            "hint: set at least %d",
            record.key,
            record.value,
            entity_text(record.entity),
            groups_text(group_ids),
            cut(readers.client_id),
            "1 partition" if len(partitions) == 1 else f"{len(partitions)} partitions",
            where,
            math.ceil(rate),
            MEASURED_MS // _MS_PER_S,
            records,
            size,
            math.ceil(rate),
        )


_AT_ONCE = 50  # partitions between two yields


def _user_of(member: Member) -> str | None:
    """Return the user that a member logged in as; None: it was stored before users were recorded."""
    if not member.owner.startswith(_OWNER_PREFIX):
        return None
    user = member.owner.removeprefix(_OWNER_PREFIX)
    return ANONYMOUS if user.startswith(f"{ANONYMOUS} ") else user

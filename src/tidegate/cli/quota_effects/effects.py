"""Effects of planned quotas on the consumer groups of a cluster, Apache Kafka's or Tidegate's.

A lower `consumer_byte_rate` is compared with the growth of the partitions that the affected consumers read. Consumers
whose partitions grow faster never catch up, and consumers that lag may need hours. A `request_percentage` is dangerous
only if a throttle can outlast a session.

These are estimates. `groups` measures the growth. Each broker enforces quotas by itself, so the leader with most growth
is compared. Kafka does not tell the user of a member. So quotas of a user alone are ignored, and for a quota of a user
and a client id, each member with this client id is assumed to be that user.

Bounds: `MAX_GROUPS` groups, `MAX_PARTITIONS` partitions, `MAX_S` seconds. A note names what is beyond these bounds, and
what the user may not describe.
Follows: B§3.4 (which quota applies), B§5 (throttle times).
"""

import asyncio
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tidegate.cli.quota_effects.groups import (
    GROWTH_MS,
    LogGrowth,
    committed_offsets,
    log_growth,
    stable_members,
)
from tidegate.cli.quota_effects.limits import KEYS, Limits, QuotaEffect, Readers
from tidegate.client.admin import Admin
from tidegate.client.admin_messages import ConfigEntry
from tidegate.client.errors import ClientError
from tidegate.client.partitions import TopicPartition
from tidegate.config.quota_changes import QuotaChange, Quotas
from tidegate.config.values import cut, groups_text
from tidegate.pipeline.report.text import things_text
from tidegate.server.settings.table import KAFKA_EXACT

__all__ = ["MAX_GROUPS", "MAX_PARTITIONS", "MAX_S", "QuotaEffects", "find_effects"]

MAX_GROUPS = 200
"""Most groups that are described, by name. A note contains the number of the others."""
MAX_PARTITIONS = 20_000
"""Most partitions whose growth is measured. Others are not counted."""
MAX_S = 10.0
"""Timeout of the requests to a cluster, in seconds."""

_CATCH_UP_S = 3600  # warn about a consumer that needs longer to catch up
_DEFAULT_SESSION_MS = 45_000  # Kafka's default of `session.timeout.ms`: no API returns a member's own
_LEAST_SESSION_MS = 6_000  # Kafka's broker `group.min.session.timeout.ms`
_MAX_TOPICS = 50  # topics whose largest batch is looked up, for each quota
_MAX_BATCH = 1_048_588  # Kafka's `max.message.bytes`
_TOPIC, _BROKER = 2, 4  # kinds of resources
_MS_PER_S = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaEffects:
    """Warnings, notes about what was not examined, and the number of examined groups."""

    warnings: Sequence[QuotaEffect] = ()
    notes: Sequence[str] = ()
    groups: int = 0


async def find_effects(admin: Admin, cluster: Quotas, changes: Sequence[QuotaChange]) -> QuotaEffects:
    """Return the effects of changes of a cluster's quotas on its consumer groups.

    Errors of the cluster become notes. If no change concerns consumers, the cluster is not asked.
    """
    if not any(change.key in KEYS for change in changes):
        return QuotaEffects()
    try:
        async with asyncio.timeout(MAX_S):
            return await _effects(admin, cluster, changes)
    except ClientError as error:  # before `TimeoutError`, which one of these errors is, too
        reason = str(error)
    except TimeoutError:
        reason = f"the cluster did not answer within {MAX_S:g} s"
    return QuotaEffects(notes=[f"effects on consumer groups are not known: {reason}"])


async def _effects(admin: Admin, cluster: Quotas, changes: Sequence[QuotaChange]) -> QuotaEffects:
    found = await stable_members(admin.cluster, most_groups=MAX_GROUPS)
    limits = Limits(cluster, changes if found.members else ())
    notes = []
    if found.refused:
        notes.append(f"{found.refused} groups could not be described: {found.reason}")
    if found.more:
        notes.append(f"effects on {found.more} more groups were not examined")
    if limits.users_alone:
        notes.append(
            f"effects of quotas of {things_text(limits.users_alone, 'user')} without a client id were not examined: "
            "Kafka does not report the users of group members"
        )
    warnings: list[QuotaEffect] = []
    fetching, requesting = (limits.readers(found.members, key) for key in KEYS)
    if fetching or requesting:
        window_ms, samples, session_ms = await _settings(admin)
        if fetching:
            warnings += await _fetch_warnings(admin, fetching, window_ms * samples, notes)
        if window_ms >= session_ms:
            warnings += [_session_warning(readers, window_ms) for readers in requesting]
    return QuotaEffects(warnings=warnings, notes=notes, groups=found.groups)


# --- consumers that fall behind -------------------------------------------------------------------------------------


async def _fetch_warnings(
    admin: Admin, fetching: Sequence[Readers], window_ms: float, notes: list[str]
) -> list[QuotaEffect]:
    places = {place for readers in fetching for some in readers.partitions.values() for place in some}
    group_ids = sorted({group_id for readers in fetching for group_id in readers.partitions})
    growth = await log_growth(admin.cluster, sorted(places)[:MAX_PARTITIONS])
    if growth.keys() != places:
        notes.append(f"the growth of {things_text(len(places) - len(growth), 'partition')} is not known")
    offsets = await asyncio.gather(*(_committed(admin, group_id) for group_id in group_ids))
    committed = dict(zip(group_ids, offsets, strict=True))
    warnings: list[QuotaEffect] = []
    for readers in fetching:
        warnings += _lag_warnings(readers, growth, committed)
        warnings += await _long_throttle_warnings(admin, readers, window_ms)
    return warnings


async def _committed(admin: Admin, group_id: str) -> dict[TopicPartition, int]:
    """Return the committed offsets of a group; none if the user may not see them."""
    try:
        return await committed_offsets(admin.cluster, group_id)
    except ClientError:
        return {}


def _lag_warnings(
    readers: Readers,
    growth: Mapping[TopicPartition, LogGrowth],
    committed: Mapping[str, Mapping[TopicPartition, int]],
) -> Iterator[QuotaEffect]:
    """Yield a warning if the members fall behind at one leader, or need long to catch up there."""
    rates: dict[int, float] = defaultdict(float)
    lags: dict[int, tuple[int, float]] = {}
    places: dict[int, set[TopicPartition]] = defaultdict(set)
    groups: dict[int, set[str]] = defaultdict(set)
    for group_id, partitions in readers.partitions.items():
        for place in partitions & growth.keys():
            log = growth[place]
            rates[log.leader] += log.bytes_per_s
            places[log.leader].add(place)
            groups[log.leader].add(group_id)
            position = committed[group_id].get(place, log.end_offset)
            lag = max(log.end_offset - max(position, log.start_offset), 0)
            records, size = lags.get(log.leader, (0, 0.0))
            lags[log.leader] = records + lag, size + lag * log.record_bytes
    if not rates:
        return
    leader = max(rates, key=lambda leader: (rates[leader] > readers.value, lags[leader][1], rates[leader]))
    rate, (lag, size) = rates[leader], lags[leader]
    spare = readers.value - rate
    lags_text = f"they lag {lag:,} records (about {round(size):,} bytes)"
    if spare < 0:
        verdict = f"more than the quota lets the consumers fetch; {lags_text} and fall further behind"
        hint = f"set at least {math.ceil(rate)}"
    elif size > spare * _CATCH_UP_S:
        hours_text = (
            f"catch up in about {math.ceil(size / spare / _CATCH_UP_S):,} h" if spare else "never catch up"
        )
        verdict = f"{lags_text} and {hours_text}"
        hint = f"set at least {math.ceil(rate + size / _CATCH_UP_S)} to catch up in an hour"
    else:
        return
    yield readers.effect(
        groups[leader],
        f"is low for {groups_text(sorted(groups[leader]))}: {things_text(len(places[leader]), 'partition')} on broker "
        f"{leader} grew by about {math.ceil(rate):,} bytes/s in the last {GROWTH_MS // 60_000} min, {verdict}",
        hint=hint,
        broker=leader,
        growth_bytes_per_s=rate,
        lag_records=lag,
        lag_bytes=size,
    )


# --- throttles that can outlast a session ---------------------------------------------------------------------------


async def _long_throttle_warnings(admin: Admin, readers: Readers, window_ms: float) -> list[QuotaEffect]:
    """Return a warning if a throttle after the largest batch can last longer than a default session."""
    topics = sorted({place.topic for some in readers.partitions.values() for place in some})[:_MAX_TOPICS]
    sizes = await asyncio.gather(*(_largest_batch(admin, topic) for topic in topics))
    largest = max(sizes, default=0)
    throttle_ms = largest * _MS_PER_S / readers.value - window_ms if readers.value > 0 else math.inf
    if not throttle_ms > _DEFAULT_SESSION_MS or not largest:
        return []
    topic = topics[sizes.index(largest)]
    long = "forever" if math.isinf(throttle_ms) else f"for up to {math.ceil(throttle_ms / _MS_PER_S):,} s"
    needed = math.ceil(largest * _MS_PER_S / (window_ms + _DEFAULT_SESSION_MS))
    return [
        readers.effect(
            readers.partitions,
            f"throttles {groups_text(readers.partitions)} {long} after a batch of {largest:,} bytes, the largest of "
            f"topic {cut(topic)!r}: longer than the default session timeout of {_DEFAULT_SESSION_MS // _MS_PER_S} s; "
            "clients that send heartbeats on the same connection lose their membership",
            hint=f"set at least {needed}, or a lower max.message.bytes of the topic",
        )
    ]


async def _largest_batch(admin: Admin, topic: str) -> int:
    try:
        configs = await admin.describe_configs(_TOPIC, topic, synonyms=False)
    except ClientError:
        return _MAX_BATCH
    return _number(configs, "max.message.bytes", _MAX_BATCH)


def _session_warning(readers: Readers, window_ms: int) -> QuotaEffect:
    return readers.effect(
        readers.partitions,
        f"can make {groups_text(readers.partitions)} lose members: a throttle lasts up to {window_ms:,} ms, one quota "
        "window, and the broker's shortest allowed session timeout is not longer",
        hint="set quota.window.size.seconds to 1, Kafka's default",
    )


async def _settings(admin: Admin) -> tuple[int, int, int]:
    """Return a broker's quota window in ms, the number of windows, and its shortest session in ms; defaults if hidden.

    Muted time of Tidegate's clients does not count toward their sessions, unless `tidegate.kafka.exact` is set.
    """
    node_id = admin.cluster.node_ids[0]
    try:
        configs = await admin.describe_configs(_BROKER, str(node_id), node_id=node_id, synonyms=False)
    except ClientError:
        configs = []
    session_ms = _number(configs, "group.min.session.timeout.ms", _LEAST_SESSION_MS)
    if any(config.name == KAFKA_EXACT and config.value == "false" for config in configs):
        session_ms = sys.maxsize
    window_s = _number(configs, "quota.window.size.seconds", 1)
    return window_s * _MS_PER_S, _number(configs, "quota.window.num", 11), session_ms


def _number(configs: Iterable[ConfigEntry], name: str, default: int) -> int:
    for config in configs:
        if config.name == name and config.value is not None and config.value.isdecimal():
            return int(config.value)
    return default

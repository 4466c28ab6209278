"""The gateway's quotas, kept in a compacted topic of the cluster, so that every gateway process has the same.

A record is one definition: its key names the entity and the quota's key, its value is the number, or empty if the quota
was removed. An alteration is one batch, which the broker stores completely or not at all. Each process reads the topic,
and applies a change by another process within a second. A process applies its own change as soon as the broker has
stored it; then it skips the records of the same quota that precede the change in the topic.

    key    {"entity": [["user", "alice"]], "key": "producer_byte_rate"}
    value  1048576.0

A client that may write to the topic can set quotas: protect the topic with an ACL. Records that AlterClientQuotas could
not have written are skipped with a warning. If the topic is deleted while a gateway runs, the gateway creates it again,
and writes the quotas in force to it, except those that another process has written by then.
"""

import asyncio
import json
import logging
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tidegate import error_codes
from tidegate.api_keys import LIST_OFFSETS
from tidegate.client import Admin, NewTopic
from tidegate.client.cluster import Cluster
from tidegate.client.consumer import EARLIEST, Consumer
from tidegate.client.errors import BrokerError, ClientError, raise_for
from tidegate.client.partitions import MOVED, TopicPartition
from tidegate.client.producer import Producer
from tidegate.client.settings import ClientSettings
from tidegate.errors import ConfigError
from tidegate.gateway.gateway import run_work
from tidegate.in_slices import run_at_once
from tidegate.quota import QuotaDefinitions, QuotaRecord, entity_parts
from tidegate.quota.admin.alterations import entity_error, value_error_in_slices
from tidegate.server.administration.quota_administration import QuotaAdministration
from tidegate.server.requests.handler import Wait
from tidegate.wire.records import NO_TIMESTAMP, Record

__all__ = [
    "QUOTA_TOPIC",
    "QuotaTopic",
    "create_if_missing",
    "decode_definition",
    "encode_definition",
]

_log = logging.getLogger("tidegate.gateway")

QUOTA_TOPIC = "__tidegate_quotas"
MAX_REPLICAS = 3
_PLACE = TopicPartition(QUOTA_TOPIC, 0)
# The topic is stored uncompressed, so the broker decompresses batches: the gateway's consumer supports only gzip.
_CONFIGS = {"cleanup.policy": "compact", "compression.type": "uncompressed"}
_TOPIC_RESOURCE = 2
_POLL_S = 0.5
_FOLLOW_POLL_S = 600.0  # ends with the first record; a shorter one would cancel the search for a lost leader
_PAUSE_S = 1.0
_RETRY_S = 0.1
_AT_A_TIME = 200
"""Records that are decoded together, which takes some milliseconds."""
_WRITTEN_AT_A_TIME = 1000
_MAX_SHOWN = 80
_Quota = tuple[Any, str]  # entity and key
_GONE = (error_codes.UNKNOWN_TOPIC_OR_PARTITION, error_codes.OFFSET_OUT_OF_RANGE)


class QuotaTopic:
    """The topic, as a `QuotaStore`: `open` it, then let `follow` run."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._producer = Producer(settings)
        self._consumer = Consumer(settings, max_records=_AT_A_TIME)
        self._found: dict[_Quota, QuotaRecord] = {}
        # Offset of the last record that this process has written and not yet read.
        self._unread: dict[_Quota, int] = {}
        # This process has created the deleted topic again, and has not yet written all quotas to it.
        self._lacks_quotas = False

    async def open(self) -> None:
        """Create the topic if it is missing, and read it to its end. Raises `ClientError`."""
        await self._create()
        self._found = await self._read()

    async def close(self) -> None:
        """Close the connections."""
        await self._producer.__aexit__()
        await self._consumer.__aexit__()

    async def follow(self, quotas: QuotaAdministration) -> None:
        """Apply the records of all gateway processes, in the order of the topic. Never returns.

        While the cluster cannot be reached, the known quotas stay in force.
        """
        is_warned = is_gone = False
        while True:
            try:
                if is_gone:
                    await self._restore(quotas)
                    is_gone = False
                records = await self._poll(_FOLLOW_POLL_S)
            except (ClientError, ConfigError) as error:
                is_gone = is_gone or (isinstance(error, BrokerError) and error.code in _GONE)
                if not is_warned:
                    is_warned = True
                    _log.warning("cannot read topic %s: %s; the quotas stay as they are", QUOTA_TOPIC, error)
                await asyncio.sleep(_PAUSE_S)
                continue
            if is_warned:
                is_warned = False
                _log.warning("topic %s can be read again", QUOTA_TOPIC)
            if records:
                # Which of them precede a change of this process is known only while no change is under way.
                await run_work(quotas.follow_in_slices(self._not_outdated(records)))

    async def _restore(self, quotas: QuotaAdministration) -> None:
        """Read the topic from its beginning; if it was deleted, create it with the quotas in force.

        To a topic that another process has created, only the last changes of this process are written: the other one
        may have newer quotas. Raises `ClientError` or `ConfigError`; call it again then.
        """
        if await self._create():
            self._lacks_quotas = True
        # No change is under way: each has been stored and is in force, or neither.
        await run_work(quotas.changes.acquire())
        try:
            lacking = self._lacking(quotas.definitions, await self._read())
            unread: dict[_Quota, int] = {}
            for at in range(0, len(lacking), _WRITTEN_AT_A_TIME):
                some = lacking[at : at + _WRITTEN_AT_A_TIME]
                first = await self._producer.send(*_PLACE, [encode_definition(record) for record in some])
                unread |= {_quota(record): offset for offset, record in enumerate(some, first)}
            self._unread = unread
            self._consumer.assign({_PLACE: EARLIEST})
        finally:
            quotas.changes.release()
        if self._lacks_quotas:
            self._lacks_quotas = False
            _log.warning(
                "topic %s was deleted: it was created again, with the %d quotas in force",
                QUOTA_TOPIC,
                len(lacking),
            )

    def _lacking(
        self, definitions: QuotaDefinitions, written: Mapping[_Quota, QuotaRecord]
    ) -> list[QuotaRecord]:
        """Return the records to write to a topic that begins again. written: what it has already."""
        lacking: dict[_Quota, QuotaRecord] = {}
        if self._lacks_quotas:
            lacking = {
                _quota(record): record for record in definitions.records() if _quota(record) not in written
            }
        for (
            entity,
            key,
        ) in self._unread:  # the process that has created the topic may not have read them either
            value, there = definitions.values(entity).get(key), written.get((entity, key))
            if value != (None if there is None else there.value):
                lacking[entity, key] = QuotaRecord(entity=entity, key=key, value=value)
        return list(lacking.values())

    async def _read(self) -> dict[_Quota, QuotaRecord]:
        """Return the last record of each quota in the topic, and follow those after them. Raises `ClientError`."""
        self._consumer.assign({_PLACE: EARLIEST})
        end = await self._end()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._settings.api_timeout_s
        found: dict[_Quota, QuotaRecord] = {}
        while (position := self._consumer.position(_PLACE)) < end:
            if loop.time() > until_s:
                raise ClientError(
                    f"topic {QUOTA_TOPIC} was read to offset {max(position, 0)} of {end} within "
                    f"{self._settings.api_timeout_s:g} s",
                    hint="raise default.api.timeout.ms in --upstream-config",
                )
            found |= {_quota(record): record for _, record in await self._poll()}
        return found

    # --- a `QuotaStore` ---------------------------------------------------------------------------------------------

    def load_quotas(self) -> Iterable[QuotaRecord]:
        """Return a record per definition that was read."""
        return [record for record in self._found.values() if record.value is not None]

    def apply_quota_records_in_slices(
        self, records: Sequence[QuotaRecord]
    ) -> Generator[Wait | None, None, None]:
        """Write all of `records`, or none, and wait until the cluster has them. Raises `ClientError`."""
        batch = [encode_definition(record) for record in records]
        wait = Wait()
        sending = asyncio.get_running_loop().create_task(self._producer.send(*_PLACE, batch))
        sending.add_done_callback(lambda _: wait.resume())
        yield wait
        for offset, record in enumerate(records, sending.result()):
            self._unread[_quota(record)] = offset
            if offset % _AT_A_TIME == 0:
                yield None

    def _not_outdated(self, read: Iterable[tuple[int, QuotaRecord]]) -> Iterator[QuotaRecord]:
        """Yield records, given with their offsets, except those that precede a record of this process."""
        for offset, record in read:
            quota = _quota(record)
            if offset >= self._unread.get(quota, 0):
                self._unread.pop(quota, None)
                yield record

    async def _poll(self, timeout_s: float = _POLL_S) -> list[tuple[int, QuotaRecord]]:
        """Return the next definitions and their offsets."""
        found = await self._consumer.poll(timeout_s=timeout_s)
        decoded = [
            (record.offset, decode_definition(record)) for records in found.values() for record in records
        ]
        return [(offset, record) for offset, record in decoded if record is not None]

    async def _create(self) -> bool:
        """Create the topic if it is missing; return whether it was. Raises `ClientError` or `ConfigError`."""
        async with Admin(self._settings) as admin:
            is_new = await create_if_missing(admin, QUOTA_TOPIC, _CONFIGS)
            if not is_new:
                await _check_existing(admin)
            return is_new

    async def _end(self) -> int:
        """Return the offset after the last record of the topic. Raises `ClientError`."""
        partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
        asked = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": QUOTA_TOPIC, "partitions": [partition]}],
            "timeout_ms": 10_000,
        }
        async with Cluster(self._settings) as cluster, cluster.time_limit():
            while True:
                leader = await wait_for_leader(cluster, QUOTA_TOPIC)
                answer = (await cluster.ask_node(leader, LIST_OFFSETS, asked)).message
                found = answer["topics"][0]["partitions"][0]
                if found["error_code"] not in MOVED:
                    raise_for(found["error_code"], None)
                    return int(found["offset"])
                await asyncio.sleep(_RETRY_S)


def _quota(record: QuotaRecord) -> _Quota:
    return record.entity, record.key


async def wait_for_leader(cluster: Cluster, name: str) -> int:
    """Return the broker that leads a topic's partition, when there is one.

    Wait for it no longer than the caller's time limit.
    """
    while True:
        (topic,) = await cluster.refresh([name])
        leader = topic.leaders.get(0, -1)
        if topic.error_code == error_codes.NONE and leader >= 0:
            return leader
        if topic.error_code not in MOVED:
            raise_for(topic.error_code, None)
        await asyncio.sleep(_RETRY_S)


async def create_if_missing(admin: Admin, name: str, configs: Mapping[str, str]) -> bool:
    """Create a topic of one partition if it is missing; return whether it was. Raises `ClientError`."""
    await admin.cluster.refresh()
    replicas = min(MAX_REPLICAS, len(admin.cluster.node_ids))
    new = NewTopic(name=name, partitions=1, replication_factor=replicas, configs=configs)
    error = (await admin.create_topics([new]))[name]
    if error is not None and getattr(error, "code", None) != error_codes.TOPIC_ALREADY_EXISTS:
        raise error
    async with admin.cluster.time_limit():
        await wait_for_leader(admin.cluster, name)
    return error is None


async def _check_existing(admin: Admin) -> None:
    """Raise `ConfigError` if the topic is not compacted, or has several partitions."""
    (topic,) = await admin.cluster.refresh([QUOTA_TOPIC])
    configs = await admin.describe_configs(_TOPIC_RESOURCE, QUOTA_TOPIC)
    policy = next((each.value for each in configs if each.name == "cleanup.policy"), None)
    if policy != "compact" or len(topic.leaders) != 1:
        raise ConfigError(
            f"topic {QUOTA_TOPIC} has cleanup.policy={policy} and {len(topic.leaders)} partitions, "
            "expected compact and one partition",
            hint="set its cleanup.policy to compact, or delete the topic if it is not a gateway's",
        )


def encode_definition(record: QuotaRecord) -> Record:
    """Return a definition as a record of the topic, without the time: brokers refuse one of a clock that is ahead."""
    key = json.dumps({"entity": record.entity, "key": record.key}, separators=(",", ":"))
    value = None if record.value is None else repr(record.value).encode()
    return Record(key=key.encode(), value=value, timestamp_ms=NO_TIMESTAMP)


def decode_definition(record: Record) -> QuotaRecord | None:
    """Return the definition in a record of the topic; None, with a warning, where it is none.

    >>> decode_definition(encode_definition(QuotaRecord(entity=(("user", None),), key="producer_byte_rate", value=5.0)))
    QuotaRecord(entity=(('user', None),), key='producer_byte_rate', value=5.0)
    """
    try:
        definition = json.loads(record.key or b"")
        entity, key = entity_parts((part[0], part[1]) for part in definition["entity"]), definition["key"]
        if not all(isinstance(text, str) for part in entity for text in part if text is not None):
            raise ValueError("an entity whose type or name is not a text")
        value = None if record.value is None else float(record.value)
        wrong = entity_error(entity, is_known_host=lambda name: True) or run_at_once(
            value_error_in_slices(entity, {key: value})
        )
        if wrong is not None:
            raise ValueError(wrong)
        return QuotaRecord(entity=entity, key=key, value=value)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        _log.warning(
            "skipped record %d of topic %s: not a quota: %s",
            record.offset,
            QUOTA_TOPIC,
            str(error)[:_MAX_SHOWN],
            extra={"repeats": QUOTA_TOPIC},
        )
        return None

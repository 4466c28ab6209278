"""The gateway's quotas, kept in a compacted topic of the cluster, so that every gateway process has the same.

A record is one definition (`quota_records`). An alteration is one batch, which the broker stores completely or not at
all. Each process reads the topic, and applies a change by another process within a second. A process applies its own
change as soon as the broker has stored it; then it skips the records of the same quota that precede the change in the
topic.

A client that may write to the topic can set quotas: protect the topic with an ACL. Records that AlterClientQuotas could
not have written are skipped with a warning. If the topic is deleted while a gateway runs, the gateway creates it again,
and writes the quotas in force to it, except those that another process has written by then. These records are marked
as restored: a process that finds one replaces it by its own last change, if that was lost with the topic. If the
process that created the topic does not write all quotas, another one does so.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

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
from tidegate.gateway.quota_records import QUOTA_TOPIC, decode_definition, encode_definition, is_restored
from tidegate.in_slices import batched, lots
from tidegate.quota import QuotaDefinitions, QuotaRecord
from tidegate.quota.admin.alterations import is_change
from tidegate.server.administration.quota_administration import QuotaAdministration
from tidegate.server.requests.handler import Wait
from tidegate.wire.records import Record

__all__ = [
    "QuotaTopic",
    "create_if_missing",
]

_log = logging.getLogger("tidegate.gateway")

MAX_REPLICAS = 3
_PLACE = TopicPartition(QUOTA_TOPIC, 0)
# The topic is stored uncompressed, so the broker decompresses batches: the gateway's consumer supports only gzip.
_CONFIGS = {"cleanup.policy": "compact", "compression.type": "uncompressed"}
_TOPIC_RESOURCE = 2
# Both end with the first record. A poll that ends early cancels the search for a lost leader, which takes 2 s.
_POLL_S = 3.0
_FOLLOW_POLL_S = 600.0
_RESTORE_S = 10.0
"""Longest time of an attempt to complete the topic, for which clients wait for their changes of quotas."""
_MOST_TRIES = 10
_PAUSE_S = 1.0
_RETRY_S = 0.1
_AT_A_TIME = 200
"""Records that are decoded together, which takes some milliseconds."""
_WRITTEN_AT_A_TIME = 1000
_BYTES_AT_A_TIME = 1 << 18
_GONE = (error_codes.UNKNOWN_TOPIC_OR_PARTITION, error_codes.OFFSET_OUT_OF_RANGE)

_Quota = tuple[Any, str]  # entity and key


class _Read(NamedTuple):
    """A record that was read. is_restored: it was written to a topic that was created again."""

    offset: int
    record: QuotaRecord
    is_restored: bool


class QuotaTopic:
    """The topic, as a `QuotaStore`: `open` it, then let `follow` run."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._producer = Producer(settings)
        self._consumer = Consumer(settings, max_records=_AT_A_TIME)
        self._found: dict[_Quota, _Read] = {}
        # Offset of the last record that this process has written and not yet read.
        self._unread: dict[_Quota, int] = {}
        # Whether this process has created the deleted topic again, and how often it has tried to complete it.
        self._is_creator, self._tries = False, 0

    async def open(self) -> None:
        """Create the topic if it is missing, and read it to its end. Raises `ClientError`."""
        await self._create()
        self._consumer.assign({_PLACE: EARLIEST})
        await self._read(self._found)

    async def close(self) -> None:
        """Close the connections."""
        await self._producer.__aexit__()
        await self._consumer.__aexit__()

    async def follow(self, quotas: QuotaAdministration) -> None:
        """Apply the records of all gateway processes, in the order of the topic. Never returns.

        While the cluster cannot be reached, the known quotas stay in force.
        """
        warned: set[object] = set()  # kinds of errors
        is_gone = False
        while True:
            what = "restore" if is_gone else "read"
            try:
                records = await (self._restore(quotas) if is_gone else self._poll(_FOLLOW_POLL_S))
                is_gone = False
            except (ClientError, ConfigError) as error:
                is_gone = is_gone or (isinstance(error, BrokerError) and error.code in _GONE)
                kind = what, getattr(error, "code", None), isinstance(error, ConfigError)
                if kind not in warned:
                    warned.add(kind)
                    hint = f"; hint: {error.hint}" if isinstance(error, ConfigError) else ""
                    _log.warning(
                        "cannot %s topic %s: %s; the quotas stay as they are%s",
                        what,
                        QUOTA_TOPIC,
                        error,
                        hint,
                    )
                await asyncio.sleep(_PAUSE_S)
                continue
            if warned:
                warned.clear()
                _log.warning("topic %s can be read again", QUOTA_TOPIC)
            for some in batched(records, _AT_A_TIME):
                # Which of them precede a change of this process is known only while no change is under way.
                await run_work(quotas.follow_in_slices(self._not_outdated(some)))

    async def _restore(self, quotas: QuotaAdministration) -> Sequence[_Read]:
        """Read the topic from its beginning; return the last record of each quota. Create a topic that was deleted.

        What the topic lacks is written to it. Also called where the topic only had no leader for some time: then it
        lacks nothing. Raises `ClientError` or `ConfigError`; after an error, call it again.
        """
        if await self._create():
            self._is_creator = True
        self._consumer.assign({_PLACE: EARLIEST})
        found: dict[_Quota, _Read] = {}
        await self._read(found)
        await run_work(quotas.changes.acquire())  # from here on, no change is under way
        try:
            async with asyncio.timeout(_RESTORE_S) as limit:
                await self._read(found)
                await self._complete(quotas.definitions, found)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ClientError(f"quotas were not written to it within {_RESTORE_S:g} s") from error
        finally:
            quotas.changes.release()
        self._is_creator, self._tries = False, 0
        return list(found.values())

    async def _complete(self, definitions: QuotaDefinitions, found: Mapping[_Quota, _Read]) -> None:
        """Write what the topic lacks. found: the last record of each quota in it.

        The process that has created the topic writes the quotas in force. If it fails to do so, another process does.
        """
        # The last changes of this process: the process that has created the topic may not have read them.
        lost = []
        for entity, key in self._unread:
            value, there = definitions.values(entity).get(key), found.get((entity, key))
            if there is None or (there.is_restored and is_change(there.record.value, value)):
                lost.append(QuotaRecord(entity=entity, key=key, value=value))
        self._unread = await self._write(lost)
        lacking = []
        for number, record in enumerate(definitions.records()):
            if _quota(record) not in found and _quota(record) not in self._unread:
                lacking.append(record)
            if number % _AT_A_TIME == 0:
                await asyncio.sleep(0)
        self._tries += 1
        if lacking and not self._is_creator and self._tries < _MOST_TRIES:
            raise ClientError(f"the process that has created it has not yet written {len(lacking)} quotas")
        await self._write(lacking, is_restored=True)
        if lacking or self._is_creator:
            _log.warning(
                "topic %s was deleted: it was created again, and %d quotas were written to it",
                QUOTA_TOPIC,
                len(lacking),
            )

    async def _write(self, records: Iterable[QuotaRecord], *, is_restored: bool = False) -> dict[_Quota, int]:
        """Write records, some at a time; return the offset of each. Raises `ClientError`."""
        offsets: dict[_Quota, int] = {}
        encoded = ((_quota(record), encode_definition(record, is_restored=is_restored)) for record in records)
        for some in lots(encoded, _bytes_of, most=_WRITTEN_AT_A_TIME, most_size=_BYTES_AT_A_TIME):
            first = await self._producer.send(*_PLACE, [record for _, record in some])
            offsets |= {quota: offset for offset, (quota, _) in enumerate(some, first)}
        return offsets

    async def _read(self, found: dict[_Quota, _Read]) -> None:
        """Read on to the end of the topic. found: receives the last record of each quota. Raises `ClientError`."""
        async for read in self._read_on():
            found[_quota(read.record)] = read

    async def _read_on(self) -> AsyncIterator[_Read]:
        """Yield the records up to the end that the topic has now. Raises `ClientError`."""
        end = await self._end()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._settings.api_timeout_s
        while (position := max(self._consumer.position(_PLACE), 0)) < end:
            if loop.time() > until_s:
                raise ClientError(
                    f"topic {QUOTA_TOPIC} was read to offset {position} of {end} within "
                    f"{self._settings.api_timeout_s:g} s",
                    hint="raise default.api.timeout.ms in --upstream-config",
                )
            for each in await self._poll():
                yield each
            await asyncio.sleep(0)  # a poll waits only where nothing is fetched yet

    # --- a `QuotaStore` ---------------------------------------------------------------------------------------------

    def load_quotas(self) -> Iterable[QuotaRecord]:
        """Return a record per definition that was read."""
        return [read.record for read in self._found.values() if read.record.value is not None]

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

    def _not_outdated(self, read: Iterable[_Read]) -> Iterator[QuotaRecord]:
        """Yield records except those that precede a record of this process."""
        for each in read:
            quota = _quota(each.record)
            if each.offset >= self._unread.get(quota, 0):
                self._unread.pop(quota, None)
                yield each.record

    async def _poll(self, timeout_s: float = _POLL_S) -> list[_Read]:
        """Return the next definitions."""
        found = await self._consumer.poll(timeout_s=timeout_s)
        decoded = [(record, decode_definition(record)) for records in found.values() for record in records]
        return [
            _Read(record.offset, definition, is_restored(record))
            for record, definition in decoded
            if definition is not None
        ]

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


def _bytes_of(encoded: tuple[_Quota, Record]) -> int:
    return len(encoded[1].key or b"")


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

"""The gateway's quotas, kept in a compacted topic of the cluster, so that every gateway process has the same.

A record is one definition: its key names the entity and the quota's key, its value is the number, or nothing where the
quota was removed. An alteration is one batch: the broker keeps all of it or nothing. Each process reads the topic and
has a change of another one within a second.

    key    {"entity": [["user", "alice"]], "key": "producer_byte_rate"}
    value  1048576.0

Who may write to the topic may set quotas: protect it by an ACL. Records that are none of these are skipped, with a
warning.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

from tidegate.api_keys import LIST_OFFSETS
from tidegate.client import Admin, NewTopic
from tidegate.client.cluster import Cluster
from tidegate.client.consumer import EARLIEST, Consumer
from tidegate.client.errors import ClientError
from tidegate.client.partitions import TopicPartition
from tidegate.client.producer import Producer
from tidegate.client.settings import ClientSettings
from tidegate.errors import ConfigError
from tidegate.quota import QuotaRecord, entity_parts
from tidegate.quota.admin.keys import ENTITY_TYPES, QUOTA_KEYS
from tidegate.server.requests.handler import Wait
from tidegate.wire.records import Record

__all__ = ["QUOTA_TOPIC", "QuotaTopic", "decode_definition", "encode_definition"]

_log = logging.getLogger("tidegate.gateway")

QUOTA_TOPIC = "__tidegate_quotas"
MAX_REPLICAS = 3
_PLACE = TopicPartition(QUOTA_TOPIC, 0)
_TOPIC_RESOURCE = 2
_TOPIC_EXISTS = 36
_POLL_S = 0.5
_PAUSE_S = 1.0
_QUIET_POLLS = 2
_MAX_SHOWN = 80


class QuotaTopic:
    """The topic, as a `QuotaStore`: `open` it, then let `follow` run."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._producer = Producer(settings)
        self._consumer = Consumer(settings, max_records=10_000)
        self._found: dict[tuple[Any, str], QuotaRecord] = {}

    async def open(self) -> None:
        """Create the topic if it is missing, and read it to its end. Raises `ClientError`."""
        async with Admin(self._settings) as admin:
            await admin.cluster.refresh()
            replicas = min(MAX_REPLICAS, len(admin.cluster.node_ids))
            await _create(admin, replicas)
        self._consumer.assign({_PLACE: EARLIEST})
        end = await self._end()
        while self._position() < end:
            for record in await self._poll():
                if record.value is None:
                    self._found.pop((record.entity, record.key), None)
                else:
                    self._found[record.entity, record.key] = record

    async def close(self) -> None:
        """Close the connections."""
        await self._producer.__aexit__()
        await self._consumer.__aexit__()

    async def follow(self, on_records: Callable[[Sequence[QuotaRecord]], None]) -> None:
        """Call `on_records` with what any gateway process writes, its own too, in the order of the topic. Never ends.

        While the cluster cannot be reached, the quotas that are known stay in force.
        """
        is_warned = False
        while True:
            try:
                records = await self._poll()
                is_warned = False
            except ClientError as error:
                if not is_warned:
                    is_warned = True
                    _log.warning("cannot read topic %s: %s; the quotas stay as they are", QUOTA_TOPIC, error)
                await asyncio.sleep(_PAUSE_S)
                continue
            if records:
                on_records(records)

    # --- a `QuotaStore` ---------------------------------------------------------------------------------------------

    def load_quotas(self) -> Iterable[QuotaRecord]:
        """Return a record per definition that was read."""
        return list(self._found.values())

    def apply_quota_records_in_slices(
        self, records: Sequence[QuotaRecord]
    ) -> Generator[Wait | None, None, None]:
        """Write all of `records`, or none, and wait until the cluster has them. Raises `ClientError`."""
        batch = [encode_definition(record) for record in records]
        wait = Wait()
        sending = asyncio.get_running_loop().create_task(self._producer.send(*_PLACE, batch))
        sending.add_done_callback(lambda _: wait.resume())
        yield wait
        sending.result()

    async def _poll(self) -> list[QuotaRecord]:
        found = await self._consumer.poll(timeout_s=_POLL_S)
        decoded = [decode_definition(record) for records in found.values() for record in records]
        return [record for record in decoded if record is not None]

    def _position(self) -> int:
        return self._consumer.position(_PLACE)

    async def _end(self) -> int:
        """Return the offset behind the last record that there is now."""
        async with Cluster(self._settings) as cluster:
            (topic,) = await cluster.refresh([QUOTA_TOPIC])
            partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
            asked = {
                "replica_id": -1,
                "isolation_level": 0,
                "topics": [{"name": QUOTA_TOPIC, "partitions": [partition]}],
                "timeout_ms": 10_000,
            }
            answer = (await cluster.ask_node(topic.leaders[0], LIST_OFFSETS, asked)).message
            return int(answer["topics"][0]["partitions"][0]["offset"])


async def _create(admin: Admin, replicas: int) -> None:
    """Create the topic. Raises `ClientError`, or `ConfigError` where it exists and is not compacted."""
    new = NewTopic(
        name=QUOTA_TOPIC,
        partitions=1,
        replication_factor=replicas,
        configs={"cleanup.policy": "compact"},
    )
    error = (await admin.create_topics([new]))[QUOTA_TOPIC]
    code = getattr(error, "code", None)
    if error is not None and code != _TOPIC_EXISTS:
        raise error
    for _ in range(50):
        (topic,) = await admin.cluster.refresh([QUOTA_TOPIC])
        if topic.error_code == 0 and topic.leaders.get(0, -1) >= 0:
            break
        await asyncio.sleep(0.1)
    if code == _TOPIC_EXISTS:
        configs = await admin.describe_configs(_TOPIC_RESOURCE, QUOTA_TOPIC)
        policy = next((each.value for each in configs if each.name == "cleanup.policy"), None)
        if policy != "compact" or len(topic.leaders) != 1:
            raise ConfigError(
                f"topic {QUOTA_TOPIC} has cleanup.policy={policy} and {len(topic.leaders)} partitions, "
                "expected compact and one partition",
                hint="set its cleanup.policy to compact, or delete the topic if it is not a gateway's",
            )


def encode_definition(record: QuotaRecord) -> Record:
    """Return a definition as a record of the topic."""
    key = json.dumps({"entity": record.entity, "key": record.key}, separators=(",", ":"))
    return Record(key=key.encode(), value=None if record.value is None else repr(record.value).encode())


def decode_definition(record: Record) -> QuotaRecord | None:
    """Return the definition in a record of the topic; None, with a warning, where it is none.

    >>> decode_definition(encode_definition(QuotaRecord(entity=(("user", None),), key="producer_byte_rate", value=5.0)))
    QuotaRecord(entity=(('user', None),), key='producer_byte_rate', value=5.0)
    """
    try:
        definition = json.loads(record.key or b"")
        entity, key = entity_parts((part[0], part[1]) for part in definition["entity"]), definition["key"]
        if not entity or key not in QUOTA_KEYS or not all(_is_part(*part) for part in entity):
            raise ValueError(f"unknown entity or key in {record.key!r}")
        return QuotaRecord(
            entity=entity, key=key, value=None if record.value is None else float(record.value)
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        _log.warning(
            "skipped record %d of topic %s: not a quota: %s",
            record.offset,
            QUOTA_TOPIC,
            str(error)[:_MAX_SHOWN],
            extra={"repeats": QUOTA_TOPIC},
        )
        return None


def _is_part(entity_type: object, name: object) -> bool:
    return entity_type in ENTITY_TYPES and (name is None or isinstance(name, str))

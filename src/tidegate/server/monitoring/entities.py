"""The live quota entities of a node: limit, rate and utilization of each, and its throttled connections.

An entity here is what the clients with the same tags share: a sensor. There may be 50,000, so that all of them are
looked at, in slices of about a millisecond, and `MAX_ENTITIES` of each quota type are kept: those with throttled
connections first, then those that use most of their quota. The others are counted, and their rates are added up.
Nothing here has an effect on a decision.

Follows: KIP-13 ("fraction of quota used"), KIP-786 (the limit as a metric).
"""

import asyncio
import hashlib
import json
import math
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from heapq import heappush, heappushpop
from typing import Any

from tidegate.clock import NS_PER_MS
from tidegate.quota import Metric, QuotaType, name_of_tag
from tidegate.quota.managers.mutation import MutationSensor
from tidegate.quota.managers.quota_managers import Manager
from tidegate.quota.managers.sensor_manager import CallbackError
from tidegate.quota.measure.cluster_sensor import ClusterSensor
from tidegate.quota.measure.sensors import Sensor, is_unlimited
from tidegate.server.monitoring.entity_order import BROKER, CLUSTER, NO_QUOTA, entity_order
from tidegate.server.node import METRICS_SLICE_NS, Node

__all__ = [
    "FORMAT",
    "MAX_ENTITIES",
    "MAX_NAME_CHARS",
    "ONLY_PROCESS",
    "OTHERS",
    "UNITS",
    "LiveEntities",
    "Pace",
    "ProcessPorts",
    "Throttled",
    "entities_document",
    "find_entities",
    "find_throttled",
    "finite",
    "shown_name",
    "use_of",
]

FORMAT = 1
"""The version of the JSON documents."""
MAX_ENTITIES = 500
"""Entities of a quota type that are listed: four types make a response of a megabyte or so."""
OTHERS = "<others>"
"""Stands for user and client id of the entities that are not listed. No user has it: names in tags are sanitised."""
MAX_NAME_CHARS = 200
"""Most characters of a user or client id that are shown; Kafka allows 32,767 bytes."""
UNITS = {
    QuotaType.PRODUCE: "bytes per second",
    QuotaType.FETCH: "bytes per second",
    QuotaType.REQUEST: "percent of one thread",
    QuotaType.CONTROLLER_MUTATION: "mutations per second",
}
_REASONS = {
    QuotaType.PRODUCE: "produce quota exceeded",
    QuotaType.FETCH: "fetch quota exceeded",
    QuotaType.REQUEST: "request quota or controller mutation quota exceeded",
    QuotaType.CONTROLLER_MUTATION: "controller mutation quota exceeded",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPorts:
    """The ports of the metrics listeners of all processes that serve a broker. number: of this process, from 1."""

    number: int = 1
    ports: tuple[int, ...] = ()

    def fields(self) -> dict[str, Any]:
        """Return them as fields of a document; without ports, there is one process."""
        return {"process": self.number, "process_ports": list(self.ports)}


ONLY_PROCESS = ProcessPorts()
"""The process of a broker that has no others."""


class Pace:
    """A turn of the event loop for others, each time that a piece of long work has taken about a millisecond."""

    def __init__(self, monotonic_ns: Callable[[], int]) -> None:
        self._monotonic_ns = monotonic_ns
        self._until_ns = monotonic_ns() + METRICS_SLICE_NS

    async def rest(self) -> None:
        """Return after a turn of the event loop if it is time for one. Call it after each small step of the work."""
        if self._monotonic_ns() >= self._until_ns:
            await asyncio.sleep(0)
            self._until_ns = self._monotonic_ns() + METRICS_SLICE_NS


@dataclass(slots=True)
class Throttled:
    """The throttled connections of one entity: how many, and when the last of them is unmuted."""

    connections: int = 0
    end_ns: int = 0


class LiveEntities:
    """The entities of one quota type: throttled ones first, then by utilization, those without a quota last.

    count: of all. omitted_rate: the rates of those that are not listed, together.
    """

    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.count = 0
        self.omitted_rate = 0.0
        self._listed: list[tuple[bool, float, float, int, Sensor]] = []

    def add(self, sensor: Sensor, now_ms: int, *, is_throttled: bool) -> None:
        """Count an entity, and list it or another one."""
        used, rate = sensor.utilization(now_ms), sensor.peek_rate(now_ms)
        self.count += 1
        entry = (is_throttled, NO_QUOTA if used is None else used, rate, self.count, sensor)
        if len(self._listed) < MAX_ENTITIES:
            heappush(self._listed, entry)
        else:
            self.omitted_rate += heappushpop(self._listed, entry)[2]

    @property
    def omitted(self) -> int:
        """The number of entities that are not listed."""
        return self.count - len(self._listed)

    def omitted_metric(self) -> Metric:
        """Return the rate of the entities that are not listed, under a name that no user has."""
        quota_type = self.manager.quota_type
        is_mutation = quota_type is QuotaType.CONTROLLER_MUTATION
        return Metric(
            group=quota_type.value,
            name="mutation-rate" if is_mutation else quota_type.metric,
            tags={"user": OTHERS, "client-id": OTHERS},
            value=self.omitted_rate,
        )

    def __iter__(self) -> Iterator[Any]:
        """Yield the sensors that are listed, in their order."""
        return (entry[4] for entry in sorted(self._listed, reverse=True))


async def find_entities(
    node: Node, throttled: Container[tuple[QuotaType, str]], now_ms: int, pace: Pace
) -> list[LiveEntities]:
    """Return the live entities of each quota type, as they are at the engine time `now_ms`.

    throttled: the entities with throttled connections, as `find_throttled` names them.
    """
    found = []
    for manager in node.managers:
        entities = LiveEntities(manager)
        for sensor in manager.up_to_date_sensors():
            is_throttled = (manager.quota_type, sensor.name) in throttled
            entities.add(sensor, now_ms, is_throttled=is_throttled)
            await pace.rest()
        found.append(entities)
    return found


async def find_throttled(node: Node, pace: Pace) -> dict[tuple[QuotaType, str], Throttled]:
    """Return the throttled connections by quota type and name of the sensor that throttled them.

    Connections whose client id was not kept, because it is very long, are left out.
    """
    found: dict[tuple[QuotaType, str], Throttled] = {}
    for channel, throttle in node.throttles():
        await pace.rest()
        if throttle.client_id is None or not throttle.throttled.waiting:
            continue
        manager = node.managers.manager(throttle.quota_type)
        try:
            name = manager.sensor_name(channel.connection.user, throttle.client_id)
        except CallbackError:
            continue
        entry = found.setdefault((throttle.quota_type, name), Throttled())
        entry.connections += 1
        entry.end_ns = max(entry.end_ns, throttle.throttled.end_ns)
    return found


async def entities_document(node: Node, pace: Pace, processes: ProcessPorts = ONLY_PROCESS) -> list[bytes]:
    """Return the live entities as JSON in parts: throttled ones first, then by utilization."""
    now_ms = node.clock.now_ms()
    throttled = await find_throttled(node, pace)
    listed: list[dict[str, Any]] = []
    counts = {}
    for entities in await find_entities(node, throttled, now_ms, pace):
        quota_type = entities.manager.quota_type
        counts[quota_type.value] = {"entities": entities.count, "omitted": entities.omitted}
        for sensor in entities:
            listed.append(
                _entity(node, entities.manager, sensor, throttled.get((quota_type, sensor.name)), now_ms)
            )
            await pace.rest()
    listed.sort(key=entity_order)
    await pace.rest()
    head = {
        "format": FORMAT,
        "node_id": node.config["node.id"],
        "time_ms": node.clock.wall_ms(),
        **processes.fields(),
        "quota_types": counts,
    }
    parts = [json.dumps(head).removesuffix("}").encode() + b', "entities": [']
    for number, entity in enumerate(listed):
        parts.append((",\n" if number else "\n").encode() + json.dumps(entity).encode())
        await pace.rest()
    return [*parts, b"\n]}\n"]


def _entity(
    node: Node, manager: Manager, sensor: Any, throttled: Throttled | None, now_ms: int
) -> dict[str, Any]:
    user, client_id = name_of_tag(sensor.tags.get("user", "")), sensor.tags.get("client-id", "")
    return {
        "quota_type": manager.quota_type.value,
        "user": shown_name(user),
        "client_id": shown_name(client_id),
        "unit": UNITS[manager.quota_type],
        "observed": node.managers.extensions.observe.selects(user, client_id),
        **use_of(node, manager.quota_type, sensor, throttled, now_ms),
    }


def use_of(
    node: Node, quota_type: QuotaType, sensor: Any, throttled: Throttled | None, now_ms: int
) -> dict[str, Any]:
    """Return what is used of a quota, and how long its clients are throttled.

    scope: whether the limit is of this broker or of the cluster. throttle_time_ms: of a request that is charged
    nothing now. throttled_until_ms: when the last throttled connection is unmuted, in ms of Unix time.
    """
    until_ms = None
    if throttled is not None:
        left_ns = throttled.end_ns - node.clock.monotonic_ns()
        until_ms = node.clock.wall_ms() + max(left_ns, 0) // NS_PER_MS
    return {
        "scope": CLUSTER if _is_of_cluster(sensor, now_ms) else BROKER,
        "limit": None if is_unlimited(sensor.bound) else finite(sensor.bound),
        "rate": finite(sensor.peek_rate(now_ms)),
        "utilization": finite(sensor.utilization(now_ms)),
        "throttle_time_ms": sensor.peek_throttle_ms(now_ms),
        "throttled_connections": 0 if throttled is None else throttled.connections,
        "throttled_until_ms": until_ms,
        "reason": None if throttled is None else _REASONS[quota_type],
    }


def _is_of_cluster(sensor: Any, now_ms: int) -> bool:
    """Return whether all brokers, or all gateways before a cluster, share the limit."""
    if isinstance(sensor, MutationSensor):
        return sensor.is_shared(now_ms)
    return isinstance(sensor, ClusterSensor) and not sensor.is_of_broker


def finite(number: float | None) -> float | None:
    """Return a number that JSON can hold, None for any other."""
    return number if number is not None and math.isfinite(number) else None


def shown_name(name: str) -> str:
    """Return a name as it is listed: a long one is cut, and ends with a digest, so that different names stay so.

    >>> shown_name("loader"), len(shown_name("x" * 32_000)), shown_name("x" * 300) == shown_name("x" * 301)
    ('loader', 217, False)
    """
    if len(name) <= MAX_NAME_CHARS:
        return name
    digest = hashlib.blake2b(name.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()
    return f"{name[:MAX_NAME_CHARS]}…{digest}"

"""The explanation of a client's quotas: which entity applies on each quota type, and why the others do not."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidegate.quota import DEFAULT, QuotaEntity, name_of_tag
from tidegate.quota.admin.entity import EntityPart
from tidegate.quota.managers.explain import Explanation
from tidegate.quota.managers.quota_managers import Manager
from tidegate.quota.measure.sensors import is_unlimited
from tidegate.server.monitoring.entities import (
    FORMAT,
    ONLY_PROCESS,
    UNITS,
    Pace,
    ProcessPorts,
    Throttled,
    find_throttled,
    finite,
    shown_name,
    use_of,
)
from tidegate.server.monitoring.entity_order import BROKER

if TYPE_CHECKING:
    from tidegate.server.node import Node

__all__ = ["definition_fields", "explanation_document", "without_other_names"]


async def explanation_document(
    node: "Node", user: str, client_id: str, pace: Pace, processes: ProcessPorts = ONLY_PROCESS
) -> dict[str, Any]:
    """Return the explanation for a client. Raises `CallbackError` where a quota callback fails."""
    throttled = await find_throttled(node, pace)
    quotas = []
    for manager in node.managers:
        name = manager.sensor_name(user, client_id)
        quotas.append(_quota(node, manager, user, client_id, throttled.get((manager.quota_type, name))))
        await pace.rest()
    return {
        "format": FORMAT,
        "node_id": node.config["node.id"],
        "time_ms": node.clock.wall_ms(),
        **processes.fields(),
        "user": shown_name(user),
        "client_id": shown_name(client_id),
        "quotas": quotas,
    }


def without_other_names(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return an explanation without the names that a quota callback counts the client's usage by: null instead."""
    own = {document["user"], document["client_id"]}
    quotas = [
        {
            **quota,
            "shared_by": {kind: name if name in own else None for kind, name in quota["shared_by"].items()},
        }
        for quota in document["quotas"]
    ]
    return {**document, "quotas": quotas}


def _quota(
    node: "Node", manager: Manager, user: str, client_id: str, throttled: Throttled | None
) -> dict[str, Any]:
    now_ms = node.clock.now_ms()
    sensor = manager.existing_sensor(user, client_id)
    fields = definition_fields(manager.explain(user, client_id))
    limit = fields["limit"]
    unused = {
        "scope": BROKER,
        "rate": 0.0,
        "utilization": None if limit is None else 0.0,
        "throttle_time_ms": 0,
        "throttled_connections": 0,
        "throttled_until_ms": None,
        "reason": None,
    }
    use = unused if sensor is None else use_of(node, manager.quota_type, sensor, throttled, now_ms)
    observed = node.managers.extensions.observe.selects(user, client_id)
    return {**fields, "observed": observed, **use, "limit": limit}


def definition_fields(explanation: Explanation) -> dict[str, Any]:
    """Return what an explanation says without traffic: the limit, the entity that it is of, and the eight levels."""
    bound = explanation.bound
    return {
        "quota_type": explanation.quota_type.value,
        "quota_key": explanation.quota_type.key,
        "unit": UNITS[explanation.quota_type],
        "entity": None if explanation.entity is None else _entity(explanation.entity),
        "by_callback": not explanation.defined,
        "shared_by": {
            key: shown_name(name_of_tag(value) if key == "user" else value)
            for key, value in explanation.tags.items()
            if value
        },
        "limit": None if bound is None or is_unlimited(bound) else finite(bound),
        "levels": [
            {
                "entity": _entity(entity),
                "limit": None if own is None else finite(own),
                "applies": entity == explanation.entity,
                "reason": reason,
            }
            for entity, own, reason in explanation.outcomes()
        ],
    }


def _entity(entity: QuotaEntity) -> dict[str, str | None]:
    """Return the parts of an entity by type; null is the default entity, as in Kafka's protocol."""
    parts: tuple[tuple[str, EntityPart], ...] = (("user", entity.user), ("client-id", entity.client_id))
    return {
        kind: None if part is DEFAULT else shown_name(name_of_tag(str(part)) if kind == "user" else str(part))
        for kind, part in parts
        if part is not None
    }

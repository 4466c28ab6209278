"""IncrementalAlterConfigs (key 44), versions 0-1. KIP-339, KIP-226.

Changed are settings of the node (type 4): those of connection quotas, also of one listener, of the quota callback,
and of what goes beyond Kafka; with an empty name for all nodes. What holds is in `tidegate.server.dynamic_settings`.
A class that does not load is refused with error 40 and the reason, and changes nothing. Each resource is decided by
itself; one that is named twice is refused.
Needs ALTER_CONFIGS on the topic or group, for all else on the cluster.
Not implemented: settings of topics, groups, client metrics subscriptions and loggers (error 42).
Memory: at most 56 bytes for each byte of the request (a setting of 11 bytes becomes a dict and a tuple),
and the answer.
"""

import re
from collections.abc import Generator, Sequence

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.cluster import ClusterView
from tidegate.broker.releasing import answer_and_release, release
from tidegate.broker.resource_rights import refusal_of
from tidegate.server.dynamic_settings import (
    ALL_NODES,
    OPERATIONS,
    DynamicSettings,
    RefusedError,
    SettingChange,
    check_changes,
)
from tidegate.server.handler import Handler, Message, Request, Wait, Work
from tidegate.storage.storage import Storage

__all__ = ["incremental_alter_configs_handler"]

TOPIC, NODE = 2, 4
_NOT_HERE = frozenset((8, 16, 32))  # loggers, client metrics, groups
_OTHERS = _NOT_HERE | {TOPIC}
_INT = re.compile(r"[+-]?\d{1,20}")
_READ_AT_ONCE = 100


def incremental_alter_configs_handler(
    storage: Storage, cluster: ClusterView, settings: DynamicSettings
) -> Handler:
    """Return the handler that changes `settings`."""

    def handle(request: Request) -> Work:
        body = yield from request.body_in_slices()
        named: dict[tuple[int, str], int] = {}
        for resource in body["resources"]:
            key = resource["resource_type"], resource["resource_name"]
            named[key] = named.get(key, 0) + 1
            yield
        responses: list[Message] = []
        for resource in body["resources"]:
            kind, name = key = resource["resource_type"], resource["resource_name"]
            error_code, text = error_codes.NONE, None
            changes: list[SettingChange] = []
            try:
                if named[key] > 1:
                    raise RefusedError(error_codes.INVALID_REQUEST, "Each resource must appear at most once.")
                changes = yield from _changes(resource["configs"])
                check_changes(changes)
                refusal = refusal_of(request, acl.ALTER_CONFIGS, kind, name)
                if refusal is not None:
                    raise RefusedError(*refusal)
                node = _node(storage, cluster, kind, name, changes)
                yield from settings.alter_in_slices(node, changes, validate_only=body["validate_only"])
            except RefusedError as error:
                error_code, text = error.error_code, error.text
            responses.append(
                {
                    "error_code": error_code,
                    "error_message": text,
                    "resource_type": kind,
                    "resource_name": name,
                }
            )
            yield from release(changes)
            yield
        yield from release(named)
        yield from request.release_body(body)
        message = {"throttle_time_ms": 0, "responses": responses}
        return (yield from answer_and_release(request, message, responses))

    return handle


def _changes(configs: list[Message]) -> Generator[Wait | None, None, list[SettingChange]]:
    changes = []
    for number, config in enumerate(configs):
        changes.append(SettingChange(config["name"], config["config_operation"], config["value"]))
        if number % _READ_AT_ONCE == 0:
            yield None
    return changes


def _node(
    storage: Storage, cluster: ClusterView, kind: int, name: str, changes: Sequence[SettingChange]
) -> str:
    """Return whose settings are meant. Raises `RefusedError` with Kafka's text where that is nobody here."""
    if kind in _OTHERS and any(change.operation not in OPERATIONS for change in changes):
        raise RefusedError(error_codes.UNKNOWN_SERVER_ERROR, None)
    if kind == TOPIC:
        if name not in storage.topics.by_name:
            text = f"The topic '{name}' does not exist."
            raise RefusedError(error_codes.UNKNOWN_TOPIC_OR_PARTITION, text)
        raise RefusedError(error_codes.INVALID_REQUEST, "This server does not change settings of topics.")
    if kind in _NOT_HERE:
        text = f"This server does not change settings of resource type {kind}."
        raise RefusedError(error_codes.INVALID_REQUEST, text)
    if kind != NODE:
        raise RefusedError(error_codes.INVALID_REQUEST, f"Unknown resource type {kind}")
    if not name:
        return ALL_NODES
    if _INT.fullmatch(name) is None or not -(2**31) <= int(name) < 2**31:
        text = f"Node id must be an integer, but it is: {name}"
        raise RefusedError(error_codes.INVALID_REQUEST, text)
    if int(name) != cluster.node_id:
        text = f"Unexpected broker id, expected {cluster.node_id}, but received {name}"
        raise RefusedError(error_codes.INVALID_REQUEST, text)
    return str(int(name))

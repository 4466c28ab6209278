"""AlterConfigs (key 33), versions 0-2. KIP-133.

Sets the named settings of a resource, and resets all others to their defaults: settings of topics (type 2), and
settings of the node (4; an empty name: all nodes) that can change at run time. Each resource succeeds or fails by
itself; one that is named twice is refused. With `tidegate.kafka.exact` a request for all nodes must name
`min.insync.replicas`, which Kafka 4.3 counts among these settings.
Needs ALTER_CONFIGS on the topic or group, otherwise on the cluster.
Not implemented: settings of groups and client metrics subscriptions (row D4).
Memory: at most 56 bytes for each byte of the request (a setting of 5 bytes becomes a dict and a tuple), and the answer.

IncrementalAlterConfigs (key 44), versions 0-1. KIP-339, KIP-226.

Changes settings of topics (type 2) and of the node (4; an empty name: all nodes): settings of connection quotas, also
for one listener, of the quota callback, and of features beyond Kafka. The rules for a node are in
`tidegate.server.settings.dynamic_settings`, those for a topic in `tidegate.broker.config_alterations`.
A class that cannot be loaded is refused with error 40 and the reason, and changes nothing. Each resource succeeds or
fails by itself; one that is named twice is refused.
Needs ALTER_CONFIGS on the topic or group, otherwise on the cluster.
Not implemented: settings of groups, client metrics subscriptions and loggers (error 42, row D4).
Memory: at most 56 bytes for each byte of the request (a setting of 11 bytes becomes a dict and a tuple),
and the answer.
"""

from collections.abc import Generator, Mapping

from tidegate import error_codes
from tidegate.broker.cluster import ClusterView
from tidegate.broker.config_alterations import (
    alter_topic_in_slices,
    changed_configs,
    changes_in_slices,
    node_of,
    refuse_others,
)
from tidegate.broker.resource_rights import CLIENT_METRICS, GROUP, LOGGERS, NODE, TOPIC
from tidegate.in_slices import release
from tidegate.server.audit import Audit
from tidegate.server.requests.handler import Message, Request, Wait
from tidegate.server.settings.dynamic_settings import ALL_NODES, DynamicSettings
from tidegate.server.settings.setting_changes import DELETE, OPERATIONS, SET, RefusedError, SettingChange
from tidegate.storage.storage import Storage
from tidegate.storage.topics.config_synonyms import MIN_INSYNC_REPLICAS

__all__ = ["change_configs", "replace_configs"]

_REPLACED = (TOPIC, NODE, CLIENT_METRICS, GROUP)
_REPLICAS_TEXT = f"Cluster-level {MIN_INSYNC_REPLICAS} cannot be removed while ELR is enabled."
_BY_CONTROLLER = frozenset((TOPIC, LOGGERS, CLIENT_METRICS, GROUP))


def replace_configs(
    storage: Storage,
    cluster: ClusterView,
    settings: DynamicSettings,
    request: Request,
    resource: Message,
    audit: Audit,
    *,
    validate_only: bool,
) -> Generator[Wait | None, None, None]:
    """Replace the settings of one resource: an `Alter` of AlterConfigs."""
    kind, name = resource["resource_type"], resource["resource_name"]
    if kind not in _REPLACED:  # checked before the client's rights
        raise RefusedError(error_codes.INVALID_REQUEST, f"Unknown resource type {kind}")
    changes = yield from changes_in_slices(request, resource, SET)
    texts = {change.name: change.value or "" for change in changes}
    if kind == TOPIC:
        yield from alter_topic_in_slices(storage, name, lambda _: texts, audit, validate_only=validate_only)
    elif kind == NODE:
        node = node_of(cluster, name) if name else ALL_NODES
        before = settings.of_node(cluster.node_id) if name else settings.of_all()
        changes += [SettingChange(old, DELETE, None) for old in before if old not in texts]
        keeps_replicas = bool(name) or MIN_INSYNC_REPLICAS in texts or not storage.config.kafka_exact
        yield from settings.alter_in_slices(
            node, changes, audit, validate_only=validate_only or not keeps_replicas
        )
        if not keeps_replicas:
            raise RefusedError(error_codes.INVALID_CONFIG, _REPLICAS_TEXT)
    else:
        refuse_others(kind, name, texts)
    yield from release(changes)


def change_configs(
    storage: Storage,
    cluster: ClusterView,
    settings: DynamicSettings,
    request: Request,
    resource: Message,
    audit: Audit,
    *,
    validate_only: bool,
) -> Generator[Wait | None, None, None]:
    """Change settings of one resource: an `Alter` of IncrementalAlterConfigs."""
    kind, name = resource["resource_type"], resource["resource_name"]
    if kind != NODE and kind not in _BY_CONTROLLER:  # checked before the client's rights
        raise RefusedError(error_codes.INVALID_REQUEST, f"Unknown resource type {kind}")
    changes = yield from changes_in_slices(request, resource)
    if kind in _BY_CONTROLLER and any(change.operation not in OPERATIONS for change in changes):
        raise RefusedError(error_codes.UNKNOWN_SERVER_ERROR, None)
    if kind == TOPIC:

        def change(before: Mapping[str, str]) -> Mapping[str, str]:
            return changed_configs(storage, before, changes)

        yield from alter_topic_in_slices(storage, name, change, audit, validate_only=validate_only)
    elif kind == NODE:
        node = node_of(cluster, name) if name else ALL_NODES
        yield from settings.alter_in_slices(node, changes, audit, validate_only=validate_only)
    elif kind == LOGGERS:
        node_of(cluster, name)
        refuse_others(kind, name, [change.name for change in changes])
    else:
        # What is not there is deleted at once.
        refuse_others(kind, name, [change.name for change in changes if change.operation != DELETE])
    yield from release(changes)

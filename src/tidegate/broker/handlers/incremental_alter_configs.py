"""IncrementalAlterConfigs (key 44), versions 0-1. KIP-339, KIP-226.

Changed are settings of topics (type 2) and of the node (4): those of connection quotas, also of one listener, of the
quota callback, and of what goes beyond Kafka; with an empty name for all nodes. What holds for a node is in
`tidegate.server.settings.dynamic_settings`, for a topic in `tidegate.broker.config_alterations`.
A class that does not load is refused with error 40 and the reason, and changes nothing. Each resource is decided by
itself; one that is named twice is refused.
Needs ALTER_CONFIGS on the topic or group, for all else on the cluster.
Not implemented: settings of groups, client metrics subscriptions and loggers (error 42, row D4).
Memory: at most 56 bytes for each byte of the request (a setting of 11 bytes becomes a dict and a tuple),
and the answer.
"""

from collections.abc import Generator, Mapping, Sequence

from tidegate import error_codes
from tidegate.broker.cluster import ClusterView
from tidegate.broker.config_alterations import (
    alter_topic_in_slices,
    answer_each,
    changed_configs,
    changes_in_slices,
    node_of,
    refuse_others,
)
from tidegate.broker.resource_rights import CLIENT_METRICS, GROUP, LOGGERS, NODE, TOPIC
from tidegate.in_slices import release
from tidegate.server.audit import Audit
from tidegate.server.requests.handler import Handler, Message, Request, Wait, Work
from tidegate.server.settings.dynamic_settings import (
    ALL_NODES,
    DELETE,
    OPERATIONS,
    DynamicSettings,
    RefusedError,
    SettingChange,
)
from tidegate.storage.storage import Storage

__all__ = ["incremental_alter_configs_handler"]

_BY_CONTROLLER = frozenset((TOPIC, LOGGERS, CLIENT_METRICS, GROUP))


def incremental_alter_configs_handler(
    storage: Storage, cluster: ClusterView, settings: DynamicSettings
) -> Handler:
    """Return the handler that changes `settings`."""

    def alter(
        request: Request, resource: Message, audit: Audit, *, validate_only: bool
    ) -> Generator[Wait | None, None, None]:
        kind, name = resource["resource_type"], resource["resource_name"]
        if kind != NODE and kind not in _BY_CONTROLLER:  # before it is asked whether the client may
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
            refuse_others(kind, name, _set(changes))
        yield from release(changes)

    def handle(request: Request) -> Work:
        return answer_each(request, alter)

    return handle


def _set(changes: Sequence[SettingChange]) -> list[str]:
    """Return the settings that are given a value: what is not there is deleted at once."""
    return [change.name for change in changes if change.operation != DELETE]

"""ListConfigResources (key 74), versions 0-1. KIP-1000, KIP-1142 (all types of resources, from 1).

Listed are topics, nodes and their loggers, whether or not anything is set for them. Client metrics subscriptions and
groups have no settings here (row D4), so there are none. A type that has none is error 35; without any type all are
listed, and by version 0 client metrics subscriptions alone. Needs DESCRIBE_CONFIGS on the cluster, else error 31.
Memory: at most 16 bytes for each byte of the request, and the answer (a topic is a dict while it is written).
"""

from itertools import repeat

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.cluster import ClusterView
from tidegate.broker.resource_rights import CLIENT_METRICS, KINDS, LOGGERS, NODE, TOPIC
from tidegate.server.requests.handler import Message, Request, Work
from tidegate.server.requests.late_messages import LateMessages
from tidegate.storage.storage import Storage

__all__ = ["handle_list_config_resources"]


def handle_list_config_resources(storage: Storage, cluster: ClusterView, request: Request) -> Work:
    """List what has settings."""
    body = yield from request.body_in_slices()
    wanted = frozenset(body.get("resource_types", (CLIENT_METRICS,))) or KINDS
    yield from request.release_body(body)
    resources: list[tuple[int, str]] = []
    error_code = error_codes.NONE if wanted <= KINDS else error_codes.UNSUPPORTED_VERSION
    if not request.authorized(acl.DESCRIBE_CONFIGS, acl.CLUSTER):
        error_code = error_codes.CLUSTER_AUTHORIZATION_FAILED
    if error_code == error_codes.NONE:
        kinds = [kind for kind in (LOGGERS, NODE) if kind in wanted]
        resources += [(kind, str(node_id)) for kind in kinds for node_id in cluster.ids]
        if TOPIC in wanted:
            resources += zip(repeat(TOPIC), storage.topics.by_name)
    message = {
        "throttle_time_ms": 0,
        "error_code": error_code,
        "config_resources": LateMessages(resources, _message),
    }
    return (yield from request.answer_in_slices(message))


def _message(resource: tuple[int, str]) -> Message:
    return {"resource_type": resource[0], "resource_name": resource[1]}

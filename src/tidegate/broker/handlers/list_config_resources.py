"""ListConfigResources (key 74), versions 0-1. KIP-1000, KIP-1142 (all types of resources, from 1).

Listed are topics, nodes and their loggers, whether or not anything is set for them. Client metrics subscriptions and
groups have no settings here (row D4), so there are none. A type that has none is error 35; without any type all are
listed, and by version 0 client metrics subscriptions alone. Needs DESCRIBE_CONFIGS on the cluster, else error 31.
Memory: at most 16 bytes for each byte of the request, and the answer (a topic is a dict while it is written).
"""

from collections.abc import Iterator, Sequence

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.cluster import ClusterView
from tidegate.broker.resource_rights import CLIENT_METRICS, KINDS, LOGGERS, NODE, TOPIC
from tidegate.server.requests.handler import Message, Request, Work
from tidegate.storage.storage import Storage

__all__ = ["handle_list_config_resources"]


class _Resources:
    """Resources of one type after those of another, made while the answer is written."""

    __slots__ = ("_names",)

    def __init__(self, names: Sequence[tuple[int, Sequence[str]]]) -> None:
        self._names = names

    def __len__(self) -> int:
        return sum(len(names) for _, names in self._names)

    def __iter__(self) -> Iterator[Message]:
        for kind, names in self._names:
            for name in names:
                yield {"resource_name": name, "resource_type": kind}


def handle_list_config_resources(storage: Storage, cluster: ClusterView, request: Request) -> Work:
    """List what has settings."""
    body = yield from request.body_in_slices()
    wanted = frozenset(body.get("resource_types", (CLIENT_METRICS,))) or KINDS
    yield from request.release_body(body)
    names: list[tuple[int, Sequence[str]]] = []
    error_code = error_codes.NONE if wanted <= KINDS else error_codes.UNSUPPORTED_VERSION
    if not request.authorized(acl.DESCRIBE_CONFIGS, acl.CLUSTER):
        error_code = error_codes.CLUSTER_AUTHORIZATION_FAILED
    if error_code == error_codes.NONE:
        nodes = [str(node_id) for node_id in cluster.ids]
        names += [(kind, nodes) for kind in (LOGGERS, NODE) if kind in wanted]
        if TOPIC in wanted:
            names.append((TOPIC, list(storage.topics.by_name)))
    message = {
        "throttle_time_ms": 0,
        "error_code": error_code,
        "config_resources": _Resources(names),
    }
    return (yield from request.answer_in_slices(message))

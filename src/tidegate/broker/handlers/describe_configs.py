"""DescribeConfigs (key 32), versions 1-4. KIP-133, KIP-226 (synonyms), KIP-569 (types, documentation).

Described are topics (type 2), the node (4; an empty name: what is set for the whole cluster), its loggers (8), client
metrics subscriptions (16) and groups (32). Any other type is a request that fails as a whole, with error 42 for each of
its resources. A resource that is named twice is described twice, as by Kafka.
Not implemented: settings of groups and client metrics other than their defaults.

Needs DESCRIBE_CONFIGS on each topic or group, for all else on the cluster; resources without it come last, with error
29, 30 or 31.

A resource is described while its answer is written, so memory meanwhile is the answer plus 64 times the bytes of the
request (its smallest resource, 4 bytes, is a dict of three). An answer has at most `MAX_ANSWER_BYTES`.
"""

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from itertools import repeat

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.cluster import ClusterView
from tidegate.broker.configs.descriptions import ConfigDescriptions, DescribedSettings, Detail
from tidegate.broker.resource_rights import (
    CLIENT_METRICS,
    KINDS,
    LOGGERS,
    NODE,
    TOPIC,
    is_int,
    refusal_of,
)
from tidegate.broker.topic_names import name_problem
from tidegate.in_slices import release
from tidegate.server.requests.handler import Handler, Message, Request, Work
from tidegate.server.requests.late_messages import LateMessages
from tidegate.server.settings.dynamic_settings import DynamicSettings
from tidegate.server.settings.setting_changes import RefusedError
from tidegate.storage.storage import Storage

__all__ = ["MAX_ANSWER_BYTES", "describe_configs_handler", "handle_list_config_resources"]

MAX_ANSWER_BYTES = 64 << 20
"""Larger answers get error 42. Source: twice the size for the most topics that a node can have."""

_AT_ONCE = 256  # resources or names looked at between two yields
_Refused = tuple[Message, tuple[int, str]]
"""A resource, and the error code and text for it."""
_TOO_MUCH = f"the response would exceed {MAX_ANSWER_BYTES} bytes, expected fewer resources in a request"


def describe_configs_handler(storage: Storage, cluster: ClusterView, settings: DynamicSettings) -> Handler:
    """Return the handler that describes settings."""
    descriptions = ConfigDescriptions(storage, settings, cluster.node_id)

    def handle(request: Request) -> Work:
        body = yield from request.body_in_slices()
        known: frozenset[str] | None = None
        kinds = set()
        for number, resource in enumerate(body["resources"]):
            kinds.add(resource["resource_type"])
            if resource["configuration_keys"]:
                known = known or descriptions.names()
                resource["configuration_keys"] = yield from _of_these(known, resource["configuration_keys"])
            if not number % _AT_ONCE:
                yield
        well_formed = kinds <= KINDS
        refused: list[_Refused] = []
        resources = body["resources"]
        if well_formed and request.connection.authorizer is not None:
            resources, refused = yield from _by_right(request, resources)
        detail = Detail(body["include_synonyms"], body.get("include_documentation", False))
        results = _Results(
            storage, cluster, descriptions, resources, refused, detail, well_formed=well_formed
        )
        answer = yield from request.answer_in_slices({"throttle_time_ms": 0, "results": results})
        yield from request.release_body(body)
        return answer

    return handle


def _by_right(
    request: Request, resources: list[Message]
) -> Generator[None, None, tuple[list[Message], list[_Refused]]]:
    """Return the resources that the client may describe, and the others."""
    allowed, refused = list[Message](), list[_Refused]()
    for resource in resources:
        kind, name = resource["resource_type"], resource["resource_name"]
        refusal = refusal_of(request, acl.DESCRIBE_CONFIGS, kind, name)
        if refusal is None:
            allowed.append(resource)
        else:
            refused.append((resource, refusal))
        yield
    return allowed, refused


def _of_these(known: frozenset[str], names: list[str]) -> Generator[None, None, frozenset[str]]:
    """Return which of `known` are in `names`."""
    found: frozenset[str] = frozenset()
    for at in range(0, len(names), _AT_ONCE):
        found |= known.intersection(names[at : at + _AT_ONCE])
        yield
    yield from release(names)
    return found


class _Results:
    """The results of a request, each made when it is written."""

    def __init__(
        self,
        storage: Storage,
        cluster: ClusterView,
        descriptions: ConfigDescriptions,
        resources: Sequence[Message],
        refused: Sequence[_Refused],
        detail: Detail,
        *,
        well_formed: bool,
    ) -> None:
        self._storage = storage
        self._cluster = cluster
        self._descriptions = descriptions
        self._resources = resources
        self._refused = refused
        self._detail = detail
        self._well_formed = well_formed
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._resources) + len(self._refused)

    def __iter__(self) -> Iterator[Message]:
        for resource in self._resources:
            try:
                described = self._describe(resource)
            except RefusedError as error:
                yield _result(resource, (), error.error_code, error.text)
            else:
                self._bytes += described.size
                yield _result(resource, described.messages)
        for resource, refusal in self._refused:
            yield _result(resource, (), *refusal)

    def _describe(self, resource: Message) -> DescribedSettings:
        """Describe one resource. Raises `RefusedError`."""
        if not self._well_formed:
            raise RefusedError(error_codes.INVALID_REQUEST, error_codes.TEXTS[error_codes.INVALID_REQUEST])
        kind, name = resource["resource_type"], resource["resource_name"]
        keys: Collection[str] | None = resource["configuration_keys"]
        if isinstance(keys, list):  # an empty list asks for all, as null does
            keys = None
        described = self._settings(kind, name, keys)
        if self._bytes + described.size > MAX_ANSWER_BYTES:
            raise RefusedError(error_codes.INVALID_REQUEST, _TOO_MUCH)
        return described

    def _settings(self, kind: int, name: str, keys: Collection[str] | None) -> DescribedSettings:
        descriptions, detail = self._descriptions, self._detail
        if kind == TOPIC:
            return descriptions.topic(self._topic_configs(name), detail, keys)
        if kind == NODE:
            self._check_node(name, "expected {} or empty string, but received {}", may_be_empty=True)
        elif kind == LOGGERS:
            self._check_node(name, "expected {} but received {}", may_be_empty=False)
            return descriptions.loggers(detail, keys)
        elif not name:
            label = "Client metrics subscription" if kind == CLIENT_METRICS else "Group"
            raise RefusedError(error_codes.INVALID_REQUEST, f"{label} name must not be empty")
        return descriptions.resource(kind, name, detail, keys)

    def _topic_configs(self, name: str) -> Mapping[str, str]:
        topic = self._storage.topics.by_name.get(name)
        if topic is not None:
            return topic.configs
        problem = name_problem(name)
        if problem is None:
            raise RefusedError(error_codes.UNKNOWN_TOPIC_OR_PARTITION, "")
        raise RefusedError(error_codes.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")

    def _check_node(self, name: str, expected: str, *, may_be_empty: bool) -> None:
        """Refuse what is not the number of this node, as Java reads an int."""
        if not name and may_be_empty:
            return
        if not name:
            raise RefusedError(error_codes.INVALID_REQUEST, "Broker id must not be empty")
        if not is_int(name):
            text = f"Broker id must be an integer, but it is: {name}"
            raise RefusedError(error_codes.INVALID_REQUEST, text)
        node_id = self._cluster.node_id
        if int(name) != node_id:
            text = f"Unexpected broker id, {expected.format(node_id, name)}"
            raise RefusedError(error_codes.INVALID_REQUEST, text)


def _result(
    resource: Message,
    configs: Sequence[Message],
    error_code: int = error_codes.NONE,
    text: str | None = "",
) -> Message:
    return {
        "error_code": error_code,
        "error_message": text,
        "resource_type": resource["resource_type"],
        "resource_name": resource["resource_name"],
        "configs": configs,
    }


def handle_list_config_resources(storage: Storage, cluster: ClusterView, request: Request) -> Work:
    """List what has settings.

    ListConfigResources (key 74), versions 0-1. KIP-1000, KIP-1142 (all types of resources, from 1).

    Listed are topics, nodes and their loggers, whether or not anything is set for them. Client metrics subscriptions
    and groups have no settings here (row D4), so there are none. A type that has none is error 35; without any type
    all are listed, and by version 0 client metrics subscriptions alone. Needs DESCRIBE_CONFIGS on the cluster, else
    error 31. Memory: at most 16 bytes for each byte of the request, and the answer (a topic is a dict while it is
    written).
    """
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
        "config_resources": LateMessages(
            resources, lambda resource: {"resource_type": resource[0], "resource_name": resource[1]}
        ),
    }
    return (yield from request.answer_in_slices(message))

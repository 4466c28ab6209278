"""Changes of settings by resource, for AlterConfigs and IncrementalAlterConfigs; refused with Kafka's codes and texts.

Changed settings of a topic are stored before they are acknowledged, and apply from its next append on. A topic uses the
node's value for every setting that it does not set itself. Follows: Kafka `ConfigurationControlManager`,
`ControllerConfigurationValidator`.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Protocol

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.answering import answer_and_release, release
from tidegate.broker.cluster import ClusterView
from tidegate.broker.configs.tables import CLIENT_METRICS_ROWS, GROUP_ROWS
from tidegate.broker.new_configs import checked_configs_in_slices
from tidegate.broker.resource_rights import (
    CLIENT_METRICS,
    GROUP,
    LOGGERS,
    NODE,
    TOPIC,
    UNAUTHORIZED,
    is_int,
    refusal_of,
)
from tidegate.broker.topic_names import name_problem
from tidegate.config.values import cut
from tidegate.in_slices import counts_in_slices
from tidegate.quota.admin.java_hash import hash_map_place
from tidegate.server.audit import Audit
from tidegate.server.requests.handler import Message, Request, Wait, Work
from tidegate.server.settings.setting_changes import (
    APPEND,
    DELETE,
    SET,
    SUBTRACT,
    RefusedError,
    SettingChange,
    check_changes,
    check_number,
)
from tidegate.storage.errors import StorageError
from tidegate.storage.storage import Storage
from tidegate.storage.topics.topic_configs import TOPIC_CONFIGS, ConfigType, default_value

__all__ = [
    "MAX_VALUE_BYTES",
    "TOPIC_SETTING",
    "alter_topic_in_slices",
    "answer_each",
    "changed_configs",
    "changes_in_slices",
    "node_of",
    "refuse_others",
]

MAX_VALUE_BYTES = 32_767
"""Longest list that an append may create: a longer one would not fit into an answer of DescribeConfigs."""
_READ_AT_ONCE = 100
_RESOURCE = itemgetter("resource_type", "resource_name")
_ORDERED_CHARACTERS = 5_000
"""Most characters of names whose order in Kafka's hash map is computed, which takes about 1 ms."""

TOPIC_SETTING = "topic setting"
"""Resource of the audit lines about settings of a topic."""
_AUDITED = {
    TOPIC: TOPIC_SETTING,
    NODE: "setting",
    LOGGERS: "logger",
    CLIENT_METRICS: "client metrics subscription",
    GROUP: "group setting",
}

_Configs = Mapping[str, str]


class Alter(Protocol):
    """Changes the settings of one resource of a request, or only checks them. Raises `RefusedError`."""

    def __call__(
        self, request: Request, resource: Message, audit: Audit, *, validate_only: bool
    ) -> Generator[Wait | None, None, None]:
        """Change all settings of the resource that the request names, or none."""


def answer_each(alter: Alter, request: Request) -> Work:
    """Answer a request with the outcome of `alter` for each resource; one that is named twice is refused."""
    with Audit(request.connection) as audit:
        body = yield from request.body_in_slices()
        named = yield from counts_in_slices(map(_RESOURCE, body["resources"]))
        responses: list[Message] = []
        for resource in body["resources"]:
            kind, name = key = _RESOURCE(resource)
            error_code, text = error_codes.NONE, None
            try:
                if named[key] > 1:
                    raise RefusedError(error_codes.INVALID_REQUEST, "Each resource must appear at most once.")
                yield from alter(request, resource, audit, validate_only=body["validate_only"])
            except RefusedError as error:
                error_code, text = error.error_code, error.text
                if error_code in UNAUTHORIZED:
                    audit.refused("alter", _AUDITED[kind], _audited_name(kind, name))
            responses.append(
                {
                    "error_code": error_code,
                    "error_message": text,
                    "resource_type": kind,
                    "resource_name": name,
                }
            )
            yield
        yield from release(named)
        yield from request.release_body(body)
        return (
            yield from answer_and_release(request, {"throttle_time_ms": 0, "responses": responses}, responses)
        )


def _audited_name(kind: int, name: str) -> str:
    if kind == NODE:
        return f"node {name if is_int(name) else repr(cut(name))}" if name else "all nodes"
    return repr(cut(name))


def changes_in_slices(
    request: Request, resource: Message, operation: int | None = None
) -> Generator[None, None, list[SettingChange]]:
    """Return the requested changes. operation: that of all changes; None: each change has its own.

    Raises `RefusedError`, also if the client may not change the resource.
    """
    configs = resource["configs"]
    check_number(len(configs))
    changes = []
    for number, config in enumerate(configs):
        kind = config["config_operation"] if operation is None else operation
        changes.append(SettingChange(config["name"], kind, config["value"]))
        if number % _READ_AT_ONCE == 0:
            yield
    check_changes(changes)
    kind, name = resource["resource_type"], resource["resource_name"]
    refusal = refusal_of(request, acl.ALTER_CONFIGS, kind, name)
    if refusal is not None:
        error_code, text = refusal
        raise RefusedError(
            error_code, None if kind == LOGGERS else text
        )  # as Kafka's broker, which keeps them
    return changes


def node_of(cluster: ClusterView, name: str) -> str:
    """Return the number of this node as text, which a resource is named by. Raises `RefusedError`."""
    if not is_int(name):
        text = f"Node id must be an integer, but it is: {name}"
        raise RefusedError(error_codes.INVALID_REQUEST, text)
    if int(name) != cluster.node_id:
        text = f"Unexpected broker id, expected {cluster.node_id}, but received {name}"
        raise RefusedError(error_codes.INVALID_REQUEST, text)
    return str(int(name))


_NAMELESS = {
    CLIENT_METRICS: "Subscription name can't be empty",
    GROUP: "Default group resources are not allowed.",
}
"""Kafka's texts for resources that must have a name."""
_UNCHANGED = {
    LOGGERS: "levels of loggers",
    CLIENT_METRICS: "subscriptions to client metrics",
    GROUP: "settings of one group: set group.* for all groups in its configuration file",
}


def refuse_others(kind: int, resource_name: str, names: Iterable[str]) -> None:
    """Raise `RefusedError` if the resource lacks its name, or if `names` has any: none of its settings can change."""
    if not resource_name and kind in _NAMELESS:
        raise RefusedError(error_codes.INVALID_REQUEST, _NAMELESS[kind])
    for name in names:
        if kind == CLIENT_METRICS and name not in CLIENT_METRICS_ROWS:
            text = f"Unknown client metrics configuration: {name}"
            raise RefusedError(error_codes.INVALID_REQUEST, text)
        if kind == GROUP and name not in GROUP_ROWS:
            raise RefusedError(error_codes.INVALID_CONFIG, f"Unknown group config name: {name}")
        text = f"This server does not change {_UNCHANGED[kind]}."
        raise RefusedError(error_codes.INVALID_REQUEST, text)


def alter_topic_in_slices(
    storage: Storage, name: str, change: Callable[[_Configs], _Configs], audit: Audit, *, validate_only: bool
) -> Generator[None, None, None]:
    """Replace the settings that a topic sets itself with the result of `change`.

    Raises `RefusedError`, changing nothing.
    """
    while True:
        topic = yield from storage.topics.settled_in_slices(name)
        before: _Configs = {} if topic is None else topic.configs
        configs = change(before)
        _check_name(name)
        wanted = [{"name": key, "value": value} for key, value in configs.items()]
        _, text = yield from checked_configs_in_slices(wanted)
        if text is not None:
            raise RefusedError(error_codes.INVALID_CONFIG, text)
        if topic is None:
            text = f"The topic '{name}' does not exist."
            raise RefusedError(error_codes.UNKNOWN_TOPIC_OR_PARTITION, text)
        if topic is (yield from storage.topics.settled_in_slices(name)) and topic.configs is before:
            break
    if validate_only:
        return
    try:
        yield from storage.topics.alter_in_slices(topic, configs)
    except StorageError as error:
        text = "The settings could not be stored; nothing was changed."
        raise RefusedError(error_codes.KAFKA_STORAGE_ERROR, text) from error
    changed = [key for key in {**before, **configs} if before.get(key) != configs.get(key)]
    yield from audit.changed_in_slices("alter", TOPIC_SETTING, repr(name), changed, before, configs)


def _check_name(name: str) -> None:
    if not name:
        raise RefusedError(error_codes.INVALID_REQUEST, "Default topic resources are not allowed.")
    problem = name_problem(name)
    if problem is not None:
        raise RefusedError(error_codes.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")


def changed_configs(storage: Storage, before: _Configs, changes: Sequence[SettingChange]) -> _Configs:
    """Return what a topic sets after `changes`, which are in a form that is right. Raises `RefusedError`."""
    _refuse_appending(changes)
    configs = dict(before)
    for name, operation, value in changes:
        if operation == DELETE:
            configs.pop(name, None)
            continue
        assert value is not None, "that was looked at"
        if operation == SET:
            configs[name] = value
            continue
        current = configs.get(name, default_value(name, storage.config))
        configs[name] = _changed_list(name, current, _split(value), appends=operation == APPEND)
    return configs


def _refuse_appending(changes: Sequence[SettingChange]) -> None:
    """Refuse to append to, or subtract from, a setting that is no list. Raises `RefusedError`.

    Of several such settings the error names the first in the order of Kafka's hash map, unless their names are so long
    that the order would take longer than a short step: then the first of the request.
    """
    verbs = {
        change.name: "APPEND" if change.operation == APPEND else "SUBTRACT"
        for change in changes
        if change.operation in (APPEND, SUBTRACT) and not _is_list(change.name)
    }
    if not verbs:
        return
    names = list(verbs)
    if len(names) > 1 and sum(map(len, names)) <= _ORDERED_CHARACTERS:
        names.sort(key=partial(hash_map_place, count=len(changes)))
    text = f"Can't {verbs[names[0]]} to key {names[0]} because its type is not LIST."
    raise RefusedError(error_codes.INVALID_CONFIG, text)


def _is_list(name: str) -> bool:
    known = TOPIC_CONFIGS.get(name)
    return known is not None and known.type is ConfigType.LIST


def _changed_list(name: str, current: str, parts: Sequence[str], *, appends: bool) -> str:
    """Return a list with parts that it did not have, or without the first of each part, in its order."""
    found = [part for part in current.split(",") if part]
    if appends:
        there = set(found)
        found += [part for part in dict.fromkeys(parts) if part not in there]
    else:
        left = Counter(parts)
        kept = []
        for part in found:
            if left[part]:
                left[part] -= 1
            else:
                kept.append(part)
        found = kept
    text = ",".join(found)
    if len(text.encode()) > MAX_VALUE_BYTES:
        reason = f"{name} would be longer than {MAX_VALUE_BYTES} bytes."
        raise RefusedError(error_codes.INVALID_CONFIG, reason)
    return text


def _split(text: str) -> list[str]:
    """Return the parts between commas as Java's `String.split` does: without empty ones at the end."""
    parts = text.split(",")
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return parts

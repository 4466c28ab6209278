"""Names and labels that Kafka's client metrics have in Prometheus.

The JMX exporter and Strimzi's metrics reporter spell the same metric in several ways. A label can also contain
more than its own value: a rule such as `kafka.server<type=(.+), client-id=(.+)>` puts the user into the type.

>>> KNOWN.spelling("kafka_server_quota_byte_rate").measure, KNOWN.spelling("kafka_server_Fetch_byte_rate").quota_type
('byte-rate', <QuotaType.FETCH: 'Fetch'>)
>>> KNOWN.client(KNOWN.spelling("kafka_server_quota_byte_rate"), {"resource": "Produce, user=a%40b", "clientId": "app"})
(<QuotaType.PRODUCE: 'Produce'>, 'a@b', 'app')

Follows: Kafka `JmxReporter.getMBeanName`, `Sanitizer` (B§1.7, B§3.10); the JMX exporter 1.0.1, run in Kafka 4.3.1.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.config.fields import Fields
from tidegate.config.plain_yaml import Node, TableNode, read_config_text, read_plain_yaml
from tidegate.pipeline.replay.levels import QUOTA_TYPES
from tidegate.quota.admin.sanitizer import SanitizeError, desanitize
from tidegate.quota.managers.quota_type import QuotaType

__all__ = [
    "KNOWN",
    "KNOWN_NAMES",
    "MEASURES",
    "VALID_LABEL",
    "Spelling",
    "Spellings",
    "is_mangled",
    "load_spellings",
]

MEASURES = ("byte-rate", "request-time", "mutation-rate", "throttle-time")
"""Kafka's metrics of clients, by the name of their JMX attribute."""

KNOWN_NAMES = (
    "kafka_server_quota_byte_rate",
    "kafka_server_produce_byte_rate",
    "kafka_server_fetch_byte_rate",
    "kafka_server_quota_request_time",
    "kafka_server_request_request_time",
    "kafka_server_quota_mutation_rate",
    "kafka_server_controllermutation_mutation_rate",
)
"""The names that errors mention; the names of `throttle-time` are spelled in the same way."""

_MOST_NAMES = 100  # of a file of names
_TYPES = {quota_type.value.lower(): quota_type for quota_type in QUOTA_TYPES}
_TYPE_OF_MEASURE = {"request-time": QuotaType.REQUEST, "mutation-rate": QuotaType.CONTROLLER_MUTATION}
_MEASURE = "(?P<measure>byte_rate|request_time|mutation_rate|throttle_time)"
_TYPE = "(?P<type>produce|fetch|request|controllermutation)"
_NAME = re.compile(rf"kafka_server_(?:quota_)?(?:{_TYPE}_)?{_MEASURE}", re.IGNORECASE)
_MANGLED = re.compile(rf"kafka_server_{_TYPE}_+(?:user|client_id)_.*{_MEASURE}", re.IGNORECASE)
_VALID_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
VALID_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_LABELS: Mapping[str, Sequence[str]] = {
    "quota": ("resource", "quotatype", "type"),
    "user": ("user",),
    "client-id": ("clientid", "client"),
    "node": ("instance", "pod", "kubernetespodname", "broker", "node"),
}
_JOINED = re.compile(r"(?P<value>.*?)(?:, user=(?P<user>.*?))?(?:, client-id=(?P<client>.*))?", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)

Client = tuple[QuotaType, str | None, str | None]
"""Quota type, user and client id; None is a part by which clients are not told apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """A metric by its name in Prometheus. quota_type: None where a label says it."""

    name: str
    measure: str
    quota_type: QuotaType | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spellings:
    """The names to look for. labels: names of labels by what they say, instead of the usual ones."""

    names: Mapping[str, Spelling] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def spelling(self, name: str) -> Spelling | None:
        """Return what a name means; None: it is no metric of clients."""
        if self.names:
            return self.names.get(name)
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        measure = found["measure"].lower().replace("_", "-")
        own = found["type"] and _TYPES[found["type"].lower()]
        return Spelling(name=name, measure=measure, quota_type=own or _TYPE_OF_MEASURE.get(measure))

    def label(self, role: str, labels: Mapping[str, str]) -> str | None:
        """Return the name of the label that says the `quota`, `user`, `client-id` or `node` of a series."""
        if role in self.labels:
            return self.labels[role] if self.labels[role] in labels else None
        by_plain_name = {re.sub("[_-]", "", name).lower(): name for name in labels}
        return next((by_plain_name[name] for name in _LABELS[role] if name in by_plain_name), None)

    def client(self, spelling: Spelling, labels: Mapping[str, str]) -> Client | None:
        """Return the quota type and the client of a series; None where it is of no client."""
        values = {role: labels.get(self.label(role, labels) or "") or None for role in _LABELS}
        kind, user, client_id = values["quota"], values["user"], values["client-id"]
        if user is not None and (joined := _JOINED.fullmatch(user)) and joined["client"] is not None:
            user, client_id = joined["value"], client_id or joined["client"]
        if kind is not None and (joined := _JOINED.fullmatch(kind)):
            kind, user = joined["value"], user or joined["user"]
            client_id = client_id or joined["client"]
        quota_type = spelling.quota_type or _TYPES.get((kind or "").lower())
        if quota_type is None or (user is None and client_id is None):
            return None
        try:
            return (
                quota_type,
                None if user is None else desanitize(_unquoted(user)),
                None if client_id is None else _unquoted(client_id),
            )
        except SanitizeError:
            return None


KNOWN = Spellings()
"""The names that the code knows."""


def is_mangled(name: str) -> bool:
    """Return whether a name contains a client: the exporter has a rule for all of `kafka.server` before the quotas.

    >>> is_mangled("kafka_server_produce_user_alice_client_id_app_byte_rate")
    True
    """
    return _MANGLED.fullmatch(name) is not None


def load_spellings(path: Path) -> Spellings:
    """Return the names that a file gives. Raises `ConfigFileError`."""
    file = str(path)
    fields = Fields(file)
    root = fields.table(
        read_plain_yaml(read_config_text(path), name=file), ("metrics", "labels"), label="the file"
    )
    if "metrics" not in root.items:
        raise fields.error("metrics is missing", root, hint="list the names under 'metrics:'")
    listed = fields.list(root.items["metrics"], label="metrics").items
    if not 1 <= len(listed) <= _MOST_NAMES:
        raise fields.error(f"metrics must have 1 to {_MOST_NAMES} names", root)
    found = [_spelling(fields, node) for node in listed]
    labels: dict[str, str] = {}
    if "labels" in root.items:
        table = fields.table(root.items["labels"], _LABELS, label="labels")
        for role, node in table.items.items():
            labels[role] = _checked(fields, node, f"label of {role}", VALID_LABEL)
    return Spellings(names={spelling.name: spelling for spelling in found}, labels=labels)


def _spelling(fields: Fields, node: Node) -> Spelling:
    table = fields.table(node, ("name", "measures", "quota"), label="a metric")
    name = _checked(fields, _item(fields, table, "name"), "name", _VALID_NAME)
    measures = _item(fields, table, "measures")
    measure = fields.text(measures, label="measures")
    if measure not in MEASURES:
        raise fields.error(f"measures must be one of {', '.join(MEASURES)}, got {measure!r}", measures)
    quota_type = _TYPE_OF_MEASURE.get(measure)
    if "quota" in table.items:
        text = fields.text(table.items["quota"], label="quota")
        if text.lower() not in _TYPES:
            types = ", ".join(quota_type.value for quota_type in QUOTA_TYPES)
            raise fields.error(f"quota must be one of {types}, got {text!r}", table.items["quota"])
        quota_type = _TYPES[text.lower()]
    return Spelling(name=name, measure=measure, quota_type=quota_type)


def _item(fields: Fields, table: TableNode, key: str) -> Node:
    if key not in table.items:
        raise fields.error(f"{key} is missing", table)
    return table.items[key]


def _checked(fields: Fields, node: Node, label: str, pattern: re.Pattern[str]) -> str:
    text = fields.text(node, label=label)
    if not pattern.fullmatch(text):
        raise fields.error(f"{label} must be a name that Prometheus accepts, got {text!r}", node)
    return text


def _unquoted(value: str) -> str:
    """Return a value of a JMX bean without the quotes that Java sets. Follows: Java `ObjectName.unquote`."""
    if not (value.startswith('"') and value.endswith('"') and value != '"'):
        return value
    return _ESCAPED.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], value[1:-1])

"""Makes the entries of a DescribeConfigs answer: value, source, synonyms and documentation of every setting.

A value comes from the topic itself, else from the node's setting for all topics: the value changed at run time, the one
given at the start, or the default. Each of these is a synonym; the first is in force (KIP-226).

Entries are made at first use, shared by all answers, and made again after a setting changes: do not modify them.
Follows: Kafka `ConfigHelper`.
"""

import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from tidegate.broker.configs.tables import (
    CLIENT_METRICS_ROWS,
    GROUP_ROWS,
    NODE_ROWS,
    NODE_SYNONYMS,
    ConfigRow,
)
from tidegate.broker.configs.texts import BEHIND_TOPICS, documentation
from tidegate.broker.resource_rights import CLIENT_METRICS, GROUP, NODE
from tidegate.server.listening.sasl_config import JAAS
from tidegate.server.requests.handler import Message
from tidegate.server.settings.dynamic_settings import DynamicSettings
from tidegate.server.settings.table import CALLBACK_SETTINGS, SETTINGS
from tidegate.server.settings.unused_settings import without_listener
from tidegate.storage.config import text_of
from tidegate.storage.storage import Storage
from tidegate.storage.topics.config_synonyms import MIN_INSYNC_REPLICAS, TOPIC_SYNONYMS
from tidegate.storage.topics.topic_configs import (
    CLUSTER_DEFAULT_SOURCE,
    DEFAULT_SOURCE,
    NODE_SOURCE,
    STATIC_SOURCE,
    TOPIC_CONFIGS,
    TOPIC_SOURCE,
    ConfigType,
    default_value,
    plain_value,
)

__all__ = ["ConfigDescriptions", "DescribedSettings", "Detail"]

LOGGER_SOURCE = 6  # Kafka `ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG`
_ENTRY_BYTES = 16  # of an entry besides its texts: flags, lengths, type
_SYNONYM_BYTES = 8
_LEVELS = {"WARNING": "WARN", "CRITICAL": "FATAL"}


class Detail(NamedTuple):
    """The level of detail that a client requests."""

    synonyms: bool = False
    documentation: bool = False


class _Entry(NamedTuple):
    """The entry of one setting in an answer, and its approximate size in bytes."""

    message: Message
    size: int


class DescribedSettings(NamedTuple):
    """The entries of one resource in an answer, and their approximate size in bytes."""

    messages: list[Message]
    size: int

    @classmethod
    def of(cls, entries: Mapping[str, _Entry], names: Collection[str] | None) -> "DescribedSettings":
        """Return the entries of `names`, or all of them."""
        wanted = [entry for name, entry in entries.items() if names is None or name in names]
        return cls([entry.message for entry in wanted], sum(entry.size for entry in wanted))


class ConfigDescriptions:
    """Describes the settings of one node, its topics and its other resources."""

    def __init__(self, storage: Storage, settings: DynamicSettings, node_id: int) -> None:
        self._storage = storage
        self._settings = settings
        self._node_id = node_id
        self._made_of = settings.version
        given = settings.given(node_id)
        self._limits = settings.listener_limits
        self._given = {
            name: text
            for name, text in given.items()
            if name in NODE_ROWS or name in self._limits or _is_callbacks(name) or _is_listeners(name)
        }
        self._made: dict[tuple[Callable[[Detail], Any], Detail], Any] = {}

    def names(self) -> frozenset[str]:
        """Return the names of all settings of all resources."""
        rows = (TOPIC_CONFIGS, NODE_ROWS, CLIENT_METRICS_ROWS, GROUP_ROWS, _loggers())
        others = [
            name
            for texts, _ in self._sources()
            for name in texts
            if _is_callbacks(name) or _is_listeners(name)
        ]
        return frozenset().union(*rows, others, self._limits)

    def topic(
        self, configs: Mapping[str, str], detail: Detail, names: Collection[str] | None = None
    ) -> DescribedSettings:
        """Describe a topic that sets `configs` itself; `names`: only these settings."""
        own = {name: self._of_topic(name, value, detail) for name, value in configs.items()}
        return DescribedSettings.of({**self._once(self._topic_defaults, detail), **own}, names)

    def resource(
        self, kind: int, name: str, detail: Detail, names: Collection[str] | None = None
    ) -> DescribedSettings:
        """Describe this node (without a name: the settings for all nodes), a client metrics subscription or a group.

        Subscriptions cannot be created, and groups have no settings of their own: their answers have the defaults.
        """
        of_node = self._node_entries if name else self._cluster_entries
        make = {NODE: of_node, CLIENT_METRICS: _client_metrics_entries, GROUP: _group_entries}[kind]
        return DescribedSettings.of(self._once(make, detail), names)

    def loggers(self, detail: Detail, names: Collection[str] | None = None) -> DescribedSettings:
        """Describe the levels of this process's loggers."""
        entries = {}
        for name in _loggers():
            level = logging.getLevelName(logging.getLogger(name).getEffectiveLevel())
            row = ConfigRow(name=name, type=ConfigType.UNKNOWN, default=None)
            text = "" if detail.documentation else None  # loggers have no documentation
            entries[name] = _entry(row, _LEVELS.get(level, level), LOGGER_SOURCE, [], text)
        return DescribedSettings.of(entries, names)

    # --- what is made once

    def _once(self, make: Callable[[Detail], dict[str, _Entry]], detail: Detail) -> dict[str, _Entry]:
        if self._made_of != self._settings.version:
            self._made.clear()
            self._made_of = self._settings.version
        made: dict[str, _Entry] | None = self._made.get((make, detail))
        if made is None:
            made = self._made[make, detail] = make(detail)
        return made

    def _topic_defaults(self, detail: Detail) -> dict[str, _Entry]:
        return {name: self._of_topic(name, None, detail) for name in TOPIC_CONFIGS}

    def _of_topic(self, name: str, own: str | None, detail: Detail) -> _Entry:
        config = TOPIC_CONFIGS[name]
        value = plain_value(name, own) if own is not None else default_value(name, self._storage.config)
        synonyms = self._synonyms(TOPIC_SYNONYMS.get(name, ()))
        if own is not None:
            synonyms.insert(0, _synonym(name, value, TOPIC_SOURCE))
        row = ConfigRow(name=name, type=config.type, default=config.default)
        return _sourced(row, value, synonyms, detail)

    def _node_entries(self, detail: Detail) -> dict[str, _Entry]:
        entries = {}
        for row in NODE_ROWS.values():
            value = row.default
            text = self._text(row.name)
            if text is not None:
                value = _plain(row.name, text)
            synonyms = self._synonyms(NODE_SYNONYMS.get(row.name, (row.name,)))
            if row.read_only and self._settings.is_changeable(row.name):
                row = dataclasses.replace(row, read_only=False)
            entries[row.name] = _sourced(row, value, synonyms, detail)
        return entries | self._of_listeners(detail) | _of_callback(self._sources(), detail)

    def _of_listeners(self, detail: Detail) -> dict[str, _Entry]:
        """Describe the settings of single listeners. Kafka marks their limits as read-only although they can change."""
        texts = {name: self._text(name) for name in self._limits}
        entries = {
            name: _sourced(_limit_row(name), text.strip(), self._synonyms((name, self._limits[name])), detail)
            for name, text in texts.items()
            if text is not None
        }
        given = {name for texts, _ in self._sources() for name in texts if _is_listeners(name)}
        for name in sorted(given - entries.keys()):
            base = without_listener(name)
            text = (self._text(name) or "").strip()
            behind = (base,) if base in NODE_ROWS else ()
            entries[name] = _sourced(_listener_row(name, base), text, self._synonyms((name, *behind)), detail)
        return entries

    def _sources(self) -> list[tuple[Mapping[str, str], int]]:
        """Return the node's values by source: set for the node, set for all nodes, and given at the start."""
        return [
            (self._settings.of_node(self._node_id), NODE_SOURCE),
            (self._settings.of_all(), CLUSTER_DEFAULT_SOURCE),
            (self._given, STATIC_SOURCE),
        ]

    def _cluster_entries(self, detail: Detail) -> dict[str, _Entry]:
        row = NODE_ROWS[MIN_INSYNC_REPLICAS]
        synonyms = self._synonyms((row.name,))[:1]
        entries = {row.name: _sourced(row, row.default, synonyms, detail)}
        for name, text in self._settings.of_all().items():
            if name in NODE_ROWS or name in self._limits:
                known = NODE_ROWS.get(name)
                row = dataclasses.replace(known, read_only=False) if known else _limit_row(name)
                synonyms = [_synonym(name, text, CLUSTER_DEFAULT_SOURCE)]
                entries[name] = _sourced(row, text, synonyms, detail)
        return entries | _of_callback([(self._settings.of_all(), CLUSTER_DEFAULT_SOURCE)], detail)

    def _text(self, name: str) -> str | None:
        """Return the value of a setting that is set for the node; None if only its default applies."""
        return next((texts[name] for texts, _ in self._sources() if name in texts), None)

    def _synonyms(self, names: tuple[str, ...]) -> list[Message]:
        """Return a setting's synonyms from `names[0]` on, the first in force, as in Kafka. None without a value."""
        found = [
            _synonym(name, texts[name], source)
            for texts, source in self._sources()[:2]
            for name in names
            if name in texts
        ]
        found += [
            _synonym(name, NODE_ROWS[name].default, CLUSTER_DEFAULT_SOURCE)
            for name in names
            if name == MIN_INSYNC_REPLICAS
        ]
        found += [_synonym(name, self._given[name], STATIC_SOURCE) for name in names if name in self._given]
        defaults = {name: NODE_ROWS[name].default for name in names if name in NODE_ROWS}
        found += [_synonym(name, text, DEFAULT_SOURCE) for name, text in defaults.items() if text is not None]
        while found and found[0]["name"] != names[0]:  # as in Kafka
            found.pop(0)
        return found


def _client_metrics_entries(detail: Detail) -> dict[str, _Entry]:
    return {row.name: _sourced(row, row.default, [], detail) for row in CLIENT_METRICS_ROWS.values()}


def _group_entries(detail: Detail) -> dict[str, _Entry]:
    return {
        row.name: _sourced(row, row.default, [_synonym(row.synonym, row.default, DEFAULT_SOURCE)], detail)
        for row in GROUP_ROWS.values()
    }


def _plain(name: str, text: str) -> str:
    """Return a value of a node's setting as Kafka describes it: read and written again."""
    if name in BEHIND_TOPICS:
        return plain_value(BEHIND_TOPICS[name], text)
    return text_of(SETTINGS[name].parse(text)) if name in SETTINGS else text.strip()


def _limit_row(name: str) -> ConfigRow:
    return ConfigRow(name=name, type=ConfigType.INT, default=None, read_only=True)


def _listener_row(name: str, base: str) -> ConfigRow:
    """Return the row of a listener's setting. As in Kafka, an unknown setting counts as a secret."""
    known = NODE_ROWS.get(base)
    if known is not None:
        return dataclasses.replace(known, name=name, read_only=True)
    kind = ConfigType.PASSWORD if base == JAAS else ConfigType.UNKNOWN
    return ConfigRow(name=name, type=kind, default=None, read_only=True)


def _is_listeners(name: str) -> bool:
    """Return whether a setting is one listener's."""
    return name.startswith("listener.name.")


def _is_callbacks(name: str) -> bool:
    """Return whether a setting is a quota callback's own."""
    return name.startswith(CALLBACK_SETTINGS) and name not in NODE_ROWS


def _of_callback(sources: Sequence[tuple[Mapping[str, str], int]], detail: Detail) -> dict[str, _Entry]:
    """Describe a quota callback's own settings without their values, as Kafka does with settings that it does not know.

    sources: values and their source, in order of precedence.
    """
    entries = {}
    for name in sorted({name for texts, _ in sources for name in texts if _is_callbacks(name)}):
        synonyms = [_synonym(name, None, source) for texts, source in sources if name in texts]
        row = ConfigRow(name=name, type=ConfigType.UNKNOWN, default=None)
        shown, text = (synonyms if detail.synonyms else []), ("" if detail.documentation else None)
        entries[name] = _entry(row, None, synonyms[0]["source"], shown, text)
    return entries


def _loggers() -> list[str]:
    ours = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "tidegate"]
    return ["root", *sorted(ours)]


def _synonym(name: str | None, value: str | None, source: int) -> Message:
    return {"name": name, "value": value, "source": source}


def _sourced(row: ConfigRow, value: str | None, synonyms: list[Message], detail: Detail) -> _Entry:
    source = synonyms[0]["source"] if synonyms and row.synonym is None else DEFAULT_SOURCE
    text = documentation(row.name) if detail.documentation else None
    return _entry(row, value, source, synonyms if detail.synonyms else [], text)


def _entry(
    row: ConfigRow, value: str | None, source: int, synonyms: list[Message], text: str | None
) -> _Entry:
    sensitive = row.type in (ConfigType.PASSWORD, ConfigType.UNKNOWN) and source != LOGGER_SOURCE
    if sensitive:
        value = None
        synonyms = [_synonym(synonym["name"], None, synonym["source"]) for synonym in synonyms]
    message = {
        "name": row.name,
        "value": value,
        "read_only": row.read_only,
        "config_source": source,
        "is_sensitive": sensitive,
        "synonyms": synonyms,
        "config_type": int(row.type),
        "documentation": text,
    }
    size = _ENTRY_BYTES + _bytes_of(row.name, value, text)
    size += sum(_SYNONYM_BYTES + _bytes_of(synonym["name"], synonym["value"]) for synonym in synonyms)
    return _Entry(message, size)


def _bytes_of(*texts: str | None) -> int:
    return sum(len(text.encode()) for text in texts if text is not None)

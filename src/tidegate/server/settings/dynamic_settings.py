"""Settings that are changed while the broker runs (KIP-226): of one node, or of all, kept over restarts.

A value of the node's own wins over one for all nodes, and that over what was given at the start. Changes come one after
the other; each is decided, prepared by the nodes that it concerns, stored, put in force, all of it or nothing.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Protocol

from tidegate import error_codes
from tidegate.errors import ConfigError, TidegateError
from tidegate.quota import EXTENSION_SETTINGS
from tidegate.quota.connections.limits import PER_IP_OVERRIDES
from tidegate.quota.managers.extensions import CLUSTER_WIDE
from tidegate.server.audit import HIDDEN, Audit
from tidegate.server.listening.listener_config import limit_settings
from tidegate.server.listening.tls_listeners import store_settings
from tidegate.server.requests.handler import Wait
from tidegate.server.requests.slices import OneAtATime
from tidegate.server.settings.config import ServerConfig
from tidegate.server.settings.setting_changes import (
    RefusedError,
    SettingChange,
    changed_texts,
    check_number,
    check_value,
)
from tidegate.server.settings.setting_texts import (
    is_beyond_kafka,
    is_secret_setting,
    text_for_fixed,
    warn_of_ignored,
    warn_of_refusing,
)
from tidegate.server.settings.table import CALLBACK_SETTINGS, CONNECTION_SETTINGS
from tidegate.tls.settings import STORE_SETTINGS

__all__ = ["ALL_NODES", "DynamicSettings", "NodeDefaults", "SettingStore", "SettingSubscriber"]

_log = logging.getLogger("tidegate.server")

ALL_NODES = ""
"""Stands for all nodes where one is named."""
_STORE_TEXT = (
    "Invalid value org.apache.kafka.common.config.ConfigException: Validation of dynamic config update of SSLFactory "
    "failed: {} for configuration Invalid dynamic configuration"
)
"""Looked at, as by Kafka, when the types of all others are right."""


_EXTENSIONS = EXTENSION_SETTINGS - {CLUSTER_WIDE}


class SettingStore(Protocol):
    """A store of settings changed on the running broker. Raises `TidegateError` or `OSError`."""

    def load_settings(self) -> Iterable[tuple[str, str, str]]:
        """Return node (empty: all nodes), name and text of each."""

    def change_settings(self, node: str, changes: Mapping[str, str | None]) -> None:
        """Keep settings of a node, all of `changes` or none; None forgets one."""


class NodeDefaults(Protocol):
    """Settings of a node that hold for what has none of its own, such as topics. Nodes that share logs share them.

    names: theirs. lists: those that have parts, which can be added and taken away, and their defaults.
    """

    @property
    def names(self) -> frozenset[str]: ...

    @property
    def lists(self) -> Mapping[str, str]: ...

    def problem(self, name: str, text: str) -> str | None:
        """Return what is wrong with a value, in Kafka's words; None where nothing is."""


Follower = Callable[[], Generator[Wait | None, None, None]]
"""Takes over what is in force, in slices, after every change."""

Changed = tuple[str, str, str]
"""Whose setting it is (a node, or `ALL_NODES`), its name and its text."""


class SettingSubscriber(Protocol):
    """A node that takes over changed settings."""

    config: ServerConfig

    def prepare_in_slices(self, config: ServerConfig) -> Generator[Wait | None, None, Any]:
        """Get ready for other settings and return what `discard` or `activate_in_slices` take.

        Raises `ConfigError`, changing nothing.
        """

    def discard(self, prepared: Any) -> None:
        """Release what `prepare_in_slices` returned, without putting it in force."""

    def activate_in_slices(self, config: ServerConfig, prepared: Any) -> Generator[Wait | None, None, None]:
        """Follow other settings."""


class DynamicSettings:
    """The changed settings of all nodes. given: the texts of each at the start.

    version: grows with every change. listener_limits: the settings that limit one listener, and the one for all
    listeners behind each. listener_stores: those of the stores of encrypted listeners. exact: extensions, and a
    callback that was changed on a running broker, are ignored, with a warning. defaults: settings that the owner of
    `store` follows.
    """

    def __init__(
        self,
        store: SettingStore,
        given: Mapping[int, Mapping[str, str]],
        *,
        exact: bool = False,
        defaults: NodeDefaults | None = None,
    ) -> None:
        self.version = 0
        self._defaults = defaults
        self._followers: list[Follower] = []
        self._store = store
        self.listener_limits = {
            name: limit
            for texts in given.values()
            for name, limit in limit_settings(ServerConfig.load(texts).listeners).items()
        }
        self.listener_stores = frozenset(
            name
            for texts in given.values()
            for name in store_settings(ServerConfig.load(texts).tls_listeners)
        )
        self._data_dir = next((str(ServerConfig.load(texts).data_dir) for texts in given.values()), "DIR")
        self._given = given
        self._exact = exact
        self._texts: dict[str, dict[str, str]] = {}
        self._nodes: dict[int, SettingSubscriber] = {}
        self._left_out: set[Changed] = set()
        self._changes = OneAtATime()
        for node, name, text in store.load_settings():
            self._texts.setdefault(node, {})[name] = text
        for texts in self._texts.values():
            self._warn(texts)

    def attach(self, node_id: int, node: SettingSubscriber) -> None:
        """Register a node that takes over changes."""
        self._nodes[node_id] = node

    def follow(self, follower: Follower) -> None:
        """Call `follower` after every change, when the nodes have taken it over."""
        self._followers.append(follower)

    def given(self, node_id: int) -> Mapping[str, str]:
        """Return what a node was given at the start."""
        return self._given.get(node_id, {})

    def of_all(self) -> Mapping[str, str]:
        """Return what is set for all nodes."""
        return self._texts.get(ALL_NODES, {})

    def of_node(self, node_id: int) -> Mapping[str, str]:
        """Return what is set for one node itself."""
        return self._texts.get(str(node_id), {})

    def in_force(self, node_id: int) -> ServerConfig:
        """Return the settings of a node. What is stored and cannot be, beside the rest, is left out, and said.

        It was changed while other settings were given at the start.
        """
        try:
            return self._config(node_id, self._texts)
        except ConfigError:
            self._leave_out(node_id)
            return self._config(node_id, self._texts)

    def _leave_out(self, node_id: int) -> None:
        """Find out which changed settings of a node cannot be: all others hold."""
        scopes = (ALL_NODES, str(node_id))
        found = [
            (scope, name, text)
            for scope in scopes
            for name, text in sorted(self._texts.get(scope, {}).items())
        ]
        self._left_out.update(found)
        why: dict[Changed, ConfigError] = {}
        while found:
            for changed in found:
                self._left_out.discard(changed)
                try:
                    self._config(node_id, self._texts)
                except ConfigError as error:
                    self._left_out.add(changed)
                    why[changed] = error
            before, found = found, [changed for changed in found if changed in self._left_out]
            if len(found) == len(before):
                break  # else one of them may need one that came behind it
        for changed in found:
            _log.error("ignored stored setting %s: %s", changed[1], why[changed])

    def _warn(self, changed: Mapping[str, str | None]) -> None:
        """Log which of these settings have no effect, and which leave no way back over a connection."""
        texts = {name: text for name, text in changed.items() if text is not None}
        if self._exact:
            warn_of_ignored(texts)
        warn_of_refusing(texts.items(), self._data_dir)

    def is_changeable(self, name: str) -> bool:
        """Return whether a setting can be changed while the broker runs."""
        if name.startswith(CALLBACK_SETTINGS):
            return not self._exact
        if name in self.listener_stores:
            return True
        if self._defaults is not None and name in self._defaults.names:
            return True
        return name in CONNECTION_SETTINGS or name in _EXTENSIONS or name in self.listener_limits

    def alter_in_slices(
        self, node: str, changes: Sequence[SettingChange], audit: Audit, *, validate_only: bool
    ) -> Generator[Wait | None, None, None]:
        """Change settings of a node, given by its number as text, or of `ALL_NODES`. Raises `RefusedError`.

        What `check_changes` looks at is taken to be right.
        """
        yield from self._changes.acquire()
        try:
            wanted = self._decide(node, changes)
            yield None
            yield from self._change_in_slices(node, wanted, audit, validate_only=validate_only)
        finally:
            self._changes.release()

    def _decide(self, node: str, changes: Sequence[SettingChange]) -> dict[str, str | None]:
        """Return the new text of each setting that changes, None where it goes."""
        texts = self._texts.get(node, {})
        wanted = changed_texts(changes, texts, {} if self._defaults is None else self._defaults.lists)
        of_no_listener = [
            name for name, text in wanted.items() if text is not None and name in STORE_SETTINGS
        ]
        if of_no_listener:
            text = (
                "These security configs can be dynamically updated only per-listener using the listener prefix: "
                f"[{', '.join(of_no_listener)}]"
            )
            raise RefusedError(error_codes.INVALID_REQUEST, text)
        fixed = [name for name, text in wanted.items() if text is not None and not self.is_changeable(name)]
        if fixed:
            raise RefusedError(error_codes.INVALID_REQUEST, text_for_fixed(fixed, self._changeable()))
        self._check_scope(node, wanted)
        of_one_node = [name for name in wanted if name in self.listener_stores]
        if of_one_node and node == ALL_NODES:
            text = f"Cannot update these configs at default cluster level: [{', '.join(of_one_node)}]"
            raise RefusedError(error_codes.INVALID_REQUEST, text)
        for name in sorted(wanted, key=PER_IP_OVERRIDES.__eq__):
            value = wanted[name]
            if value is not None:
                self._check(name, value)
        check_number(len(texts.keys() | wanted.keys()))
        # a store that is set to what it is may have another content
        return {
            name: text
            for name, text in wanted.items()
            if texts.get(name) != text or name in self.listener_stores
        }

    def _changeable(self) -> list[str]:
        """Return the settings that can be changed, but for those of stores."""
        of_defaults = frozenset[str]() if self._defaults is None else self._defaults.names
        return sorted(CONNECTION_SETTINGS | _EXTENSIONS | self.listener_limits.keys() | of_defaults)

    def _check_scope(self, node: str, wanted: Mapping[str, str | None]) -> None:
        """Refuse a default of one node where several share their logs."""
        if node == ALL_NODES or len(self._given) < 2 or self._defaults is None:
            return
        shared = [name for name in wanted if name in self._defaults.names]
        if shared:
            text = (
                f"The nodes of this server share their logs. Set these for all nodes (--entity-default): "
                f"[{', '.join(shared)}]"
            )
            raise RefusedError(error_codes.INVALID_REQUEST, text)

    def _check(self, name: str, text: str) -> None:
        """Refuse a value that cannot be, in Kafka's words."""
        if self._defaults is not None and name in self._defaults.names:
            problem = self._defaults.problem(name, text)
            if problem is not None:
                raise RefusedError(error_codes.INVALID_REQUEST, problem)
        limit = self.listener_limits.get(name)
        check_value(limit or name, text)
        if limit and int(text) == 0:
            text = f"org.apache.kafka.common.config.ConfigException: Invalid {limit} 0"
            raise RefusedError(
                error_codes.INVALID_REQUEST,
                f"Invalid value {text} for configuration Invalid dynamic configuration",
            )

    def _change_in_slices(
        self, node: str, wanted: Mapping[str, str | None], audit: Audit, *, validate_only: bool
    ) -> Generator[Wait | None, None, None]:
        texts = {**self._texts, node: _changed(self._texts.get(node, {}), wanted)}
        concerned = [node_id for node_id in self._nodes if node in (ALL_NODES, str(node_id))]
        prepared: list[tuple[SettingSubscriber, ServerConfig, Any]] = []
        try:
            for node_id in concerned if wanted else ():
                attached, config = self._nodes[node_id], self._config(node_id, texts)
                yield None
                prepared.append((attached, config, (yield from attached.prepare_in_slices(config))))
            if wanted and not validate_only:
                self._store.change_settings(node, wanted)
        except (TidegateError, OSError) as error:
            for attached, _, ready in prepared:
                attached.discard(ready)
            if isinstance(error, ConfigError) and wanted.keys() & self.listener_stores:
                raise RefusedError(error_codes.INVALID_REQUEST, _STORE_TEXT.format(error)) from error
            if isinstance(error, ConfigError):
                raise RefusedError(error_codes.INVALID_CONFIG, str(error)) from error
            _log.error("cannot store settings: %s", error, extra={"repeats": "settings"})
            text = "The settings could not be stored; nothing was changed."
            raise RefusedError(error_codes.KAFKA_STORAGE_ERROR, text) from error
        if validate_only:
            for attached, _, ready in prepared:
                attached.discard(ready)
            return
        before, self._texts = self._texts.get(node, {}), texts
        self.version += 1
        self._warn(wanted)
        name = "all nodes" if node == ALL_NODES else f"node {node}"
        yield from audit.changed_in_slices(
            "alter", "setting", name, wanted, _without_secrets(before), _without_secrets(texts[node])
        )
        for attached, config, ready in prepared:
            yield from attached.activate_in_slices(config, ready)
        for follower in self._followers:
            yield from follower()
        self.version += 1  # what was described meanwhile was half of this and half of that

    def _config(self, node_id: int, texts: Mapping[str, Mapping[str, str]]) -> ServerConfig:
        """Return a node's settings. Raises `ConfigError`."""
        config = dict(self.given(node_id))
        for scope in (ALL_NODES, str(node_id)):
            for name, text in texts.get(scope, {}).items():
                if self._exact and is_beyond_kafka(name):
                    continue
                if not self._left_out or (scope, name, text) not in self._left_out:
                    config[name] = text
        return ServerConfig.load(config)


def _without_secrets(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: HIDDEN if is_secret_setting(name) else text for name, text in texts.items()}


def _changed(texts: Mapping[str, str], wanted: Mapping[str, str | None]) -> dict[str, str]:
    changed = {**texts, **wanted}
    return {name: text for name, text in changed.items() if text is not None}

"""The storage's settings, made from those of the node, and updated when these change at run time."""

import dataclasses
from collections.abc import Generator, Mapping
from typing import Any

from tidegate.in_slices import run_at_once
from tidegate.server.settings.config import ServerConfig
from tidegate.server.settings.dynamic_settings import DynamicSettings
from tidegate.server.settings.table import SETTINGS
from tidegate.storage.config import StorageConfig
from tidegate.storage.storage import Storage
from tidegate.storage.topics.topic_configs import check_given
from tidegate.storage.topics.topic_defaults import TOPIC_DEFAULTS

__all__ = ["follow_settings", "storage_config"]

_TEXTS = frozenset(("given", "of_node", "of_all"))
_NAMES = {
    field.name: field.name.replace("_", ".")
    for field in dataclasses.fields(StorageConfig)
    if field.name not in _TEXTS
}
_CHANGING = {field: name for field, name in _NAMES.items() if name in TOPIC_DEFAULTS.names}


def storage_config(config: ServerConfig) -> StorageConfig:
    """Return the storage's settings: its field `a_b_c` is the setting `a.b.c` or `tidegate.a.b.c`.

    Raises `ConfigError` for an invalid default of a topic's setting.
    """
    check_given(config.given)
    values: dict[str, Any] = {
        field: config[name if name in SETTINGS else f"tidegate.{name}"] for field, name in _NAMES.items()
    }
    return StorageConfig(given=config.given, **values)


def follow_settings(storage: Storage, settings: DynamicSettings, node_id: int) -> None:
    """Apply the changed settings to the storage, now and after every later change.

    Nodes that share the storage follow the settings of `node_id`, the controller.
    """

    def follow() -> Generator[None, None, None]:
        of_node, of_all = _of_storage(settings.of_node(node_id)), _of_storage(settings.of_all())
        if (of_node, of_all) == (storage.config.of_node, storage.config.of_all):
            return
        config = settings.in_force(node_id)
        changed: dict[str, Any] = {field: config[name] for field, name in _CHANGING.items()}
        wanted = dataclasses.replace(storage.config, of_node=of_node, of_all=of_all, **changed)
        yield from storage.follow_in_slices(wanted)

    settings.follow(follow)
    run_at_once(follow())


def _of_storage(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in texts.items() if name in TOPIC_DEFAULTS.names}

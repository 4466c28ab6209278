"""Quotas as tests write them: a path to a `quotas.yaml`, or the entries of such a file as dicts.

>>> quotas = read_quotas([{"user": None, "client-id": "loader", "producer_byte_rate": "1MiB"}])
>>> quotas.entries[0].entity, quotas.entries[0].values
((('client-id', 'loader'), ('user', None)), {'producer_byte_rate': 1048576.0})

In a dict, an entity is a name, or None for the default entity, as in Kafka's protocol and its admin clients.
"""

import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tidegate.errors import ConfigError

if TYPE_CHECKING:
    from tidegate.config.quotas_file import QuotasFile

__all__ = ["Quotas", "read_quotas"]

Quotas = str | os.PathLike[str] | Iterable[Mapping[str, Any]]
"""A path, or entries."""

_ENTITY_TYPES = ("user", "client-id", "ip")
_SOURCE = "quotas"  # in error messages


def read_quotas(quotas: Quotas) -> "QuotasFile":
    """Return the quotas, checked as a file is (`docs/quotas-file.md`). Raises `ConfigError`, also for groups."""
    from tidegate.config.quotas_file import load_quotas_file, parse_quotas_file

    if isinstance(quotas, str | os.PathLike):
        found = load_quotas_file(os.fspath(quotas))
    else:
        try:
            text = json.dumps({"quotas": [_entry(quota) for quota in quotas]}, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"quotas cannot be read: {error}",
                hint='write each as {"client-id": "loader", "producer_byte_rate": 1048576}',
            ) from error
        found = parse_quotas_file(text, name=_SOURCE)  # JSON is YAML
    if found.groups:
        raise ConfigError(
            "quotas have groups, which only settings of the broker can define",
            hint="define them with settings={'client.quota.callback.class': ...}; see docs/quotas-file.md",
        )
    return found


def _entry(quota: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _part(value) if key in _ENTITY_TYPES else value for key, value in dict(quota).items()}


def _part(name: Any) -> Any:
    """Return a part of an entity as the file has it."""
    if name is None:
        return {"default": True}
    return {"name": name} if isinstance(name, str) else name

"""Quotas as tests write them, and changes that the kit makes on its own broker: quotas and SCRAM users.

Quotas are a path to a `quotas.yaml`, or the entries of such a file as dicts. In a dict, an entity is a name, or None
for the default entity, as in Kafka's protocol and its admin clients.

>>> quotas = read_quotas([{"user": None, "client-id": "loader", "producer_byte_rate": "1MiB"}])
>>> quotas.entries[0].entity, quotas.entries[0].values
((('client-id', 'loader'), ('user', None)), {'producer_byte_rate': 1048576.0})

Changes are made with `tidegate.client`, each on a thread with an event loop of its own, so that tests can also make
them while their own loop runs.
"""

import json
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.errors import ConfigError
from tidegate.testing.process import BrokerError

if TYPE_CHECKING:
    from tidegate.client import Admin
    from tidegate.config.quotas_file import QuotasFile

__all__ = ["CLIENT_ID", "Quotas", "alter_quotas", "describe_quotas", "read_quotas", "set_scram_passwords"]

CLIENT_ID = "tidegate-testing"
"""The client id of these requests."""

Entity = tuple[tuple[str, str | None], ...]
"""Pairs of Kafka's entity type and a name; None is the default entity."""

_Result = TypeVar("_Result")
_TIMEOUT_S = 30.0
_HINT = "with an authorizer, add User:ANONYMOUS to super.users: the kit itself does not log in"
Quotas = str | os.PathLike[str] | Iterable[Mapping[str, Any]]
"""A path, or entries."""

_ENTITY_TYPES = ("user", "client-id", "ip")
_SOURCE = "quotas"  # in error messages


def alter_quotas(port: int, changes: Iterable[tuple[Entity, Mapping[str, float | None]]]) -> None:
    """Set quotas by Kafka's key, or remove them (None). Raises `BrokerError` with the broker's reason."""
    from tidegate.quota.admin.definitions import Alteration

    alterations = [Alteration(entity=entity, ops=tuple(values.items())) for entity, values in changes]
    if alterations:
        _check(_administer(port, lambda admin: admin.alter_client_quotas(alterations)), "quota")


def describe_quotas(port: int) -> list[tuple[Entity, dict[str, float]]]:
    """Return all quotas: entity, and values by Kafka's key. Raises `BrokerError`."""
    return _administer(port, lambda admin: admin.describe_client_quotas())


def set_scram_passwords(port: int, passwords: Mapping[str, str]) -> None:
    """Set passwords of users, for all SCRAM mechanisms. Raises `BrokerError`."""
    from tidegate.client import ScramChange
    from tidegate.scram import SCRAM_MECHANISMS

    async def work(admin: "Admin") -> None:
        for mechanism in SCRAM_MECHANISMS:  # a request changes a user once
            changes = [
                ScramChange(user=user, mechanism=mechanism, password=password)
                for user, password in passwords.items()
            ]
            _check(await admin.alter_scram_users(changes), "user")

    _administer(port, work)


def _check(results: Mapping[Any, Exception | None], kind: str) -> None:
    """Raise `BrokerError` for the first change that the broker refused."""
    for name, error in results.items():
        if error is not None:
            raise BrokerError(f"the broker refused {kind} {name!r}: {error}", hint=_HINT)


def _administer(port: int, work: "Callable[[Admin], Awaitable[_Result]]") -> _Result:
    """Return what `work` returns for an `Admin` of the broker. Raises `BrokerError`."""
    from tidegate.client import Address, ClientError, ClientSettings, run_as_admin
    from tidegate.client import BrokerError as RefusedError

    address = Address("127.0.0.1", port)
    settings = ClientSettings(addresses=(address,), client_id=CLIENT_ID, api_timeout_s=_TIMEOUT_S)
    try:
        return run_as_admin(settings, work, in_thread=True)
    except ClientError as error:
        hint = _HINT if isinstance(error, RefusedError) else error.hint
        raise BrokerError(f"the broker did not do what the kit asked: {error}", hint=hint) from error


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

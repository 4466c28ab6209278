"""Requests of `tidegate configs --alter` to the cluster. Follows: Kafka `ConfigCommand.alterConfig`, B§9.3."""

import re
from collections.abc import Iterable

from tidegate.cli.configs.changes import Changes, read_changes
from tidegate.cli.configs.command import Command, int32
from tidegate.cli.configs.describe import DESCRIBE_S, RESOURCE_TYPES, node_of, quota_filter, within
from tidegate.cli.configs.options import RefusedError, refuse_if
from tidegate.client import Admin, BrokerError, ConfigChange, ScramChange
from tidegate.config.java_numbers import read_double
from tidegate.errors import ConfigError
from tidegate.quota.admin.definitions import Alteration
from tidegate.scram import MAX_ITERATIONS, MIN_ITERATIONS

__all__ = ["alter", "read_changes", "read_credential"]

_ALTER_S = 60.0  # Kafka `ConfigCommand`
_SET, _DELETE = 0, 1  # Kafka `AlterConfigOp.OpType`
_CREDENTIAL = re.compile(r"(?:iterations=(-?[0-9]*),)?password=(.*)")


async def alter(admin: Admin, command: Command, changes: Changes) -> None:
    """Make the changes. Raises `RefusedError`, and `ClientError` for what the cluster refuses."""
    if command.entity_types[0] in RESOURCE_TYPES:
        await _alter_settings(admin, command, changes)
    elif changes.are_quotas:
        await _alter_quotas(admin, command, changes)
    elif changes.added or changes.deleted:
        await _alter_scram_user(admin, command.entity_names[0], changes)


async def _alter_quotas(admin: Admin, command: Command, changes: Changes) -> None:
    """Set and remove quotas of one entity; removing one that is not set is an error, as in Kafka's tool only."""
    components = quota_filter(command.entity_types, command.entity_names)
    found = await within(DESCRIBE_S, admin.describe_client_quotas(components, strict=True))
    current = found[0][1] if found else {}
    missing = [key for key in changes.deleted if key not in current]
    refuse_if(missing, f"Invalid config(s): {','.join(missing)}")
    ops = [(key, _number(key, text)) for key, text in changes.added.items()]
    removals = [(key, None) for key in changes.deleted]
    if not ops and not removals:
        return
    entity = tuple(sorted((part.entity_type, part.match) for part in components))
    alteration = Alteration(entity=entity, ops=(*ops, *removals))
    results = await within(_ALTER_S, admin.alter_client_quotas([alteration]))
    _raise_first(results.values())


async def _alter_scram_user(admin: Admin, user: str, changes: Changes) -> None:
    deletions = [ScramChange(user=user, mechanism=name) for name in changes.deleted]
    settings = [read_credential(user, name, text) for name, text in changes.added.items()]
    results = await within(_ALTER_S, admin.alter_scram_users([*deletions, *settings]))
    _raise_first(results.values())


async def _alter_settings(admin: Admin, command: Command, changes: Changes) -> None:
    kind, name = command.entity_types[0], command.entity_names[0]
    ops = [
        *(ConfigChange(name=key, value="", operation=_DELETE) for key in changes.deleted),
        *(ConfigChange(name=key, value=text, operation=_SET) for key, text in changes.added.items()),
    ]
    altering = admin.alter_configs(RESOURCE_TYPES[kind], name, ops, node_id=node_of(kind, name))
    await within(_ALTER_S, altering)


def _number(key: str, text: str) -> float:
    try:
        return read_double(text)
    except ValueError:
        raise RefusedError(f"Cannot parse quota configuration value for {key}: {text}") from None


def read_credential(user: str, mechanism: str, text: str) -> ScramChange:
    """Return the credential that a text such as `iterations=8192,password=x` sets. Its errors show no password."""
    match = _CREDENTIAL.fullmatch(text)
    if match is None:
        raise RefusedError(
            f"Invalid credential property {mechanism.replace('-', '_')}=[hidden]",
            hint=f"write {mechanism}=[iterations=8192,password=...]; iterations can be left out",
        )
    iterations = MIN_ITERATIONS if match[1] in (None, "-1") else int32(match[1])
    if iterations is None:
        raise RefusedError(f'For input string: "{match[1]}"')
    refuse_if(
        iterations < MIN_ITERATIONS,
        f"Iterations {iterations} is less than the minimum {MIN_ITERATIONS} required for {mechanism}",
    )
    if iterations > MAX_ITERATIONS:
        raise ConfigError(
            f"iterations must be at most {MAX_ITERATIONS}, got {iterations}", hint="choose a smaller number"
        )
    if not match[2]:
        raise ConfigError("password must not be empty", hint="set password=... to the user's password")
    return ScramChange(user=user, mechanism=mechanism, password=match[2], iterations=iterations)


def _raise_first(results: Iterable[BrokerError | None]) -> None:
    for error in results:
        if error is not None:
            raise error

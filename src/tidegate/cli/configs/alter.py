"""Changes of `tidegate configs --alter`: the keys to set and to remove, and the requests that make them.

>>> parse_configs("producer_byte_rate = 1024,SCRAM-SHA-256=[iterations=8192,password=x]")
{'producer_byte_rate': '1024', 'SCRAM-SHA-256': 'iterations=8192,password=x'}

Follows: Kafka `ConfigCommand.parseConfigsToBeAdded`, `alterConfig`, B§9.3.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidegate.cli.configs.command import CLIENTS, IPS, USERS, Command, int32
from tidegate.cli.configs.describe import DESCRIBE_S, RESOURCE_TYPES, node_of, quota_filter, within
from tidegate.cli.configs.options import RefusedError, refuse_if
from tidegate.client import Admin, BrokerError, ConfigChange, ScramChange
from tidegate.config.java_numbers import read_double
from tidegate.config.properties import load_properties
from tidegate.errors import ConfigError
from tidegate.quota.admin.definitions import Alteration
from tidegate.quota.admin.java_hash import hash_map_order
from tidegate.quota.admin.keys import keys_for
from tidegate.scram import MAX_ITERATIONS, MIN_ITERATIONS, SCRAM_MECHANISMS

__all__ = ["Changes", "alter", "parse_configs", "read_changes", "read_credential"]

_NOT_GROUPED = r"(?=[^\]]*(?:\[|$))"  # a position outside brackets: no "]" comes before the next "["
_COMMA = re.compile("," + _NOT_GROUPED)
_EQUALS = re.compile(r"\s*=\s*" + _NOT_GROUPED)
_KEY = re.compile("[a-zA-Z0-9._-]*")
_ALTER_S = 60.0  # Kafka `ConfigCommand`
_SET, _DELETE = 0, 1  # Kafka `AlterConfigOp.OpType`
_CREDENTIAL = re.compile(r"(?:iterations=(-?[0-9]*),)?password=(.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Values to set, by key, and keys to remove. are_quotas: they are quotas, not SCRAM credentials or settings."""

    added: Mapping[str, str]
    deleted: tuple[str, ...]
    are_quotas: bool


def parse_configs(text: str) -> dict[str, str]:
    """Return keys and values from the argument of --add-config. Raises `RefusedError`."""
    parts = _COMMA.split(text)
    while text and parts and not parts[-1]:  # Java drops empty parts at the end, unless the text is empty
        parts.pop()
    configs: dict[str, str] = {}
    for part in parts:
        pair = _EQUALS.split(part)
        refuse_if(
            len(pair) != 2,
            "requirement failed: Invalid entity config: all configs to be added must be in the format "
            '"key=val" or  "key=[val1,val2]" to group values which contain commas.',
        )
        configs[pair[0].strip()] = pair[1].replace("[", "").replace("]", "").strip()
    return configs


def read_changes(command: Command) -> Changes:
    """Return the changes that a command asks for. Raises `RefusedError`, or `ConfigError` for an unusable file."""
    found = {} if command.add_config_file is None else load_properties(command.add_config_file)
    if command.add_config is not None:
        found = parse_configs(command.add_config)
    for key in found:
        refuse_if(not _KEY.fullmatch(key), f"Invalid character found for config key: {key}")
    added = {key: found[key] for key in hash_map_order(found)}
    types, deleted = command.entity_types, command.delete_config
    if types[0] == IPS:
        unknown = [key for key in (*added, *deleted) if key not in keys_for("ip")]
        refuse_if(
            unknown,
            "Only connection quota configs can be added for 'ips' using --bootstrap-server. "
            f"Unexpected config names: {','.join(unknown)}",
            hint=_did_you_mean(unknown, keys_for("ip")),
        )
        return Changes(added=added, deleted=deleted, are_quotas=True)
    if types[0] in (USERS, CLIENTS):
        return _of_clients(command, added, deleted)
    return Changes(added=added, deleted=deleted, are_quotas=False)


def _of_clients(command: Command, added: Mapping[str, str], deleted: tuple[str, ...]) -> Changes:
    """Return changes of users and clients: quotas of any entity, or SCRAM credentials of a user."""
    quota_keys = keys_for("user")
    if command.entity_types[0] == CLIENTS or len(command.entity_types) == 2:
        _refuse_others("quota configs", CLIENTS, added, deleted, known=quota_keys)
        if not added and not deleted and len(command.entity_types) == 2:
            raise ConfigError("there is nothing to change", hint="give --add-config or --delete-config a key")
        return Changes(added=added, deleted=deleted, are_quotas=True)
    known = {*quota_keys, *SCRAM_MECHANISMS}
    _refuse_others("quota and SCRAM credential configs", USERS, added, deleted, known=known)
    keys = {*added, *deleted}
    if keys & SCRAM_MECHANISMS.keys():
        refuse_if(
            "" in command.entity_names,
            "The use of --entity-default or --user-defaults is not allowed with User SCRAM Credentials "
            "using --bootstrap-server.",
        )
        refuse_if(
            keys & quota_keys.keys(),
            "Cannot alter both quota and SCRAM credential configs simultaneously for 'users' "
            "using --bootstrap-server.",
        )
    return Changes(added=added, deleted=deleted, are_quotas=bool(keys & quota_keys.keys()))


def _refuse_others(
    what: str, kind: str, added: Iterable[str], deleted: Iterable[str], *, known: Iterable[str]
) -> None:
    """Raise `RefusedError` for unknown keys, in the format of Scala's collections."""
    allowed = set(known)
    for verb, collection, keys in (("added", "Set", added), ("deleted", "ArrayBuffer", deleted)):
        others = sorted((key for key in keys if key not in allowed), key=SCRAM_MECHANISMS.__contains__)
        refuse_if(
            others,
            f"Only {what} can be {verb} for '{kind}' using --bootstrap-server. "
            f"Unexpected config names: {collection}({', '.join(others)})",
            hint=_did_you_mean(others, known),
        )


def _did_you_mean(names: Sequence[str], known: Iterable[str]) -> str | None:
    """Return a hint with the known name that is most like the first unknown one; None if there is no unknown name."""
    if not names:
        return None
    from tidegate.config.values import did_you_mean

    return did_you_mean(names[0], sorted(known))


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

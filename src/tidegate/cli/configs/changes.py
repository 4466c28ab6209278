"""The changes that `tidegate configs --alter` is given: which keys to set, and which to remove.

>>> parse_configs("producer_byte_rate = 1024,SCRAM-SHA-256=[iterations=8192,password=x]")
{'producer_byte_rate': '1024', 'SCRAM-SHA-256': 'iterations=8192,password=x'}

Follows: Kafka `ConfigCommand.parseConfigsToBeAdded`, `alterConfig`, B§9.3.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidegate.cli.configs.command import CLIENTS, IPS, USERS, Command
from tidegate.cli.configs.options import refuse_if
from tidegate.config.properties import load_properties
from tidegate.errors import ConfigError
from tidegate.quota.admin.java_hash import hash_map_order
from tidegate.quota.admin.keys import keys_for
from tidegate.scram import SCRAM_MECHANISMS

__all__ = ["Changes", "parse_configs", "read_changes"]

_NOT_GROUPED = r"(?=[^\]]*(?:\[|$))"  # what is not between brackets: no "]" comes before the next "["
_COMMA = re.compile("," + _NOT_GROUPED)
_EQUALS = re.compile(r"\s*=\s*" + _NOT_GROUPED)
_KEY = re.compile("[a-zA-Z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Values to set, by key, and keys to remove. are_quotas: they are quotas, not SCRAM credentials or settings."""

    added: Mapping[str, str]
    deleted: tuple[str, ...]
    are_quotas: bool


def parse_configs(text: str) -> dict[str, str]:
    """Return what the argument of --add-config sets. Raises `RefusedError`."""
    parts = _COMMA.split(text)
    while text and parts and not parts[-1]:  # Java drops them, unless the text itself is empty
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
    """Return the changes that a command is given. Raises `RefusedError`, or `ConfigError` for an unusable file."""
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
    """Return changes of users and clients: quotas of any, or SCRAM credentials of a user."""
    quota_keys = keys_for("user")
    if command.entity_types[0] == CLIENTS or len(command.entity_types) == 2:
        _refuse_others("quota configs", CLIENTS, added, deleted, known=quota_keys)
        if not added and not deleted and len(command.entity_types) == 2:
            raise ConfigError("nothing to change is named", hint="give --add-config or --delete-config a key")
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
    """Raise `RefusedError` for keys that are not known, in the words of Scala's collections."""
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
    """Return a hint that names what the first of some unknown names may have meant; None without a name."""
    if not names:
        return None
    from tidegate.config.values import did_you_mean

    return did_you_mean(names[0], sorted(known))

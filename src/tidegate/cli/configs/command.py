"""The command that the options of `tidegate configs` form, and the rules for combining options.

>>> from tidegate.cli.configs.options import parse_options
>>> options = parse_options(["--describe", "--bootstrap-server", "localhost:9092", "--user", "alice"])
>>> command = checked_command(options)
>>> command.entity_types, command.entity_names
(('users',), ('alice',))

Follows: Kafka `ConfigCommandOptions`, B§9.1.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.cli.configs.options import Options, RefusedError, refuse_if
from tidegate.config.java_numbers import read_number
from tidegate.quota.admin.ip_names import ip_literal, may_be_host_name

__all__ = ["BROKERS", "CLIENTS", "IPS", "TOPICS", "USERS", "Command", "checked_command", "int32"]

TOPICS, CLIENTS, USERS, BROKERS, IPS = "topics", "clients", "users", "brokers", "ips"
_UNSERVED = ("client-metrics", "groups", "broker-loggers")
_TYPES = (TOPICS, CLIENTS, USERS, BROKERS, IPS, *_UNSERVED)
_WITH_DEFAULT = frozenset({USERS, CLIENTS, BROKERS, IPS})
_NAME_FLAGS = {
    "topic": TOPICS,
    "client": CLIENTS,
    "user": USERS,
    "broker": BROKERS,
    "broker-logger": "broker-loggers",
    "ip": IPS,
    "client-metrics": "client-metrics",
    "group": "groups",
}
_DEFAULT_FLAGS = {
    "client-defaults": CLIENTS,
    "user-defaults": USERS,
    "broker-defaults": BROKERS,
    "ip-defaults": IPS,
}
_MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One alteration or description of entities.

    entity_names: "" is the default entity; a description may have fewer names than types, and then matches any.
    """

    alters: bool
    bootstrap_server: str | None
    command_config: Path | None
    entity_types: tuple[str, ...]
    entity_names: tuple[str, ...]
    describes_all: bool
    add_config: str | None
    add_config_file: Path | None
    delete_config: tuple[str, ...]


def checked_command(options: Options) -> Command:
    """Return the command of the options. Raises `RefusedError` where Kafka's tool does, in its order and words."""
    alters = _checked_action(options)
    types = _checked_types(options)
    names = _names(options)
    _check_names(options, types, names)
    if alters:
        _check_alter(options, types, names)
    elif options.has("entity-default") and not _WITH_DEFAULT.intersection(types):
        raise RefusedError(f"--entity-default must not be specified with --describe of {','.join(types)}")
    _check_served(options, types)
    refuse_if(alters and len(types) != len(names), "An entity name must be specified for every entity type")
    return Command(
        alters=alters,
        bootstrap_server=options.value("bootstrap-server"),
        command_config=_path(options, "command-config"),
        entity_types=tuple(types),
        entity_names=tuple(names),
        describes_all=options.has("all"),
        add_config=options.value("add-config"),
        add_config_file=_path(options, "add-config-file"),
        delete_config=tuple(value.strip() for value in options.values("delete-config")),
    )


def int32(text: str) -> int | None:
    """Return a number as Java's `Integer.parseInt` reads it; None if the text is not a number."""
    try:
        return read_number(text, _MAX_INT32)
    except ValueError:
        return None


def _checked_action(options: Options) -> bool:
    """Return whether the action is --alter."""
    is_one = options.has("alter") != options.has("describe")
    refuse_if(not is_one, "Command must include exactly one action: --describe, --alter", with_usage=True)
    for name in ("add-config", "delete-config"):
        refuse_if(
            options.has("describe") and options.has(name),
            f'Option "[describe]" can\'t be used with option "[{name}]"',
            with_usage=True,
        )
    return options.has("alter")


def _types(options: Options) -> list[str]:
    flags = (*_NAME_FLAGS.items(), *_DEFAULT_FLAGS.items())
    return options.values("entity-type") + [kind for flag, kind in flags if options.has(flag)]


def _names(options: Options) -> list[str]:
    """Return the entity names, "" for a default entity: those of the long form in their order, then the flags'."""
    long_form = [value or "" for name, value in options.given if name in ("entity-name", "entity-default")]
    flags = [options.value(flag) or "" for flag in _NAME_FLAGS if options.has(flag)]
    return long_form + flags + ["" for flag in _DEFAULT_FLAGS if options.has(flag)]


def _checked_types(options: Options) -> list[str]:
    types = _types(options)
    repeated = [kind for number, kind in enumerate(types) if kind in types[:number]]
    refuse_if(repeated, f"Duplicate entity type(s) specified: {','.join(repeated)}")
    refuse_if(
        not options.has("bootstrap-server") and not options.has("bootstrap-controller"),
        "Either --bootstrap-server or --bootstrap-controller must be specified.",
    )
    for kind in types:
        refuse_if(
            kind not in _TYPES,
            f"Invalid entity type {kind}, the entity type must be one of {', '.join(_TYPES)} "
            "with a --bootstrap-server or --bootstrap-controller argument",
        )
    refuse_if(not types, "At least one entity type must be specified")
    refuse_if(
        len(types) > 1 and set(types) != {USERS, CLIENTS},
        "Only 'users' and 'clients' entity types may be specified together",
    )
    is_long = any(options.has(name) for name in ("entity-name", "entity-type", "entity-default"))
    refuse_if(
        is_long and any(options.has(flag) for flag in (*_NAME_FLAGS, *_DEFAULT_FLAGS)),
        "--entity-{type,name,default} should not be used in conjunction with specific entity flags",
    )
    return types


def _check_names(options: Options, types: Sequence[str], names: Sequence[str]) -> None:
    refuse_if(
        options.has("bootstrap-server") and options.has("bootstrap-controller"),
        "Only one of --bootstrap-server or --bootstrap-controller can be specified",
    )
    if not any(names):
        return
    if BROKERS in types or "broker-loggers" in types:
        for flag in ("entity-name", "broker", "broker-logger"):
            broker = options.value(flag)
            refuse_if(
                broker is not None and int32(broker) is None,
                f"The entity name for {types[0]} must be a valid integer broker id, but it is: {broker}",
            )
    if IPS in types:
        for flag in ("entity-name", "ip"):
            name = options.value(flag)
            refuse_if(
                name and not _has_address(name),
                f"The entity name for {types[0]} must be a valid IP or resolvable host, but it is: {name}",
            )


def _check_alter(options: Options, types: Sequence[str], names: Sequence[str]) -> None:
    if not _WITH_DEFAULT.intersection(types):
        refuse_if(not any(names), f"An entity name must be specified with --alter of {','.join(types)}")
    refuse_if(
        not names,
        "An entity-name or default entity must be specified with --alter of users, clients, brokers or ips",
    )
    refuse_if(
        options.has("add-config") and options.has("add-config-file"),
        "Only one of --add-config or --add-config-file must be specified",
    )
    refuse_if(
        not any(options.has(name) for name in ("add-config", "add-config-file", "delete-config")),
        "At least one of --add-config, --add-config-file, or --delete-config must be specified with --alter",
    )


def _check_served(options: Options, types: Sequence[str]) -> None:
    """Raise `RefusedError` for features of Kafka's tool that this command does not have."""
    refuse_if(
        options.has("bootstrap-controller"),
        "--bootstrap-controller is not supported: a controller does not describe client quotas",
        hint="use --bootstrap-server with the address of a broker",
    )
    for kind in types:
        refuse_if(
            kind in _UNSERVED,
            f"Entity type {kind} is not supported: this command covers users, clients, ips, brokers and topics",
            hint="use kafka-configs.sh of Apache Kafka",
        )


def _has_address(name: str) -> bool:
    """Return whether a name is an IP address, or a host name that the name server can resolve."""
    if ip_literal(name) is not None:
        return True
    try:
        return may_be_host_name(name) and bool(socket.getaddrinfo(name.encode(), None))
    except (OSError, UnicodeError):
        return False


def _path(options: Options, name: str) -> Path | None:
    value = options.value(name)
    return None if value is None else Path(value)

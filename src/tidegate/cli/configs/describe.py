"""Lines of `tidegate configs --describe`: quotas, SCRAM users, settings of brokers and topics.

>>> quota_line((("client-id", None), ("user", "al")), {"producer_byte_rate": 1e7, "consumer_byte_rate": 2.0})
"Quota configs for user-principal 'al', the default client-id are consumer_byte_rate=2.0, producer_byte_rate=1.0E7"

Follows: Kafka `ConfigCommand.describeConfig`, B§9.2.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import TypeVar

from tidegate import error_codes
from tidegate.cli.configs.command import BROKERS, CLIENTS, IPS, TOPICS, USERS, Command, int32
from tidegate.cli.configs.options import RefusedError, refuse_if
from tidegate.client import Admin, BrokerError, ConfigEntry, RequestTimeoutError, UnsupportedApiError
from tidegate.config.java_numbers import double_text
from tidegate.quota.admin.definition_filter import (
    MATCH_DEFAULT,
    MATCH_EXACT,
    MATCH_SPECIFIED,
    EntityParts,
    FilterComponent,
)
from tidegate.quota.admin.java_hash import hash_map_order

__all__ = ["DESCRIBE_S", "RESOURCE_TYPES", "describe", "node_of", "quota_filter", "quota_line", "within"]

DESCRIBE_S = 30.0
"""Timeout of one request, in seconds. Follows: Kafka `ConfigCommand`."""
RESOURCE_TYPES = {TOPICS: 2, BROKERS: 4}
"""The numbers of Kafka `ConfigResource.Type`, by entity type."""
_ENTITY_TYPES = {USERS: "user", CLIENTS: "client-id", IPS: "ip"}
_PARTS = {"user": "user-principal", "client-id": "client-id", "ip": "ip"}  # in the order of a line
_SOURCES = {  # Kafka `ConfigEntry.ConfigSource`, by number
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "DYNAMIC_CLIENT_METRICS_CONFIG",
    8: "DYNAMIC_GROUP_CONFIG",
}
_TOPIC, _BROKER, _ALL_BROKERS = 1, 2, 3  # sources of settings that were changed

_Result = TypeVar("_Result")


async def describe(admin: Admin, command: Command) -> AsyncIterator[str]:
    """Yield the lines that describe the entities. Raises `RefusedError`, and `ClientError`."""
    types, names = command.entity_types, command.entity_names
    if types[0] in RESOURCE_TYPES:
        async for line in _settings(admin, command):
            yield line
        return
    filters = quota_filter(types, names)
    for entity, values in await within(DESCRIBE_S, admin.describe_client_quotas(filters, strict=True)):
        yield quota_line(entity, values)
    if types == (USERS,) and "" not in names:
        for user, found in (await _scram_users(admin, names)).items():
            if not isinstance(found, BrokerError):
                yield f"SCRAM credential configs for user-principal '{user}' are {_credentials(found)}"
            elif found.code != error_codes.RESOURCE_NOT_FOUND:
                yield f"Error retrieving SCRAM credential configs for user-principal '{user}': {found}"


async def _scram_users(admin: Admin, names: Sequence[str]) -> Mapping[str, dict[str, int] | BrokerError]:
    """Return mechanisms and iterations of users; none if the broker does not support SCRAM (KRaft before Kafka 3.5)."""
    try:
        return await within(DESCRIBE_S, admin.describe_scram_users(names or None))
    except UnsupportedApiError:
        return {}


def quota_filter(types: Sequence[str], names: Sequence[str]) -> list[FilterComponent]:
    """Return the filter of exactly these types: names belong to types by position, "" is the default entity."""
    refuse_if(len(names) > len(types), "More entity names specified than entity types")
    components = []
    for number, kind in enumerate(types):
        name = names[number] if number < len(names) else None
        match = MATCH_SPECIFIED if name is None else MATCH_EXACT if name else MATCH_DEFAULT
        components.append(FilterComponent(_ENTITY_TYPES[kind], match, name or None))
    return components


def quota_line(entity: EntityParts, values: Mapping[str, float]) -> str:
    """Return the line of one entity, with its keys in the order of the hash map of Kafka's tool."""
    names = dict(entity)
    parts = (
        f"the default {text}" if names[kind] is None else f"{text} '{names[kind]}'"
        for kind, text in _PARTS.items()
        if kind in names
    )
    keys = hash_map_order(values, initial_capacity=len(values))
    quotas = ", ".join(f"{key}={double_text(values[key])}" for key in keys)
    return f"Quota configs for {', '.join(parts)} are {quotas}"


def node_of(kind: str, name: str) -> int | None:
    """Return the broker to ask about an entity; None: any broker."""
    return int32(name) if kind == BROKERS and name else None


async def within(time_s: float, work: Awaitable[_Result]) -> _Result:
    """Return the result of `work`. Raises `RequestTimeoutError` where it takes longer than `time_s`."""
    try:
        async with asyncio.timeout(time_s):
            return await work
    except RequestTimeoutError:
        raise
    except TimeoutError as error:
        raise RequestTimeoutError(
            f"the cluster did not answer within {time_s:g} s", hint="check whether the brokers are overloaded"
        ) from error


def _credentials(found: Mapping[str, int]) -> str:
    return ", ".join(f"{mechanism}=iterations={iterations}" for mechanism, iterations in found.items())


async def _settings(admin: Admin, command: Command) -> AsyncIterator[str]:
    """Yield the changed settings of brokers or topics, or all of them, each with its synonyms."""
    kind, names = command.entity_types[0], command.entity_names[:1]
    if kind == TOPICS and names and (names[0] or not command.describes_all):
        _check_topic_name(names[0])
    if not names or (names[0] and not command.describes_all):
        there = await within(DESCRIBE_S, _all_names(admin, kind))
        if names and names[0] not in there:
            yield f"The {kind[:-1]} '{names[0]}' doesn't exist and doesn't have dynamic config."
            return
        names = names or tuple(there)
    which = "All" if command.describes_all else "Dynamic"
    for name in names:
        yield (
            f"{which} configs for {kind[:-1]} {name} are:"
            if name
            else f"Default configs for {kind} in the cluster are:"
        )
        describing = admin.describe_configs(RESOURCE_TYPES[kind], name, node_id=node_of(kind, name))
        source = _TOPIC if kind == TOPICS else _BROKER if name else _ALL_BROKERS
        for entry in sorted(await within(DESCRIBE_S, describing), key=lambda entry: entry.name):
            if command.describes_all or entry.source == source:
                yield _setting(entry)


def _check_topic_name(name: str) -> None:
    from tidegate.broker.topic_names import name_problem

    if problem := name_problem(name):
        raise RefusedError(f"Topic name is invalid: {problem}")


async def _all_names(admin: Admin, kind: str) -> list[str]:
    if kind == TOPICS:
        return await admin.list_topics()
    await admin.cluster.refresh()
    return [*map(str, admin.cluster.node_ids), ""]


def _setting(entry: ConfigEntry) -> str:
    synonyms = ", ".join(
        f"{_SOURCES.get(source, 'UNKNOWN')}:{name}={_value(value)}" for name, value, source in entry.synonyms
    )
    sensitive = "true" if entry.is_sensitive else "false"
    return f"  {entry.name}={_value(entry.value)} sensitive={sensitive} synonyms={{{synonyms}}}"


def _value(value: str | None) -> str:
    return "null" if value is None else value

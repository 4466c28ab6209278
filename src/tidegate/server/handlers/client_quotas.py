"""DescribeClientQuotas (key 48) and AlterClientQuotas (key 49), v0-1. KIP-546.

Translates between messages and `tidegate.quota.QuotaDefinitions`, which holds every rule (B§6.7, 6.8). What an
alteration changes is stored first, then holds, then is answered. Describing needs DESCRIBE_CONFIGS on the cluster,
altering ALTER_CONFIGS, else error 31. Both work in slices: there may be 10,000 alterations
in a request and 200,000 definitions to describe, which become parts of the answer one by one.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from operator import itemgetter
from typing import Any

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.config.values import entity_text
from tidegate.in_slices import map_in_slices, release
from tidegate.quota import Alteration, AlterResult, FilterComponent, QuotaDefinitions, QuotaRecord
from tidegate.quota.admin.keys import ENTITY_TYPES
from tidegate.server.administration.low_quotas import low_quota_warning
from tidegate.server.administration.quota_administration import QuotaAdministration
from tidegate.server.audit import Audit
from tidegate.server.requests.handler import Message, Request, Work
from tidegate.server.requests.late_messages import LateMessages
from tidegate.server.settings.config import ServerConfig

__all__ = [
    "handle_alter_client_quotas",
    "handle_describe_client_quotas",
]

_TAKEN_AT_A_TIME = 100  # results, each made when it is taken where storing failed
_PART = itemgetter("entity_type", "entity_name")
_Entity = Iterable[tuple[str, str | None]]


def handle_describe_client_quotas(definitions: QuotaDefinitions, request: Request) -> Work:
    """Describe quotas from `definitions`."""
    body = yield from request.body_in_slices()
    if not request.authorized(acl.DESCRIBE_CONFIGS, acl.CLUSTER):
        yield from request.release_body(body)
        code = error_codes.CLUSTER_AUTHORIZATION_FAILED
        return request.answer(
            {"throttle_time_ms": 0, "error_code": code, "error_message": None, "entries": None}
        )
    # One component more than there are types repeats one or is of none: the rest changes nothing.
    components = [
        FilterComponent(part["entity_type"], part["match_type"], part["match"])
        for part in body["components"][: len(ENTITY_TYPES) + 1]
    ]
    found = yield from definitions.describe_in_slices(components, strict=body["strict"])
    message = {
        "throttle_time_ms": 0,
        "error_code": found.error_code,
        "error_message": found.error_message or "",
        "entries": None if found.entries is None else LateMessages(found.entries, _described),
    }
    answer = yield from request.answer_in_slices(message)
    yield from request.release_body(body)
    return answer


def handle_alter_client_quotas(
    administration: QuotaAdministration, settings: Callable[[], ServerConfig], request: Request
) -> Work:
    """Alter what `administration` looks after. settings: those of the node, now."""
    body = yield from request.body_in_slices()
    alterations, lists = yield from _alterations(body["entries"])
    yield from request.release_body(body)
    results: Iterable[AlterResult]
    with Audit(request.connection) as audit:
        if request.authorized(acl.ALTER_CONFIGS, acl.CLUSTER):
            results = yield from administration.alter_in_slices(
                alterations, partial(_audit, audit, settings()), validate_only=body["validate_only"]
            )
        else:
            audit.refused("alter", "quota")
            results = map(_refused, alterations)
    altered: list[AlterResult] = []
    for number, result in enumerate(results):
        altered.append(result)
        if number % _TAKEN_AT_A_TIME == 0:
            yield
    del results
    message = {"throttle_time_ms": 0, "entries": LateMessages(altered, _altered)}
    answer = yield from request.answer_in_slices(message)
    while lists:
        yield from release(lists.pop())
        yield
    for result in altered:
        if isinstance(result.entity, list):
            yield from release(result.entity)
        yield
    yield from release(alterations, altered)
    return answer


def _alterations(
    entries: Iterable[Message],
) -> Generator[None, None, tuple[list[Alteration], list[list[Any]]]]:
    """Return what the entries of a request want, and the lists that it is made of."""
    alterations: list[Alteration] = []
    lists: list[list[Any]] = []
    for entry in entries:
        entity: list[tuple[str, str | None]] = yield from map_in_slices(_PART, entry["entity"])
        ops = yield from map_in_slices(_operation, entry["ops"])
        alterations.append(Alteration(entity=entity, ops=ops))
        lists += [entity, ops]
        yield
    return alterations, lists


def _operation(part: Message) -> tuple[str, float | None]:
    return part["key"], None if part["remove"] else part["value"]


def _audit(audit: Audit, config: ServerConfig, record: QuotaRecord, old: float | None) -> None:
    audit.changed("alter", "quota", entity_text(record.entity), key=record.key, old=old, new=record.value)
    warning = low_quota_warning(record, config)
    if warning is not None:
        audit.warn(warning)


def _refused(alteration: Alteration) -> AlterResult:
    return AlterResult(
        entity=alteration.entity,
        error_code=error_codes.CLUSTER_AUTHORIZATION_FAILED,
        error_message=error_codes.TEXTS[error_codes.CLUSTER_AUTHORIZATION_FAILED],
    )


def _described(found: tuple[_Entity, Mapping[str, float]]) -> Message:
    entity, values = found
    return {
        "entity": [_part(part) for part in entity],
        "values": [{"key": key, "value": value} for key, value in values.items()],
    }


def _altered(result: AlterResult) -> Message:
    return {
        "error_code": result.error_code,
        "error_message": result.error_message,
        "entity": LateMessages(result.entity, _part),
    }


def _part(part: tuple[str, str | None]) -> Message:
    return {"entity_type": part[0], "entity_name": part[1]}

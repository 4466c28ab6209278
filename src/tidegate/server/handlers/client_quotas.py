"""DescribeClientQuotas (key 48) and AlterClientQuotas (key 49), v0-1. KIP-546.

Translates between messages and `tidegate.quota.QuotaDefinitions`, which holds every rule (B§6.7, 6.8). What an
alteration changes is stored first, then holds at once, then is answered.
"""

from collections.abc import Callable, Sequence

from tidegate.quota import Alteration, FilterComponent, QuotaDefinitions, QuotaRecord
from tidegate.server.handler import Answer, Handler, Message, Request

__all__ = [
    "ALTER_CLIENT_QUOTAS",
    "DESCRIBE_CLIENT_QUOTAS",
    "alter_client_quotas_handler",
    "describe_client_quotas_handler",
]

DESCRIBE_CLIENT_QUOTAS = 48
ALTER_CLIENT_QUOTAS = 49


def describe_client_quotas_handler(definitions: QuotaDefinitions) -> Handler:
    """Return the handler that answers from `definitions`."""

    def handle(request: Request) -> Answer:
        body = request.body()
        components = [
            FilterComponent(part["entity_type"], part["match_type"], part["match"])
            for part in body["components"]
        ]
        found = definitions.describe(components, strict=body["strict"])
        entries = None
        if found.entries is not None:
            entries = [
                {
                    "entity": _parts(entity),
                    "values": [{"key": key, "value": value} for key, value in values.items()],
                }
                for entity, values in found.entries
            ]
        return request.answer(
            {
                "throttle_time_ms": 0,
                "error_code": found.error_code,
                "error_message": found.error_message if found.error_code else "",
                "entries": entries,
            }
        )

    return handle


def alter_client_quotas_handler(
    definitions: QuotaDefinitions, publish: Callable[[Sequence[QuotaRecord]], None]
) -> Handler:
    """Return the handler that decides with `definitions`; `publish` stores the records and puts them in force."""

    def handle(request: Request) -> Answer:
        body = request.body()
        alterations = [
            Alteration(
                entity=[(part["entity_type"], part["entity_name"]) for part in entry["entity"]],
                ops=[(op["key"], None if op["remove"] else op["value"]) for op in entry["ops"]],
            )
            for entry in body["entries"]
        ]
        outcome = definitions.alter(alterations)
        if outcome.records and not body["validate_only"]:
            publish(outcome.records)
        entries = [
            {
                "error_code": result.error_code,
                "error_message": result.error_message,
                "entity": _parts(result.entity),
            }
            for result in outcome.results
        ]
        return request.answer({"throttle_time_ms": 0, "entries": entries})

    return handle


def _parts(entity: Sequence[tuple[str, str | None]]) -> list[Message]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in entity]

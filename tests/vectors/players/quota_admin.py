"""Family `quota_admin` (B§6.7, 6.8, 10.1): describe and alter over the stored definitions."""

import json
from collections.abc import Iterator

from players._doubles import decode
from players._steps import play_steps
from tidegate.in_slices import run_at_once
from tidegate.quota.admin.definitions import Alteration, FilterComponent, QuotaDefinitions

__all__ = ["play"]

_SORTED_FIELDS = ("results", "records", "state", "entries")


def play(scenario: dict) -> Iterator[tuple[int, object, object]]:
    """Play one scenario from an empty store; lists whose order Kafka leaves open are compared sorted.

    The files list records for `validate_only` too: those that would have been written.
    """
    for index, expected, got in play_steps(_Player(), scenario):
        yield index, _in_order(expected), _in_order(got)


class _Player:
    def __init__(self) -> None:
        self._definitions = QuotaDefinitions()

    def alter(self, alterations: list, validate_only: bool) -> dict:
        wanted = [
            Alteration(
                entity=[(kind, name) for kind, name in one["entity"]],
                ops=[(key, None if value is None else decode(value)) for key, value in one["ops"]],
            )
            for one in alterations
        ]
        outcome = run_at_once(self._definitions.alter_in_slices(wanted, validate_only=validate_only))
        self._definitions.apply(outcome.records)
        records = (
            run_at_once(self._definitions.alter_in_slices(wanted)).records
            if validate_only
            else outcome.records
        )
        return {
            "results": [
                {"entity": one.entity, "error": one.error_code, "message": one.error_message}
                for one in outcome.results
            ],
            "records": [
                {"entity": one.entity, "key": one.key, "value": one.value, "remove": one.value is None}
                for one in records
            ],
            "state": [[entity, dict(self._definitions.values(entity))] for entity in self._definitions],
        }

    def describe(self, components: list, strict: bool) -> dict:
        filters = [FilterComponent(kind, match_type, match) for kind, match_type, match in components]
        answer = run_at_once(self._definitions.describe_in_slices(filters, strict=strict))
        if answer.entries is None:
            return {"error": answer.error_code, "message": answer.error_message}
        return {"entries": [[entity, dict(values)] for entity, values in answer.entries]}


def _in_order(result: dict) -> dict:
    ordered = dict(result)
    for field in _SORTED_FIELDS:
        if field in result:
            ordered[field] = sorted(result[field], key=_sort_key)
    return ordered


def _sort_key(item: object) -> str:
    """Order by entity and key alone: values are doubles in one form or the other."""
    entity, key = (item["entity"], item.get("key")) if isinstance(item, dict) else (item[0], None)
    return json.dumps([entity, key])

"""The filter of DescribeClientQuotas: which entities it matches, and what is wrong with it.

>>> bob = (("client-id", None), ("user", "bob"))
>>> matches(bob, [FilterComponent("user", MATCH_EXACT, "bob"), FilterComponent("client-id", MATCH_SPECIFIED)])
True
>>> filter_error([FilterComponent("group", MATCH_DEFAULT)])
(35, 'Unsupported entity type group')

Follows: Kafka `ClientQuotasImage.describe`, B§6.7.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate import error_codes
from tidegate.quota.admin.keys import ENTITY_TYPES

__all__ = [
    "MATCH_DEFAULT",
    "MATCH_EXACT",
    "MATCH_SPECIFIED",
    "EntityParts",
    "FilterComponent",
    "filter_error",
    "matches",
]

EntityParts = tuple[tuple[str, str | None], ...]
"""An entity as (type, name) pairs sorted by type; the name None is the default entity of that type."""

# The match types of DescribeClientQuotas.
MATCH_EXACT = 0
MATCH_DEFAULT = 1
MATCH_SPECIFIED = 2


@dataclass(frozen=True, slots=True)
class FilterComponent:
    """One component of a describe filter; match types other than the three are answered with an error."""

    entity_type: str
    match_type: int
    match: str | None = None


def filter_error(components: Sequence[FilterComponent]) -> tuple[int, str] | None:
    """Return code and text of the first component that is wrong."""
    seen: set[str] = set()
    for component in components:
        entity_type = component.entity_type
        if entity_type == "":
            return error_codes.INVALID_REQUEST, "Invalid empty entity type."
        if entity_type in seen:
            return error_codes.INVALID_REQUEST, (
                f"Entity type {entity_type} cannot appear more than once in the filter."
            )
        if entity_type not in ENTITY_TYPES:
            return error_codes.UNSUPPORTED_VERSION, f"Unsupported entity type {entity_type}"
        message = _match_error(component)
        if message is not None:
            return error_codes.INVALID_REQUEST, message
        seen.add(entity_type)
    if "ip" in seen and len(seen) > 1:
        return error_codes.INVALID_REQUEST, (
            "Invalid entity filter component combination. IP filter component should not be used with "
            "user or clientId filter component."
        )
    return None


def _match_error(component: FilterComponent) -> str | None:
    match component.match_type, component.match:
        case (0, None):
            return "Request specified MATCH_TYPE_EXACT, but set match string to null."
        case (1, str()):
            return "Request specified MATCH_TYPE_DEFAULT, but also specified a match string."
        case (2, str()):
            return "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string."
        case (0 | 1 | 2, _):
            return None
    return f"Unknown match type {component.match_type}"


def matches(entity: EntityParts, components: Sequence[FilterComponent]) -> bool:
    """Return whether every component is met: a name, the default entity, or any name including the default."""
    parts = dict(entity)
    return all(
        component.entity_type in parts
        and (component.match_type == MATCH_SPECIFIED or parts[component.entity_type] == component.match)
        for component in components
    )

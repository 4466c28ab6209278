"""The describe filter: what it matches, and its first mistake."""

import pytest

from tidegate import error_codes
from tidegate.quota.admin.definition_filter import (
    MATCH_DEFAULT,
    MATCH_EXACT,
    MATCH_SPECIFIED,
    EntityParts,
    FilterComponent,
    filter_error,
    matches,
)

BOB: EntityParts = (("client-id", None), ("user", "bob"))


@pytest.mark.parametrize(
    ("component", "met"),
    [
        (FilterComponent("user", MATCH_EXACT, "bob"), True),
        (FilterComponent("user", MATCH_EXACT, "alice"), False),
        (FilterComponent("user", MATCH_DEFAULT), False),
        (FilterComponent("client-id", MATCH_DEFAULT), True),
        (FilterComponent("client-id", MATCH_SPECIFIED), True),
        (FilterComponent("ip", MATCH_SPECIFIED), False),
    ],
)
def test_component_is_met_by_a_part_of_its_type(component: FilterComponent, met: bool) -> None:
    """A name, the default entity, or any name, which the default is one of."""
    assert matches(BOB, [component]) is met
    assert filter_error([component]) is None


def test_filter_without_components_matches_everything() -> None:
    """Whether that is wanted is up to `strict`."""
    assert matches(BOB, [])
    assert filter_error([]) is None


def test_first_mistake_decides() -> None:
    """Components are checked in order; the combination of types comes last."""
    unknown, empty = FilterComponent("group", 9), FilterComponent("", 9)
    assert filter_error([unknown, empty]) == (
        error_codes.UNSUPPORTED_VERSION,
        "Unsupported entity type group",
    )
    assert filter_error([empty, unknown]) == (error_codes.INVALID_REQUEST, "Invalid empty entity type.")
    ip, user = FilterComponent("ip", MATCH_SPECIFIED), FilterComponent("user", 3)
    assert filter_error([ip, user]) == (error_codes.INVALID_REQUEST, "Unknown match type 3")

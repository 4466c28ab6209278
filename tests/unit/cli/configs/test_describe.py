"""The lines that `tidegate configs --describe` prints, and what it asks for."""

import pytest

from tidegate.cli.configs.describe import quota_filter, quota_line
from tidegate.cli.configs.options import RefusedError
from tidegate.quota.admin.definition_filter import (
    MATCH_DEFAULT,
    MATCH_EXACT,
    MATCH_SPECIFIED,
    FilterComponent,
)

P, C, M, R = "producer_byte_rate", "consumer_byte_rate", "controller_mutation_rate", "request_percentage"


@pytest.mark.parametrize(
    ("given", "order"),
    [
        ([P, C], [C, P]),
        ([R, M], [M, R]),
        ([P, M], [M, P]),
        ([C, R, P], [C, R, P]),
        ([C, M, P], [C, M, P]),
        ([M, P, R], [M, P, R]),
        ([R, M, C, P], [P, C, M, R]),
    ],
)
def test_keys_come_in_the_order_of_kafkas_hash_map(given, order):
    """B§9.2; keys in one place of the table come as the broker answered them."""
    line = quota_line((("ip", "::1"),), dict.fromkeys(given, 1.0))
    assert line == "Quota configs for ip '::1' are " + ", ".join(f"{key}=1.0" for key in order)


def test_names_belong_to_types_by_position():
    """A type without a name matches any."""
    assert quota_filter(("users", "clients", "ips"), ("a", "")) == [
        FilterComponent("user", MATCH_EXACT, "a"),
        FilterComponent("client-id", MATCH_DEFAULT, None),
        FilterComponent("ip", MATCH_SPECIFIED, None),
    ]
    with pytest.raises(RefusedError, match="More entity names specified than entity types"):
        quota_filter(("users",), ("a", "b"))

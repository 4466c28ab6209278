"""Java's string hash and the order of its hash map, on numbers known from Java itself."""

import pytest

from tidegate.quota.admin.java_hash import hash_map_order, string_hash

C, P, M, R = "consumer_byte_rate", "producer_byte_rate", "controller_mutation_rate", "request_percentage"


@pytest.mark.parametrize(
    ("text", "code"),
    [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", 2**31), ("\U0001f600", 1772899)],
)
def test_string_hash_is_javas(text: str, code: int) -> None:
    """Well-known hash codes, the smallest int and a character of two UTF-16 units among them."""
    assert string_hash(text) == code


@pytest.mark.parametrize(
    ("keys", "order"),
    [
        ([P, C], [C, P]),
        ([P, R], [P, R]),
        ([R, C], [C, R]),
        ([P, M], [M, P]),
        ([M, C], [C, M]),
        ([R, M], [M, R]),
        ([R, P, M, C], [P, C, M, R]),
    ],
)
def test_quota_keys_come_in_the_order_of_the_tool(keys: list[str], order: list[str]) -> None:
    """The order in which Kafka's own tool lists them: the map was sized for as many keys."""
    assert hash_map_order(keys, initial_capacity=len(keys)) == order


def test_table_grows_when_three_quarters_full() -> None:
    """Twelve keys fit into sixteen buckets, the thirteenth doubles them."""
    keys = [chr(code) for code in (0x10, 0x00, *range(0x21, 0x2B))]
    assert hash_map_order(keys)[:2] == ["\x10", "\x00"]
    assert hash_map_order([*keys, "+"])[:1] == ["\x00"]

"""Quota groups: names that they may have, and who is in which."""

import pytest

from tidegate.errors import ConfigError
from tidegate.quota.admin.groups import MAX_GROUP_NAME_CHARS, Groups, checked_group_name


def test_a_users_group_counts_before_that_of_its_client_id() -> None:
    """Names are raw, and of one kind each."""
    groups = Groups(members={("user", "a b"): "one", ("client-id", "c"): "two"})
    assert [groups.group_of("a b", "c"), groups.group_of("x", "c"), groups.group_of("c", "a b")] == [
        "one",
        "two",
        None,
    ]


def test_limits_are_by_group_and_key() -> None:
    """None: unlimited."""
    groups = Groups(limits={("one", "producer_byte_rate"): 5.0, ("two", "request_percentage"): 1.0})
    assert groups.limit("one", "producer_byte_rate") == 5.0
    assert groups.limit("one", "request_percentage") is None


@pytest.mark.parametrize(
    "name", ["", "a b", "a:b", "é", "a\n", "x" * (MAX_GROUP_NAME_CHARS + 1), "x" * 32768]
)
def test_names_that_no_setting_can_have_are_refused(name: str) -> None:
    """And those that would fill a line."""
    with pytest.raises(ConfigError, match="the name of a group must be 1 to 100 of A-Z") as caught:
        checked_group_name(name)
    assert len(str(caught.value)) < 300


def test_names_of_settings_are_taken() -> None:
    """Full stops, too."""
    assert checked_group_name("a.B-9_") == "a.B-9_"

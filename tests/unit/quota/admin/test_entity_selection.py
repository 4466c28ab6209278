"""Lists of entities: which clients they name, and what is refused."""

import pytest

from tidegate.errors import ConfigError
from tidegate.quota.admin.entity import DEFAULT, QuotaEntity
from tidegate.quota.admin.entity_selection import (
    EVERYBODY,
    MAX_SELECTED,
    EntitySelection,
    parse_entities,
)


def _selects(text: str, user: str, client_id: str) -> bool:
    return EntitySelection(parse_entities(text, setting="s")).selects(user, client_id)


@pytest.mark.parametrize(
    ("text", "user", "client_id", "expected"),
    [
        ("none", "alice", "c1", False),
        ("", "alice", "c1", False),
        ("all", "alice", "", True),
        ("user=alice", "alice", "", True),
        ("user=alice", "bob", "alice", False),
        ("client-id=c1", "bob", "c1", True),
        ("user=alice,client-id=c1", "alice", "c1", True),
        ("client-id=c1,user=alice", "alice", "c1", True),
        ("user=alice,client-id=c1", "alice", "c2", False),
        ("user=bob; client-id=c9", "alice", "c9", True),
        ("user=<default>", "anybody", "", True),
        ("user=<default>", "", "c1", False),
        ("client-id=<default>", "anybody", "c1", True),
        ("client-id=<default>", "anybody", "", False),
        ("user=<default>,client-id=c1", "anybody", "c1", True),
        ("user=a%3Bb%2C%25", "a;b,%", "", True),
        ("user=a+b", "a+b", "", True),
        ("user=%3Cdefault%3E", "anybody", "", False),
        ("user=%3Cdefault%3E", "<default>", "", True),
    ],
)
def test_clients_are_named(text, user, client_id, expected):
    """By user, client id, both or neither; an empty part is none."""
    assert _selects(text, user, client_id) is expected


def test_entities_are_parsed():
    """In the order of the list; `all` is the entity without parts."""
    assert parse_entities("all", setting="s") == (EVERYBODY,)
    assert parse_entities(" user=a ; client-id=<default>,user=b", setting="s") == (
        QuotaEntity(user="a"),
        QuotaEntity(user="b", client_id=DEFAULT),
    )


@pytest.mark.parametrize(
    "text",
    [
        "alice",
        "user=",
        "user",
        "users=a",
        "user=a,user=b",
        "user=a;",
        ";",
        "all;user=a",
        "user=%zz",
        "ip=1.2.3.4",
    ],
)
def test_what_is_no_list_is_refused(text):
    """With the setting, the value and what was expected."""
    with pytest.raises(ConfigError, match=r"^s has '") as caught:
        parse_entities(text, setting="s")
    assert "expected" in str(caught.value)


@pytest.mark.parametrize("entity", ["user=u{}", "not-an-entity-{}"])
def test_lists_are_bounded(entity):
    """Each entity is a row of the usage record. The number is checked first, which takes no time."""
    text = ";".join(entity.format(number) for number in range(MAX_SELECTED + 1))
    with pytest.raises(ConfigError, match="expected at most 1000"):
        parse_entities(text, setting="s")


def test_entities_come_and_go():
    """A selection of nobody says so."""
    selection = EntitySelection()
    assert not selection.any
    selection.set(QuotaEntity(user="a"), selected=True)
    assert selection.any
    assert selection.selects("a", "c")
    selection.set(QuotaEntity(user="a"), selected=False)
    assert not selection.any
    assert not selection.selects("a", "c")

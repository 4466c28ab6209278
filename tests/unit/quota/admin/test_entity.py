"""Entities, levels and resolution, against a port that goes through the levels one by one."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.oracles.quota_manager import ported_bits, ported_limit, ported_tags

from tidegate.quota.admin.entity import DEFAULT, EntityQuotas, EntityType, Level, QuotaEntity

PARTS = (None, DEFAULT, "alice", "bob", "c1", "")
ENTITIES = [
    QuotaEntity(user=user, client_id=client_id)
    for user, client_id in itertools.product(PARTS, PARTS)
    if (user, client_id) not in ((None, None), (None, ""))  # the latter: a setting of ours, row E4
]
names = st.sampled_from(["alice", "bob", "c1", "c2", ""])


@given(
    st.lists(
        st.tuples(st.sampled_from(ENTITIES), st.one_of(st.none(), st.integers(1, 9).map(float))), max_size=12
    ),
    names,
    names,
)
def test_resolution_equals_going_through_the_levels(changes: list, user: str, client_id: str) -> None:
    """After any changes, levels, tags, entity and bound of any client are those of the port."""
    quotas, ported = EntityQuotas(), {}
    for entity, bound in changes:
        key = (entity.user, entity.client_id)
        if bound is None:
            quotas.remove(entity)
            ported.pop(key, None)
        else:
            quotas.set(entity, bound)
            ported[key] = bound
    assert int(quotas.levels) == ported_bits(ported)
    tags = quotas.tags(user, client_id)
    assert tags == ported_tags(ported, ported_bits(ported), user, client_id)
    assert quotas.bound(tags) == ported_limit(ported, tags)
    match = quotas.match(tags)
    assert (match and match[1]) == ported_limit(ported, tags)
    assert match is None or ported[match[0].user, match[0].client_id] == match[1]
    assert {(entity.user, entity.client_id): bound for entity, bound in quotas} == ported
    assert len(quotas) == len(ported)


@pytest.mark.parametrize(
    ("entity", "level", "has_default", "parts"),
    [
        (QuotaEntity(user="a"), Level.USER, False, ((EntityType.USER, "a"),)),
        (QuotaEntity(client_id="c"), Level.CLIENT_ID, False, ((EntityType.CLIENT_ID, "c"),)),
        (QuotaEntity(user=DEFAULT), Level.USER, True, ((EntityType.DEFAULT_USER, "<default>"),)),
        (
            QuotaEntity(user="<default>", client_id=DEFAULT),
            Level.USER_CLIENT_ID,
            True,
            ((EntityType.USER, "<default>"), (EntityType.DEFAULT_CLIENT_ID, "<default>")),
        ),
    ],
)
def test_parts_level_and_names_of_an_entity(
    entity: QuotaEntity, level: Level, has_default: bool, parts: tuple
) -> None:
    """A user who is called <default> is not the default user."""
    assert (entity.level, entity.has_default, entity.config_entities()) == (level, has_default, parts)


def test_an_entity_prints_the_parts_that_it_uses() -> None:
    """As in logs and error messages."""
    assert repr(QuotaEntity(user="a b", client_id=DEFAULT)) == "QuotaEntity(user='a b', client_id=<default>)"


def test_a_level_is_off_again_when_its_last_quota_goes() -> None:
    """B§3.3: entities are counted per level; setting twice counts once, removing what is not set not at all."""
    quotas = EntityQuotas()
    quotas.set(QuotaEntity(user="a"), 1.0)
    quotas.set(QuotaEntity(user="a"), 2.0)
    quotas.set(QuotaEntity(user="b"), 3.0)
    quotas.remove(QuotaEntity(user="a"))
    quotas.remove(QuotaEntity(user="a"))
    assert quotas.levels is Level.USER
    quotas.remove(QuotaEntity(user="b"))
    assert quotas.levels is Level.NONE


def test_an_empty_client_id_has_the_quota_that_is_for_it_alone() -> None:
    """Nothing but a setting of the node gives it one (row E4); a user's quota goes before."""
    quotas = EntityQuotas()
    quotas.set(QuotaEntity(client_id=DEFAULT), 1.0)
    quotas.set(QuotaEntity(client_id=""), 2.0)
    assert [quotas.bound(quotas.tags("alice", name)) for name in ("", "c1")] == [2.0, 1.0]
    quotas.set(QuotaEntity(user="alice"), 3.0)
    assert quotas.bound(quotas.tags("alice", "")) == 3.0
    assert quotas.bound(quotas.tags("bob", "")) == 2.0


def test_an_empty_client_id_matches_no_client_id_level() -> None:
    """Not even the default one (B§3.4): with (user, default client) only user levels are looked up for it."""
    quotas = EntityQuotas()
    quotas.set(QuotaEntity(client_id=DEFAULT), 1.0)
    assert quotas.bound(quotas.tags("alice", "")) is None
    quotas.set(QuotaEntity(user="alice", client_id=DEFAULT), 2.0)
    assert quotas.tags("alice", "") == ("alice", "")
    assert quotas.bound(("alice", "")) is None

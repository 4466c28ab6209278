"""The two rules that divide shared bounds, held against straightforward models."""

import random

from hypothesis import given
from hypothesis import strategies as st

from tidegate.fair_share import ReclaimableBound, ThresholdBound, address_owner, first_in_rounds, owner_of


def test_each_principal_gets_half_of_what_the_others_left():
    """Principals that take all they may get a half, a quarter, an eighth; each newcomer finds room."""
    bound = ThresholdBound(1024)
    shares = []
    for owner in "abcde":
        while bound.may_add(owner):
            bound.count_use(owner)
        shares.append(bound.used_by(owner))
    assert shares == [512, 256, 128, 64, 32]


def test_a_principal_may_add_again_when_others_leave():
    """The threshold follows what is free now."""
    bound = ThresholdBound(100)
    bound.count_use("a", 50)
    bound.count_use("b", 25)
    bound.remove("a", 50)
    assert (bound.used, bound.may_add("b", 25), bound.may_add("b", 26)) == (25, True, False)


def test_an_owner_without_use_takes_no_memory():
    """A flood of principals that come and go leaves nothing behind."""
    threshold, reclaimable = ThresholdBound(10), ReclaimableBound(10)
    for n in range(10_000):
        threshold.count_use(f"u{n}")
        threshold.remove(f"u{n}")
        reclaimable.add_entry(n, f"u{n}")
        reclaimable.remove(n)
    assert not threshold._used_by
    assert not reclaimable._used_by
    assert len(reclaimable._heap) <= 100


def test_the_largest_holder_loses_its_oldest():
    """A newcomer takes the place of the largest holder's oldest entry, never that of a small one."""
    bound = ReclaimableBound(5)
    for entry, owner in (("a1", "a"), ("b1", "b"), ("a2", "a"), ("a3", "a"), ("b2", "b")):
        bound.add_entry(entry, owner)
    assert not bound.fits()
    bound.touch("a1")
    assert bound.victim("c") == "a2"
    assert bound.victim("a") == "a2"


def test_a_principal_at_the_top_loses_its_own():
    """Of two equal holders the one that adds gives way itself."""
    bound = ReclaimableBound(4)
    for entry, owner in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")):
        bound.add_entry(entry, owner)
    assert bound.victim("b") == "b1"


def test_one_that_asks_for_more_than_all_others_hold_evicts_nobody():
    """An entry larger than what any other principal holds has no victim."""
    bound = ReclaimableBound(100)
    bound.add_entry("a1", "a", 60)
    bound.add_entry("b1", "b", 40)
    assert bound.victim("c", 61) is None
    assert bound.victim("c", 60) == "a1"


def test_equal_holders_make_room_for_a_newcomer():
    """Where each holds one, a newcomer with none takes a place."""
    bound = ReclaimableBound(3)
    for owner in "abc":
        bound.add_entry(owner, owner)
    assert bound.victim("d") in set("abc")


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "resize", "touch"]),
        st.integers(0, 20),
        st.sampled_from("abcd"),
        st.integers(0, 50),
    ),
    max_size=200,
)


@given(_STEPS)
def test_victims_are_those_of_a_model(steps):
    """After any steps, use and victim equal those of a list that is searched from end to end."""
    bound = ReclaimableBound(100)
    model: list[list] = []  # [entry, owner, size], oldest first
    for what, entry, owner, size in steps:
        row = next((row for row in model if row[0] == entry), None)
        if what == "add" and row is None:
            bound.add_entry(entry, owner, size)
            model.append([entry, owner, size])
        elif what == "remove":
            bound.remove(entry)
            model = [row for row in model if row[0] != entry]
        elif what == "resize" and row is not None:
            bound.resize(entry, size)
            row[2] = size
        elif what == "touch" and row is not None:
            bound.touch(entry)
            model.remove(row)
            model.append(row)
        used = {name: sum(row[2] for row in model if row[1] == name) for _, name, _ in model}
        assert bound.used == sum(used.values())
        if model:
            largest = bound.largest()
            assert used[largest] == max(used.values())
            assert bound.victim("z", 0) == next(row[0] for row in model if row[1] == largest)


def test_many_steps_keep_the_heap_small():
    """Entries that grow and shrink leave no more than a few stale rows for each principal."""
    bound = ReclaimableBound(10**9)
    chance = random.Random(1)
    for n in range(20):
        bound.add_entry(n, f"u{n}", 1)
    for _ in range(20_000):
        bound.resize(chance.randrange(20), chance.randrange(1000))
    assert len(bound._heap) <= 64 + 4 * 20 + 1


def test_owners_of_connections():
    """A user is a principal wherever it connects from; without one it is the address, IPv6 by /64."""
    assert owner_of("alice", "10.0.0.1") == owner_of("alice", "10.0.0.2")
    assert owner_of("ANONYMOUS", "10.0.0.1") != owner_of("ANONYMOUS", "10.0.0.2")
    assert owner_of("ANONYMOUS", "2001:db8::1") == owner_of("ANONYMOUS", "2001:db8::ffff")
    assert address_owner("fe80::1%eth0") == "fe80::/64"
    assert address_owner("localhost") == "localhost"


@given(st.lists(st.sampled_from("abcd"), max_size=40), st.integers(1, 10))
def test_first_are_one_of_each_principal_in_rounds(owners: list[str], most: int) -> None:
    """The chosen entries of each principal are its first ones, and their numbers differ by one at most."""
    entries = list(enumerate(owners))
    first = first_in_rounds(entries, owners, most)
    assert len(first) <= most
    assert len(set(first)) == len(first)
    for owner in set(owners):
        own, chosen = ([entry for entry in some if entry[1] == owner] for some in (entries, first))
        assert chosen == own[: len(chosen)]
        if len(chosen) < len(own):
            assert all(len([e for e in first if e[1] == other]) <= len(chosen) + 1 for other in set(owners))
    if len(set(owners)) < 2:
        assert not first
    elif most >= len(set(owners)):
        assert {owner for _, owner in first} == set(owners)


def test_one_entry_goes_before_those_of_many_large_owners() -> None:
    """The single entry of an owner is chosen first, although 100 owners with many entries stand before it."""
    owners = [f"large-{number % 100}" for number in range(10_000)] + ["small"]
    assert first_in_rounds(range(10_001), owners, 64)[0] == 10_000

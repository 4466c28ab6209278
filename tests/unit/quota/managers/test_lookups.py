"""What a manager remembers of its clients."""

from tidegate.quota.managers.lookups import MAX_CACHED_BYTES, MAX_CACHED_NAME, Lookups


def test_all_is_forgotten_at_once_and_the_tables_stay_the_same() -> None:
    """Decisions hold the table of sensors: it is emptied, not replaced."""
    lookups: Lookups[int] = Lookups()
    sensors = lookups.sensors
    lookups.remember("alice", "c1", 1)
    lookups.remember("alice", "c2", 2)
    lookups.remember_max_value("alice", "c1", 10.0)
    assert (sensors, lookups.max_values) == ({"alice": {"c1": 1, "c2": 2}}, {("alice", "c1"): 10.0})
    lookups.forget()
    assert lookups.sensors is sensors
    assert (sensors, lookups.max_values, lookups.version) == ({}, {}, 1)


def test_too_long_a_name_is_not_remembered() -> None:
    """Neither a user nor a client id, and it counts for nothing."""
    lookups: Lookups[int] = Lookups()
    longest, longer = "x" * MAX_CACHED_NAME, "x" * (MAX_CACHED_NAME + 1)
    for user, client_id in ((longest, longest), (longer, "c1"), ("alice", longer)):
        lookups.remember(user, client_id, 1)
        lookups.remember_max_value(user, client_id, 1.0)
    assert lookups.sensors == {longest: {longest: 1}}
    assert list(lookups.max_values) == [(longest, longest)]


def test_what_is_over_the_bound_begins_anew() -> None:
    """When it is full all is forgotten, and what comes next is remembered; sensors and values share the room."""
    lookups: Lookups[int] = Lookups()
    most = MAX_CACHED_BYTES // 200
    for number in range(most):
        lookups.remember("alice", str(number), number)
        lookups.remember_max_value("alice", str(number), 1.0)
    assert lookups.version >= 1
    assert 0 < len(lookups.sensors["alice"]) + len(lookups.max_values) < most
    assert lookups.sensors["alice"][str(most - 1)] == most - 1

"""What a manager remembers of its clients."""

from tidegate.quota.managers.lookups import MAX_CACHED_BYTES, MAX_CACHED_NAME, Lookups
from tidegate.quota.measure.sensors import RateSensor
from tidegate.quota.measure.throttle import MAX_INT64
from tidegate.quota.measure.window import QuotaWindow


def _sensor() -> RateSensor:
    return RateSensor("s", {}, window=QuotaWindow(), bound=1.0, cap_ms=MAX_INT64, now_ms=0)


def test_all_is_forgotten_at_once_and_the_tables_stay_the_same() -> None:
    """Decisions hold the tables of sensors: they are emptied, not replaced."""
    lookups: Lookups[RateSensor] = Lookups()
    one, two = _sensor(), _sensor()
    sensors, nearest = lookups.sensors, lookups.nearest
    lookups.remember("alice", "c1", one)
    lookups.remember("alice", "c2", two)
    lookups.remember_max_value("alice", "c1", 10.0)
    assert (sensors, nearest) == ({"alice": {"c1": one, "c2": two}}, {"c1": one, "c2": two})
    assert lookups.max_values == {("alice", "c1"): 10.0}
    lookups.forget()
    assert lookups.sensors is sensors
    assert lookups.nearest is nearest
    assert (sensors, nearest, lookups.max_values) == ({}, {}, {})


def test_the_nearest_is_of_the_user_it_was_found_for() -> None:
    """Whoever else has the same client id, or shares the sensor, is found by both names; also after a change."""
    lookups: Lookups[RateSensor] = Lookups()
    own, shared = _sensor(), _sensor()
    for _ in range(2):
        for user, client_id, sensor in (
            ("alice", "c1", own),
            ("bob", "c1", shared),
            ("carol", "c2", shared),
            ("carol", "c3", shared),
            ("bob", "c3", shared),
        ):
            lookups.remember(user, client_id, sensor)
            assert lookups.sensors[user][client_id] is sensor
        assert lookups.nearest == {"c1": own, "c3": shared}
        assert (own.found_for, shared.found_for) == ("alice", "bob")
        lookups.forget()


def test_too_long_a_name_is_not_remembered() -> None:
    """Neither a user nor a client id, and it counts for nothing."""
    lookups: Lookups[RateSensor] = Lookups()
    longest, longer = "x" * MAX_CACHED_NAME, "x" * (MAX_CACHED_NAME + 1)
    for user, client_id in ((longest, longest), (longer, "c1"), ("alice", longer)):
        lookups.remember(user, client_id, _sensor())
        lookups.remember_max_value(user, client_id, 1.0)
    assert list(lookups.nearest) == list(lookups.sensors) == list(lookups.sensors[longest]) == [longest]
    assert list(lookups.max_values) == [(longest, longest)]


def test_what_is_over_the_bound_begins_anew() -> None:
    """When it is full all is forgotten, and what comes next is remembered; sensors and values share the room."""
    lookups: Lookups[RateSensor] = Lookups()
    most = MAX_CACHED_BYTES // 300
    sensor = _sensor()
    for number in range(most):
        lookups.remember("alice", str(number), sensor)
        lookups.remember_max_value("alice", str(number), 1.0)
    assert 0 < len(lookups.sensors["alice"]) + len(lookups.max_values) < most
    assert lookups.sensors["alice"][str(most - 1)] is sensor

"""The table of sensors: bounded, swept, and which go first."""

import math

from tidegate.quota.sensors import (
    DROPPED_SHARE,
    EXPIRY_MS,
    NAME_PER_SENSOR,
    RateSensor,
    SensorTable,
    ThrottleSensor,
)
from tidegate.quota.throttle import MAX_INT64
from tidegate.quota.window import QuotaWindow

IN_USE_MS = 12_000


def _sensor(name: str, now_ms: int = 0) -> RateSensor:
    return RateSensor(name, {}, window=QuotaWindow(), bound=1.0, cap_ms=MAX_INT64, now_ms=now_ms)


def _table(max_sensors: int) -> SensorTable[RateSensor]:
    return SensorTable(in_use_ms=IN_USE_MS, max_sensors=max_sensors)


def test_sensors_expire_after_more_than_an_hour_without_a_record() -> None:
    """Strictly more (B§1.2); the throttle sensor on its own, from when it was made if it never was used."""
    table = _table(10)
    table.add(_sensor("used"), 0)
    table.add(_sensor("idle"), 0)
    table.add_throttle(ThrottleSensor("throttle", {}, now_ms=0))
    used = table.get("used")
    assert used is not None
    used.record(1.0, 5)
    assert table.expire(EXPIRY_MS) == []
    assert table.expire(EXPIRY_MS + 1) == ["idle", "throttle"]
    assert table.expire(EXPIRY_MS + 6) == ["used"]
    assert (len(table), list(table.throttles())) == (0, [])


def test_a_flood_of_names_keeps_the_table_bounded() -> None:
    """Whatever is added, no more than the bound is kept, and every drop is counted."""
    table = _table(1000)
    for number in range(10_000):
        table.add(_sensor(f"client-{number}", now_ms=number), number)
        assert len(table) <= 1000
    assert table.dropped == 10_000 - len(table)


def test_those_in_use_outlive_a_flood() -> None:
    """A client that keeps sending is not dropped for names that come once."""
    table = _table(100)
    steady = _sensor("steady")
    table.add(steady, 0)
    for number in range(5_000):
        steady.record(1.0, number)
        table.add(_sensor(f"once-{number}", now_ms=number), number)
    assert table.get("steady") is steady


def test_dropping_is_told_and_counted_apart_when_in_use() -> None:
    """Only a sensor that was used within its windows loses anything by going."""
    table = _table(2)
    assert not table.add(_sensor("a", now_ms=0), 0)
    assert not table.add(_sensor("b", now_ms=0), 0)
    assert table.add(_sensor("c", now_ms=50_000), 50_000)
    assert (table.dropped, table.dropped_in_use) == (1, 0)
    assert table.add(_sensor("d", now_ms=50_001), 50_001)
    assert table.add(_sensor("e", now_ms=50_002), 50_002)
    assert (table.dropped, table.dropped_in_use) == (3, 1)


def test_a_long_name_counts_for_several() -> None:
    """So that long client ids take no more memory than short ones; one that is too long alone still has its place."""
    table = _table(4)
    for number in range(4):
        table.add(_sensor(f"{number}"), 0)
    table.add(_sensor("x" * 3 * NAME_PER_SENSOR), 0)
    assert [sensor.name for sensor in table] == ["x" * 3 * NAME_PER_SENSOR]
    table.add(_sensor("y" * 100 * NAME_PER_SENSOR), 0)
    assert len(table) == 1


def test_a_full_table_makes_room_for_several_at_once() -> None:
    """Callers forget their lookups at each drop, so drops come together."""
    table = _table(2 * DROPPED_SHARE)
    drops = sum(table.add(_sensor(f"{number}"), 0) for number in range(4 * DROPPED_SHARE))
    assert table.dropped == 4 * DROPPED_SHARE - len(table)
    assert drops < table.dropped


def test_throttle_sensors_are_bounded_too() -> None:
    """Those that outlived their quota sensor cannot pile up."""
    table = _table(3)
    for number in range(50):
        table.add_throttle(ThrottleSensor(f"{number}", {}, now_ms=0))
    assert [sensor.name for sensor in table.throttles()] == [f"{number}" for number in range(44, 50)]


def test_a_throttle_sensor_averages_and_forgets() -> None:
    """NaN before the first throttle and a minute after the last (B§3.5); peeking changes nothing."""
    sensor = ThrottleSensor("t", {}, now_ms=0)
    assert math.isnan(sensor.measure(0))
    assert math.isnan(sensor.peek(0))
    sensor.record(100, 1000)
    sensor.record(200, 1000)
    assert sensor.peek(60_999) == sensor.measure(60_999) == 150.0
    assert math.isnan(sensor.peek(61_000))
    assert sensor.last_record_ms() == 1000


def test_a_sensor_that_was_only_measured_counts_from_when_it_was_made() -> None:
    """Reading is no use (B§1.2)."""
    sensor = _sensor("a", now_ms=7)
    sensor.measure(99_000)
    assert sensor.last_record_ms() == 7
    sensor.record(1.0, 3)
    assert sensor.last_record_ms() == 3

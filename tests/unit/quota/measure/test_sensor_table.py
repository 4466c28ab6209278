"""The table of sensors: bounded, swept, and which go first."""

import math
import tracemalloc
from pathlib import Path

import pytest
from tests.vectors.players._sweeping import expire_table

import tidegate.quota
from tidegate.quota.measure.sensor_table import (
    DROPPED_SHARE,
    SWEPT_AT_A_TIME,
    THROTTLE_BYTES,
    SensorTable,
    sensor_bytes,
    text_bytes,
)
from tidegate.quota.measure.sensors import EXPIRY_MS, RateSensor, ThrottleSensor
from tidegate.quota.measure.throttle import MAX_INT64
from tidegate.quota.measure.window import QuotaWindow

WINDOW = QuotaWindow()


def _sensor(name: str, now_ms: int = 0) -> RateSensor:
    return RateSensor(name, {}, window=WINDOW, bound=1.0, cap_ms=MAX_INT64, now_ms=now_ms)


def _table(max_sensors: int) -> SensorTable[RateSensor]:
    """Return a table with room for so many sensors whose names have up to 16 letters."""
    return SensorTable(window=WINDOW, max_bytes=max_sensors * sensor_bytes(_sensor("x" * 16), WINDOW))


def test_sensors_expire_after_more_than_an_hour_without_a_record() -> None:
    """Strictly more (B§1.2); the throttle sensor on its own, from when it was made if it never was used."""
    table = _table(10)
    table.add_sensor(_sensor("used"), 0)
    table.add_sensor(_sensor("idle"), 0)
    table.add_throttle("used", ThrottleSensor({}, now_ms=0), 0)
    used = table.get("used")
    assert used is not None
    used.record(1.0, 5)
    assert expire_table(table, EXPIRY_MS) == ([], [])
    assert expire_table(table, EXPIRY_MS + 1) == (["idle"], ["used"])
    assert expire_table(table, EXPIRY_MS + 6) == (["used"], [])
    assert (len(table), list(table.throttles()), table.held_bytes) == (0, [], 0)


def test_from_the_first_slice_of_a_sweep_on_all_that_were_idle_are_gone() -> None:
    """Whoever looks one up meanwhile finds none and makes a new one, which the rest of the sweep leaves alone."""
    table = _table(3000)
    names = [f"{number}" for number in range(3 * SWEPT_AT_A_TIME)]
    for name in names:
        table.add_sensor(_sensor(name), 0)
        table.add_throttle(name, ThrottleSensor({}, now_ms=0), 0)
    sweep = table.expire_in_slices(EXPIRY_MS + 1)
    next(sweep)
    assert len(table) == 2 * SWEPT_AT_A_TIME
    assert (list(table), list(table.throttles())) == ([], [])
    assert table.get(names[-1]) is table.throttle(names[-1]) is None
    new = _sensor(names[-1], now_ms=EXPIRY_MS + 2)
    table.add_sensor(new, EXPIRY_MS + 2)
    assert len(list(sweep)) == 2
    assert (list(table), table.get(names[-1])) == ([new], new)


def test_a_sweep_that_is_dropped_leaves_the_table_as_it_is() -> None:
    """As when the node closes: what was not come to is there, and the next sweep may begin."""
    table = _table(3000)
    for number in range(2 * SWEPT_AT_A_TIME):
        table.add_sensor(_sensor(f"{number}"), 0)
    sweep = table.expire_in_slices(EXPIRY_MS + 1)
    next(sweep)
    sweep.close()
    assert len(list(table)) == SWEPT_AT_A_TIME
    assert len(expire_table(table, EXPIRY_MS + 1)[0]) == SWEPT_AT_A_TIME


def test_a_flood_of_names_keeps_the_table_bounded() -> None:
    """Whatever is added, no more than the bound is kept, and every drop is counted."""
    table = _table(1000)
    for number in range(10_000):
        table.add_sensor(_sensor(f"client-{number:09}", now_ms=number), number)
        assert len(table) <= 1000
    assert table.dropped == 10_000 - len(table)


def test_those_in_use_outlive_a_flood() -> None:
    """A client that keeps sending is not dropped for names that come once."""
    table = _table(100)
    steady = _sensor("steady")
    table.add_sensor(steady, 0)
    for number in range(5_000):
        steady.record(1.0, number)
        table.add_sensor(_sensor(f"once-{number}", now_ms=number), number)
    assert table.get("steady") is steady


def test_dropping_is_told_and_counted_apart_when_in_use() -> None:
    """Only a sensor that was used within its windows loses anything by going."""
    table = _table(2)
    assert not table.add_sensor(_sensor("a", now_ms=0), 0)
    assert not table.add_sensor(_sensor("b", now_ms=0), 0)
    assert table.add_sensor(_sensor("c", now_ms=50_000), 50_000)
    assert (table.dropped, table.dropped_in_use) == (1, 0)
    assert table.add_sensor(_sensor("d", now_ms=50_001), 50_001)
    assert table.add_sensor(_sensor("e", now_ms=50_002), 50_002)
    assert (table.dropped, table.dropped_in_use) == (3, 1)


def test_names_count_by_their_length() -> None:
    """So that long client ids take no more memory than short ones; one that is too long alone still has its place."""
    table = _table(4)
    for number in range(4):
        table.add_sensor(_sensor(f"{number}"), 0)
    table.add_sensor(_sensor("x" * 7000), 0)
    assert [sensor.name for sensor in table] == ["x" * 7000]
    table.add_sensor(_sensor("y" * 100_000), 0)
    assert [sensor.name for sensor in table] == ["y" * 100_000]
    assert text_bytes("y" * 1000) < 1100 < 4000 < text_bytes("é" * 1000)


def measured_sensors(samples: int) -> tuple[int, int]:
    """Return the bytes that a table of used sensors counts, and those that the engine has taken for it.

    Threads of other tests may take memory meanwhile, elsewhere.
    """
    window = QuotaWindow(samples=samples, window_ms=1000)
    tracemalloc.start()
    table: SensorTable[RateSensor] = SensorTable(window=window)
    for number in range(84):
        client_id = f"{number}" + "é" * (number % 7) * 50
        tags = {"user": "", "client-id": client_id}
        name = f"Produce-:{client_id}"
        sensor = RateSensor(name, tags, window=window, bound=1e3, cap_ms=MAX_INT64, now_ms=10**12 + number)
        table.add_sensor(sensor, 0)
        throttle = ThrottleSensor(tags, now_ms=10**12 + number)
        table.add_throttle(name, throttle, 0)
        for step in range(samples + 1):
            sensor.decide(500.5 + number + step, 10**12 + number + 1001 * step)
        for step in range(3):
            throttle.record(1000 + number, 10**12 + number + 30_001 * step)
    taken = tracemalloc.take_snapshot().filter_traces(
        [
            tracemalloc.Filter(True, f"{Path(tidegate.quota.__file__).parent}/*"),
            tracemalloc.Filter(True, __file__),
        ]
    )
    used_bytes = sum(trace.size for trace in taken.traces)
    tracemalloc.stop()
    return table.held_bytes, used_bytes


@pytest.mark.parametrize("samples", [1, 11, 300])
def test_what_is_counted_is_no_less_than_the_memory_it_takes(samples: int) -> None:
    """For windows of one sample and of many, and names of many letters, with throttle sensors that were used."""
    held_bytes, used_bytes = measured_sensors(samples)
    assert 0.4 * held_bytes < used_bytes < held_bytes


def test_a_full_table_makes_room_for_several_at_once() -> None:
    """Callers forget their lookups at each drop, so drops come together."""
    table = _table(2 * DROPPED_SHARE)
    drops = sum(table.add_sensor(_sensor(f"{number}"), 0) for number in range(4 * DROPPED_SHARE))
    assert table.dropped == 4 * DROPPED_SHARE - len(table)
    assert drops < table.dropped


def test_a_throttle_sensor_counts_and_goes_with_its_quota_sensor() -> None:
    """Those of a flood cannot pile up, and what they take is given back."""
    table = _table(10)
    for number in range(50):
        name = f"{number}"
        table.add_sensor(_sensor(name, now_ms=number), number)
        table.add_throttle(name, ThrottleSensor({}, now_ms=number), number)
    left = [sensor.name for sensor in table]
    assert 5 < len(left) < 10
    assert [table.throttle(f"{number}") is not None for number in range(50)] == [
        f"{number}" in left for number in range(50)
    ]
    each_bytes = sensor_bytes(_sensor("10"), WINDOW) + THROTTLE_BYTES + text_bytes("10")
    assert table.held_bytes == len(left) * each_bytes


def test_throttle_sensors_that_outlived_their_quota_sensor_go_first() -> None:
    """They are kept while they are not idle themselves (B§3.5), but no sensor in use has to go for them."""
    table = _table(10)
    late = ThrottleSensor({}, now_ms=0)
    for name in ("a", "b"):
        table.add_sensor(_sensor(name), 0)
    table.add_throttle("a", late, 0)
    table.add_throttle("b", ThrottleSensor({}, now_ms=0), 0)
    late.record(100, 9)
    assert expire_table(table, EXPIRY_MS + 1) == (["a", "b"], ["b"])
    assert (len(table), table.throttle("a")) == (0, late)
    for number in range(9):
        table.add_sensor(_sensor(f"{number:016}"), 0)
    assert table.throttle("a") is late
    table.add_sensor(_sensor(f"{9:016}"), 0)
    assert (len(table), table.throttle("a"), table.dropped) == (10, None, 0)


def test_a_throttle_sensor_averages_and_forgets() -> None:
    """NaN before the first throttle and a minute after the last (B§3.5); peeking changes nothing."""
    sensor = ThrottleSensor({}, now_ms=0)
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

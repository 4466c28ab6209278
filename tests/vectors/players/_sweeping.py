"""Sweeps of idle sensors in one step, which report what they removed. A broker sweeps in slices."""

from collections.abc import Iterable
from typing import Any

from tidegate.quota.managers.sensor_manager import SensorManager
from tidegate.quota.measure.sensor_table import SensorTable

__all__ = ["expire_manager", "expire_table", "throttle_sensor_name"]


def throttle_sensor_name(manager: SensorManager[Any], name: str) -> str:
    """Return Kafka's name of the throttle sensor that belongs to the quota sensor called `name`."""
    prefix = manager.quota_type.value
    return f"{prefix}ThrottleTime{name[len(prefix) :]}"


def expire_table(table: SensorTable[Any], now_ms: int) -> tuple[list[str], list[str]]:
    """Remove idle sensors; return the names of the quota sensors that went, and of those whose throttle sensor went."""
    return _removed(table, table.expire_in_slices(now_ms))


def expire_manager(manager: SensorManager[Any], now_ms: int) -> list[str]:
    """Remove a manager's idle sensors; return the names of all sensors that went."""
    sensors, throttles = _removed(manager.sensors, manager.expire_in_slices(now_ms))
    return [*sensors, *(throttle_sensor_name(manager, name) for name in throttles)]


def _removed(table: SensorTable[Any], sweep: Iterable[None]) -> tuple[list[str], list[str]]:
    sensors, throttles = table.names(), [name for name, _ in table.throttles()]
    for _ in sweep:
        pass
    left, throttles_left = set(table.names()), {name for name, _ in table.throttles()}
    return (
        [name for name in sensors if name not in left],
        [name for name in throttles if name not in throttles_left],
    )

"""Family `client_quota_manager` (B§2, 3): one produce or fetch manager on a clock."""

from collections.abc import Iterator

from players._doubles import decode
from players._managers import ManagerPlayer, charge, window_of
from players._sweeping import expire_manager, throttle_sensor_name
from tidegate.quota import ClientQuotaManager, QuotaType

__all__ = ["play"]


def play(scenario: dict) -> Iterator[tuple[int, object, object]]:
    """Play one scenario with a new manager."""
    return _Player(**scenario["config"]).play(scenario)


class _Player(ManagerPlayer):
    manager: ClientQuotaManager

    def __init__(self, type: str, samples: int, window_s: int, start_ms: int) -> None:
        super().__init__(ClientQuotaManager(QuotaType(type), window_of(samples, window_s)), start_ms)

    def record(self, user: str, client_id: str, value: list, t: int) -> dict:
        self.manager.sensor(user, client_id, self.now_ms)
        return {"throttle_ms": charge(self.manager, user, client_id, decode(value), t)}

    def maybe_record(self, user: str, client_id: str, value: list, t: int) -> dict:
        if self.manager.enabled:
            self.manager.sensor(user, client_id, self.now_ms)
        return {"throttle_ms": self.manager.record(user, client_id, decode(value), t)}

    def record_no_throttle(self, user: str, client_id: str, value: list) -> None:
        self.manager.record_unchecked(user, client_id, decode(value), self.now_ms)

    def unrecord(self, user: str, client_id: str, value: list, t: int) -> None:
        self.manager.sensor(user, client_id, self.now_ms)
        self.manager.unrecord(user, client_id, decode(value), t)

    def max_value_in_quota_window(self, user: str, client_id: str) -> dict:
        return {
            "value": self.manager.max_value_in_window(user, client_id, lambda: self.now_ms, makes_sensor=True)
        }

    def sensors(self, user: str, client_id: str) -> dict:
        sensor = self.manager.sensor(user, client_id, self.now_ms)
        return {
            "tags": sensor.tags,
            "quota_sensor": sensor.name,
            "throttle_sensor": throttle_sensor_name(self.manager, sensor.name),
        }

    def expire_sensors(self) -> dict:
        return {"removed": sorted(expire_manager(self.manager, self.now_ms))}

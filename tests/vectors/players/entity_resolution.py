"""Family `entity_resolution` (B§3.3, 3.4): which quota holds for a client, at every subset of the eight levels."""

from collections.abc import Iterator

from players._doubles import decode
from players._managers import entity_of, window_of
from players._steps import play_steps
from players._sweeping import throttle_sensor_name
from tidegate.quota import ClientQuotaManager, QuotaType

__all__ = ["play"]


def play(scenario: dict) -> Iterator[tuple[int, object, object]]:
    """Play one scenario with a new manager."""
    return play_steps(_Player(**scenario["config"]), scenario)


class _Player:
    def __init__(self, type: str, samples: int, window_s: int, start_ms: int) -> None:
        self._manager = ClientQuotaManager(QuotaType(type), window_of(samples, window_s))

    def update_quota(self, entity: dict, quota: list | None) -> dict:
        self._manager.update_quota(entity_of(entity), None if quota is None else decode(quota))
        return {"types_enabled": int(self._manager.levels)}

    def resolve(self, user: str, client_id: str) -> dict:
        name = self._manager.sensor_name(user, client_id)
        return {
            "tags": self._manager.tags(user, client_id),
            "bound": self._manager.bound(user, client_id),
            "quota_sensor": name,
            "throttle_sensor": throttle_sensor_name(self._manager, name),
        }

"""What a quota manager has measured of a client, read without any effect."""

from tidegate.quota import ClientQuotaManager, MutationQuotaManager

__all__ = ["peek"]


def peek(manager: ClientQuotaManager | MutationQuotaManager, user: str, client_id: str, now_ms: int) -> float:
    """Return a client's rate per second, 0.0 if it has none; of mutations the tokens of its bucket."""
    if isinstance(manager, ClientQuotaManager):
        sensor = manager.sensors.get(manager.sensor_name(user, client_id))
        return 0.0 if sensor is None else sensor.peek(now_ms)
    mutations = manager.existing_sensor(user, client_id)
    assert mutations is not None
    return mutations.bucket.peek(now_ms)

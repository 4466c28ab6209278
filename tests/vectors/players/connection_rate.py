"""Family `connection_rate` (B§6.9): connections per second of broker, listeners and addresses, and their counts."""

from collections.abc import Iterator, Mapping

from players._steps import play_steps
from tidegate.errors import ConfigError
from tidegate.quota.connections.connection_quotas import (
    AdmissionOutcome,
    ConnectionCountError,
    ConnectionQuotas,
)
from tidegate.quota.connections.limits import (
    ConnectionLimits,
    ListenerLimits,
    host_address,
    parse_listener_limit,
    parse_per_ip_overrides,
)
from tidegate.quota.measure.rate import SampledRate
from tidegate.quota.measure.stats import Avg

__all__ = ["play"]

_RATE = "max.connection.creation.rate"
_MAX = "max.connections"


def play(scenario: dict) -> Iterator[tuple[int, object, object]]:
    """Play one scenario; metrics are read after the steps whose result lists them."""
    yield from _Player(scenario["config"]).play(scenario)


class _Player:
    def __init__(self, config: dict) -> None:
        self._now_ms = config["start_ms"]
        self._limits = _broker_limits(config["broker_config"])
        self._quotas = ConnectionQuotas(
            self._limits,
            samples=config["samples"],
            window_ms=config["window_s"] * 1000,
            inter_broker_listener=config["inter_broker_listener"],
        )
        for name in config["listeners"]:
            self._quotas.add_listener(name, _listener_limits(name, config["broker_config"]))

    def play(self, scenario: dict) -> Iterator[tuple[int, object, object]]:
        for index, expected, got in play_steps(self, scenario):
            if "metrics" in expected:
                got["metrics"] = self.metrics()
            yield index, expected, got

    def scrape(self, ahead_ms: int) -> None:
        """Read all metrics, as they are in so many ms."""
        list(self._quotas.metrics(self._now_ms + ahead_ms))

    def advance(self, ms: int) -> None:
        self._now_ms += ms

    def set_ip_rate(self, ip: str | None, rate: int | None) -> dict:
        self._quotas.set_ip_rate(ip, rate)
        return self._bounds()

    def set_broker_rate(self, rate: int) -> dict:
        self._quotas.update_limits(ConnectionLimits(max_connection_creation_rate=rate))
        return self._bounds()

    def set_listener_config(self, listener: str, **config: int) -> dict:
        limits = ListenerLimits(
            max_connections=config.get(_MAX), max_connection_creation_rate=config.get(_RATE)
        )
        self._quotas.add_listener(listener, limits)
        return self._bounds()

    def validate_listener_config(self, listener: str, key: str, value: str) -> dict:
        try:
            parse_listener_limit(key, value)
        except ConfigError as error:
            message = str(error)
            kind = "ConfigException" if message.startswith("Invalid") else "NumberFormatException"
            return {"ok": False, "error": kind, "message": message}
        return {"ok": True}

    def accept(self, listener: str, ip: str) -> dict:
        assert self._quotas.record_arrival(listener, now_ms=self._now_ms) == 0
        assert self._quotas.slot_available(listener)
        admission = self._quotas.admit(listener, ip, now_ms=self._now_ms)
        got: dict = {
            "result": admission.outcome.value,
            "ip_count": self._quotas._counts.get(host_address(ip), 0),
        }
        if admission.outcome is AdmissionOutcome.THROTTLED:
            got |= {
                "throttle_ms": admission.throttle_ms,
                "start_ms": admission.end_ms - admission.throttle_ms,
                "message": admission.message,
            }
        elif admission.outcome is AdmissionOutcome.TOO_MANY_CONNECTIONS:
            got |= {"max": admission.maximum, "message": admission.message}
        return got

    def close(self, listener: str, ip: str) -> dict:
        try:
            self._quotas.release(listener, ip)
        except ConnectionCountError as error:
            return {"error": "IllegalArgumentException", "message": str(error)}
        return {"ip_count": self._quotas._counts.get(host_address(ip), 0)}

    def listener_arrival(self, listener: str) -> dict:
        return {"throttle_ms": self._quotas.record_arrival(listener, now_ms=self._now_ms)}

    def slots(self, listener: str) -> dict:
        closes = self._quotas.excess() > 0 and not self._quotas.is_protected(listener)
        return {"slot_available": self._quotas.slot_available(listener), "max_connections_exceeded": closes}

    def ip_limit(self, ip: str) -> dict:
        return {"rate": self._quotas.ip_limit(host_address(ip))}

    def metrics(self) -> list:
        return [[name, tags, stat.measure(self._now_ms)] for name, tags, stat in self._sorted_stats()]

    def _bounds(self) -> dict:
        metrics = self._quotas.metrics(self._now_ms)
        rates = [one for one in metrics if one.bound is not None]
        rates.sort(key=lambda one: (one.name, sorted(one.tags.items())))
        return {"bounds": [[one.name, one.tags, one.bound] for one in rates]}

    def _sorted_stats(self) -> list[tuple[str, Mapping[str, str], SampledRate | Avg]]:
        return sorted(self._quotas.stats(), key=lambda one: (one[0], sorted(one[1].items())))


def _broker_limits(config: dict) -> ConnectionLimits:
    fields = {
        "max_connections": _MAX,
        "max_connection_creation_rate": _RATE,
        "max_connections_per_ip": "max.connections.per.ip",
    }
    return ConnectionLimits(
        **{field: int(config[key]) for field, key in fields.items() if key in config},
        max_connections_per_ip_overrides=parse_per_ip_overrides(
            config.get("max.connections.per.ip.overrides", "")
        ),
    )


def _listener_limits(name: str, config: dict) -> ListenerLimits:
    own = {key: config.get(f"listener.name.{name.lower()}.{key}") for key in (_MAX, _RATE)}
    limits = {key: None if text is None else parse_listener_limit(key, text) for key, text in own.items()}
    return ListenerLimits(max_connections=limits[_MAX], max_connection_creation_rate=limits[_RATE])

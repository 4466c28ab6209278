"""The manager of the request quota: handler and network time as percent of one thread.

>>> from tidegate.quota.admin.entity import QuotaEntity
>>> request = RequestQuotaManager()
>>> request.update_quota(QuotaEntity(user="alice"), 1.0)
>>> request.record_times("alice", "c1", 0, 4_000_000, 0)
0
>>> request.record_times("alice", "c1", 5_000_000_000, 0, 0)
1000

The value recorded is percent-seconds: nanoseconds * 1e-7. A throttle time is at most the span of one sample.
Network time leads to no decision: the time of sending is known only afterwards, and counts at the next request.

Follows: Kafka `ClientRequestQuotaManager` (KIP-124, B§4.1–4.3).
"""

from collections.abc import Iterable, Mapping

from tidegate.quota.managers.callback import ClientQuotaCallback
from tidegate.quota.managers.client_quota import ClientQuotaManager
from tidegate.quota.managers.extensions import Extensions
from tidegate.quota.managers.quota_type import QuotaType
from tidegate.quota.measure.rate import SampledRate
from tidegate.quota.measure.sensor_table import MAX_SENSOR_BYTES
from tidegate.quota.measure.smooth import SmoothMode
from tidegate.quota.measure.window import REGISTRY_WINDOW, QuotaWindow
from tidegate.quota.metric import Metric

__all__ = ["PERCENT_PER_NS", "RequestQuotaManager"]

PERCENT_PER_NS = 100.0 / 1e9  # Kafka `NANOS_TO_PERCENTAGE_PER_SECOND`


class RequestQuotaManager(ClientQuotaManager):
    """Rates of thread time by client, and the time of exempt requests."""

    def __init__(
        self,
        window: QuotaWindow | None = None,
        callback: ClientQuotaCallback | None = None,
        *,
        max_sensor_bytes: int = MAX_SENSOR_BYTES,
        extensions: Extensions | None = None,
    ) -> None:
        window = window or QuotaWindow()
        super().__init__(
            QuotaType.REQUEST,
            window,
            callback,
            cap_ms=window.window_ms,
            max_sensor_bytes=max_sensor_bytes,
            extensions=extensions,
        )
        self.exempt = SampledRate(samples=REGISTRY_WINDOW.samples, window_ms=REGISTRY_WINDOW.window_ms)

    def record_times(self, user: str, client_id: str, network_ns: int, handler_ns: int, now_ms: int) -> int:
        """Charge network time unchecked, then handler time; return the throttle time in ms.

        0 while no request quota is defined. Equals `record_unchecked`, then `record`, in one go.
        """
        if not self.enabled:
            return 0
        sensor = self._nearest.get(client_id)
        if sensor is None or sensor.found_for != user:
            try:
                sensor = self._cached[user][client_id]
            except KeyError:
                sensor = self._look_up(user, client_id, now_ms)
        if now_ms < sensor.due_ms:  # `SampledRate.record` and `decide` for the usual case
            total = sensor.total + network_ns * PERCENT_PER_NS + handler_ns * PERCENT_PER_NS
            if total <= sensor.room:
                sensor.total = total
                sensor.last_ms = now_ms
                return 0
        sensor.record(network_ns * PERCENT_PER_NS, now_ms)
        return sensor.decide(handler_ns * PERCENT_PER_NS, now_ms)

    def record_network_ns(self, user: str, client_id: str, network_ns: int, now_ms: int) -> None:
        """Charge network time alone, without a decision, even if no quota is defined: check `enabled` before."""
        self.record_unchecked(user, client_id, network_ns * PERCENT_PER_NS, now_ms)

    def record_exempt(self, exempt_ns: int, now_ms: int) -> None:
        """Note the time of an exempt request; nothing while no request quota is defined."""
        if self.enabled:
            self.exempt.record(exempt_ns * PERCENT_PER_NS, now_ms)

    def _mode(self, tags: Mapping[str, str]) -> SmoothMode | None:
        return None

    def shared_metrics(self, now_ms: int) -> Iterable[Metric]:
        """Return the time of exempt requests, without any effect."""
        return (self._metric("exempt-request-time", {}, self.exempt.peek(now_ms)),)

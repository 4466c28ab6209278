"""Family `request_quota_manager` (B§4): handler, network and exempt time on a clock."""

from collections.abc import Iterator

from players._managers import ManagerPlayer, window_of
from tidegate.quota import RequestQuotaManager

__all__ = ["play"]


def play(scenario: dict) -> Iterator[tuple[int, object, object]]:
    """Play one scenario with a new manager."""
    return _Player(**scenario["config"]).play(scenario)


class _Player(ManagerPlayer):
    """`_requests` has, by id, the client, whether the request was exempt and whether its network time counts."""

    manager: RequestQuotaManager

    def __init__(self, type: str, samples: int, window_s: int, start_ms: int) -> None:
        super().__init__(RequestQuotaManager(window_of(samples, window_s)), start_ms)
        self._requests: dict[int, tuple[tuple[str, str], bool, bool]] = {}

    def request(self, user: str, client_id: str, id: int, thread_time_nanos: int, t: int) -> dict:
        enabled = self.manager.enabled
        self._requests[id] = ((user, client_id), False, enabled)
        if enabled:
            self.manager.sensor(user, client_id, self.now_ms)
        throttle_ms = self.manager.record_times(user, client_id, 0, thread_time_nanos, t)
        return {"throttle_ms": throttle_ms, "network_callback_set": enabled}

    def exempt(self, user: str, client_id: str, id: int, thread_time_nanos: int) -> dict:
        self._requests[id] = ((user, client_id), True, self.manager.enabled)
        self.manager.record_exempt(thread_time_nanos, self.now_ms)
        return {"network_callback_set": self.manager.enabled}

    def network_time(self, id: int, nanos: int) -> dict:
        client, exempt, counts = self._requests[id]
        if counts and exempt:
            self.manager.record_exempt(nanos, self.now_ms)
        elif counts:
            self.manager.record_network_ns(*client, nanos, self.now_ms)
        return {"recorded": counts}

    def _client(self, args: dict) -> tuple[str, str]:
        return (args["user"], args["client_id"]) if "user" in args else self._requests[args["id"]][0]

    def _more(self, expect: dict) -> dict:
        if "exempt" not in expect:
            return {}
        return {"exempt": [["exempt-request-time", {}, self.manager.exempt.measure(self.now_ms)]]}

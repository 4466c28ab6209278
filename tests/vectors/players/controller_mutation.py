"""Family `controller_mutation` (B§5): strict, permissive and unbounded quota objects on a clock."""

from collections.abc import Iterator

from players._doubles import decode
from players._managers import ManagerPlayer, charge, window_of
from tidegate.quota import STRICT_SINCE, MutationKind, MutationQuota, MutationQuotaManager
from tidegate.quota.measure.throttle import narrow_to_int32

__all__ = ["play"]

_GENERIC_TEXT = "The throttling quota has been exceeded."  # the text that error 89 stands for


def play(scenario: dict) -> Iterator[tuple[int, object, object]]:
    """Play one scenario with a new manager."""
    return _Player(**scenario["config"]).play(scenario)


class _Player(ManagerPlayer):
    manager: MutationQuotaManager

    def __init__(self, type: str, samples: int, window_s: int, start_ms: int) -> None:
        super().__init__(MutationQuotaManager(window_of(samples, window_s)), start_ms)
        self._quotas: dict[int, tuple[tuple[str, str], MutationQuota]] = {}

    def new_quota(self, id: int, kind: str, user: str, client_id: str) -> dict:
        quota = self.manager.new_quota_of(MutationKind(kind), user, client_id, self.now_ms)
        return self._keep(id, user, client_id, quota)

    def new_quota_for(
        self, id: int, user: str, client_id: str, api_key: int, version: int, strict_since: int
    ) -> dict:
        assert STRICT_SINCE[api_key] == strict_since
        quota = self.manager.new_quota(user, client_id, api_key, version, self.now_ms)
        return self._keep(id, user, client_id, quota)

    def permits(self, id: int, permits: list) -> dict:
        quota = self._quotas[id][1]
        admitted = quota.record(decode(permits), self.now_ms)
        got = {"rejected": not admitted, **self.throttle_time(id)}
        if not admitted:
            # What Kafka's exception contains: unlike what clients are told, it can be below 0.
            got |= {"throttle_time_ms": narrow_to_int32(quota._throttle_ms), "message": _GENERIC_TEXT}
        return got

    def throttle_time(self, id: int) -> dict:
        quota = self._quotas[id][1]
        exceeded = quota.strict and quota._throttle_ms > 0
        return {"is_exceeded": exceeded, "throttle_time": quota.throttle_time_ms(self.now_ms)}

    def record(self, user: str, client_id: str, value: list, t: int) -> dict:
        self.manager.sensor(user, client_id, self.now_ms)
        return {"throttle_ms": charge(self.manager, user, client_id, decode(value), t)}

    def _keep(self, ident: int, user: str, client_id: str, quota: MutationQuota) -> dict:
        self._quotas[ident] = ((user, client_id), quota)
        return {"kind": quota.kind.value}

    def _client(self, args: dict) -> tuple[str, str]:
        return (args["user"], args["client_id"]) if "user" in args else self._quotas[args["id"]][0]

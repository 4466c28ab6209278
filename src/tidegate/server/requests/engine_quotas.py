"""The quota engine's interface for handlers, one request at a time.

An exempt client has no quotas. An observed client is served as it would be without quotas.

Follows: B§6.3.1 (size cap of a consumer's fetch), B§5.1-5.3 (permits for partition mutations).
"""

from collections.abc import Callable

from tidegate.quota import MutationKind, MutationQuota, MutationQuotaManager, QuotaManagers
from tidegate.quota.measure.throttle import MAX_INT32, saturate_to_int32
from tidegate.server.requests.handler import Connection
from tidegate.wire import RequestHeader

__all__ = ["EngineQuotas", "NoteMutation"]

NoteMutation = Callable[[Connection, RequestHeader, int, MutationQuota, bool, int], None]
"""Called with connection, header, permits, the quota object, whether the permits were granted, and now_ms."""


class EngineQuotas:
    """The `tidegate.server.requests.handler.RequestQuotas` of one request after the other: `begin` it for each.

    mutations: the controller's, which is another node's where this one forwards (B§5.1).
    """

    __slots__ = (
        "_connection",
        "_exempt",
        "_fetch",
        "_header",
        "_mutation",
        "_note_mutation",
        "_now_ms",
        "_observe",
        "mutation",
    )

    def __init__(
        self,
        managers: QuotaManagers,
        mutations: MutationQuotaManager,
        note_mutation: NoteMutation | None,
        now_ms: Callable[[], int],
    ) -> None:
        self._fetch = managers.fetch
        self._mutation = mutations
        self._exempt = managers.extensions.exempt
        self._observe = managers.extensions.observe
        self._note_mutation = note_mutation
        self._now_ms = now_ms
        self.mutation: MutationQuota | None = None

    def start_request(self, connection: Connection, header: RequestHeader) -> None:
        """Turn to the next request."""
        self._connection = connection
        self._header = header
        self.mutation = None

    def fetch_limit_bytes(self) -> int:
        """Return the most record bytes this client may be given in one answer."""
        user = self._connection.user
        if self._is_exempt() or self._is_observed():
            return MAX_INT32
        return saturate_to_int32(self._fetch.max_value_in_window(user, self._header.client_id, self._now_ms))

    def record_mutations(self, permits: int) -> bool:
        """Charge `permits` partition mutations; False means refused with error 89."""
        header, now_ms = self._header, self._now_ms()
        if self.mutation is None:
            if self._is_exempt():
                return True
            self.mutation = self._new_quota(now_ms)
        granted = self.mutation.record(permits, now_ms)
        if self._note_mutation is not None:
            self._note_mutation(self._connection, header, permits, self.mutation, granted, now_ms)
        return granted

    def _new_quota(self, now_ms: int) -> MutationQuota:
        user, header = self._connection.user, self._header
        if self._is_observed():
            return self._mutation.new_quota_of(MutationKind.PERMISSIVE, user, header.client_id, now_ms)
        return self._mutation.new_quota(user, header.client_id, header.api_key, header.api_version, now_ms)

    def _is_exempt(self) -> bool:
        return self._exempt.any and self._exempt.selects(self._connection.user, self._header.client_id)

    def _is_observed(self) -> bool:
        return self._observe.any and self._observe.selects(self._connection.user, self._header.client_id)

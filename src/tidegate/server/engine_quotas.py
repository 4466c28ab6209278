"""What handlers ask of the quota engine while they work, one request at a time.

Follows: B§6.3.1 (size cap of a consumer's fetch), B§5.1-5.3 (permits for partition mutations).
"""

from collections.abc import Callable

from tidegate.quota import MutationQuota, QuotaManagers
from tidegate.quota.measure.throttle import saturate_to_int32
from tidegate.server.connection.channel import Channel
from tidegate.wire import RequestHeader

__all__ = ["EngineQuotas", "NoteMutation"]

NoteMutation = Callable[[Channel, RequestHeader, int, MutationQuota, bool, int], None]
"""Called with channel, header, permits, the quota object, whether the permits were granted, and now_ms."""


class EngineQuotas:
    """The `tidegate.server.handler.RequestQuotas` of one request after the other: `begin` it for each."""

    __slots__ = ("_channel", "_fetch", "_header", "_mutation", "_note_mutation", "_now_ms", "mutation")

    def __init__(
        self, managers: QuotaManagers, note_mutation: NoteMutation, now_ms: Callable[[], int]
    ) -> None:
        self._fetch = managers.fetch
        self._mutation = managers.controller_mutation
        self._note_mutation = note_mutation
        self._now_ms = now_ms
        self.mutation: MutationQuota | None = None

    def begin(self, channel: Channel, header: RequestHeader) -> None:
        """Turn to the next request."""
        self._channel = channel
        self._header = header
        self.mutation = None

    def fetch_limit_bytes(self) -> int:
        """Return the most record bytes this client may be given in one answer."""
        user = self._channel.connection.user
        return saturate_to_int32(self._fetch.max_value_in_window(user, self._header.client_id))

    def record_mutations(self, permits: int) -> bool:
        """Charge `permits` partition mutations; False means refused with error 89."""
        header, now_ms = self._header, self._now_ms()
        if self.mutation is None:
            self.mutation = self._mutation.new_quota(
                self._channel.connection.user,
                header.client_id,
                header.api_key,
                header.api_version,
                now_ms,
            )
        granted = self.mutation.record(permits, now_ms)
        self._note_mutation(self._channel, header, permits, self.mutation, granted, now_ms)
        return granted

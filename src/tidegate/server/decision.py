"""Charge a request to its quotas and say how long its client has to wait.

One function per kind of charge, in Kafka's order of calls: B§6.2 (produce), B§6.3 (fetch), B§5.4 (mutations),
B§6.4 (everything else). Everything here happens at one `now_ms`, the time of the decision.
"""

from typing import NamedTuple

from tidegate.quota import MutationQuota, QuotaManagers, QuotaType
from tidegate.server.handler import Answer, Charge

__all__ = ["MAX_FETCH_BYTES", "Decider", "Decision"]

MAX_FETCH_BYTES = 2**31 - 1  # Java's int: what the size cap saturates at (B§3.7)


class Decision(NamedTuple):
    """What was decided of one request. Times in ms; bytes are -1 where the request charges none."""

    now_ms: int
    throttle_ms: int = 0
    produce_ms: int = 0
    fetch_ms: int = 0
    request_ms: int = 0
    mutation_ms: int = 0
    produce_bytes: int = -1
    fetch_bytes: int = -1
    exempt: bool = False
    muted_by: QuotaType = QuotaType.REQUEST


class Decider:
    """Charges requests to the four managers of one node."""

    __slots__ = ("_fetch", "_mutation", "_produce", "_request")

    def __init__(self, managers: QuotaManagers) -> None:
        self._produce = managers.produce
        self._fetch = managers.fetch
        self._request = managers.request
        self._mutation = managers.controller_mutation

    def decide(
        self,
        user: str,
        client_id: str,
        answer: Answer,
        *,
        frame_bytes: int,
        handler_ns: int,
        mutation: MutationQuota | None,
        now_ms: int,
    ) -> Decision:
        """Charge the request that `answer` answers. `frame_bytes` is its size without the length prefix."""
        charge = answer.charge
        if charge is Charge.PRODUCE:
            return self._decide_produce(user, client_id, answer, frame_bytes, handler_ns, now_ms)
        if charge is Charge.FETCH:
            return self._decide_fetch(user, client_id, answer, handler_ns, now_ms)
        if charge is Charge.EXEMPT:
            self._request.record_exempt(handler_ns, now_ms)
            return Decision(now_ms, exempt=True)
        mutation_ms = 0
        if (
            charge is Charge.MUTATION and mutation is not None
        ):  # topics that Metadata creates tell no throttle (B§5.5)
            mutation_ms = mutation.throttle_time_ms(now_ms)
        request_ms = self._request.record_handler_ns(user, client_id, handler_ns, now_ms)
        throttle_ms = max(mutation_ms, request_ms, 0)
        if throttle_ms:
            # A mutation is throttled through the Request manager, as on a broker that forwards (B§5.4)
            self._request.note_throttle(user, client_id, throttle_ms, now_ms)
        return Decision(now_ms, throttle_ms, request_ms=request_ms, mutation_ms=mutation_ms)

    def _decide_produce(
        self, user: str, client_id: str, answer: Answer, frame_bytes: int, handler_ns: int, now_ms: int
    ) -> Decision:
        produce_ms = self._produce.record(user, client_id, frame_bytes, now_ms)
        request_ms, exempt = 0, False
        if answer.response is not None:
            request_ms = self._request.record_handler_ns(user, client_id, handler_ns, now_ms)
        elif not answer.close:
            exempt = True
            self._request.record_exempt(handler_ns, now_ms)
        throttle_ms, muted_by = 0, QuotaType.REQUEST
        if produce_ms > 0 or request_ms > 0:
            throttle_ms = max(produce_ms, request_ms)
            if produce_ms > request_ms:
                muted_by = QuotaType.PRODUCE
                self._produce.note_throttle(user, client_id, throttle_ms, now_ms)
            else:
                self._request.note_throttle(user, client_id, throttle_ms, now_ms)
        return Decision(
            now_ms, throttle_ms, produce_ms, 0, request_ms, 0, frame_bytes, exempt=exempt, muted_by=muted_by
        )

    def _decide_fetch(
        self, user: str, client_id: str, answer: Answer, handler_ns: int, now_ms: int
    ) -> Decision:
        assert answer.response is not None
        fetch_bytes = 4 + answer.response.body_size
        request_ms = self._request.record_handler_ns(user, client_id, handler_ns, now_ms)
        fetch_ms = self._fetch.record(user, client_id, fetch_bytes, now_ms)
        throttle_ms, muted_by = 0, QuotaType.REQUEST
        if fetch_ms > 0 or request_ms > 0:
            throttle_ms = max(fetch_ms, request_ms)
            self._fetch.unrecord(user, client_id, fetch_bytes, now_ms)
            if fetch_ms > request_ms:
                muted_by = QuotaType.FETCH
                self._fetch.note_throttle(user, client_id, throttle_ms, now_ms)
            else:
                self._request.note_throttle(user, client_id, throttle_ms, now_ms)
        return Decision(now_ms, throttle_ms, 0, fetch_ms, request_ms, 0, -1, fetch_bytes, muted_by=muted_by)

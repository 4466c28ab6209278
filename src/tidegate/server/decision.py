"""Charge a request to its quotas and say how long its client has to wait.

In Kafka's order of calls: produce charges its bytes, then its time (B§6.2); fetch its time, then its bytes (B§6.3);
mutations were charged by the handler (B§5.4); everything else is time alone (B§6.4). All of it happens at one
`now_ms`, the time of the decision.
"""

from tidegate.quota import MutationQuota, QuotaManagers, QuotaType
from tidegate.quota.request import PERCENT_PER_NS
from tidegate.server.handler import Answer, Charge

__all__ = ["Decider", "Decision"]


class Decision:
    """What was decided of one request. Times in ms.

    `produce_bytes` and `fetch_bytes` are -1 where the request charges none.
    """

    __slots__ = (
        "exempt",
        "fetch_bytes",
        "fetch_ms",
        "mutation_ms",
        "muted_by",
        "now_ms",
        "produce_bytes",
        "produce_ms",
        "request_ms",
        "throttle_ms",
    )

    now_ms: int
    throttle_ms: int
    produce_ms: int
    fetch_ms: int
    request_ms: int
    mutation_ms: int
    produce_bytes: int
    fetch_bytes: int
    exempt: bool
    muted_by: QuotaType


class Decider:
    """Charges requests to the four managers of one node."""

    __slots__ = ("_fetch", "_produce", "_request")

    def __init__(self, managers: QuotaManagers) -> None:
        self._produce = managers.produce
        self._fetch = managers.fetch
        self._request = managers.request

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
        decision = Decision()
        decision.now_ms = now_ms
        decision.throttle_ms = decision.produce_ms = decision.fetch_ms = 0
        decision.request_ms = decision.mutation_ms = 0
        decision.produce_bytes = decision.fetch_bytes = -1
        decision.exempt = False
        decision.muted_by = QuotaType.REQUEST
        charge = answer.charge
        if charge is Charge.REQUEST:
            request_ms = self._request.record(user, client_id, handler_ns * PERCENT_PER_NS, now_ms)
            if request_ms > 0:
                decision.request_ms = request_ms
                self._throttle(user, client_id, decision)
            return decision
        if charge is Charge.EXEMPT:
            decision.exempt = True
            self._request.record_exempt(handler_ns, now_ms)
            return decision
        if charge is Charge.PRODUCE:
            decision.produce_bytes = frame_bytes
            decision.produce_ms = self._produce.record(user, client_id, frame_bytes, now_ms)
            if answer.response is None:
                decision.exempt = True
                if not answer.close:  # a failed one is charged to nobody (B§6.2)
                    self._request.record_exempt(handler_ns, now_ms)
                if decision.produce_ms > 0:
                    self._throttle(user, client_id, decision)
                return decision
        decision.request_ms = self._request.record(user, client_id, handler_ns * PERCENT_PER_NS, now_ms)
        if charge is Charge.FETCH:
            assert answer.response is not None
            decision.fetch_bytes = 4 + answer.response.body_size
            decision.fetch_ms = self._fetch.record(user, client_id, decision.fetch_bytes, now_ms)
        elif (
            charge is Charge.MUTATION and mutation is not None
        ):  # what Metadata creates tells no throttle (B§5.5)
            decision.mutation_ms = mutation.throttle_time_ms(now_ms)
        if (
            decision.request_ms > 0
            or decision.produce_ms > 0
            or decision.fetch_ms > 0
            or decision.mutation_ms > 0
        ):
            self._throttle(user, client_id, decision)
        return decision

    def _throttle(self, user: str, client_id: str, decision: Decision) -> None:
        """Set the throttle time, the largest of all, and note it with the manager that mutes.

        Ties go to the request quota (B§6.2). Mutations are throttled through the Request manager too, as on a broker
        that forwards them (B§5.4). The bytes of a fetch that is answered empty are taken back (B§6.3).
        """
        now_ms = decision.now_ms
        request_ms = max(decision.request_ms, decision.mutation_ms)
        byte_ms = max(decision.produce_ms, decision.fetch_ms)
        throttle_ms = decision.throttle_ms = max(request_ms, byte_ms)
        if decision.fetch_bytes >= 0:
            self._fetch.unrecord(user, client_id, decision.fetch_bytes, now_ms)
        if byte_ms <= request_ms:
            self._request.note_throttle(user, client_id, throttle_ms, now_ms)
        elif decision.fetch_bytes >= 0:
            decision.muted_by = QuotaType.FETCH
            self._fetch.note_throttle(user, client_id, throttle_ms, now_ms)
        else:
            decision.muted_by = QuotaType.PRODUCE
            self._produce.note_throttle(user, client_id, throttle_ms, now_ms)

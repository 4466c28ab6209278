"""Charge a request to its quotas, and compute the throttle time of its client.

The order of charges is Kafka's. A Produce is charged its bytes, then its time (B§6.2); a Fetch its time, then its bytes
(B§6.3); any other request its time alone (B§6.4). The handler has already charged mutations (B§5.4). Network time is
charged before handler time. All charges of a request have the same `now_ms`, the time of the decision.

Beyond Kafka, and off by default (`docs/operating-quotas.md`): exempt clients, observed clients, and a longest throttle
time.
"""

import logging

from tidegate.quota import QuotaManagers, QuotaType
from tidegate.server.connection.channel import Channel
from tidegate.server.requests.exchange import Exchange
from tidegate.server.requests.handler import Charge, FetchAnswer
from tidegate.server.requests.request_rows import FETCHED, THROTTLED
from tidegate.usage.columns import EXEMPT, OBSERVED_ONLY
from tidegate.usage.segment import PRODUCED
from tidegate.wire import RequestHeader

__all__ = ["Decider"]

# Names of their own: looked up in their class they take 100 ns each in Python 3.11.
_PRODUCE, _FETCH, _MUTATION, _EXEMPT = Charge.PRODUCE, Charge.FETCH, Charge.MUTATION, Charge.EXEMPT
_log = logging.getLogger("tidegate.server")

_LOGGED_CHARS = 80  # of a name
_MUTED_BY_REQUEST = QuotaType.REQUEST


class Decider:
    """Charges requests to the four managers of one node."""

    __slots__ = ("_exempt", "_extensions", "_fetch", "_produce", "_request")

    def __init__(self, managers: QuotaManagers) -> None:
        self._produce = managers.produce
        self._fetch = managers.fetch
        self._request = managers.request
        self._extensions = managers.extensions
        self._exempt = managers.extensions.exempt

    def decide(self, exchange: Exchange) -> None:
        """Charge an exchange whose answer, times and `exempt` are set, and set its throttle times."""
        user, client_id = exchange.channel.connection.user, exchange.header.client_id
        now_ms, charge = exchange.now_ms, exchange.answer.charge
        exchange.throttle_ms = exchange.produce_ms = exchange.fetch_ms = 0
        exchange.request_ms = exchange.mutation_ms = 0
        exchange.row_flags = EXEMPT if exchange.exempt else 0
        exchange.fetch_bytes = -1
        exchange.muted_by = _MUTED_BY_REQUEST
        if exchange.exempt and self._exempt.any and self._exempt.selects(user, client_id):
            charge = _EXEMPT
        if charge is _PRODUCE:
            exchange.row_flags |= PRODUCED
            exchange.produce_ms = self._produce.record(user, client_id, exchange.frame_bytes, now_ms)
        if not exchange.exempt:
            exchange.request_ms = self._request.record_times(
                user, client_id, exchange.network_ns, exchange.handler_ns, now_ms
            )
        elif not exchange.answer.close:  # a failed acks=0 is not charged (B§6.2)
            self._request.record_exempt(exchange.network_ns, now_ms)
            self._request.record_exempt(exchange.handler_ns, now_ms)
        if charge is _FETCH:
            answer = exchange.answer
            assert isinstance(answer, FetchAnswer)
            assert answer.response is not None
            # Kafka's value (B§6.3.2): four bytes and the body, but not the response header.
            exchange.fetch_bytes = 4 + answer.response.body_size
            exchange.lag, exchange.lag_bytes = answer.lag, answer.lag_bytes
            exchange.row_flags |= FETCHED
            exchange.fetch_ms = self._fetch.record(user, client_id, exchange.fetch_bytes, now_ms)
        elif charge is _MUTATION and exchange.mutation is not None:  # not what Metadata creates (B§5.5)
            exchange.mutation_ms = exchange.mutation.throttle_time_ms(now_ms)
        if exchange.request_ms or exchange.produce_ms or exchange.fetch_ms or exchange.mutation_ms:
            self._throttle(user, client_id, exchange)

    def charge_network(
        self, channel: Channel, header: RequestHeader, network_ns: int, *, exempt: bool, now_ms: int
    ) -> None:
        """Charge network time without a check: it can only throttle the client's next request."""
        if exempt:
            self._request.record_exempt(network_ns, now_ms)
        elif self._request.enabled:
            self._request.record_network_ns(channel.connection.user, header.client_id, network_ns, now_ms)

    def _throttle(self, user: str, client_id: str, exchange: Exchange) -> None:
        """Set the throttle time to the largest of all, and record it in the quota manager that mutes the client.

        Ties go to the request quota (B§6.2). Mutations are throttled through the Request manager too, as on a broker
        that forwards them (B§5.4). The bytes of a fetch that is answered empty are taken back (B§6.3). A client that is
        observed only is not throttled: it gets its data, which stay charged.
        """
        now_ms = exchange.now_ms
        exchange.row_flags |= THROTTLED
        request_ms = max(exchange.request_ms, exchange.mutation_ms)
        byte_ms = max(exchange.produce_ms, exchange.fetch_ms)
        throttle_ms = max(request_ms, byte_ms)
        if throttle_ms <= 0:
            return  # it has wrapped: 0 or less does not throttle, and a fetch keeps its data (B§2.1)
        max_ms = self._extensions.throttle_max_ms
        if max_ms and throttle_ms > max_ms:
            throttle_ms = max_ms
        observe = self._extensions.observe
        if observe.any and observe.selects(user, client_id):
            exchange.row_flags |= OBSERVED_ONLY
            _log_observed(user, client_id, throttle_ms)
        else:
            exchange.throttle_ms = throttle_ms
        # Whatever levels are in use (B§6.3.4): under a request quota alone the byte rate becomes negative, as in Kafka.
        if exchange.fetch_bytes >= 0 and not exchange.row_flags & OBSERVED_ONLY:
            self._fetch.unrecord(user, client_id, exchange.fetch_bytes, now_ms)
        if byte_ms <= request_ms:
            self._request.note_throttle(user, client_id, throttle_ms, now_ms)
        elif exchange.fetch_bytes >= 0:
            exchange.muted_by = QuotaType.FETCH
            self._fetch.note_throttle(user, client_id, throttle_ms, now_ms)
        else:
            exchange.muted_by = QuotaType.PRODUCE
            self._produce.note_throttle(user, client_id, throttle_ms, now_ms)


def _log_observed(user: str, client_id: str, throttle_ms: int) -> None:
    user, client_id = user[:_LOGGED_CHARS], client_id[:_LOGGED_CHARS]
    _log.warning(
        "observed throttle, not applied: user %r, client id %r, %d ms; see tidegate.quota.observe",
        user,
        client_id,
        throttle_ms,
        extra={"repeats": f"observed {user} {client_id}", "repeats_of": f"User:{user}"},
    )

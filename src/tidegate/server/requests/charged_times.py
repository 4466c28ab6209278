"""The times that a request is charged: handler time, and network time for receiving and sending.

The time for sending an answer is known only after the answer has left. It is charged with the next request of the
connection, or with a row of its own (decision 0040).

Follows: B§4.2.
"""

from tidegate.quota.admin.entity_selection import EntitySelection
from tidegate.server.connection.channel import Channel
from tidegate.server.requests.decision import Decider
from tidegate.server.requests.exchange import Exchange
from tidegate.server.requests.handler import Charge
from tidegate.server.requests.recorder import Recorder

__all__ = ["TIME_UNIT_NS", "ChargedTimes"]

TIME_UNIT_NS = 1_000
"""Resolution of the times that a request is charged, in ns. The usage record is a quarter smaller than with all digits.

The quotas and the record get the same times, so that a replay decides as the broker did (decision 0156).
"""
_PRODUCE, _EXEMPT = Charge.PRODUCE, Charge.EXEMPT


class ChargedTimes:
    """The times of the requests of one front.

    exempt: the clients that no quota is charged for.
    """

    def __init__(self, decider: Decider, recorder: Recorder | None, exempt: EntitySelection) -> None:
        self._decider = decider
        self._recorder = recorder
        self._exempt = exempt

    def take(self, exchange: Exchange) -> None:
        """Set the times that this request is charged. Network time is receiving it, and sending the previous answer.

        The previous answer gets its own row if it belongs to another client id, or if only one of the two requests is
        exempt. A connection that is closed without an answer is not charged for receiving.

        Both times become whole units (`TIME_UNIT_NS`). The rest of the handler time counts as network time, and the
        rest of that is charged with the connection's next request.
        """
        channel, answer = exchange.channel, exchange.answer
        # A Produce without a response has acks=0: exempt (B§6.4), also when it fails and closes its connection.
        exempt = (
            answer.charge is _EXEMPT
            or (answer.charge is _PRODUCE and answer.response is None)
            or (self._exempt.any and self._exempt.selects(channel.connection.user, exchange.header.client_id))
        )
        network_ns, channel.network_ns = channel.network_ns, 0
        if answer.response is None and answer.close:
            network_ns = 0
        elif channel.sent_ns:
            answered = channel.answered
            assert answered is not None
            if answered.client_id == exchange.header.client_id and exempt is channel.answered_exempt:
                network_ns += channel.sent_ns
                channel.sent_ns = 0
            else:
                self.charge_sending(channel, exchange.now_ms)
        exchange.exempt = exempt
        rest_ns = exchange.handler_ns % TIME_UNIT_NS
        exchange.handler_ns -= rest_ns
        network_ns += rest_ns
        rest_ns = network_ns % TIME_UNIT_NS
        channel.network_ns += rest_ns
        exchange.network_ns = network_ns - rest_ns

    def charge_sending(self, channel: Channel, now_ms: int) -> None:
        """Charge the time for sending the last answer in a row of its own, unless a request was charged with it."""
        answered, sent_ns = channel.answered, channel.sent_ns
        channel.sent_ns = 0
        rest_ns = sent_ns % TIME_UNIT_NS
        sent_ns -= rest_ns
        channel.network_ns += rest_ns
        if not (channel.put_off_bytes or channel.sending):
            channel.answered = None  # the answer was sent completely
        if answered is not None and sent_ns:
            exempt = channel.answered_exempt
            self._decider.charge_network(channel, answered, sent_ns, exempt=exempt, now_ms=now_ms)
            if self._recorder is not None:
                self._recorder.network(channel.connection, answered, now_ms, sent_ns, exempt)

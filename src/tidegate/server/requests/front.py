"""The request path: receive a frame, call the handler, decide the throttle time, send the answer, mute the channel.

    frame -> header -> handler(request) -> Answer -> decide -> throttle_time_ms -> usage record -> send -> mute

A connection has at most one request in progress. Nothing on this path waits for a throttle (KIP-219). The front serves
requests in turns, at most one of each connection: it first calls all handlers, then sends all answers (decision 0023).
A client that wakes at the first answer then finds the other answers, too; to wake it for each would cost the broker
time. If a client sends many requests at once, each turn serves one of them (decision 0041).

Only the front measures time and decides throttles; handlers never do. It charges the time of the handler, and the time
for receiving and sending, to `request_percentage` (B§4.2); it does not charge the wait of a long poll. All requests of
a turn share the time of its common work, such as decisions and rows, equally, as network time (decision 0053). The time
for sending is known after the answer has left. The front charges it, with that share, together with the next request of
the connection, or when the connection closes (decision 0040). A handler that is a generator works in slices
(`slices`). Its first slice runs at once; the request is charged for the time of all slices.

Follows: B§6.2-6.6.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

from tidegate.api_keys import API_VERSIONS
from tidegate.clock import Clock
from tidegate.fair_share import first_in_rounds
from tidegate.quota import MutationQuotaManager, QuotaManagers
from tidegate.scheduling import Scheduler
from tidegate.server.connection.channel import ANSWER_DUE, Channel
from tidegate.server.connection.poller import SCANNED_MOST, ScanSchedule
from tidegate.server.connection.sending import discard
from tidegate.server.connection.turns import BATCH, Poller
from tidegate.server.handlers.api_versions import unsupported_version_answer
from tidegate.server.metrics.request_metrics import RequestMetrics
from tidegate.server.muting import Muting
from tidegate.server.repeated_lines import kind_of, repeats
from tidegate.server.requests.charged_times import ChargedTimes
from tidegate.server.requests.controller_record import ControllerRecord
from tidegate.server.requests.decision import Decider
from tidegate.server.requests.engine_quotas import EngineQuotas
from tidegate.server.requests.exchange import Exchange, TurnEnd
from tidegate.server.requests.handler import Answer, Charge, Deferred, FetchAnswer, Request, Turn
from tidegate.server.requests.later_work import NO_FRAME, LaterWork
from tidegate.server.requests.recorder import Recorder
from tidegate.server.requests.request_rows import LONGEST_KEPT_CLIENT_ID_CHARS
from tidegate.server.requests.slices import UNFINISHED, Slices
from tidegate.wire import (
    MessageError,
    ProtocolError,
    RequestHeader,
    UnsupportedVersionError,
    decode_request_header,
)

__all__ = ["Front"]

_log = logging.getLogger("tidegate.server")

WAITING_NS = 1_000_000
"""Least time in a turn for requests that waited for it, in ns, however long the ready sockets took."""

# Names of their own: looked up in their class they take 100 ns each in Python 3.11.
_DONE = TurnEnd.DONE
_PRODUCE = Charge.PRODUCE

_NO_WORK = (Answer, Deferred)


class Front:
    """Serves the channels of one node, in turns. A `ChannelOwner`, and the poller's `Turns`.

    turns, requests: the number of turns so far, and the metrics of requests.
    at_ns: in a turn, the start of the time that is not charged yet; 0 outside of it.
    """

    def __init__(
        self,
        *,
        managers: QuotaManagers,
        mutations: MutationQuotaManager,
        recorder: Recorder | None,
        at_controller: ControllerRecord | None,
        requests: RequestMetrics,
        clock: Clock,
        loop: Scheduler,
        slices: Slices,
        poller: Poller,
        on_closed: Callable[[Channel], None],
        turn: Turn,
        work_bytes: int,
        decode_header: Callable[[memoryview], RequestHeader] = decode_request_header,
    ) -> None:
        self.channels: dict[Channel, None] = {}  # in the order in which they came
        self.turns = 0
        self.at_ns = 0
        self._shared_ns = 0  # of this turn, for all of its requests
        self.muting = Muting(loop=loop, monotonic_ns=clock.monotonic_ns)
        self.requests = requests
        self._count = requests.count
        self._decode_header = decode_header
        decider = Decider(managers)
        self._decide = decider.decide
        times = ChargedTimes(decider, recorder, managers.extensions.exempt)
        self._take_times, self._charge_sending = times.take, times.charge_sending
        self._recorder = recorder
        self._at_controller = at_controller
        self._managers = managers
        self._mutations = mutations
        self._on_closed = on_closed
        self._now_ms = clock.now_ms
        self._quotas = self.new_quotas()
        self._wall_ms = clock.wall_ms
        self._monotonic_ns = clock.monotonic_ns
        self._poller = poller
        self._turn = turn
        self._in_turn = False
        self._handled: list[Exchange] = []  # in this turn
        self._waiting: list[Channel] = []  # for the next one
        self._scans = ScanSchedule()
        self._later = LaterWork(slices, clock.monotonic_ns, self._on_done, work_bytes)
        poller.serve_in(self)

    # --- ChannelOwner ---------------------------------------------------------------------------------------------

    def on_frame(self, channel: Channel, frame: memoryview, started_ns: int) -> None:
        """Serve one request. An answer that is ready leaves at the end of the turn; outside of a turn, at once."""
        try:
            header = self._decode_header(frame)
        except UnsupportedVersionError as error:
            self._answer_unsupported(channel, error, len(frame), started_ns)
            return
        except ProtocolError as error:
            self._refuse(channel, str(error))
            return
        try:
            handler = channel.handlers[header.api_key]
        except KeyError:
            self._refuse(channel, f"api key {header.api_key} is not served")
            return
        exchange = Exchange(channel, header, len(frame), started_ns)
        quotas = self._quotas
        quotas.start_request(channel.connection, header)
        # Outside of a turn the answer leaves at once: the handler must not put its work off (decision 0041).
        turn = self._turn if self._in_turn else None
        request = Request(header, frame, channel.connection, quotas, self._wall_ms(), turn)
        try:
            result = handler(request)
            if not isinstance(result, _NO_WORK):
                result = self._later.start_work(exchange, request, quotas, result)
            # The answer is already there: send it in this turn, not later as that of a long poll.
            if isinstance(result, Deferred) and result.is_complete:
                result = result.answer()
                if result.error is not None:
                    raise result.error
        except Exception as error:
            exchange.handler_ns = self._monotonic_ns() - started_ns - request.others_ns
            exchange.mutation = quotas.mutation
            self._fail(exchange, error)
            return
        if result is UNFINISHED:
            # The unfinished work keeps `quotas`, which stores its mutations (B§5.2). Earlier answers, queued to leave
            # with the answer to this request, are sent now, because this answer may take long (decision 0041).
            self._quotas = self.new_quotas()
            channel.flush()
            return
        now_ns = self._monotonic_ns()
        exchange.handler_ns = now_ns - started_ns - request.others_ns
        exchange.mutation = quotas.mutation
        if isinstance(result, Deferred):
            channel.flush()
            request.frame = NO_FRAME  # the handler may keep the request while it waits, but not its memory
            self._later.wait_for(exchange, result)
            return
        exchange.answer = result
        if self._in_turn:
            self.at_ns = now_ns
            self._handled.append(exchange)
        else:
            self._answer((exchange,), _DONE)

    def on_bad_frame(self, channel: Channel, reason: str) -> None:
        """Log, in one line, why the channel closes."""
        _log.warning(
            "closed %s: %s",
            _name(channel),
            reason,
            extra=repeats(kind_of(reason), channel.connection.client_host),
        )

    def on_waiting(self, channel: Channel) -> None:
        """Serve the channel's next request in the next turn."""
        self._waiting.append(channel)
        # In a turn the poller learns it from `finish_turn`.
        if not self._in_turn:
            self._poller.wake()

    def on_failed(self, channel: Channel, error: Exception) -> None:
        """Log an internal error that did not occur in a handler."""
        _log.error(
            "closed %s: internal error",
            _name(channel),
            exc_info=error,
            extra=repeats("failed", channel.connection.client_host),
        )

    def on_answer_left(self, channel: Channel) -> None:
        """Charge the sending time now if the client id is long, so that the id is not kept until the next request."""
        answered = channel.answered
        if answered is not None and len(answered.client_id) > LONGEST_KEPT_CLIENT_ID_CHARS:
            self._charge_sending(channel, self._now_ms())

    def on_closed(self, channel: Channel) -> None:
        """Charge the channel for its last answer, then forget it."""
        self._charge_sending(channel, self._now_ms())
        self.channels.pop(channel, None)
        self.muting.forget(channel)
        self._on_closed(channel)

    def charge_unserved(self, channel: Channel, requests: Iterable[tuple[RequestHeader, int]]) -> None:
        """Charge Produce requests that a gateway sent ahead of their turn and whose client has left since.

        requests: the header and the size of each.
        """
        now_ns = self._monotonic_ns()
        answer = Answer(None, _PRODUCE, close=True, other_topics=-1)
        exchanges = [Exchange(channel, header, frame_bytes, now_ns) for header, frame_bytes in requests]
        for exchange in exchanges:
            exchange.answer = answer
        if self._in_turn:
            self._handled += exchanges
        elif exchanges:
            self._answer(exchanges, _DONE)

    def new_quotas(self) -> EngineQuotas:
        """Return the quota interface for the next request; an earlier, unfinished one keeps its own."""
        asked = self._at_controller or self._recorder
        note_mutation = None if asked is None else asked.mutation
        return EngineQuotas(self._managers, self._mutations, note_mutation, self._now_ms)

    @property
    def waiting(self) -> int:
        """Return the number of channels that have a complete request, which is served in the next turn."""
        return len(self._waiting)

    def close(self) -> None:
        """Drop all unfinished requests."""
        self._later.close()

    # --- turns ------------------------------------------------------------------------------------------------------

    def begin_turn(self, since_ns: int) -> None:
        """Begin a turn: answers wait until its end. since_ns: the start of the time that the turn is charged."""
        self._in_turn = True
        self.turns += 1
        self.at_ns = now_ns = self._monotonic_ns()
        self._shared_ns = now_ns - since_ns

    def finish_turn(self, until_ns: int) -> bool:
        """Serve waiting channels, do the deferred work of handlers, then decide and answer requests in their order.

        The time of deferred work counts as handler time of the requests that take part in it, in proportion to their
        bytes. One write puts the rows of all requests into the usage record before the first answer leaves.
        """
        try:
            if self._waiting:
                self._serve_waiting(until_ns)
            handled, self._handled = self._handled, []
            turn_end = self._end_turn(handled)
            if handled:
                self._answer(handled, turn_end)
            else:
                self._commit(())
            if self._handled:  # requests that were sent ahead, of a client that left while answers were sent
                handled, self._handled = self._handled, []
                self._answer(handled, _DONE)
        finally:
            self._in_turn = False
            self.at_ns = self._shared_ns = 0
        return bool(self._waiting)

    def _serve_waiting(self, until_ns: int) -> None:
        """Serve one request of each waiting channel until the time is over. The others wait for the next turn.

        From time to time, move some channels of each principal to the front.
        """
        waiting, self._waiting = self._waiting, []
        until_ns = max(until_ns, self._monotonic_ns() + WAITING_NS)
        for number, channel in enumerate(waiting):
            try:
                channel.serve_next()
            except Exception as error:
                self._close_failed(channel, error)
            self.at_ns = now_ns = self._monotonic_ns()
            if now_ns >= until_ns:
                # They come before the channels that asked in this turn, because those have just been served.
                self._waiting[:0] = waiting[number + 1 :]
                if len(self._waiting) > BATCH and now_ns >= self._scans.next_ns:
                    self._reorder_waiting(now_ns)
                return

    def _reorder_waiting(self, now_ns: int) -> None:
        """Move some channels of each principal to the front, so that one principal cannot delay another."""
        last = self._waiting[-SCANNED_MOST:]  # the newest channels are at the end
        first = first_in_rounds(last, [channel.connection.owner for channel in last], BATCH)
        if first:
            chosen = set(first)
            rest = [channel for channel in last if channel not in chosen]
            self._waiting = [*first, *self._waiting[:-SCANNED_MOST], *rest]
        self._scans.record(now_ns, self._monotonic_ns())

    def _end_turn(self, handled: Sequence[Exchange]) -> TurnEnd:
        """Run the deferred work of handlers, add its time to the requests that take part; return the outcome."""
        begun_ns = self._monotonic_ns()
        try:
            turn_end = _DONE if self._turn.finish() else TurnEnd.FAILED
        except Exception:
            _log.exception(
                "closed all connections of a turn: internal error at the end of the turn",
                extra={"repeats": "turn"},
            )
            turn_end = TurnEnd.BROKEN
        self.at_ns = now_ns = self._monotonic_ns()
        turn_ns = now_ns - begun_ns
        writers = [exchange for exchange in handled if exchange.answer.if_turn_fails is not None]
        if writers:
            turn_bytes = sum([exchange.frame_bytes for exchange in writers])
            for exchange in writers:
                exchange.handler_ns += turn_ns * exchange.frame_bytes // turn_bytes
        return turn_end

    def _answer(self, handled: Sequence[Exchange], turn_end: TurnEnd) -> None:
        """Decide and record all requests, then send all answers, then serve the channels again.

        Each request is charged for its own time; all share the time of common work.
        """
        since_ns = self.at_ns or self._monotonic_ns()
        now_ms = self._now_ms()
        # All rows are written before the first answer leaves: an answered request is in the record, however the broker
        # ends (decision 0026).
        recorded = [exchange for exchange in handled if self._record(exchange, turn_end, now_ms)]
        if not (self._commit(recorded) and recorded):
            return
        now_ns = self._monotonic_ns()
        # The rows are written by now, so that this time is charged later, with sending (decisions 0040, 0053).
        share_ns = (self._shared_ns + now_ns - since_ns) // len(recorded)
        for exchange in recorded:
            now_ns = self._send(exchange, now_ns, share_ns)
        for exchange in recorded:
            channel = exchange.channel
            # A channel that is read and has nothing buffered, the usual case, continues by itself.
            if channel.pending or channel.put_off_bytes or not channel.reading:
                try:
                    channel.listen()
                except Exception as error:
                    self._close_failed(channel, error)

    def _commit(self, recorded: Sequence[Exchange]) -> bool:
        """Write all rows so far. Return False if that fails: these requests then get no answer."""
        try:
            if recorded:
                self._count(recorded)
            if self._at_controller is not None:
                self._at_controller.commit()
            if self._recorder is not None:
                self._recorder.commit()
        except Exception as error:
            # An answer may leave only after its row is written.
            for exchange in recorded:
                self._cannot_answer(exchange, error)
            return False
        return True

    # --- the path -------------------------------------------------------------------------------------------------

    def _finish(self, exchange: Exchange) -> None:
        """Decide, record and answer a request, and mute its channel: at the end of the turn, or now without one."""
        if self._in_turn:
            self._handled.append(exchange)
        else:
            self._answer((exchange,), _DONE)

    def _on_done(self, exchange: Exchange, result: Answer | Exception) -> None:
        """Finish a request whose answer came later."""
        if isinstance(result, Exception):
            self._fail(exchange, result)
        else:
            exchange.answer = result
            self._finish(exchange)

    def _record(self, exchange: Exchange, turn_end: TurnEnd, now_ms: int) -> bool:
        """Decide a request, prepare its answer and make its row, which is written before the answer leaves.

        Return False if that fails: the channel is closed without an answer.
        """
        try:
            if turn_end is not _DONE:
                exchange.answer = _answer_after(exchange.answer, turn_end)
            exchange.now_ms = now_ms
            self._take_times(exchange)
            self._decide(exchange)
            answer = exchange.answer
            response = answer.response
            if response is not None:
                if exchange.throttle_ms and exchange.fetch_bytes >= 0:
                    # B§6.3.4. The records are not sent, so that the files they lie in must be released here.
                    assert isinstance(answer, FetchAnswer)
                    discard(response.buffers)
                    response = answer.empty()
                elif answer.settle is not None:
                    # The client gets its data for certain only from here on: fetch sessions advance (decision 0089).
                    answer.settle(response)
                if exchange.throttle_ms:
                    response.set_throttle_time_ms(exchange.throttle_ms)
            exchange.response = response
            if exchange.mutation is not None and self._at_controller is not None:
                self._at_controller.request(exchange)
            if self._recorder is not None:
                self._recorder.request(exchange)
        except Exception as error:
            self._cannot_answer(exchange, error)
            return False
        return True

    def _send(self, exchange: Exchange, since_ns: int, share_ns: int) -> int:
        """Send an answer and mute its channel; return the time, in ns, when that was done.

        Charge the connection for the time since `since_ns`, plus `share_ns`; charge nothing if there is no response.
        """
        channel = exchange.channel
        try:
            response, left = exchange.response, True
            if response is None:
                if exchange.throttle_ms:
                    channel.flush()
            else:
                if channel.put_off_bytes:
                    since_ns = self._send_others_first(exchange, since_ns)
                channel.answered = exchange.header
                channel.answered_exempt = exchange.exempt
                if not (channel.pending and self._may_wait(exchange) and channel.put_off(response)):
                    left = channel.send(response.buffers)
            if left:
                channel.held &= ~ANSWER_DUE
            # B§6.6: the answer first, then the mute, in every version (KIP-219).
            if exchange.throttle_ms and not channel.closed:
                client_id: str | None = exchange.header.client_id
                if len(exchange.header.client_id) > LONGEST_KEPT_CLIENT_ID_CHARS:
                    client_id = None
                self.muting.start(
                    channel, exchange.throttle_ms, exchange.muted_by, client_id, since_ns=since_ns
                )
            now_ns = self._monotonic_ns()
            if response is not None:
                channel.sent_ns += now_ns - since_ns + share_ns
                if left and len(exchange.header.client_id) > LONGEST_KEPT_CLIENT_ID_CHARS:
                    self._charge_sending(channel, self._now_ms())
            if exchange.answer.close:
                channel.close_when_sent()
            return now_ns
        except Exception as error:
            self._cannot_answer(exchange, error)
            return self._monotonic_ns()

    def _send_others_first(self, exchange: Exchange, since_ns: int) -> int:
        """Send queued answers first if they are charged to another client id, or if only they or this one is exempt.

        Return the start of the time, in ns, that is charged for this answer.
        """
        channel = exchange.channel
        answered = channel.answered
        assert answered is not None
        same_client = answered.client_id == exchange.header.client_id
        if not same_client or channel.answered_exempt is not exchange.exempt:
            channel.flush()
            self._charge_sending(channel, self._now_ms())
            return self._monotonic_ns()
        return since_ns

    @staticmethod
    def _may_wait(exchange: Exchange) -> bool:
        """Return whether the answer can wait for that to the client's next request, which the next turn serves.

        A gateway waits only if the broker's response to that request has already come.
        """
        upstream = exchange.channel.connection.upstream
        return (
            (exchange.channel.has_more if upstream is None else upstream.has_response)
            and not (exchange.throttle_ms or exchange.answer.close)
            and len(exchange.header.client_id) <= LONGEST_KEPT_CLIENT_ID_CHARS
        )

    # --- what goes wrong ------------------------------------------------------------------------------------------

    def _close_failed(self, channel: Channel, error: Exception) -> None:
        """Log an internal error that occurred while a channel was served, and close only that channel."""
        self.on_failed(channel, error)
        channel.close()

    def _refuse(self, channel: Channel, reason: str) -> None:
        """Log one line, as Kafka does, and close the channel of a client that broke the protocol."""
        self.on_bad_frame(channel, reason)
        channel.close_when_sent()

    def _fail(self, exchange: Exchange, error: Exception) -> None:
        """Log the error, and close the channel of a request that cannot be served.

        The log has one line if the client broke the protocol or the answer cannot be encoded, otherwise a traceback.
        Unless the client broke the protocol, it is charged for the time of the request.
        """
        if isinstance(error, ProtocolError):
            self._refuse(exchange.channel, str(error))
            return
        _log_failure(exchange, "request", error)
        exchange.answer = Answer(None, close=True)
        self._finish(exchange)

    def _cannot_answer(self, exchange: Exchange, error: Exception) -> None:
        """Log the error, and close the channel of a request whose answer could not be recorded or sent."""
        _log_failure(exchange, "response", error)
        exchange.channel.close()

    def _answer_unsupported(
        self, channel: Channel, error: UnsupportedVersionError, frame_bytes: int, started_ns: int
    ) -> None:
        """Answer ApiVersions of an unknown version in version 0; close the channel for any other unknown version."""
        if error.api_key != API_VERSIONS:
            self._refuse(channel, str(error))
            return
        header = RequestHeader(
            error.api_key, error.api_version, error.correlation_id, error.client_id, frame_bytes
        )
        exchange = Exchange(channel, header, frame_bytes, started_ns)
        exchange.answer = Answer(unsupported_version_answer(error.correlation_id))
        exchange.handler_ns = self._monotonic_ns() - started_ns
        self._finish(exchange)


def _answer_after(answer: Answer, turn_end: TurnEnd) -> Answer:
    """Return the answer after the deferred work of a turn failed; after an internal error, one that closes."""
    if answer.if_turn_fails is None:
        return answer
    if turn_end is TurnEnd.FAILED:
        return answer.if_turn_fails() or answer
    answer.discard()
    return Answer(None, Charge.REQUEST, close=True)


def _log_failure(exchange: Exchange, failure: str, error: Exception) -> None:
    """Log why a channel closes after an internal error. For an answer that cannot be encoded, name the field."""
    api_key, name = exchange.header.api_key, _name(exchange.channel)
    extra = repeats(f"{failure} {api_key}", exchange.channel.connection.client_host)
    if isinstance(error, MessageError):
        _log.error("closed %s: %s with api key %d failed: %s", name, failure, api_key, error, extra=extra)
    else:
        _log.error(
            "closed %s: %s with api key %d failed", name, failure, api_key, exc_info=error, extra=extra
        )


def _name(channel: Channel) -> str:
    connection = channel.connection
    return f"connection {connection.id} from {connection.client_host} (listener {connection.listener})"

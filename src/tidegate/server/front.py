"""The request path: a frame comes in, a handler answers, the engine decides, the answer leaves, the channel is muted.

    frame -> header -> handler(request) -> Answer -> decide -> throttle_time_ms -> usage record -> send -> mute

One request of a connection at a time; nothing on this path waits for a throttle (KIP-219). Of sockets that are ready
together all requests are handled first and all answers sent then: a client that is woken by the first finds the others,
where it would be woken by each, at the expense of the sender (decision 0023). Handlers never measure
time and never decide: that happens here and nowhere else. Time in the handler and time receiving and sending are
charged to `request_percentage` (B§4.2); waiting in a long poll is not. A handler that is a generator works in slices
(`tidegate.server.slices`), the first of them at once; it is charged what its slices took.

Follows: B§6.2-6.6.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from tidegate.clock import Clock
from tidegate.quota import MutationQuota, QuotaManagers
from tidegate.quota.request import PERCENT_PER_NS
from tidegate.server.channel import ANSWER_DUE, Channel
from tidegate.server.decision import Decider, Decision
from tidegate.server.handler import Answer, Charge, Deferred, Handler, HandlerTable, Request, Turn, Wait, Work
from tidegate.server.handlers.api_versions import API_VERSIONS, unsupported_version_answer
from tidegate.server.muting import Muting
from tidegate.server.quota_desk import QuotaDesk
from tidegate.server.sending import discard
from tidegate.server.slices import SLICE_NS, UNFINISHED, Slices, advance
from tidegate.server.usage_log import UsageLog
from tidegate.wire import (
    Encoded,
    MessageError,
    ProtocolError,
    RequestHeader,
    UnsupportedVersionError,
    decode_request_header,
)

__all__ = ["Front"]

_log = logging.getLogger("tidegate.server")

COPIED_FRAME_BYTES = 16 * 1024
"""Frames up to this size are copied for work in slices; larger ones are left to it with the memory they lie in."""

_NO_WORK = (Answer, Deferred)
_NO_FRAME = memoryview(b"")
_KIND_CHARS = 80  # by these, numbers aside, the lines of one address are alike
_NO_DIGITS = str.maketrans("", "", "0123456789")
_Handled = tuple[Channel, RequestHeader, int, int, Answer, MutationQuota | None]
"""A request that waits for its decision: channel, header, frame bytes, handler ns, answer, mutation quota."""
_Recorded = tuple[Channel, RequestHeader, Decision, Encoded | None, bool, int]
"""A request whose answer is to be sent: channel, header, decision, response, whether to close, place of its row."""


class _UnderWay:
    """A request whose handler works in slices and needs more than the first."""

    __slots__ = (
        "channel",
        "desk",
        "frame_bytes",
        "handler_ns",
        "request",
        "turn_error",
        "turn_failed",
        "work",
    )

    def __init__(
        self, channel: Channel, request: Request, work: Work, desk: QuotaDesk, handler_ns: int
    ) -> None:
        self.channel = channel
        self.request = request
        self.frame_bytes = len(request.frame)
        self.work = work
        self.desk = desk
        self.handler_ns = handler_ns
        self.turn_failed = False  # what the first slice put off to the end of its turn
        self.turn_error: Exception | None = None  # and nobody knows how far it came


class Front:
    """Serves the channels of one node. A `ChannelOwner`."""

    def __init__(
        self,
        *,
        handlers: HandlerTable,
        managers: QuotaManagers,
        usage: UsageLog,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        slices: Slices,
        on_closed: Callable[[Channel], None],
        turn: Turn,
    ) -> None:
        self.channels: set[Channel] = set()
        self.muting = Muting(loop=loop, monotonic_ns=clock.monotonic_ns)
        self._handlers = handlers
        self._request_quota = managers.request
        self._decide = Decider(managers).decide
        self._usage = usage
        self._managers = managers
        self._desk = QuotaDesk(managers, usage.mutation, clock.now_ms)
        self._loop = loop
        self._on_closed = on_closed
        self._now_ms = clock.now_ms
        self._wall_ms = clock.wall_ms
        self._monotonic_ns = clock.monotonic_ns
        self._turn = turn
        self._gathering = False
        self._gathered: list[_Handled] = []
        self._slices = slices
        self._resumed: deque[Callable[[], None]] = deque()
        self._resuming = False
        self._closed = False
        self._begun_in_turn: list[_UnderWay] = []

    # --- ChannelOwner ---------------------------------------------------------------------------------------------

    def on_frame(self, channel: Channel, frame: memoryview, started_ns: int, more: bool) -> None:
        """Serve one request. `more`: bytes of the next one wait, so its answer is not put off."""
        try:
            header = decode_request_header(frame)
        except UnsupportedVersionError as error:
            self._answer_unsupported(channel, error, len(frame), started_ns)
            return
        except ProtocolError as error:
            self.on_bad_frame(channel, str(error))
            channel.close()
            return
        handler = self._handlers.get(header.api_key)
        if handler is None:
            self.on_bad_frame(channel, f"api key {header.api_key} is not served")
            channel.close()
            return
        desk = self._desk
        desk.begin(channel, header)
        self._turn.putting_off = put_off = self._gathering and not more
        request = Request(header, frame, channel.connection, desk, self._wall_ms())
        try:
            meets = header.api_key == API_VERSIONS
            result = self._meet(channel, handler, request) if meets else handler(request)
            if not isinstance(result, _NO_WORK):
                result = self._begin_work(channel, request, result, started_ns)
                if result is UNFINISHED:
                    return
        except Exception as error:
            self._fail(channel, header, error, len(frame), self._monotonic_ns() - started_ns, desk.mutation)
            return
        handler_ns = self._monotonic_ns() - started_ns
        if put_off and isinstance(result, Answer):
            self._gathered.append((channel, header, len(frame), handler_ns, result, desk.mutation))
            return
        try:
            if isinstance(result, Deferred):
                request.frame = _NO_FRAME  # the handler may keep the request while it waits, not the memory
                self._await(channel, header, len(frame), handler_ns, result)
            else:
                self._finish(channel, header, len(frame), handler_ns, result, desk.mutation)
        except Exception as error:
            self._cannot_answer(channel, header, error)

    def _fail(
        self,
        channel: Channel,
        header: RequestHeader,
        error: Exception,
        frame_bytes: int,
        handler_ns: int,
        mutation: MutationQuota | None,
    ) -> None:
        """Close the channel of a request that cannot be served.

        In one line where its client is to blame, as Kafka does, or where the answer cannot be written; else with a
        traceback. It is charged for its time where it is not to blame.
        """
        if isinstance(error, ProtocolError):
            self.on_bad_frame(channel, str(error))
            channel.close()
            return
        _log_failure(channel, header, "failed", error)
        try:
            self._finish(channel, header, frame_bytes, handler_ns, Answer(None, close=True), mutation)
        except Exception as another:
            self._cannot_answer(channel, header, another)

    def _cannot_answer(self, channel: Channel, header: RequestHeader, error: Exception) -> None:
        """Close the channel of a request that was served and whose answer fails on its way."""
        _log_failure(channel, header, "cannot be answered", error)
        channel.close()

    def on_bad_frame(self, channel: Channel, reason: str) -> None:
        """Say in one line why the channel closes."""
        kind = reason.translate(_NO_DIGITS)[:_KIND_CHARS]
        _log.warning("closing %s: %s", _name(channel), reason, extra=_repeats(channel, kind))

    def on_unserved(self, channel: Channel) -> None:
        """Serve the requests that a channel has put off when the others had their turn."""

        def serve() -> bool:
            try:
                channel.serve_waiting()
            except Exception as error:
                self.on_failed(channel, error)
                channel.close()
            return True

        self._slices.add(serve)

    def on_failed(self, channel: Channel, error: Exception) -> None:
        """Log an error of ours that is none of a handler's."""
        _log.error(
            "%s: cannot go on; closing", _name(channel), exc_info=error, extra=_repeats(channel, "failed")
        )

    def on_answer_left(self, channel: Channel) -> None:
        """Charge the network time of an answer that took more than one turn to leave."""
        if channel.late is not None:
            header, exempt = channel.late
            channel.late = None
            now_ms = self._now_ms()
            network_ns = self._charge_network(channel, header, exempt=exempt, now_ms=now_ms)
            self._usage.network(channel, header, now_ms, network_ns, exempt)

    def on_closed(self, channel: Channel) -> None:
        """Forget the channel."""
        self.channels.discard(channel)
        self.muting.forget(channel)
        self._on_closed(channel)

    def close(self) -> None:
        """Drop what is under way."""
        self._closed = True
        self._slices.close()

    # --- answers together ---------------------------------------------------------------------------------------------

    def gather(self) -> None:
        """Put answers off until `finish_gathered`. Both are for the poller."""
        self._gathering = True

    def finish_gathered(self) -> None:
        """End the turn, then decide and send what was put off, in the order of the requests.

        The turn's time is handler time of the requests that have a part in it, each in proportion to its bytes. Where
        its end is an error of ours, nobody knows what of their part was done: their channels close.
        """
        self._gathering = False
        gathered, self._gathered = self._gathered, []
        begun_ns = self._monotonic_ns()
        turn_error = None
        try:
            done = self._turn.end()
        except Exception as error:
            done, turn_error = False, error
            _log.exception(
                "the end of a turn failed; closing the connections that have a part in it",
                extra={"repeats": "turn"},
            )
        turn_ns = self._monotonic_ns() - begun_ns
        for under_way in self._begun_in_turn:
            under_way.turn_failed, under_way.turn_error = not done, turn_error
        self._begun_in_turn.clear()
        turn_bytes = sum(handled[2] for handled in gathered if handled[4].instead is not None)
        one_by_one = self._request_quota.enabled  # network time is charged before the next one is decided
        recorded: list[_Recorded] = []
        for channel, header, frame_bytes, handler_ns, answer, mutation in gathered:
            try:
                if answer.instead is not None:
                    handler_ns += turn_ns * frame_bytes // turn_bytes
                    if not done:
                        answer = _instead(answer, turn_error)
                recorded.append(self._record(channel, header, frame_bytes, handler_ns, answer, mutation))
            except Exception as error:
                self._cannot_answer(channel, header, error)
            if one_by_one:
                self._send_recorded(recorded)
                recorded.clear()
        self._send_recorded(recorded)

    def _send_recorded(self, recorded: Sequence[_Recorded]) -> None:
        """Send what was decided; one write puts the rows of all of it into the usage record before.

        What comes next on their connections is served when all have left: it may define quotas, and the network time
        of these requests is charged before, as the record has it.
        """
        self._usage.commit()
        for each in recorded:
            try:
                self._send(*each)
            except Exception as error:
                self._cannot_answer(each[0], each[1], error)
        for channel, header, *_ in recorded:
            if channel.ended or channel.pending:
                try:
                    channel.release_hold(0)
                except Exception as error:
                    self._cannot_answer(channel, header, error)

    @staticmethod
    def _meet(channel: Channel, handler: Handler, request: Request) -> Answer | Deferred | Work:
        """Answer ApiVersions; a client that names other software than before gets new names in the usage record."""
        before = channel.connection.software
        result = handler(request)
        if channel.connection.software != before:
            channel.cache = None
        return result

    # --- work in slices -------------------------------------------------------------------------------------------

    def _begin_work(self, channel: Channel, request: Request, work: Work, started_ns: int) -> Any:
        """Run the first slice; return its answer, or `UNFINISHED`, and then go on with it later."""
        frame_bytes = len(request.frame)
        if frame_bytes <= COPIED_FRAME_BYTES:
            request.frame = memoryview(bytes(request.frame))
        result = advance(work, started_ns + SLICE_NS, self._monotonic_ns)
        if result is UNFINISHED or isinstance(result, Wait):
            if frame_bytes > COPIED_FRAME_BYTES:
                channel.keep_frame()
            handler_ns = self._monotonic_ns() - started_ns
            under_way = _UnderWay(channel, request, work, self._desk, handler_ns)
            self._desk = QuotaDesk(self._managers, self._usage.mutation, self._now_ms)
            if self._gathering:
                self._begun_in_turn.append(under_way)
            self._go_on_later(under_way, result)
            return UNFINISHED
        return result

    def _go_on_later(self, under_way: _UnderWay, wait: Any) -> None:
        """Go on in a later turn of the loop, at the soonest when what it waits for, if anything, is over."""

        def add() -> None:
            if not self._closed:
                self._slices.add(lambda: self._go_on(under_way))

        if isinstance(wait, Wait):
            wait.then(add)
        else:
            add()

    def _go_on(self, under_way: _UnderWay) -> bool:
        """Run one more slice; return whether there is none after it. A client that has left evades no charge."""
        channel, request, frame_bytes = under_way.channel, under_way.request, under_way.frame_bytes
        header = request.header
        started_ns = self._monotonic_ns()
        self._turn.putting_off = False
        try:
            result = advance(under_way.work, started_ns + SLICE_NS, self._monotonic_ns)
            under_way.handler_ns += self._monotonic_ns() - started_ns
            if result is UNFINISHED:
                return False
            if isinstance(result, Wait):
                self._go_on_later(under_way, result)
                return True
            if under_way.turn_failed and isinstance(result, Answer):
                result = _instead(result, under_way.turn_error)
        except Exception as error:
            handler_ns = under_way.handler_ns + self._monotonic_ns() - started_ns
            self._fail(channel, header, error, frame_bytes, handler_ns, under_way.desk.mutation)
            channel.release_frame()
            return True
        mutation = under_way.desk.mutation
        request.frame = _NO_FRAME
        channel.release_frame()
        try:
            if isinstance(result, Deferred):
                self._await(channel, header, frame_bytes, under_way.handler_ns, result)
            else:
                self._finish(channel, header, frame_bytes, under_way.handler_ns, result, mutation)
                channel.release_hold(0)
        except Exception as error:
            self._cannot_answer(channel, header, error)
        return True

    # --- the path -------------------------------------------------------------------------------------------------

    def _await(
        self, channel: Channel, header: RequestHeader, frame_bytes: int, handler_ns: int, deferred: Deferred
    ) -> None:
        """Go on when the answer is there, on a turn of its own: nobody else pays for it.

        A client that has left by then is charged all the same, but for what was given up: leaving evades no quota.
        """
        channel.deferred = deferred

        def resume() -> None:
            channel.deferred = None
            if self._closed or deferred.cancelled:
                if deferred.given is not None:
                    _discard_answer(deferred.given)
                return
            answer = deferred.answer()
            try:
                if answer.error is not None:
                    self._fail(channel, header, answer.error, frame_bytes, handler_ns, None)
                    return
                self._finish(channel, header, frame_bytes, handler_ns, answer, None)
                channel.release_hold(0)
            except Exception as error:
                self._cannot_answer(channel, header, error)

        deferred.when_ready(lambda: self._resume_later(resume))

    def _resume_later(self, resume: Callable[[], None]) -> None:
        """Call `resume` in a later turn; thousands may be woken at once, by an append or a sync."""
        self._resumed.append(resume)
        if not self._resuming:
            self._resuming = True
            self._slices.add(self._resume_some)

    def _resume_some(self) -> bool:
        until_ns = self._monotonic_ns() + SLICE_NS
        while self._resumed:
            self._resumed.popleft()()
            if self._resumed and self._monotonic_ns() >= until_ns:
                return False
        self._resuming = False
        return True

    def _finish(
        self,
        channel: Channel,
        header: RequestHeader,
        frame_bytes: int,
        handler_ns: int,
        answer: Answer,
        mutation: MutationQuota | None,
    ) -> None:
        """Decide, record, send, mute, charge the network time."""
        recorded = self._record(channel, header, frame_bytes, handler_ns, answer, mutation)
        self._usage.commit()
        self._send(*recorded)

    def _record(
        self,
        channel: Channel,
        header: RequestHeader,
        frame_bytes: int,
        handler_ns: int,
        answer: Answer,
        mutation: MutationQuota | None,
    ) -> _Recorded:
        """Decide a request, make its answer ready and write its row: an answer that has left is in the record."""
        decision = self._decide(
            channel.connection.user,
            header.client_id,
            answer,
            frame_bytes=frame_bytes,
            handler_ns=handler_ns,
            mutation=mutation,
            now_ms=self._now_ms(),
        )
        response = answer.response
        response_bytes = 0
        if response is not None:
            if decision.fetch_bytes >= 0:
                if decision.throttle_ms:
                    assert answer.empty is not None
                    discard(response.buffers)
                    response = answer.empty()
                elif answer.on_sent_data is not None:
                    answer.on_sent_data()
            if decision.throttle_ms:
                response.set_throttle_time_ms(decision.throttle_ms)
            response_bytes = response.size
        place = self._usage.request(channel, header, decision, frame_bytes, response_bytes, handler_ns)
        return channel, header, decision, response, answer.close, place

    def _send(
        self,
        channel: Channel,
        header: RequestHeader,
        decision: Decision,
        response: Encoded | None,
        close: bool,
        place: int,
    ) -> None:
        """Send an answer, mute its channel, and charge what receiving and sending cost."""
        left = response is None or channel.send(response.buffers)
        if decision.throttle_ms and not channel.closed:
            self.muting.start(channel, decision.throttle_ms, decision.muted_by)
        if response is None and close:
            channel.network_ns = 0
        elif left:
            channel.held &= ~ANSWER_DUE
            now_ms, exempt = decision.now_ms, decision.exempt
            network_ns = self._charge_network(channel, header, exempt=exempt, now_ms=now_ms)
            if not self._usage.set_network_ns(place, network_ns):
                self._usage.network(channel, header, now_ms, network_ns, exempt)
        else:
            channel.late = (header, decision.exempt)
        if close:
            channel.close()

    def _charge_network(self, channel: Channel, header: RequestHeader, *, exempt: bool, now_ms: int) -> int:
        """Charge what receiving and sending cost, unchecked: it bites on the next request. Returns the ns."""
        network_ns, channel.network_ns = channel.network_ns, 0
        if self._request_quota.enabled:
            if exempt:
                self._request_quota.record_exempt(network_ns, now_ms)
            else:
                user, percent = channel.connection.user, network_ns * PERCENT_PER_NS
                self._request_quota.record_unchecked(user, header.client_id, percent, now_ms)
        return network_ns

    def _answer_unsupported(
        self, channel: Channel, error: UnsupportedVersionError, frame_bytes: int, started_ns: int
    ) -> None:
        """Answer ApiVersions of an unknown version in its v0 form; any other unknown version closes."""
        if error.api_key != API_VERSIONS:
            self.on_bad_frame(channel, str(error))
            channel.close()
            return
        answer = Answer(unsupported_version_answer(error.correlation_id))
        header = RequestHeader(
            error.api_key, error.api_version, error.correlation_id, error.client_id, frame_bytes
        )
        handler_ns = self._monotonic_ns() - started_ns
        try:
            self._finish(channel, header, frame_bytes, handler_ns, answer, None)
        except Exception as failure:
            self._cannot_answer(channel, header, failure)


def _instead(answer: Answer, turn_error: Exception | None) -> Answer:
    """Return what is sent where the turn failed: by an error of ours the connection closes, for the same time."""
    if answer.instead is None:
        return answer
    if turn_error is None:
        return answer.instead() or answer
    _discard_answer(answer)
    return Answer(None, Charge.REQUEST, close=True)


def _log_failure(channel: Channel, header: RequestHeader, what: str, error: Exception) -> None:
    """Say why a channel closes whose client did nothing wrong. An answer that cannot be written names its field."""
    repeats = _repeats(channel, f"{what} {header.api_key}")
    if isinstance(error, MessageError):
        _log.error(
            "closing %s: api key %d %s: %s", _name(channel), header.api_key, what, error, extra=repeats
        )
    else:
        _log.error(
            "%s: api key %d %s; closing", _name(channel), header.api_key, what, exc_info=error, extra=repeats
        )


def _discard_answer(answer: Answer) -> None:
    if answer.response is not None:
        discard(answer.response.buffers)


def _repeats(channel: Channel, kind: str) -> dict[str, str]:
    """Return what makes a line one of many (`tidegate.server.repeated_lines`): its kind and the client's address."""
    return {"repeats": f"{kind} {channel.connection.client_host}"}


def _name(channel: Channel) -> str:
    connection = channel.connection
    return f"connection {connection.id} from {connection.client_host} on {connection.listener}"

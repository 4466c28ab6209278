"""Requests that are not answered by the first slice of their handler: long work in slices, and long polls.

The front hands them over. Each goes on in later turns of the loop (`tidegate.server.slices`), until there is an answer
or an error, which the front is given.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from tidegate.server.engine_quotas import EngineQuotas
from tidegate.server.exchange import Exchange, SlicedWork
from tidegate.server.handler import Answer, Deferred, Request, Wait, Work
from tidegate.server.slices import SLICE_NS, UNFINISHED, Slices, advance

__all__ = ["COPIED_FRAME_BYTES", "NO_FRAME", "LaterWork"]

COPIED_FRAME_BYTES = 16 * 1024
"""Frames up to this size are copied for work in slices; larger ones are left to it with the memory they lie in."""
NO_FRAME = memoryview(b"")
"""What a request has for a frame that is no longer its own."""


class LaterWork:
    """What is under way in one node. on_done: is given each request, once, with its answer or what went wrong."""

    def __init__(
        self,
        slices: Slices,
        monotonic_ns: Callable[[], int],
        on_done: Callable[[Exchange, Answer | Exception], None],
    ) -> None:
        self._slices = slices
        self._monotonic_ns = monotonic_ns
        self._on_done = on_done
        self._resumed: deque[Callable[[], None]] = deque()
        self._resuming = False
        self._closed = False

    def close(self) -> None:
        """Drop what is under way."""
        self._closed = True
        self._slices.close()

    # --- work in slices -------------------------------------------------------------------------------------------

    def begin(self, exchange: Exchange, request: Request, quotas: EngineQuotas, work: Work) -> Any:
        """Run the first slice; return its answer, or `UNFINISHED`, and then go on with it later.

        Unfinished work has `quotas` to itself from here on.
        """
        request.turn = None
        if exchange.frame_bytes <= COPIED_FRAME_BYTES:
            request.frame = memoryview(bytes(request.frame))
        result = advance(work, exchange.started_ns + SLICE_NS, self._monotonic_ns)
        if result is not UNFINISHED and not isinstance(result, Wait):
            return result
        if exchange.frame_bytes > COPIED_FRAME_BYTES:
            exchange.channel.keep_frame()
        exchange.handler_ns = self._monotonic_ns() - exchange.started_ns
        exchange.work = SlicedWork(work, request, quotas)
        self._go_on_later(exchange, result)
        return UNFINISHED

    def _go_on_later(self, exchange: Exchange, wait: Any) -> None:
        """Go on in a later turn of the loop, at the soonest when what it waits for, if anything, is over."""

        def add() -> None:
            if not self._closed:
                self._slices.add(lambda: self._go_on(exchange))

        if isinstance(wait, Wait):
            wait.then(add)
        else:
            add()

    def _go_on(self, exchange: Exchange) -> bool:
        """Run one more slice; return whether there is none after it. A client that has left evades no charge."""
        work = exchange.work
        started_ns = self._monotonic_ns()
        try:
            result = advance(work.steps, started_ns + SLICE_NS, self._monotonic_ns)
        except Exception as error:
            result = error
        exchange.handler_ns += self._monotonic_ns() - started_ns
        if result is UNFINISHED:
            return False
        if isinstance(result, Wait):
            self._go_on_later(exchange, result)
            return True
        exchange.mutation = work.quotas.mutation
        work.request.frame = NO_FRAME
        exchange.channel.release_frame()
        if isinstance(result, Deferred):
            self.wait_for(exchange, result)
        else:
            self._on_done(exchange, result)
        return True

    # --- long polls -----------------------------------------------------------------------------------------------

    def wait_for(self, exchange: Exchange, deferred: Deferred) -> None:
        """Go on when the answer is there, on a turn of its own: nobody else pays for it.

        A client that has left by then is charged all the same, but for what was given up: leaving evades no quota.
        """
        channel = exchange.channel
        channel.deferred = deferred
        begun_ns = self._monotonic_ns()

        def resume() -> None:
            channel.deferred = None
            if self._closed or deferred.cancelled:
                if deferred.given is not None:
                    deferred.given.discard()
                return
            exchange.remote_ns = self._monotonic_ns() - begun_ns
            answer = deferred.answer()
            self._on_done(exchange, answer.error or answer)

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

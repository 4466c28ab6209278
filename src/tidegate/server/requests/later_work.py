"""Requests that are not answered by the first slice of their handler: long work in slices, and long polls.

The front passes such requests to this module. Each continues in later turns of the loop (`slices`), until it has an
answer or an error, which is passed back to the front.

Unfinished work keeps the data that it has read and made so far. Because all unfinished work takes turns, the large
requests of many clients would be in memory at the same time. Their memory is not counted, but estimated from the time
that the work has taken (`BYTES_PER_S`). Above the bound, only `WORKS_AT_ONCE` pieces of work continue, and at least one
of each principal. The others wait until one of these is done; the piece that has taken the least time is next. New work
then begins with a shorter slice, which is enough for an ordinary request; above twice the bound it does not begin.
First slices are also shorter when many clients send large requests at the same moment, because other clients wait for
all of them. Slices run in rounds over principals (decision 0095).
"""

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from tidegate.quota.measure.throttle import MAX_INT64
from tidegate.server.requests.engine_quotas import EngineQuotas
from tidegate.server.requests.exchange import Exchange, SlicedWork
from tidegate.server.requests.handler import Answer, Deferred, Request, Wait, Work
from tidegate.server.requests.slices import SLICE_NS, UNFINISHED, Slices, advance

__all__ = ["BYTES_PER_S", "COPIED_FRAME_BYTES", "NO_FRAME", "WORKS_AT_ONCE", "LaterWork"]

COPIED_FRAME_BYTES = 16 * 1024
"""Largest frame that is copied for work in slices. The work keeps the buffer of a larger frame."""
BYTES_PER_S = 1_000_000_000
"""Estimate of the memory that work in slices allocates in a second. Measured: 40 to 160 MB for requests with arrays of
99,000 elements and answers of 400 MB; 500 to 630 MB for an OffsetFetch of 16 MB of metadata."""
WORKS_AT_ONCE = 4
"""Pieces of work that continue past the memory bound, a slice each in turn."""
SHORT_SLICE_NS = 300_000
"""Length of a first slice past the memory bound, or after many first slices, in ns."""
FIRST_SLICES_NS = 8_000_000
"""Time of recent first slices above which they become short, in ns. A quarter of the elapsed time is subtracted."""
_PAST_PER_FIRST = 4
NO_FRAME = memoryview(b"")
"""Stand-in for the frame of a request whose buffer is used again."""


class LaterWork:
    """The unfinished requests of one node.

    on_done: called once for each request, with its answer or the error. most_bytes: approximate bound on the memory of
    all work in slices; -1: no bound.
    """

    def __init__(
        self,
        slices: Slices,
        monotonic_ns: Callable[[], int],
        on_done: Callable[[Exchange, Answer | Exception], None],
        most_bytes: int,
    ) -> None:
        self._slices = slices
        self._monotonic_ns = monotonic_ns
        self._on_done = on_done
        self._most_ns = most_bytes * 1_000_000_000 // BYTES_PER_S if most_bytes >= 0 else MAX_INT64
        self._held_ns = 0  # of work that is not done
        self._active = 0
        self._active_by: Counter[str] = Counter()  # principal
        self._first_ns = self._first_at_ns = 0  # of first slices, lately; and as of when
        self._put_back: dict[Exchange, None] = {}
        self._resumed: deque[Callable[[], None]] = deque()
        self._resuming = False
        self._closed = False

    def close(self) -> None:
        """Drop all unfinished requests."""
        self._closed = True
        self._put_back.clear()
        self._slices.close()

    # --- work in slices -------------------------------------------------------------------------------------------

    def start_work(self, exchange: Exchange, request: Request, quotas: EngineQuotas, work: Work) -> Any:
        """Run the first slice. Return the answer, or `UNFINISHED` if the work continues in later turns.

        Unfinished work keeps `quotas`: do not use them for another request.
        """
        request.turn = None
        if exchange.frame_bytes <= COPIED_FRAME_BYTES:
            # All channels share the receive buffer that holds the frame; the next receive overwrites it.
            request.frame = memoryview(bytes(request.frame))
        begun_ns = exchange.started_ns
        # The sum shrinks with time, so first slices are short only if many run at about the same time (decision 0095).
        self._first_ns = max(self._first_ns - (begun_ns - self._first_at_ns) // _PAST_PER_FIRST, 0)
        self._first_at_ns = begun_ns
        slice_ns = SLICE_NS if self._first_ns < FIRST_SLICES_NS else SHORT_SLICE_NS
        if self._held_ns > self._most_ns:
            slice_ns = self._slice_ns_in_need(exchange.channel.connection.owner)
        result = UNFINISHED
        if slice_ns:
            result = advance(work, begun_ns + slice_ns, self._monotonic_ns)
            took_ns = self._monotonic_ns() - begun_ns
            self._first_ns += took_ns
            if result is not UNFINISHED and not isinstance(result, Wait):
                return result
            exchange.handler_ns = took_ns
            self._held_ns += took_ns
        if exchange.frame_bytes > COPIED_FRAME_BYTES:
            exchange.channel.keep_frame()
        exchange.work = SlicedWork(work, request, quotas)
        if slice_ns:
            self._go_on_later(exchange, result)
        else:
            self._put_back[exchange] = None
        return UNFINISHED

    def _slice_ns_in_need(self, owner: str) -> int:
        """Return the length of a first slice, in ns, above the memory bound; 0: the work has to wait for others."""
        is_first = self._held_ns <= 2 * self._most_ns or self._may_add(owner)
        return SHORT_SLICE_NS if is_first else 0

    def _go_on_later(self, exchange: Exchange, wait: Any) -> None:
        """Schedule the next slice for a later turn of the loop, after the `Wait`, if any, has ended."""

        def add() -> None:
            if not self._closed:
                # A thread has worked for this request alone: it unpacks batches for ListOffsets (decision 0110).
                if wait is not None and wait is not UNFINISHED and wait.charged_ns:
                    exchange.handler_ns += wait.charged_ns
                    self._held_ns += wait.charged_ns
                self._add(exchange)

        if isinstance(wait, Wait):
            wait.then(add)
        else:
            add()

    def _may_add(self, owner: str) -> bool:
        """Return whether one more piece of a principal's work may continue above the memory bound."""
        return self._active < WORKS_AT_ONCE or not self._active_by[owner]

    def _add(self, exchange: Exchange) -> None:
        owner = exchange.channel.connection.owner
        self._active += 1
        self._active_by[owner] += 1
        self._slices.schedule(lambda: self._go_on(exchange, owner), owner)

    def _take_off(self, owner: str) -> None:
        self._active -= 1
        self._active_by[owner] -= 1
        if not self._active_by[owner]:
            del self._active_by[owner]

    def _go_on(self, exchange: Exchange, owner: str) -> bool:
        """Run one slice, or put the work back if too much is in memory. Return True if no slice follows it now."""
        is_too_much = self._held_ns > self._most_ns and self._active > WORKS_AT_ONCE
        if is_too_much and self._active_by[owner] > 1:
            # The only work of a principal is never put back: the others could delay it without end.
            self._take_off(owner)
            self._put_back[exchange] = None
            return True
        is_over = self._run_slice(exchange)
        if is_over:
            self._take_off(owner)
            self._bring_back()
        return is_over

    def _bring_back(self) -> None:
        """Resume requests that were put back, while there is room.

        Requests of a principal that has none under way come first, then the request that has taken the least time.
        """
        while self._put_back:
            exchange = min(self._put_back, key=self._precedence)
            if self._held_ns > self._most_ns and not self._may_add(exchange.channel.connection.owner):
                return
            del self._put_back[exchange]
            if exchange.handler_ns or not exchange.channel.closed:
                # Work that has begun continues after its client has left, so that the client is charged.
                self._add(exchange)
            else:  # the work has not begun, and its client has left
                exchange.work.request.frame = NO_FRAME
                exchange.channel.release_frame()
                self._on_done(exchange, Answer(None, close=True))

    def _precedence(self, exchange: Exchange) -> tuple[bool, int]:
        return self._active_by[exchange.channel.connection.owner] > 0, exchange.handler_ns

    def _run_slice(self, exchange: Exchange) -> bool:
        """Run one slice, also if the client has left. Return True if no slice follows it now."""
        work = exchange.work
        started_ns = self._monotonic_ns()
        try:
            result = advance(work.steps, started_ns + SLICE_NS, self._monotonic_ns)
        except Exception as error:
            result = error
        took_ns = self._monotonic_ns() - started_ns
        exchange.handler_ns += took_ns
        self._held_ns += took_ns
        if result is UNFINISHED:
            return False
        if isinstance(result, Wait):
            self._go_on_later(exchange, result)
            return True
        # The slices of this work have added the sum `handler_ns` to `_held_ns`.
        self._held_ns -= exchange.handler_ns
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
        """Finish the request when it has its answer, in a turn of its own, so that no other request is charged for it.

        A client that has left by then is charged, too, unless the request was cancelled.
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
            exchange.handler_ns += deferred.charged_ns
            answer = deferred.answer()
            self._on_done(exchange, answer.error or answer)

        deferred.when_ready(resume if deferred.at_once else lambda: self._resume_later(resume))

    def _resume_later(self, resume: Callable[[], None]) -> None:
        """Call `resume` in a later turn: one append or sync may complete thousands of requests."""
        self._resumed.append(resume)
        # One task resumes many requests in a turn; `Slices` would run only one task in each turn.
        if not self._resuming:
            self._resuming = True
            self._slices.schedule(self._resume_some)

    def _resume_some(self) -> bool:
        until_ns = self._monotonic_ns() + SLICE_NS
        try:
            while self._resumed:
                self._resumed.popleft()()
                if self._resumed and self._monotonic_ns() >= until_ns:
                    return False
        except Exception:
            self._slices.schedule(self._resume_some)  # the loop logs the error; a new task resumes the others
            raise
        self._resuming = False
        return True

"""Contract between the front and the handlers: the request that a handler gets and the answer that it returns.

A handler is a function `Request -> Answer | Deferred | Work`. It never measures time, never decides a throttle and
never touches the connection: the front does (B§6.2–6.4). A handler calls `request.quotas` for the size cap of a
consumer's fetch before reading, and for permits for partition mutations before creating or deleting.

No handler blocks the event loop: if its work grows with the request, or with the data on the node, the handler is a
generator function. It yields after at most about a millisecond of work. State may change between two of its slices:

    def handle(request: Request) -> Work:
        body = yield from request.body_in_slices()
        for part in body["topics"]:
            ...
            yield
        return (yield from request.answer_in_slices(message))

To wait without working, such as for an answer of another machine, the handler yields a `Wait`.
"""

import enum
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidegate.acl import Authorizer
from tidegate.acl import codes as acl
from tidegate.acl.codes import CLUSTER_NAME, OPERATIONS, supported_operations
from tidegate.fair_share import ANONYMOUS, UNKNOWN_OWNER, owner_of
from tidegate.in_slices import release_messages, run_at_once
from tidegate.server.connection.sending import discard
from tidegate.wire import (
    API_BY_KEY,
    AT_ONCE_BYTES,
    Encoded,
    RequestHeader,
    encode_response,
    encode_response_in_slices,
    read_request,
    read_request_in_slices,
    read_request_with_rows,
)

__all__ = [
    "NO_LAG",
    "SHORT_FRAME_BYTES",
    "Answer",
    "Charge",
    "Connection",
    "Deferred",
    "FetchAnswer",
    "Handler",
    "HandlerTable",
    "Message",
    "NothingToDo",
    "Request",
    "RequestQuotas",
    "Turn",
    "Wait",
    "Work",
    "at_once_if_short",
]

Message = dict[str, Any]

SHORT_FRAME_BYTES = 2048
"""Up to this size a request is short: some hundred array elements at most."""


class Charge(enum.Enum):
    """The quotas that a request is charged to. Follows: B§6.2–6.4."""

    REQUEST = "request"
    PRODUCE = "produce"
    FETCH = "fetch"
    MUTATION = "mutation"
    EXEMPT = "exempt"


NO_LAG = -1
"""Lag of a `FetchAnswer` that is not known."""
_FETCH = Charge.FETCH  # looked up in its class it takes 100 ns in Python 3.11


@dataclass(slots=True)
class Connection:
    """The client of one connection: its addresses, principal, software and permissions."""

    id: int
    listener: str
    client_host: str
    local_host: str
    local_port: int
    user: str = ANONYMOUS
    """The name of the client's principal: the user of quotas (B§6.1)."""
    software: tuple[str, str] = ("", "")
    """Name and version of the client's software, from its ApiVersions request."""
    recorded: Any = None
    """The usage record's entry for the last client id of the connection; None: no entry."""
    at_controller: "Connection | None" = None
    """The connection in the controller's usage record; set when a request is first forwarded to the controller."""
    authorizer: Authorizer | None = None
    """The rights of users; None where every user may do everything."""
    upstream: Any = None
    """The connection to another broker that a gateway forwards its requests to; None where there is none."""
    throttled_ms: int = 0
    """Total time that it has been, or will have been, muted for throttles."""
    owner: str = field(init=False)
    """The principal whose share of each bound the connection uses (`tidegate.fair_share.owner_of`)."""

    def __post_init__(self) -> None:
        self.owner = owner_of(self.user, self.client_host)

    def set_software(self, software: tuple[str, str]) -> None:
        """Set name and version of the client's software, for all later rows of the usage record."""
        if software != self.software:
            self.software = software
            self.recorded = self.at_controller = None

    def set_user(self, user: str) -> None:
        """Set the name of the client's principal after a login, for all later rows of the usage record."""
        if user != self.user:
            self.user = user
            self.owner = owner_of(user, self.client_host)
            self.recorded = self.at_controller = None


class RequestQuotas(Protocol):
    """Interface of the quota engine for handlers."""

    def fetch_limit_bytes(self) -> int:
        """Return the most record bytes this client may be given in one answer, an INT32 (B§6.3.1)."""

    def record_mutations(self, permits: int) -> bool:
        """Charge `permits` partition mutations; False means refused with error 89 (B§5.2)."""


@dataclass(slots=True)
class Request:
    """One request as the front hands it to a handler; `now_ms` is the wall clock, for time stamps.

    `frame`, every view into it, and `quotas` are valid only until the handler returns: they are used again. A handler
    that is a generator returns when its work is done, so both stay valid until then.
    turn: collects work that the handler may defer to the end of the turn; None if the answer is sent at once. A handler
    that is a generator has none, because it may continue after its turn.
    others_ns: handler time that was spent on other requests, which are charged for it.
    """

    header: RequestHeader
    frame: memoryview
    connection: Connection
    quotas: RequestQuotas
    now_ms: int
    turn: "Turn | None" = None
    others_ns: int = 0

    def authorized(self, operation: int, resource_type: int, name: str = CLUSTER_NAME) -> bool:
        """Return whether the client may perform an operation on a resource; numbers as in `tidegate.acl.codes`.

        Where time matters, write `request.connection.authorizer is None or request.authorized(...)`.
        """
        connection = self.connection
        authorizer = connection.authorizer
        if authorizer is None:
            return True
        permitted = authorizer.permitted(connection.user, connection.client_host, resource_type, name)
        return bool(permitted >> operation & 1)

    def authorized_operations(self, resource_type: int, name: str = CLUSTER_NAME) -> int:
        """Return the operations that the client may perform on a resource, as the bit set of answers (KIP-430)."""
        supported = supported_operations(resource_type)
        connection = self.connection
        authorizer = connection.authorizer
        if authorizer is None:
            return supported
        return supported & authorizer.permitted(connection.user, connection.client_host, resource_type, name)

    def divided_owner(self) -> str:
        """Return the principal whose share of a bound the client uses; `UNKNOWN_OWNER` if no share limits the client.

        No share limits clients that may administer the cluster: all clients without an authorizer, super users, and
        principals with ALTER on the cluster.
        """
        connection = self.connection
        if connection.authorizer is None or self.authorized(acl.ALTER, acl.CLUSTER):
            return UNKNOWN_OWNER
        return connection.owner

    def refusal(self, operation: int) -> str:
        """Return the error text for a client without permission on the cluster: Kafka's, without internal details."""
        connection, name = self.connection, API_BY_KEY[self.header.api_key].name
        asked = f"Request({name}, principal=User:{connection.user}, host={connection.client_host})"
        return f"Request {asked} needs {OPERATIONS[operation]} permission."

    def body(self) -> Message:
        """Decode and return the request's body. Raises `ProtocolError` where it is malformed."""
        header = self.header
        return read_request(header.api_key, header.api_version, self.frame, header.body_at)

    def body_with_rows(self) -> Message:
        """Decode and return the body, each array `partitions` as `PlainRows` where all its strings are empty."""
        header = self.header
        return read_request_with_rows(header.api_key, header.api_version, self.frame, header.body_at)

    def body_in_slices(self) -> Generator[None, None, Message]:
        """Decode and return the request's body, yielding in between. Raises `ProtocolError` where it is malformed."""
        header = self.header
        return read_request_in_slices(header.api_key, header.api_version, self.frame, header.body_at)

    def release(self, *messages: list[Any]) -> Iterable[None]:
        """Empty a value that was decoded from this request or made for its elements, with all its lists, in slices.

        Do nothing for a short request: its values are small.
        """
        return release_messages(*messages) if len(self.frame) > AT_ONCE_BYTES else ()

    def release_body(self, body: Message) -> Iterable[None]:
        """Empty all lists of this request's body, in slices: freeing a long list takes time, too."""
        if len(self.frame) <= AT_ONCE_BYTES:
            return ()
        return release_messages(*[value for value in body.values() if type(value) is list])

    def encode(self, message: Message) -> Encoded:
        """Return `message` encoded as the response to this request."""
        header = self.header
        return encode_response(header.api_key, header.api_version, header.correlation_id, message)

    def answer(self, message: Message, charge: Charge = Charge.REQUEST) -> "Answer":
        """Return the answer that sends `message`."""
        return Answer(self.encode(message), charge)

    def answer_in_slices(
        self, message: Message, charge: Charge = Charge.REQUEST
    ) -> Generator[None, None, "Answer"]:
        """Return the answer that sends `message`, yielding in between."""
        header = self.header
        encoded = yield from encode_response_in_slices(
            header.api_key, header.api_version, header.correlation_id, message
        )
        return Answer(encoded, charge)


@dataclass(slots=True)
class Answer:
    """The response that a handler returns, and the quotas that it charges.

    response: None where the protocol has no answer (acks=0).
    close: close the connection instead of, or after, answering.
    if_turn_fails: set if work was put off to the end of the turn. Called if that work failed: returns the answer to
        send instead of this one, or None if this one is still right.
    topic: name of the topic with the most bytes of records in a Produce or Fetch, for the usage record; None: no topic
        has any. other_topics: number of other topics that have some; -1 without a topic: unknown.
    settle: called with the response when the front has decided to send it, before it does; not called if a throttled
        client gets the empty form.
    error: set by `Deferred.complete_by`: the error that building the answer raised; the front closes the connection.
    """

    response: Encoded | None
    charge: Charge = Charge.REQUEST
    close: bool = False
    if_turn_fails: Callable[[], "Answer | None"] | None = None
    settle: Callable[[Encoded], None] | None = None
    error: Exception | None = None
    topic: str | None = None
    other_topics: int = 0

    def discard(self) -> None:
        """Release the buffers of a response that will not be sent."""
        if self.response is not None:
            discard(self.response.buffers)


class FetchAnswer(Answer):
    """The answer to a consumer's Fetch.

    empty: makes the answer without records that a throttled client gets (B§6.3.4).
    lag, lag_bytes: how far behind the end it was read, for the usage record; `NO_LAG`: not known.
    """

    __slots__ = ("empty", "lag", "lag_bytes")

    def __init__(
        self,
        response: Encoded,
        empty: Callable[[], Encoded],
        lag: int = NO_LAG,
        lag_bytes: int = NO_LAG,
        settle: Callable[[Encoded], None] | None = None,
        topic: str | None = None,
        other_topics: int = 0,
    ) -> None:
        self.response = response
        self.charge = _FETCH
        self.close = False
        self.if_turn_fails = self.error = None
        self.empty = empty
        self.lag = lag
        self.lag_bytes = lag_bytes
        self.settle = settle
        self.topic = topic
        self.other_topics = other_topics


class Deferred:
    """An answer that comes later (a long poll). Waiting is not charged (B§4.2).

    The handler keeps it and calls `complete` once, on the event loop. If the wait can be cancelled, the handler sets
    `on_cancel`, which is called at most once, when the connection closes before that. Without `on_cancel` the work has
    begun (a group commit): it is completed, and charged, even if the client has left.

    at_once: finish the request in the turn that completes it, for answers that come a few at a time. By default a later
        turn finishes it, because one append or sync can complete thousands of requests.
    charged_ns: time that was spent on this request since the handler returned; charged as handler time.
    """

    __slots__ = ("_make", "_on_ready", "at_once", "cancelled", "charged_ns", "given", "on_cancel")

    def __init__(self) -> None:
        self.given: Answer | None = None  # the argument of `complete`, until `answer` returns it
        self._make: Callable[[], Answer] | None = None
        self._on_ready: Callable[[], object] | None = None
        self.cancelled = False
        self.at_once = False
        self.charged_ns = 0
        self.on_cancel: Callable[[], None] | None = None

    def complete(self, answer: Answer) -> None:
        """Set the answer. Ignored if it is set already, or if the connection is gone and no work was under way."""
        if self.given is None and self._make is None and not self.cancelled:
            self.given = answer
            self._tell()

    def complete_by(self, make: Callable[[], Answer]) -> None:
        """Set `make`, which builds the answer when its turn comes; if it raises, the front closes the connection."""
        if not (self.cancelled or self.is_complete):
            self._make = make
            self._tell()

    def when_ready(self, on_ready: Callable[[], object]) -> None:
        """Call `on_ready` when there is an `answer`, at once if there is one already. For the front."""
        self._on_ready = on_ready
        if self.is_complete:
            self._tell()

    def answer(self) -> "Answer":
        """Return the answer. For the front, which calls it once."""
        answer, make = self.given, self._make
        self.given = self._make = self.on_cancel = None
        if answer is None:
            assert make is not None, "it is not complete"
            try:
                answer = make()
            except Exception as error:
                answer = Answer(None, close=True, error=error)
        return answer

    def cancel(self) -> None:
        """Cancel the wait of a client that has left: call `on_cancel` if there is no answer. For the front."""
        if self.on_cancel is None:
            return
        self.cancelled = True
        on_cancel, self._on_ready, self.on_cancel = self.on_cancel, None, None
        if not self.is_complete:
            on_cancel()

    @property
    def is_complete(self) -> bool:
        """Return whether there is an `answer`."""
        return self.given is not None or self._make is not None

    def _tell(self) -> None:
        on_ready, self._on_ready = self._on_ready, None
        if on_ready is not None:
            on_ready()


class Wait:
    """A pause of work in slices. The work yields it, and resumes after `resume` is called, once, on the event loop.

    charged_ns: time that another thread took for this request alone, charged to the request; set before `resume`.
    """

    __slots__ = ("_ended", "_go_on", "charged_ns")

    def __init__(self) -> None:
        self.charged_ns = 0
        self._ended = False
        self._go_on: Callable[[], None] | None = None

    def resume(self) -> None:
        """Resume the work."""
        if not self._ended:
            self._ended = True
            if self._go_on is not None:
                self._go_on()

    def then(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` when the pause ends, now if it has ended. For the front."""
        self._go_on = go_on
        if self._ended:
            go_on()


class Turn(Protocol):
    """Work that handlers defer to the end of a turn, done once for all requests of the turn."""

    def finish(self) -> bool:
        """Run the work; return False if it failed: `Answer.if_turn_fails` then supplies the answers to send."""


class NothingToDo:
    """The `Turn` of handlers that defer no work."""

    def finish(self) -> bool:
        """Return that it is done."""
        return True


Work = Generator[Any, None, Answer | Deferred]
"""A handler's work in slices. It yields None, or a `Wait`, whose `charged_ns` the request pays for. It continues to
its end even if the client leaves, so that no client avoids a charge by leaving."""
Handler = Callable[[Request], Answer | Deferred | Work]
HandlerTable = Mapping[int, Handler]


def at_once_if_short(
    handle: Callable[[Request], Work], short_bytes: int = SHORT_FRAME_BYTES
) -> Callable[[Request], Answer | Deferred | Work]:
    """Return a handler that does the work of a short request without slices, which cost time themselves.

    Use it for work that depends only on the size of the request and takes at most 1 ms for `short_bytes`.
    """

    def handler(request: Request) -> Answer | Deferred | Work:
        work = handle(request)
        return run_at_once(work) if len(request.frame) <= short_bytes else work

    return handler

"""The handlers of a gateway: forward each request to the broker, and change only what has to change.

| API | what changes |
|---|---|
| Produce | the answer is charged with the size of the request; addresses of new leaders |
| Fetch | the largest and the least size of the response, as Kafka itself lowers them (B§6.3.1) |
| Metadata, FindCoordinator, DescribeCluster, ShareFetch, ShareAcknowledge | addresses |
| DescribeQuorum | addresses of controllers are removed |
| ApiVersions | versions whose responses could carry an address that cannot be rewritten |
| CreateTopics, DeleteTopics, CreatePartitions | topics that the quota refuses are not forwarded (`mutations`) |
| DescribeClientQuotas, AlterClientQuotas | the gateway answers them itself, with its own quotas (`rights`) |
| SaslHandshake, SaslAuthenticate | forwarded, and the name of the user is read (`logins`), or answered by the gateway |
| any other | nothing |

The largest throttle time wins: the client sees the broker's or the gateway's, and is muted for the gateway's.

If a Fetch response is withheld from a throttled client (B§6.3.4), the client asks for the same offsets again. If the
response created a fetch session, the client does not know it; the client's next request for a new session closes it.
"""

import struct
from functools import partial

from tidegate.api_keys import (
    ALTER_CLIENT_QUOTAS,
    API_VERSIONS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_CLUSTER,
    FETCH,
    FIND_COORDINATOR,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from tidegate.error_codes import UNSUPPORTED_VERSION
from tidegate.gateway.asking import UpstreamLostError, ask_broker
from tidegate.gateway.responses import (
    LAST_FETCH_WITHOUT_ADDRESSES,
    REWRITTEN,
    KeptAnswers,
    Rewriter,
    fetch_answer,
    plain_answer,
    produce_answer,
)
from tidegate.gateway.topic_names import TopicNames
from tidegate.gateway.topics import produced_sizes
from tidegate.gateway.upstream import Upstream
from tidegate.gateway.upstream_response import Response
from tidegate.server.handlers.api_versions import SOFTWARE_SINCE, good_software, unsupported_version_answer
from tidegate.server.requests.handler import Answer, Deferred, Handler, Request, Work
from tidegate.wire import (
    API_BY_KEY,
    Encoded,
    ProtocolError,
    RequestHeader,
    encode_response,
    read_response,
)
from tidegate.wire.encoded import LENGTH_BYTES, NO_FIELD
from tidegate.wire.errors import MalformedError
from tidegate.wire.primitives import varint

__all__ = ["RelayHandlers", "narrowed", "relay_handlers", "upstream_of"]

_READ = REWRITTEN | {
    *(API_VERSIONS, PRODUCE, SASL_HANDSHAKE, SASL_AUTHENTICATE),
    *(CREATE_TOPICS, CREATE_PARTITIONS, DELETE_TOPICS, DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS),
}
"""The APIs whose requests or responses the gateway reads, which takes a version that Tidegate knows."""
LONG_REQUEST_BYTES = 4096
"""Longest request whose response is decoded in one step: the response has an address for each key, some ms of work."""
_ACKS = struct.Struct(">h")
_NO_ACKS = _ACKS.pack(0)
_LONGEST_BYTE = 127  # the largest varint of one byte
_SIZES = struct.Struct(">ii")  # least and largest size of a Fetch response
_SESSION = struct.Struct(">bii")  # isolation level, session id, session epoch
_REPLICA_SINCE = 15  # from this version on, a Fetch request does not begin with the id of a replica
_MAX_BYTES_SINCE = 3
_SESSION_SINCE = 7
_INITIAL_EPOCH = 0

Forwarded = Answer | Deferred | Work


class RelayHandlers(dict[int, Handler]):
    """A table of handlers that has one for every API key: `other` for those that are not listed."""

    def __init__(self, handlers: dict[int, Handler], other: Handler) -> None:
        super().__init__(handlers)
        self._other = other

    def __missing__(self, key: int) -> Handler:
        return self._other


def relay_handlers(rewriter: Rewriter, names: TopicNames, own: dict[int, Handler]) -> RelayHandlers:
    """Return the handlers of one node. own: handlers of the APIs that the gateway answers itself or reads."""
    table: dict[int, Handler] = {
        PRODUCE: partial(handle_produce, rewriter, names),
        FETCH: partial(handle_fetch, names),
        API_VERSIONS: partial(handle_api_versions, KeptAnswers()),
        **{api_key: partial(handle_with_addresses, rewriter) for api_key in REWRITTEN},
        **own,
    }
    return RelayHandlers(table, handle_other)


def upstream_of(request: Request) -> Upstream:
    """Return the connection that carries the requests of this client."""
    upstream: Upstream = request.connection.upstream
    return upstream


def handle_other(request: Request) -> Forwarded:
    """Forward a request whose response needs no change."""
    return upstream_of(request).forward(request, plain_answer, is_streamed=True)


def handle_with_addresses(rewriter: Rewriter, request: Request) -> Forwarded:
    """Forward a request whose response carries addresses. Raises `ProtocolError` for an unknown version of it."""
    header = request.header
    api = API_BY_KEY[header.api_key]
    if not api.speaks(header.api_version):
        raise ProtocolError(
            f"api_version of {api.name} must be {api.min_version} to {api.max_version} through the gateway, "
            f"got {header.api_version}"
        )
    listener = request.connection.listener
    is_long = header.api_key == FIND_COORDINATOR and len(request.frame) > LONG_REQUEST_BYTES
    if is_long or header.api_key == DESCRIBE_CLUSTER:
        return _forward_decoded(rewriter, request)
    return upstream_of(request).forward(
        request, lambda header, response: rewriter.answer(header, response, listener)
    )


def _forward_decoded(rewriter: Rewriter, request: Request) -> Work:
    """Forward a request whose response may have thousands of addresses, and replace them in slices."""
    body = yield from request.body_in_slices()
    try:
        message = yield from ask_broker(request, *request.header.api, body)
    except UpstreamLostError:
        return Answer(None, close=True)
    yield from rewriter.rewrite_in_slices(request.header.api_key, message, request.connection.listener)
    return (yield from request.answer_in_slices(message))


# --- Produce ----------------------------------------------------------------------------------------------------------


def handle_produce(rewriter: Rewriter, names: TopicNames, request: Request) -> Forwarded:
    """Forward a Produce, together with similar ones that follow it (`ahead`). With acks=0 there is no response."""
    at = _acks_at(request)
    frame, version = request.frame, request.header.api_version
    upstream: Upstream = request.connection.upstream
    if frame[at : at + _ACKS.size] == _NO_ACKS:
        return upstream.send_only(request)
    listener = request.connection.listener
    sizes = produced_sizes(frame, version, at + _ACKS.size)
    return upstream.forward(
        request,
        lambda header, response: produce_answer(
            header, response, rewriter, listener, names=names, sizes=sizes
        ),
        alike_until=at + _ACKS.size,
    )


def _acks_at(request: Request) -> int:
    """Return the offset of the acks of a Produce request. Raises `ProtocolError` where it is too short."""
    header, frame = request.header, request.frame
    at, version = header.body_at, header.api_version
    try:
        if version >= 9:
            size = frame[at]
            if size > _LONGEST_BYTE:
                size, at = varint(frame, at)
                at += max(size - 1, 0)
            else:
                at += size or 1
        elif version >= 3:
            (size,) = _ACKS.unpack_from(frame, at)
            at += _ACKS.size + max(size, 0)
    except (struct.error, IndexError, MalformedError):
        at = len(frame)
    if at + _ACKS.size > len(frame):
        raise ProtocolError(
            f"malformed Produce request: acks expected at byte {at}, the frame has {len(frame)}",
            path="acks",
            byte_offset=at,
        )
    return at


# --- Fetch ------------------------------------------------------------------------------------------------------------


def handle_fetch(names: TopicNames, request: Request) -> Forwarded:
    """Forward a Fetch, with the size that the client's quota allows. Raises `ProtocolError`.

    A client that claims to be a follower is charged like any other: followers do not use the gateway.
    """
    header, upstream = request.header, upstream_of(request)
    version, frame = header.api_version, request.frame
    if version > LAST_FETCH_WITHOUT_ADDRESSES:
        raise ProtocolError(
            f"api_version of Fetch must be at most {LAST_FETCH_WITHOUT_ADDRESSES} through the gateway, got {version}"
        )
    at = header.body_at + (4 if version >= _REPLICA_SINCE else 8)  # behind max_wait_ms
    begins_session = False
    try:
        if version >= _MAX_BYTES_SINCE:
            least, most = _SIZES.unpack_from(frame, at)
            limit = request.quotas.fetch_limit_bytes()
            if most > limit or least > limit:
                _SIZES.pack_into(frame, at, min(least, limit), min(most, limit))
        if version >= _SESSION_SINCE:
            level, session_id, epoch = _SESSION.unpack_from(frame, at + _SIZES.size)
            begins_session = epoch == _INITIAL_EPOCH
            if upstream.withheld_session and begins_session and not session_id:
                _SESSION.pack_into(frame, at + _SIZES.size, level, upstream.withheld_session, epoch)
                upstream.withheld_session = 0
    except struct.error:
        raise ProtocolError(
            f"malformed Fetch request: sizes expected at byte {at}, the frame has {len(frame)}",
            byte_offset=at,
        ) from None

    def on_withheld(session_id: int) -> int:
        if begins_session:
            upstream.withheld_session, session_id = session_id, 0  # B§6.3.4
        return session_id

    return upstream.forward(
        request, lambda header, response: fetch_answer(header, response, on_withheld, names), is_streamed=True
    )


# --- ApiVersions ------------------------------------------------------------------------------------------------------


def handle_api_versions(kept: KeptAnswers, request: Request) -> Forwarded:
    """Forward ApiVersions, and leave out the versions that the gateway cannot forward.

    A version that Tidegate does not know is refused with the last one that it knows, which clients try then (KIP-511).
    """
    header, connection = request.header, request.connection
    if not API_BY_KEY[API_VERSIONS].speaks(header.api_version):
        return Answer(unsupported_version_answer(header.correlation_id))
    if header.api_version >= SOFTWARE_SINCE:
        software = good_software(request)
        if software is not None:  # otherwise the broker refuses the request
            connection.set_software(software)
    return upstream_of(request).forward(
        request, lambda header, response: kept.answer(header, response, "", narrowed)
    )


def narrowed(header: RequestHeader, response: Response, listener: str) -> Encoded:
    """Return the answer to ApiVersions. An error comes in version 0, whichever was asked for (KIP-511)."""
    frame = memoryview(response.frame)[LENGTH_BYTES:]
    version = header.api_version
    if frame[4:6] == _ACKS.pack(UNSUPPORTED_VERSION):
        return Encoded([response.frame], response.size, response.size - LENGTH_BYTES, NO_FIELD)
    message = read_response(API_VERSIONS, version, frame, 4)
    for each in message["api_keys"]:
        last = last_version(each["api_key"])
        if last is not None:
            each["max_version"] = min(each["max_version"], last)
    message["api_keys"] = [each for each in message["api_keys"] if each["min_version"] <= each["max_version"]]
    return encode_response(API_VERSIONS, version, header.correlation_id, message)


def last_version(api_key: int) -> int | None:
    """Return the last version of an API that the gateway forwards; None: it forwards all."""
    if api_key in _READ:
        return API_BY_KEY[api_key].max_version
    return LAST_FETCH_WITHOUT_ADDRESSES if api_key == FETCH else None

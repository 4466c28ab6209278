"""Responses of a broker as answers of the gateway: throttle times are written into them, and addresses replaced.

Most responses are forwarded unchanged. The position of the throttle time follows from the version. In a few messages it
comes after fields of variable length, which are decoded only if a throttle time has to be written. Responses with
broker addresses are decoded and encoded again. The result is cached by the bytes of the response, because clients
repeat such requests.
"""

import struct
from collections.abc import Callable, Generator, Mapping
from functools import lru_cache, partial

from tidegate import error_codes
from tidegate.api_keys import DESCRIBE_CLUSTER, FETCH, FIND_COORDINATOR, METADATA, PRODUCE
from tidegate.gateway.addresses import Addresses
from tidegate.gateway.metadata import with_addresses
from tidegate.gateway.topic_names import IDS_SINCE, TopicNames
from tidegate.gateway.topics import FIRST_TOPIC, ONE, UNKNOWN_TOPICS, Sizes, fetched_topics, stored_topics
from tidegate.gateway.upstream_response import Response
from tidegate.in_slices import run_at_once
from tidegate.server.requests.handler import Answer, Charge, FetchAnswer
from tidegate.wire import (
    API_BY_KEY,
    Encoded,
    Message,
    ProtocolError,
    RequestHeader,
    encode_response,
    read_response,
)
from tidegate.wire.definitions import FIXED_SIZES, layout
from tidegate.wire.encoded import LENGTH_BYTES, NO_FIELD

__all__ = [
    "LAST_FETCH_WITHOUT_ADDRESSES",
    "REWRITTEN",
    "KeptAnswers",
    "Rewriter",
    "fetch_answer",
    "plain_answer",
    "produce_answer",
]

LAST_FETCH_WITHOUT_ADDRESSES = 15
"""From version 16 on a Fetch response ends with addresses (KIP-951), which cannot be seen while it is streamed."""
DESCRIBE_QUORUM, SHARE_FETCH, SHARE_ACKNOWLEDGE = 55, 78, 79
MAX_KEPT = 64
MAX_KEPT_BYTES = 64 * 1024
MAX_READ_BYTES = 16 * 1024
"""Longest response that is decoded only for its topics, which takes some ms."""
_Slices = Generator[None, None, None]
_PREFIX_BYTES = 8  # length, correlation id
_FIRST_ENDPOINTS = 10  # of Produce (KIP-951)
_NOT_LEADER = error_codes.NOT_LEADER_OR_FOLLOWER.to_bytes(2, "big") + b"\xff" * 8
"""The error code and base offset of a partition with another leader. Only such responses contain addresses."""
_RESULT = struct.Struct(
    ">ihqqqBBBB"
)  # a partition of a Produce response without an error, and its topic's end
_RESULT_END = 1, 0, 0, 0
_FIRST_PARTITION = struct.Struct(">iih")  # number of partitions; index and error code of the first one
_THROTTLE_BYTES, _THROTTLE_AND_TAGS_BYTES = 4, 5
_UNKNOWN = UNKNOWN_TOPICS[1]
_SESSION = struct.Struct(">hi")  # error code, session id: behind the throttle time of a Fetch response
_THROTTLE_SINCE, _SESSION_SINCE = 1, 7


Make = Callable[[RequestHeader, Response, str], Encoded]
"""Converts a response for the clients of a listener."""


class _Places(dict[tuple[int, int], int]):
    """The offset of the throttle time in a frame, by (api key, version); `NO_FIELD` where it is not known."""

    def __missing__(self, pair: tuple[int, int]) -> int:
        found = self[pair] = _throttle_place(*pair)
        return found


def _throttle_place(api_key: int, api_version: int) -> int:
    api = API_BY_KEY.get(api_key)
    if api is None or not api.speaks(api_version):
        return NO_FIELD
    at = _body_at(api_key, api_version)
    for field in layout(api_key, api_version, "response").fields:
        if field.name == "throttle_time_ms":
            return at
        if field.array or field.tag is not None or field.type not in FIXED_SIZES:
            return NO_FIELD
        at += FIXED_SIZES[field.type]
    return NO_FIELD


def _body_at(api_key: int, api_version: int) -> int:
    """Return the offset of the body in a frame whose header has no tagged fields."""
    api = API_BY_KEY.get(api_key)
    return _PREFIX_BYTES + (api is not None and api.has_tagged_response_header(api_version))


_PLACES = _Places()


class _Late(Encoded):
    """A response in which the throttle time is located only when it has to be written."""

    __slots__ = ("header",)

    header: RequestHeader

    def set_throttle_time_ms(self, throttle_time_ms: int) -> None:
        """Write the throttle time, unless the response has a longer one or its version has no field for it."""
        header = self.header
        if len(self.buffers) > 1 or not API_BY_KEY[header.api_key].speaks(header.api_version):
            return
        message = _read(header, self.buffers[0])
        if message.get("throttle_time_ms", throttle_time_ms) < throttle_time_ms:
            message["throttle_time_ms"] = throttle_time_ms
            made = encode_response(header.api_key, header.api_version, header.correlation_id, message)
            self.buffers, self.size, self.body_size = made.buffers, made.size, made.body_size


def _read(header: RequestHeader, frame: bytearray) -> Message:
    """Decode a whole response. Raises `ProtocolError`."""
    at = _body_at(header.api_key, header.api_version)
    if at > _PREFIX_BYTES and frame[_PREFIX_BYTES:at] != b"\0":
        raise ProtocolError("a response header with tagged fields, expected none", path="tagged fields")
    body = memoryview(frame)[LENGTH_BYTES:]
    return read_response(header.api_key, header.api_version, body, at - LENGTH_BYTES)


def encoded(header: RequestHeader, response: Response) -> Encoded:
    """Return an unchanged response, ready to send."""
    frame, size = response.frame, response.size
    buffers = [frame] if response.rest is None else [frame, response.rest]
    body_at = _body_at(header.api_key, header.api_version)
    body_size = size + LENGTH_BYTES - body_at
    at = _PLACES[header.api]
    if at == NO_FIELD:
        if header.api_key not in API_BY_KEY:
            return Encoded(buffers, size, body_size, NO_FIELD)
        late = _Late(buffers, size, body_size, NO_FIELD)
        late.header = header
        return late
    if at + 4 > len(frame):
        at = NO_FIELD
    return Encoded(buffers, size, body_size, at)


def plain_answer(header: RequestHeader, response: Response) -> Answer:
    """Return the answer that is the response of the broker, charged with its time."""
    return Answer(encoded(header, response))


def fetch_answer(
    header: RequestHeader, response: Response, on_withheld: Callable[[int], int], names: TopicNames
) -> FetchAnswer:
    """Return the answer to a Fetch.

    on_withheld: called with the session id of a response that is not forwarded; returns the one to tell the client.
    """
    made = encoded(header, response)
    frame, version = response.frame, header.api_version
    at = _body_at(FETCH, version) + 4 * (version >= _THROTTLE_SINCE)
    error_code = session_id = 0
    if version >= _SESSION_SINCE and at + _SESSION.size <= len(frame):
        error_code, session_id = _SESSION.unpack_from(frame, at)
        at += _SESSION.size
    topic, other_topics = fetched_topics(frame, version, at, names)

    def empty() -> Encoded:
        told = on_withheld(session_id)
        if not API_BY_KEY[FETCH].speaks(version):
            return _empty_old_fetch(header)
        message = {"throttle_time_ms": 0, "error_code": error_code, "session_id": told, "responses": []}
        return encode_response(FETCH, version, header.correlation_id, message)

    return FetchAnswer(made, empty, topic=topic, other_topics=other_topics)


def _empty_old_fetch(header: RequestHeader) -> Encoded:
    """Return an empty response of versions 0 to 3, which Kafka 4.0 and later do not serve."""
    body = bytes(4) if header.api_version == 0 else bytes(8)
    frame = bytearray(struct.pack(">ii", 4 + len(body), header.correlation_id) + body)
    return Encoded([frame], 4 + len(body), len(body), NO_FIELD if header.api_version == 0 else _PREFIX_BYTES)


def produce_answer(
    header: RequestHeader,
    response: Response,
    rewriter: "Rewriter",
    listener: str,
    *,
    names: TopicNames,
    sizes: Sizes | None = None,
) -> Answer:
    """Return the answer to a Produce, with addresses of the gateway where it has any (KIP-951).

    sizes: `topics.produced_sizes` of the request.
    """
    version, frame = header.api_version, response.frame
    produced = _produce_layout(version)
    if produced is None:
        return Answer(encoded(header, response), Charge.PRODUCE, other_topics=_UNKNOWN)
    body_at, is_flexible, throttle_bytes = produced
    body_size = response.size + LENGTH_BYTES - body_at
    at = len(frame) - throttle_bytes
    key = _stored_topic(frame, version, body_at) if is_flexible else _stored_topic_before(frame, body_at)
    if key is not None:
        topic = names.name(key, version)
        others = 0 if topic is not None else _UNKNOWN
        made = Encoded([frame], response.size, body_size, at)
        return Answer(made, Charge.PRODUCE, topic=topic, other_topics=others)
    message: Message = {}
    if version >= _FIRST_ENDPOINTS and _NOT_LEADER in frame:
        message = _read(header, frame)
    if message.get("node_endpoints"):
        run_at_once(_rewrite_endpoints(rewriter.addresses, message, listener))
        made = encode_response(PRODUCE, version, header.correlation_id, message)
    elif at < body_at or (is_flexible and frame[-1]):
        made = _Late([frame], response.size, body_size, NO_FIELD)
        made.header = header
    else:
        made = Encoded([frame], response.size, body_size, at)
    message = message or _read_short(header, frame)
    topic, others = stored_topics(message, version, sizes, names) if message else UNKNOWN_TOPICS
    return Answer(made, Charge.PRODUCE, topic=topic, other_topics=others)


@lru_cache(64)
def _produce_layout(version: int) -> tuple[int, bool, int] | None:
    """Return where the body of a Produce response begins, whether it is flexible, and its bytes from the throttle time.

    None: Tidegate does not know the version.
    """
    api = API_BY_KEY[PRODUCE]
    if not api.speaks(version):
        return None
    is_flexible = api.is_flexible(version)
    return (
        _body_at(PRODUCE, version),
        is_flexible,
        _THROTTLE_AND_TAGS_BYTES if is_flexible else _THROTTLE_BYTES,
    )


def _read_short(header: RequestHeader, frame: bytearray) -> Message:
    """Decode an unchanged response for the usage record. Return {} if it is long or malformed."""
    if len(frame) > MAX_READ_BYTES:
        return {}
    try:
        return _read(header, frame)
    except ProtocolError:
        return {}


def _stored_topic(frame: bytearray, version: int, at: int) -> bytes | None:
    """Return the topic's name or id if a flexible Produce response has one partition, without an error.

    Return None for any other response.
    """
    end = len(frame)
    if end < at + 2 or frame[at] != ONE:
        return None
    if version >= IDS_SINCE:
        begin, at = at + 1, at + 17
    else:
        begin, at = at + 2, at + 1 + frame[at + 1]
    if at + 1 + _RESULT.size + _THROTTLE_AND_TAGS_BYTES != end or frame[at] != ONE or frame[end - 1]:
        return None
    _, error_code, _, _, _, *end_of_topic = _RESULT.unpack_from(frame, at + 1)
    return bytes(frame[begin:at]) if error_code == 0 and tuple(end_of_topic) == _RESULT_END else None


def _stored_topic_before(frame: bytearray, at: int) -> bytes | None:
    """Return the same for a response before version 9, of which only the first bytes are checked."""
    try:
        topics, size = FIRST_TOPIC.unpack_from(frame, at)
        begin = at + FIRST_TOPIC.size
        partitions, _, error_code = _FIRST_PARTITION.unpack_from(frame, begin + size)
    except struct.error:
        return None
    return bytes(frame[begin : begin + size]) if topics == partitions == 1 and not error_code else None


class KeptAnswers:
    """A cache of answers by the bytes of the responses: clients repeat their requests, and brokers their responses."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int, int, bytes], Encoded] = {}

    def answer(self, header: RequestHeader, response: Response, listener: str, make: Make) -> Answer:
        """Return the cached answer for these bytes, or call `make` and cache its answer. Raises what `make` raises."""
        if len(response.frame) > MAX_KEPT_BYTES:
            return Answer(make(header, response, listener))
        key = (listener, *header.api, bytes(memoryview(response.frame)[_PREFIX_BYTES:]))
        made = self._kept.get(key)
        if made is not None:
            return Answer(made.with_correlation_id(header.correlation_id))
        made = make(header, response, listener)
        if made.size <= MAX_KEPT_BYTES:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[key] = made.with_correlation_id(0)
        return Answer(made)


class Rewriter:
    """Rewrites addresses of brokers in responses, for the clients of each listener."""

    def __init__(self, addresses: Addresses) -> None:
        self.addresses = addresses
        self._kept = KeptAnswers()

    def answer(self, header: RequestHeader, response: Response, listener: str) -> Answer:
        """Return the answer with addresses of the gateway. Raises `ProtocolError`."""
        return self._kept.answer(header, response, listener, self._rewritten)

    def _rewritten(self, header: RequestHeader, response: Response, listener: str) -> Encoded:
        api_key, version, frame = header.api_key, header.api_version, response.frame
        if api_key == METADATA:
            frame = with_addresses(frame, version, _body_at(*header.api), self.addresses, listener)
            return encoded(header, Response(frame, len(frame) - LENGTH_BYTES, None))
        message = _read(header, frame)
        run_at_once(self.rewrite_in_slices(api_key, message, listener))
        return encode_response(api_key, version, header.correlation_id, message)

    def rewrite_in_slices(self, api_key: int, message: Message, listener: str) -> Generator[None, None, None]:
        """Replace the addresses in a decoded response other than Metadata, yielding after each."""
        yield from _REWRITERS[api_key](self.addresses, message, listener)


def _rewrite_coordinators(addresses: Addresses, message: Message, listener: str) -> _Slices:
    for each in message.get("coordinators", (message,)):
        if not addresses.rewrite_one(each, "node_id", listener):
            each |= {
                "error_code": error_codes.COORDINATOR_NOT_AVAILABLE,
                "node_id": -1,
                "host": "",
                "port": -1,
            }
        yield


def _rewrite_brokers(
    list_name: str, id_name: str, addresses: Addresses, message: Message, listener: str
) -> _Slices:
    """Replace addresses, and leave out brokers that have no port."""
    visible = []
    for each in message[list_name]:
        if addresses.rewrite_one(each, id_name, listener):
            visible.append(each)
        yield
    message[list_name] = visible


def _remove_controllers(_addresses: Addresses, message: Message, _listener: str) -> _Slices:
    """Remove the addresses of controllers (version 2), which the gateway does not serve. Clients do not need them."""
    if "nodes" in message:
        message["nodes"] = []
    yield


_rewrite_endpoints = partial(_rewrite_brokers, "node_endpoints", "node_id")
_REWRITERS: Mapping[int, Callable[[Addresses, Message, str], _Slices]] = {
    FIND_COORDINATOR: _rewrite_coordinators,
    DESCRIBE_CLUSTER: partial(_rewrite_brokers, "brokers", "broker_id"),
    DESCRIBE_QUORUM: _remove_controllers,
    SHARE_FETCH: _rewrite_endpoints,
    SHARE_ACKNOWLEDGE: _rewrite_endpoints,
}
REWRITTEN = frozenset({METADATA, *_REWRITERS})
"""The APIs whose responses carry addresses and are read as a whole. Produce carries them, too."""

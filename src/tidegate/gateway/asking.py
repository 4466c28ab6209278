"""Requests of the gateway's own on a client's connection to the broker, while the client waits for its answer.

The broker answers them with the rights of the client: what the client may not see, the gateway does not learn.
"""

from collections.abc import Generator

from tidegate.gateway.upstream import Response, Upstream
from tidegate.server.requests.handler import Answer, Deferred, Request, Wait
from tidegate.wire import Message, RequestHeader, encode_request, read_response
from tidegate.wire.encoded import LENGTH_BYTES
from tidegate.wire.header import decode_response_header

__all__ = ["UpstreamLostError", "ask_broker", "forward_message"]


class UpstreamLostError(Exception):
    """Raised where the connection to the broker has closed before its response: close the client's, too."""


def ask_broker(
    request: Request, api_key: int, api_version: int, message: Message
) -> Generator[Wait | None, None, Message]:
    """Send a request for the client of `request`, and return the decoded response. Raises `UpstreamLostError`."""
    upstream: Upstream = request.connection.upstream
    if upstream.closed:  # since the request before this one
        raise UpstreamLostError
    header = RequestHeader(api_key, api_version, request.header.correlation_id, request.header.client_id, 0)
    frame = memoryview(
        encode_request(api_key, api_version, header.correlation_id, header.client_id, message)
    )[LENGTH_BYTES:]
    found: list[Message] = []

    def read(header: RequestHeader, response: Response) -> Answer:
        data = memoryview(response.frame)[LENGTH_BYTES:]
        _, at = decode_response_header(data, api_key, api_version)
        found.append(read_response(api_key, api_version, data, at))
        return Answer(None)

    own = Request(header, frame, request.connection, request.quotas, request.now_ms)
    deferred = yield from _sent(upstream, own, read)
    if not deferred.is_complete:
        wait = Wait()
        deferred.when_ready(wait.resume)
        yield wait
    answer = deferred.answer()
    if answer.error is not None:
        raise answer.error
    if not found:
        raise UpstreamLostError
    return found[0]


def forward_message(request: Request, message: Message) -> Generator[Wait | None, None, Message]:
    """Send `message` in the place of the body of `request`, and return the decoded response."""
    return (yield from ask_broker(request, request.header.api_key, request.header.api_version, message))


def _sent(upstream: Upstream, own: Request, read: object) -> Generator[Wait | None, None, Deferred]:
    result = upstream.forward(own, read)  # type: ignore[arg-type]
    if isinstance(result, Deferred):
        return result
    return (yield from result)  # type: ignore[return-value]

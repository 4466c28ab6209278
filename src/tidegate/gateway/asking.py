"""The gateway's own requests on a client's connection to the broker, sent while the client waits for an answer.

The broker applies the rights of the client, so the gateway learns only what the client may see.
"""

from collections.abc import Generator

from tidegate.gateway.upstream import Upstream
from tidegate.gateway.upstream_response import Response
from tidegate.server.requests.handler import Answer, Request, Wait
from tidegate.wire import Message, RequestHeader, encode_request_in_slices, read_response_in_slices
from tidegate.wire.encoded import LENGTH_BYTES
from tidegate.wire.header import decode_response_header

__all__ = ["UpstreamLostError", "ask_broker"]


class UpstreamLostError(Exception):
    """Raised if the connection to the broker closed before its response. Close the client's connection, too."""


def ask_broker(
    request: Request, api_key: int, api_version: int, message: Message
) -> Generator[Wait | None, None, Message]:
    """Send a request for the client of `request`, and return the decoded response. Raises `UpstreamLostError`."""
    upstream: Upstream = request.connection.upstream
    header = RequestHeader(api_key, api_version, request.header.correlation_id, request.header.client_id, 0)
    frame = yield from encode_request_in_slices(
        api_key, api_version, header.correlation_id, header.client_id, message
    )
    if upstream.closed:  # it closed after the previous request
        raise UpstreamLostError
    found: list[memoryview] = []

    def keep(header: RequestHeader, response: Response) -> Answer:
        found.append(memoryview(response.frame)[LENGTH_BYTES:])
        return Answer(None)

    own = Request(
        header, memoryview(frame)[LENGTH_BYTES:], request.connection, request.quotas, request.now_ms
    )
    deferred = upstream.start(own, keep)
    yield from upstream.send_rest(own)
    if not deferred.is_complete:
        wait = Wait()
        deferred.when_ready(wait.resume)
        yield wait
    answer = deferred.answer()
    if answer.error is not None:
        raise answer.error
    if not found:
        raise UpstreamLostError
    _, at = decode_response_header(found[0], api_key, api_version)
    return (yield from read_response_in_slices(api_key, api_version, found[0], at))

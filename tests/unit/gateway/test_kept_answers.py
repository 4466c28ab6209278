"""Answers that are kept by the bytes of their responses."""

from tidegate import error_codes
from tidegate.api_keys import API_VERSIONS, FETCH
from tidegate.gateway.relay import narrowed
from tidegate.gateway.responses import MAX_KEPT, KeptAnswers
from tidegate.gateway.upstream_response import Response
from tidegate.wire import Encoded, RequestHeader, encode_response, read_response

VERSION = 3
OFFERED = {
    "error_code": 0,
    "api_keys": [
        {"api_key": FETCH, "min_version": 4, "max_version": 99},
        {"api_key": 999, "min_version": 0, "max_version": 7},
    ],
    "throttle_time_ms": 0,
}


def broker_response(correlation_id: int, offered: dict = OFFERED, version: int = VERSION) -> Response:
    """Return what a broker answers."""
    frame = bytearray(b"".join(encode_response(API_VERSIONS, version, correlation_id, offered).buffers))
    return Response(frame, len(frame) - 4, None)


def header(correlation_id: int) -> RequestHeader:
    """Return the header of a request."""
    return RequestHeader(API_VERSIONS, VERSION, correlation_id, "x", 0)


class Narrowing:
    """Counts the responses that are narrowed."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, header: RequestHeader, response: Response, listener: str) -> Encoded:
        """Narrow a response."""
        self.calls += 1
        return narrowed(header, response, listener)


def test_a_response_that_came_before_is_not_read_again() -> None:
    """The second client gets the same bytes, its own correlation id aside, and its own throttle time."""
    kept, narrow = KeptAnswers(), Narrowing()
    first, second, third = (
        kept.answer(header(number), broker_response(number), "", narrow).response for number in (7, 8, 9)
    )
    assert first is not None
    assert second is not None
    assert third is not None
    second.set_throttle_time_ms(1234)
    first_frame, second_frame, third_frame = (bytes(each.buffers[0]) for each in (first, second, third))
    assert narrow.calls == 1
    assert first_frame[8:] == third_frame[8:]
    assert [int.from_bytes(frame[4:8], "big") for frame in (first_frame, second_frame, third_frame)] == [
        7,
        8,
        9,
    ]
    throttled = read_response(API_VERSIONS, VERSION, memoryview(second_frame)[4:], 4)
    assert throttled["throttle_time_ms"] == 1234
    assert read_response(API_VERSIONS, VERSION, memoryview(third_frame)[4:], 4) == {
        **throttled,
        "throttle_time_ms": 0,
    }


def test_listeners_and_versions_have_answers_of_their_own() -> None:
    """Equal bytes can mean something else to a client of another listener, or of another version."""
    kept, narrow = KeptAnswers(), Narrowing()
    for listener in ("PLAINTEXT", "SSL"):
        kept.answer(header(1), broker_response(1), listener, narrow)
    kept.answer(RequestHeader(API_VERSIONS, 4, 1, "x", 0), broker_response(1), "SSL", narrow)
    assert narrow.calls == 3


def test_many_different_responses_are_forgotten() -> None:
    """A client that makes each response another one fills no memory."""
    kept, narrow = KeptAnswers(), Narrowing()
    for version in range(MAX_KEPT + 1):
        offered = {**OFFERED, "api_keys": [{"api_key": 999, "min_version": 0, "max_version": version}]}
        kept.answer(header(1), broker_response(1, offered), "", narrow)
    kept.answer(header(1), broker_response(1, {**OFFERED, "api_keys": offered["api_keys"]}), "", narrow)
    assert narrow.calls == MAX_KEPT + 1
    kept.answer(header(1), broker_response(1, {**OFFERED, "api_keys": []}), "", narrow)
    kept.answer(
        header(1),
        broker_response(1, {**OFFERED, "api_keys": [{"api_key": 999, "min_version": 0, "max_version": 0}]}),
        "",
        narrow,
    )
    assert narrow.calls == MAX_KEPT + 3


def test_a_refused_version_is_forwarded_as_it_came() -> None:
    """Its response is of version 0 (KIP-511), which has no throttle time to write."""
    refusal = {**OFFERED, "error_code": error_codes.UNSUPPORTED_VERSION}
    response = broker_response(5, refusal, version=0)
    sent = bytes(response.frame)
    answer = KeptAnswers().answer(header(5), response, "", narrowed)
    assert answer.response is not None
    answer.response.set_throttle_time_ms(1000)
    assert b"".join(answer.response.buffers) == sent

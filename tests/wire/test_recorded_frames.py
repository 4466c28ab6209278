"""Every byte that a real Apache Kafka 4.3.1 broker was sent, and sent, decodes as recorded and encodes to itself."""

import pytest
from tests.wire.messages import (
    Recorded,
    plain,
    raw_frames,
    recorded,
    recorded_files,
    response_body_at,
    same,
)

from tidegate.wire import (
    API_BY_KEY,
    ProtocolError,
    UnsupportedVersionError,
    decode_request_header,
    encode_request,
    encode_response,
    read_request,
    read_response,
    write_request,
)
from tidegate.wire.apis import spoken_pairs

EXCEPTIONS = {
    "frame-at-the-limit": "bytes after the body are ignored when read, so they do not come back",
    "frame-trailing-bytes": "bytes after the body are ignored when read, so they do not come back",
    "frame-unknown-header-tags": "tagged fields of the request header are skipped: none is known",
    "frame-header-tags-in-api-versions": "tagged fields of the request header are skipped: none is known",
    "frame-client-id-not-utf8": "a client id that is not UTF-8 is read with its wrong bytes replaced",
    "api-versions-unsupported-v": "the body of an ApiVersions version that is not spoken cannot be read",
    "sasl-api-versions-unsupported-then-supported": "the same",
    "sasl-handshake-v0-raw-token": "a bare SASL token, not a Kafka request",
}
"""Recordings that do not come back byte for byte (by how their scenario's name begins), and why."""

REFUSED_BY_LENGTH = (
    "frame-zero-length",
    "frame-length-one",
    "frame-negative-length",
    "frame-one-byte-over-the-limit",
    "frame-largest-length",
    "frame-http-get",
)
"""Frames whose length prefix alone makes a broker close the connection: what cuts frames refuses them."""

FILES = recorded_files()


def spoken(step: Recorded) -> bool:
    """Return whether the request is in a version that is spoken."""
    return API_BY_KEY[step.api_key].speaks(step.version)


def decode_all(frame):
    """Return the body of a request frame."""
    header = decode_request_header(frame)
    return read_request(header.api_key, header.api_version, frame, header.body_at)


def excepted(scenario: str) -> bool:
    """Return whether the recordings of a scenario are a stated exception."""
    return scenario.startswith(tuple(EXCEPTIONS))


@pytest.mark.parametrize("name", FILES)
def test_requests_decode_as_recorded(name):
    """A recorded request has the recorded header and body."""
    for step in filter(spoken, recorded(name)):
        header = decode_request_header(step.request)
        found = header.api_key, header.api_version, header.correlation_id
        assert found == (step.api_key, step.version, step.correlation_id), step.where
        message = read_request(header.api_key, header.api_version, step.request, header.body_at)
        if step.request_plain is not None:
            assert same(plain(message), step.request_plain), step.where


@pytest.mark.parametrize("name", FILES)
def test_requests_encode_to_themselves(name):
    """A recorded request, decoded and encoded again, is the recorded one to the byte."""
    for step in filter(spoken, recorded(name)):
        header = decode_request_header(step.request)
        message = read_request(header.api_key, header.api_version, step.request, header.body_at)
        body = write_request(header.api_key, header.api_version, message)
        assert body == step.request[header.body_at :], step.where
        if not excepted(step.scenario):
            frame = encode_request(step.api_key, step.version, step.correlation_id, step.client_id, message)
            assert frame[4:] == step.request, step.where


@pytest.mark.parametrize("name", FILES)
def test_responses_decode_as_recorded_and_encode_to_themselves(name):
    """A recorded response has the recorded body, and encoded again it is the recorded one to the byte."""
    for step in filter(spoken, recorded(name)):
        if step.response is None:
            continue
        at = response_body_at(step.api_key, step.version)
        message = read_response(step.api_key, step.version, step.response, at)
        assert same(plain(message), step.response_plain), step.where
        encoded = encode_response(step.api_key, step.version, step.correlation_id, message)
        frame = b"".join(encoded.buffers)
        assert frame[4:] == step.response, step.where
        assert (int.from_bytes(frame[:4]), encoded.size) == (len(step.response), len(step.response))
        assert encoded.body_size == len(step.response) - at


UNSPOKEN = [
    frame for frame in raw_frames("response") if frame.scenario.startswith("api-versions-unsupported-v")
]


@pytest.mark.parametrize("frame", UNSPOKEN, ids=lambda frame: frame.scenario)
def test_unspoken_versions_carry_their_header(frame):
    """ApiVersions in a version that is not spoken is refused with what is needed to answer it in the form of v0."""
    with pytest.raises(UnsupportedVersionError) as caught:
        decode_request_header(frame.content)
    error = caught.value
    assert (error.api_key, error.correlation_id, error.client_id) == (18, 77, "abc")
    assert error.api_version not in range(5)
    answer = read_response(18, 0, frame.answer, 4)
    assert answer["error_code"] == 35
    assert b"".join(encode_response(18, 0, error.correlation_id, answer).buffers)[4:] == frame.answer


@pytest.mark.parametrize("frame", raw_frames("response"), ids=lambda frame: frame.scenario)
def test_odd_frames_that_a_broker_answers_are_read(frame):
    """What a broker answered although it is odd is read, and comes back unless it is a stated exception."""
    if frame.scenario == "sasl-handshake-v0-raw-token":
        return
    if frame.scenario.startswith(("api-versions-unsupported", "sasl-api-versions-unsupported")):
        with pytest.raises(UnsupportedVersionError):
            decode_request_header(frame.content)
        return
    header = decode_request_header(frame.content)
    message = read_request(header.api_key, header.api_version, frame.content, header.body_at)
    again = encode_request(
        header.api_key, header.api_version, header.correlation_id, header.client_id, message
    )[4:]
    assert (again == frame.content) != excepted(frame.scenario)


@pytest.mark.parametrize("frame", raw_frames("closed"), ids=lambda frame: frame.scenario)
def test_frames_that_a_broker_closes_on_are_refused(frame):
    """What made a broker close the connection is a protocol error in the header or in the body."""
    if frame.scenario in REFUSED_BY_LENGTH:
        return
    with pytest.raises(ProtocolError):
        decode_all(frame.content)


def test_every_exception_is_there_and_has_its_reason():
    """The stated list of exceptions names only recordings that exist."""
    names = {step.scenario for name in FILES for step in recorded(name)}
    names |= {frame.scenario for frame in raw_frames("response")}
    assert all(any(name.startswith(start) for name in names) for start in EXCEPTIONS)
    assert all(EXCEPTIONS.values())


def test_recordings_cover_nearly_all_that_is_spoken():
    """All but eleven of the spoken (API, version) pairs have a recorded request and response."""
    seen = {(step.api_key, step.version) for name in FILES for step in recorded(name) if step.response}
    assert len(set(spoken_pairs()) - seen) == 11

"""Any message of any API and version comes back as it was, from bytes and from dicts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.messages import all_layouts, has_throttle_time_ms, messages, response_body_at, title

from tidegate.wire import (
    API_BY_KEY,
    ProtocolError,
    encode_response,
    encode_response_in_slices,
    read_request,
    read_request_in_slices,
    read_response,
    write_request,
    write_response,
)
from tidegate.wire.apis import spoken_pairs
from tidegate.wire.codec_types import MALFORMED
from tidegate.wire.codecs import AT_ONCE_BYTES, SLICED_REQUEST_READERS, protocol_error

FEW = settings(max_examples=4)


def fixed(message):
    """Return the message with its records, slices of a buffer, as bytes."""
    if isinstance(message, dict):
        return {key: fixed(value) for key, value in message.items()}
    if isinstance(message, list):
        return [fixed(value) for value in message]
    return bytes(message) if isinstance(message, memoryview) else message


@pytest.mark.parametrize("case", list(all_layouts()), ids=title)
def test_message_comes_back(case):
    """What is written is read back as it was, and written again it is the same bytes."""
    key, version, direction = case
    read, write = (read_request, write_request) if direction == "request" else (read_response, write_response)

    @FEW
    @given(messages(*case))
    def comes_back(message):
        body = write(key, version, message)
        found = fixed(read(key, version, body))
        assert found == message
        assert write(key, version, found) == body
        assert fixed(read(key, version, b"\0\0\0" + body + b"more", 3)) == message

    comes_back()


@pytest.mark.parametrize(
    "pair", list(spoken_pairs()), ids=lambda pair: f"{API_BY_KEY[pair[0]].name}-v{pair[1]}"
)
def test_throttle_time_is_patched_in_place(pair):
    """Setting the throttle time of an encoded response changes that field alone, where the version has it.

    A longer one that is there stays.
    """
    key, version = pair

    @FEW
    @given(messages(key, version, "response"), st.integers(0, 2**31 - 1))
    def patched(message, throttle_time_ms):
        encoded = encode_response(key, version, 1, message)
        before = b"".join(map(bytes, encoded.buffers))
        encoded.set_throttle_time_ms(throttle_time_ms)
        after = b"".join(map(bytes, encoded.buffers))
        if not has_throttle_time_ms(API_BY_KEY[key], version):
            assert after == before
            return
        at = response_body_at(key, version) + 4
        assert fixed(read_response(key, version, after, at)) == {
            **message,
            "throttle_time_ms": max(message["throttle_time_ms"], throttle_time_ms),
        }

    patched()


def finished(slices):
    """Run a generator to its end; return what it returns and how often it yielded."""
    count = 0
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return end.value, count
        count += 1


@pytest.mark.parametrize(
    "pair", list(spoken_pairs()), ids=lambda pair: f"{API_BY_KEY[pair[0]].name}-v{pair[1]}"
)
def test_slices_read_and_write_the_same(pair):
    """What is read, written or refused in slices is what is read, written or refused in one step."""
    key, version = pair

    @FEW
    @given(messages(key, version, "request"), st.integers(0, 2**16))
    def reads_the_same(message, cut):
        body = write_request(key, version, message)
        long_body = bytes(5) + body + bytes(AT_ONCE_BYTES)
        found, _ = finished(read_request_in_slices(key, version, long_body, 5))
        assert fixed(found) == fixed(read_request(key, version, long_body, 5)) == message
        program = SLICED_REQUEST_READERS[key, version]
        cut_body = memoryview(body[: cut % (len(body) + 1)])
        if len(cut_body) < len(body):
            with pytest.raises(ProtocolError) as plain:
                read_request(key, version, cut_body)
            with pytest.raises(MALFORMED) as sliced:
                finished(program.function(cut_body, 0))
            assert str(protocol_error(program, sliced.value)) == str(plain.value)

    @FEW
    @given(messages(key, version, "response"))
    def writes_the_same(message):
        plain = encode_response(key, version, 7, message)
        sliced, _ = finished(encode_response_in_slices(key, version, 7, message))
        assert b"".join(sliced.buffers) == b"".join(plain.buffers)
        assert (sliced.size, sliced.body_size) == (plain.size, plain.body_size)
        assert sliced.throttle_at == plain.throttle_at

    reads_the_same()
    writes_the_same()

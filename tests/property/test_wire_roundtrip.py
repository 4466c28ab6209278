"""Any message of any API and version comes back as it was, from bytes and from dicts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.messages import all_layouts, messages, response_body_at, title

from tidegate.wire import (
    API_BY_KEY,
    encode_response,
    read_request,
    read_response,
    write_request,
    write_response,
)
from tidegate.wire.apis import spoken_pairs

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
    """Setting the throttle time of an encoded response changes that field alone, where the version has it."""
    key, version = pair

    @FEW
    @given(messages(key, version, "response"), st.integers(0, 2**31 - 1))
    def patched(message, throttle_time_ms):
        encoded = encode_response(key, version, 1, message)
        before = b"".join(map(bytes, encoded.buffers))
        encoded.set_throttle_time_ms(throttle_time_ms)
        after = b"".join(map(bytes, encoded.buffers))
        if not API_BY_KEY[key].has_throttle_time_ms(version):
            assert after == before
            return
        at = response_body_at(key, version) + 4
        assert fixed(read_response(key, version, after, at)) == {
            **message,
            "throttle_time_ms": throttle_time_ms,
        }

    patched()

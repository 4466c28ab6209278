"""Facts of protocol errors are attributes."""

from tidegate.errors import TidegateError
from tidegate.wire.errors import MessageError, ProtocolError, UnsupportedVersionError


def test_protocol_error_is_a_value_error_with_place():
    """A protocol error is both ours and a ValueError, and knows the field and the byte."""
    error = ProtocolError("x", path="topics[0].name", byte_offset=9)
    assert isinstance(error, TidegateError)
    assert isinstance(error, ValueError)
    assert (error.path, error.byte_offset, error.hint) == ("topics[0].name", 9, None)


def test_unsupported_version_carries_the_header():
    """What is needed to answer an ApiVersions request of an unknown version is on the error."""
    error = UnsupportedVersionError("x", api_key=18, api_version=99, correlation_id=7, client_id="c")
    assert isinstance(error, ProtocolError)
    assert (error.api_key, error.api_version, error.correlation_id, error.client_id) == (18, 99, 7, "c")


def test_message_error_is_no_protocol_error():
    """A message of our own that cannot be written is not the client's fault."""
    assert not isinstance(MessageError("x", path=""), ProtocolError)

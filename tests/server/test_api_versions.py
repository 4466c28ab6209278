"""ApiVersions: what is remembered of a client's software is bounded, whatever clients say."""

import tracemalloc

from tidegate.api_keys import API_VERSIONS
from tidegate.server.handlers.api_versions import (
    MAX_KNOWN_SOFTWARE,
    MAX_SOFTWARE_CHARS,
    api_versions_handler,
)
from tidegate.server.requests.handler import Answer, Connection, Request
from tidegate.wire import decode_request_header, encode_request, read_response

VERSION = 3


def told(name: str, version: str, rest: bytes = b"") -> Request:
    """Return the request of a client that names its software."""
    message = {"client_software_name": name, "client_software_version": version}
    frame = memoryview(encode_request(API_VERSIONS, VERSION, 7, "c", message)[4:] + rest)
    connection = Connection(1, "PLAINTEXT", "127.0.0.1", "127.0.0.1", 9092)
    return Request(decode_request_header(frame), frame, connection, None, 0)


def error_code(answer: Answer) -> int:
    """Return the error code of an answer."""
    found: int = read_response(API_VERSIONS, VERSION, b"".join(answer.response.buffers), 8)["error_code"]
    return found


def test_software_is_remembered_on_its_connection() -> None:
    """Name and version are told once or again, by one client or several."""
    handle = api_versions_handler([0, 1])
    for name in ("librdkafka", "librdkafka", "apache-kafka-java"):
        request = told(name, "4.3.1")
        assert error_code(handle(request)) == 0
        assert request.connection.software == (name, "4.3.1")


def test_long_names_are_cut() -> None:
    """A name as long as a string can be is taken, and its first letters remembered."""
    request = told("n" * 32_767, "v" * 32_767)
    assert error_code(api_versions_handler([0])(request)) == 0
    assert request.connection.software == ("n" * MAX_SOFTWARE_CHARS, "v" * MAX_SOFTWARE_CHARS)


def test_known_software_is_bounded_in_bytes() -> None:
    """Many names, long ones and megabytes behind them leave at most a kilobyte for each that is known."""
    handle = api_versions_handler([0])
    handle(told("n", "1"))
    tracemalloc.start()
    try:
        for number in range(3 * MAX_KNOWN_SOFTWARE):
            handle(told("n" * 100 + str(number), "1"))
            handle(told("n" * 200, "v" * 200 + str(number)))
        handle(told("n", "1", bytes(1_000_000)))
        assert tracemalloc.get_traced_memory()[0] < MAX_KNOWN_SOFTWARE * 1024
    finally:
        tracemalloc.stop()

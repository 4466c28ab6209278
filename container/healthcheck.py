"""Health check of the container: sends an ApiVersions request, which is also answered before a login.

    python healthcheck.py [HOST:PORT]

Exits with 0 if the broker answers, else with 1 and the reason. The listener must not use TLS.
"""

import socket
import struct
import sys

ADDRESS = "127.0.0.1:9092"
TIMEOUT_S = 4.0
ANSWER_BYTES_MAX = 1 << 20

CLIENT_ID = b"tidegate-healthcheck"
CORRELATION_ID = 1
# ApiVersions (key 18) version 0 has no body.
HEADER = struct.pack(f">hhih{len(CLIENT_ID)}s", 18, 0, CORRELATION_ID, len(CLIENT_ID), CLIENT_ID)


def receive(sock: socket.socket, size: int) -> bytes:
    """Return exactly `size` bytes. Raises `ConnectionError` if the connection ends first."""
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise ConnectionError("the broker closed the connection")
        data += part
    return data


def check(address: str) -> None:
    """Ask the broker for its versions. Raises `OSError` or `ValueError` if it does not answer as a broker does."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as sock:
        sock.sendall(struct.pack(">i", len(HEADER)) + HEADER)
        (size,) = struct.unpack(">i", receive(sock, 4))
        if not 6 <= size <= ANSWER_BYTES_MAX:
            raise ValueError(f"the answer has {size} bytes, expected 6 to {ANSWER_BYTES_MAX}")
        correlation_id, error_code = struct.unpack_from(">ih", receive(sock, size))
    if (correlation_id, error_code) != (CORRELATION_ID, 0):
        raise ValueError(f"the answer has correlation id {correlation_id} and error {error_code}")


def main() -> int:
    """Return the exit code."""
    address = sys.argv[1] if len(sys.argv) > 1 else ADDRESS
    try:
        check(address)
    except (OSError, ValueError) as error:
        print(f"no broker at {address}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

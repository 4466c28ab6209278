"""A small server that passes for a cluster of one broker, and breaks the protocol for the clients that ask it to."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterable

from tidegate.api_keys import API_VERSIONS, FETCH, FIND_COORDINATOR, LIST_OFFSETS, METADATA, PRODUCE
from tidegate.wire import ProtocolError, RequestHeader, decode_request_header, encode_response

BROKER_ID = 1
_SERVED = {
    PRODUCE: (3, 9), FETCH: (4, 11), LIST_OFFSETS: (1, 5), METADATA: (0, 9), FIND_COORDINATOR: (0, 3),
    API_VERSIONS: (0, 3),
}  # fmt: skip

Lie = Callable[[socket.socket, RequestHeader], None]
"""Answers a request in its own way."""


class LyingBroker:
    """The server. A client whose id is a key of `lies` is answered by that function; any other one honestly.

    options: level, name and value of socket options of its connections.
    """

    def __init__(self, options: Iterable[tuple[int, int, int]] = ()) -> None:
        self.lies: dict[str, Lie] = {}
        self._listener = socket.create_server(("127.0.0.1", 0))
        for option in options:
            self._listener.setsockopt(*option)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        """Return the address of the server."""
        return f"127.0.0.1:{self.port}"

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.close()

    def answer(self, sock: socket.socket, header: RequestHeader) -> None:
        """Answer a request: by the lie for its client, or honestly."""
        lie = self.lies.get(header.client_id)
        if lie is None:
            sock.sendall(self.honest_frame(header))
        else:
            lie(sock, header)

    def honest_frame(self, header: RequestHeader) -> bytes:
        """Return the right answer to a request, length prefix included."""
        message = getattr(self, f"_api_{header.api_key}")()
        encoded = encode_response(header.api_key, header.api_version, header.correlation_id, message)
        return b"".join(encoded.buffers)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock = self._listener.accept()[0]
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError, ProtocolError):
            while frame := _receive(sock):
                header = decode_request_header(memoryview(frame))
                self.answer(sock, header)

    def _api_18(self) -> dict:
        keys = [
            {"api_key": key, "min_version": least, "max_version": most}
            for key, (least, most) in _SERVED.items()
        ]
        return {"error_code": 0, "api_keys": keys, "throttle_time_ms": 0}

    def metadata(self) -> dict:
        """Return the right answer to Metadata."""
        broker = {"node_id": BROKER_ID, "host": "127.0.0.1", "port": self.port, "rack": None}
        return {
            "throttle_time_ms": 0,
            "brokers": [broker],
            "cluster_id": "lies",
            "controller_id": BROKER_ID,
            "topics": [],
            "cluster_authorized_operations": 0,
        }

    _api_3 = metadata

    def _api_10(self) -> dict:
        broker = {"node_id": BROKER_ID, "host": "127.0.0.1", "port": self.port}
        return {"throttle_time_ms": 0, "error_code": 0, "error_message": None, **broker}

    def _api_2(self) -> dict:
        return {"throttle_time_ms": 0, "topics": []}

    def _api_0(self) -> dict:
        return {"responses": [], "throttle_time_ms": 0}

    def _api_1(self) -> dict:
        return {"throttle_time_ms": 0, "error_code": 0, "session_id": 0, "responses": []}


class LyingCluster(LyingBroker):
    """A server that passes for a cluster of brokers at several ports, by id."""

    def __init__(self, ports: dict[int, int]) -> None:
        super().__init__()
        self.ports = {1: self.port, **ports}

    def _api_3(self) -> dict:
        brokers = [
            {"node_id": each, "host": "127.0.0.1", "port": port, "rack": None}
            for each, port in self.ports.items()
        ]
        return {**self.metadata(), "brokers": brokers}


def _receive(sock: socket.socket) -> bytes:
    """Return the next request without its length, b"" where the connection has ended."""
    head = sock.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        return b""
    (size,) = struct.unpack(">i", head)
    return sock.recv(size, socket.MSG_WAITALL)

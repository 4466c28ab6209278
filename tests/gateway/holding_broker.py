"""A server that passes for a broker and keeps requests until it is asked to answer, and clients that pipeline."""

import contextlib
import socket
import threading
from collections.abc import Iterable
from pathlib import Path

from tests.e2e.plain_client import receive_frame
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.lying_broker import BROKER_ID, LyingBroker
from tests.gateway.raw_client import produced
from tests.wire.odd_messages import plain_message

from tidegate.api_keys import METADATA, PRODUCE
from tidegate.wire import RequestHeader, encode_request, read_response

__all__ = ["HoldingBroker", "connected", "correlation_ids", "ids_of", "produce", "started", "throttle_ms"]

TIMEOUT_S = 20.0


class HoldingBroker(LyingBroker):
    """A broker that keeps requests of some clients until `release`. seen: the requests by client id, as they come."""

    def __init__(self, options: Iterable[tuple[int, int, int]] = ()) -> None:
        super().__init__(options)
        self.seen: dict[str, list[RequestHeader]] = {}
        self._held: dict[str, list[tuple[socket.socket, RequestHeader]]] = {}
        self._lock = threading.Lock()

    def hold(self, client_id: str) -> None:
        """Answer no request of a client."""
        self.seen.pop(client_id, None)
        self._held[client_id] = []

    def release(self, client_id: str) -> None:
        """Answer what is held, and what follows."""
        with self._lock, contextlib.suppress(OSError):
            for sock, header in self._held.pop(client_id):
                super().answer(sock, header)

    def answer(self, sock: socket.socket, header: RequestHeader) -> None:
        """Answer a request, unless its client's are held."""
        with self._lock:
            self.seen.setdefault(header.client_id, []).append(header)
            held = self._held.get(header.client_id)
            if held is not None:
                held.append((sock, header))
                return
        super().answer(sock, header)


def started(directory: Path, broker: HoldingBroker, limited: Iterable[str], rate: int) -> GatewayProcess:
    """Return a running gateway. limited: the client ids that may produce `rate` bytes per second."""
    quotas = directory / "quotas.yaml"
    entries = [f"  - client-id: {{name: {name}}}\n    producer_byte_rate: {rate}\n" for name in limited]
    quotas.write_text("quotas:\n" + "".join(entries))
    return GatewayProcess(directory, broker.address, ("--quotas", str(quotas))).start()


def connected(gateway: GatewayProcess) -> socket.socket:
    """Return a connection to the gateway, with one to the broker behind it."""
    sock = socket.create_connection(("127.0.0.1", gateway.ports[BROKER_ID]), timeout=TIMEOUT_S)
    sock.sendall(encode_request(METADATA, 9, 0, "opening", plain_message(METADATA, 9)))
    receive_frame(sock)
    return sock


def produce(correlation_id: int, client_id: str, size: int = 100, acks: int = 1) -> bytes:
    """Return a Produce request with its length."""
    return encode_request(PRODUCE, 9, correlation_id, client_id, produced("topic", size, acks=acks))


def throttle_ms(frame: bytes) -> int:
    """Return the throttle time of a Produce response."""
    return int(read_response(PRODUCE, 9, memoryview(frame), 5)["throttle_time_ms"])


def ids_of(broker: HoldingBroker, client_id: str) -> list[int]:
    """Return the correlation ids that have come of a client."""
    return [header.correlation_id for header in broker.seen.get(client_id, ())]


def correlation_ids(client: socket.socket, count: int) -> list[int]:
    """Receive responses; return their correlation ids."""
    return [int.from_bytes(receive_frame(client)[:4], "big") for _ in range(count)]

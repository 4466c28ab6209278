"""TLS sessions that a gateway could resume at brokers: at how many connections Kafka accepts one, and what each costs.

The gateway makes a full handshake for each connection (decision 0129). Run with `-s` to see the times.
"""

import socket
import ssl
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.server.connection.tls_client import client_context, server_context

from tidegate.api_keys import API_VERSIONS
from tidegate.wire import encode_request

NETWORK_THREADS = 3
"""Kafka's default of `num.network.threads`. Each has the TLS sessions of its own connections."""
ROUNDS = 4
CONNECTIONS = 300
HOST = "localhost"
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
REQUEST = encode_request(API_VERSIONS, 0, 1, "x", {})


@pytest.mark.parametrize("version", VERSIONS)
def test_kafka_resumes_a_session_at_one_network_thread(secure_kafka, version: ssl.TLSVersion):
    """The broker gives its connections to the threads in turn, and each has sessions of its own."""
    context = ssl.create_default_context(cafile=str(secure_kafka.certificates.authority_file))
    context.maximum_version = version
    kept, resumed = None, []
    for _ in range(1 + ROUNDS * NETWORK_THREADS):
        with (
            socket.create_connection((HOST, secure_kafka.ports["TLS"]), timeout=20) as sock,
            context.wrap_socket(sock, server_hostname=HOST, session=kept) as client,
        ):
            client.sendall(REQUEST)
            assert client.recv(1 << 16), "the tickets come before the response"
            resumed.append(bool(client.session_reused))
            kept = kept or client.session
    assert sum(resumed) == ROUNDS, resumed


class Client:
    """The client's end of a connection, and the time that its calls take."""

    def __init__(self, context: ssl.SSLContext, session: ssl.SSLSession | None) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.took_ns = 0
        with self.measured():
            self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname=HOST, session=session)

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Add the processor time of a call."""
        before_ns = time.thread_time_ns()
        yield
        self.took_ns += time.thread_time_ns() - before_ns

    def connect(self, context: ssl.SSLContext) -> ssl.SSLObject:
        """Shake hands with a server, and receive a byte from it; return the server's end."""
        server = context.wrap_bio(self.outgoing, self.incoming, server_side=True)
        ready = [False, False]
        while not all(ready):
            with self.measured():
                ready[0] = shakes_hands(self.tls)
            ready[1] = shakes_hands(server)
        server.write(b"x")
        with self.measured():
            assert self.tls.read(1) == b"x"
        return server


def shakes_hands(end: ssl.SSLObject) -> bool:
    """Run one step of a handshake; return whether the handshake is complete."""
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


@pytest.mark.parametrize("version", VERSIONS)
def test_times_of_handshakes(version: ssl.TLSVersion):
    """A handshake that resumes a session takes less than a full one, and one whose session is refused takes more."""
    client, server, other = client_context(maximum_version=version), server_context(), server_context()
    first = Client(client, None)
    first.connect(server)
    kept = first.tls.session
    times: dict[str, list[int]] = {"full": [], "resumed": [], "refused": []}
    for _ in range(CONNECTIONS):
        for kind, session, context in (
            ("full", None, server),
            ("resumed", kept, server),
            ("refused", kept, other),
        ):
            one = Client(client, session)
            one.connect(context)
            assert bool(one.tls.session_reused) == (kind == "resumed")
            times[kind].append(one.took_ns)
    found = {kind: statistics.median(each) / 1000 for kind, each in times.items()}
    mean = (found["resumed"] + (NETWORK_THREADS - 1) * found["refused"]) / NETWORK_THREADS
    print(
        f"\n{version.name}, processor time of the client in us:",
        *(f"{kind} {took:.0f}," for kind, took in found.items()),
        f"mean if one of {NETWORK_THREADS} is resumed {mean:.0f}",
    )
    assert found["resumed"] < found["full"] < found["refused"]

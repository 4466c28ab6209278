"""What those who do not log in may cost those who have."""

import contextlib
import selectors
import socket

import pytest
from tests.e2e.tls_broker import TlsBroker
from tests.limits.bounds import judge_work
from tests.limits.frames import size
from tests.limits.hello_flood import client_hello
from tests.limits.test_many import CONNECTION_BYTES
from tests.limits.watched import TIMEOUT_S, Connection, Exchanged, WatchedBroker

pytestmark = pytest.mark.alone

HANDSHAKES = size(1000, 5000)
HANDSHAKE_BYTES = 60_000
"""What OpenSSL takes for one that is under way."""


class WatchedTlsBroker(WatchedBroker, TlsBroker):
    """A watched broker with listeners of every protocol; `port` is the plain one's."""

    def __init__(self, directory, **more):
        TlsBroker.__init__(self, directory, **more)

    def start(self):
        """Start the process and wait until it listens."""
        self.spawn()
        self.port = self.listener_ports()["PLAIN"]
        return self


def test_many_handshakes_at_once(tmp_path):
    """A thousand clients begin a handshake in one moment, which costs them nothing: others hardly wait for it."""
    broker = WatchedTlsBroker(tmp_path)
    broker.start()
    hello = client_hello()
    with contextlib.ExitStack() as ending:
        ending.callback(broker.close)
        with Connection(broker.port) as client:
            client.create("neighbour")
        broker.start_neighbour("neighbour")
        broker.wait_quiet()
        port = broker.listener_ports()["TLS"]

        def begin_all() -> Exchanged:
            with selectors.DefaultSelector() as selector, contextlib.ExitStack() as opened:
                for _ in range(HANDSHAKES):
                    client = opened.enter_context(socket.create_connection(("127.0.0.1", port), TIMEOUT_S))
                    selector.register(client, selectors.EVENT_READ)
                for key in list(selector.get_map().values()):
                    key.fileobj.send(hello)
                while selector.get_map():
                    ready = selector.select(TIMEOUT_S)
                    assert ready, "the broker answers nothing"
                    for key, _ in ready:
                        assert key.fileobj.recv(1)
                        selector.unregister(key.fileobj)
            return Exchanged(HANDSHAKES * len(hello))

        room = HANDSHAKES * (HANDSHAKE_BYTES + CONNECTION_BYTES)
        judge_work(broker, begin_all, may_take_bytes=room, may_keep_bytes=room)
        assert "Traceback" not in broker.log

"""A proxy in front of a broker that stops forwarding requests, for tests that interrupt a command at work."""

import contextlib
import socket
import threading
from collections.abc import Callable

_CHUNK_BYTES = 65_536


class HoldingProxy:
    """Forwards connections to a broker.

    begins: asked before each piece of a request; from when it is true, `most_bytes` more are forwarded, then none.
    """

    def __init__(self, *, begins: Callable[[], bool], most_bytes: int) -> None:
        self.target = ("127.0.0.1", 0)
        self.is_held = threading.Event()
        self._begins = begins
        self._left_bytes = most_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(self.target)
                for source, sink, counts in ((client, broker, True), (broker, client, False)):
                    threading.Thread(target=self._forward, args=(source, sink, counts), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, counts: bool) -> None:
        with source, sink, contextlib.suppress(OSError):
            while chunk := source.recv(_CHUNK_BYTES):
                if counts and self._begins():
                    self._left_bytes -= len(chunk)
                    if self._left_bytes < 0:
                        self.is_held.set()
                        while source.recv(_CHUNK_BYTES):
                            pass
                        return
                sink.sendall(chunk)

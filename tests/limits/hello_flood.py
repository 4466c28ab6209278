"""A process that floods a TLS listener with the same ClientHello, from a source address of its own.

    python hello_flood.py PORT SOURCE leave|stay

`leave` closes each connection at once, `stay` keeps as many as `KEPT` open. It prints a line once it has sent `BEGUN`
hellos, and how many it has sent when its standard input ends.
"""

import collections
import contextlib
import select
import socket
import ssl
import sys

KEPT = 2000
BEGUN = 500


def client_hello() -> bytes:
    """Return what a client begins a handshake with."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def main(port: int, source: str, how: str) -> None:
    """Send hellos until the standard input ends."""
    hello, sent = client_hello(), 0
    kept: collections.deque[socket.socket] = collections.deque()
    while sent % 50 or not select.select([sys.stdin], [], [], 0)[0]:
        client = socket.socket()
        client.settimeout(1)
        with contextlib.suppress(OSError):
            client.bind((source, 0))
            client.connect(("127.0.0.1", port))
            client.send(hello)
        sent += 1
        kept.append(client)
        while len(kept) > (KEPT if how == "stay" else 0):
            kept.popleft().close()
        if sent == BEGUN:
            print("begun", flush=True)
    print(sent, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])

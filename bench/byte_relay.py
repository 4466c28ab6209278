"""The least that a gateway in Python can do: copy bytes between each client and the broker, and read none of them.

`python bench/byte_relay.py PORT UPSTREAM_PORT`, both at 127.0.0.1. One thread, one poll for all sockets. It has no
quotas, no record, no back-pressure: `bench_gateway --floor` measures it beside the gateway, for what is the language's.
"""

import select
import socket
import sys

_LONGEST_READ = 1 << 20


def relay(port: int, upstream_port: int) -> None:
    """Serve until the process is stopped."""
    server = socket.create_server(("127.0.0.1", port), backlog=256)
    poll = select.epoll()
    poll.register(server.fileno(), select.EPOLLIN)
    buffer = memoryview(bytearray(_LONGEST_READ))
    peers: dict[int, tuple[socket.socket, socket.socket]] = {}
    while True:
        for number, _ in poll.poll():
            if number == server.fileno():
                client, _ = server.accept()
                upstream = socket.create_connection(("127.0.0.1", upstream_port))
                for one, other in ((client, upstream), (upstream, client)):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    poll.register(one.fileno(), select.EPOLLIN)
                    peers[one.fileno()] = one, other
            elif number in peers:
                one, other = peers[number]
                try:
                    size = one.recv_into(buffer)
                    other.sendall(buffer[:size])
                except OSError:
                    size = 0
                if not size:
                    for each in (one, other):
                        del peers[each.fileno()]
                        each.close()


if __name__ == "__main__":
    relay(int(sys.argv[1]), int(sys.argv[2]))

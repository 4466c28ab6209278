"""Several accept queues for one address and port, so that clients of one address fill one queue and not all.

The kernel keeps connections that are not accepted yet in the queue of their listening socket. When that queue is full
it drops attempts to connect, and a client tries again after a second. With one queue, an address that connects faster
than the broker accepts would delay all others. Here the kernel chooses the queue by the client's address (IPv6: /64).

    queues = bind_queues(sock)  # sockets of the same address; `sock` is the first
    listen_on(queues, backlog=1000)

Several processes may have such queues at one address (`Spread`). For each connection, the kernel then chooses the
process at random, and its queue by the client's address.

Where the system cannot do that (only Linux can), there is one queue.
Follows: Linux `SO_REUSEPORT`, `SO_ATTACH_REUSEPORT_CBPF` (socket(7)).
"""

import contextlib
import socket
import struct
import sys
from array import array
from dataclasses import dataclass

__all__ = ["ONE_PROCESS", "QUEUES", "Spread", "bind_queues", "listen_on"]

QUEUE_BITS = 4
QUEUES = 1 << QUEUE_BITS
"""Accept queues of a listener, each with a descriptor."""

_SO_ATTACH_REUSEPORT_CBPF = 51  # not in Python's `socket`
_NETWORK_HEADER = 0xFFF00000  # SKF_NET_OFF: offsets count from the header of IPv4 or IPv6
_IPV4_SOURCE, _IPV6_SOURCE = 12, 8
_SPREAD = 0x9E3779B1  # 2^32 over the golden ratio: neighbouring addresses get different queues
_RANDOM = 0xFFFFF000 + 56  # SKF_AD_OFF + SKF_AD_RANDOM
_PROGRAM = (  # code, jump if true, jump if false, operand: the classic BPF of linux/filter.h
    (0x30, 0, 0, _NETWORK_HEADER),  # A = first byte
    (0x74, 0, 0, 4),  # A >>= 4, the IP version
    (0x15, 0, 2, 4),  # not 4: continue with IPv6, behind the next two
    (0x20, 0, 0, _NETWORK_HEADER + _IPV4_SOURCE),  # A = source address
    (0x05, 0, 0, 4),  # continue with the product
    (0x20, 0, 0, _NETWORK_HEADER + _IPV6_SOURCE),
    (0x07, 0, 0, 0),  # X = A
    (0x20, 0, 0, _NETWORK_HEADER + _IPV6_SOURCE + 4),
    (0xAC, 0, 0, 0),  # A ^= X
    (0x24, 0, 0, _SPREAD),  # A *= ...
    (0x74, 0, 0, 32 - QUEUE_BITS),  # the highest bits of the product
)
_RETURN = ((0x16, 0, 0, 0),)  # return A, the index of the queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The processes that accept the connections of an address. joins: another process may have bound it before."""

    processes: int = 1
    joins: bool = False


ONE_PROCESS = Spread()


def bind_queues(sock: socket.socket) -> list[socket.socket]:
    """Return a bound socket, and more that are bound to the same address: one for each queue.

    `sock` was bound without SO_REUSEPORT, so a port that another program uses was refused.
    """
    if sys.platform != "linux":
        return [sock]
    with contextlib.suppress(OSError), contextlib.ExitStack() as closing:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        queues = [sock]
        for _ in range(QUEUES - 1):
            queue = closing.enter_context(socket.socket(sock.family, sock.type))
            queue.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            queue.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if sock.family == socket.AF_INET6:
                only_ipv6 = sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
                queue.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_ipv6)
            queue.bind(sock.getsockname())
            queues.append(queue)
        closing.pop_all()
        return queues
    return [sock]


def listen_on(queues: list[socket.socket], backlog: int, *, processes: int = 1) -> None:
    """Listen on the sockets of `bind_queues`, with up to `backlog` connections in each queue.

    processes: the number of processes with such queues at the address.

    Where the kernel cannot choose the queue by address, all but the first are closed and removed from the list.
    """
    for queue in queues:
        queue.listen(backlog)
    try:
        if len(queues) > 1:
            _attach(queues[0], processes)
    except OSError:
        while len(queues) > 1:
            queues.pop().close()


def _attach(sock: socket.socket, processes: int) -> None:
    """Make the kernel choose the queue of a connection by a program, for all sockets that are bound as `sock` is."""
    steps = _program(processes)
    code = array("B", b"".join(struct.pack("=HBBI", *step) for step in steps))
    address, _ = code.buffer_info()
    program = struct.pack("@HP", len(steps), address)
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, program)


def _program(processes: int) -> tuple[tuple[int, int, int, int], ...]:
    """Return the program that chooses a queue. The kernel chooses by itself where an index has no socket."""
    if processes == 1:
        return _PROGRAM + _RETURN
    first = (
        (0x20, 0, 0, _RANDOM),  # A = a random number
        (0x94, 0, 0, processes),  # A %= processes
        (0x64, 0, 0, QUEUE_BITS),  # A <<= ..., the first queue of a process
        (0x02, 0, 0, 0),  # M[0] = A
    )
    return (
        *first,
        *_PROGRAM,
        (0x61, 0, 0, 0),  # X = M[0]
        (0x0C, 0, 0, 0),  # A += X
        *_RETURN,
    )

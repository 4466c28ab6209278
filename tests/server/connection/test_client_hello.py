"""Reading the server name of a ClientHello: as OpenSSL writes it, in any parts, malformed, and at random."""

import contextlib
import random
import ssl
import struct

import pytest

from tidegate.server.connection.client_hello import (
    MAX_HELLO_BYTES,
    MOST_EXTENSIONS,
    MOST_RECORDS,
    read_client_hello,
    server_name,
)
from tidegate.server.connection.tls_session import HANDSHAKE_MESSAGE_BYTES, TlsError

NAME = "broker-7.kafka.example.com"
HEADER_BYTES = 5


def client_hello(name: str | None = NAME) -> bytes:
    """Return what OpenSSL sends first to a server of this name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def in_records(message: bytes, size: int) -> bytes:
    """Return a handshake message in records of `size` bytes each."""
    parts = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + struct.pack(">H", len(part)) + part for part in parts)


def made(extensions: list[tuple[int, bytes]]) -> bytes:
    """Return a ClientHello, without its header, with these extensions only."""
    block = b"".join(struct.pack(">HH", kind, len(data)) + data for kind, data in extensions)
    return bytes(34) + b"\0" + b"\0\x02\x13\x01" + b"\x01\0" + struct.pack(">H", len(block)) + block


def names(*given: bytes) -> tuple[int, bytes]:
    """Return the extension server_name with these names."""
    block = b"".join(b"\0" + struct.pack(">H", len(name)) + name for name in given)
    return 0, struct.pack(">H", len(block)) + block


def read(received: bytes) -> str | None:
    """Return the name in a complete ClientHello."""
    hello = read_client_hello(memoryview(received))
    assert isinstance(hello, bytes)
    return server_name(hello)


def test_name_is_read() -> None:
    """As OpenSSL sends it, without one, and behind other extensions."""
    assert read(client_hello()) == NAME
    assert read(client_hello(None)) is None
    assert server_name(made([(43, b"\x02\x03\x04"), names(b"a.example")])) == "a.example"
    assert server_name(made([])) is None
    assert server_name(made([])[:-2]) is None  # no extensions at all
    assert server_name(made([names(b"\xff\n")])) == "\\xff\n"


@pytest.mark.parametrize("size", [20, 100, 10_000])
def test_each_step_says_how_many_bytes_the_next_one_needs(size: int) -> None:
    """A ClientHello that comes in any parts is complete after a few steps, of which none is in vain."""
    received = in_records(client_hello()[HEADER_BYTES:], size)
    needed, steps = 0, 0
    while isinstance(step := read_client_hello(memoryview(received[:needed])), int):
        assert needed < step <= len(received)
        for fewer in range(needed, step):  # a byte more or less changes nothing
            assert read_client_hello(memoryview(received[:fewer])) == step
        needed, steps = step, steps + 1
    assert server_name(step) == NAME
    assert needed == len(received)
    assert steps == 2 * received.count(b"\x16\x03\x01")


@pytest.mark.parametrize(
    ("received", "reason"),
    [
        (b"GET / HTTP/1.1", "HTTP"),
        (b"\0\0\0\x20\0\x12", "without TLS"),
        (b"\x80\x2e\x01\x03\x01", "not TLS"),
        (b"\x15\x03\x03\0\x02\x02\x28", "expected a ClientHello"),
        (b"\x16\x03\x01\0\0", "0 bytes, expected 1 to"),
        (b"\x16\x03\x01\xff\xff", "65535 bytes, expected 1 to"),
        (b"\x16\x03\x01\0\x04\x02\0\0\x09", "type 2"),
        (b"\x16\x03\x01\x10\x00\x01\xff\xff\xff", "16777215 bytes, expected at most"),
    ],
)
def test_anything_else_is_refused_at_once(received: bytes, reason: str) -> None:
    """The reason names what came; a size is refused when it is announced."""
    with pytest.raises(TlsError, match=reason):
        read_client_hello(memoryview(received))


def test_number_of_records_is_bounded() -> None:
    """One record more than that is refused before it comes, and the largest ClientHello needs fewer bytes than kept."""
    in_bytes = in_records(client_hello()[HEADER_BYTES:], 1)
    allowed = MOST_RECORDS * (HEADER_BYTES + 1)
    assert read_client_hello(memoryview(in_bytes[: allowed - 1])) == allowed
    with pytest.raises(TlsError, match=f"more than {MOST_RECORDS} records"):
        read_client_hello(memoryview(in_bytes[:allowed]))
    largest = b"\x01" + HANDSHAKE_MESSAGE_BYTES.to_bytes(3) + bytes(HANDSHAKE_MESSAGE_BYTES)
    in_most = in_records(largest, len(largest) // MOST_RECORDS + 1)
    assert len(in_most) < MAX_HELLO_BYTES
    assert len(read_client_hello(memoryview(in_most))) == HANDSHAKE_MESSAGE_BYTES


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (made([names(b"a.example", b"b.example")]), "exactly one"),
        (made([names()]), "beyond its end"),
        (made([(0, b"\0\x05\x01\0\x02ab")]), "exactly one"),  # not a host name
        (made([(0, b"\0\x06\0\0\x02ab")]), "exactly one"),
        (made([(0, b"")]), "beyond its end"),
        (made([(16, b"\0")])[:-1], "do not fill it"),
        (made([(16, b"\0")]) + b"\0", "do not fill it"),
        (made([(16, b"")] * (MOST_EXTENSIONS + 1)), "extensions"),
        (b"", "beyond its end"),
        (bytes(34) + b"\xff", "beyond its end"),
        (made([names(b"a")])[:-9] + b"\0\x04\0\0\xff\xff", "beyond its end|do not fill it"),
    ],
)
def test_malformed_hello_is_refused(hello: bytes, reason: str) -> None:
    """Two names, too, as OpenSSL refuses them."""
    with pytest.raises(TlsError, match=reason):
        server_name(hello)


def test_no_bytes_do_any_harm() -> None:
    """Changed ones are read, are incomplete, or are refused with a reason."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    good = client_hello()
    for _ in range(10_000):
        received = changed(good, chance)
        with contextlib.suppress(TlsError):
            step = read_client_hello(memoryview(received[: chance.randrange(len(received))]))
            assert not isinstance(step, int) or step <= MAX_HELLO_BYTES
        with contextlib.suppress(TlsError):
            server_name(changed(good[HEADER_BYTES + 4 :], chance))


def changed(data: bytes, chance: random.Random) -> bytes:
    """Return bytes of which one to three are others."""
    received = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        received[chance.randrange(len(received))] = chance.randrange(256)
    return bytes(received)

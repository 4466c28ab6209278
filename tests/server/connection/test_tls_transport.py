"""TLS in memory: a transport, its reader, and a client that sends what it likes in pieces of any size."""

import contextlib
import os
import random
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from tests.server.connection.openssl import OpenSslClient
from tests.server.connection.tls_client import (
    AUTHORITY,
    Ends,
    TlsClient,
    client_context,
    server_context,
)
from tests.unit.tls.certificates import common_name, identity

from tidegate.server.connection.tls_session import MAX_KEPT_BYTES, RECORDS_AT_A_TIME, TlsError
from tidegate.server.connection.tls_transport import BURST_BYTES, MAX_UNSENT_BYTES, PIECE_BYTES
from tidegate.storage.log.file_slice import FileSlice, SegmentFile

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
SERVER_CONTEXT, CLIENT_CONTEXT = server_context(), client_context()
DATA = random.Random(7).randbytes(300_000)


def of_version(version: ssl.TLSVersion, **limits: int) -> Ends:
    """Return ends that speak this version of TLS."""
    return Ends(SERVER_CONTEXT, client_context(maximum_version=version), **limits)


@pytest.fixture(params=VERSIONS, ids=["TLSv1.2", "TLSv1.3"])
def ends(request: pytest.FixtureRequest) -> Ends:
    """Return ends that have shaken hands, by each version."""
    ends = of_version(request.param)
    ends.shake_hands()
    return ends


# --- in ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("at_once", [1, 5, 1000, 1 << 20])
def test_bytes_may_come_in_pieces_of_any_size(version: ssl.TLSVersion, at_once: int) -> None:
    """Handshake and data arrive as they do: byte by byte or all together."""
    ends = of_version(version)
    ends.shake_hands(at_once)
    assert ends.owner.established == [None]
    size = 3_000 if at_once == 1 else len(DATA)
    ends.give(ends.client.encrypt(DATA[:size]), at_once)
    assert ends.read == DATA[:size]


def test_request_may_come_with_the_end_of_the_handshake() -> None:
    """A client need not wait to send what follows its Finished."""
    ends = Ends(SERVER_CONTEXT, CLIENT_CONTEXT)
    ends.client.receive()
    ends.give(ends.client.out)
    ends.client.receive(ends.take())
    ends.give(ends.client.out + ends.client.encrypt(b"first"))
    assert ends.owner.established
    assert ends.read == b"first"


def test_what_is_decrypted_is_readable(ends: Ends) -> None:
    """A reader that takes little is called until it has all, though nothing more comes from the socket."""
    ends.target_bytes = 700
    ends.give(ends.client.encrypt(DATA[:40_000]))
    assert ends.read == DATA[:40_000]
    assert ends.calls >= 40_000 // 700


def test_nothing_is_read_while_reading_is_paused(ends: Ends) -> None:
    """What comes meanwhile stays below; what was decrypted is counted, and read as soon as reading goes on."""
    ends.target_bytes = 100
    ends.memory.client_send(ends.client.encrypt(b"a" * 1000) + ends.client.encrypt(b"b" * 1000))
    ends.on_readable()
    ends.stop()
    ends.loop.turn()
    assert ends.read == b"a" * 100
    assert ends.transport.unread_bytes() >= 1900
    early: list[str] = []
    ends.transport.watch(lambda: early.append("early"), lambda broken: early.append("gone"))
    assert early[0] == "early"
    ends.transport.unwatch()
    more = ends.client.encrypt(b"c" * 1000)
    ends.memory.client_send(more)
    ends.loop.turn()
    assert ends.memory.unread_bytes() == len(more)
    ends.transport.start_reading(ends.on_readable)
    ends.loop.turn()
    assert ends.read == b"a" * 1000 + b"b" * 1000 + b"c" * 1000


def test_many_tiny_records_take_several_turns(ends: Ends) -> None:
    """Thousands of records of a byte cost their sender, a bounded number at a time."""
    records = b"".join(ends.client.encrypt(b"x") for _ in range(2000))
    before = ends.calls
    ends.give(records)
    assert ends.read == b"x" * 2000
    assert ends.calls - before >= 2000 // 40


def test_no_more_is_kept_than_a_few_records(ends: Ends) -> None:
    """What a reader does not take stays below, but for one burst."""
    ends.target_bytes = 1
    ends.memory.client_send(ends.client.encrypt(bytes(1 << 20)))
    ends.on_readable()
    ends.stop()
    kept = ends.transport.unread_bytes() - ends.memory.unread_bytes()
    assert 0 < kept <= MAX_KEPT_BYTES
    assert ends.memory.unread_bytes() >= (1 << 20) - MAX_KEPT_BYTES


# --- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close_notify", "close_notify and the end", "the end alone"])
@pytest.mark.parametrize("last", [b"", b"last words"])
def test_last_byte_is_told_after_the_others(ends: Ends, how: str, last: bytes) -> None:
    """With close_notify or without: what came before it is read, then the end is told, once."""
    ends.memory.client_send(ends.client.encrypt(last) if last else b"")
    if "close_notify" in how:
        ends.memory.client_send(ends.client.say_goodbye())
    if "end" in how:
        ends.memory.client_end()
    ends.loop.turn()
    assert (ends.read, ends.ended, ends.error) == (last, True, None)


def test_a_record_that_breaks_off_is_dropped(ends: Ends) -> None:
    """Whole records before it are read."""
    ends.memory.client_send(ends.client.encrypt(b"whole") + ends.client.encrypt(b"half")[:-3])
    ends.memory.client_end()
    ends.loop.turn()
    assert (ends.read, ends.ended, ends.error) == (b"whole", True, None)


def test_answers_leave_after_the_clients_last_byte(ends: Ends) -> None:
    """A client that only reads from now on gets what it is due, and our close_notify."""
    ends.give(ends.client.encrypt(b"question") + ends.client.say_goodbye())
    assert ends.ended
    ends.send(b"answer")
    ends.transport.close()
    ends.client.receive(ends.take())
    assert ends.client.received == b"answer"
    assert ends.client.ended


@pytest.mark.parametrize("sent", [0, 1, 5, 100, 10_000])
def test_a_client_may_leave_during_the_handshake(sent: int) -> None:
    """That is no failed handshake: nobody has claimed to be anybody."""
    ends = Ends(SERVER_CONTEXT, CLIENT_CONTEXT)
    ends.client.receive()
    ends.memory.client_send(ends.client.out[:sent])
    ends.memory.client_end()
    ends.loop.turn()
    assert isinstance(ends.error, ConnectionAbortedError)
    assert not ends.owner.failed


@pytest.mark.parametrize("how", ["client_end", "client_break"])
@pytest.mark.parametrize("at_once", [1, 50, 1 << 20])
def test_a_hello_of_a_client_that_has_left_is_not_answered(how: str, at_once: int) -> None:
    """A signature takes a millisecond: it is for clients that are there."""
    ends = of_version(ssl.TLSVersion.TLSv1_3)
    ends.client.receive()
    hello = ends.client.out
    ends.give(hello[:-1], at_once)
    ends.memory.client_send(hello[-1:])
    getattr(ends.memory, how)()
    ends.loop.turn()
    assert isinstance(ends.error, ConnectionError)
    assert ends.memory.received == b""
    assert ends.owner.failed == []


def test_a_connection_that_breaks_raises(ends: Ends) -> None:
    """As a socket does."""
    ends.memory.client_break()
    ends.loop.turn()
    assert isinstance(ends.error, ConnectionResetError)


def test_closing_needs_no_room_and_no_client() -> None:
    """In every state: before the handshake, with bytes that cannot leave, after a break, twice."""
    for state in range(4):
        ends = Ends(SERVER_CONTEXT, CLIENT_CONTEXT)
        if state:
            ends.shake_hands()
        if state == 2:
            ends.memory.room = 10
            ends.send(DATA)
        if state == 3:
            ends.memory.client_break()
        ends.transport.close()
        ends.transport.close()
        assert ends.memory.closed
        ends.loop.turn()


def test_close_notify_is_nothing_to_wait_for(ends: Ends) -> None:
    """What a client that has left has still sent is no request, unless it is long enough for one."""
    ends.stop()
    ends.memory.client_send(ends.client.say_goodbye())
    assert ends.transport.unread_bytes() == 0
    ends = Ends(SERVER_CONTEXT, CLIENT_CONTEXT)
    ends.shake_hands()
    ends.stop()
    ends.memory.client_send(ends.client.encrypt(b"\0\0\0\x08\0\x12\0\0\0\0\0\1"))  # the shortest request
    assert ends.transport.unread_bytes() > 0


# --- out --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> SegmentFile:
    """Return a file with `DATA`."""
    (tmp_path / "file").write_bytes(DATA)
    return SegmentFile(tmp_path / "file")


def test_slow_reader_gets_all_in_order(ends: Ends, file: SegmentFile) -> None:
    """Memory and slices of files, through a socket that takes some bytes at a time."""
    part = FileSlice(file, 5, 200_000)
    ends.memory.room = 0
    ends.send(b"head")
    ends.out.extend([b"", DATA[:100_000], part, bytearray(b"tail"), memoryview(b"end")])
    expected = b"head" + DATA[:100_000] + DATA[5:200_005] + b"tailend"
    for room in [1, 10, 1000, *[30_000] * 40]:
        ends.client.receive(ends.memory.client_take(room))
        ends.loop.turn()
    ends.client.receive(ends.memory.client_take())
    assert ends.client.received == expected
    assert not ends.out


def test_send_says_what_has_left(ends: Ends) -> None:
    """What is encrypted and waits for room does not count as sent."""
    ends.memory.room = 50
    assert ends.transport.send(DATA) == 0
    assert ends.transport.send(DATA) == 0
    received = ends.memory.client_take()
    assert ends.transport.send(DATA) == len(DATA)
    ends.client.receive(received + ends.memory.client_take())
    assert ends.client.received == DATA


def test_small_answers_share_a_record(ends: Ends) -> None:
    """A hundred of them cost little more than their bytes."""
    ends.memory.client_take()
    for _ in range(100):
        ends.out.append(b"answer")
    assert ends.transport.send_some(ends.out)
    assert len(ends.memory.received) < 700


def test_a_large_answer_takes_several_turns(ends: Ends) -> None:
    """A burst, then the others have their turn."""
    ends.out.append(bytes(3 * BURST_BYTES))
    assert not ends.transport.send_some(ends.out)
    assert len(ends.out[0]) == 2 * BURST_BYTES


def test_little_is_encrypted_ahead(ends: Ends) -> None:
    """Of an answer that nobody reads one piece is kept encrypted."""
    ends.memory.client_take(room=0)
    ends.send(bytes(8 * BURST_BYTES))
    ends.memory.client_take(room=1)
    ends.loop.turn()
    assert len(ends.memory.received) == 1
    received = len(ends.memory.client_take())
    ends.loop.turn()
    assert received == 0 or received <= PIECE_BYTES + 1000


def test_a_file_that_is_too_short_breaks_the_connection(ends: Ends, file: SegmentFile) -> None:
    """Rather than the order of its bytes."""
    ends.out.append(FileSlice(file, len(DATA) - 10, 20))
    with pytest.raises(ConnectionAbortedError):
        ends.transport.send_some(ends.out)


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "looks like an HTTP request"),
        (
            b"\0\0\0\x2b\0\x12\0\3\0\0\0\1",
            "a Kafka client without TLS; hint: set the client's security.protocol to SSL",
        ),
        (b"SSH-2.0-OpenSSH\r\n", "client sent data that is not TLS"),
        (
            b"\x16\x03\x01\x40\x00\x01\x01\x00\x00\x03\x03",
            "ClientHello is 65536 bytes, expected at most 32768",
        ),
        (b"\x16\x03\x01\xff\xff\x01\x00\x00\x10", "packet length too long"),
        (b"\x17\x03\x03\x00\x10" + bytes(16), "unexpected message"),
        (b"\x15\x03\x01\x00\x02\x02\x28", "unexpected message"),
    ],
)
def test_what_is_no_handshake_is_named(data: bytes, reason: str) -> None:
    """In the words of who has to mend it where they are known."""
    ends = Ends(SERVER_CONTEXT, CLIENT_CONTEXT)
    ends.give(data)
    assert len(ends.owner.failed) == 1
    assert reason in ends.owner.failed[0]
    assert isinstance(ends.error, TlsError)


@pytest.mark.parametrize(
    ("server", "client", "reason"),
    [
        ({}, {"maximum_version": ssl.TLSVersion.TLSv1_1, "minimum_version": ssl.TLSVersion.TLSv1}, "none of the"),
        ({"verify_mode": ssl.CERT_REQUIRED}, {}, "no certificate, but ssl.client.auth is required"),
    ],
)  # fmt: skip
def test_ends_that_do_not_agree(server: dict[str, object], client: dict[str, object], reason: str) -> None:
    """The client is sent an alert, the log gets a line."""
    is_old = "maximum_version" in client
    with pytest.warns(DeprecationWarning, match="TLSv1") if is_old else contextlib.nullcontext():
        ends = Ends(server_context(**server), _weak(client_context(**client)))
    ends.client.receive()
    ends.give(ends.client.out)
    for _ in range(3):
        if ends.owner.failed:
            break
        ends.client.receive(ends.take())
        ends.give(ends.client.out)
    with pytest.raises(ssl.SSLError, match=r"(?i)alert"):
        ends.client.receive(ends.memory.client_take())
    assert reason in ends.owner.failed[0]


def _weak(context: ssl.SSLContext) -> ssl.SSLContext:
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    return context


def test_no_shared_cipher_is_named() -> None:
    """By TLS 1.2, where cipher suites can be left out."""
    server, client = server_context(maximum_version=ssl.TLSVersion.TLSv1_2), client_context()
    server.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    client.set_ciphers("ECDHE-ECDSA-AES256-GCM-SHA384")
    ends = Ends(server, client)
    ends.client.receive()
    ends.give(ends.client.out)
    assert ends.owner.failed == ["client offers none of the enabled cipher suites; see ssl.cipher.suites"]


@pytest.mark.parametrize("version", VERSIONS)
def test_certificates_of_clients(version: ssl.TLSVersion) -> None:
    """One of the authority's is handed over; one of nobody's is refused with the reason."""
    server = server_context(verify_mode=ssl.CERT_REQUIRED)
    known, unknown = identity("carol", AUTHORITY), identity("mallory")
    ends = Ends(server, client_context(known, maximum_version=version))
    ends.shake_hands()
    (certificate,) = ends.owner.established
    assert certificate is not None
    assert x509.load_der_x509_certificate(certificate).subject == common_name("carol")
    ends = Ends(server, client_context(unknown, maximum_version=version))
    ends.client.receive()
    for _ in range(3):
        ends.give(ends.client.out)
        try:
            ends.client.receive(ends.take())
        except ssl.SSLError:
            break
    assert ends.owner.failed == ["client's certificate rejected: self-signed certificate"]


def test_whoever_is_told_may_refuse() -> None:
    """The connection ends then, and has failed."""
    ends = Ends(SERVER_CONTEXT, CLIENT_CONTEXT)

    def refuse(certificate: bytes | None) -> None:
        raise TlsError("its certificate names nobody")

    ends.owner.on_established = refuse  # type: ignore[method-assign]
    ends.client.receive()
    for _ in range(3):
        ends.give(ends.client.out)
        ends.client.receive(ends.memory.client_take())
        if ends.error:
            break
    assert ends.owner.failed == ["its certificate names nobody"]


def test_garbage_after_the_handshake_ends_the_connection(ends: Ends) -> None:
    """What was whole before it is read."""
    ends.give(ends.client.encrypt(b"whole") + b"\x17\x03\x03\x00\x20" + bytes(32))
    assert ends.read == b"whole"
    assert isinstance(ends.error, TlsError)
    assert len(ends.owner.failed) == 0


HOSTILE: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "random": lambda rng, hello: rng.randbytes(rng.randrange(1, 600)),
    "like records": lambda rng, hello: b"".join(
        bytes([rng.randrange(20, 25), 3, rng.randrange(5)]) + len(part).to_bytes(2) + part
        for part in (rng.randbytes(rng.randrange(60)) for _ in range(rng.randrange(1, 60)))
    ),
    "one byte wrong": lambda rng, hello: _changed(rng, hello),
    "cut off": lambda rng, hello: hello[: rng.randrange(len(hello))],
    "twice": lambda rng, hello: hello + hello,
    "with a tail": lambda rng, hello: hello + rng.randbytes(rng.randrange(1, 400)),
}


def _changed(rng: random.Random, hello: bytes) -> bytes:
    data = bytearray(hello)
    for _ in range(rng.randrange(1, 4)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def test_hostile_bytes_end_alone() -> None:
    """10,000 beginnings that nobody's client sends: each ends in an error or waits for more, and nothing grows."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    hello = TlsClient(CLIENT_CONTEXT)
    hello.receive()
    good = hello.out
    names = sorted(HOSTILE)
    sizes: list[int] = []
    ends = Ends(SERVER_CONTEXT, CLIENT_CONTEXT)
    for number in range(10_000):
        ends.connect()
        ends.give(HOSTILE[names[number % len(names)]](rng, good), at_once=rng.choice([7, 100, 1 << 20]))
        assert ends.error is None or ends.owner.failed
        if ends.error is None:
            ends.memory.client_end()
            ends.loop.turn()
        assert ends.error is not None
        assert not ends.read
        ends.transport.close()
        if number in (2_000, 9_999):
            sizes.append(_resident_bytes())
    assert sizes[1] - sizes[0] < 8 << 20


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("seed", range(40))
def test_a_byte_changed_on_the_way_never_gets_through(seed: int) -> None:
    """In the handshake or behind it: what is read is what was sent, up to where it was changed."""
    rng = random.Random(seed)
    ends = of_version(rng.choice(VERSIONS))
    ends.client.receive()
    wrong_after, sent = rng.randrange(2500), 0
    expected = b""
    for _ in range(12):
        if ends.client.established and ends.owner.established:
            expected += b"request"
            data = ends.client.out + ends.client.encrypt(b"request")
        else:
            data = ends.client.out
        if sent <= wrong_after < sent + len(data):
            data = (
                data[: wrong_after - sent]
                + bytes([data[wrong_after - sent] ^ 1])
                + data[wrong_after - sent + 1 :]
            )
        sent += len(data)
        ends.give(data)
        if ends.error:
            break
        try:
            ends.client.receive(ends.take())
        except ssl.SSLError:
            return  # the handshakes differ, which the client has noticed first
    assert expected.startswith(ends.read)


# --- what only OpenSSL itself can be made to do -----------------------------------------------------------------------


@contextlib.contextmanager
def openssl_client(version: ssl.TLSVersion) -> Iterator[tuple[Ends, OpenSslClient]]:
    """Give ends whose client is OpenSSL's, after the handshake."""
    ends, client = Ends(SERVER_CONTEXT, CLIENT_CONTEXT), OpenSslClient(version=version)
    try:
        for _ in range(10):
            done = client.receive(ends.take())
            ends.give(client.out)
            if done and ends.owner.established:
                break
        assert ends.owner.established
        client.read(ends.take())  # tickets
        yield ends, client
    finally:
        client.close()


def test_new_keys_are_taken_and_answered() -> None:
    """A client may change them, and ask for as much, at any time (TLS 1.3)."""
    with openssl_client(ssl.TLSVersion.TLSv1_3) as (ends, client):
        for number in range(3):
            ends.give(client.new_keys() + client.encrypt(b"%d" % number))
            ends.send(b"answer")
            assert client.read(ends.take()) == (b"answer", True)
        assert ends.read == b"012"


def test_many_new_keys_take_many_turns() -> None:
    """They cost ten times as much as their bytes look: a bounded number of them is looked at in a turn."""
    with openssl_client(ssl.TLSVersion.TLSv1_3) as (ends, client):
        before = ends.calls
        ends.give(b"".join(client.new_keys() for _ in range(500)) + client.encrypt(b"at last"))
        assert ends.read == b"at last"
        assert ends.calls - before >= 500 // RECORDS_AT_A_TIME


def test_new_keys_that_nobody_reads_end_the_connection() -> None:
    """Each has an answer; who takes none of them is left."""
    with openssl_client(ssl.TLSVersion.TLSv1_3) as (ends, client):
        ends.memory.room = 0
        while not ends.error:
            ends.give(b"".join(client.new_keys() for _ in range(100)))
            assert len(ends.transport._unsent) <= MAX_UNSENT_BYTES + RECORDS_AT_A_TIME * 100
        assert isinstance(ends.error, ConnectionAbortedError)


def test_renegotiation_is_refused() -> None:
    """Who asks for a second handshake on a connection of TLS 1.2 gets an alert, and is left, as in Kafka."""
    with openssl_client(ssl.TLSVersion.TLSv1_2) as (ends, client):
        ends.give(client.encrypt(b"before") + client.renegotiation())
        assert ends.read == b"before"
        assert isinstance(ends.error, TlsError)
        alert = ends.memory.client_take()
        assert alert[0] == 21  # encrypted
        assert not client.read(alert)[1]
        assert len(ends.owner.established) == 1


class SlowSource:
    """A part of an answer whose bytes come later, as a gateway forwards it (`connection.sending`)."""

    def __init__(self) -> None:
        self.data = b""
        self.size = 5

    def __len__(self) -> int:
        return self.size

    def read_some(self, count: int) -> bytes:
        """Return what has come."""
        if not self.data:
            raise BlockingIOError
        return self.data[:count]

    def rest(self, sent: int) -> "SlowSource":
        """Forget what was sent."""
        self.data, self.size = self.data[sent:], self.size - sent
        return self

    def release(self) -> None:
        """Note that all was sent."""


def test_source_that_has_nothing_now_is_asked_later(ends: Ends) -> None:
    """The connection stays open, what lies before it is sent, and the rest when it has come."""
    source = SlowSource()
    ends.out.extend((b"first", source))
    assert not ends.transport.send_some(ends.out)
    assert not ends.transport.send_some(ends.out)
    source.data = b"later"
    assert ends.transport.send_some(ends.out)
    ends.client.receive(ends.take())
    assert ends.client.received == b"firstlater"

"""Channels: framing, one request in flight, muting, and bounded buffers."""

import asyncio
import os
import random
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.server.conftest import Pair, frame

from tidegate.server.connection.buffers import FIRST_FRAME_BYTES, SCRATCH_BYTES
from tidegate.server.connection.channel import ANSWER_DUE, COLLECTED_BYTES, PENDING_BYTES, Channel


def test_serves_frames_however_they_are_cut(with_pair) -> None:
    """Frames arrive whole and in order whatever the pieces, seed printed by the test's name."""
    rng = random.Random(7)
    sizes = [
        0,
        1,
        3,
        4,
        5,
        100,
        4096,
        SCRATCH_BYTES,
        SCRATCH_BYTES + 1,
        FIRST_FRAME_BYTES,
        3 * FIRST_FRAME_BYTES,
    ]
    bodies = [rng.randbytes(size) for size in sizes + sizes[:6]]

    async def scenario(pair: Pair) -> None:
        pair.owner.answer = lambda channel, data: channel.release_hold(ANSWER_DUE)
        stream = b"".join(map(frame, bodies))
        at = 0
        while at < len(stream):
            step = rng.choice((1, 2, 3, 7, 1000, 70_000, 400_000))
            await pair.send(stream[at : at + step])
            at += step
        await pair.settle()
        assert [len(f) for f in pair.owner.frames] == [len(b) for b in bodies]
        assert pair.owner.frames == bodies

    with_pair(scenario)


def test_one_request_in_flight(with_pair) -> None:
    """The second of two pipelined requests is looked at only when the first was answered."""

    async def scenario(pair: Pair) -> None:
        pair.owner.hold_answers = True
        await pair.send(frame(b"one") + frame(b"two"))
        await pair.settle()
        assert pair.owner.frames == [b"one"]
        pair.owner.answer(pair.channel, b"1")
        await pair.settle()
        assert pair.owner.frames == [b"one", b"two"]
        assert await pair.receive(5) == frame(b"1")

    with_pair(scenario)


def test_early_bytes_are_bounded(with_pair) -> None:
    """A client that floods while its request is in flight is left alone once enough of its bytes wait."""

    async def scenario(pair: Pair) -> None:
        pair.owner.hold_answers = True
        await pair.send(frame(b"one"))
        await pair.settle()
        sent = 0
        for _ in range(1000):
            try:
                sent += pair.client.send(bytes(65536))
            except BlockingIOError:
                await pair.settle()
                if pair.channel.unread_bytes() >= PENDING_BYTES:
                    break
        assert PENDING_BYTES <= pair.channel.unread_bytes() <= PENDING_BYTES + SCRATCH_BYTES
        assert sent < 64 << 20

    with_pair(scenario)


def test_a_muted_channel_reads_nothing_and_then_everything(with_pair) -> None:
    """While muted nothing is served; afterwards what came in the meantime is."""

    async def scenario(pair: Pair) -> None:
        pair.owner.on_each = lambda channel: (
            channel.mute(time.monotonic_ns()) if len(pair.owner.frames) == 1 else None
        )
        await pair.send(frame(b"one") + frame(b"two"))
        await pair.settle()
        await pair.send(frame(b"three"))
        await pair.settle()
        assert pair.owner.frames == [b"one"]
        assert await pair.receive(7) == frame(b"one"), "the answer leaves at once"
        pair.channel.unmute()
        await pair.settle()
        assert pair.owner.frames == [b"one", b"two", b"three"]

    with_pair(scenario)


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
def test_a_bad_length_closes(with_pair, size: int) -> None:
    """A length outside the bounds is refused with its value, and the connection closes."""

    async def scenario(pair: Pair) -> None:
        await pair.send(frame(b"ok") + struct.pack(">i", size) + b"rest")
        await pair.settle()
        assert pair.owner.frames == [b"ok"]
        assert pair.owner.bad_frames == [f"frame length is {size}, expected 0 to 1000 bytes"]
        assert pair.channel.closed

    with_pair(scenario, max_frame_bytes=1000)


def test_an_announced_frame_takes_memory_as_it_arrives(with_pair) -> None:
    """A client that announces 60 MiB and sends little makes us hold little."""

    async def scenario(pair: Pair) -> None:
        await pair.send(struct.pack(">i", 60 << 20) + b"x")
        await pair.settle()
        assert (pair.channel._frame, pair.memory.granted_bytes) == (None, 0)

    with_pair(scenario)


def test_a_large_answer_leaves_in_pieces_and_holds_the_next_request(with_pair) -> None:
    """What the socket does not take at once follows; only then is the next request looked at."""
    large = os.urandom(8 << 20)

    async def scenario(pair: Pair) -> None:
        pair.owner.answer = lambda channel, data: channel.send([frame(large)[:1000], frame(large)[1000:]])
        await pair.send(frame(b"one"))
        await pair.settle()
        await pair.send(frame(b"two"))
        await pair.settle()
        assert pair.owner.frames == [b"one"]
        pair.owner.answer = lambda channel, data: None
        assert await pair.receive(4 + len(large)) == frame(large)
        await pair.settle()
        assert pair.owner.left == 1
        assert pair.owner.frames == [b"one", b"two"]

    with_pair(scenario)


class _Slice:
    """A file slice that remembers its release."""

    def __init__(self, fd: int, offset: int, size: int, log: list) -> None:
        self.fd, self.offset, self.size, self.log = fd, offset, size, log

    def __len__(self) -> int:
        return self.size

    def send_to(self, fd: int) -> int:
        return os.sendfile(fd, self.fd, self.offset, self.size)

    def rest(self, sent: int) -> "_Slice":
        return _Slice(self.fd, self.offset + sent, self.size - sent, self.log)

    def release(self) -> None:
        self.log.append(self.size)


def test_file_slices_are_sent_between_buffers_and_released(with_pair, tmp_path) -> None:
    """Slices of files go out by sendfile in their place, and are let go."""
    path = tmp_path / "log"
    content = os.urandom(3 << 20)
    path.write_bytes(content)

    async def scenario(pair: Pair) -> None:
        released: list[int] = []
        with path.open("rb") as file:
            pair.channel.send(
                [
                    b"head",
                    _Slice(file.fileno(), 10, 2 << 20, released),
                    b"mid",
                    _Slice(file.fileno(), 0, 5, released),
                ]
            )
            expected = b"head" + content[10 : 10 + (2 << 20)] + b"mid" + content[:5]
            assert await pair.receive(len(expected)) == expected
            await pair.settle()
        assert len(released) == 2

    with_pair(scenario)


def test_closing_lets_go_of_what_was_not_sent(with_pair, tmp_path) -> None:
    """A client that leaves in the middle of an answer costs no file."""
    path = tmp_path / "log"
    path.write_bytes(bytes(32 << 20))

    async def scenario(pair: Pair) -> None:
        released: list[int] = []
        with path.open("rb") as file:
            assert not pair.channel.send([b"head", _Slice(file.fileno(), 0, 32 << 20, released)])
            pair.client.close()
            await pair.settle()
        assert pair.channel.closed
        assert len(released) == 1
        assert pair.owner.closed == [pair.channel]

    with_pair(scenario)


def test_a_client_that_closes_is_noticed(with_pair) -> None:
    """The channel closes when its client does."""

    async def scenario(pair: Pair) -> None:
        pair.client.close()
        await asyncio.sleep(0)
        await pair.settle()
        assert pair.channel.closed

    with_pair(scenario)


def test_a_frame_gets_memory_of_its_own_when_some_of_it_has_come(with_pair) -> None:
    """Half of a frame of 60 MiB makes us hold half of it: the pages of its memory are made as bytes arrive."""

    async def scenario(pair: Pair) -> None:
        size = 60 << 20
        await pair.send(struct.pack(">i", size) + bytes(COLLECTED_BYTES))
        await pair.settle()
        assert len(pair.channel._frame) == pair.memory.granted_bytes == size
        before, mebibyte = resident_bytes(), bytes(1 << 20)
        for _ in range(30):
            await pair.send(mebibyte)
        await pair.settle()
        assert pair.channel.collected_bytes == COLLECTED_BYTES + (30 << 20)
        assert resident_bytes() - before < 32 << 20
        pair.channel.close()
        assert (pair.memory.granted_bytes, pair.channel._frame) == (0, None)

    with_pair(scenario)


def resident_bytes() -> int:
    """Return how much memory this process has in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_frame_that_comes_byte_by_byte_is_served(with_pair) -> None:
    """However slowly a frame comes, it is served when it is whole."""

    async def scenario(pair: Pair) -> None:
        data = os.urandom(300)
        for byte in frame(data) + frame(b"next"):
            await pair.send(bytes([byte]))
            await pair.settle()
        assert pair.owner.frames == [data, b"next"]

    with_pair(scenario)


def test_who_waits_for_memory_is_not_read_and_then_served(with_pair) -> None:
    """Where the node has no memory left the client is left alone, not even as idle, until there is some."""

    class Other:
        collected_bytes = 0

        def on_grant(self) -> None:
            raise AssertionError("it did not wait")

    async def scenario(pair: Pair) -> None:
        other = Other()
        assert pair.memory.ask(other, 900_000, "User:a")
        data = os.urandom(500_000)
        sending = asyncio.ensure_future(pair.send(frame(data)))
        await asyncio.sleep(0.05)
        assert pair.channel.wants_memory
        assert pair.channel.unread_bytes() <= COLLECTED_BYTES + SCRATCH_BYTES
        assert not pair.owner.frames
        pair.memory.release(other)
        await sending
        await pair.settle()
        assert pair.owner.frames == [data]
        assert (pair.memory.granted_bytes, pair.channel.wants_memory) == (0, False)

    with_pair(scenario, most_bytes=1_000_000)


@pytest.mark.alone
def test_many_small_requests_of_one_client_do_not_hold_the_loop(with_pair) -> None:
    """Thousands of requests that came in one receive are served in turns, in order, the last before the end."""

    async def scenario(pair: Pair) -> None:
        def work(channel: Channel) -> None:
            until = time.monotonic_ns() + 20_000
            while time.monotonic_ns() < until:
                pass

        pair.owner.on_each = work
        pair.owner.answer = lambda channel, data: channel.release_hold(ANSWER_DUE)
        bodies = [struct.pack(">i", number) for number in range(10_000)]
        await pair.send(b"".join(map(frame, bodies)))
        pair.client.shutdown(socket.SHUT_WR)
        longest_s, begun = 0.0, time.thread_time()
        while not pair.channel.closed:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest_s, begun = max(longest_s, now - begun), now
        assert pair.owner.frames == bodies
        assert longest_s < 0.02

    with_pair(scenario)


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (
            bytes.fromhex("1603010200010001fc0303"),
            "looks like a TLS handshake, but the listener does not use TLS; hint: ",
        ),
        (b"GET / HTTP/1.1\r\n", "looks like an HTTP request; hint: "),
        (b"POST /topics HTTP/1.1\r\n", "looks like an HTTP request; hint: "),
    ],
)
def test_another_protocol_is_named(with_pair, first: bytes, reason: str) -> None:
    """What is no Kafka client is told apart by its first bytes."""

    async def scenario(pair: Pair) -> None:
        await pair.send(first)
        await pair.settle()
        assert pair.channel.closed
        (line,) = pair.owner.bad_frames
        assert reason in line

    with_pair(scenario)


def test_a_patient_channel_is_read_when_it_is_its_turn(with_pair) -> None:
    """Behind others, as long as it has to be; it is closed at once where its client is gone."""

    async def scenario(pair: Pair) -> None:
        late: list[Callable[[], None]] = []
        sources: set[str] = set()

        def call_late(run: Callable[[], None], source: str) -> None:
            late.append(run)
            sources.add(source)

        pair.channel.be_patient(call_late)
        await pair.send(frame(b"one"))
        await pair.settle()
        assert (len(late), pair.owner.frames) == (1, [])
        late.pop()()
        await pair.settle()
        assert (len(late), pair.owner.frames) == (0, [b"one"])
        await pair.send(frame(b"two"))
        await pair.settle()
        pair.channel.be_patient(None)
        await pair.settle()
        assert pair.owner.frames == [b"one", b"two"]
        late.pop()()
        await pair.send(frame(b"three"))
        await pair.settle()
        assert (len(late), pair.owner.frames) == (0, [b"one", b"two", b"three"])
        pair.channel.be_patient(call_late)
        pair.client.close()
        await pair.settle()
        assert pair.channel.closed
        late.pop()()
        assert sources == {pair.channel.connection.client_host}

    with_pair(scenario)


def test_an_error_of_ours_closes_the_channel(with_pair) -> None:
    """Whatever is raised while bytes are read ends one channel, not the others' turn."""

    async def scenario(pair: Pair) -> None:
        def fail(channel: Channel) -> None:
            raise RuntimeError("as asked")

        pair.owner.on_each = fail
        await pair.send(frame(b"one"))
        await pair.settle()
        assert pair.channel.closed
        assert [str(error) for error in pair.owner.failed] == ["as asked"]

    with_pair(scenario)


def test_a_closed_channel_keeps_nothing(with_pair) -> None:
    """What a channel had received and was to send is free when it closes."""

    async def scenario(pair: Pair) -> None:
        pair.owner.hold_answers = True
        await pair.send(frame(b"one") + bytes(50_000))
        await pair.settle()
        assert pair.channel.unread_bytes()
        pair.channel.close()
        assert pair.channel.unread_bytes() == 0

    with_pair(scenario)

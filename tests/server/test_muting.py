"""When muted channels are released: none before its time, none much later, whatever the others do meanwhile."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable

import pytest
from tests.e2e.lateness import Lateness

from tidegate.quota import QuotaType
from tidegate.server.connection.answer_memory import AnswerMemory
from tidegate.server.connection.buffers import FrameBuffers
from tidegate.server.connection.channel import ANSWER_DUE, Channel
from tidegate.server.connection.poller import make_poller
from tidegate.server.connection.request_memory import NO_BOUND, RequestMemory
from tidegate.server.connection.transport import SocketTransport
from tidegate.server.muting import REAP_NS, Muting
from tidegate.server.requests.handler import Connection
from tidegate.server.requests.slices import Slices

pytestmark = pytest.mark.alone

SLACK_S = 0.5  # on a busy machine; a throttle that nobody thinks of is late by 10 s and more
LONGEST_HOLD_S = 0.02
RELEASES = 2000  # of the 4,000 or so before all 200 channels are muted for long


class Muted:
    """Channels of one loop and their muting; `on_frame` says what a frame does."""

    at_ns = 0

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.muting = Muting(loop=self.loop, monotonic_ns=time.monotonic_ns)
        self.poller = make_poller(self.loop)
        self.buffers = FrameBuffers(Slices(self.loop).schedule)
        self.clients: list[socket.socket] = []
        self.channels: list[Channel] = []
        self.released: dict[Channel, float] = {}
        self.failed: list[Exception] = []
        self.serve: Callable[[Channel], None] = lambda channel: None

    def on_frame(self, channel: Channel, frame: memoryview, started_ns: int) -> None:
        """Serve a frame as the test says; its answer has left at once."""
        self.released[channel] = time.monotonic()
        channel.held &= ~ANSWER_DUE
        self.serve(channel)

    def on_bad_frame(self, channel: Channel, reason: str) -> None:
        """There are none."""
        raise AssertionError(reason)

    def on_waiting(self, channel: Channel) -> None:
        """Serve its next frame at once."""
        channel.serve_next()

    def on_failed(self, channel: Channel, error: Exception) -> None:
        """Note the error."""
        self.failed.append(error)

    def on_answer_left(self, channel: Channel) -> None:
        """Do nothing."""

    def on_closed(self, channel: Channel) -> None:
        """Let go of it."""
        self.muting.forget(channel)

    def channel(self, frames: int = 1) -> Channel:
        """Return a channel that has received empty frames and looked at none."""
        server, client = socket.socketpair()
        server.setblocking(False)
        channel = Channel(
            SocketTransport(server, self.poller),
            Connection(id=1, listener="PLAINTEXT", client_host="test", local_host="test", local_port=1),
            handlers={},
            owner=self,
            buffers=self.buffers,
            memory=RequestMemory(NO_BOUND, monotonic_ns=time.monotonic_ns, later=Slices(self.loop).schedule),
            answers=AnswerMemory(NO_BOUND, later=Slices(self.loop).schedule, on_excess=Channel.close),
            monotonic_ns=time.monotonic_ns,
            max_frame_bytes=1000,
        )
        self.clients.append(client)
        self.channels.append(channel)
        client.sendall(bytes(4 * frames))
        channel.held = ANSWER_DUE
        if frames:
            channel._on_readable()
        channel.held = 0
        return channel

    def muted(self, throttle_ms: int, quota_type: QuotaType = QuotaType.PRODUCE) -> Channel:
        """Return a channel that is muted for so long, with a frame that waits."""
        channel = self.channel()
        self.muting.start(channel, throttle_ms, quota_type)
        return channel

    async def all_released(self) -> None:
        """Wait until the first frame of every channel was served."""
        deadline = time.monotonic() + 15
        while len(self.released) < len(self.channels):
            assert time.monotonic() < deadline, f"{len(self.released)} of {len(self.channels)} were released"
            await asyncio.sleep(0.005)

    async def longest_hold_s(self) -> float:
        """Return the longest time that one turn of the loop took until every channel was released."""
        longest_s, begun = 0.0, time.thread_time()
        while len(self.released) < len(self.channels):
            await asyncio.sleep(0)
            now = time.thread_time()
            longest_s, begun = max(longest_s, now - begun), now
        return longest_s

    def close(self) -> None:
        """Close everything."""
        for channel in self.channels:
            channel.close()
        for client in self.clients:
            client.close()
        self.muting.close()
        self.poller.close()


@pytest.fixture
def with_muted() -> Callable[[Callable[[Muted], Awaitable[None]]], None]:
    """Return a function that runs a coroutine function with muted channels."""

    def run(scenario: Callable[[Muted], Awaitable[None]]) -> None:
        async def main() -> None:
            muted = Muted()
            try:
                await asyncio.wait_for(scenario(muted), 30)
            finally:
                muted.close()

        asyncio.run(main())

    return run


def test_a_throttle_counts_from_when_its_answer_began_to_leave(with_muted) -> None:
    """A client waits from when it has the answer: it is not early where the broker was interrupted after that."""

    async def scenario(muted: Muted) -> None:
        since_ns = time.monotonic_ns() - 20_000_000  # the broker was interrupted for 20 ms
        late, over = muted.channel(), muted.channel()
        muted.muting.start(late, 30_000, QuotaType.PRODUCE, since_ns=since_ns)
        assert late.throttle_ends_ns == since_ns + 30_000_000_000
        muted.muting.start(over, 5, QuotaType.PRODUCE, since_ns=since_ns)
        await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert over in muted.released
        assert late not in muted.released

    with_muted(scenario)


@pytest.mark.parametrize("later", list(QuotaType))
def test_a_channel_throttled_again_makes_no_other_late(
    with_muted, lateness: Lateness, later: QuotaType
) -> None:
    """One that is muted for long while it is being unmuted leaves the earlier ends of others as they are."""

    async def scenario(muted: Muted) -> None:
        begun = time.monotonic()
        again = muted.muted(50)
        others = [muted.muted(100 + 10 * number, kind) for number, kind in enumerate(QuotaType)]
        muted.serve = lambda channel: muted.muting.start(channel, 30_000, later) if channel is again else None
        await muted.all_released()
        for number, channel in enumerate(others):
            late_s = muted.released[channel] - begun - (100 + 10 * number) / 1000
            assert 0 <= late_s < SLACK_S + lateness.ms_since(begun) / 1000

    with_muted(scenario)


def test_none_is_late_over_many_that_are_throttled_again_and_again(with_muted, lateness: Lateness) -> None:
    """200 channels are muted anew whenever they are released, some for long, most for 1 to 100 ms: each in time."""
    late_s: list[float] = []
    begun_s = time.monotonic()

    async def scenario(muted: Muted) -> None:
        ends = {}

        def mute(channel: Channel, throttle_ms: int) -> None:
            ends[channel] = time.monotonic() + throttle_ms / 1000
            kinds = list(QuotaType)
            muted.muting.start(channel, throttle_ms, kinds[throttle_ms % len(kinds)])

        def serve(channel: Channel) -> None:
            late_s.append(time.monotonic() - ends[channel])
            mute(channel, 10_000 if len(late_s) % 20 == 0 else 1 + len(late_s) * 7919 % 100)

        muted.serve = serve
        for number in range(200):
            mute(muted.channel(frames=50), 1 + number)
        while len(late_s) < RELEASES:
            await asyncio.sleep(0.01)
        now = time.monotonic()
        late_s.extend(now - end for end in ends.values() if end < now)  # they wait yet: late all the same

    with_muted(scenario)
    slack_s = SLACK_S + lateness.ms_since(begun_s) / 1000
    late_s.sort()
    assert late_s[0] > -0.002
    assert late_s[len(late_s) * 99 // 100] < slack_s


def test_throttles_that_end_together_do_not_hold_the_loop(with_muted) -> None:
    """Thousands of releases, each with a request that takes 50 us, go in slices; nobody is forgotten."""

    async def scenario(muted: Muted) -> None:
        channels = [muted.channel() for _ in range(3000)]

        def work(channel: Channel) -> None:
            until = time.monotonic_ns() + 50_000
            while time.monotonic_ns() < until:
                pass

        muted.serve = work
        for channel in channels:
            muted.muting.start(channel, 1, QuotaType.REQUEST)
        time.sleep(0.01)
        assert await muted.longest_hold_s() < LONGEST_HOLD_S

    with_muted(scenario)
    assert REAP_NS / 1e9 < LONGEST_HOLD_S


def test_a_channel_that_fails_after_its_throttle_makes_no_other_wait(with_muted, caplog) -> None:
    """An error of ours while one is released closes it, is logged once, and the others are released."""

    async def scenario(muted: Muted) -> None:
        bad, good = muted.muted(50), muted.muted(100)

        def serve(channel: Channel) -> None:
            if channel is bad:
                raise RuntimeError("as asked")

        muted.serve = serve
        await muted.all_released()
        assert (bad.closed, good.closed) == (True, False)

    with_muted(scenario)
    assert [record.message for record in caplog.records] == [
        "closed connection 1: internal error after unmuting"
    ]


def test_an_error_while_one_leaves_loses_nobody_else(with_muted, caplog, monkeypatch) -> None:
    """Clients that leave are told of once: an error of ours with the first does not hide the second."""

    async def scenario(muted: Muted) -> None:
        channels = [muted.channel(frames=0) for _ in range(2)]
        for channel in channels:
            muted.muting.start(channel, 30_000, QuotaType.PRODUCE)
        unread_bytes, failed = SocketTransport.unread_bytes, []

        def fail_once(transport: SocketTransport) -> int:
            if not failed:
                failed.append(transport)
                raise RuntimeError("as asked")
            return unread_bytes(transport)

        monkeypatch.setattr(SocketTransport, "unread_bytes", fail_once)
        for client in muted.clients:
            client.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + 5
        while not all(channel.closed for channel in channels):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)

    with_muted(scenario)
    assert [record.getMessage() for record in caplog.records] == [
        "closed connection 1: internal error while muted"
    ]

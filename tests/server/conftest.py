"""A channel on a real event loop, its client at the other end of a socket pair."""

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.lateness import lateness
from tests.server.nodes import MemoryStore, Scenario, running_node

from tidegate.server.connection.answer_memory import AnswerMemory
from tidegate.server.connection.buffers import FrameBuffers
from tidegate.server.connection.channel import ANSWER_DUE, Channel
from tidegate.server.connection.poller import make_poller
from tidegate.server.connection.request_memory import NO_BOUND, RequestMemory
from tidegate.server.connection.transport import SocketTransport
from tidegate.server.connection.turn_loop import TurnLoop
from tidegate.server.muting import Muting
from tidegate.server.requests.handler import Connection
from tidegate.server.requests.slices import Slices

__all__ = ["lateness"]


class _TurnLoops(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> TurnLoop:
        """Return a loop of the kind that `tidegate serve` runs."""
        return TurnLoop()


@pytest.fixture(autouse=True)
def turn_loops() -> Iterator[None]:
    """Run these tests as `tidegate serve` runs: the loop waits in the poller."""
    asyncio.set_event_loop_policy(_TurnLoops())
    yield
    asyncio.set_event_loop_policy(None)


class EchoOwner:
    """Answers each frame with itself at once, unless told to wait."""

    at_ns = 0

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.bad_frames: list[str] = []
        self.failed: list[Exception] = []
        self.left = 0
        self.closed: list[Channel] = []
        self.hold_answers = False
        self.forget: Callable[[Channel], object] = lambda channel: None
        self.on_each: Callable[[Channel], None] = lambda channel: None

    def on_frame(self, channel: Channel, frame: memoryview, started_ns: int) -> None:
        """Note the frame and answer it."""
        assert started_ns
        self.frames.append(bytes(frame))
        self.on_each(channel)
        if not self.hold_answers:
            self.answer(channel, bytes(frame))

    def answer(self, channel: Channel, data: bytes) -> None:
        """Send `data` as a frame."""
        if channel.send([struct.pack(">i", len(data)) + data]):
            channel.release_hold(ANSWER_DUE)

    def on_bad_frame(self, channel: Channel, reason: str) -> None:
        """Note the reason."""
        self.bad_frames.append(reason)

    def on_waiting(self, channel: Channel) -> None:
        """Serve its next frame soon."""
        asyncio.get_running_loop().call_soon(channel.serve_next)

    def on_failed(self, channel: Channel, error: Exception) -> None:
        """Note the error."""
        self.failed.append(error)

    def on_answer_left(self, channel: Channel) -> None:
        """Count it."""
        self.left += 1

    def on_closed(self, channel: Channel) -> None:
        """Note it."""
        self.closed.append(channel)
        self.forget(channel)


class Pair:
    """A channel and the socket of its client."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, max_frame_bytes: int, most_bytes: int = NO_BOUND
    ) -> None:
        server, self.client = socket.socketpair()
        server.setblocking(False)
        self.client.setblocking(False)
        self.loop = loop
        self.owner = EchoOwner()
        self.poller = make_poller(loop)
        self.muting = Muting(loop=loop, monotonic_ns=time.monotonic_ns)
        self.owner.forget = self.muting.forget
        later = Slices(loop).schedule
        self.memory = RequestMemory(most_bytes, monotonic_ns=time.monotonic_ns, later=later)
        self.answers = AnswerMemory(most_bytes, later=later, on_excess=Channel.close)
        self.channel = Channel(
            SocketTransport(server, self.poller),
            Connection(id=1, listener="PLAINTEXT", client_host="test", local_host="test", local_port=1),
            handlers={},
            owner=self.owner,
            buffers=FrameBuffers(later),
            memory=self.memory,
            answers=self.answers,
            monotonic_ns=time.monotonic_ns,
            max_frame_bytes=max_frame_bytes,
        )

    async def send(self, data: bytes) -> None:
        """Write all of `data` to the channel."""
        await self.loop.sock_sendall(self.client, data)

    async def receive(self, size: int) -> bytes:
        """Read exactly `size` bytes."""
        data = b""
        while len(data) < size:
            part = await asyncio.wait_for(self.loop.sock_recv(self.client, size - len(data)), 5)
            assert part, "the channel closed"
            data += part
        return data

    async def settle(self) -> None:
        """Let the loop handle everything that is ready."""
        for _ in range(20):
            await asyncio.sleep(0)

    def close(self) -> None:
        """Close both ends."""
        self.channel.close()
        self.client.close()
        self.muting.close()
        self.poller.close()


@pytest.fixture
def with_pair() -> Callable[..., None]:
    """Return a function that runs a coroutine function with a fresh pair."""

    def run(
        scenario: Callable[[Pair], Awaitable[None]],
        *,
        max_frame_bytes: int = 64 << 20,
        most_bytes: int = NO_BOUND,
    ) -> None:
        async def main() -> None:
            pair = Pair(asyncio.get_running_loop(), max_frame_bytes, most_bytes)
            try:
                await asyncio.wait_for(scenario(pair), 20)
            finally:
                pair.close()

        asyncio.run(main())

    return run


def frame(data: bytes) -> bytes:
    """Return `data` with its length prefix."""
    return struct.pack(">i", len(data)) + data


@pytest.fixture
def with_node(tmp_path: Path) -> Callable[..., MemoryStore]:
    """Return a function that runs a coroutine function with a fresh node."""

    def run(scenario: Scenario, store: MemoryStore | None = None, **settings: str) -> MemoryStore:
        store = store or MemoryStore()

        async def main() -> None:
            names = {name.replace("_", "."): value for name, value in settings.items()}
            async with running_node(tmp_path, store, names) as node:
                await asyncio.wait_for(scenario(node), 30)

        asyncio.run(main())
        return store

    return run

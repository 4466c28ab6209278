"""A network in memory: a whole node without a socket, on a loop and a clock that a test moves by hand.

Each end of a connection is under the test's control: what the client sends and when, how much the node's end takes at
a time, when the client ends or breaks off. Nothing happens before the loop has its turn.
"""

import heapq
import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.open_stores import closed_after_test

from tidegate.cli.serving import serve_nodes, storage_config
from tidegate.scheduling import Scheduler
from tidegate.server.administration.quota_administration import QuotaAdministration
from tidegate.server.authentication.scram_credentials import ScramCredentials
from tidegate.server.connection.sending import Sendable
from tidegate.server.connection.transport import Transport
from tidegate.server.connection.turns import BATCH, SERVE_NS, NoTurns, Turns
from tidegate.server.listening.listener_config import ListenerAddress
from tidegate.server.node import Node
from tidegate.server.requests.handler import HandlerTable
from tidegate.server.requests.recorder import Recorder
from tidegate.server.settings.config import ServerConfig
from tidegate.server.settings.node_configs import node_configs
from tidegate.storage import Storage
from tidegate.storage.housekeeping import start_housekeeping
from tidegate.storage.log.group_commit import SyncFile
from tidegate.testing import ManualClock

UNLIMITED = 1 << 62
_NS_PER_MS = 1_000_000


@dataclass(eq=False)
class ManualTimer:
    """A call on a `ManualLoop`."""

    call: Callable[[], object]
    at_ns: int = 0
    cancelled: bool = False

    def cancel(self) -> None:
        """Do not call."""
        self.cancelled = True


class ManualLoop:
    """A `Scheduler` whose time is that of a clock; `advance` moves both, from timer to timer."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self._soon: deque[ManualTimer] = deque()
        self._later: list[tuple[int, int, ManualTimer]] = []
        self._made = 0

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> ManualTimer:
        """Call in the next turn."""
        self._soon.append(ManualTimer(lambda: callback(*args)))
        return self._soon[-1]

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> ManualTimer:
        """Call when so many seconds have passed, after what is due before or was asked for before."""
        timer = ManualTimer(lambda: callback(*args), self.clock.monotonic_ns() + round(delay * 1e9))
        self._made += 1
        heapq.heappush(self._later, (timer.at_ns, self._made, timer))
        return timer

    def turn(self) -> None:
        """Call what is due, and in rounds what that asks for, until there is nothing more."""
        while self._take_due() or self._soon:
            for _ in range(len(self._soon)):
                timer = self._soon.popleft()
                if not timer.cancelled:
                    timer.call()

    def _take_due(self) -> None:
        while self._later and self._later[0][0] <= self.clock.monotonic_ns():
            self._soon.append(heapq.heappop(self._later)[2])

    def advance(self, ms: int) -> None:
        """Let time pass; what is due is called in its millisecond."""
        end_ns = self.clock.monotonic_ns() + ms * _NS_PER_MS
        self.turn()
        while (left_ns := end_ns - self.clock.monotonic_ns()) > 0:
            next_ns = self._later[0][0] - self.clock.monotonic_ns() if self._later else left_ns
            self.clock.advance(-(-min(next_ns, left_ns) // _NS_PER_MS))
            self.turn()


@dataclass(eq=False)
class MemoryTransport:
    """The node's end of a connection, and the client's: `client_` calls and `received` are the client's.

    most_bytes: how much one call moves at the most. room: how much can be sent until the client makes more.
    """

    poller: "MemoryPoller"
    local_address: tuple[str, int]
    most_bytes: int = UNLIMITED
    room: int = UNLIMITED
    received: bytearray = field(default_factory=bytearray)
    closed: bool = False
    asked_for_client: bool = False
    _coming: bytearray = field(default_factory=bytearray)
    _ended: bool = False
    _error: OSError | None = None
    _on_readable: Callable[[], None] | None = None
    _on_broken: Callable[[], None] | None = None
    _on_writable: Callable[[], None] | None = None
    _watched: tuple[Callable[[], None], Callable[[bool], None]] | None = None

    # --- the client's end ---------------------------------------------------------------------------------------

    def client_send(self, data: bytes) -> None:
        """Send bytes."""
        self._coming += data
        if self._watched is not None:
            self._watched[0]()
        self.poller.wake()

    def client_end(self) -> None:
        """Send the last byte: from here on only read."""
        self._ended = True
        self._tell_gone()

    def client_break(self) -> None:
        """Leave at once, as after a reset."""
        self._error = ConnectionResetError("the client is gone")
        self._tell_gone()

    def client_take(self, room: int = UNLIMITED) -> bytes:
        """Return what has come, and make room for more."""
        taken = bytes(self.received)
        self.received.clear()
        self.room = room
        self.poller.wake()
        return taken

    def _tell_gone(self) -> None:
        if self._watched is not None:
            self._watched[1](self._error is not None)
        self.poller.wake()

    # --- Transport ----------------------------------------------------------------------------------------------

    def recv_into(self, target: memoryview, /) -> int:
        """Receive what is there, as far as one call goes."""
        self._check()
        if not self._coming and not self._ended:
            raise BlockingIOError
        count = min(len(target), len(self._coming), self.most_bytes)
        target[:count] = self._coming[:count]
        del self._coming[:count]
        return count

    def send(self, data: Any, /) -> int:
        """Take what there is room for, as far as one call goes."""
        self._check()
        count = min(len(data), self.room, self.most_bytes)
        if not count:
            raise BlockingIOError
        self.received += memoryview(data)[:count]
        self.room -= count
        return count

    def send_some(self, out: deque[Sendable], /) -> bool:
        """Take what there is room for; slices of files are read."""
        while out:
            first = out[0]
            is_memory = isinstance(first, (bytes, bytearray, memoryview))
            try:
                sent = self.send(first if is_memory else first.read())
            except BlockingIOError:
                return False
            if sent < len(first):
                out[0] = memoryview(first)[sent:] if is_memory else first.rest(sent)
            else:
                out.popleft()
                if not is_memory:
                    first.release()
        return True

    def end(self) -> None:
        """Receive nothing more behind what has come."""
        self._ended = True

    def set_client(self, client: object) -> None:
        """Ignore the client: connections are served in the order of their creation."""

    def start_reading(self, on_readable: Callable[[], None]) -> None:
        """Call back in the turns in which there is something."""
        self._on_readable, self._on_broken = on_readable, None
        self.poller.connections[self] = None
        self.poller.wake()

    def pause_reading(self, on_broken: Callable[[], None]) -> None:
        """Call back only when the connection breaks, once."""

        def tell() -> None:
            self._on_broken = None
            on_broken()

        self._on_readable, self._on_broken = None, tell

    def start_writing(self, on_writable: Callable[[], None]) -> None:
        """Call back in the turns in which there is room."""
        self._on_writable = on_writable
        self.poller.wake()

    def stop_writing(self) -> None:
        """Stop that."""
        self._on_writable = None

    def watch(self, on_early: Callable[[], None], on_gone: Callable[[bool], None]) -> None:
        """Tell of the client's next bytes and of its end, of those that are there too."""
        self._watched = on_early, on_gone
        if self._ended or self._error:
            on_gone(self._error is not None)
        elif self._coming:
            on_early()

    def unwatch(self) -> None:
        """Stop that."""
        self._watched = None

    def unread_bytes(self) -> int:
        """Return how much has come and was not received."""
        return len(self._coming)

    def ask_for_client(self) -> None:
        """Note it."""
        self.asked_for_client = True

    def close(self) -> None:
        """Call nobody any more."""
        self.closed = True
        self._on_readable = self._on_broken = self._on_writable = self._watched = None
        self.poller.connections.pop(self, None)

    def _check(self) -> None:
        assert not self.closed, "used after its close"
        if self._error is not None:
            raise self._error

    # --- the poller's side --------------------------------------------------------------------------------------

    def callback(self) -> Callable[[], None] | None:
        """Return what is to be called in this turn, if anything."""
        if self._on_writable is not None and (self.room or self._error):
            return self._on_writable
        if self._on_readable is not None and (self._coming or self._ended or self._error):
            return self._on_readable
        return self._on_broken if self._error else None


class MemoryPoller:
    """Serves the connections in memory in turns, in the order in which they were made."""

    def __init__(self, loop: Scheduler, monotonic_ns: Callable[[], int]) -> None:
        self.connections: dict[MemoryTransport, None] = {}
        self._loop = loop
        self._monotonic_ns = monotonic_ns
        self._turns: Turns = NoTurns()
        self._woken = False
        self._closed = False
        self._calls: list[Callable[[], None]] = []

    def call_in_turn(self, callback: Callable[[], None], owner: str) -> None:
        """Call back in the next turn."""
        self._calls.append(callback)
        self.wake()

    def call_late_in_turn(self, callback: Callable[[], None], owner: str) -> None:
        """Do the same."""
        self.call_in_turn(callback, owner)

    def serve_in(self, turns: Turns) -> None:
        """Tell `turns` of each turn."""
        self._turns = turns

    def wake(self) -> None:
        """Have a turn when the loop has its next."""
        if not (self._woken or self._closed):
            self._woken = True
            self._loop.call_soon(self._serve)

    def close(self) -> None:
        """Have no more turns."""
        self._closed = True

    def _ready(self) -> list[MemoryTransport]:
        return [connection for connection in self.connections if connection.callback()]

    def _serve(self) -> None:
        self._woken = False
        if self._closed:
            return
        self._turns.begin_turn(self._monotonic_ns())
        calls, self._calls = self._calls, []
        try:
            for callback in calls:
                callback()
                self._turns.at_ns = self._monotonic_ns()
            for connection in self._ready()[:BATCH]:
                callback, since_ns = connection.callback(), self._turns.at_ns
                if callback is not None:
                    callback()
                if self._turns.at_ns == since_ns:
                    self._turns.at_ns = self._monotonic_ns()
        finally:
            more = self._turns.finish_turn(self._monotonic_ns() + SERVE_NS)
        if more or any(connection.callback() for connection in self.connections):
            self.wake()


class MemoryListener:
    """Accepts connections while it is started, and keeps the others waiting."""

    def __init__(
        self,
        address: ListenerAddress,
        poller: MemoryPoller,
        loop: Scheduler,
        on_accept: Callable[[Transport, str], None],
    ) -> None:
        self.name, self.port = address.name, address.port
        self._poller = poller
        self._loop = loop
        self._on_accept = on_accept
        self._waiting: deque[tuple[MemoryTransport, str]] = deque()
        self._accepting = False

    def refuse(self) -> None:
        """Accept none until `stop_refusing`."""
        self.stop()

    def stop_refusing(self) -> None:
        """Accept connections again."""
        self.start()

    def client_connect(
        self,
        host: str = "192.0.2.1",
        transport: Callable[..., MemoryTransport] = MemoryTransport,
        **limits: int,
    ) -> MemoryTransport:
        """Return a connection that comes from `host`; it is served when it was accepted."""
        connection = transport(self._poller, (self.name, self.port), **limits)
        self._waiting.append((connection, host))
        self._loop.call_soon(self._accept)
        return connection

    def start(self) -> None:
        """Accept those that wait."""
        self._accepting = True
        self._loop.call_soon(self._accept)

    def stop(self) -> None:
        """Accept nobody."""
        self._accepting = False

    def close(self) -> None:
        """Accept nobody any more; those that wait are reset."""
        self._accepting = False
        while self._waiting:
            self._waiting.popleft()[0].close()

    def _accept(self) -> None:
        while self._accepting and self._waiting:
            self._on_accept(*self._waiting.popleft())


class MemoryNetwork:
    """A `Network` without sockets; its listeners by name."""

    def __init__(self, loop: Scheduler, monotonic_ns: Callable[[], int]) -> None:
        self.poller = MemoryPoller(loop, monotonic_ns)
        self.listeners: dict[str, MemoryListener] = {}
        self._loop = loop

    def listen(
        self,
        address: ListenerAddress,
        config: ServerConfig,
        on_accept: Callable[[Transport, str], None],
        make_room: Callable[[str], bool],
    ) -> MemoryListener:
        """Return a listener with a name and a port, and nothing else."""
        listener = MemoryListener(address, self.poller, self._loop, on_accept)
        self.listeners[address.name] = listener
        return listener


class MemoryCluster:
    """Nodes with their storage, and all that they live in. Setting names have `_` for `.`, or are in `texts`."""

    def __init__(
        self,
        directory: Path,
        count: int = 1,
        *,
        loop: ManualLoop | None = None,
        sync: SyncFile = os.fdatasync,
        texts: Mapping[str, str] | None = None,
        **settings: str,
    ) -> None:
        self.loop = loop or ManualLoop(ManualClock())
        self.clock = self.loop.clock
        given = {"log.dirs": str(directory), **dotted(settings), **(texts or {})}
        self.configs = node_configs(ServerConfig.load(given), count)
        self.networks = [MemoryNetwork(self.loop, self.clock.monotonic_ns) for _ in self.configs]
        self.nodes: list[Node] = []
        for config, network in zip(self.configs, self.networks, strict=True):
            controller = self.nodes[0] if self.nodes else None
            self.nodes.append(
                Node(
                    config, clock=self.clock, loop=self.loop, network=network, recorder=self.recorder_of(config),
                    controller=controller,
                )
            )  # fmt: skip
            self.on_made(self.nodes[-1])
        self.storage = Storage.open(directory, storage_config(self.configs[0]), self.clock, sync=sync)
        closed_after_test(self.storage.store)
        self.quotas = QuotaAdministration(self.storage.store, self.loop)
        self.quotas.load()
        start_housekeeping(self.storage, self.loop)
        self.credentials = ScramCredentials(self.storage.store, exact=self.storage.config.kafka_exact)
        self.settings = serve_nodes(self.nodes, self.storage, self.quotas, self.loop, self.credentials)

    def recorder_of(self, config: ServerConfig) -> Recorder | None:
        """Return the recorder of one node; None: it records nothing."""
        return None

    def on_made(self, node: Node) -> None:
        """Do something with a node that does not serve yet."""

    def connect(self, listener: str = "PLAINTEXT", *, at: int = 0, **limits: Any) -> MemoryTransport:
        """Return a connection to the node of that place; it is accepted already where it may be."""
        connection = self.networks[at].listeners[listener].client_connect(**limits)
        self.loop.turn()
        return connection

    def close(self) -> None:
        """Close the nodes and their storage."""
        for node in reversed(self.nodes):
            node.close()
        self.quotas.close()
        self.storage.close()


class MemoryNode(MemoryCluster):
    """One node, which answers with other handlers where there are any, and records with `recorder`."""

    def __init__(
        self,
        directory: Path,
        handlers: HandlerTable | None = None,
        *,
        recorder: Recorder | None = None,
        loop: ManualLoop | None = None,
        texts: Mapping[str, str] | None = None,
        **settings: str,
    ) -> None:
        self._recorder = recorder
        super().__init__(directory, loop=loop, texts=texts, **settings)
        (self.node,), (self.network,) = self.nodes, self.networks
        self.node.handlers = {**self.node.handlers, **(handlers or {})}

    def recorder_of(self, config: ServerConfig) -> Recorder | None:
        """Return what was given."""
        return self._recorder


def dotted(settings: dict[str, str]) -> dict[str, str]:
    """Return settings by their names."""
    return {name.replace("_", "."): text for name, text in settings.items()}

"""The poller: what is ready together, and when the rest has to wait for the loop's other work."""

import asyncio
import socket
import struct
from collections.abc import Callable

import pytest

from tidegate.server.connection import poller as poller_module
from tidegate.server.connection.calls_in_turn import LATE_NS
from tidegate.server.connection.poller import SCAN_EVERY_NS, EpollPoller
from tidegate.server.connection.turns import BATCH, SERVE_NS


class Sockets:
    """Pairs of sockets in a poller whose clock a test sets; notes who was called, and when turns begin and end."""

    def __init__(self, count: int) -> None:
        self.now_ns = self.at_ns = 0
        self.takes_ns = 0
        self.notes: list[int | str] = []
        self.shared_ns: list[int] = []  # of each turn: the time before it that its requests share
        self.poller = EpollPoller(asyncio.get_running_loop(), lambda: self.now_ns)
        self.poller.serve_in(self)
        self.waiting = 0
        self.pairs = [socket.socketpair() for _ in range(count)]
        for number, (server, _) in enumerate(self.pairs):
            self.poller.add_reader(server.fileno(), self.reader(number))

    def begin_turn(self, since_ns: int) -> None:
        """Note that a turn begins."""
        self.notes.append("begin")
        self.shared_ns.append(self.now_ns - since_ns)

    def finish_turn(self, until_ns: int) -> bool:
        """Note that a turn ends; return whether somebody waits."""
        self.notes.append("end")
        self.now_ns += 1
        self.waiting = max(self.waiting - 1, 0)
        return self.waiting > 0

    def reader(self, number: int) -> Callable[[], None]:
        """Return what is called when a socket can be read."""

        def read() -> None:
            self.pairs[number][0].recv(1)
            self.notes.append(number)
            self.now_ns += self.takes_ns

        return read

    def send(self) -> None:
        """Make all readable."""
        for _, client in self.pairs:
            client.send(b"x")

    def serve(self) -> list[int | str]:
        """Serve until nobody waits or the time is over, and return the notes of it."""
        self.notes.clear()
        self.poller._serve_ready()
        return self.notes

    def close(self) -> None:
        """Close all."""
        for server, client in self.pairs:
            self.poller.forget(server.fileno())
            server.close()
            client.close()
        self.poller.close()


@pytest.fixture
def with_sockets() -> Callable[[int, Callable[[Sockets], None]], None]:
    """Return a function that runs a function with so many sockets."""

    def run(count: int, scenario: Callable[[Sockets], None]) -> None:
        async def main() -> None:
            sockets = Sockets(count)
            try:
                scenario(sockets)
            finally:
                sockets.close()

        asyncio.run(main())

    return run


def test_what_is_ready_together_is_one_turn(with_sockets) -> None:
    """One alone or several: between a beginning and an end."""

    def scenario(sockets: Sockets) -> None:
        sockets.pairs[1][1].send(b"x")
        assert sockets.serve() == ["begin", 1, "end"]
        sockets.send()
        assert sockets.serve() == ["begin", 0, 1, 2, "end"]

    with_sockets(3, scenario)


def test_turns_follow_while_somebody_waits(with_sockets) -> None:
    """Also where no socket is ready; sockets that become ready meanwhile are in the next turn."""

    def scenario(sockets: Sockets) -> None:
        sockets.waiting = 3
        sockets.pairs[0][1].send(b"x")
        sockets.pairs[0][1].send(b"x")
        assert sockets.serve() == ["begin", 0, "end", "begin", 0, "end", "begin", "end"]

    with_sockets(1, scenario)


def test_turns_go_on_soon_where_the_time_is_over(with_sockets) -> None:
    """Who waits is served after the loop's other work, without a socket that is ready."""

    def scenario(sockets: Sockets) -> None:
        sockets.waiting = 100
        sockets.takes_ns = SERVE_NS
        sockets.send()
        assert sockets.serve() == ["begin", 0, "end"]
        assert sockets.poller._woken
        assert sockets.serve()[:4] == ["begin", "end", "begin", "end"]
        assert not sockets.poller._woken

    with_sockets(1, scenario)


def test_a_turn_ends_after_its_time_and_the_next_one_begins_with_the_rest(with_sockets) -> None:
    """Nobody is kept out by those who were served already and are ready again: all have as many turns."""

    def scenario(sockets: Sockets) -> None:
        sockets.takes_ns = SERVE_NS // 2
        served: list[int | str] = []
        for _ in range(60):
            sockets.send()
        for _ in range(50):
            turn = [note for note in sockets.serve() if isinstance(note, int)]
            assert len(turn) <= 2
            served += turn
        counts = [served.count(number) for number in range(5)]
        assert max(counts) - min(counts) <= 2, counts

    with_sockets(5, scenario)


def test_a_turn_has_a_batch_at_most(with_sockets) -> None:
    """However many are ready, the first of them are answered after a batch."""

    def scenario(sockets: Sockets) -> None:
        sockets.send()
        notes = sockets.serve()
        first = notes[1 : notes.index("end")]
        assert len(first) == BATCH
        assert sorted(note for note in notes if isinstance(note, int)) == list(range(BATCH + 6))

    with_sockets(BATCH + 6, scenario)


class Client:
    """The client of a socket."""

    def __init__(self, owner: str) -> None:
        self.owner = owner


class SlowClient(Client):
    """A client whose owner takes a while to be looked up."""

    def __init__(self, sockets: Sockets, owner: str) -> None:
        self._sockets, self._owner = sockets, owner

    @property
    def owner(self) -> str:
        """Return it."""
        self._sockets.now_ns += SERVE_NS
        return self._owner


@pytest.mark.parametrize("logged_in", [False, True])
def test_a_crowd_of_one_principal_leaves_others_their_turn(with_sockets, logged_in: bool) -> None:
    """However many sockets of one are ready before that of another: the next scan finds it."""

    def scenario(sockets: Sockets) -> None:
        sockets.takes_ns = SERVE_NS // 4
        other = len(sockets.pairs) - 1
        client = Client("a")
        for number, (server, _) in enumerate(sockets.pairs):
            sockets.poller.set_client(server.fileno(), client if number == other else Client("a"))
        sockets.send()
        sockets.serve()
        if logged_in:
            client.owner = "b"
        begun_ns = sockets.now_ns
        while other not in sockets.serve():
            pass
        # until the next scan, and the batch before it
        soon_ns = SCAN_EVERY_NS + 2 * BATCH * sockets.takes_ns
        assert (sockets.now_ns - begun_ns <= soon_ns) is logged_in

    with_sockets(8 * BATCH, scenario)


@pytest.mark.parametrize("scanned", [10**6, 3 * BATCH, 2 * BATCH])
def test_each_socket_of_a_crowd_has_its_turn(with_sockets, monkeypatch, scanned: int) -> None:
    """Scans give some sockets hardly more turns than others, also those that see a part of the sockets."""
    monkeypatch.setattr(poller_module, "SCANNED_MOST", scanned)
    monkeypatch.setattr(poller_module, "SCAN_EVERY_NS", 0)

    def scenario(sockets: Sockets) -> None:
        sockets.takes_ns = SERVE_NS // 10
        for number, (server, _) in enumerate(sockets.pairs):
            sockets.poller.set_client(server.fileno(), Client("ab"[number % 2]))
        for _ in range(20):
            sockets.send()
        served: list[int | str] = []
        while len(served) < 10 * len(sockets.pairs):
            served += [note for note in sockets.serve() if isinstance(note, int)]
        counts = [served.count(number) for number in range(len(sockets.pairs))]
        assert min(counts) >= (8 if scanned > len(sockets.pairs) else 3), counts

    with_sockets(4 * BATCH, scenario)


def test_no_client_is_charged_for_a_scan(with_sockets) -> None:
    """The turn behind a scan begins when that has ended, and has all its time."""

    def scenario(sockets: Sockets) -> None:
        sockets.takes_ns = SERVE_NS // (BATCH + 1)
        for number, (server, _) in enumerate(sockets.pairs):
            sockets.poller.set_client(server.fileno(), SlowClient(sockets, "ab"[number % 2]))
        sockets.send()
        notes = sockets.serve()
        assert sockets.now_ns > len(sockets.pairs) * SERVE_NS, "the scan took no time"
        assert sockets.shared_ns[0] == 0
        assert notes.index("end") == 1 + BATCH

    with_sockets(BATCH + 6, scenario)


def test_late_calls_leave_others_their_turn(with_sockets) -> None:
    """A few of many in each turn of the loop, behind those that are called in a turn; all in the end."""

    def scenario(sockets: Sockets) -> None:
        def call(note: int) -> Callable[[], None]:
            def called() -> None:
                sockets.notes.append(note)
                sockets.now_ns += LATE_NS // 2

            return called

        calls = sockets.poller._calls
        for number in range(100, 105):
            sockets.poller.call_late_in_turn(call(number), "10.0.0.7")
        sockets.poller.call_in_turn(call(1), "10.0.0.9")
        calls._serve()
        assert sockets.notes == ["begin", 1, 100, 101, "end"]
        sockets.poller.call_in_turn(call(2), "10.0.0.9")
        calls._serve()
        assert sockets.notes[5:] == ["begin", 2, 102, 103, "end"]
        calls._serve()
        assert sockets.notes[10:] == ["begin", 104, "end"]

    with_sockets(0, scenario)


def test_calls_of_one_owner_leave_those_of_others_their_turn(with_sockets) -> None:
    """Each owner has one call in a round, however many another has waiting."""

    def scenario(sockets: Sockets) -> None:
        for number in range(5):
            sockets.poller.call_late_in_turn(lambda number=number: sockets.notes.append(number), "10.0.0.7")
        for number in (10, 11):
            sockets.poller.call_late_in_turn(lambda number=number: sockets.notes.append(number), "10.0.0.8")
        sockets.poller._calls._serve()
        assert sockets.notes == ["begin", 0, 10, 1, 11, 2, 3, 4, "end"]

        sockets.notes.clear()
        for number in range(3):
            sockets.poller.call_in_turn(lambda number=number: sockets.notes.append(number), "User:a")
        sockets.poller.call_in_turn(lambda: sockets.notes.append(10), "User:b")
        sockets.poller._calls._serve()
        assert sockets.notes == ["begin", 0, 10, 1, 2, "end"]

    with_sockets(0, scenario)


def test_a_socket_that_closes_meanwhile_is_not_served(with_sockets) -> None:
    """The rest of a turn may have closed, and its number may be another's, before its turn comes."""

    def scenario(sockets: Sockets) -> None:
        sockets.takes_ns = SERVE_NS
        sockets.send()
        assert len(sockets.serve()) == 3
        gone = [number for number in range(3) if number not in sockets.notes]
        for number in gone:
            sockets.poller.forget(sockets.pairs[number][0].fileno())
        assert [note for note in sockets.serve() if note in gone] == []

    with_sockets(3, scenario)


def test_a_paused_socket_tells_only_that_it_broke(with_sockets) -> None:
    """Bytes wait in the kernel; a broken connection is told at once; reading goes on afterwards."""

    def scenario(sockets: Sockets) -> None:
        server, client = sockets.pairs[0]
        sockets.poller.pause_reader(server.fileno(), lambda: sockets.notes.append("broken"))
        client.send(b"x")
        assert 0 not in sockets.serve()
        assert "broken" not in sockets.notes
        sockets.poller.add_reader(server.fileno(), sockets.reader(0))
        assert sockets.serve() == ["begin", 0, "end"]

    with_sockets(1, scenario)


def test_a_reset_is_told_to_a_paused_socket(with_sockets) -> None:
    """A client that resets its connection is gone, whoever reads it or not."""

    def scenario(sockets: Sockets) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            client = socket.create_connection(listening.getsockname())
            server, _ = listening.accept()
        sockets.pairs.append((server, client))
        sockets.poller.add_reader(server.fileno(), sockets.reader(0))
        sockets.poller.pause_reader(server.fileno(), lambda: sockets.notes.append("broken"))
        client.shutdown(socket.SHUT_WR)
        assert "broken" not in sockets.serve(), "it may still read"
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        assert "broken" in sockets.serve()

    with_sockets(0, scenario)

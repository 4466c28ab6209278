"""What of the usage record is in the kernel's hands when an answer leaves."""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.server.nodes import FETCH, PRODUCE, MemoryStore, NodeClient, RunningNode, fetch_body, running_node

from tidegate.server.connection import poller
from tidegate.server.requests.handler import Answer, FetchAnswer, Request
from tidegate.usage.readers import read_segment

RECORDS_BYTES = 64


class WatchedSlice:
    """Records of a fetch answer that are sent from a file; `on_send` is called just before they are."""

    offset = 0
    size = RECORDS_BYTES

    def __init__(self, fd: int, on_send: Callable[[], None]) -> None:
        self._fd = fd
        self._on_send = on_send

    def __len__(self) -> int:
        return self.size

    @property
    def fd(self) -> int:
        """Return the file's descriptor: the sender asks for it when it hands it to the kernel."""
        self._on_send()
        return self._fd

    def send_to(self, fd: int) -> int:
        """Send some of it to a socket."""
        return os.sendfile(fd, self.fd, self.offset, self.size)

    def release(self) -> None:
        """Do nothing: the test closes the file."""


def rows_on_disk(directory: Path) -> list[dict]:
    """Return what a process that starts after `kill -9` would find of the requests."""
    (path,) = (directory / "spool").glob("*.open")
    return [event for event in read_segment(path) if event["kind"] == "request"]


@pytest.mark.parametrize("request_quota", [None, 1e6])
@pytest.mark.parametrize("clients", [1, 5])
def test_the_row_is_written_before_the_answer_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clients: int, request_quota: float | None
) -> None:
    """Whoever has an answer is in the record; requests answered together share a write."""
    # No turn is cut short by a machine that stands still.
    monkeypatch.setattr(poller, "SERVE_NS", 10_000_000_000)
    found: list[set[str]] = []
    fd = os.open(tmp_path / "records", os.O_RDWR | os.O_CREAT)
    os.write(fd, bytes(RECORDS_BYTES))

    def note() -> None:
        rows = rows_on_disk(tmp_path)
        found.append({row["client_id"] for row in rows if row["api_key"] == FETCH})

    def fetch(request: Request) -> Answer:
        records = WatchedSlice(fd, note)
        return FetchAnswer(request.encode(fetch_body(records)), lambda: request.encode(fetch_body(None)))

    async def scenario(node: RunningNode) -> None:
        who: list[NodeClient] = [await node.connect(f"c{number}") for number in range(clients)]
        for client in who:
            await client.metadata()
        if request_quota is not None:
            await who[0].alter([("client-id", None)], "request_percentage", request_quota)
        for client in who:
            client.send_fetch(max_bytes=1)
        time.sleep(0.05)  # the loop stands still until all have arrived: they are one turn
        for client in who:
            await client.receive()

    async def main() -> None:
        async with running_node(tmp_path, MemoryStore(), {}, handlers={FETCH: fetch}) as node:
            await asyncio.wait_for(scenario(node), 10)

    asyncio.run(main())
    os.close(fd)
    everyone = {f"c{number}" for number in range(clients)}
    assert found[-1] == everyone
    for number, there in enumerate(found):
        assert len(there) > number, "an answer left before its row was written"
    assert len(found[0]) == clients, "served in one turn: all rows are there before the first answer"


def test_names_kept_for_a_connection_take_little(tmp_path: Path) -> None:
    """However long and however many client ids a connection has: its rows have them, it keeps 2 KB of them at most."""
    ids = [f"{number:03d}" + "€" * length for number, length in enumerate([9, 250, 252, 10_900] * 30)]

    async def main() -> None:
        async with running_node(tmp_path, MemoryStore(), {}) as node:
            client = await node.connect()
            await client.metadata()
            for client.client_id in ids:
                await client.metadata()
            node.recorder.maybe_roll(node.node.clock.now_ms() + 10**6)
            (channel,) = node.node._front.channels
            assert sum(map(sys.getsizeof, channel.connection.recorded.names)) <= 2 << 10
            assert channel.answered is None, "the last header has a long client id"
            found = [row["client_id"] for path in sorted(node.spool.glob("*.closed")) for row in read_segment(path)
                     if row["kind"] == "request"]  # fmt: skip
            assert found == ["c1", *ids]

    asyncio.run(main())


@pytest.mark.parametrize("is_observed", [False, True])
def test_a_fetch_shows_its_lag_throttled_or_not(tmp_path: Path, is_observed: bool) -> None:
    """What the handler says of it is in the row of each Fetch, and in no other."""

    def fetch(request: Request) -> Answer:
        return FetchAnswer(
            request.encode(fetch_body(bytes(500))), lambda: request.encode(fetch_body(None)), 7, 700
        )

    async def main() -> list[dict]:
        settings = {"tidegate.quota.observe": "all"} if is_observed else {}
        async with running_node(tmp_path, MemoryStore(), settings, handlers={FETCH: fetch}) as node:
            client = await node.connect()
            await client.metadata()
            client.send_fetch(max_bytes=1)
            await client.receive()
            await client.alter([("client-id", None)], "consumer_byte_rate", 90.0)
            for _ in range(2):
                client.send_fetch(max_bytes=1)
                await client.receive()
            return rows_on_disk(tmp_path)

    rows = asyncio.run(asyncio.wait_for(main(), 20))
    fetches = [row for row in rows if row["api_key"] == FETCH]
    assert [(row["lag"], row["lag_bytes"]) for row in fetches] == 3 * [(7, 700)]
    assert {(row["lag"], row["lag_bytes"]) for row in rows if row["api_key"] != FETCH} == {(None, None)}
    assert [row["observed_only"] for row in fetches if row["fetch_throttle_ms"]].count(is_observed) >= 1


def test_a_user_is_charged_and_recorded_from_its_login_on(tmp_path: Path) -> None:
    """What a connection asks before its login is ANONYMOUS's; then it has its user's quota, and so after another."""

    async def main() -> list[dict]:
        async with running_node(tmp_path, MemoryStore(), {}) as node:
            client = await node.connect()
            await client.alter([("user", "alice")], "producer_byte_rate", 10.0)
            (channel,) = node.node._front.channels
            throttled = []
            for user in (None, "bob", "alice"):
                if user is not None:
                    channel.connection.set_user(user)
                client.send_produce(padding=500)
                throttled.append((await client.receive())[1]["throttle_time_ms"] > 0)
            assert throttled == [False, False, True]
            return rows_on_disk(tmp_path)

    rows = asyncio.run(asyncio.wait_for(main(), 20))
    assert [row["user"] for row in rows if row["api_key"] == PRODUCE] == ["ANONYMOUS", "bob", "alice"]

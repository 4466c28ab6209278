"""Tenants that fill the memory of requests or of unread answers shut out no other tenant."""

import contextlib
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.batches import build_batch
from tests.limits.frames import OFFSET_COMMIT, OFFSET_FETCH, PRODUCE, commit, produce, request
from tests.limits.tenants import TenantConnection, TenantsBroker, first_operation, tenants_broker

from tidegate.server.process_memory import process_memory_bytes

pytestmark = pytest.mark.alone

ANNOUNCED_BYTES = 100_000_000
STEP_S = 0.1
STEP_BYTES = 100_000  # of each connection in a step: 1 MB/s
VICTIM_PRODUCES = 7
PRODUCED_BYTES = 400_000
ATTACKERS = [("mallory",), ("mallory", "eve")]
BOUND_OF_ANSWERS = "60000000"
"""With that of the machine it takes the attackers minutes to fill it."""


@contextlib.contextmanager
def repeating(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` in each step of time, on a thread."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(STEP_S):
            act()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def sending_slowly(broker: TenantsBroker, users: tuple[str, ...]) -> Iterator[None]:
    """Let users announce more than fits, in requests of 100 MB each, and send them at 1 MB/s each."""
    count = process_memory_bytes() // 8 // ANNOUNCED_BYTES + 20
    clients = [broker.log_in(users[number % len(users)]) for number in range(count)]
    part = bytes(STEP_BYTES)

    def send() -> None:
        for client in list(clients):
            try:
                client.socket.send(part)
            except BlockingIOError:  # it is not read: it has no memory
                pass
            except OSError:  # closed: its grant was revoked
                clients.remove(client)

    with contextlib.ExitStack() as opened:
        for client in clients:
            opened.enter_context(client)
            client.socket.sendall(struct.pack(">ihhi", ANNOUNCED_BYTES, PRODUCE, 8, 1) + bytes(20_000))
            client.socket.setblocking(False)
        opened.enter_context(repeating(send))
        yield


@pytest.mark.parametrize("attackers", ATTACKERS, ids=len)
def test_another_tenant_produces_while_memory_is_granted_to_slow_senders(
    tmp_path: Path, attackers: tuple[str, ...]
) -> None:
    """Each of its requests is answered within a second, though all memory was granted for the announced sizes."""
    frame = request(PRODUCE, 8, produce("victim-0", [build_batch([(None, bytes(PRODUCED_BYTES))])]))
    with tenants_broker(tmp_path, (*attackers, "victim")) as broker:
        with broker.log_in("victim") as victim:
            victim.create("victim-0")
        with sending_slowly(broker, attackers):
            time.sleep(1)  # all of them are sending, and none has ended
            for _ in range(VICTIM_PRODUCES):
                with first_operation(), broker.log_in("victim") as victim:
                    victim.socket.sendall(frame)
                    victim.skip_answer()


@contextlib.contextmanager
def reading_slowly(broker: TenantsBroker, users: tuple[str, ...]) -> Iterator[None]:
    """Let users ask for far more than fits, and read a little of it now and then."""
    clients = []

    def read() -> None:
        for client in clients:
            with contextlib.suppress(OSError):
                client.socket.recv(10_000)

    with contextlib.ExitStack() as opened:
        for number in range(60):
            client = opened.enter_context(
                TenantConnection(broker.port, users[number % len(users)], receive_buffer_bytes=10_000)
            )
            frame = request(OFFSET_FETCH, 5, {"group_id": f"{client.user}-g", "topics": None})
            client.socket.sendall(frame)
            client.socket.setblocking(False)
            clients.append(client)
        opened.enter_context(repeating(read))
        yield


def _commit_much(broker: TenantsBroker, user: str) -> None:
    """Let a user commit offsets that make an answer of 8 MB."""
    part = {"partition_index": 0, "committed_offset": 1, "committed_metadata": "m" * 4000}
    with broker.log_in(user) as client:
        client.create(f"{user}-wide", 500)
        parts = [{**part, "partition_index": at} for at in range(500)]
        for number in range(4):
            name = f"{user}-wide{number or ''}"
            if number:
                client.create(name, 500)
            message = {**commit({}), "group_id": f"{user}-g", "topics": [{"name": name, "partitions": parts}]}
            answer = client.ask(OFFSET_COMMIT, 5, message)
            assert {part["error_code"] for part in answer["topics"][0]["partitions"]} == {0}


@pytest.mark.parametrize("attackers", ATTACKERS, ids=len)
def test_another_tenant_keeps_the_answer_that_it_has_not_read(
    tmp_path: Path, attackers: tuple[str, ...]
) -> None:
    """It stops reading for a moment, and then reads all of it: connections of those that hold more are closed."""
    overrides = {
        "queued.max.request.bytes": BOUND_OF_ANSWERS,
        "socket.request.max.bytes": BOUND_OF_ANSWERS,
        "tidegate.max.partitions": "100000",
    }
    with tenants_broker(tmp_path, (*attackers, "victim"), overrides) as broker:
        for user in (*attackers, "victim"):
            _commit_much(broker, user)
        with TenantConnection(broker.port, "victim", receive_buffer_bytes=10_000) as victim:
            victim.socket.sendall(request(OFFSET_FETCH, 5, {"group_id": "victim-g", "topics": None}))
            with reading_slowly(broker, attackers):
                deadline_s = time.monotonic() + 60
                while "response not read while other clients" not in broker.log:
                    assert time.monotonic() < deadline_s, "the bound was not reached"
                    time.sleep(STEP_S)
                assert victim.skip_answer() > 8_000_000

"""A tenant whose lookups by time decompress large batches keeps no other tenant's lookup waiting."""

import contextlib
import socket
from pathlib import Path

import pytest
from tests.limits.frames import LIST_OFFSETS, PRODUCE, list_offsets, produce, request
from tests.limits.tenants import TenantConnection, first_operation, tenants_broker
from tests.unit.storage.logs import NOW_MS, timed_batch

pytestmark = pytest.mark.alone

CONNECTIONS = 100
LOOKS = 5
QUESTIONS = 20
LARGE_BYTES = 7 << 20  # just within what is decompressed of a batch
GZIP = 1


def look_up(client: TenantConnection, topic: str) -> tuple[int, int]:
    """Return offset and time of the first record that is not older than the second of its batch."""
    answer = client.ask(LIST_OFFSETS, 5, list_offsets(topic, [NOW_MS + 5]))
    (partition,) = answer["topics"][0]["partitions"]
    return partition["offset"], partition["timestamp"]


def waiting_bytes(client: TenantConnection) -> int:
    """Return how many bytes of answers have come that were not read."""
    try:
        return len(client.socket.recv(1 << 16, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return 0


@pytest.mark.parametrize("attackers", [("mallory",), ("mallory", "trudy")], ids=len)
def test_another_tenant_looks_offsets_up(tmp_path: Path, attackers: tuple[str, ...]) -> None:
    """Each of a hundred connections has a large batch that waits for decompression, all the time."""
    with tenants_broker(tmp_path, (*attackers, "victim")) as broker, contextlib.ExitStack() as opened:
        flood = []
        for attacker in attackers:
            clients = [opened.enter_context(broker.log_in(attacker)) for _ in range(CONNECTIONS)]
            clients[0].create(f"{attacker}-0")
            batch = timed_batch([NOW_MS, NOW_MS + 9], value=bytes(LARGE_BYTES // 2), codec=GZIP)
            clients[0].ask_all([request(PRODUCE, 8, produce(f"{attacker}-0", [batch]))])
            assert look_up(clients[0], f"{attacker}-0") == (1, NOW_MS + 9)
            question = request(LIST_OFFSETS, 5, list_offsets(f"{attacker}-0", [NOW_MS + 5]))
            flood += [(client, question) for client in clients]
        victim = opened.enter_context(broker.log_in("victim"))
        victim.create("victim-0")
        victim.ask_all(
            [request(PRODUCE, 8, produce("victim-0", [timed_batch([NOW_MS, NOW_MS + 9], codec=GZIP)]))]
        )
        for client, question in flood:
            client.socket.sendall(question * QUESTIONS)
        for _ in range(LOOKS):
            with first_operation():
                assert look_up(victim, "victim-0") == (1, NOW_MS + 9)
        answer_bytes = flood[0][0].skip_answer() + 4
        assert waiting_bytes(flood[-1][0]) < QUESTIONS * answer_bytes, (
            "the flood was over before the last lookup"
        )

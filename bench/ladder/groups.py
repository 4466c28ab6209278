"""Requests of groups on one connection, one after another: the life of a member, commits, and fetches of offsets."""

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator

from bench.ladder.brokers import BenchBroker

from tidegate.api_keys import (
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SYNC_GROUP,
)
from tidegate.wire import encode_request, read_response

__all__ = ["OFFSETS_TOPIC", "PARTITIONS", "commit_frame", "fetch_frame", "live", "prepare_groups"]

OFFSETS_TOPIC, PARTITIONS = "offsets100", 100
READY_S = 60.0
_SUBSCRIPTION = struct.pack(">hih10si", 0, 1, len(OFFSETS_TOPIC), OFFSETS_TOPIC.encode(), 0)


def commit_frame(
    partitions: int, group_id: str = "bench", member_id: str = "", generation: int = -1
) -> bytes:
    """Return an OffsetCommit in the first partitions of a topic, of a group without members by default."""
    parts = [
        {
            "partition_index": index,
            "committed_offset": 5,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        for index in range(partitions)
    ]
    message = {
        "group_id": group_id,
        "generation_id_or_member_epoch": generation,
        "member_id": member_id,
        "group_instance_id": None,
        "topics": [{"name": OFFSETS_TOPIC, "partitions": parts}],
    }
    return encode_request(OFFSET_COMMIT, 7, 1, "bench", message)


def fetch_frame(partitions: int) -> bytes:
    """Return an OffsetFetch of the first partitions of a topic."""
    topics = [{"name": OFFSETS_TOPIC, "partition_indexes": list(range(partitions))}]
    message = {"group_id": "bench", "topics": topics, "require_stable": False}
    return encode_request(OFFSET_FETCH, 7, 1, "bench", message)


class _Member:
    """A client that joins a group of its own, gets its assignment, sends a heartbeat, commits and leaves."""

    def __init__(self, sock: socket.socket, group_id: str) -> None:
        self._sock = sock
        self._group_id = group_id

    def live(self) -> None:
        """Run one cycle: join, sync, heartbeat, commit, leave. Raises `AssertionError` where a request is refused."""
        joining = {
            "session_timeout_ms": 30_000,
            "rebalance_timeout_ms": 30_000,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": _SUBSCRIPTION}],
        }
        joined = self._ask(JOIN_GROUP, 3, joining)
        member_id, generation = joined["member_id"], joined["generation_id"]
        ids = {"member_id": member_id, "generation_id": generation}
        assigned = [{"member_id": member_id, "assignment": b"assigned"}]
        self._ask(SYNC_GROUP, 2, {**ids, "assignments": assigned})
        self._ask(HEARTBEAT, 2, ids)
        answer = _exchange(self._sock, commit_frame(1, self._group_id, member_id, generation))
        assert answer.endswith(b"\0\0"), answer
        self._ask(LEAVE_GROUP, 2, ids)

    def _ask(self, api_key: int, version: int, message: dict[str, object]) -> dict[str, object]:
        frame = encode_request(api_key, version, 1, "bench", {"group_id": self._group_id, **message})
        answer = read_response(api_key, version, _exchange(self._sock, frame), 4)
        assert answer["error_code"] == 0, answer
        return answer


def live(broker: BenchBroker, seconds: float) -> Iterator[int]:
    """Run cycles of a member for `seconds`; yield the number of finished cycles after each."""
    with _connected(broker) as sock:
        member = _Member(sock, "bench-members")
        until, count = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            member.live()
            count += 1
            yield count


def prepare_groups(broker: BenchBroker) -> None:
    """Wait until the coordinator of groups is ready, and commit what is fetched."""
    with _connected(broker) as sock:
        _exchange(sock, encode_request(FIND_COORDINATOR, 2, 1, "bench", {"key": "bench", "key_type": 0}))
        _until(lambda: _exchange(sock, commit_frame(PARTITIONS)).endswith(b"\0\0"))
        member = _Member(sock, "bench-members")
        _until(lambda: _works(member))


def _works(member: _Member) -> bool:
    try:
        member.live()
    except AssertionError:  # the coordinator is being loaded
        return False
    return True


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_S
    while not is_so():
        assert time.monotonic() < deadline, "the coordinator of groups is not ready"
        time.sleep(0.2)


@contextlib.contextmanager
def _connected(broker: BenchBroker) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", broker.port), timeout=30) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield sock


def _exchange(sock: socket.socket, frame: bytes) -> bytes:
    """Send a frame and return the answer, without its length."""
    sock.sendall(frame)
    received = sock.recv(65536)
    while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
        received += sock.recv(65536)
    return received[4:]

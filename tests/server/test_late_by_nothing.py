"""A throttle ends at its time by the broker's clock, however busy the broker is: never early, a turn late at most."""

from pathlib import Path

import pytest
from tests.batches import build_batch
from tests.server.memory_network import MemoryNode, MemoryTransport

from tidegate.api_keys import CREATE_TOPICS, FETCH, METADATA, PRODUCE
from tidegate.quota import QuotaRecord, QuotaType
from tidegate.server.connection.channel import THROTTLED, Channel
from tidegate.server.requests.handler import Answer, Request
from tidegate.wire import encode_request

TURN_MS = 20  # the longest that a request may hold the loop
CLIENTS = 5
PRODUCED = {
    "transactional_id": None,
    "acks": 1,
    "timeout_ms": 1000,
    "topic_data": [
        {"name": "t", "partition_data": [{"index": 0, "records": build_batch([(None, bytes(10_000))])}]}
    ],
}
FETCHED = {
    "replica_id": -1, "max_wait_ms": 0, "min_bytes": 1, "max_bytes": 20_000, "isolation_level": 0, "session_id": 0,
    "session_epoch": -1, "topics": [{"topic": "t", "partitions": [{
        "partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1,
        "log_start_offset": -1, "partition_max_bytes": 20_000,
    }]}], "forgotten_topics_data": [], "rack_id": "",
}  # fmt: skip
ALL_TOPICS = {
    "topics": None, "allow_auto_topic_creation": False, "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}  # fmt: skip
NO_TOPICS: dict[str, object] = {"brokers": [], "cluster_id": "c", "controller_id": 1, "topics": []}
CREATED = {"name": "", "num_partitions": 3, "replication_factor": 1, "assignments": [], "configs": []}


def creation(name: str) -> dict[str, object]:
    """Return a request for a topic."""
    return {"topics": [{**CREATED, "name": name}], "timeout_ms": 1000, "validate_only": False}


BOUNDS = {
    QuotaType.PRODUCE: 900.0,
    QuotaType.FETCH: 900.0,
    QuotaType.REQUEST: 0.1,
    QuotaType.CONTROLLER_MUTATION: 0.25,
}
"""Bounds that one request of a client exceeds, by about a second."""


class BusyWorld(MemoryNode):
    """A node whose Metadata takes as long as a turn may last, by a clock that goes on meanwhile."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, {METADATA: self._take_a_turn})
        self.others = self.connect()
        self.send(self.others, CREATE_TOPICS, 5, "others", creation("t"))
        self.loop.advance(1000)
        self.send(self.others, PRODUCE, 9, "others", PRODUCED)
        self.loop.advance(1000)

    def _take_a_turn(self, request: Request) -> Answer:
        self.clock.advance(TURN_MS)
        return Answer(request.encode(NO_TOPICS))

    def send(
        self,
        connection: MemoryTransport,
        api_key: int,
        version: int,
        client_id: str,
        message: dict[str, object],
    ) -> None:
        """Send a request."""
        connection.client_send(encode_request(api_key, version, 1, client_id, message))

    def overrun(self, connection: MemoryTransport, quota_type: QuotaType, client_id: str) -> None:
        """Send what quotas of a type are charged for."""
        match quota_type:
            case QuotaType.PRODUCE:
                self.send(connection, PRODUCE, 9, client_id, PRODUCED)
            case QuotaType.FETCH:
                self.send(connection, FETCH, 12, client_id, FETCHED)
            case QuotaType.CONTROLLER_MUTATION:
                self.send(connection, CREATE_TOPICS, 5, client_id, creation(client_id))
            case QuotaType.REQUEST:
                self.send(connection, METADATA, 9, client_id, ALL_TOPICS)


@pytest.mark.parametrize("quota_type", QuotaType)
def test_a_throttle_ends_a_turn_late_at_most(tmp_path: Path, quota_type: QuotaType) -> None:
    """Whatever kind of quota brought it, and though others make each turn as long as one may be."""
    world = BusyWorld(tmp_path)
    for name, bound in ((None, BOUNDS[quota_type]), ("others", 1e9)):
        entity = (("client-id", name),)
        world.node.managers.apply(QuotaRecord(entity=entity, key=quota_type.key, value=bound))
    front = world.node._front
    assert front is not None
    throttled: set[Channel] = set()
    late_ms: list[float] = []
    for turn in range(400):
        if turn % 7 == 0 and turn // 7 < CLIENTS:
            world.overrun(world.connect(), quota_type, f"limited-{turn}")
        world.overrun(world.others, QuotaType.REQUEST, "others")
        world.loop.turn()
        for channel in [channel for channel in throttled if not channel.held & THROTTLED]:
            throttled.remove(channel)
            late_ms.append((world.clock.monotonic_ns() - channel.throttle_ends_ns) / 1e6)
        throttled |= {channel for channel in front.channels if channel.held & THROTTLED}
    world.close()
    assert not throttled
    assert len(late_ms) == CLIENTS
    assert all(0 <= late <= TURN_MS for late in late_ms), late_ms

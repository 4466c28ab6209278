"""Producers and syncs: when one is due, who waits for it, what one round covers, and what a failing disk leaves."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.node import Node, decoded
from tests.unit.storage.disk import WAIT_S, Disk
from tests.unit.storage.logs import append, batch, contents

from tidegate import error_codes
from tidegate.api_keys import DESCRIBE_CONFIGS, PRODUCE
from tidegate.in_slices import run_at_once
from tidegate.server.requests.handler import Answer, Charge, Deferred
from tidegate.storage.errors import AppendError

VERSION = 9
ACKS_ALL = -1


class DiskNode(Node):
    """A node with such a disk."""

    def __init__(self, directory: Path, **config: Any) -> None:
        self.disk = Disk()
        super().__init__(directory, sync=self.disk, **config)

    def produce(self, *topics: str, acks: int = ACKS_ALL, **fields: Any) -> Answer | Deferred:
        """Send one batch for partition 0 of each topic."""
        parts = [
            {"name": name, "partition_data": [{"index": 0, "records": batch(**fields)}]} for name in topics
        ]
        return self.ask(
            PRODUCE,
            VERSION,
            {"transactional_id": None, "acks": acks, "timeout_ms": 1000, "topic_data": parts},
        )


class Reply:
    """What came of a request: None until it is answered, then the error code of each topic."""

    def __init__(self, result: Answer | Deferred) -> None:
        self.errors: list[int] | None = None
        self.charge: Charge | None = None
        assert isinstance(result, Deferred), "the answer did not wait"
        result.when_ready(lambda: self._take(result.answer()))

    def _take(self, answer: Answer) -> None:
        self.charge = answer.charge
        parts = decoded(PRODUCE, VERSION, answer)["responses"]
        self.errors = [part["partition_responses"][0]["error_code"] for part in parts]


@pytest.fixture
def node(tmp_path: Path) -> Any:
    """Return a node whose partitions are synced after every record."""
    node = DiskNode(tmp_path / "data", log_flush_interval_messages=1)
    yield node
    node.disk.free.set()
    node.storage.close()


def test_acks_all_is_answered_after_the_sync(node: DiskNode) -> None:
    """No answer while the disk is busy; then offset and charge as for an answer given at once."""
    node.create("orders")
    node.disk.free.clear()
    reply = Reply(node.produce("orders"))
    node.scheduler.turn()
    assert node.disk.begun.wait(WAIT_S)
    node.scheduler.turn()
    assert (reply.errors, node.log("orders").recovery_point) == (None, 0)
    node.disk.free.set()
    node.round()
    assert (reply.errors, reply.charge, node.disk.synced) == ([0], Charge.PRODUCE, [node.inode("orders")])
    assert node.log("orders").recovery_point == 1


@pytest.mark.parametrize("acks", [0, 1])
def test_others_do_not_wait_but_are_synced(node: DiskNode, acks: int) -> None:
    """acks=1 and acks=0 are done at once; their records go to the disk in the next round."""
    node.create("orders")
    assert isinstance(node.produce("orders", acks=acks), Answer)
    node.round()
    assert node.disk.synced == [node.inode("orders")]


def test_producers_share_a_sync(node: DiskNode) -> None:
    """Whoever comes in one turn, or while the disk is busy, is served by one sync of each file."""
    node.create("orders")
    node.create("bills")
    node.disk.free.clear()
    first = [Reply(node.produce("orders")) for _ in range(5)]
    node.scheduler.turn()
    assert node.disk.begun.wait(WAIT_S)
    second = [Reply(node.produce("orders", "bills")) for _ in range(7)]
    node.disk.free.set()
    node.round()
    node.round()
    assert [reply.errors for reply in first] == [[0]] * 5
    assert [reply.errors for reply in second] == [[0, 0]] * 7
    orders, bills = node.inode("orders"), node.inode("bills")
    assert node.disk.synced == [orders, orders, bills]
    assert (node.log("orders").recovery_point, node.log("bills").recovery_point) == (12, 7)


def test_failing_sync_refuses_all_who_wait_and_all_who_come(
    node: DiskNode, caplog: pytest.LogCaptureFixture
) -> None:
    """Error 56 for that partition alone, one line, and no more appends; what is there can still be read."""
    node.create("orders")
    node.create("bills")
    node.disk.failing.add(node.inode("orders"))
    replies = [Reply(node.produce("orders", "bills")) for _ in range(3)]
    node.round()
    assert [reply.errors for reply in replies] == [[error_codes.KAFKA_STORAGE_ERROR, 0]] * 3
    node.disk.failing.clear()
    late = Reply(node.produce("orders", "bills"))
    node.round()
    assert late.errors == [error_codes.KAFKA_STORAGE_ERROR, 0]
    log = node.log("orders")
    with pytest.raises(AppendError, match="orders-0 could not be synced"):
        append(log, batch())
    assert (log.recovery_point, log.end_offset, len(contents(log))) == (0, 3, 3 * len(batch()))
    assert [record.getMessage() for record in caplog.records] == [
        "cannot sync orders-0: [Errno 5] Input/output error; it accepts no more records"
    ]


def test_failed_log_is_checked_at_the_next_start(tmp_path: Path) -> None:
    """Neither the marker nor the boot id vouches for what could not be synced: all of it is checked by CRC."""
    node = DiskNode(tmp_path, log_flush_interval_messages=1)
    node.create("orders")
    node.disk.failing.add(node.inode("orders"))
    Reply(node.produce("orders"))
    Reply(node.produce("orders"))
    node.round()
    node.storage.close()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    with open(tmp_path / "orders-0" / f"{0:020d}.log", "r+b") as file:
        file.seek(65)
        file.write(b"\xff")
    again = Node(tmp_path)
    assert (again.log("orders").end_offset, again.log("orders").failed) == (0, False)
    again.storage.close()


def test_sync_is_due_after_so_many_records(node: DiskNode) -> None:
    """Only the append that fills the number waits, and counting begins anew after it."""
    node.create("orders", flush_messages="10")
    for _ in range(2):
        for _ in range(3):
            assert isinstance(node.produce("orders", count=3), Answer)
        reply = Reply(node.produce("orders", count=3))
        node.round()
        assert reply.errors == [0]
    assert len(node.disk.synced) == 2
    assert node.log("orders").recovery_point == 24


def test_sync_is_due_at_an_age(node: DiskNode) -> None:
    """The oldest record that is not synced sets the time; nobody waits for it, and an idle log has no timer."""
    node.create("orders", flush_messages=str(2**63 - 1), flush_ms="250")
    timers = node.scheduler.waiting()
    for _ in range(2):
        before = len(node.disk.synced)
        assert isinstance(node.produce("orders"), Answer)
        assert node.scheduler.waiting() == timers + 1
        node.scheduler.advance(0.125)
        assert isinstance(node.produce("orders"), Answer)
        node.round()
        assert len(node.disk.synced) == before
        node.scheduler.advance(0.125)
        node.round()
        assert len(node.disk.synced) == before + 1
        assert node.scheduler.waiting() == timers
    assert node.log("orders").recovery_point == 4


def test_number_and_age_together(node: DiskNode) -> None:
    """A sync by number ends the wait for the age."""
    node.create("orders", flush_messages="2", flush_ms="200")
    timers = node.scheduler.waiting()
    assert isinstance(node.produce("orders"), Answer)
    reply = Reply(node.produce("orders"))
    assert node.scheduler.waiting() == timers
    node.round()
    assert reply.errors == [0]


def test_without_settings_nothing_is_synced(tmp_path: Path) -> None:
    """By default, as in Kafka, the system writes back when it likes."""
    node = DiskNode(tmp_path)
    node.create("orders")
    assert isinstance(node.produce("orders"), Answer)
    node.round()
    node.scheduler.advance(3600)
    node.round()
    assert node.disk.synced == []
    node.storage.close()


def test_repeated_batch_waits_for_the_first(node: DiskNode) -> None:
    """A retry of an idempotent producer is not acknowledged before what it repeats is synced."""
    node.create("orders")
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    first, again = Reply(node.produce("orders", **producer)), Reply(node.produce("orders", **producer))
    node.round()
    assert (first.errors, again.errors, node.log("orders").end_offset) == ([0], [0], 1)


def test_rolled_segments_are_synced_before_the_answer(node: DiskNode) -> None:
    """A sync covers every file with records of the log that are not synced."""
    node.create("orders", segment_bytes="1048576", flush_messages="3")
    for _ in range(2):
        assert isinstance(node.produce("orders", value=bytes(700_000)), Answer)
    reply = Reply(node.produce("orders", value=bytes(700_000)))
    inodes = {os.stat(segment.path).st_ino for segment in node.log("orders").segments}
    node.round()
    assert (reply.errors, set(node.disk.synced)) == ([0], inodes)
    assert node.log("orders").recovery_point == 3


def test_topic_deleted_while_its_producer_waits(node: DiskNode) -> None:
    """The producer gets error 3; a topic made anew under its name is not touched."""
    node.create("orders")
    reply = Reply(node.produce("orders"))
    run_at_once(node.storage.topics.delete_in_slices(node.storage.topics.by_name["orders"]))
    node.create("orders")
    node.round()
    assert (reply.errors, node.disk.synced) == ([error_codes.UNKNOWN_TOPIC_OR_PARTITION], [])


def test_client_that_left_is_not_answered(node: DiskNode) -> None:
    """The sync happens, the answer is dropped."""
    node.create("orders")
    result = node.produce("orders")
    assert isinstance(result, Deferred)
    result.cancel()
    node.round()
    assert node.log("orders").recovery_point == 1


def test_close_with_a_round_under_way(node: DiskNode) -> None:
    """The end waits for the disk thread, syncs the rest and calls nobody."""
    node.create("orders", flush_ms="60000")
    node.disk.free.clear()
    reply = Reply(node.produce("orders"))
    node.scheduler.turn()
    assert node.disk.begun.wait(WAIT_S)
    second = Reply(node.produce("orders"))
    node.disk.free.set()
    node.storage.close()
    node.scheduler.turn()
    assert (reply.errors, second.errors, node.log("orders").recovery_point) == (None, None, 2)


def test_settings_are_described(node: DiskNode) -> None:
    """DescribeConfigs shows the topic's values, the node's, and where they come from."""
    node.create("orders", flush_ms="50")

    def described(kind: int, name: str) -> dict[str, tuple[str, int, int]]:
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
        answer = node.call(
            DESCRIBE_CONFIGS,
            4,
            {"resources": [resource], "include_synonyms": False, "include_documentation": False},
        )
        configs = answer["results"][0]["configs"]
        return {one["name"]: (one["value"], one["config_source"], one["config_type"]) for one in configs}

    of_topic, of_node = described(2, "orders"), described(4, "1")
    assert (of_topic["flush.messages"], of_topic["flush.ms"]) == (("1", 4, 5), ("50", 1, 5))
    assert of_node["log.flush.interval.messages"] == ("1", 4, 5)
    assert of_node["log.flush.interval.ms"] == (None, 5, 5)

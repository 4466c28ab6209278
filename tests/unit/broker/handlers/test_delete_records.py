"""Tests of the DeleteRecords handler; recorded answers are in `test_wire_vectors.py`."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.node import Node
from tests.unit.broker.test_cluster import THREE
from tests.unit.storage.logs import append, batch

from tidegate import error_codes
from tidegate.api_keys import DELETE_RECORDS, FETCH, LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH
from tidegate.in_slices import run_at_once
from tidegate.storage.errors import StorageError

EARLIEST = -2


def delete(node: Node, *wanted: tuple[str, int, int], version: int = 2) -> list[tuple[int, int, int]]:
    """Delete records before offsets, by topic and partition; return partition, low watermark and error of each."""
    topics = [
        {"name": name, "partitions": [{"partition_index": index, "offset": offset}]}
        for name, index, offset in wanted
    ]
    answer = node.call(DELETE_RECORDS, version, {"topics": topics, "timeout_ms": 1000})
    return [
        (part["partition_index"], part["low_watermark"], part["error_code"])
        for topic in answer["topics"]
        for part in topic["partitions"]
    ]


def filled(node: Node, name: str, count: int, **configs: str) -> None:
    """Create a topic with so many records, each in a batch of its own."""
    node.create(name, 1, **configs)
    for _ in range(count):
        append(node.log(name), batch())


def fetched_code(node: Node, name: str, offset: int) -> int:
    """Return the error of a Fetch from an offset."""
    part = {"partition": 0, "fetch_offset": offset, "log_start_offset": -1, "partition_max_bytes": 1000}
    message = {
        "replica_id": -1,
        "max_wait_ms": 0,
        "min_bytes": 0,
        "max_bytes": 1000,
        "isolation_level": 0,
        "topics": [{"topic": name, "partitions": [part]}],
    }
    code: int = node.call(FETCH, 4, message)["responses"][0]["partitions"][0]["error_code"]
    return code


def earliest(node: Node, name: str) -> int:
    """Return where ListOffsets says that a log begins."""
    part = {"partition_index": 0, "timestamp": EARLIEST}
    topics = [{"name": name, "partitions": [part]}]
    answer = node.call(LIST_OFFSETS, 1, {"replica_id": -1, "topics": topics})
    offset: int = answer["topics"][0]["partitions"][0]["offset"]
    return offset


def test_a_log_begins_at_the_offset_that_is_named(node: Node) -> None:
    """Earlier records are out of range; what lies before the beginning changes nothing; -1 is the end."""
    filled(node, "orders", 5)
    assert delete(node, ("orders", 0, 2)) == [(0, 2, 0)]
    assert (fetched_code(node, "orders", 1), fetched_code(node, "orders", 2)) == (1, 0)
    assert earliest(node, "orders") == 2
    assert delete(node, ("orders", 0, 1)) == [(0, 2, 0)]
    assert delete(node, ("orders", 0, 6)) == [(0, -1, error_codes.OFFSET_OUT_OF_RANGE)]
    assert delete(node, ("orders", 0, -2)) == [(0, -1, error_codes.OFFSET_OUT_OF_RANGE)]
    assert delete(node, ("orders", 0, -1)) == [(0, 5, 0)]
    assert delete(node, ("orders", 1, 0), ("missing", 0, 0)) == [(1, -1, 3), (0, -1, 3)]
    append(node.log("orders"), batch())
    assert (node.log("orders").start_offset, node.log("orders").end_offset) == (5, 6)


def test_of_a_partition_that_is_named_again_the_last_counts(node: Node) -> None:
    """As in Kafka, whose answer has each partition once, and no topic without any."""
    filled(node, "orders", 5)
    assert delete(node, ("orders", 0, 4), ("orders", 0, 2)) == [(0, 2, 0)]
    message = {"topics": [{"name": "orders", "partitions": []}], "timeout_ms": 0}
    assert node.call(DELETE_RECORDS, 2, message)["topics"] == []


@pytest.mark.parametrize("clean", [True, False])
def test_the_beginning_survives_a_restart(tmp_path: Path, clean: bool) -> None:
    """After a clean end and a kill; a topic of the same name that is made anew begins at 0."""
    node = Node(tmp_path / "data")
    filled(node, "orders", 5)
    delete(node, ("orders", 0, 3))
    if not clean:
        shutil.copytree(tmp_path / "data", tmp_path / "killed")
    node.storage.close()
    again = Node(tmp_path / ("data" if clean else "killed"))
    assert (again.log("orders").start_offset, fetched_code(again, "orders", 2)) == (3, 1)
    run_at_once(again.storage.topics.delete_in_slices(again.storage.topics.by_name["orders"]))
    filled(again, "orders", 1)
    assert again.log("orders").start_offset == 0
    assert again.storage.store.start_offsets() == {}
    again.storage.close()


def test_a_beginning_past_records_that_were_lost_is_taken_back(tmp_path: Path) -> None:
    """What is appended after a loss is not left out at the next start."""
    node = Node(tmp_path)
    filled(node, "orders", 5)
    delete(node, ("orders", 0, 5))
    path = node.log("orders").segments[0].path
    node.storage.close()
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    (tmp_path / ".kafka_cleanshutdown").unlink()
    for index in path.parent.glob("*.*index"):
        index.unlink()
    for snapshot in path.parent.glob("*.snapshot"):
        snapshot.unlink()
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 5])
    node = Node(tmp_path)
    assert (node.log("orders").start_offset, node.log("orders").end_offset) == (2, 2)
    append(node.log("orders"), batch())
    node.storage.close()
    node = Node(tmp_path)
    assert (node.log("orders").start_offset, node.log("orders").end_offset) == (2, 3)
    node.storage.close()


def test_files_go_with_the_last_of_their_records(node: Node) -> None:
    """Housekeeping removes segments that lie before the beginning, whatever the topic's policy."""
    filled(node, "orders", 5, segment_bytes="100", retention_ms="-1")
    assert len(node.log("orders").segments) == 5
    delete(node, ("orders", 0, 3))
    for _ in node.storage.clean(node.clock.now_ms()):
        pass
    assert [segment.base_offset for segment in node.log("orders").segments] == [3, 4]
    assert earliest(node, "orders") == 3


def test_what_cannot_be_kept_deletes_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Error 56, and the records are there."""
    filled(node, "orders", 3)

    def fail(*_: Any) -> None:
        raise StorageError("no room")

    monkeypatch.setattr(node.storage.store, "put_start_offsets", fail)
    assert delete(node, ("orders", 0, 2)) == [(0, -1, error_codes.KAFKA_STORAGE_ERROR)]
    assert fetched_code(node, "orders", 0) == 0


def test_records_of_a_topic_that_is_only_compacted_stay(tmp_path: Path) -> None:
    """Error 44, as in Kafka."""
    node = Node(tmp_path, kafka_exact=True)
    filled(node, "orders", 3, cleanup_policy="compact")
    assert delete(node, ("orders", 0, 2)) == [(0, -1, error_codes.POLICY_VIOLATION)]
    node.storage.close()


def test_epochs_before_the_first_ended_at_the_beginning(node: Node) -> None:
    """The one epoch ends at the end of the log, later ones nowhere."""
    filled(node, "orders", 5)
    delete(node, ("orders", 0, 2))

    def end(epoch: int, current: int = -1) -> tuple[int, int, int]:
        part = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
        message = {"replica_id": -1, "topics": [{"topic": "orders", "partitions": [part]}]}
        found = node.call(OFFSET_FOR_LEADER_EPOCH, 4, message)["topics"][0]["partitions"][0]
        return found["error_code"], found["leader_epoch"], found["end_offset"]

    assert [end(epoch) for epoch in (0, 1, -1, -5)] == [(0, 0, 5), (0, -1, -1), (0, -1, -1), (0, -5, 2)]
    assert end(0, current=1) == (error_codes.UNKNOWN_LEADER_EPOCH, -1, -1)
    assert end(0, current=-2) == (error_codes.FENCED_LEADER_EPOCH, -1, -1)


def test_a_partition_of_another_broker_is_refused(tmp_path: Path) -> None:
    """Error 6, where three nodes share a directory."""
    node = Node(tmp_path, node_id=2, endpoints=THREE)
    node.create("orders", 3)
    codes = {index: code for index, _, code in delete(node, *(("orders", index, 0) for index in range(3)))}
    topic = node.storage.topics.by_name["orders"]
    assert codes == {index: 0 if node.cluster.leader(topic, index) == 2 else 6 for index in range(3)}
    assert sorted(codes.values()) == [0, 6, 6]
    node.storage.close()

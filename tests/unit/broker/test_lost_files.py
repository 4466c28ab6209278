"""Requests for partitions whose files are lost while they are in use."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.node import Node, decoded
from tests.unit.storage.logs import batch

from tidegate import error_codes
from tidegate.api_keys import FETCH, LIST_OFFSETS, PRODUCE
from tidegate.server.requests.handler import Deferred

MIB = 1024 * 1024


def errors(node: Node, name: str) -> list[int]:
    """Return the error codes of Produce, Fetch (from the start, at the end) and ListOffsets (times and places)."""
    records = {"index": 0, "records": batch()}
    produce = {
        "transactional_id": None,
        "acks": -1,
        "timeout_ms": 1000,
        "topic_data": [{"name": name, "partition_data": [records]}],
    }
    found = [node.call(PRODUCE, 9, produce)["responses"][0]["partition_responses"][0]["error_code"]]
    for offset in (0, 3):
        answer = node.call(FETCH, 4, fetch(name, offset))
        found.append(answer["responses"][0]["partitions"][0]["error_code"])
    for time_ms in (-1, -2, -3, 5):
        wanted = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": time_ms}]
        body = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": name, "partitions": wanted}]}
        found.append(node.call(LIST_OFFSETS, 7, body)["topics"][0]["partitions"][0]["error_code"])
    return found


def fetch(name: str, offset: int, *, max_wait_ms: int = 0) -> dict[str, Any]:
    """Return a fetch of one partition."""
    return {
        "replica_id": -1,
        "max_wait_ms": max_wait_ms,
        "min_bytes": 1,
        "max_bytes": MIB,
        "isolation_level": 0,
        "topics": [
            {
                "topic": name,
                "partitions": [{"partition": 0, "fetch_offset": offset, "partition_max_bytes": MIB}],
            }
        ],
    }


LOST_IN_USE: dict[str, Callable[[Path], Any]] = {
    "the file is removed": lambda data: (data / "orders-0" / f"{0:020d}.log").unlink(),
    "the directory is removed": lambda data: shutil.rmtree(data / "orders-0"),
    "the file is cut": lambda data: os.truncate(data / "orders-0" / f"{0:020d}.log", 100),
}


@pytest.mark.parametrize("idle", [False, True])
@pytest.mark.parametrize("lost", LOST_IN_USE)
def test_loss_in_use_is_noticed_within_a_second(
    tmp_path: Path, lost: str, idle: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A lost partition is said once and answered with error 56 from then on, the others are served."""
    node = Node(tmp_path / "data")
    node.fill("orders", "bills")
    if idle:
        node.storage.close()
        node = Node(tmp_path / "data")
    else:
        assert errors(node, "orders") == [0] * 7
    LOST_IN_USE[lost](tmp_path / "data")
    node.scheduler.advance(0.6)
    for _ in range(3):
        assert errors(node, "orders") == [error_codes.KAFKA_STORAGE_ERROR] * 7
        assert errors(node, "bills") == [0] * 7
        node.scheduler.advance(0.6)
    (line,) = [record.getMessage() for record in caplog.records]
    assert re.search("orders-0 is damaged: .*orders-0/0+.log was (deleted|truncated).* error 56 ", line)
    node.storage.close()


def test_who_waits_for_records_of_a_lost_partition_is_answered(tmp_path: Path) -> None:
    """A long poll ends with the error instead of waiting for its time."""
    node = Node(tmp_path / "data")
    node.fill("orders", "bills")
    deferred = node.ask(FETCH, 4, fetch("orders", 3, max_wait_ms=60_000))
    shutil.rmtree(tmp_path / "data" / "orders-0")
    answers: list[Any] = []
    assert isinstance(deferred, Deferred)
    deferred.when_ready(lambda: answers.append(deferred.answer()))
    node.scheduler.advance(0.6)
    (answer,) = answers
    (partition,) = decoded(FETCH, 4, answer)["responses"][0]["partitions"]
    assert partition["error_code"] == error_codes.KAFKA_STORAGE_ERROR
    node.storage.close()

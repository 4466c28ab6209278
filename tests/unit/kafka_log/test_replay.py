"""The quotas in force, replayed over the log of a throttled Kafka: against the throttle times that it recorded."""

from collections.abc import Iterator
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow.parquet as pq
import pytest
from tests.replaying.kernel import replay_events
from tests.unit.kafka_log.samples import THROTTLED

from tidegate.api_keys import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS, FETCH, PRODUCE
from tidegate.kafka_log.importing import import_logs
from tidegate.kafka_log.log_files import Source
from tidegate.pipeline import layout
from tidegate.pipeline.replay.plan import in_force_plan
from tidegate.usage.files import list_files

Pairs = list[tuple[int, int]]


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[dict[str, Any], int]]:
    """Return each request of the log with the byte or mutation throttle that the replay gives it."""
    out = tmp_path_factory.mktemp("import")
    import_logs([Source(1, THROTTLED)], out, zone=ZoneInfo("UTC"))
    events = [row for path in list_files(out) for row in pq.read_table(path, partitioning=None).to_pylist()]
    replayed = replay_events(events, in_force_plan(), batch_rows=5000)
    pairs = zip(replayed.events, replayed.decisions.tolist(), strict=True)
    return [(event, row[layout.BYTE_MS]) for event, row in pairs if event["kind"] == "request"]


def throttles(decided: list[tuple[dict[str, Any], int]], *api_keys: int) -> Iterator[tuple[int, int]]:
    """Yield what was recorded of requests, and what came out."""
    for event, found_ms in decided:
        if event["api_key"] in api_keys:
            columns = ("produce_throttle_ms", "fetch_throttle_ms", "mutation_throttle_ms")
            yield max(event[column] for column in columns), found_ms


def shares(pairs: Pairs) -> tuple[float, float]:
    """Return which share was decided alike, and which share of the throttle times of both is within 1 ms."""
    same = sum((recorded > 0) == (found > 0) for recorded, found in pairs)
    both = [(recorded, found) for recorded, found in pairs if recorded and found]
    return same / len(pairs), sum(abs(recorded - found) <= 1 for recorded, found in both) / len(both)


def test_produce(decided: list[tuple[dict[str, Any], int]]) -> None:
    """At least 99.5 % decided alike, at least 95 % within 1 ms."""
    pairs = list(throttles(decided, PRODUCE))
    alike, within_1_ms = shares(pairs)
    assert len(pairs) == 8990
    assert alike >= 0.995
    assert within_1_ms >= 0.95


def test_fetch(decided: list[tuple[dict[str, Any], int]]) -> None:
    """All but one in a thousand decided alike. Of who starves at the end of a topic the size is a guess."""
    alike, within_1_ms = shares(list(throttles(decided, FETCH)))
    assert alike >= 0.999
    assert within_1_ms >= 0.9


def test_mutations(decided: list[tuple[dict[str, Any], int]]) -> None:
    """All decided alike, and at most 5 of 33 throttle times further off than 1 ms."""
    pairs = list(throttles(decided, CREATE_TOPICS, CREATE_PARTITIONS, DELETE_TOPICS))
    both = [(recorded, found) for recorded, found in pairs if recorded and found]
    assert shares(pairs)[0] == 1.0
    assert len(both) == 33
    assert sum(abs(recorded - found) > 1 for recorded, found in both) <= 5

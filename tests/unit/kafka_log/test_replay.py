"""The quotas in force, replayed over the log of a throttled Kafka: against the throttle times that it recorded."""

import gzip
import re
from collections.abc import Iterator
from pathlib import Path
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
Decided = list[tuple[dict[str, Any], int]]

_CATCHING_UP = "reporting"
_MICROSECONDS = re.compile(rb"^(\[\S+ \d\d:\d\d:\d\d,\d{3})\d{3}(?=\])", re.MULTILINE)


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Decided:
    """Return each request of the log with the byte or mutation throttle that the replay gives it."""
    return decided_requests(THROTTLED, tmp_path_factory.mktemp("import"))


@pytest.fixture(scope="module")
def decided_by_ms(tmp_path_factory: pytest.TempPathFactory) -> Decided:
    """Return the same of the log as Kafka writes it unless told otherwise: with times of whole milliseconds."""
    directory = tmp_path_factory.mktemp("import")
    log = directory / "request.log"
    log.write_bytes(_MICROSECONDS.sub(rb"\1", gzip.decompress(THROTTLED.read_bytes())))
    return decided_requests(log, directory / "out")


def decided_requests(log: Path, out: Path) -> Decided:
    """Import a log to `out`, and return each request with the byte or mutation throttle that a replay gives it."""
    import_logs([Source(1, log)], out, zone=ZoneInfo("UTC"), processes=1)
    events = [row for path in list_files(out) for row in pq.read_table(path, partitioning=None).to_pylist()]
    replayed = replay_events(events, in_force_plan(), batch_rows=5000)
    pairs = zip(replayed.events, replayed.decisions.tolist(), strict=True)
    return [(event, row[layout.BYTE_MS]) for event, row in pairs if event["kind"] == "request"]


def throttles(decided: Decided, *api_keys: int) -> Iterator[tuple[int, int]]:
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


def test_produce(decided: Decided) -> None:
    """At least 99.5 % decided alike, at least 95 % within 1 ms."""
    pairs = list(throttles(decided, PRODUCE))
    alike, within_1_ms = shares(pairs)
    assert len(pairs) == 8990
    assert alike >= 0.995
    assert within_1_ms >= 0.95


def test_produce_by_whole_milliseconds(decided_by_ms: Decided) -> None:
    """At least 98 % decided alike, at least 92 % within 1 ms: what falls on a window's edge is guessed."""
    alike, within_1_ms = shares(list(throttles(decided_by_ms, PRODUCE)))
    assert alike >= 0.98
    assert within_1_ms >= 0.92


def test_fetch(decided: Decided) -> None:
    """All but one in a thousand decided alike. Of who starves at the end of a topic the size is a guess."""
    alike, within_1_ms = shares(list(throttles(decided, FETCH)))
    assert alike >= 0.999
    assert within_1_ms >= 0.9


def test_fetch_of_who_catches_up(decided: Decided) -> None:
    """All decided alike, at least 98 % within 1 ms: what it would have brought is what the next one does."""
    pairs = list(
        throttles([(event, ms) for event, ms in decided if event["client_id"] == _CATCHING_UP], FETCH)
    )
    alike, within_1_ms = shares(pairs)
    assert sum(recorded > 0 for recorded, _ in pairs) == 60
    assert alike == 1.0
    assert within_1_ms >= 0.98


def test_mutations(decided: Decided) -> None:
    """All decided alike, and at most 2 of 33 throttle times further off than 1 ms."""
    pairs = list(throttles(decided, CREATE_TOPICS, CREATE_PARTITIONS, DELETE_TOPICS))
    both = [(recorded, found) for recorded, found in pairs if recorded and found]
    assert shares(pairs)[0] == 1.0
    assert len(both) == 33
    assert sum(abs(recorded - found) > 1 for recorded, found in both) <= 2

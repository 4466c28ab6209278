"""The replay of the quotas in force where a callback decided who shares a limit: as the live engine did, or said so."""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.replaying.broken import broken
from tests.replaying.callbacks import disturbed_node
from tests.replaying.files import write_events
from tests.replaying.kernel import differences, replay_events

from tidegate.pipeline.layout import BYTE_REASON, REQUEST_REASON
from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.record import jobs_here
from tidegate.pipeline.replay.plan import in_force_plan
from tidegate.pipeline.watch.checkpoint import dumped, loaded
from tidegate.pipeline.watch.node import NodeWatch
from tidegate.quota import QuotaRecord
from tidegate.usage.arrow import arrow_schema

_SETTINGS = (
    QuotaRecord(entity=(("user", None),), key="tidegate.quota.smooth", value=1.0),
    QuotaRecord(entity=(("client-id", "c1"),), key="tidegate.quota.observe", value=1.0),
)
_SEEDS = st.integers(0, 2**32 - 1)
_LONG = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

Event = dict[str, Any]


@_LONG
@given(_SEEDS, st.integers(1, 50))
def test_what_callbacks_decided_is_decided_again(seed: int, batch_rows: int) -> None:
    """Every throttle time and refusal, exact: callbacks are exchanged and change their minds, nodes start again."""
    events = disturbed_node(seed).events
    replayed = replay_events(events, in_force_plan(), batch_rows=batch_rows)
    assert differences(replayed, replayed.events) == []
    assert sum(result["approximate_requests"] for result in replayed.results) == 0


@_LONG
@given(_SEEDS)
@example(
    509704860
)  # of the window settings that a start states one is damaged, and others go on behind its gap
def test_what_counts_as_exact_is_as_recorded_where_rows_are_missing(seed: int) -> None:
    """Also before it was said again who shares a limit; and something counts."""
    events = broken(disturbed_node(seed).events, Random(seed))
    replayed = replay_events(events, in_force_plan())
    counted = (replayed.decisions[:, BYTE_REASON] == 0) & (replayed.decisions[:, REQUEST_REASON] == 0)
    wrong = {event["seq"] for event, _ in differences(replayed, replayed.events)}
    exact = {event["seq"] for event, is_one in zip(replayed.events, counted, strict=True) if is_one}
    assert exact & wrong == set()
    assert sum(result["different_decisions"] for result in replayed.results) == 0


def _arrived(events: list[Event]) -> pa.Table:
    """Return rows as they are read, some names dictionary-encoded."""
    table = pa.Table.from_pylist(events, schema=arrow_schema())
    for name in ("kind", "user", "client_id", "client_software"):
        table = table.set_column(table.column_names.index(name), name, table[name].dictionary_encode())
    return table


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_SEEDS)
def test_part_by_part_it_is_the_same(seed: int) -> None:
    """A watch, whose checkpoint is read again after each part; a part may end anywhere. With settings beyond Kafka."""
    rng, events = Random(seed), disturbed_node(seed, extensions=_SETTINGS).events
    watch = NodeWatch(node_id=1, plans=[in_force_plan()])
    found = Counter[str]()
    while events:
        end = rng.randrange(1, 300)
        advance = watch.advance(_arrived(events[:end]))
        for name in ("requests", "different_decisions", "approximate_requests"):
            found[name] += sum(advance.replay[name].to_pylist())
        watch, events = loaded(dumped(watch)), events[end:]
    assert found["requests"] > 100
    assert (found["different_decisions"], found["approximate_requests"]) == (0, 0)


@pytest.mark.parametrize("again", [1234653082, *[None] * 3])
def test_from_files_it_is_the_same(tmp_path: Path, again: int | None) -> None:
    """Two nodes in several files, one with rows missing: partitions have all who share a limit, and know its height."""
    seed = Random().randrange(2**32) if again is None else again
    print(f"seed {seed}")
    nodes = [disturbed_node(seed + number, node_id=1 + number).events for number in range(2)]
    nodes[1] = broken(nodes[1], Random(seed))
    for events in nodes:
        write_events(tmp_path / "usage", events, rows_per_file=250)
    with open_usage(tmp_path / "usage") as files:
        summary = jobs_here(files).replay([in_force_plan()], out=tmp_path / "out", with_decisions=True)
    assert sum(row["different_decisions"] for row in summary.entities) == 0
    order = [("node_id", "ascending"), ("seq", "ascending")]
    found = pq.read_table(tmp_path / "out" / "decisions").sort_by(order).to_pylist()
    expected = [replay_events(events, in_force_plan()) for events in nodes]
    decided = [
        decision[:4]
        for replayed in expected
        for event, decision in zip(replayed.events, replayed.decisions.tolist(), strict=True)
        if event["kind"] != "network"
    ]
    names = ("throttle_ms", "request_throttle_ms", "rejected", "capped")
    assert [[int(row[name]) for name in names] for row in found] == decided

"""Days replayed hour by hour: each goes on from what the one before left, and all is decided as in one replay."""

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.replaying.broken import broken, steady_traffic
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS, random_records, random_traffic, random_window
from tests.replaying.node import RecordingNode
from tests.replaying.plans import random_groups, random_smooth

from tidegate.cli.main import main
from tidegate.config.windows import Windows
from tidegate.errors import ConfigError
from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.record import jobs_here
from tidegate.pipeline.replay.carried import carried_states
from tidegate.pipeline.replay.plan import Plan
from tidegate.quota import QuotaRecord
from tidegate.quota.admin.groups import Groups
from tidegate.quota.managers.extensions import CLUSTER_WIDE, MUTATIONS_SHARED
from tidegate.usage.files import HOUR_MS

_SUMS = (
    "requests",
    "amount",
    "throttled_requests",
    "throttle_ms",
    "rejected_mutations",
    "different_decisions",
    "approximate_requests",
    "approximate_after_gap",
    "approximate_missing_rows",
    "approximate_cold_start",
)
_CLIENT = (
    "plan",
    "quota_type",
    "entity_user",
    "entity_client_id",
    "entity_tags",
    "node_id",
    "user",
    "client_id",
)

Event = dict[str, Any]


def _record(rng: Random) -> dict[int, list[Event]]:
    """Return the events of two nodes; some lack rows, some are steady and near their limits."""
    found = {}
    for node_id in (1, 2):
        node = RecordingNode(node_id)
        node.start(START_MS, records=random_records(rng, at_most=4))
        if rng.random() < 0.5:
            steady_traffic(node, rng, events=400, now_ms=START_MS)
        else:
            random_traffic(node, rng, events=400)
        found[node_id] = broken(node.events, rng) if rng.random() < 0.5 else node.events
    return found


def _replayed(
    directory: Path, by_node: dict[int, list[Event]], plans: list[Plan], before: Path | None
) -> tuple[list[Event], Counter[tuple[object, ...]]]:
    """Replay some rows, going on from `before`; return the decisions and sums by client."""
    for events in by_node.values():
        if events:
            write_events(directory / "usage", events, rows_per_file=250)
    carried = None
    if before is not None:
        rows = pq.read_table(before / "out" / "state").to_pylist()
        carried = carried_states(rows, plans, of="there")
    with open_usage(directory / "usage") as files:
        jobs_here(files).replay(plans, out=directory / "out", with_decisions=True, carried=carried)
    decisions = pq.read_table(directory / "out" / "decisions").to_pylist()
    sums: Counter[tuple[object, ...]] = Counter()
    for row in pq.read_table(directory / "out" / "replay_by_client").to_pylist():
        for name in _SUMS:
            sums[(*(row[key] for key in _CLIENT), name)] += row[name]
    return decisions, +sums


@pytest.mark.parametrize("again", [1260319840, *[None] * 5])
def test_part_by_part_is_the_whole(tmp_path: Path, again: int | None) -> None:
    """Every decision and its reason, every sum; parts are cut anywhere, a node may have no rows in some.

    Of a plain plan, and of one with groups and smooth mode.
    """
    seed = Random().randrange(2**32) if again is None else again
    print(f"seed {seed}")
    rng = Random(seed)
    by_node = _record(rng)
    plans = [
        Plan(
            name=name,
            records=(*random_records(rng, at_most=8), *(random_smooth(rng) if is_beyond else ())),
            windows=Windows(rate=random_window(rng), mutation=random_window(rng)),
            groups=random_groups(rng) if is_beyond else Groups(),
        )
        for name, is_beyond in (("a", False), ("b", True))
    ]
    whole, sums = _replayed(tmp_path / "whole", by_node, plans, None)
    cuts = {
        node_id: sorted([0, *(rng.randrange(len(events) + 1) for _ in range(3)), len(events)])
        for node_id, events in by_node.items()
    }
    found: list[Event] = []
    found_sums: Counter[tuple[object, ...]] = Counter()
    before = None
    for part in range(4):
        here = {node: by_node[node][cuts[node][part] : cuts[node][part + 1]] for node in by_node}
        if any(here.values()):
            directory = tmp_path / str(part)
            decisions, of_part = _replayed(directory, here, plans, before)
            found += decisions
            found_sums += of_part
            before = directory
    order = ("plan", "node_id", "seq")
    key = lambda row: tuple(row[name] for name in order)  # noqa: E731
    assert sorted(found, key=key) == sorted(whole, key=key)
    assert found_sums == sums


def _state(tmp_path: Path, plan: Plan) -> list[dict[str, Any]]:
    node = RecordingNode()
    node.start(START_MS, records=plan.records or ())
    node.produce("alice", "c1", 5000, START_MS)
    node.mutate("alice", "c1", 5, START_MS, strict=True, connection_id=1)
    _replayed(tmp_path, {1: node.events}, [plan], None)
    rows: list[dict[str, Any]] = pq.read_table(tmp_path / "out" / "state").to_pylist()
    return rows


def test_a_state_is_refused_where_it_does_not_fit(tmp_path: Path) -> None:
    """Of another plan by the same name, of no plan of the name, of later rows, of other nodes; or damaged."""
    entity = (("user", None),)
    plan, other = (
        Plan(name="p", records=(QuotaRecord(entity=entity, key="controller_mutation_rate", value=value),))
        for value in (0.5, 2.0)
    )
    rows = _state(tmp_path / "before", plan)
    assert sorted({row["kind"] for row in rows}) == ["node", "permits", "sensor"]
    carried = carried_states(rows, [plan], of="'x'")
    with pytest.raises(ConfigError, match="'x' has the state of another plan 'p'"):
        carried_states(rows, [other], of="'x'")
    with pytest.raises(ConfigError, match="'x' has no state of plan 'q'"):
        carried_states(rows, [Plan(name="q", records=())], of="'x'")
    for text in ("", "[]", "{", '{"format":1}', '{"quota_key":7}', "9" * 5000, "[" * 100_000):
        for row in rows:
            with pytest.raises(ConfigError, match=r"is not the state of a replay|has no state"):
                carried_states([{**row, "state": text}], [plan], of="'x'")
    with pytest.raises(ConfigError, match="format 2, expected 1"):
        carried_states(
            [{**row, "state": row["state"].replace('"format":1', '"format":2')} for row in rows],
            [plan],
            of="'x'",
        )
    with open_usage(tmp_path / "before" / "usage") as files:
        with pytest.raises(
            UsageFilesError, match="begin with seq 1, the state to continue from ends with seq"
        ):
            jobs_here(files).replay([plan], out=None, carried=carried)
        elsewhere = {("p", 7): carried["p", 1]}
        with pytest.raises(UsageFilesError, match=r"is from node 7, the rows are from node 1"):
            jobs_here(files).replay([plan], out=None, carried=elsewhere)


def test_a_state_of_groups_and_smooth_mode_is_refused_where_it_does_not_fit(tmp_path: Path) -> None:
    """Of other groups or settings by the same name; or damaged."""
    smooth = QuotaRecord(entity=(), key="tidegate.quota.smooth", value=1.0)
    plan, *others = (
        Plan(
            name="p",
            records=records,
            groups=Groups(members={("user", "alice"): name}, limits={(name, "producer_byte_rate"): limit}),
        )
        for records, name, limit in (
            ((smooth,), "etl", 100.0), ((), "etl", 100.0), ((smooth,), "web", 100.0), ((smooth,), "etl", 99.0)
        )
    )  # fmt: skip
    rows = _state(tmp_path, plan)
    (state,) = [json.loads(row["state"]) for row in rows if row["kind"] == "sensor"]
    assert state["group"] == "etl"
    assert state["smooth"]["tokens"] < 0
    assert carried_states(rows, [plan], of="'x'")["p", 1].sensors.keys() == {(0, "etl")}
    for other in others:
        with pytest.raises(ConfigError, match="'x' has the state of another plan 'p'"):
            carried_states(rows, [other], of="'x'")
    for damage in ({"group": 7}, {"smooth": 7}, {"smooth": {"tokens": "x"}}, {"smooth": {"tokens": 1.0}}):
        damaged = [
            {**row, "state": json.dumps({**json.loads(row["state"]), **damage})}
            if row["kind"] == "sensor"
            else row
            for row in rows
        ]
        with pytest.raises(ConfigError, match="is not the state of a replay"):
            carried_states(damaged, [plan], of="'x'")


@pytest.mark.parametrize("shared", [None, CLUSTER_WIDE, MUTATIONS_SHARED])
def test_hours_by_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], shared: str | None) -> None:
    """`--continue` goes on from `--out` of the hour before; without it the same hour begins in the dark."""
    rng = Random(5)
    node = RecordingNode()
    entity = (("client-id", "c0"),) if shared == CLUSTER_WIDE else ()
    record = QuotaRecord(entity=entity, key=shared or "", value=1.0)
    node.start(HOUR_MS - 60_000, records=(record,) if shared else ())
    steady_traffic(node, rng, events=2000, now_ms=HOUR_MS - 30_000)
    write_events(tmp_path / "parquet", node.events)
    plan = tmp_path / "p.yaml"
    plan.write_text(
        "quotas:\n- client-id: {name: c0}\n  producer_byte_rate: 4000\n  controller_mutation_rate: 1\n"
    )
    hour_0, hour_1 = str(tmp_path / "0"), str(tmp_path / "1")

    def replay(*arguments: str) -> int:
        return main(["replay", str(tmp_path), "--quotas", str(plan), "--loop", "open", *arguments])

    assert replay("--to", "1970-01-01T01", "--out", hour_0, "--decisions") == 0
    after = ["--from", "1970-01-01T01", "--overwrite", "--out", hour_1]
    assert replay(*after, "--decisions", "--continue", hour_0) == 0
    assert replay("--out", str(tmp_path / "whole"), "--decisions") == 0
    whole, first, second = (_decisions(tmp_path / name) for name in ("whole", "0", "1"))
    assert len(first) > 100
    assert first + second == whole
    assert any(row["throttle_ms"] for row in second)
    assert any(row["approximate"] == "cluster-wide" for row in second) == (shared is not None)
    assert replay(*after, "--decisions") == 0
    assert _decisions(tmp_path / "1") != second
    plan.write_text("quotas:\n- client-id: {name: c0}\n  producer_byte_rate: 4001\n")
    capsys.readouterr()
    assert replay(*after, "--continue", hour_0) == 2
    assert "has the state of another plan 'p'" in capsys.readouterr().err
    assert replay(*after, "--continue", str(tmp_path / "nowhere")) == 2
    assert "has no complete table 'state'" in capsys.readouterr().err


def _decisions(directory: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(directory / "decisions").sort_by("seq").to_pylist()
    return rows

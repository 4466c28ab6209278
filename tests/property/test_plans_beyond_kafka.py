"""Plans with groups and smooth mode against the live engine with that callback and those settings."""

from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.oracles.closed_loop import simulated
from tests.property.test_closed_loop import sent
from tests.replaying.files import write_events
from tests.replaying.kernel import differences, forecast_events, replay_events
from tests.replaying.logs import START_MS, random_records, random_traffic, random_window
from tests.replaying.node import RecordingNode
from tests.replaying.plans import callback_of, random_groups, random_smooth

from tidegate.config.windows import Windows
from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.record import jobs_here
from tidegate.pipeline.replay.kernel.beyond_kafka import MOST_ATTEMPTS
from tidegate.pipeline.replay.plan import QUOTA_TYPES, Plan
from tidegate.quota import QuotaRecord
from tidegate.quota.admin.groups import Groups

_SEEDS = st.integers(0, 2**32 - 1)
_MANY = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
_KINDS = st.sampled_from([(True, False), (False, True), (True, True)])  # with groups, with smooth mode
_OBSERVE = QuotaRecord(entity=(("user", None),), key="tidegate.quota.observe", value=1.0)
_SENDERS = (("alice", "c0"), ("bob", "c1"), ("alice", "c2"), ("bob", "c3"))  # of `sent`


def _plan(rng: Random, kinds: tuple[bool, bool], name: str = "p", **others) -> Plan:
    """Return a plan in which every type of quota has a limit: a callback is asked for all, a plan for those it has."""
    with_groups, is_smooth = kinds
    records = [
        QuotaRecord(entity=(("user", "nobody"),), key=quota_type.key, value=1.0) for quota_type in QUOTA_TYPES
    ]
    records += [*random_records(rng, at_most=8), *(random_smooth(rng) if is_smooth else ())]
    return Plan(
        name=name,
        records=tuple(records),
        windows=Windows(rate=random_window(rng), mutation=random_window(rng)),
        groups=random_groups(rng, **others) if with_groups else Groups(),
    )


def _windows(plan: Plan) -> dict[str, object]:
    return {"window": plan.windows.rate, "controller_window": plan.windows.mutation}


@_MANY
@given(_SEEDS, _KINDS, st.integers(1, 50))
def test_a_plan_decides_as_an_engine_with_its_groups_and_settings(seed, kinds, batch_rows):
    """Every throttle time and refusal of any log, to the millisecond; whoever was observed when it was recorded."""
    rng = Random(seed)
    plan = _plan(rng, kinds)
    free, limited = RecordingNode(), RecordingNode(fetches_are_capped=True)
    free.start(START_MS, records=(_OBSERVE,) if rng.random() < 0.5 else ())
    limited.start(START_MS, **_windows(plan), records=plan.records)
    if plan.groups.members:
        limited.exchange(callback_of(plan.groups), "groups", START_MS)
    for node in (free, limited):
        random_traffic(node, Random(seed + 1), events=400, quotas_change=False)
    replayed = replay_events(free.events, plan, batch_rows=batch_rows)
    decided = [event for event in limited.events if event["kind"] in {"request", "network", "mutation"}]
    assert differences(replayed, decided) == []


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_SEEDS, _KINDS, st.integers(1, 50))
def test_a_forecast_is_that_of_a_plain_simulation(seed, kinds, batch_rows):
    """In closed loop: when each request is taken, and what the engine with those groups and settings decides then."""
    rng = Random(seed)
    plan = _plan(rng, kinds, clients=_SENDERS)
    in_force = random_records(rng, at_most=8) if rng.random() < 0.5 else ()
    events = sent(rng, records=in_force)
    expected = simulated(
        events,
        plan.records,
        callback=callback_of(plan.groups) if plan.groups.members else None,
        attempts=MOST_ATTEMPTS if plan.is_beyond_kafka else 100,
        **_windows(plan),
    )
    closed = Plan(name="p", records=plan.records, windows=plan.windows, groups=plan.groups, is_closed=True)
    assert forecast_events(events, closed, batch_rows=batch_rows).decisions == expected


@pytest.mark.parametrize("run", range(3))
def test_beside_plain_plans_and_from_files_it_is_the_same(tmp_path: Path, run: int) -> None:
    """Clients are in partitions with all who share a limit, in a group or not; each plan decides as by itself."""
    seed = Random().randrange(2**32)
    print(f"run {run}: seed {seed}")
    rng = Random(seed)
    node = RecordingNode()
    node.start(START_MS)
    random_traffic(node, rng, events=600, quotas_change=False)
    write_events(tmp_path / "usage", node.events, rows_per_file=250)
    plans = [
        Plan(name="plain", records=random_records(rng, at_most=8)),
        _plan(rng, (True, False), "groups"),
        _plan(rng, (False, True), "smooth"),
        _plan(rng, (True, True), "both"),
    ]
    with open_usage(tmp_path / "usage") as files:
        jobs_here(files).replay(plans, out=tmp_path / "out", with_decisions=True)
    found = pq.read_table(tmp_path / "out" / "decisions").sort_by("seq").to_pylist()
    names = ("throttle_ms", "request_throttle_ms", "rejected", "capped")
    for plan in plans:
        alone = replay_events(node.events, plan)
        decided = [
            decision[:4]
            for event, decision in zip(alone.events, alone.decisions.tolist(), strict=True)
            if event["kind"] != "network"
        ]
        assert [[int(row[name]) for name in names] for row in found if row["plan"] == plan.name] == decided

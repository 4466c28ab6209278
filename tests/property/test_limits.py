"""The limits found, held to the live engine: what they throttle, and that a little less throttles more."""

import math
from collections import defaultdict
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.replaying.files import write_events
from tests.replaying.logs import CLIENTS, START_MS, random_traffic
from tests.replaying.node import RecordingNode

from tidegate.config.windows import Windows
from tidegate.pipeline.jobs import here
from tidegate.pipeline.proposals.needs import rows_touched
from tidegate.pipeline.proposals.notes import recommend_notes
from tidegate.pipeline.proposals.recommend import forecast_levels
from tidegate.pipeline.proposals.wanted import Wanted
from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.record import jobs_here
from tidegate.pipeline.replay import limits, task
from tidegate.pipeline.replay.levels import ENTITIES_BY, QUOTA_TYPES, smallest_limit
from tidegate.pipeline.replay.limits import Tolerance, levels_of
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.results.table_rows import TableRows
from tidegate.pipeline.rollup.limits import limits_without_tolerance
from tidegate.pipeline.rollup.sums import decoded
from tidegate.quota import QuotaRecord, QuotaType
from tidegate.quota.admin.sanitizer import sanitize

_FEW = settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
_EVENTS = 250
_NAMES = {
    "both": lambda user, client_id: (("client-id", client_id), ("user", user)),
    "user": lambda user, client_id: (("user", user),),
    "client-id": lambda user, client_id: (("client-id", client_id),),
}


def _traffic(seed, records=()):
    """Return the events of a node with these quotas; the requests are always the same."""
    node = RecordingNode(fetches_are_capped=bool(records))
    node.start(START_MS, records=tuple(records))
    random_traffic(node, Random(seed), events=_EVENTS, quotas_change=False)
    return [event for event in node.events if event["kind"] not in ("start", "quota")]


def _limits(directory, seed, by, tolerance=None):
    """Return the limits found in the traffic without quotas: by type, user and client id."""
    node = RecordingNode()
    node.start(START_MS)
    random_traffic(node, Random(seed), events=_EVENTS, quotas_change=False)
    write_events(directory, node.events)
    with open_usage(directory) as files:
        return jobs_here(files).limits(levels_of(by), tolerance or Tolerance(), out=None).entities


def _records(found, column, by, quota_type, factor=1.0):
    of_type = [row for row in found if row["quota_type"] == quota_type.value and row[column] > 0]
    return [
        QuotaRecord(
            entity=_NAMES[by](row["entity_user"], row["entity_client_id"]),
            key=quota_type.key,
            value=row[column] * factor,
        )
        for row in of_type
    ]


def _touched(free, limited, quota_type, by):
    """Return the entities that were throttled, refused or cut, by the engine."""
    column = {
        QuotaType.PRODUCE: "produce_throttle_ms",
        QuotaType.FETCH: "fetch_throttle_ms",
        QuotaType.REQUEST: "request_throttle_ms",
        QuotaType.CONTROLLER_MUTATION: "mutation_throttle_ms",
    }[quota_type]
    return {
        _NAMES[by](event["user"], event["client_id"])
        for before, event in zip(free, limited, strict=True)
        if event[column]
        or (event["rejected"] and event["mutations"])
        or event["fetch_bytes"] != before["fetch_bytes"]
    }


@_FEW
@given(seed=st.integers(0, 2**32 - 1), by=st.sampled_from(sorted(_NAMES)))
def test_the_limit_throttles_nobody_and_one_percent_less_does(tmp_path_factory, seed, by):
    """Of every entity, in every type of quota."""
    found = _limits(tmp_path_factory.mktemp("usage"), seed, by)
    free = _traffic(seed)
    for quota_type in QuotaType:
        records = _records(found, "never_throttled", by, quota_type)
        assert _touched(free, _traffic(seed, records), quota_type, by) == set()
        less = _records(found, "never_throttled", by, quota_type, 0.99)
        expected = {record.entity for record in less}
        assert expected
        assert _touched(free, _traffic(seed, less), quota_type, by) >= expected


@_FEW
@given(seed=st.integers(0, 2**32 - 1))
def test_the_tolerable_limit_delays_no_more_than_that(tmp_path_factory, seed):
    """By the engine's own throttle times; it is never above the limit that throttles nobody."""
    tolerance = Tolerance(share=0.2, longest_ms=2500)
    found = _limits(tmp_path_factory.mktemp("usage"), seed, "both", tolerance)
    records = _records(found, "tolerable", "both", QuotaType.PRODUCE)
    produced = [event for event in _traffic(seed, records) if event["produce_bytes"] is not None]
    for client in CLIENTS:
        own = [event for event in produced if (event["user"], event["client_id"]) == client and client[1]]
        delayed = sum(event["produce_bytes"] for event in own if event["produce_throttle_ms"] > 0)
        assert delayed <= 0.2 * sum(event["produce_bytes"] for event in own)
        assert max((event["produce_throttle_ms"] for event in own), default=0) <= 2500
    assert all(row["tolerable"] <= row["never_throttled"] * 1.008 for row in found)


def test_who_has_no_name_at_a_level_has_no_limit_there(tmp_path):
    """An empty client id is no entity of Kafka's, not even the default one."""
    found = _limits(tmp_path, 1, "both")
    assert all(row["entity_client_id"] for row in found)
    assert found


def test_nothing_that_was_charged_needs_no_limit(tmp_path):
    """A request of no bytes."""
    node = RecordingNode()
    node.start(START_MS)
    node.produce("alice", "c1", 0, START_MS)
    write_events(tmp_path, node.events)
    with open_usage(tmp_path) as files:
        found = jobs_here(files).limits(levels_of("user"), Tolerance(), out=None)
    assert [(row["quota_type"], row["never_throttled"], row["tolerable"]) for row in found.entities] == [
        ("Produce", 0.0, 0.0),
        ("Request", 0.0, 0.0),
    ]
    assert [row["peak"] for row in found.nodes] == [0.0, 0.0]


def test_more_entities_than_there_is_room_for_are_refused(tmp_path, monkeypatch):
    """As many as there is room for are taken."""
    entities = len(_limits(tmp_path / "few", 1, "user"))
    monkeypatch.setattr(limits, "MAX_LADDERS", entities)
    assert len(_limits(tmp_path / "as-many", 1, "user")) == entities
    monkeypatch.setattr(limits, "MAX_LADDERS", entities - 1)
    with pytest.raises(limits.TooManyEntitiesError, match=f"more than {entities - 1} entities"):
        _limits(tmp_path / "more", 1, "user")


@pytest.mark.parametrize("by", sorted(_NAMES))
def test_the_largest_of_two_nodes_counts(tmp_path, by):
    """A quota holds on each node by itself."""
    for node_id, size in ((1, 1000), (2, 5000)):
        node = RecordingNode(node_id)
        node.start(START_MS)
        node.produce("alice", "c1", size, START_MS)
        write_events(tmp_path, node.events)
    with open_usage(tmp_path) as files:
        found = jobs_here(files).limits(levels_of(by), Tolerance(), out=None)
    (row,) = [row for row in found.entities if row["quota_type"] == "Produce"]
    assert (row["never_throttled"], row["amount"]) == (500.0, 6000)
    assert [row["peak"] for row in found.nodes if row["quota_type"] == "Produce"] == [100.0, 500.0]


_USER, _CLIENT_ID, _BOTH = (ENTITIES_BY[by] for by in ("user", "client-id", "both"))
_ENTITIES = {
    **{by: [entity] for by, entity in ENTITIES_BY.items()},
    "a user's own client ids": [_USER, _BOTH, (("user", "alice"),), (("client-id", "c1"), ("user", None))],
    "a client id's own users": [_CLIENT_ID, _BOTH, (("client-id", "c2"), ("user", "bob"))],
    "levels without a common kind": [_USER, _CLIENT_ID],
}


@pytest.mark.parametrize("name", _ENTITIES)
def test_limits_do_not_depend_on_the_shares_of_clients(tmp_path, name, monkeypatch):
    """Clients of several nodes in shares of two: the same rows, in the same order."""
    for node_id in (1, 2):
        node = RecordingNode(node_id)
        node.start(START_MS)
        random_traffic(node, Random(node_id), events=_EVENTS, quotas_change=False)
        write_events(tmp_path, node.events)
    records = [
        QuotaRecord(entity=entity, key=kind.key, value=2.0**60)
        for entity in _ENTITIES[name]
        for kind in QUOTA_TYPES
    ]
    levels = Plan(name="levels", records=tuple(records), measures=True)

    def found():
        with open_usage(tmp_path) as files:
            both = jobs_here(files).limits(levels, Tolerance(), out=None)
            return list(both.entities), list(both.nodes)

    together = found()
    monkeypatch.setattr(task, "CLIENTS_PER_SHARE", 2)
    assert len(together[0]) > 8
    if "without" in name:
        with open_usage(tmp_path) as files, jobs_here(files).back_end.place(files, [levels]) as rows:
            assert rows.shares == 1
    else:  # a share has fewer sensors; all together have more
        monkeypatch.setattr(limits, "MAX_LADDERS", 8 if name in ENTITIES_BY else len(together[0]) - 1)
    assert found() == together


def test_no_share_is_empty(tmp_path, monkeypatch):
    """Many clients of one user are one entity, and so one share."""
    node = RecordingNode()
    node.start(START_MS)
    for number in range(9):
        node.produce("alice", f"c{number}", 10, START_MS)
    write_events(tmp_path, node.events)
    monkeypatch.setattr(task, "CLIENTS_PER_SHARE", 2)
    for by, shares in (("user", 1), ("both", 5)):
        with open_usage(tmp_path) as files, jobs_here(files).back_end.place(files, [levels_of(by)]) as rows:
            assert rows.shares == shares
            assert {*rows.layout.share.tolist()} == {*range(shares)}


@pytest.mark.parametrize("by", sorted(_NAMES))
def test_what_is_recommended_does_not_depend_on_the_shares_of_clients(tmp_path, by, monkeypatch):
    """Two clients of different shares have a connection together: both are then in one share, on all nodes."""
    for node_id in (1, 2):
        node = RecordingNode(node_id)
        node.start(START_MS)
        random_traffic(node, Random(node_id), events=_EVENTS, quotas_change=False)
        for place, event in enumerate(node.events):
            event["connection_id"] = (
                1000 + CLIENTS.index((event["user"], event["client_id"])) if event["user"] else 0
            )
            if place % 7 == 0 and (event["user"], event["client_id"]) in (("alice", "c1"), ("bob", "c2")):
                event["connection_id"] = 7
        write_events(tmp_path, node.events)
    wanted = Wanted(force=True, headroom=1.0, budgets={"producer_byte_rate": 70_000.0})

    def found():
        with open_usage(tmp_path) as files:
            made = jobs_here(files).recommend(by, wanted)
            outcomes = sorted(map(repr, made.outcomes))
            return (
                made.quotas,
                list(made.entities),
                list(made.nodes),
                outcomes,
                recommend_notes(made, wanted, events=1),
            )

    together = found()
    monkeypatch.setattr(task, "CLIENTS_PER_SHARE", 2)
    with open_usage(tmp_path) as files:
        plans = [levels_of(by), forecast_levels(by)]
        with jobs_here(files).back_end.place(files, plans) as rows:
            assert rows.shares > 1
    assert found() == together


@_FEW
@given(
    seed=st.integers(0, 2**32 - 1),
    by=st.sampled_from(sorted(_NAMES)),
    headroom=st.sampled_from([1.0, 1.5]),
    budget=st.sampled_from([None, None, 70_000.0]),
    is_throttled=st.booleans(),
)
def test_only_the_throttled_entities_of_a_forecast(
    tmp_path_factory, seed, by, headroom, budget, is_throttled
):
    """Without the forecast that cannot throttle, the rows, quotas and notes are those of the forecast."""
    directory = tmp_path_factory.mktemp("usage")
    quota = QuotaRecord(entity=(("user", None),), key="producer_byte_rate", value=20_000.0)
    for node_id in (1, 2):
        node = RecordingNode(node_id)
        node.start(START_MS, records=(quota,) if is_throttled else ())
        random_traffic(node, Random(seed + node_id), events=_EVENTS, quotas_change=False)
        write_events(directory, node.events)
    budgets = {} if budget is None else {"producer_byte_rate": budget}
    wanted = Wanted(force=True, headroom=headroom, budgets=budgets)
    with open_usage(directory) as files:
        every, few = (jobs_here(files).recommend(by, wanted, only_throttled=flag) for flag in (False, True))
    assert [*few.outcomes] == [*rows_touched(every.outcomes, with_ranges=True)]
    assert few.quotas == every.quotas
    assert recommend_notes(few, wanted, events=1) == recommend_notes(every, wanted, events=1)


@pytest.mark.parametrize(("budgets", "is_replayed"), [({}, False), ({"producer_byte_rate": 7000.0}, True)])
def test_quotas_that_cannot_throttle_are_not_forecast(tmp_path, monkeypatch, budgets, is_replayed):
    """Replay the record once to measure, and only under a budget once more, for the entities that it throttles."""
    node = RecordingNode()
    node.start(START_MS)
    random_traffic(node, Random(3), events=_EVENTS, quotas_change=False)
    write_events(tmp_path, node.events)
    replayed = []
    outcomes = here._PlacedHere.outcomes

    def noted(rows, plans, share=None):
        replayed.extend(plan.name for plan in plans)
        return outcomes(rows, plans, share)

    monkeypatch.setattr(here._PlacedHere, "outcomes", noted)
    with open_usage(tmp_path) as files:
        found = jobs_here(files).recommend("user", Wanted(force=True, budgets=budgets), only_throttled=True)
    assert ("proposal" in replayed) is is_replayed
    assert bool(found.outcomes) is is_replayed


@_FEW
@given(seed=st.integers(0, 2**32 - 1), by=st.sampled_from(sorted(_NAMES)))
def test_limits_without_tolerance_are_those_of_a_search(tmp_path_factory, seed, by):
    """The limits of two nodes are those of a search to the last bit, unless a limit is tolerable."""
    directory = tmp_path_factory.mktemp("usage")
    for node_id in (1, 2):
        node = RecordingNode(node_id)
        node.start(START_MS)
        random_traffic(node, Random(seed + node_id), events=_EVENTS, quotas_change=False)
        write_events(directory, node.events)
    with open_usage(directory) as files:
        jobs = jobs_here(files)
        expected = jobs.limits(levels_of(by), Tolerance(), out=None)
        with jobs.back_end.place(files, [levels_of(by)]) as rows:
            entities, nodes = map(TableRows, limits_without_tolerance(rows, levels_of(by)))
    assert list(entities) == [row | {"tolerable": 0.0} for row in expected.entities]
    assert list(nodes) == list(expected.nodes)
    of_nodes = defaultdict(list)
    for row in expected.nodes:
        of_nodes[_entity(row)].append(row)
    for row in expected.entities:
        if row["quota_type"] != QuotaType.CONTROLLER_MUTATION.value:
            assert row["never_throttled"] == smallest_limit(of_nodes[_entity(row)], Windows())


_SUMS = (
    "requests",
    "amount",
    "delayed_amount",
    "rejected_mutations",
    "capped_fetches",
    "longest_throttle_ms",
)


def _entity(row):
    return row["quota_type"], row["entity_user"], row["entity_client_id"]


@_FEW
@given(seed=st.integers(0, 2**32 - 1), by=st.sampled_from(sorted(_NAMES)))
def test_a_rung_does_to_each_sensor_what_its_quotas_do(tmp_path_factory, seed, by):
    """By the replay of a plan that names every entity, on nodes that start again and whose record has a gap."""
    directory, rng = tmp_path_factory.mktemp("usage"), Random(seed)
    for node_id in (1, 2):
        node = RecordingNode(node_id)
        node.start(START_MS)
        now_ms = random_traffic(node, Random(seed + node_id), events=_EVENTS, quotas_change=False)
        node.start(now_ms + 100)
        random_traffic(node, Random(seed - node_id), events=_EVENTS, quotas_change=False, now_ms=now_ms + 200)
        lost = rng.randrange(_EVENTS, 2 * _EVENTS)
        write_events(directory, node.events[:lost] + node.events[lost + 9 :])
    levels = levels_of(by)
    with open_usage(directory) as files, jobs_here(files).back_end.place(files, [levels]) as rows:
        measured = decoded(rows.peaks(levels)).to_pylist()
        entities = sorted({_entity(row) for row in measured}, key=repr)
        types = [quota_type.value for quota_type in QUOTA_TYPES]
        numbers = {
            (types.index(kind), (sanitize(user or ""), client_id or "")): number
            for number, (kind, user, client_id) in enumerate(entities)
        }
        most = dict.fromkeys(entities, 1.0)
        for row in measured:
            most[_entity(row)] = max(most[_entity(row)], row["peak"], row["amount"] / 100)
        # Some are unlimited. A plan limits request time or the other types.
        bounds = [
            math.nan if rng.random() < 0.1 else most[entity] * rng.uniform(0.001, 1) for entity in entities
        ]
        for of_time in (False, True):
            keys = {kind.key for kind in QUOTA_TYPES if (kind is QuotaType.REQUEST) is of_time}
            of_types = [QUOTA_TYPES[types.index(kind)].key in keys for kind, _, _ in entities]
            rung = np.where(of_types, bounds, math.nan)
            records = tuple(record for record in levels.records if record.key in keys)
            plan = Plan(name="rung", records=records, rung=rung)
            found = rows.rungs([plan, plan], rows.searched(levels, numbers)).to_pylist()
            named = tuple(
                QuotaRecord(
                    entity=_NAMES[by](user, client_id),
                    key=QUOTA_TYPES[types.index(kind)].key,
                    value=2.0**60 if math.isnan(bound) else bound,
                )
                for (kind, user, client_id), bound in zip(entities, rung.tolist(), strict=True)
            )
            expected = rows.outcomes([replace(levels, name="named", records=named, measures=False)])
            _check_rungs(found, entities, rung, decoded(expected).to_pylist())


def _check_rungs(found, entities, rung, expected):
    outcomes = {_entity(row): row for row in expected}
    for place in range(2):
        of_plan = defaultdict(list)
        for row in found:
            if row["plan"] == place:
                of_plan[entities[row["sensor"]]].append(row)
        assert {*of_plan} == {
            entity for entity, bound in zip(entities, rung.tolist(), strict=True) if not math.isnan(bound)
        }
        for entity, rows in of_plan.items():
            *sums, longest_ms = ([row[name] for row in rows] for name in _SUMS)
            assert [*map(sum, sums), max(longest_ms)] == [outcomes[entity][name] for name in _SUMS]

"""Sensors that clients share, components of clients, and the partitions they go to."""

import heapq
from random import Random
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replaying.logs import START_MS, random_records, random_traffic
from tests.replaying.node import RecordingNode

from tidegate.pipeline.read.control_events import CONTROL_KINDS, control_events
from tidegate.pipeline.read.survey import CLIENT_KEYS
from tidegate.pipeline.read.timeline import empty_timeline, timelines
from tidegate.pipeline.replay.components import (
    MAX_ENTITY_SETS,
    Shared,
    assign_partitions,
    components,
    places_by,
    shared_connections,
    shared_sensors,
    tasks_of,
)
from tidegate.pipeline.replay.names import clients_of
from tidegate.pipeline.replay.plan import QUOTA_TYPES, Plan, in_force_plan
from tidegate.quota.admin.definitions import QuotaRecord
from tidegate.quota.admin.groups import Groups
from tidegate.quota.managers.quota_managers import QuotaManagers


def _reachable(clients, shared):
    """Return the smallest client reachable from each, by searching until nothing changes."""
    labels = list(range(clients))
    changed = True
    while changed:
        changed = False
        for left, sensor in shared:
            for right, other in shared:
                if sensor == other and labels[left] != labels[right]:
                    labels[left] = labels[right] = min(labels[left], labels[right])
                    changed = True
    return labels


_PAIRS = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 9)), max_size=12)


@given(st.lists(_PAIRS, max_size=3))
def test_components_are_what_can_be_reached(several):
    """Union and find give what a search gives, whatever is shared: what has one number twice is two things."""
    shared = [Shared(*np.array(pairs, np.int64).reshape(-1, 2).T) for pairs in several]
    together = [(client, (place, number)) for place, pairs in enumerate(several) for client, number in pairs]
    assert components(12, shared).tolist() == _reachable(12, together)


@given(st.integers(0, 2**32), st.integers(1, 6))
def test_partitions_keep_components_whole_and_nodes_apart(seed, wanted):
    """Clients of one component go together, no partition has two nodes, and numbers run through partitions."""
    rng = Random(seed)
    clients = rng.randint(1, 40)
    component = np.array([rng.randrange(clients) for _ in range(clients)])
    node_id = np.array([int(label) % 3 for label in component])
    rows = np.array([rng.randrange(1000) for _ in range(clients)])
    given_out = assign_partitions(component=component, node_id=node_id, rows=rows, wanted=wanted)
    for label in set(component.tolist()):
        assert len(set(given_out.partition[component == label].tolist())) == 1
    for partition in range(given_out.partitions):
        assert len(set(node_id[given_out.partition == partition].tolist())) == 1
        numbers = sorted(given_out.number[given_out.partition == partition].tolist())
        first, end = given_out.first_number[partition : partition + 2].tolist()
        assert numbers == list(range(first, end))
    assert given_out.first_number[-1] == clients


@given(st.lists(st.integers(-3, 3)))
def test_places_by_number_are_where_it_is(numbers):
    """Each number once, rising, with all its places, rising."""
    expected = {number: [at for at, each in enumerate(numbers) if each == number] for number in numbers}
    found = [(number, places.tolist()) for number, places in places_by(np.array(numbers, np.int64))]
    assert found == sorted(expected.items())


def test_rows_are_spread_evenly():
    """The largest component goes first, each to where there is least."""
    rows = np.array([50, 40, 30, 20, 10])
    ids = np.arange(5)
    given_out = assign_partitions(component=ids, node_id=np.zeros(5, int), rows=rows, wanted=2)
    loads = np.bincount(given_out.partition, weights=rows)
    assert sorted(loads.tolist()) == [70, 80]


@given(st.lists(st.sampled_from([0, 0, 1, 2, 2, 2, 9]), min_size=1, max_size=60), st.integers(1, 9))
def test_components_of_one_size_are_dealt_in_turn(rows, wanted):
    """Each component goes to where there is least, however many have one size; the first of these partitions."""
    loads = [(0, partition) for partition in range(wanted)]
    expected = [0] * len(rows)
    for place in sorted(range(len(rows)), key=lambda place: -rows[place]):
        load, expected[place] = heapq.heappop(loads)
        heapq.heappush(loads, (load + rows[place], expected[place]))
    if len(rows) > wanted:
        assert tasks_of(np.array(rows), wanted).tolist() == expected


def test_no_clients_need_no_partition():
    """A log without requests is laid out, too."""
    none = np.zeros(0, np.int64)
    given_out = assign_partitions(component=none, node_id=none, rows=none, wanted=4)
    assert given_out.partitions == 0


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60), st.integers(1, 9))
def test_tasks_share_partitions_evenly(rows, wanted):
    """There are as many tasks as wanted, and none has more than a fair share and one partition."""
    tasks = tasks_of(np.array(rows), wanted)
    loads = np.bincount(tasks, weights=rows)
    assert len(tasks) == len(rows)
    assert len(loads) == min(wanted, len(rows)) or not any(rows)
    assert loads.max() <= sum(rows) / len(loads) + max(rows)


_NAMES = [("alice", "c1"), ("alice", "c2"), ("bob", "c1"), ("bob", "c3"), ("carol", "c4")]


def _quota(entity, key="producer_byte_rate"):
    return QuotaRecord(entity=entity, key=key, value=10.0)


def _joined(plans, timeline=None, *, names=_NAMES):
    """Return the smallest client of each component, by the place of each client in the names."""
    rows = [{"node_id": 1, "user": user, "client_id": client_id} for user, client_id in names]
    clients, number = clients_of([pa.Table.from_pylist(rows, CLIENT_KEYS)])
    joined = components(len(clients), shared_sensors(plans, clients, {1: timeline or empty_timeline()}))
    of_name = joined[number].tolist()
    return [of_name.index(component) for component in of_name]


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ((), [0, 1, 2, 3, 4]),
        ((_quota((("user", None),)),), [0, 0, 2, 2, 4]),
        ((_quota((("client-id", None),)),), [0, 1, 0, 3, 4]),
        ((_quota((("client-id", None), ("user", None))),), [0, 1, 2, 3, 4]),
        ((_quota((("user", None),)), _quota((("client-id", None),), "request_percentage")), [0, 0, 0, 0, 4]),
        ((_quota((("user", "bob"),), "controller_mutation_rate"),), [0, 0, 2, 2, 4]),
    ],
)
def test_clients_are_joined_by_what_they_share(records, expected):
    """Users share by user, client ids across users; levels that name both share nothing."""
    assert _joined([Plan(name="p", records=records)]) == expected


def test_nodes_share_nothing():
    """Each measures for itself: what joins clients of one node joins none of two."""
    rows = [
        {"node_id": node_id, "user": "alice", "client_id": f"c{n}"} for node_id in (7, 3) for n in range(2)
    ]
    clients, number = clients_of([pa.Table.from_pylist(rows, CLIENT_KEYS)])
    plan = Plan(name="p", records=(_quota((("user", None),)),), groups=Groups(members={("user", "bob"): "g"}))
    timelines_of = {3: empty_timeline(), 7: empty_timeline()}
    joined = components(len(clients), shared_sensors([plan, in_force_plan()], clients, timelines_of))
    first, second, third, fourth = joined[number].tolist()
    assert first == second != third == fourth


def test_members_of_a_group_are_joined():
    """Whatever else they have in common with others, who are joined as ever."""
    groups = Groups(members={("user", "carol"): "g", ("client-id", "c1"): "g", ("client-id", "c3"): "h"})
    by_user = (_quota((("user", None),)),)
    assert _joined([Plan(name="p", records=by_user, groups=groups)]) == [0, 1, 0, 3, 0]


def test_plans_are_joined_together():
    """Rows go through all plans at once, so what shares under any of them goes together."""
    by_user = Plan(name="a", records=(_quota((("user", None),)),))
    by_client = Plan(name="b", records=(_quota((("client-id", None),)),))
    assert _joined([by_user, by_client]) == [0, 0, 0, 0, 4]


@given(st.integers(0, 2**32))
def test_who_shares_a_sensor_is_joined_under_quotas_in_force(seed):
    """Whatever the definitions were while requests came, clients with equal tags are in one component."""
    rng = Random(seed)
    node = RecordingNode()
    node.start(START_MS, records=random_records(rng, at_most=4))
    random_traffic(node, rng, events=60)
    control = [event for event in node.events if event["kind"] in CONTROL_KINDS]
    timeline = timelines(control_events(control))[1]
    names = sorted(
        {(event["user"], event["client_id"]) for event in node.events if event["kind"] == "request"}
    )
    joined = _joined([in_force_plan()], timeline, names=names)
    managers = QuotaManagers()
    steps = {step.seq: step for step in timeline.steps}
    for event in node.events:
        step = steps.get(event["seq"])
        if step is not None and step.kind == "start":
            managers = QuotaManagers()
        if step is not None and step.record is not None:
            managers.apply(step.record)
        if event["kind"] == "request":
            _check_joined(managers, names, joined)


def _check_joined(managers, names, joined):
    for quota_type in QUOTA_TYPES:
        manager = managers.manager(quota_type)
        seen = {}
        for number, name in enumerate(names):
            tags = tuple(manager.tags(*name).values())
            if manager.enabled:
                assert joined[seen.setdefault(tags, number)] == joined[number]


def test_too_many_sets_of_entities_join_by_name():
    """Above the bound no entity set is looked at alone, and clients that may share a sensor stay together."""
    node = RecordingNode()
    node.start(0)
    for number in range(2 * (MAX_ENTITY_SETS + 2)):
        node.quota(_quota((("client-id", f"x{number}"), ("user", "x"))), number)
        node.gap(number)
    assert _joined([in_force_plan()], timelines(control_events(node.events))[1]) == [0, 0, 0, 0, 4]


def test_clients_of_one_connection_are_joined():
    """Also where they come in different files; a connection of another node with the same number is another one."""
    here, there = np.array([[0, 7], [1, 8]]), np.array([[0, 7], [1, 9]])
    surveys = [SimpleNamespace(connections=pairs) for pairs in (here, there)]
    places = [np.array([0, 1]), np.array([2, 3])]
    for nodes, joined in (([1, 1, 1, 1], [0, 1, 0, 3]), ([1, 1, 2, 2], [0, 1, 2, 3])):
        shared = shared_connections(surveys, places, np.array(nodes))
        assert components(4, shared).tolist() == joined

"""Which clients share sensors."""

from random import Random
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replaying.logs import START_MS, random_records, random_traffic
from tests.replaying.node import RecordingNode

from tidegate.pipeline.read.steps import CONTROL_KINDS, control_events
from tidegate.pipeline.read.survey import CLIENT_KEYS
from tidegate.pipeline.read.timeline import empty_timeline, timelines
from tidegate.pipeline.replay.components import components
from tidegate.pipeline.replay.names import clients_of
from tidegate.pipeline.replay.plan import QUOTA_TYPES, Plan, in_force_plan
from tidegate.pipeline.replay.sharing import MAX_ENTITY_SETS, shared_connections, shared_sensors
from tidegate.quota.admin.definitions import QuotaRecord
from tidegate.quota.admin.groups import Groups
from tidegate.quota.managers.quota_managers import QuotaManagers

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
    """Past the bound nobody is looked at one by one, and nobody who might share is left apart."""
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

"""Sensors and connections that clients share under some plans: `components` joins clients by them.

A sensor that only one client can have (its tags name user and client id) joins no clients and is left out. Under the
quotas in force, tags change when the set of entities with a quota changes. Every set that was in force while there
were requests counts, and so does every answer of a quota callback. In closed loop, clients that share a connection
touch, too.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tidegate.pipeline.layout import EXACT
from tidegate.pipeline.read.survey import Survey
from tidegate.pipeline.read.timeline import Timeline
from tidegate.pipeline.replay.components import Shared, places_by
from tidegate.pipeline.replay.names import Clients
from tidegate.pipeline.replay.plan import QUOTA_TYPES, Definitions, Plan
from tidegate.quota.managers.quota_type import QuotaType

__all__ = ["MAX_ENTITY_SETS", "shared_connections", "shared_sensors"]

MAX_ENTITY_SETS = 64
"""Sets of entities per node that are compared one by one; with more, all clients with a common name are joined."""

_FETCH = QUOTA_TYPES.index(QuotaType.FETCH)
_REQUEST = QUOTA_TYPES.index(QuotaType.REQUEST)

Ints = npt.NDArray[np.int64]


def shared_sensors(
    plans: Sequence[Plan], clients: Clients, timelines: Mapping[int, Timeline]
) -> Iterator[Shared]:
    """Yield clients, by number, with the sensors that several of them might have: of each plan, node and quota type."""
    nodes, node = np.unique(clients.node_id, return_inverse=True)
    for plan in plans:
        if plan.records is not None:  # the same on all nodes
            for places, sensors in _under(Definitions(plan.records, groups=plan.groups), clients):
                yield Shared(places, sensors * len(nodes) + node[places])
            continue
        for node_id, here in places_by(clients.node_id):
            for places, sensors in _under_those_in_force(clients.select(here), timelines[node_id]):
                yield Shared(here[places], sensors)


def shared_connections(surveys: Sequence[Survey], places: Sequence[Ints], node_ids: Ints) -> Iterator[Shared]:
    """Yield the clients of each connection: one's throttle mutes all.

    places: the numbers of the clients of each survey; node_ids: by client number.
    """
    numbered = [
        np.stack([place[survey.connections[:, 0]], survey.connections[:, 1]], axis=1)
        for survey, place in zip(surveys, places, strict=True)
        if len(survey.connections)
    ]
    if not numbered:
        return
    clients, connection_ids = np.unique(np.concatenate(numbered), axis=0).T
    nodes, node = np.unique(node_ids[clients], return_inverse=True)
    _, connection = np.unique(connection_ids, return_inverse=True)
    yield Shared(clients, connection.reshape(-1) * len(nodes) + node.reshape(-1))


def _under_those_in_force(clients: Clients, timeline: Timeline) -> Iterator[Shared]:
    """Yield the shared sensors on one node."""
    yield from _as_answered(clients, timeline)
    seen: set[Hashable] = set()
    for definitions in _in_force(timeline):
        entities = tuple(definitions.entities(index) for index in range(len(QUOTA_TYPES)))
        if entities in seen:
            continue
        # Joining too many clients is safe: partitions get larger, decisions stay the same.
        if len(seen) == MAX_ENTITY_SETS:
            everybody = np.arange(len(clients))
            yield Shared(everybody, clients.user)
            yield Shared(everybody, clients.client_id)
            return
        seen.add(entities)
        yield from _under(definitions, clients)


def _as_answered(clients: Clients, timeline: Timeline) -> Iterator[Shared]:
    """Yield the sensors that a quota callback named. If rows are missing, any client may have used any of them."""
    answered = timeline.steps.where(lambda step: step.answer is not None)
    if not answered:
        return
    if timeline.steps.where(lambda step: step.reason != EXACT):
        yield Shared(np.arange(len(clients)), np.zeros(len(clients), np.int64))
        return
    users, client_ids = clients.columns()
    numbers = {
        pair: at for at, pair in enumerate(zip(users.to_pylist(), client_ids.to_pylist(), strict=True))
    }
    sensors: dict[Hashable, int] = {}
    found = []
    for answer in filter(None, (step.answer for step in timeline.steps.only(answered))):
        number = numbers.get((answer.user, answer.client_id))
        if number is not None:
            found.append((number, sensors.setdefault((answer.quota_key, answer.name), len(sensors))))
    yield Shared(*np.array(found, np.int64).reshape(-1, 2).T)


def _in_force(timeline: Timeline) -> Iterator[Definitions]:
    """Yield the definitions after every run of steps that a request may have followed, if others may have a quota."""
    definitions = Definitions()
    defined: set[Hashable] = set()
    asks_callback, is_changed = False, True
    # Between two steps with consecutive `seq` there is no request, so only the last of a run of steps matters.
    is_followed = np.append(np.diff(timeline.steps.seq) == 1, [False])
    for place, step in enumerate(timeline.steps):
        if step.states_all:
            definitions.clear()
            defined.clear()
            is_changed = True
        if step.record is not None:
            key = step.record.entity, step.record.key
            if (key in defined) != (step.record.value is not None):
                defined ^= {key}
                is_changed = True
            definitions.apply(step.record)
        if step.kind in ("start", "callback", "tags"):
            asks_callback = step.kind == "tags" or step.callback is not None
            is_changed = True
        if is_changed and not asks_callback and not is_followed[place]:
            is_changed = False
            yield definitions


def _under(definitions: Definitions, clients: Clients) -> Iterator[Shared]:
    """Yield the shared sensors under one set of definitions."""
    in_use = [index for index in range(len(QUOTA_TYPES)) if definitions.is_enabled(index)]
    if _REQUEST in in_use and _FETCH not in in_use:
        in_use.append(_FETCH)  # a request throttle takes fetch bytes back, quota or not (B§6.3)
    names = clients.columns()
    members = definitions.members(*names)
    is_member = np.zeros(len(clients), bool)
    if members:
        is_member[list(members)] = True
        _, group = np.unique(list(members.values()), return_inverse=True)
        yield Shared(np.array(list(members)), group.reshape(-1))
    for index in in_use:
        alike, first = definitions.alike(index, *names)
        tags = [definitions.tags(index, *clients[place]) for place in first.tolist()]
        by_user, by_client_id = (
            np.array([bool(tag[part]) for tag in tags], bool)[alike] for part in range(2)
        )
        sensor = (1 + clients.user) * by_user + (1 + len(clients.users) + clients.client_id) * by_client_id
        places = np.flatnonzero(~(by_user & by_client_id) & ~is_member)
        yield Shared(places, sensor[places])

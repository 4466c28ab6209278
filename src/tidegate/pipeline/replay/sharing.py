"""Which clients share sensors under some plans: the pairs that `components` joins clients by.

A sensor that only one client can have (its tags name user and client id) joins nobody and is left out. Under the
quotas in force, tags change when the set of entities with a quota changes; every set that was in force while there
were requests counts, and all that a quota callback answered. In closed loop those touch, too, who share a connection.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tidegate.pipeline.layout import EXACT
from tidegate.pipeline.read.chunks import Survey
from tidegate.pipeline.read.timeline import Timeline
from tidegate.pipeline.replay.plan import QUOTA_TYPES, Definitions, Plan
from tidegate.quota.managers.quota_type import QuotaType

__all__ = ["MAX_ENTITY_SETS", "shared_connections", "shared_sensors"]

MAX_ENTITY_SETS = 64
"""Sets of entities per node that are looked at one by one; past it whoever has a name in common is joined."""

_FETCH = QUOTA_TYPES.index(QuotaType.FETCH)
_REQUEST = QUOTA_TYPES.index(QuotaType.REQUEST)

Client = tuple[str, str]
Shared = Iterator[tuple[int, Hashable]]


def shared_sensors(
    plans: Sequence[Plan], clients: Mapping[int, Mapping[int, Client]], timelines: Mapping[int, Timeline]
) -> Shared:
    """Yield (client number, sensor) for every sensor that several clients might have.

    clients: by node, then by number: user and client id. Sensors of two nodes are two sensors.
    """
    for place, plan in enumerate(plans):
        for node_id, of_node in clients.items():
            for number, sensor in _on_node(plan, of_node, timelines[node_id]):
                yield number, (place, node_id, sensor)


def shared_connections(
    surveys: Sequence[Survey], places: Sequence[npt.NDArray[np.int64]], node_ids: Sequence[int]
) -> Shared:
    """Yield (client number, connection) for every connection that several clients have: one's throttle mutes all.

    places: the numbers of the clients of each survey; node_ids: by client number.
    """
    numbered = [
        np.stack([place[survey.connections[:, 0]], survey.connections[:, 1]], axis=1)
        for survey, place in zip(surveys, places, strict=True)
        if len(survey.connections)
    ]
    if not numbered:
        return
    pairs = np.unique(np.concatenate(numbered), axis=0)
    _, place, clients = np.unique(pairs[:, 1], return_inverse=True, return_counts=True)
    for number, connection_id in pairs[clients[place.reshape(-1)] > 1].tolist():
        yield number, ("connection", node_ids[number], connection_id)


def _on_node(plan: Plan, clients: Mapping[int, Client], timeline: Timeline) -> Shared:
    if plan.records is not None:
        yield from _under(Definitions(plan.records), clients)
        return
    yield from _as_answered(clients, timeline)
    seen: set[Hashable] = set()
    for definitions in _in_force(timeline):
        entities = tuple(definitions.entities(index) for index in range(len(QUOTA_TYPES)))
        if entities in seen:
            continue
        if len(seen) == MAX_ENTITY_SETS:
            yield from _by_name(clients)
            return
        seen.add(entities)
        yield from _under(definitions, clients)


def _as_answered(clients: Mapping[int, Client], timeline: Timeline) -> Shared:
    """Yield the sensors that a quota callback named. Where rows are missing anybody may have been counted in any."""
    answers = [step.answer for step in timeline.steps if step.answer is not None]
    if answers and any(step.reason != EXACT for step in timeline.steps):
        yield from ((number, "all") for number in clients)
        return
    numbers = {client: number for number, client in clients.items()}
    for answer in answers:
        number = numbers.get((answer.user, answer.client_id))
        if number is not None:
            yield number, (answer.quota_key, answer.name)


def _in_force(timeline: Timeline) -> Iterator[Definitions]:
    """Yield the definitions after every run of steps that a request may have followed."""
    definitions = Definitions()
    following = (*timeline.steps[1:], None)[: len(timeline.steps)]
    asks_callback = False
    for step, after in zip(timeline.steps, following, strict=True):
        if step.states_all:
            definitions.clear()
        if step.record is not None:
            definitions.apply(step.record)
        if step.kind in ("start", "callback", "tags"):
            asks_callback = step.kind == "tags" or step.callback is not None
        if not asks_callback and (after is None or after.seq != step.seq + 1):
            yield definitions


def _under(definitions: Definitions, clients: Mapping[int, Client]) -> Shared:
    """Yield the shared sensors under one set of definitions."""
    in_use = [index for index in range(len(QUOTA_TYPES)) if definitions.is_enabled(index)]
    if _REQUEST in in_use and _FETCH not in in_use:
        in_use.append(_FETCH)  # a request throttle takes fetch bytes back, quota or not (B§6.3)
    for index in in_use:
        for number, (user, client_id) in clients.items():
            tags = definitions.tags(index, user, client_id)
            if not all(tags):
                yield number, (index, tags)


def _by_name(clients: Mapping[int, Client]) -> Shared:
    """Yield what joins all clients with a user or a client id in common: never too little."""
    for number, (user, client_id) in clients.items():
        yield number, ("user", user)
        yield number, ("client-id", client_id)

"""Components of clients that must be replayed together, and the partition that replays each component.

Two clients touch if they share a sensor under any plan and any quota type. A *component* is a set of clients that touch
one another, directly or through others. Components are independent, so a complete component goes to one partition. A
client is a (node, user, client id), because each node measures on its own, so a partition has clients of only one node.

A sensor that only one client can have (its tags name user and client id) connects no clients, and is ignored. Under the
quotas in force, tags change when the set of entities with a quota changes: every set that was in force during requests
counts, and so does every answer of a quota callback. In closed loop, clients that share a connection touch, too.
"""

import heapq
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tidegate.pipeline.layout import EXACT, FETCH, REQUEST
from tidegate.pipeline.read.columns import distinct
from tidegate.pipeline.read.survey import Survey
from tidegate.pipeline.read.timeline import Timeline
from tidegate.pipeline.replay.names import Clients, Ints
from tidegate.pipeline.replay.plan import QUOTA_TYPES, Definitions, Plan

__all__ = [
    "MAX_ENTITY_SETS",
    "Assignment",
    "Shared",
    "assign_partitions",
    "components",
    "places_by",
    "shared_connections",
    "shared_sensors",
    "tasks_of",
]

MAX_ENTITY_SETS = 64
"""Sets of entities per node that are compared one by one; with more, all clients with a common name are joined."""


class Shared(NamedTuple):
    """Clients, and a number for each, such as that of its sensor. Clients with the same number touch."""

    client: Ints
    number: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The partition of each client. The clients of one partition have consecutive numbers."""

    partition: Ints  # [client as given]
    number: Ints  # [client as given]
    first_number: Ints  # [partition]; one more at the end: how many clients there are
    rows: Ints  # [partition]

    @property
    def partitions(self) -> int:
        """Return how many partitions there are."""
        return len(self.first_number) - 1


def components(clients: int, shared: Iterable[Shared]) -> Ints:
    """Return for each client the smallest client of its component."""
    found = np.arange(clients)
    pairs = np.concatenate([np.zeros((2, 0), np.int64), *map(_neighbours, shared)], axis=1)
    while pairs.shape[1]:
        # Of each pair, the larger client gets the name of a smaller one, so each component is named by its smallest.
        # Of the names of a component at most half are left after two rounds.
        np.minimum.at(found, pairs.max(axis=0), pairs.min(axis=0))
        while (found != (names := found[found])).any():
            found = names
        pairs = found[pairs]
        pairs = pairs[:, pairs[0] != pairs[1]]
    return found


def _neighbours(shared: Shared) -> Ints:
    """Return pairs of clients that touch, as two rows, such that all that touch are joined."""
    order = np.argsort(shared.number, kind="stable")
    in_order = shared.client[order]
    is_next = np.flatnonzero(np.diff(shared.number[order]) == 0)
    return np.stack([in_order[is_next], in_order[is_next + 1]])


def assign_partitions(*, component: Ints, node_id: Ints, rows: Ints, wanted: int) -> Assignment:
    """Return the partition of each client: about `wanted` partitions of about the same size, each of one node.

    component, node_id, rows: one entry per client.
    """
    partition = np.zeros(len(component), np.int64)
    partitions = 0
    total_rows = int(rows.sum()) or 1
    for _, of_node in places_by(node_id):
        share = max(1, round(wanted * int(rows[of_node].sum()) / total_rows))
        local = _pack(component[of_node], rows[of_node], share)
        partition[of_node] = partitions + local
        partitions += int(local.max()) + 1
    return _numbered(partition, partitions, rows)


def places_by(numbers: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield every number that occurs, rising, and the places that have it, rising."""
    found, first = np.unique(np.sort(numbers), return_index=True)
    if len(found):
        places = np.split(np.argsort(numbers, kind="stable"), first[1:])
        yield from zip(found.tolist(), places, strict=True)


def tasks_of(rows: Ints, wanted: int) -> Ints:
    """Return the task that replays each partition: at most `wanted` tasks, with about the same number of rows.

    Each node has its own partition, even with few rows, and a Spark task costs more than to replay ten thousand rows.
    """
    if len(rows) <= wanted:
        return np.arange(len(rows))
    return _pack(np.arange(len(rows)), rows, wanted)


def _pack(component: Ints, rows: Ints, partitions: int) -> Ints:
    """Return a partition per client. Assign the largest component first, each to the partition with fewest rows."""
    _, member = np.unique(component, return_inverse=True)
    sizes = np.bincount(member, weights=rows).astype(np.int64)
    loads = [(0, partition) for partition in range(min(partitions, len(sizes)))]
    order = np.argsort(-sizes, kind="stable")
    in_order, target = sizes[order], np.zeros(len(sizes), np.int64)
    begins = np.flatnonzero(np.diff(in_order, prepend=-1, append=-1)).tolist()
    for first, end in pairwise(begins):  # of equal sizes
        size = int(in_order[first])
        rounds = _rounds(loads, size, end - first)
        dealt = rounds * len(loads)
        target[order[first : first + dealt]] = np.tile([partition for _, partition in loads], rounds)
        loads = [(load + rounds * size, partition) for load, partition in loads]
        for index in order[first + dealt : end].tolist():
            load, partition = loads[0]
            target[index] = partition
            heapq.heapreplace(loads, (load + size, partition))
    return target[member]


def _rounds(loads: list[tuple[int, int]], size: int, count: int) -> int:
    """Return how many rounds so many components of one size make, each to all partitions in turn. Sorts `loads`."""
    if count < len(loads):
        return 0
    loads.sort()
    load, partition = loads[0]
    return count // len(loads) if loads[-1] < (load + size, partition) else 0


def _numbered(partition: Ints, partitions: int, rows: Ints) -> Assignment:
    order = np.argsort(partition, kind="stable")
    number = np.empty(len(partition), np.int64)
    number[order] = np.arange(len(partition))
    first = np.searchsorted(partition[order], np.arange(partitions + 1))
    return Assignment(
        partition=partition,
        number=number,
        first_number=first.astype(np.int64),
        rows=np.bincount(partition, weights=rows, minlength=partitions).astype(np.int64),
    )


def shared_sensors(
    plans: Sequence[Plan], clients: Clients, timelines: Mapping[int, Timeline]
) -> Iterator[Shared]:
    """Yield the clients, by number, that may share sensors, for each plan, node and quota type."""
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
    """Yield the clients of each connection, because a throttle of one of them mutes the connection for all.

    places: the numbers of the clients of each survey; node_ids: by client number.
    """
    numbered = [
        np.stack([place[survey.connections[:, 0]], survey.connections[:, 1]], axis=1)
        for survey, place in zip(surveys, places, strict=True)
        if len(survey.connections)
    ]
    if not numbered:
        return
    clients, connection_ids = np.concatenate(numbered).T
    connections, connection = np.unique(connection_ids, return_inverse=True)
    pairs = distinct(clients * len(connections) + connection.reshape(-1))
    clients, connection = np.divmod(pairs, len(connections))
    nodes, node = np.unique(node_ids[clients], return_inverse=True)
    yield Shared(clients, connection * len(nodes) + node.reshape(-1))


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
    if REQUEST in in_use and FETCH not in in_use:
        in_use.append(FETCH)  # a request throttle takes fetch bytes back, quota or not (B§6.3)
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

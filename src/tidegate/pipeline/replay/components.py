"""Components of clients that must be replayed together, and the partition that replays each component.

Two clients touch when they share a sensor under any plan and any quota type; a *component* is a set of clients
that touch one another, directly or through others. Components are independent: each goes to one partition, whole.
A client is a (node, user, client id), because each node measures on its own. A partition therefore has clients of one
node only.
"""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Assignment", "Shared", "assign_partitions", "components", "places_by", "tasks_of"]

Ints = npt.NDArray[np.int64]


class Shared(NamedTuple):
    """Clients, and the number of what each of them has; those with the same number touch."""

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
    parent = list(range(clients))
    for client, number in shared:
        order = np.argsort(number, kind="stable")
        in_order = client[order]
        is_next = np.flatnonzero(np.diff(number[order]) == 0)
        for one, other in zip(in_order[is_next].tolist(), in_order[is_next + 1].tolist(), strict=True):
            left, right = _root(parent, one), _root(parent, other)
            # The smaller root wins, so each component is named by its smallest client.
            parent[max(left, right)] = min(left, right)
    return np.array([_root(parent, client) for client in range(clients)], np.int64)


def assign_partitions(*, component: Ints, node_id: Ints, rows: Ints, wanted: int) -> Assignment:
    """Return where each client goes: about `wanted` partitions with about equally many rows, each of one node.

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
    """Return for each partition the task that replays it: `wanted` at most, with about equally many rows.

    A node has a partition of its own, however few its rows, and a task of Spark costs more than replaying ten thousand.
    """
    if len(rows) <= wanted:
        return np.arange(len(rows))
    return _pack(np.arange(len(rows)), rows, wanted)


def _root(parent: list[int], client: int) -> int:
    while parent[client] != client:
        parent[client] = parent[parent[client]]
        client = parent[client]
    return client


def _pack(component: Ints, rows: Ints, partitions: int) -> Ints:
    """Return a partition per client: the largest component first, each to where there is least."""
    _, member = np.unique(component, return_inverse=True)
    sizes = np.bincount(member, weights=rows).astype(np.int64)
    loads = [(0, partition) for partition in range(min(partitions, len(sizes)))]
    target = np.zeros(len(sizes), np.int64)
    for index in np.argsort(-sizes, kind="stable").tolist():
        load, partition = heapq.heappop(loads)
        target[index] = partition
        heapq.heappush(loads, (load + int(sizes[index]), partition))
    return target[member]


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

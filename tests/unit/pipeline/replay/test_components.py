"""Components of clients, and the partitions they go to."""

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tidegate.pipeline.replay.components import Shared, assign_partitions, components, places_by, tasks_of


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

"""Keys of sensors: equal where a sensor is shared, and different otherwise."""

import copy
import pickle
from random import Random

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.replaying.logs import random_records
from tests.replaying.plans import random_groups

from tidegate.config.windows import Windows
from tidegate.pipeline.replay.plan import QUOTA_TYPES, Definitions
from tidegate.pipeline.replay.state.keys import NameNumbers, SensorKeys, quota_type_of


@given(st.integers(0, 2**32))
def test_a_key_stands_for_a_quota_type_and_a_sensor(seed):
    """Keys lead back to them for few clients and many, in any order, in a copy and in a checkpoint."""
    rng = Random(seed)
    definitions = Definitions(random_records(rng, at_most=6), groups=random_groups(rng))
    names = ("alice", "bob", "a b:c", "", "x", "c1")
    clients = [(user, client_id) for user in names for client_id in names]
    keys = SensorKeys()
    for _ in range(4):
        index = rng.randrange(len(QUOTA_TYPES))
        numbers = rng.sample(range(len(clients)), rng.choice((3, 36)))
        some = [clients[number] for number in numbers]
        users, client_ids = (pa.array([client[part] for client in some]) for part in range(2))
        found = keys.of(index, np.array(numbers), definitions.resolved(index, users, client_ids, Windows()))
        sensors = [
            (index, definitions.resolve(index, user, client_id, Windows()).sensor) for user, client_id in some
        ]
        assert list(keys.named(found)) == sensors
        assert [keys.key(*sensor) for sensor in sensors] == found
        assert {quota_type_of(key) for key in found} == {index}
        assert copy.deepcopy(keys) is keys
        keys = pickle.loads(pickle.dumps(keys))


def test_a_client_keeps_the_number_of_its_name():
    """Names are numbered when their clients come first, in any order; clients with one name have one number."""
    numbers = NameNumbers()
    assert numbers.of_clients(np.array([70, 2]), pa.array(["b", "a"])).tolist() == [1, 2]
    assert numbers.of_name("c") == 3
    assert numbers.of_clients(np.array([2, 3, 70]), pa.array(["a", "c", "b"])).tolist() == [2, 3, 1]
    assert numbers.of_clients(np.array([5, 6]), pa.array(["A", ""]), str.lower).tolist() == [2, 0]
    assert numbers.names() == ["", "b", "a", "c"]

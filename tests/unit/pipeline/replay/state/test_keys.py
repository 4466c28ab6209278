"""Keys of sensors: equal where a sensor is shared, and different otherwise."""

import copy
import pickle
from random import Random

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.replaying.logs import random_records
from tests.replaying.plans import random_groups

from tidegate.config.windows import Windows
from tidegate.pipeline.replay.plan import QUOTA_TYPES, Definitions
from tidegate.pipeline.replay.state.keys import SensorKeys, quota_type_of


@given(st.integers(0, 2**32))
def test_a_key_stands_for_a_quota_type_and_a_sensor(seed):
    """Keys lead back to them for few clients and many, in any order, in a copy and in a checkpoint."""
    rng = Random(seed)
    definitions = Definitions(random_records(rng, at_most=6), groups=random_groups(rng))
    names = ("alice", "bob", "a b:c", "", "x", "c1")
    clients = [(user, client_id) for user in names for client_id in names]
    keys = SensorKeys()
    for _ in range(4):
        index, some = rng.randrange(len(QUOTA_TYPES)), rng.sample(clients, rng.choice((3, 36)))
        users, client_ids = (pa.array([client[part] for client in some]) for part in range(2))
        found = keys.of(index, definitions.resolved(index, users, client_ids, Windows()))
        sensors = [
            (index, definitions.resolve(index, user, client_id, Windows()).sensor) for user, client_id in some
        ]
        assert list(keys.named(found)) == sensors
        assert [keys.key(*sensor) for sensor in sensors] == found
        assert {quota_type_of(key) for key in found} == {index}
        assert copy.deepcopy(keys) is keys
        keys = pickle.loads(pickle.dumps(keys))

"""Numbers in place of the names of a sensor, as its key.

The key of a sensor that is counted under names of its clients is a number, made of the quota type and of a number for
each name. Others, such as those of groups, have a pair: the quota type and a text.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from tidegate.pipeline.layout import Int64s
from tidegate.pipeline.replay.resolved import BY_CLIENT_ID, BY_USER, ResolvedColumns
from tidegate.quota.admin.entity import Tags
from tidegate.quota.admin.sanitizer import sanitize

__all__ = ["SensorKey", "SensorKeys", "quota_type_of"]

SensorKey = int | tuple[int, str]
"""Key of a sensor: a number of `SensorKeys`, or a place in `QUOTA_TYPES` and a text."""

_TYPE_BITS, _NAME_BITS = 2, 30  # of a key, whose sign bit stays 0
_TYPE, _NAME = (1 << _TYPE_BITS) - 1, (1 << _NAME_BITS) - 1


class SensorKeys:
    """Numbers of users, sanitised, and of client ids, from 0; 0 stands for no name."""

    def __init__(self) -> None:
        self._users = {"": 0}
        self._client_ids = {"": 0}

    def __deepcopy__(self, memo: dict[int, object]) -> "SensorKeys":
        """Return the same object: a name keeps its number, so copies of a state can add names to one table."""
        return self

    def of(self, index: int, found: ResolvedColumns) -> list[SensorKey]:
        """Return the keys of the sensors of clients, under the quota type with this place."""
        names = found.names[found.row]
        codes = np.full(len(names), index)
        if (found.names & BY_USER).any():
            codes |= np.where(names & BY_USER, self._numbers_of_users(found.users), 0) << _TYPE_BITS
        if (found.names & BY_CLIENT_ID).any():
            numbers = np.where(names & BY_CLIENT_ID, _numbers(self._client_ids, found.client_ids), 0)
            codes |= numbers << (_TYPE_BITS + _NAME_BITS)
        keys: list[SensorKey] = codes.tolist()
        for place, text in found.sensor_texts().items():
            keys[place] = index, text
        return keys

    def key(self, index: int, tags: Tags | str) -> SensorKey:
        """Return the key of a sensor that counts under tags, or under the name of a group."""
        if isinstance(tags, str):
            return index, tags
        user = self._users.setdefault(tags[0], len(self._users))
        client_id = self._client_ids.setdefault(tags[1], len(self._client_ids))
        return index | user << _TYPE_BITS | client_id << (_TYPE_BITS + _NAME_BITS)

    def named(self, keys: Iterable[SensorKey]) -> Iterator[tuple[int, Tags | str]]:
        """Yield the quota type of each key, and its tags or text."""
        users, client_ids = list(self._users), list(self._client_ids)
        for key in keys:
            if isinstance(key, tuple):
                yield key
            else:
                names = key >> _TYPE_BITS
                yield key & _TYPE, (users[names & _NAME], client_ids[names >> _NAME_BITS])

    def _numbers_of_users(self, users: pa.Array) -> Int64s:
        encoded = users.dictionary_encode()
        written = pa.array([sanitize(user) for user in encoded.dictionary.to_pylist()], pa.string())
        found: Int64s = _numbers(self._users, written)[encoded.indices.to_numpy()]
        return found


def quota_type_of(key: SensorKey) -> int:
    """Return the place in `QUOTA_TYPES` of the quota type of a sensor."""
    return key[0] if isinstance(key, tuple) else key & _TYPE


def _numbers(known: dict[str, int], names: pa.Array) -> Int64s:
    """Return the number of each name; a name without one gets the next."""
    encoded = names.dictionary_encode()
    numbers = [known.setdefault(name, len(known)) for name in encoded.dictionary.to_pylist()]
    found: Int64s = np.array(numbers, np.int64)[encoded.indices.to_numpy()]
    return found

"""Numbers in place of the names of a sensor, as its key.

The key of a sensor that is counted under names of its clients is a number, made of the quota type and of a number for
each name. Others, such as those of groups, have a pair: the quota type and a text.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.pipeline.layout import Int32s, Int64s
from tidegate.pipeline.replay.resolved import BY_CLIENT_ID, BY_USER, ResolvedColumns
from tidegate.pipeline.replay.state.tables import FEW, with_room
from tidegate.quota.admin.entity import Tags
from tidegate.quota.admin.sanitizer import sanitize

__all__ = ["Clients", "NameNumbers", "SensorKey", "SensorKeys", "quota_type_of"]

SensorKey = int | tuple[int, str]
"""Key of a sensor: a number of `SensorKeys`, or a place in `QUOTA_TYPES` and a text."""

Clients = npt.NDArray[np.integer[Any]]

_TYPE_BITS, _NAME_BITS = 2, 30  # of a key, whose sign bit stays 0
_TYPE, _NAME = (1 << _TYPE_BITS) - 1, (1 << _NAME_BITS) - 1


class SensorKeys:
    """Numbers of users, sanitised, and of client ids, from 0; 0 stands for no name."""

    def __init__(self) -> None:
        self._users = NameNumbers()
        self._client_ids = NameNumbers()

    def __deepcopy__(self, memo: dict[int, object]) -> "SensorKeys":
        """Return the same object: a name keeps its number, so copies of a state can add names to one table."""
        return self

    def of(self, index: int, clients: Clients, found: ResolvedColumns) -> list[SensorKey]:
        """Return the keys of the sensors of clients, under the quota type with this place."""
        names = found.names[found.row]
        codes = np.full(len(names), index)
        if (found.names & BY_USER).any():
            users = self._users.of_clients(clients, found.users, sanitize)
            codes |= np.where(names & BY_USER, users, 0) << _TYPE_BITS
        if (found.names & BY_CLIENT_ID).any():
            client_ids = self._client_ids.of_clients(clients, found.client_ids)
            codes |= np.where(names & BY_CLIENT_ID, client_ids, 0) << (_TYPE_BITS + _NAME_BITS)
        keys: list[SensorKey] = codes.tolist()
        for place, text in found.sensor_texts().items():
            keys[place] = index, text
        return keys

    def key(self, index: int, tags: Tags | str) -> SensorKey:
        """Return the key of a sensor that counts under tags, or under the name of a group."""
        if isinstance(tags, str):
            return index, tags
        user, client_id = self._users.of_name(tags[0]), self._client_ids.of_name(tags[1])
        return index | user << _TYPE_BITS | client_id << (_TYPE_BITS + _NAME_BITS)

    def named(self, keys: Iterable[SensorKey]) -> Iterator[tuple[int, Tags | str]]:
        """Yield the quota type of each key, and its tags or text."""
        users, client_ids = self._users.names(), self._client_ids.names()
        for key in keys:
            if isinstance(key, tuple):
                yield key
            else:
                names = key >> _TYPE_BITS
                yield key & _TYPE, (users[names & _NAME], client_ids[names >> _NAME_BITS])


class NameNumbers:
    """Numbers of names, and which of them each client has: names of clients are looked up once."""

    def __init__(self) -> None:
        self._numbers = {"": 0}
        # The number of each client's name, plus one; 0 where the name has not been looked up.
        self._of_clients: Int32s = np.zeros(FEW, np.int32)

    def names(self) -> list[str]:
        """Return all names, by number."""
        return list(self._numbers)

    def of_name(self, name: str) -> int:
        """Return the number of a name; a name without one gets the next."""
        return self._numbers.setdefault(name, len(self._numbers))

    def of_clients(
        self, clients: Clients, names: pa.Array, written: Callable[[str], str] | None = None
    ) -> Int64s:
        """Return the number of the name of each client. written: returns the name as it is numbered."""
        self._of_clients = with_room(self._of_clients, int(clients.max(initial=-1)) + 1)
        new = np.flatnonzero(self._of_clients[clients] == 0)
        if len(new):
            encoded = names.take(pa.array(new)).dictionary_encode()
            texts = encoded.dictionary.to_pylist()
            numbers = [self.of_name(name) for name in (texts if written is None else map(written, texts))]
            self._of_clients[clients[new]] = 1 + np.array(numbers, np.int32)[encoded.indices.to_numpy()]
        found: Int64s = self._of_clients[clients].astype(np.int64) - 1
        return found


def quota_type_of(key: SensorKey) -> int:
    """Return the place in `QUOTA_TYPES` of the quota type of a sensor."""
    return key[0] if isinstance(key, tuple) else key & _TYPE

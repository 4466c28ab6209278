"""Names of clients as they are kept: a column of users and one of client ids, no Python objects."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.pipeline.read.survey import CLIENT_KEYS

__all__ = ["ClientNames", "Clients", "Names", "clients_of", "columns_of"]

Numbers = npt.NDArray[np.integer[Any]]
Ints = npt.NDArray[np.int64]

_NOBODY = pa.table([pa.array([], kind) for kind in CLIENT_KEYS.types], schema=CLIENT_KEYS)


class ClientNames(Protocol):
    """The clients of a partition by number, from 0."""

    def __len__(self) -> int: ...

    def __getitem__(self, client: int, /) -> tuple[str, str]:
        """Return user and client id."""


class Names:
    """The clients of one partition, by number from 0."""

    def __init__(self, users: pa.Array, client_ids: pa.Array) -> None:
        self._users = users
        self._client_ids = client_ids

    def __len__(self) -> int:
        """Return how many clients there are."""
        return len(self._users)

    def __getitem__(self, client: int) -> tuple[str, str]:
        """Return user and client id."""
        return self._users[client].as_py(), self._client_ids[client].as_py()

    def select(self, clients: Numbers) -> tuple[pa.Array, pa.Array]:
        """Return the users and the client ids of some clients."""
        places = pa.array(clients)
        return self._users.take(places), self._client_ids.take(places)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """The clients of several nodes by number, from 0: a node, a user and a client id each, no two alike.

    user, client_id: places in `users` and `client_ids`, of which no two are alike.
    """

    node_id: Ints
    user: Ints
    client_id: Ints
    users: pa.Array
    client_ids: pa.Array

    def __len__(self) -> int:
        """Return how many clients there are."""
        return len(self.node_id)

    def __getitem__(self, client: int) -> tuple[str, str]:
        """Return user and client id."""
        return self.users[int(self.user[client])].as_py(), self.client_ids[
            int(self.client_id[client])
        ].as_py()

    def select(self, numbers: Ints) -> "Clients":
        """Return some of the clients, under numbers from 0."""
        return Clients(
            node_id=self.node_id[numbers],
            user=self.user[numbers],
            client_id=self.client_id[numbers],
            users=self.users,
            client_ids=self.client_ids,
        )

    def columns(self) -> tuple[pa.Array, pa.Array]:
        """Return all users and client ids."""
        return self.users.take(pa.array(self.user)), self.client_ids.take(pa.array(self.client_id))


def clients_of(tables: Iterable[pa.Table]) -> tuple[Clients, Ints]:
    """Return the clients of tables with columns `CLIENT_KEYS`, and the number of that of each row."""
    found = pa.concat_tables([_NOBODY, *tables])
    node_id = found["node_id"].to_numpy()
    user, users = _numbered(found["user"])
    client_id, client_ids = _numbered(found["client_id"])
    _, node = np.unique(node_id, return_inverse=True)
    code = (node.reshape(-1) * len(users) + user) * len(client_ids) + client_id
    _, first, number = np.unique(code, return_index=True, return_inverse=True)
    clients = Clients(node_id=node_id, user=user, client_id=client_id, users=users, client_ids=client_ids)
    return clients.select(first), number.reshape(-1)


def columns_of(names: ClientNames, clients: Numbers) -> tuple[pa.Array, pa.Array]:
    """Return the users and the client ids of some clients."""
    if isinstance(names, Names):
        return names.select(clients)
    pairs = [names[client] for client in clients.tolist()]
    return pa.array([user for user, _ in pairs], pa.string()), pa.array(
        [name for _, name in pairs], pa.string()
    )


def _numbered(column: pa.ChunkedArray) -> tuple[Ints, pa.Array]:
    """Return names of rows as places in the names that there are, and these, none of them twice."""
    dictionaries = [chunk.dictionary for chunk in column.chunks]
    names = pa.concat_arrays(dictionaries).dictionary_encode()
    first = np.cumsum([0, *map(len, dictionaries)]).tolist()
    places = [at + chunk.indices.to_numpy() for at, chunk in zip(first, column.chunks, strict=False)]
    return names.indices.to_numpy().astype(np.int64)[np.concatenate(places)], names.dictionary

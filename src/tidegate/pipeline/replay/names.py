"""Names of clients as they are kept: a column of users and one of client ids, no Python objects."""

from typing import Any

import numpy.typing as npt
import pyarrow as pa

__all__ = ["Names"]


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

    def take(self, clients: npt.NDArray[Any]) -> tuple[pa.Array, pa.Array]:
        """Return the users and the client ids of some clients."""
        places = pa.array(clients)
        return self._users.take(places), self._client_ids.take(places)

"""Tags, sensors and limits of clients: of one client, and of many as columns.

Many clients differ only in their names. So the columns are a few rows, the index of each client's row, and the names.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.quota.admin.entity import QuotaEntity, Tags
from tidegate.quota.admin.sanitizer import sanitize

__all__ = ["BY_CLIENT_ID", "BY_USER", "NOT_BY_NAMES", "Resolved", "ResolvedColumns"]

Ints = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]

BY_USER, BY_CLIENT_ID = 1, 2
"""Bits of the names of a client that its tags have."""
NOT_BY_NAMES = 4
"""Value in place of these bits if the tags are not names of the client."""


class Resolved(NamedTuple):
    """A client's sensor, its bound per second, the largest fetch in bytes, and the entity whose quota applies.

    tags: by Kafka's own rules, else those of a callback as JSON. sensor: the key of the sensor among those of its quota
    type, which is the tags, or a text.
    """

    tags: Tags | str
    sensor: Tags | str
    bound: float
    cap_bytes: int
    entity: QuotaEntity | None


class ResolvedColumns(NamedTuple):
    """The fields of `Resolved` of several clients.

    rows: of the first client of several that differ in their names alone. row: the place in `rows`, by client.
    names: by place in `rows`, which names of the client its tags have: bits, or `NOT_BY_NAMES`.
    """

    users: pa.Array
    client_ids: pa.Array
    rows: Sequence[Resolved]
    row: Ints
    names: Ints

    @classmethod
    def of(cls, users: pa.Array, client_ids: pa.Array, rows: Sequence[Resolved]) -> "ResolvedColumns":
        """Return the columns of clients with a row each."""
        clients = zip(users.to_pylist(), client_ids.to_pylist(), strict=True)
        names = [_names(row.tags, *client) for row, client in zip(rows, clients, strict=True)]
        return cls(users, client_ids, rows, np.arange(len(rows)), np.array(names, np.int64))

    @property
    def bounds(self) -> Doubles:
        """Return the bound of each client."""
        return np.array([row.bound for row in self.rows], np.float64)[self.row]

    @property
    def caps_bytes(self) -> Ints:
        """Return the largest fetch of each client."""
        return np.array([row.cap_bytes for row in self.rows], np.int64)[self.row]

    @property
    def tags(self) -> list[Tags | str]:
        """Return the tags of each client."""
        names = self.names[self.row]
        users, client_ids = self.users.to_pylist(), self.client_ids.to_pylist()
        written = {name: sanitize(name) for name in set(users)}
        tags: list[Tags | str] = [
            (written[user] if by & BY_USER else "", client_id if by & BY_CLIENT_ID else "")
            for user, client_id, by in zip(users, client_ids, names.tolist(), strict=True)
        ]
        for place in np.flatnonzero(names == NOT_BY_NAMES).tolist():
            tags[place] = self.rows[self.row[place]].tags
        return tags

    def sensor_texts(self) -> dict[int, str]:
        """Return the keys of sensors that are texts, by the place of the client."""
        texts = {place: row.sensor for place, row in enumerate(self.rows) if isinstance(row.sensor, str)}
        places = np.flatnonzero(np.isin(self.row, list(texts))).tolist() if texts else ()
        return {place: texts[self.row[place].item()] for place in places}


def _names(tags: Tags | str, user: str, client_id: str) -> int:
    """Return which names of a client its tags have."""
    user_tag, client_id_tag = ("", "") if isinstance(tags, str) else tags
    names = BY_USER * bool(user_tag) | BY_CLIENT_ID * bool(client_id_tag)
    is_own = user_tag in ("", sanitize(user)) and client_id_tag in ("", client_id)
    return names if is_own and not isinstance(tags, str) else NOT_BY_NAMES

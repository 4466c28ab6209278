"""Requests that arrived before their client's throttle was over, summed by Arrow for jobs on Spark and in this process.

A throttled connection is muted. The broker records how long before the end of the mute the client's next bytes arrived
(`early_ms`, in the row of that next request). A client that waits for its throttle time sends after the mute: its
`early_ms` is null, or 0 if the broker itself was late.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipeline.read.chunks import Chunk, read_tables
from tidegate.pipeline.read.columns import THROTTLES, codes_of, name_places, numbers_of
from tidegate.pipeline.rollup.sums import (
    check_sums,
    compact,
    grouped,
    key_numbers,
    name_numbers,
    pieces,
    plain,
)
from tidegate.pipeline.schemas import EARLY_BUCKETS, OBEDIENCE_BY_CLIENT

__all__ = [
    "CLIENT_KEYS",
    "SOFTWARE_KEYS",
    "chunk_obedience",
    "clients_by_software",
    "obedience_by_client_table",
    "obedience_by_software_table",
    "software_together",
]

SOFTWARE_KEYS = ("client_software", "client_software_version")
CLIENT_KEYS = (*SOFTWARE_KEYS, "user", "client_id")

_COLUMNS = ("kind", *CLIENT_KEYS, "observed_only", "early_ms", *THROTTLES)

_CLIENT_SUMS: Mapping[str, str] = {
    **dict.fromkeys(("requests", "throttled_requests", "early_requests"), "sum"),
    "longest_early_ms": "max",
    **dict.fromkeys(EARLY_BUCKETS, "sum"),
}
"""Aggregates over the rows of a client."""
_SOFTWARE_SUMS: Mapping[str, str] = {
    **dict.fromkeys(("clients", "throttled_clients", "early_clients"), "sum"),
    **_CLIENT_SUMS,
}
"""Aggregates over the clients of a library."""

Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def chunk_obedience(chunk: Chunk) -> list[pa.Table]:
    """Return a row per client of each part of a row group, as `compact` tables. Raises `UsageFilesError`."""
    return [compact(_by_client(table)) for table in read_tables(chunk, _COLUMNS)]


def _by_client(table: pa.Table) -> pa.Table:
    """Return a row per client out of rows of the usage record."""
    table = table.filter(pc.equal(table["kind"].cast(pa.string()), "request"))
    columns = [name_places(table, name) for name in CLIENT_KEYS]
    client = key_numbers(places for places, _ in columns)
    first = np.zeros(int(client.max(initial=-1)) + 1, np.int64)
    first[client] = np.arange(len(client))
    early_ms = numbers_of(table, "early_ms")
    throttle_ms = np.maximum.reduce([numbers_of(table, name) for name in THROTTLES])
    is_early = early_ms > 0
    bucket = np.searchsorted([*EARLY_BUCKETS.values()], early_ms)
    longest_ms = np.zeros(len(first), np.int64)
    np.maximum.at(longest_ms, client[is_early], early_ms[is_early])

    def count(where: Flags) -> Int64s:
        return np.bincount(client[where], minlength=len(first))

    return pa.table(
        {
            **{
                name: names.take(pa.array(places[first]))
                for name, (places, names) in zip(CLIENT_KEYS, columns, strict=True)
            },
            "requests": np.bincount(client, minlength=len(first)),
            "throttled_requests": count((throttle_ms > 0) & ~numbers_of(table, "observed_only")),
            "early_requests": count(is_early),
            "longest_early_ms": longest_ms,
            **{name: count((bucket == place) & is_early) for place, name in enumerate(EARLY_BUCKETS)},
        }
    )


def obedience_by_client_table(parts: pa.Table, *, in_order: bool = True) -> Iterator[pa.Table]:
    """Yield one row per client from the rows of all chunks: sorted, some at a time. in_order: False: in any order."""
    parts = compact(parts)
    number = key_numbers(
        name_numbers(parts[name]) if in_order else 1 + codes_of(parts[name]) for name in CLIENT_KEYS
    )
    for places in pieces(number, np.zeros(len(parts), np.int64)):
        some = parts.take(places)
        check_sums(some, _CLIENT_SUMS)
        first = np.flatnonzero(np.diff(number[places.to_numpy()], prepend=-1))
        columns: dict[str, Any] = {name: some[name].take(pa.array(first)) for name in CLIENT_KEYS}
        for name, function in _CLIENT_SUMS.items():
            add = np.add if function == "sum" else np.maximum
            columns[name] = add.reduceat(some[name].to_numpy().astype(np.int64), first)
        yield plain(pa.table(columns), OBEDIENCE_BY_CLIENT)


def obedience_by_software_table(by_client: pa.Table) -> pa.Table:
    """Return one row per client library and version from the rows of all clients, sorted."""
    counted = {
        "clients": np.ones(len(by_client), np.int64),
        "throttled_clients": by_client["throttled_requests"].to_numpy() > 0,
        "early_clients": by_client["early_requests"].to_numpy() > 0,
    }
    for name, values in counted.items():
        by_client = by_client.append_column(name, pa.array(values.astype(np.int64)))
    return software_together(by_client)


def clients_by_software(parts: pa.Table) -> Iterator[pa.Table]:
    """Yield rows per client library and version, to be combined, from the rows of the clients of all chunks."""
    return map(obedience_by_software_table, obedience_by_client_table(parts, in_order=False))


def software_together(parts: pa.Table) -> pa.Table:
    """Return one row per client library and version, sorted."""
    found = grouped(parts, SOFTWARE_KEYS, _SOFTWARE_SUMS)
    return found.sort_by([(name, "ascending") for name in SOFTWARE_KEYS])

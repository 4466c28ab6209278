"""Survey of a chunk: the kinds of its rows, its clients, and the events other than requests."""

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.layout import MUTATION_ROW, NETWORK_ROW, REQUEST_ROW
from tidegate.pipeline.read.answers import are_repeated
from tidegate.pipeline.read.chunks import (
    Arrived,
    Bundle,
    Chunk,
    OpenChunk,
    looked_at,
    opened_chunk,
    read_chunk,
    read_tables,
)
from tidegate.pipeline.read.columns import (
    Numbers,
    codes_of,
    distinct,
    is_there,
    name_places,
    numbers_of,
    numbers_of_names,
    used_codes,
)
from tidegate.pipeline.read.control_events import (
    CONTROL_COLUMNS,
    CONTROL_KINDS,
    NEXT_TS_MS,
    NO_EVENTS,
    TAGS_COLUMNS,
    ControlEvents,
    control_events,
)
from tidegate.pipeline.read.runs import list_runs
from tidegate.pipeline.read.snapshots import SENSOR_COLUMNS
from tidegate.pipeline.read.timeline import NO_SWEEPS, SWEEP_COLUMNS, SWEEP_KIND, Run, Sweeps
from tidegate.usage.columns import KINDS

__all__ = [
    "CLIENT_COLUMNS",
    "CLIENT_KEYS",
    "CONTROL",
    "SNAPSHOT",
    "SWEEP",
    "TAGS",
    "Survey",
    "check_kinds",
    "clients_of",
    "control_of",
    "read_sensors",
    "row_kinds",
    "survey_chunk",
]

CONTROL, _PASSED_BY, TAGS, SNAPSHOT, _UNKNOWN, SWEEP = -1, -2, -3, -4, -5, -6
_KIND_CODES = {
    **dict.fromkeys(KINDS, _PASSED_BY),
    "request": REQUEST_ROW,
    "network": NETWORK_ROW,
    "mutation": MUTATION_ROW,
    "forwarded": REQUEST_ROW,
    **dict.fromkeys(CONTROL_KINDS, CONTROL),
    "tags": TAGS,
    "snapshot": SNAPSHOT,
    SWEEP_KIND: SWEEP,
}
_NAME = pa.dictionary(pa.int32(), pa.string())
CLIENT_KEYS = pa.schema([("node_id", pa.int64()), ("user", _NAME), ("client_id", _NAME)])
"""Clients as columns: a client is a node, a user and a client id."""
CLIENT_COLUMNS = ("kind", "node_id", "user", "client_id")
_TAGS_KEYS = ("node_id", "user", "client_id", "quota_key")


def row_kinds(table: pa.Table) -> Numbers:
    """Return the kernel's number for the kind of each row; below 0 for kinds that the kernel does not process."""
    return numbers_of_names(table, "kind", lambda name: _KIND_CODES.get(name, _UNKNOWN), np.int8)


def check_kinds(table: pa.Table, path: str) -> None:
    """Raise `UsageFilesError` where a row of `path` is of a kind that is none of the usage record."""
    unknown = np.flatnonzero(numbers_of_names(table, "kind", lambda name: name not in _KIND_CODES, np.bool_))
    if len(unknown):
        kind = table["kind"][int(unknown[0])].as_py()
        raise UsageFilesError(
            f"unknown kind {kind!r} in {len(unknown)} rows of {path!r}",
            hint="a later version of Tidegate or another program wrote the file",
        )


class Survey(NamedTuple):
    """The clients of a chunk, how many rows each has, and the events that are no requests.

    keys: columns `CLIENT_KEYS`; its rows have no order, but always the same one.
    control: all events but sweeps. Of `tags` rows, if requested, only those that state something new. Of a snapshot,
    only the first and the last row. stated: by node, the first and last `seq` of all snapshot rows in this chunk.
    runs: the ranges of `seq` in this chunk.
    connections: if requested, the distinct pairs of a client, by its place, and one of its connections.
    """

    keys: pa.Table
    rows: Numbers
    control: ControlEvents
    sweeps: Sweeps
    stated: dict[int, tuple[int, int]]
    runs: list[Run]
    connections: Numbers  # [pair, (place, connection id)]


def survey_chunk(
    chunk: Chunk | Bundle | Arrived, *, with_connections: bool = False, with_answers: bool = False
) -> Survey:
    """Return the survey of a chunk. with_answers: include the answers of a quota callback.

    Raises `UsageFilesError` for a kind of row that is none of the usage record.
    """
    return looked_at(chunk, partial(_survey, with_connections=with_connections, with_answers=with_answers))


def _survey(chunk: Chunk | Bundle | Arrived, *, with_connections: bool, with_answers: bool) -> Survey:
    also = (*["connection_id"] * with_connections, *TAGS_COLUMNS * with_answers)
    with opened_chunk(chunk, (*CLIENT_COLUMNS, *CONTROL_COLUMNS, *also)) as opened:
        return _survey_opened(opened, with_connections=with_connections, with_answers=with_answers)


def _survey_opened(chunk: OpenChunk | Arrived, *, with_connections: bool, with_answers: bool) -> Survey:
    table = read_chunk(chunk, CLIENT_COLUMNS)
    kinds = row_kinds(table)
    check_kinds(table, chunk.path)
    place, keys = clients_of(table.filter(pa.array(kinds >= 0)))
    answers = _news(chunk, kinds) if with_answers and (kinds == TAGS).any() else np.zeros(len(kinds), bool)
    wanted = (kinds == CONTROL) | answers | _at_ends(chunk, kinds == SNAPSHOT)
    control = control_of(chunk, wanted, with_tags=bool(answers.any()))
    connections = np.zeros((0, 2), np.int64)
    if with_connections:
        connection_ids = numbers_of(read_chunk(chunk, ("connection_id",)), "connection_id")[kinds >= 0]
        connections = _pairs(place, connection_ids)
    rows = np.bincount(place, minlength=len(keys))
    stated = _stated(chunk, kinds == SNAPSHOT)
    sweeps = _sweeps(chunk, kinds == SWEEP)
    return Survey(keys, rows, control, sweeps, stated, list_runs(chunk), connections)


def control_of(chunk: OpenChunk | Arrived, wanted: Numbers, *, with_tags: bool = False) -> ControlEvents:
    """Return some rows of a chunk as control events. with_tags: there are `tags` rows among them.

    A gap has the time of the row after it, null where that is not in this chunk.
    """
    if not wanted.any():
        return NO_EVENTS
    columns = (*CONTROL_COLUMNS, *TAGS_COLUMNS * with_tags)
    found = _rows_of(chunk, columns, wanted)
    gaps = np.flatnonzero(pc.equal(found["kind"].cast(pa.string()), "gap").to_numpy())
    if len(gaps):
        found = found.append_column(NEXT_TS_MS, _next_times(chunk, found, gaps))
    return control_events(found)


def _rows_of(chunk: OpenChunk | Arrived, columns: Iterable[str], wanted: Numbers) -> pa.Table:
    """Return columns of some rows of a chunk, at least one. Rows after the last of them are not read."""
    found, first, last = [], 0, np.flatnonzero(wanted)[-1]
    for table in read_tables(chunk, [*columns]):
        here = wanted[first : first + len(table)]
        first += len(table)
        if here.any():
            found.append(table.filter(pa.array(here)))
        if first > last:
            break
    return pa.concat_tables(found).unify_dictionaries().combine_chunks()


def _next_times(chunk: OpenChunk | Arrived, found: pa.Table, gaps: Numbers) -> pa.Array:
    """Return for each gap the time of its node's next row; null for other rows, and if that row is in another chunk."""
    table = read_chunk(chunk, ("node_id", "seq", "ts_ms"))
    node_id, seq, ts_ms = (numbers_of(table, name) for name in ("node_id", "seq", "ts_ms"))
    of_node, of_seq = numbers_of(found, "node_id"), numbers_of(found, "seq")
    is_here, next_ts_ms = np.zeros(len(found), bool), np.zeros(len(found), np.int64)
    for node in np.unique(of_node[gaps]):
        mine, its = gaps[of_node[gaps] == node], np.flatnonzero(node_id == node)
        order = its[np.argsort(seq[its], kind="stable")]
        after = np.searchsorted(seq[order], of_seq[mine], side="right")
        is_here[mine] = after < len(order)
        next_ts_ms[mine] = ts_ms[order[np.minimum(after, len(order) - 1)]]
    return pa.array(next_ts_ms, mask=~is_here)


def read_sensors(
    chunks: Iterable[tuple[Chunk | Bundle | Arrived, Survey]],
    *,
    node_id: int,
    after_seq: int,
    before_seq: int,
) -> list[dict[str, Any]]:
    """Return the rows of a snapshot of one node between two `seq`, in order (`SENSOR_COLUMNS`)."""
    found: list[dict[str, Any]] = []
    for chunk, survey in chunks:
        first, last = survey.stated.get(node_id, (0, -1))
        if first < before_seq and last > after_seq:
            is_one = (pc.field("kind") == "snapshot") & (pc.field("node_id") == node_id)
            is_between = (pc.field("seq") > after_seq) & (pc.field("seq") < before_seq)
            table = read_chunk(chunk, ("kind", "node_id", *SENSOR_COLUMNS)).filter(is_one & is_between)
            found += table.select(list(SENSOR_COLUMNS)).to_pylist()
    return sorted(found, key=lambda row: row["seq"])


def clients_of(table: pa.Table) -> tuple[Numbers, pa.Table]:
    """Return the place of each row's client, and the clients. The result depends on the rows only."""
    user, users = name_places(table, "user")
    client_id, client_ids = name_places(table, "client_id")
    nodes, node = np.unique(numbers_of(table, "node_id"), return_inverse=True)
    code = (node * len(users) + user) * len(client_ids) + client_id
    used, place = used_codes(code, len(nodes) * len(users) * len(client_ids))
    rest, client_place = np.divmod(used, len(client_ids))
    node_place, user_place = np.divmod(rest, len(users))
    columns = [pa.array(nodes[node_place], pa.int64())]
    for names, of_name in ((users, user_place), (client_ids, client_place)):
        columns.append(pa.DictionaryArray.from_arrays(pa.array(of_name, pa.int32()), names))
    return place, pa.table(columns, schema=CLIENT_KEYS)


def _at_ends(chunk: OpenChunk | Arrived, is_snapshot: Numbers) -> Numbers:
    """Return which rows begin or end a snapshot: they have no sensor."""
    if not is_snapshot.any():
        return is_snapshot
    return is_snapshot & ~is_there(read_chunk(chunk, ("quota_user",)), "quota_user")


def _news(chunk: OpenChunk | Arrived, kinds: Numbers) -> Numbers:
    """Return which `tags` rows state something new, compared with the rows before them since the last missing row."""
    table = read_chunk(chunk, (*_TAGS_KEYS, "seq", "callback", "tags", "quota_value"))
    node_id, seq = numbers_of(table, "node_id"), numbers_of(table, "seq")
    order = np.lexsort((seq, node_id))
    # After missing rows or a control event, earlier answers may not hold any more (decision 0080). Each such place
    # begins an era, and a row repeats only rows of its own era.
    is_break = np.diff(seq[order], prepend=-1) != 1
    is_break[1:] |= np.diff(node_id[order]) != 0
    era = np.cumsum(is_break | (kinds[order] == CONTROL))
    places = order[kinds[order] == TAGS]
    era = era[kinds[order] == TAGS]
    of = {name: codes_of(table[name])[places] for name in (*_TAGS_KEYS[1:], "callback", "tags")}
    limit, has_limit = numbers_of(table, "quota_value")[places], is_there(table, "quota_value")[places]
    to_client = are_repeated(
        (era, of["user"], of["client_id"], of["quota_key"]), (of["tags"], of["callback"])
    )
    # Limits are compared by their bits, because NaN is not equal to itself.
    of_tags = are_repeated((era, of["quota_key"], of["tags"]), (limit.view(np.int64), has_limit))
    news = np.zeros(len(kinds), bool)
    news[places] = ~(to_client & of_tags)
    return news


def _sweeps(chunk: OpenChunk | Arrived, is_sweep: Numbers) -> Sweeps:
    """Return the sweeps of idle sensors."""
    if not is_sweep.any():
        return NO_SWEEPS
    table = read_chunk(chunk, SWEEP_COLUMNS)
    return np.stack([numbers_of(table, name)[is_sweep].astype(np.int64) for name in SWEEP_COLUMNS], axis=1)


def _stated(chunk: OpenChunk | Arrived, is_snapshot: Numbers) -> dict[int, tuple[int, int]]:
    """Return the first and last `seq` of all rows of snapshots, by node."""
    if not is_snapshot.any():
        return {}
    table = read_chunk(chunk, ("node_id", "seq"))
    node_id, seq = (numbers_of(table, name)[is_snapshot] for name in ("node_id", "seq"))
    of_nodes = ((node, seq[node_id == node]) for node in np.unique(node_id).tolist())
    return {node: (int(of_node.min()), int(of_node.max())) for node, of_node in of_nodes}


def _pairs(place: Numbers, connection_ids: Numbers) -> Numbers:
    """Return which pairs of a client's place and a connection occur, each once."""
    found, number = np.unique(connection_ids, return_inverse=True)
    both = distinct(place * len(found) + number)
    return np.stack([both // max(1, len(found)), found[both % max(1, len(found))]], axis=1)

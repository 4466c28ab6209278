"""Chunks of usage files: what one task reads at once. Read with Arrow, straight into numbers.

A chunk is one row group of one file. Names stay dictionary-encoded and are never handled row by row; what the
kernel takes is computed with whole columns.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.config.locations import Uri, location
from tidegate.pipeline.errors import DAMAGED_HINT, FilesystemError, UsageFilesError, VanishedFileError
from tidegate.pipeline.filesystems import opened_parquet, reason_of
from tidegate.pipeline.layout import (
    EXEMPT,
    FETCH_CHARGE,
    MUTATION_ROW,
    NETWORK_ROW,
    OBSERVED,
    PRODUCE_CHARGE,
    REJECTED,
    REQUEST_ROW,
    STRICT,
    Rows,
)
from tidegate.pipeline.read.answers import are_repeated
from tidegate.pipeline.read.snapshots import SENSOR_COLUMNS
from tidegate.pipeline.read.software import client_bits
from tidegate.pipeline.read.timeline import (
    CONTROL_COLUMNS,
    CONTROL_KINDS,
    NEXT_TS_MS,
    NO_SWEEPS,
    SWEEP_COLUMNS,
    SWEEP_KIND,
    TAGS_COLUMNS,
    Run,
    Sweeps,
)
from tidegate.quota.managers.mutation import STRICT_SINCE
from tidegate.usage.arrow import whole_table
from tidegate.usage.columns import KINDS, SEQ_PER_US

__all__ = [
    "ALL_COLUMNS",
    "CLIENT_KEYS",
    "Arrived",
    "Chunk",
    "OpenChunk",
    "Survey",
    "add_next_times",
    "check_kinds",
    "check_rising",
    "in_order",
    "list_runs",
    "opened_chunk",
    "read_chunk",
    "read_rows",
    "read_sensors",
    "survey_chunk",
]

_NAME = pa.dictionary(pa.int32(), pa.string())
CLIENT_KEYS = pa.schema([("node_id", pa.int64()), ("user", _NAME), ("client_id", _NAME)])
"""Clients as columns: a client is a node, a user and a client id."""

_CONTROL, _PASSED_BY, _TAGS, _SNAPSHOT, _UNKNOWN, _SWEEP = -1, -2, -3, -4, -5, -6
_KIND_CODES = {
    **dict.fromkeys(KINDS, _PASSED_BY),
    "request": REQUEST_ROW,
    "network": NETWORK_ROW,
    "mutation": MUTATION_ROW,
    "forwarded": REQUEST_ROW,
    **dict.fromkeys(CONTROL_KINDS, _CONTROL),
    "tags": _TAGS,
    "snapshot": _SNAPSHOT,
    SWEEP_KIND: _SWEEP,
}
_CLIENT_COLUMNS = ("kind", "node_id", "user", "client_id")
_SOFTWARE = "client_software"
_NAMES = ("kind", "user", "client_id", _SOFTWARE)
_THROTTLES = ("produce_throttle_ms", "fetch_throttle_ms", "request_throttle_ms", "mutation_throttle_ms")
_NUMBER_COLUMNS = (
    "ts_ms",
    "seq",
    "api_key",
    "api_version",
    "connection_id",
    "produce_bytes",
    "fetch_bytes",
    "handler_ns",
    "network_ns",
    "mutations",
    "rejected",
    "exempt",
    "strict",
    "observed_only",
    "forwarded",
    *_THROTTLES,
)
_MAX_BYTES = 2**31 - 1  # the protocol's length fields are 32 bits
_MAX_NS = 2**53  # a hundred days; doubles hold it exactly
_MAX_MS = 2**53
_LIMITS = {"ts_ms": _MAX_MS, "amount": _MAX_BYTES, "handler_ns": _MAX_NS, "network_ns": _MAX_NS}
_NO_CONNECTION = -1
_RUN_COLUMNS = ("node_id", "seq", "ts_ms")
_TAGS_KEYS = ("node_id", "user", "client_id", "quota_key")
_IMPORTED_WITHIN_MS = (
    1000  # `seq` of an imported row is this close to its time, that of `tidegate serve` never
)
_ASKING = list(STRICT_SINCE)  # APIs whose answers tell the throttle time of the permits that they ask for
_BATCH_ROWS = 1 << 17
_FEW_ROWS = 1 << 14  # are read at once: each reading of a file takes longer than they do
_LARGEST_TABLE = 1 << 22  # pairs of names that are looked up in an array

ALL_COLUMNS = tuple(
    dict.fromkeys(
        ("kind", "node_id", *_NAMES, *_NUMBER_COLUMNS, *CONTROL_COLUMNS, *TAGS_COLUMNS, *SENSOR_COLUMNS)
    )
)
"""What `survey_chunk`, `read_rows` and `read_sensors` look at."""

Numbers = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Chunk:
    """One row group of a file."""

    path: str
    row_group: int
    size_bytes: int = 0
    """What it takes uncompressed."""
    rows: int = 0


@dataclass(frozen=True, slots=True)
class OpenChunk:
    """A chunk whose file is open, so that what is read of it piece by piece takes one opening.

    group: what the footer says of it. places: of the columns in the file, by name.
    """

    path: str
    row_group: int
    file: pq.ParquetFile
    group: pq.RowGroupMetaData
    places: Mapping[str, int]

    def column(self, name: str) -> pq.ColumnChunkMetaData | None:
        """Return what the footer says of a column; None: it says nothing."""
        place = self.places.get(name, self.group.num_columns)
        found = self.group.column(place) if place < self.group.num_columns else None
        return found if found is not None and found.path_in_schema == name else None


@dataclass(frozen=True, slots=True)
class Arrived:
    """Rows in memory that are read as a chunk is: whole rows of the usage record; `path` names them in errors."""

    table: pa.Table
    path: str


class Survey(NamedTuple):
    """The clients of a chunk, how many rows each has, and the events that are no requests.

    keys: columns `CLIENT_KEYS`; its rows have no order, but always the same one.
    control: all but sweeps, rows of `CONTROL_COLUMNS`. Of `tags` rows, if they were asked for, those that say what is
    not known, with `TAGS_COLUMNS`. Of a snapshot there are the first and the last row. stated: the first and last `seq`
    of all its rows that are here, by node. runs: which rows are there.
    connections: if they were asked for, the pairs of a client, by its place, and a connection of its, each once.
    """

    keys: pa.Table
    rows: Numbers
    control: list[dict[str, Any]]
    sweeps: Sweeps
    stated: dict[int, tuple[int, int]]
    runs: list[Run]
    connections: Numbers  # [pair, (place, connection id)]


@contextmanager
def opened_chunk(chunk: Chunk | Arrived, columns: Iterable[str]) -> Iterator[OpenChunk | Arrived]:
    """Give a chunk to read these columns from; few rows are read at once. Raises `UsageFilesError`."""
    if isinstance(chunk, Arrived):
        yield chunk
        return
    with _opened(chunk.path) as file:
        places = {name: place for place, name in enumerate(file.schema_arrow.names)}
        opened = OpenChunk(
            chunk.path, chunk.row_group, file, file.metadata.row_group(chunk.row_group), places
        )
        is_small = opened.group.num_rows <= _FEW_ROWS
        yield Arrived(read_chunk(opened, [*dict.fromkeys(columns)]), chunk.path) if is_small else opened


def survey_chunk(
    chunk: Chunk | Arrived, *, with_connections: bool = False, with_answers: bool = False
) -> Survey:
    """Look at what a chunk holds. with_answers: what a quota callback said is wanted, too.

    Raises `UsageFilesError` for a kind of row that is none of the usage record.
    """
    also = (*["connection_id"] * with_connections, *TAGS_COLUMNS * with_answers)
    with opened_chunk(chunk, (*_CLIENT_COLUMNS, *CONTROL_COLUMNS, *also)) as opened:
        return _survey(opened, with_connections=with_connections, with_answers=with_answers)


def _survey(chunk: OpenChunk | Arrived, *, with_connections: bool, with_answers: bool) -> Survey:
    table = read_chunk(chunk, _CLIENT_COLUMNS)
    kinds = _kinds(table)
    check_kinds(table, chunk.path)
    place, keys = _clients(table.filter(pa.array(kinds >= 0)))
    control: list[dict[str, Any]] = []
    answers = _news(chunk, kinds) if with_answers and (kinds == _TAGS).any() else np.zeros(len(kinds), bool)
    wanted = (kinds == _CONTROL) | answers | _at_ends(chunk, kinds == _SNAPSHOT)
    if wanted.any():
        columns = (*CONTROL_COLUMNS, *(TAGS_COLUMNS if answers.any() else ()))
        control = read_chunk(chunk, columns).filter(pa.array(wanted)).to_pylist()
        add_next_times(chunk, control)
    connections = np.zeros((0, 2), np.int64)
    if with_connections:
        connection_ids = _plain(read_chunk(chunk, ("connection_id",)), "connection_id")[kinds >= 0]
        connections = _pairs(place, connection_ids)
    rows = np.bincount(place, minlength=len(keys))
    stated = _stated(chunk, kinds == _SNAPSHOT)
    sweeps = _sweeps(chunk, kinds == _SWEEP)
    return Survey(keys, rows, control, sweeps, stated, list_runs(chunk), connections)


def read_sensors(
    chunks: Iterable[tuple[Chunk | Arrived, Survey]], *, node_id: int, after_seq: int, before_seq: int
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


def read_rows(chunk: Chunk | Arrived, numbers: Numbers, *, with_software: bool = False) -> Iterator[Rows]:
    """Yield the rows of a chunk in batches, each in order of `seq`.

    numbers: of the clients, in the order of `survey_chunk`. with_software: say in their flags how clients send.
    Raises `UsageFilesError` for impossible rows.
    """
    names = (*_CLIENT_COLUMNS, *[_SOFTWARE] * with_software)
    with opened_chunk(chunk, (*names, *_NUMBER_COLUMNS)) as opened:
        yield from _rows_of(opened, numbers, names)


def _rows_of(chunk: OpenChunk | Arrived, numbers: Numbers, name_columns: Sequence[str]) -> Iterator[Rows]:
    names = read_chunk(chunk, name_columns)
    kinds = _kinds(names)
    known = kinds >= 0
    place, keys = _clients(names.filter(pa.array(known)))
    if len(keys) != len(numbers):
        raise UsageFilesError(f"{chunk.path!r} changed while it was read", hint="run again")
    client = np.zeros(len(kinds), np.int32)
    client[known] = numbers[place]
    sending = _client_bits(names)
    first = 0
    for table in _number_batches(chunk):
        here = slice(first, first + len(table))
        first = here.stop
        if not known[here].all():
            table = table.filter(pa.array(known[here]))
        rows = _rows(table, kinds[here][known[here]])
        rows = rows._replace(client=client[here][known[here]], flags=rows.flags | sending[here][known[here]])
        _check(rows, chunk)
        yield in_order(rows)


def check_rising(seq: Numbers, *, after: int, node_id: int) -> None:
    """Raise `UsageFilesError` where a row of a node is not after the one before, or the first not after `after`."""
    steps = np.diff(seq, prepend=after)
    if not (steps > 0).all():
        twice = int(seq[int(np.argmax(steps <= 0))])
        raise UsageFilesError(
            f"seq {twice} of node {node_id} occurs twice",
            hint="a file was given twice, or two nodes have one id",
        )


def in_order(rows: Rows) -> Rows:
    """Return the rows in order of `seq`."""
    if not (np.diff(rows.seq) < 0).any():
        return rows
    order = np.argsort(rows.seq, kind="stable")
    return Rows._make(column[order] for column in rows)


def read_chunk(chunk: Chunk | OpenChunk | Arrived, columns: Sequence[str]) -> pa.Table:
    """Return columns of a chunk, names dictionary-encoded. Raises `UsageFilesError` where it cannot be read."""
    if isinstance(chunk, Chunk):
        with opened_chunk(chunk, columns) as opened:
            return read_chunk(opened, columns)
    if isinstance(chunk, Arrived):
        table = chunk.table.select(list(columns))
    else:
        table = _checked(whole_table(_read_columns(chunk, columns), columns), chunk.path)
    return table.unify_dictionaries().combine_chunks()


def _checked(table: pa.Table, path: str) -> pa.Table:
    """Return the table. Raises `UsageFilesError` where it has nulls in columns that say which row it is."""
    for name in _RUN_COLUMNS:
        if name in table.column_names and table[name].null_count:
            raise UsageFilesError(
                f"{table[name].null_count} rows of {path!r} have no {name}", hint=DAMAGED_HINT
            )
    return table


def _read_columns(chunk: OpenChunk, columns: Sequence[str]) -> pa.Table:
    """Return columns of a chunk; those that the footer says are all null are not read: in a small file most are."""
    wanted = [name for name in columns if name in chunk.places]
    read = [name for name in wanted if not _is_null(chunk, name)]
    table = chunk.file.read_row_group(chunk.row_group, columns=read, use_threads=False)
    if len(read) == len(wanted):
        return table.select(wanted)
    schema = chunk.file.schema_arrow
    found = dict(zip(table.column_names, table.columns, strict=True))
    types = {name: schema.field(chunk.places[name]).type for name in wanted if name not in found}
    return pa.table(
        {
            name: found[name] if name in found else pa.nulls(chunk.group.num_rows, types[name])
            for name in wanted
        }
    )


def _is_null(chunk: OpenChunk, name: str) -> bool:
    column = chunk.column(name)
    found = None if column is None else column.statistics
    return found is not None and found.has_null_count and found.null_count == chunk.group.num_rows


def _at_ends(chunk: OpenChunk | Arrived, is_snapshot: Numbers) -> Numbers:
    """Return which rows begin or end a snapshot: those of no sensor."""
    if not is_snapshot.any():
        return is_snapshot
    return is_snapshot & ~_has(read_chunk(chunk, ("quota_user",)), "quota_user")


def _news(chunk: OpenChunk | Arrived, kinds: Numbers) -> Numbers:
    """Return which `tags` rows say what those before them in this chunk did not, since rows were missing."""
    table = read_chunk(chunk, (*_TAGS_KEYS, "seq", "callback", "tags", "quota_value"))
    node_id, seq = _plain(table, "node_id"), _plain(table, "seq")
    order = np.lexsort((seq, node_id))
    is_break = np.diff(seq[order], prepend=-1) != 1
    is_break[1:] |= np.diff(node_id[order]) != 0
    era = np.cumsum(is_break | (kinds[order] == _CONTROL))
    places = order[kinds[order] == _TAGS]
    era = era[kinds[order] == _TAGS]
    of = {name: _codes(table, name)[places] for name in (*_TAGS_KEYS[1:], "callback", "tags")}
    limit, has_limit = _plain(table, "quota_value")[places], _has(table, "quota_value")[places]
    to_client = are_repeated(
        (era, of["user"], of["client_id"], of["quota_key"]), (of["tags"], of["callback"])
    )
    of_tags = are_repeated((era, of["quota_key"], of["tags"]), (limit.view(np.int64), has_limit))
    news = np.zeros(len(kinds), bool)
    news[places] = ~(to_client & of_tags)
    return news


def _codes(table: pa.Table, column: str) -> Numbers:
    """Return a number for each row that is the same where the text is."""
    found = table[column].combine_chunks()
    if not pa.types.is_dictionary(found.type):
        found = found.dictionary_encode()
    codes: Numbers = pc.fill_null(found.indices, -1).to_numpy(zero_copy_only=False)
    return codes


def _sweeps(chunk: OpenChunk | Arrived, is_sweep: Numbers) -> Sweeps:
    """Return the sweeps of idle sensors."""
    if not is_sweep.any():
        return NO_SWEEPS
    table = read_chunk(chunk, SWEEP_COLUMNS)
    return np.stack([_plain(table, name)[is_sweep].astype(np.int64) for name in SWEEP_COLUMNS], axis=1)


def _stated(chunk: OpenChunk | Arrived, is_snapshot: Numbers) -> dict[int, tuple[int, int]]:
    """Return the first and last `seq` of all rows of snapshots, by node."""
    if not is_snapshot.any():
        return {}
    table = read_chunk(chunk, ("node_id", "seq"))
    node_id, seq = (_plain(table, name)[is_snapshot] for name in ("node_id", "seq"))
    of_nodes = ((node, seq[node_id == node]) for node in np.unique(node_id).tolist())
    return {node: (int(of_node.min()), int(of_node.max())) for node, of_node in of_nodes}


def check_kinds(table: pa.Table, path: str) -> None:
    """Raise `UsageFilesError` where a row of `path` is of a kind that is none of the usage record."""
    unknown = np.flatnonzero(_kinds(table) == _UNKNOWN)
    if len(unknown):
        kind = table["kind"][int(unknown[0])].as_py()
        raise UsageFilesError(
            f"kind {kind!r} of {len(unknown)} rows of {path!r} is not known here",
            hint="the file is of a later version of Tidegate, or of something else",
        )


def add_next_times(chunk: OpenChunk | Arrived, control: list[dict[str, Any]]) -> None:
    """Add to each gap the time of the row after it; None where that is not in this chunk."""
    gaps = [event for event in control if event["kind"] == "gap"]
    if not gaps:
        return
    table = read_chunk(chunk, ("seq", "ts_ms"))
    seq, ts_ms = _plain(table, "seq"), _plain(table, "ts_ms")
    order = np.argsort(seq, kind="stable")
    seq, ts_ms = seq[order], ts_ms[order]
    for event in gaps:
        after = int(np.searchsorted(seq, event["seq"], side="right"))
        event[NEXT_TS_MS] = int(ts_ms[after]) if after < len(seq) else None


def list_runs(chunk: OpenChunk | Arrived) -> list[Run]:
    """Return which rows are there: from the statistics of the chunk if they tell, else from the rows."""
    if isinstance(chunk, Arrived):
        return _runs_of_rows(*(_plain(read_chunk(chunk, _RUN_COLUMNS), name) for name in _RUN_COLUMNS))
    columns = [chunk.column(name) for name in _RUN_COLUMNS]
    found = [column.statistics for column in columns if column is not None]
    if len(found) == len(columns) and all(each is not None and each.has_min_max for each in found):
        node_id, seq, ts_ms = ((each.min, each.max) for each in found)
        is_imported = all(_is_imported(*ends) for ends in zip(seq, ts_ms, strict=True))
        has_no_hole = seq[1] - seq[0] + 1 == chunk.group.num_rows
        if node_id[0] == node_id[1] and (is_imported or has_no_hole):
            return [Run(node_id[0], seq[0], seq[1], ts_ms[0], is_imported)]
    return _runs_of_rows(*(_plain(read_chunk(chunk, _RUN_COLUMNS), name) for name in _RUN_COLUMNS))


def _runs_of_rows(node_id: Numbers, seq: Numbers, ts_ms: Numbers) -> list[Run]:
    found = []
    for node in np.unique(node_id).tolist():
        of_node = np.flatnonzero(node_id == node)
        order = of_node[np.argsort(seq[of_node], kind="stable")]
        first = np.flatnonzero(np.diff(seq[order], prepend=seq[order[0]] - 2) != 1)
        is_imported = bool(_is_imported(seq[order], ts_ms[order]).all())
        if is_imported:
            first = first[:1]
        last = np.append(first[1:], len(order)) - 1
        ends = zip(
            seq[order[first]].tolist(), seq[order[last]].tolist(), ts_ms[order[first]].tolist(), strict=True
        )
        found += [Run(node, *run, is_imported) for run in ends]
    return found


def _is_imported(seq: Any, ts_ms: Any) -> Any:
    """Return whether `seq` is made of the time, as an import does it (docs/import.md)."""
    return abs(seq // (SEQ_PER_US * 1000) - ts_ms) <= _IMPORTED_WITHIN_MS


def _number_batches(chunk: OpenChunk | Arrived) -> Iterator[pa.Table]:
    """Yield all that is no name, a part at a time that the processor's cache can hold."""
    if isinstance(chunk, Arrived):
        yield read_chunk(chunk, _NUMBER_COLUMNS)
        return
    options = {"row_groups": [chunk.row_group], "columns": list(_NUMBER_COLUMNS), "use_threads": False}
    for batch in chunk.file.iter_batches(_BATCH_ROWS, **options):
        yield _checked(pa.Table.from_batches([batch]), chunk.path)


@contextmanager
def _opened(path: str) -> Iterator[pq.ParquetFile]:
    try:
        with opened_parquet(path, read_dictionary=_NAMES) as file:
            yield file
    except FilesystemError:
        raise
    except FileNotFoundError as error:
        raise VanishedFileError(path) from error
    except (pa.ArrowException, OSError) as error:
        if isinstance(location(path), Uri) and not isinstance(error, pa.ArrowException):
            raise UsageFilesError(f"cannot read {path!r}: {reason_of(error)}") from error
        raise UsageFilesError(f"cannot read {path!r}: its data is damaged", hint=DAMAGED_HINT) from error


def _names(table: pa.Table, column: str) -> tuple[Numbers, pa.Array]:
    """Return each row's place in the names, and the names; place 0 is for a missing one."""
    chunked = table[column]
    if chunked.num_chunks == 0:
        return np.zeros(0, np.int64), pa.array([""])
    encoded = chunked.chunk(0)
    places = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64) + 1
    return places, pa.concat_arrays([pa.array([""]), encoded.dictionary.cast(pa.string())])


def _kinds(table: pa.Table) -> Numbers:
    """Return the kind of each row as the kernel counts them, below 0 where it is none of the kernel's."""
    places, names = _names(table, "kind")
    codes = np.array([_KIND_CODES.get(name, _UNKNOWN) for name in names.to_pylist()], np.int8)
    return codes[places]


def _clients(table: pa.Table) -> tuple[Numbers, pa.Table]:
    """Return each row's place in its clients, and these. Follows what the rows hold: the same at every reading."""
    user, users = _names(table, "user")
    client_id, client_ids = _names(table, "client_id")
    nodes, node = np.unique(_plain(table, "node_id"), return_inverse=True)
    code = (node * len(users) + user) * len(client_ids) + client_id
    used, place = _used(code, len(nodes) * len(users) * len(client_ids))
    rest, client_place = np.divmod(used, len(client_ids))
    node_place, user_place = np.divmod(rest, len(users))
    columns = [pa.array(nodes[node_place], pa.int64())]
    for names, of_name in ((users, user_place), (client_ids, client_place)):
        columns.append(pa.DictionaryArray.from_arrays(pa.array(of_name, pa.int32()), names))
    return place, pa.table(columns, schema=CLIENT_KEYS)


def _pairs(place: Numbers, connection_ids: Numbers) -> Numbers:
    """Return which pairs of a client's place and a connection occur, each once."""
    found, number = np.unique(connection_ids, return_inverse=True)
    both = np.unique(place * len(found) + number)
    return np.stack([both // max(1, len(found)), found[both % max(1, len(found))]], axis=1)


def _client_bits(table: pa.Table) -> npt.NDArray[np.int16]:
    """Return the flags that say how the client of each row sends; 0 where that was not read."""
    if _SOFTWARE not in table.column_names:
        return np.zeros(len(table), np.int16)
    places, names = _names(table, _SOFTWARE)
    return np.array([client_bits(name) for name in names.to_pylist()], np.int16)[places]


def _used(code: Numbers, codes: int) -> tuple[Numbers, Numbers]:
    """Return which codes occur, rising, and each row's place among them."""
    if codes > _LARGEST_TABLE:
        used, place = np.unique(code, return_inverse=True)
        return used, place
    occurs = np.zeros(codes, bool)
    occurs[code] = True
    used = np.flatnonzero(occurs)
    place_of = np.zeros(codes, np.int64)
    place_of[used] = np.arange(len(used))
    return used, place_of[code]


def _plain(table: pa.Table, column: str) -> Numbers:
    """Return a column of numbers, 0 where it is null."""
    chunked = table[column]
    if chunked.null_count:
        chunked = pc.fill_null(chunked, False if chunked.type == pa.bool_() else 0)
    values: Numbers = chunked.to_numpy()
    return values


def _rows(table: pa.Table, kinds: Numbers) -> Rows:
    """Return what the kernel takes; the clients are not filled in."""
    is_request = kinds == REQUEST_ROW
    produces = is_request & _has(table, "produce_bytes")
    fetches = is_request & ~produces & _has(table, "fetch_bytes")
    amount = np.where(produces, _plain(table, "produce_bytes"), 0)
    amount = np.where(fetches, _plain(table, "fetch_bytes"), amount)
    amount = np.where(kinds == MUTATION_ROW, _plain(table, "mutations"), amount)
    throttle_ms = np.where(
        produces, _plain(table, "produce_throttle_ms"), _plain(table, "mutation_throttle_ms")
    )
    throttle_ms = np.where(fetches, _plain(table, "fetch_throttle_ms"), throttle_ms)
    is_done = ~_plain(table, "observed_only")  # what was decided of an observed client was not
    is_own = ~_plain(table, "forwarded")  # else the controller has decided about the permits
    return Rows(
        seq=_plain(table, "seq"),
        ts_ms=_plain(table, "ts_ms"),
        amount=amount.astype(np.int64, copy=False),
        handler_ns=_plain(table, "handler_ns"),
        network_ns=_plain(table, "network_ns"),
        connection_id=_connection_ids(table, kinds).astype(np.int64, copy=False),
        client=np.zeros(len(table), np.int32),
        throttle_ms=(throttle_ms * (is_done & is_own)).astype(np.int32, copy=False),
        request_throttle_ms=_plain(table, "request_throttle_ms") * is_done,
        flags=_flags(table, kinds, produces, fetches),
    )


def _has(table: pa.Table, column: str) -> Numbers:
    values: Numbers = table[column].is_valid().to_numpy()
    return values


def _flags(table: pa.Table, kinds: Numbers, produces: Numbers, fetches: Numbers) -> npt.NDArray[np.int16]:
    """Return kind, charge and flags in one byte, as `layout` has them."""
    flags = kinds + PRODUCE_CHARGE * produces.astype(np.int16) + FETCH_CHARGE * fetches.astype(np.int16)
    flags += EXEMPT * _plain(table, "exempt").astype(np.int16)
    flags += OBSERVED * _plain(table, "observed_only").astype(np.int16)
    flags += STRICT * ((kinds == REQUEST_ROW) & np.isin(_plain(table, "api_key"), _ASKING)).astype(np.int16)
    mutations = np.flatnonzero(kinds == MUTATION_ROW)
    if len(mutations):
        asked = table.take(pa.array(mutations))
        is_strict = _is_strict(asked)
        flags[mutations] += STRICT * is_strict + REJECTED * _plain(asked, "rejected").astype(np.int16)
        flags[mutations] += OBSERVED * (is_strict & ~_plain(asked, "strict"))
    return flags.astype(np.int16, copy=False)


def _is_strict(table: pa.Table) -> npt.NDArray[np.int16]:
    """Return whether permits were asked for strictly: by API and version, for where no quota was defined the row
    itself does not tell (B§5.1)."""
    api_key, api_version = _plain(table, "api_key"), _plain(table, "api_version")
    strict = np.ones(len(table), bool)
    for key, since in STRICT_SINCE.items():
        strict[api_key == key] = api_version[api_key == key] >= since
    return strict.astype(np.int16)


def _connection_ids(table: pa.Table, kinds: Numbers) -> Numbers:
    """Return the connections; -1 for permits whose throttle no request is told: topics made by asking for them.

    A Metadata request creates topics on behalf of its client, but answers without a mutation throttle (B§5.5).
    """
    is_told = np.isin(_plain(table, "api_key"), _ASKING)
    return np.where((kinds == MUTATION_ROW) & ~is_told, _NO_CONNECTION, _plain(table, "connection_id"))


def _check(rows: Rows, chunk: OpenChunk | Arrived) -> None:
    for name, largest in _LIMITS.items():
        column = getattr(rows, name)
        if len(column) and (column.min() < 0 or column.max() > largest):
            at = int(np.argmax((column < 0) | (column > largest)))
            raise UsageFilesError(
                f"{name} must be from 0 to {largest}, got {int(column[at])} "
                f"in seq {int(rows.seq[at])} of {chunk.path!r}",
                hint=DAMAGED_HINT,
            )

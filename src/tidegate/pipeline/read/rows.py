"""The second look at a chunk: its rows as the kernel takes them."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.pipeline.errors import DAMAGED_HINT, UsageFilesError
from tidegate.pipeline.layout import (
    BEFORE_RANGE,
    EXEMPT,
    FETCH_CHARGE,
    LOOKS_IN_STEPS,
    MUTATION_ROW,
    OBSERVED,
    PIPELINES,
    PRODUCE_CHARGE,
    READS_AHEAD,
    REJECTED,
    REQUEST_ROW,
    SENDS_ON,
    STRICT,
    Rows,
)
from tidegate.pipeline.read.chunks import (
    Arrived,
    Bundle,
    Chunk,
    OpenChunk,
    opened_chunk,
    read_batches,
    read_chunk,
)
from tidegate.pipeline.read.columns import THROTTLES, Numbers, is_there, numbers_of, numbers_of_names
from tidegate.pipeline.read.control_events import CONTROL_COLUMNS, TAGS_COLUMNS
from tidegate.pipeline.read.snapshots import SENSOR_COLUMNS
from tidegate.pipeline.read.survey import CLIENT_COLUMNS, clients_of, row_kinds, survey_chunk
from tidegate.quota.managers.mutation import STRICT_SINCE

__all__ = ["ALL_COLUMNS", "client_bits", "in_order", "read_rows"]

_SOFTWARE = "client_software"
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
    *THROTTLES,
)
_MAX_BYTES = 2**31 - 1  # the protocol's length fields are 32 bits
_MAX_NS = 2**53  # a hundred days; doubles hold it exactly
_MAX_MS = 2**53
_LIMITS = {"ts_ms": _MAX_MS, "amount": _MAX_BYTES, "handler_ns": _MAX_NS, "network_ns": _MAX_NS}
_NO_CONNECTION = -1
_ASKING = list(STRICT_SINCE)  # APIs whose answers contain the throttle time of their permits

ALL_COLUMNS = tuple(
    dict.fromkeys(
        (*CLIENT_COLUMNS, _SOFTWARE, *_NUMBER_COLUMNS, *CONTROL_COLUMNS, *TAGS_COLUMNS, *SENSOR_COLUMNS)
    )
)
"""Columns that `survey_chunk`, `read_rows` and `read_sensors` read."""
_LIBRDKAFKA = ("librdkafka", "confluent-kafka", "rdkafka", "rust-rdkafka", "node-rdkafka")
_OTHERS = {
    "apache-kafka-java": PIPELINES | READS_AHEAD,
    "kafka-python": PIPELINES | LOOKS_IN_STEPS,
    "kgo": PIPELINES | READS_AHEAD,
    "franz-go": PIPELINES | READS_AHEAD,
    "sarama": PIPELINES | READS_AHEAD,
}


def read_rows(
    chunk: Chunk | Bundle | Arrived,
    numbers: Numbers,
    *,
    with_software: bool = False,
    counted_from_ms: int | None = None,
) -> Iterator[Rows]:
    """Yield the rows of a chunk in batches, each in order of `seq`.

    numbers: of the clients, in the order of `survey_chunk`. with_software: say in their flags how clients send.
    counted_from_ms: earlier rows get the flag `BEFORE_RANGE`; None: no row gets it.
    Raises `UsageFilesError` for impossible rows.
    """
    names = (*CLIENT_COLUMNS, *[_SOFTWARE] * with_software)
    try:
        with opened_chunk(chunk, (*names, *_NUMBER_COLUMNS)) as opened:
            for rows in _rows_of(opened, numbers, names):
                yield rows if counted_from_ms is None else _marked(rows, counted_from_ms)
    except UsageFilesError:
        if isinstance(chunk, Bundle):
            for one in chunk.chunks:  # names the file
                list(read_rows(one, np.zeros(len(survey_chunk(one).keys), np.int64)))
        raise


def _rows_of(chunk: OpenChunk | Arrived, numbers: Numbers, name_columns: Sequence[str]) -> Iterator[Rows]:
    names = read_chunk(chunk, name_columns)
    kinds = row_kinds(names)
    known = kinds >= 0
    place, keys = clients_of(names.filter(pa.array(known)))
    if len(keys) != len(numbers):
        raise UsageFilesError(f"{chunk.path!r} changed while it was read", hint="run the command again")
    client = np.zeros(len(kinds), np.int32)
    client[known] = numbers[place]
    sending = _client_bits(names)
    first = 0
    for table in read_batches(chunk, _NUMBER_COLUMNS):
        here = slice(first, first + len(table))
        first = here.stop
        if not known[here].all():
            table = table.filter(pa.array(known[here]))
        rows = _rows(table, kinds[here][known[here]])
        rows = rows._replace(client=client[here][known[here]], flags=rows.flags | sending[here][known[here]])
        _check(rows, chunk)
        yield in_order(rows)


def _marked(rows: Rows, counted_from_ms: int) -> Rows:
    is_before = (rows.ts_ms < counted_from_ms).astype(np.int16)
    return rows._replace(flags=rows.flags | is_before * np.int16(BEFORE_RANGE))


def in_order(rows: Rows) -> Rows:
    """Return the rows in order of `seq`."""
    if not (np.diff(rows.seq) < 0).any():
        return rows
    order = np.argsort(rows.seq, kind="stable")
    return Rows._make(column[order] for column in rows)


def _client_bits(table: pa.Table) -> npt.NDArray[np.int16]:
    """Return the flags that say how the client of each row sends; 0 where that was not read."""
    if _SOFTWARE not in table.column_names:
        return np.zeros(len(table), np.int16)
    return numbers_of_names(table, _SOFTWARE, client_bits, np.int16)


def _rows(table: pa.Table, kinds: Numbers) -> Rows:
    """Return what the kernel takes; the clients are not filled in."""
    is_request = kinds == REQUEST_ROW
    produces = is_request & is_there(table, "produce_bytes")
    fetches = is_request & ~produces & is_there(table, "fetch_bytes")
    amount = np.where(produces, numbers_of(table, "produce_bytes"), 0)
    amount = np.where(fetches, numbers_of(table, "fetch_bytes"), amount)
    amount = np.where(kinds == MUTATION_ROW, numbers_of(table, "mutations"), amount)
    throttle_ms = np.where(
        produces, numbers_of(table, "produce_throttle_ms"), numbers_of(table, "mutation_throttle_ms")
    )
    throttle_ms = np.where(fetches, numbers_of(table, "fetch_throttle_ms"), throttle_ms)
    is_done = ~numbers_of(table, "observed_only")  # decisions about observed clients were not applied
    is_own = ~numbers_of(table, "forwarded")  # else the controller has decided about the permits
    return Rows(
        seq=numbers_of(table, "seq"),
        ts_ms=numbers_of(table, "ts_ms"),
        amount=amount.astype(np.int64, copy=False),
        handler_ns=numbers_of(table, "handler_ns"),
        network_ns=numbers_of(table, "network_ns"),
        connection_id=_connection_ids(table, kinds).astype(np.int64, copy=False),
        client=np.zeros(len(table), np.int32),
        throttle_ms=(throttle_ms * (is_done & is_own)).astype(np.int32, copy=False),
        request_throttle_ms=numbers_of(table, "request_throttle_ms") * is_done,
        flags=_flags(table, kinds, produces, fetches),
    )


def _flags(table: pa.Table, kinds: Numbers, produces: Numbers, fetches: Numbers) -> npt.NDArray[np.int16]:
    """Return kind, charge and flags in one number, with the bits of `layout`."""
    flags = kinds + PRODUCE_CHARGE * produces.astype(np.int16) + FETCH_CHARGE * fetches.astype(np.int16)
    flags += EXEMPT * numbers_of(table, "exempt").astype(np.int16)
    flags += OBSERVED * numbers_of(table, "observed_only").astype(np.int16)
    flags += STRICT * ((kinds == REQUEST_ROW) & np.isin(numbers_of(table, "api_key"), _ASKING)).astype(
        np.int16
    )
    mutations = np.flatnonzero(kinds == MUTATION_ROW)
    if len(mutations):
        asked = table.take(pa.array(mutations))
        is_strict = _is_strict(asked)
        flags[mutations] += STRICT * is_strict + REJECTED * numbers_of(asked, "rejected").astype(np.int16)
        flags[mutations] += OBSERVED * (is_strict & ~numbers_of(asked, "strict"))
    return flags.astype(np.int16, copy=False)


def _is_strict(table: pa.Table) -> npt.NDArray[np.int16]:
    """Return whether permits were strict, by API and version: if no quota was defined, the row itself does not show it
    (B§5.1)."""
    api_key, api_version = numbers_of(table, "api_key"), numbers_of(table, "api_version")
    strict = np.ones(len(table), bool)
    for key, since in STRICT_SINCE.items():
        strict[api_key == key] = api_version[api_key == key] >= since
    return strict.astype(np.int16)


def _connection_ids(table: pa.Table, kinds: Numbers) -> Numbers:
    """Return the connections; -1 for permits whose throttle time no answer contains.

    A Metadata request creates topics on behalf of its client, but answers without a mutation throttle (B§5.5).
    """
    is_told = np.isin(numbers_of(table, "api_key"), _ASKING)
    return np.where((kinds == MUTATION_ROW) & ~is_told, _NO_CONNECTION, numbers_of(table, "connection_id"))


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


def client_bits(software: str) -> int:
    """Return the bits of `Rows.flags` for the software that a client names in its ApiVersions request.

    `PIPELINES`: its producer has several requests in flight. `SENDS_ON`: it writes into a socket that is not read, and
    does not wait for `throttle_time_ms`. `READS_AHEAD`: its consumer fetches while the application processes the
    previous fetch. `LOOKS_IN_STEPS`: its consumer sleeps in steps until a throttle is over. A client that names no
    software, or software not listed here, has one request in flight, and waits.
    """
    if software.startswith(_LIBRDKAFKA):
        return PIPELINES | SENDS_ON | READS_AHEAD
    return _OTHERS.get(software, 0)

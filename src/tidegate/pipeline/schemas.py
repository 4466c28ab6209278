"""The tables that the pipeline reads and writes, column by column.

`EVENTS` is the usage record of `docs/usage-record.md`; the others carry its names and units.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from tidegate.pipeline.layout import FORECAST_COLUMNS
from tidegate.usage.columns import COLUMNS

__all__ = [
    "BACKLOGS",
    "BACKLOG_STEPS",
    "BLOCKS",
    "CLIENT",
    "DECISIONS",
    "EARLY_BUCKETS",
    "ENTITY_BUCKETS",
    "ENTITY_SECONDS",
    "EVENTS",
    "LIMITS_BY_ENTITY",
    "LIMITS_BY_NODE",
    "OBEDIENCE_BY_CLIENT",
    "OBEDIENCE_BY_SOFTWARE",
    "REPLAY_BY_CLIENT",
    "REPLAY_BY_ENTITY",
    "REPLAY_LEAVING_STATE",
    "REPLAY_STATE",
    "REPLAY_WITH_DECISIONS",
    "RUNGS",
    "TOPIC_SUMS",
    "USAGE_MEASURES",
    "USAGE_PEAKS",
    "USAGE_SUMS",
    "WATCHED_USAGE",
    "WORK",
    "usage_by_minute_schema",
    "usage_parts_schema",
    "usage_schema",
    "usage_sums",
]

_STRING, _LONG, _INT = StringType(), LongType(), IntegerType()

_Column = tuple[str, DataType]


def _table(columns: Sequence[_Column]) -> StructType:
    return StructType([StructField(name, data_type) for name, data_type in columns])


def _columns(table: StructType) -> list[_Column]:
    return [(column.name, column.dataType) for column in table]


_SPARK_TYPES: Mapping[str, DataType] = {
    "string": _STRING,
    "bool": BooleanType(),
    "double": DoubleType(),
    "int16": ShortType(),
    "int32": _INT,
    "int64": _LONG,
}

EVENTS = _table([(column.name, _SPARK_TYPES[column.type]) for column in COLUMNS])
"""The usage record. Every column may be null here: files are input, and Spark does not check what it reads."""

_THROTTLES: list[_Column] = [
    ("produce_throttle_ms", _LONG),
    ("fetch_throttle_ms", _LONG),
    ("request_throttle_ms", _LONG),
    ("mutation_throttle_ms", _LONG),
]

_SUMS: list[_Column] = [
    ("requests", _LONG),
    ("throttled_requests", _LONG),
    ("request_bytes", _LONG),
    ("response_bytes", _LONG),
    ("produce_bytes", _LONG),
    ("fetch_bytes", _LONG),
    ("handler_ns", _LONG),
    ("network_ns", _LONG),
    ("mutations", _LONG),
    ("rejected_mutations", _LONG),
    *_THROTTLES,
]
_PEAKS: list[_Column] = [
    ("peak_produce_bytes_per_second", DoubleType()),
    ("peak_fetch_bytes_per_second", DoubleType()),
    ("peak_request_percent", DoubleType()),
]
USAGE_MEASURES = ("handler_ns", "throttle_ms", "request_bytes")
"""Measures of requests that have percentiles; `throttle_ms` is the longest that applied, 0 for most requests."""
_PERCENTILES: list[_Column] = [
    (f"{measure}_p{percent}", _LONG) for measure in USAGE_MEASURES for percent in (50, 95, 99)
]
_OF_SEVERAL: list[_Column] = [("multi_topic_requests", _LONG), ("multi_topic_bytes", _LONG)]

CLIENT = ("user", "client_id")
"""The columns that make a client."""


def usage_by_minute_schema(by: Sequence[str] = CLIENT) -> StructType:
    """Return the columns of usage by minute, node and the columns `by` of the usage record.

    A peak is the largest rate that a sensor measured, of bytes or of percent of a thread, over Kafka's window; a
    percentile (`_p50`, ...) the largest value of its bucket (`rollup.percentiles`), null where there was no request.
    """
    return _table([("minute_ms", _LONG), ("node_id", _INT), *((name, _STRING) for name in by), *_used(by)])


def usage_schema(by: Sequence[str] = CLIENT) -> StructType:
    """Return the columns of usage in all by the columns `by` of the usage record."""
    return _table([*((name, _STRING) for name in by), *_TIMES, *_used(by)])


def usage_sums(by: Sequence[str] = CLIENT) -> tuple[str, ...]:
    """Return the sums of usage by the columns `by`; by topic, also the sums of requests with several topics."""
    return (*USAGE_SUMS, *(TOPIC_SUMS if "topic" in by else ()))


def _summed(by: Sequence[str]) -> list[_Column]:
    return [*_SUMS, *(_OF_SEVERAL if "topic" in by else ())]


def _used(by: Sequence[str]) -> list[_Column]:
    return [*_summed(by), *_PEAKS, *_PERCENTILES]


def usage_sums_schema(by: Sequence[str], wanted: Sequence[str]) -> StructType:
    """Return the columns `by` and the sums `wanted` of usage."""
    names = {*by, *wanted}
    return StructType([field for field in usage_schema(by) if field.name in names])


def usage_parts_schema(by: Sequence[str] = CLIENT) -> StructType:
    """Return the columns of parts of usage, see `rollup.parts`; without minutes, `minute_ms` is 0."""
    keys = [("minute_ms", _LONG), ("node_id", _INT), *((name, _STRING) for name in by)]
    lists = [(name, ArrayType(_LONG)) for name in ("codes", "counts")]
    return _table([*keys, *_summed(by), *_TIMES, *_PEAKS, *lists])


_TIMES: list[_Column] = [("first_ts_ms", _LONG), ("last_ts_ms", _LONG)]
WATCHED_USAGE = _table([*((name, _STRING) for name in CLIENT), *_SUMS, *_TIMES])
"""The usage of a client in a watch."""

USAGE_SUMS = tuple(name for name, _ in _SUMS)
"""Columns that usage sums up."""
TOPIC_SUMS = tuple(name for name, _ in _OF_SEVERAL)
"""Columns that usage by topic adds up, too: requests with records of several topics, and their bytes."""
USAGE_PEAKS = tuple(name for name, _ in _PEAKS)
"""Columns whose largest value usage keeps."""

EARLY_BUCKETS: Mapping[str, int] = {
    f"early_up_to_{limit_ms}_ms": limit_ms
    for limit_ms in (*(digit * 10**power for power in range(6) for digit in (1, 2, 5)), 2**31 - 1)
}
"""Columns that count requests that came early by at most the limit, and by more than the one before: limits up to
500 s, and one column for all others."""

_SOFTWARE: list[_Column] = [("client_software", _STRING), ("client_software_version", _STRING)]
_EARLY: list[_Column] = [
    ("requests", _LONG),
    ("throttled_requests", _LONG),
    ("early_requests", _LONG),
    ("longest_early_ms", _LONG),
    *((name, _LONG) for name in EARLY_BUCKETS),
]

OBEDIENCE_BY_CLIENT = _table([*_SOFTWARE, ("user", _STRING), ("client_id", _STRING), *_EARLY])
"""Throttled requests of a client, and requests that it sent before its throttle time was over."""

OBEDIENCE_BY_SOFTWARE = _table(
    [*_SOFTWARE, ("clients", _LONG), ("throttled_clients", _LONG), ("early_clients", _LONG), *_EARLY]
)
"""The same for all clients of a library, and the numbers of those that were throttled and that sent early."""

_TALLY: list[_Column] = [
    ("requests", _LONG),
    ("amount", _LONG),
    ("throttled_requests", _LONG),
    ("throttle_ms", _LONG),
    ("longest_throttle_ms", _LONG),
    ("first_throttled_ts_ms", _LONG),
    ("delayed_amount", _LONG),
    ("rejected_mutations", _LONG),
    ("recorded_throttled_requests", _LONG),
    ("recorded_throttle_ms", _LONG),
    ("recorded_longest_throttle_ms", _LONG),
    ("recorded_first_throttled_ts_ms", _LONG),
    ("recorded_delayed_amount", _LONG),
    ("recorded_rejected_mutations", _LONG),
    ("capped_fetches", _LONG),
    ("different_decisions", _LONG),
    ("approximate_requests", _LONG),
    ("approximate_after_gap", _LONG),
    ("approximate_missing_rows", _LONG),
    ("approximate_cold_start", _LONG),
    ("approximate_capped", _LONG),
    ("approximate_imported", _LONG),
    ("approximate_cluster_wide", _LONG),
    ("approximate_different_decisions", _LONG),
    *((name, _LONG) for name in FORECAST_COLUMNS),
]

_ENTITY: list[_Column] = [
    ("plan", _STRING),
    ("quota_type", _STRING),
    ("entity_user", _STRING),
    ("entity_client_id", _STRING),
    ("entity_tags", _STRING),
    ("bound", DoubleType()),
    ("bound_of", _STRING),
    ("bound_changed", BooleanType()),
]

REPLAY_BY_CLIENT = _table([*_ENTITY, ("node_id", _INT), ("user", _STRING), ("client_id", _STRING), *_TALLY])
"""The effect of a plan on one client. An entity part is null where its level is not used.
`entity_tags`: the tags that a quota callback chose, as JSON; null for tags `user` and `client-id`. `bound`: the limit
that was always in force when it was used; `bound_of`: the kind of entity that has the quota (`user`, `default user`,
`user and client-id`, ...). Both are null without a limit, and if the limit changed (`bound_changed`).
`amount`: bytes (Produce, Fetch), ns (Request) or permits (ControllerMutation). `approximate_requests`: requests whose
decision may differ, by reason in the other `approximate_` columns (docs/usage-record.md). `different_decisions`: exact
decisions that differ from the recorded ones."""

REPLAY_STATE = _table(
    [
        ("plan", _STRING),
        ("node_id", _INT),
        ("kind", _STRING),
        ("user", _STRING),
        ("client_id", _STRING),
        ("state", _STRING),
    ]
)
"""State from which a replay of the next hours continues, see `replay.carried`. `user` and `client_id`: the tags of a
sensor; null for the sensor of a group, whose name is in its state."""

REPLAY_LEAVING_STATE = _table([*_columns(REPLAY_BY_CLIENT), ("kind", _STRING), ("state", _STRING)])
"""Rows of `REPLAY_BY_CLIENT`, where `state` is null, and of `REPLAY_STATE`."""

REPLAY_WITH_DECISIONS = _table([*_columns(REPLAY_LEAVING_STATE), ("file", _STRING)])
"""Rows of `REPLAY_LEAVING_STATE`, or in `file` the name of a file to which a task has written decisions."""

REPLAY_BY_ENTITY = _table([*_ENTITY, ("only_user", _STRING), ("only_client_id", _STRING), *_TALLY])
"""The same for all clients that share a quota, on all nodes. `only_user`: the user of all of them; null if several."""

_LIMITED: list[_Column] = [
    ("quota_type", _STRING),
    ("entity_user", _STRING),
    ("entity_client_id", _STRING),
]
_USED: list[_Column] = [
    ("requests", _LONG),
    ("amount", _LONG),
    ("recorded_throttled_requests", _LONG),
    ("recorded_throttle_ms", _LONG),
    ("recorded_rejected_mutations", _LONG),
]

LIMITS_BY_NODE = _table(
    [*_LIMITED, ("node_id", _INT), *_USED, ("peak", DoubleType()), ("largest_amount", DoubleType())]
)
"""The usage of an entity on one node. `peak`: the largest rate per second that its sensor measured at a decision, in
bytes or percent; 0 for mutations. `largest_amount`: of one request, in bytes or ns."""

LIMITS_BY_ENTITY = _table([*_LIMITED, *_USED, ("never_throttled", DoubleType()), ("tolerable", DoubleType())])
"""The limits that an entity needs on any of its nodes, per second: the smallest that would have throttled nothing, and
the smallest with tolerable delays. 0: any limit is enough, because nothing was charged, or all of it at once."""

RUNGS = _table(
    [
        *((name, _INT) for name in ("plan", "sensor")),
        *((name, _LONG) for name in ("requests", "amount", "delayed_amount", "rejected_mutations")),
        *((name, _LONG) for name in ("capped_fetches", "longest_throttle_ms")),
    ]
)
"""The outcome of a sensor, by its number, under a plan of a search, by its place; amounts as in `REPLAY_BY_ENTITY`."""

_READER: list[_Column] = [("node_id", _INT), ("entity_user", _STRING), ("entity_client_id", _STRING)]

BACKLOG_STEPS = _table(
    [*_READER, ("step_ms", _LONG), ("connection_id", _LONG), ("lag_bytes", _LONG), ("fetched_bytes", _LONG)]
)
"""The largest lag of a connection in a step of time, and the bytes that it fetched. An entity part is null where its
level is not used."""

BACKLOGS = _table(
    [
        *_READER,
        *((name, _LONG) for name in ("first_ms", "last_ms", "fetched_bytes")),
        *((name, _LONG) for name in ("first_lag_bytes", "last_lag_bytes", "largest_lag_bytes")),
    ]
)
"""The lag of an entity in the first and the last step, and the largest; null where no Fetch shows it."""

DECISIONS = _table(
    [
        ("plan", _STRING),
        ("node_id", _INT),
        ("seq", _LONG),
        ("ts_ms", _LONG),
        ("user", _STRING),
        ("client_id", _STRING),
        ("throttle_ms", _INT),
        ("request_throttle_ms", _INT),
        ("rejected", BooleanType()),
        ("capped", BooleanType()),
        ("approximate", _STRING),
        ("request_approximate", _STRING),
    ]
)
"""One row per plan and `request` or `mutation` row. `throttle_ms`: of the byte quota, or of the mutation quota if no
bytes are charged. `approximate`: the reason why `throttle_ms` is not exact; `request_approximate`: the reason why
`request_throttle_ms` is not (`layout.REASON_NAMES`). Both are null for exact times."""

WORK = _table([("place", _INT), ("work", BinaryType())])
"""Pickled items of work in their order, and their pickled results."""

ENTITY_SECONDS = _table(
    [("second_ms", _LONG), ("node_id", _INT), ("entity", _LONG), ("amount", _LONG), ("throttle_ms", _LONG)]
)
"""The usage of an entity, by its number, in a second on one node; `amount` as in `REPLAY_BY_CLIENT`."""

ENTITY_BUCKETS = _table(
    [
        ("bucket_ms", _LONG),
        ("node_id", _INT),
        ("entity", _LONG),
        *((name, _LONG) for name in ("amount", "peak_amount", "throttle_ms")),
    ]
)
"""The same of a step of time, with the largest `amount` of its seconds."""

BLOCKS = _table(
    [("task", _INT), ("partition", _INT), ("first_seq", _LONG), ("rows", _INT), ("data", BinaryType())]
)
"""Packed rows, see `packing`."""

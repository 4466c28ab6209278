"""The tables that the pipeline reads and writes, column by column.

`EVENTS` is the usage record of `docs/usage-record.md`; the others carry its names and units.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql.types import (
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

from tidegate.usage.columns import COLUMNS

__all__ = ["EVENTS", "USAGE_BY_CLIENT", "USAGE_BY_MINUTE"]

_STRING, _LONG, _INT = StringType(), LongType(), IntegerType()

_Column = tuple[str, DataType]


def _table(columns: Sequence[_Column]) -> StructType:
    return StructType([StructField(name, data_type) for name, data_type in columns])


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
    ("peak_produce_bytes_per_second", _LONG),
    ("peak_fetch_bytes_per_second", _LONG),
]

USAGE_BY_MINUTE = _table(
    [("minute_ms", _LONG), ("node_id", _INT), ("user", _STRING), ("client_id", _STRING), *_SUMS]
)

USAGE_BY_CLIENT = _table(
    [
        ("user", _STRING),
        ("client_id", _STRING),
        ("first_ts_ms", _LONG),
        ("last_ts_ms", _LONG),
        *_SUMS,
    ]
)

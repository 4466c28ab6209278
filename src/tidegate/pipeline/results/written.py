"""The form in which tables are written and returned: a point in time is a TIMESTAMP in UTC, with µs.

The jobs compute with ms since 1970 (`ts_ms`, `minute_ms`). A written column has the same name without `_ms`.

>>> written_name("first_throttled_ts_ms"), written_name("last_ts_ms_low"), written_name("throttle_ms")
('first_throttled_ts', 'last_ts_low', 'throttle_ms')
"""

import re

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

__all__ = ["TIMESTAMP", "as_written", "frame_as_written", "written_name", "written_schema"]

TIMESTAMP = pa.timestamp("us", tz="UTC")
"""The type of points in time. Spark, DuckDB, polars and pandas read it as their own."""

_MS = pa.timestamp("ms", tz="UTC")
_POINT_IN_TIME = re.compile(r"((?:.*_)?(?:ts|minute))_ms(_low|_high)?")


def written_name(name: str) -> str:
    """Return the name of a written column."""
    match = _POINT_IN_TIME.fullmatch(name)
    return name if match is None else match[1] + (match[2] or "")


def written_schema(table: StructType | pa.Schema) -> pa.Schema:
    """Return the columns of a written table.

    >>> written_schema(pa.schema([("minute_ms", pa.int64()), ("requests", pa.int64())]))
    minute: timestamp[us, tz=UTC]
    requests: int64
    """
    schema = to_arrow_schema(table) if isinstance(table, StructType) else table
    return pa.schema([_written_field(field) for field in schema])


def as_written(table: pa.Table) -> pa.Table:
    """Return the rows of a table as they are written. The times of a record are in range: `read.rows` checks them."""
    columns = {}
    for name in table.column_names:
        column = table[name]
        if _is_time(table.schema.field(name)):
            column = column.cast(pa.int64()).cast(_MS).cast(TIMESTAMP)
        columns[written_name(name)] = column
    return pa.table(columns, schema=written_schema(table.schema))


def frame_as_written(frame: DataFrame) -> DataFrame:
    """Return the rows of a data frame as they are written."""
    fields = zip(frame.columns, to_arrow_schema(frame.schema), strict=True)
    return frame.selectExpr(
        *(
            f"timestamp_millis({name}) as {written_name(name)}" if _is_time(field) else name
            for name, field in fields
        )
    )


def _is_time(field: pa.Field) -> bool:
    is_number = pa.types.is_integer(field.type) or pa.types.is_null(field.type)
    return is_number and _POINT_IN_TIME.fullmatch(field.name) is not None


def _written_field(field: pa.Field) -> pa.Field:
    return pa.field(written_name(field.name), TIMESTAMP, field.nullable) if _is_time(field) else field

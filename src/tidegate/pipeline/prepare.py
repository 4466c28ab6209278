"""From the usage record to what the replay kernel takes: narrow rows of numbers, where they belong and in order.

Names are looked up once, by a join with the (small) table of clients, so that no text goes through shuffle and
sort; the sort is by one 64-bit number.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from tidegate.pipeline.layout import (
    EXEMPT,
    FETCH_CHARGE,
    MUTATION_ROW,
    NETWORK_ROW,
    PRODUCE_CHARGE,
    REJECTED,
    REQUEST_ROW,
    STRICT,
    Rows,
)
from tidegate.pipeline.timeline import CONTROL_COLUMNS, CONTROL_KINDS
from tidegate.quota.mutation import STRICT_SINCE

__all__ = ["CLIENT_NUMBERS", "client_rows", "control_events", "kernel_rows"]

_KIND_CODES = {"request": REQUEST_ROW, "network": NETWORK_ROW, "mutation": MUTATION_ROW}
_CLIENT = ("node_id", "user", "client_id")

CLIENT_NUMBERS = StructType(
    [
        StructField("node_id", IntegerType()),
        StructField("user", StringType()),
        StructField("client_id", StringType()),
        StructField("client", IntegerType()),
        StructField("partition", IntegerType()),
    ]
)
"""Number and partition of every client; a row per (node, user, client id)."""

_ROW_COLUMNS = list(Rows._fields)
_BYTE_TYPES = {"client": "int", "what": "tinyint", "throttle_ms": "int", "request_throttle_ms": "int"}


def control_events(events: DataFrame) -> DataFrame:
    """Return the events besides requests, columns `CONTROL_COLUMNS`."""
    return events.where(F.col("kind").isin(*CONTROL_KINDS)).select(*CONTROL_COLUMNS)


def client_rows(events: DataFrame) -> DataFrame:
    """Return every client and how many `rows` it has: columns node_id, user, client_id, rows."""
    return _of_clients(events).groupBy(*_CLIENT).agg(F.count("*").alias("rows")).select(*_CLIENT, "rows")


def kernel_rows(events: DataFrame, numbers: DataFrame, *, partitions: int) -> DataFrame:
    """Return the rows that the kernel takes, columns as in `layout.Rows`, each partition sorted by `seq`.

    numbers: columns `CLIENT_NUMBERS`. Rows go to the partition that is given there.
    """
    rows = _of_clients(events).select(*_CLIENT, *_numbers())
    placed = rows.join(F.broadcast(numbers), on=list(_CLIENT), how="inner").drop(*_CLIENT)
    shuffled = placed.repartitionById(partitions, F.col("partition")).sortWithinPartitions("seq")
    return shuffled.select(*_ROW_COLUMNS)


def _of_clients(events: DataFrame) -> DataFrame:
    """Return the rows that charge a client, missing names as empty ones."""
    names = {name: F.coalesce(name, F.lit("")) for name in ("user", "client_id")}
    return events.where(F.col("kind").isin(*_KIND_CODES)).withColumns(names)


def _numbers() -> list[Column]:
    """Return all columns of `layout.Rows` but the client."""
    columns = {
        "seq": F.col("seq"),
        "ts_ms": F.col("ts_ms"),
        "what": _what(),
        "amount": _amount(),
        "handler_ns": _or_zero("handler_ns"),
        "network_ns": _or_zero("network_ns"),
        "connection_id": _or_zero("connection_id"),
        "throttle_ms": _recorded_throttle_ms(),
        "request_throttle_ms": _or_zero("request_throttle_ms"),
    }
    return [column.cast(_BYTE_TYPES.get(name, "bigint")).alias(name) for name, column in columns.items()]


def _what() -> Column:
    """Return kind, charge and flags in one byte, as `layout` has them."""
    kind = F.lit(MUTATION_ROW)
    for name, code in _KIND_CODES.items():
        kind = F.when(F.col("kind") == name, F.lit(code)).otherwise(kind)
    flags = {EXEMPT: F.col("exempt"), STRICT: _is_strict(), REJECTED: F.col("rejected")}
    what = kind + _charge()
    for bit, flag in flags.items():
        what = what + F.when(flag, F.lit(bit)).otherwise(F.lit(0))
    return what


def _is_strict() -> Column:
    """Return whether a row asks for permits strictly: by API and version, for where no quota was defined the row
    does not tell (B§5.1)."""
    strict = F.col("strict")
    for api_key, since in STRICT_SINCE.items():
        strict = F.when(F.col("api_key") == api_key, F.col("api_version") >= since).otherwise(strict)
    return strict & (F.col("kind") == "mutation")


def _charge() -> Column:
    return (
        F.when(F.col("kind") != "request", F.lit(0))
        .when(F.col("produce_bytes").isNotNull(), F.lit(PRODUCE_CHARGE))
        .when(F.col("fetch_bytes").isNotNull(), F.lit(FETCH_CHARGE))
        .otherwise(F.lit(0))
    )


def _amount() -> Column:
    """Return the bytes charged, or the permits asked for."""
    of_request = F.coalesce("produce_bytes", "fetch_bytes", F.lit(0))
    return F.when(F.col("kind") == "mutation", _or_zero("mutations")).otherwise(of_request)


def _recorded_throttle_ms() -> Column:
    """Return what the byte quota asked for, or the mutation quota where no bytes are charged."""
    of_request = (
        F.when(F.col("produce_bytes").isNotNull(), _or_zero("produce_throttle_ms"))
        .when(F.col("fetch_bytes").isNotNull(), _or_zero("fetch_throttle_ms"))
        .otherwise(_or_zero("mutation_throttle_ms"))
    )
    return F.when(F.col("kind") == "request", of_request).otherwise(F.lit(0))


def _or_zero(column: str) -> Column:
    return F.coalesce(column, F.lit(0))

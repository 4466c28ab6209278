"""The pipeline's tables against the usage record they come from."""

from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.pipeline.schemas import EVENTS, usage_by_minute_schema, usage_schema
from tidegate.usage.arrow import arrow_schema


def test_events_are_the_columns_of_the_usage_record():
    """Names, order and types are those of the Parquet files."""
    spark = [(field.name, str(field.type)) for field in to_arrow_schema(EVENTS)]
    assert spark == [(field.name, str(field.type)) for field in arrow_schema()]


def test_events_may_be_null():
    """What a file holds is not promised: Spark must not count on it."""
    assert all(field.nullable for field in EVENTS)


def test_usage_tables_share_their_sums():
    """A column has the same name and type by minute and by client."""
    by_minute = {field.name: field.dataType for field in usage_by_minute_schema()}
    for field in usage_schema():
        if field.name not in {"first_ts_ms", "last_ts_ms"}:
            assert by_minute[field.name] == field.dataType

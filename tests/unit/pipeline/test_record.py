"""Where a job runs, and why."""

import pytest

from tidegate.pipeline.record import LOCAL_ROWS, where_and_why


@pytest.mark.parametrize(
    ("master", "rows", "here", "reason"),
    [
        (None, 5, True, "in this process: 5 rows; Spark is used for more than 20,000,000"),
        (
            None,
            LOCAL_ROWS + 1,
            False,
            "on Spark: 20,000,001 rows, more than the 20,000,000 that one process reads",
        ),
        ("local[2]", 5, False, "on Spark: --master local[2]"),
    ],
)
def test_where_and_why(master, rows, here, reason, monkeypatch):
    """By rows, unless it was asked for."""
    monkeypatch.setattr("tidegate.pipeline.record.SparkSession.getActiveSession", lambda: None)
    assert where_and_why(master=master, rows=rows) == (here, reason)


def test_spark_submit_means_spark(monkeypatch):
    """Whatever there is to read."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert where_and_why(master=None, rows=5) == (False, "on Spark: started by spark-submit")

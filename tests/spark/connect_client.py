"""Run by a test: compare what the jobs return through Spark Connect with what they return in this process."""

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tidegate import pipeline
from tidegate.cli.main import main
from tidegate.errors import TidegateError

_QUOTAS = """\
version: 1
quotas:
  - user: {default: true}
    producer_byte_rate: 100KB
"""


def check_same(found, here):
    """Check that data frames have the rows and types of Arrow tables."""
    assert [*found.tables] == [*here.tables]
    for name, table in here.tables.items():
        frame = found[name].toArrow()
        assert frame.schema.types == table.schema.types, name
        assert sorted(map(repr, frame.to_pylist())) == sorted(map(repr, table.to_pylist())), name


def run(directory, scratch):
    """Call every function with a session and without."""
    spark = SparkSession.builder.getOrCreate()  # of SPARK_REMOTE
    assert type(spark).__module__ == "pyspark.sql.connect.session"
    settings = {"spark.sql.session.timeZone": "Asia/Tokyo"}
    for key, value in settings.items():
        spark.conf.set(key, value)
    quotas, seen = scratch / "tight.yaml", []
    quotas.write_text(_QUOTAS)
    check_same(
        pipeline.usage(directory, spark=spark, by_minute=True, progress=seen.append),
        pipeline.usage(directory, by_minute=True),
    )
    assert seen
    for options in ({"loop": "open", "in_force": True, "decisions": True, "by_client": True}, {}):
        given = {"quotas": quotas, **options}
        check_same(pipeline.replay(directory, spark=spark, **given), pipeline.replay(directory, **given))
    check_same(pipeline.obedience(directory, spark=spark), pipeline.obedience(directory))
    limits = {"by": "user", "tolerance": pipeline.Tolerance(share=0.5, longest_ms=10**9)}
    check_same(pipeline.limits(directory, spark=spark, **limits), pipeline.limits(directory, **limits))
    written = pipeline.usage(directory, spark=spark, out=scratch / "out")
    check_same(written, pipeline.usage(directory, out=scratch / "here"))
    used = pipeline.usage(directory, spark=spark).in_all
    used.createOrReplaceTempView("used")
    teams = spark.createDataFrame([("alice", "payments")], "user string, team string")
    assert used.join(teams, "user").select("team").distinct().count() == 1
    assert spark.sql("select sum(requests) as all from used").first()["all"] > 0
    assert {key: spark.conf.get(key) for key in settings} == settings
    spark.stop()
    with pytest.raises(TidegateError, match="the Spark session is stopped"):
        pipeline.usage(directory, spark=spark)


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]))
    assert main(["usage", sys.argv[1], "--explain"]) == 0
    print("the same")

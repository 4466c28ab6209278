"""The functions of `tidegate.pipeline` with a session: data frames of it, with the rows of the Arrow tables."""

from random import Random
from threading import current_thread, main_thread

import pytest
from pyspark.sql import DataFrame
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS, random_records, random_traffic
from tests.replaying.node import RecordingNode

from tidegate import pipeline
from tidegate.errors import TidegateError
from tidegate.pipeline.replay import task
from tidegate.pipeline.schemas import CLIENT
from tidegate.pipeline.spark.sessions import progress_in

_QUOTAS = """\
version: 1
quotas:
  - user: {default: true}
    producer_byte_rate: 100KB
"""
_WIDE = pipeline.Tolerance(share=0.5, longest_ms=10**9)
_HOSTS_OWN = {
    "spark.sql.session.timeZone": "Asia/Tokyo",
    "spark.sql.execution.arrow.useLargeVarTypes": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.shuffle.partitions": "7",
}


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A record of two nodes."""
    directory = tmp_path_factory.mktemp("record")
    for node_id in (1, 2):
        rng = Random(node_id)
        node = RecordingNode(node_id)
        node.start(START_MS, records=random_records(rng, at_most=8))
        random_traffic(node, rng, events=400)
        write_events(directory, node.events, rows_per_file=150)
    return directory


@pytest.fixture
def host(spark):
    """A session of a user, with settings of its own."""
    session = spark.session.newSession()
    for key, value in _HOSTS_OWN.items():
        session.conf.set(key, value)
    yield session
    assert {key: session.conf.get(key) for key in _HOSTS_OWN} == _HOSTS_OWN


def _check_same(found, here):
    assert [*found.tables] == [*here.tables]
    assert (found.rows, found.missing) == (here.rows, here.missing)
    for name, table in here.tables.items():
        assert isinstance(found[name], DataFrame)
        frame = found[name].toArrow()
        assert frame.column_names == table.column_names
        assert sorted(map(repr, frame.cast(table.schema).to_pylist())) == sorted(map(repr, table.to_pylist()))


def test_data_frames_have_the_rows_of_the_tables(host, record, tmp_path):
    """Of every job, whatever the settings of the session are."""
    quotas, seen = tmp_path / "tight.yaml", []
    quotas.write_text(_QUOTAS)
    used = pipeline.usage(record, spark=host, by_minute=True, by=("user", "api"), progress=seen.append)
    _check_same(used, pipeline.usage(record, by_minute=True, by=("user", "api")))
    assert seen
    for options in ({"loop": "open", "in_force": True, "decisions": True, "by_client": True}, {}):
        given = {"quotas": quotas, **options}
        _check_same(pipeline.replay(record, spark=host, **given), pipeline.replay(record, **given))
    _check_same(pipeline.obedience(record, spark=host), pipeline.obedience(record))
    _check_same(
        pipeline.limits(record, by="user", tolerance=_WIDE, spark=host),
        pipeline.limits(record, by="user", tolerance=_WIDE),
    )


def test_an_error_of_the_callback_ends_the_job(host):
    """It reaches the caller from the thread that looks up the progress."""

    def refuse(progress):
        if current_thread() is not main_thread():
            raise ValueError(progress.what)

    with pytest.raises(ValueError, match="counting"), progress_in(host, "counting", refuse):
        host.range(10**13).selectExpr("sum(id % 7)").collect()
    assert host.range(3).count() == 3


def test_limits_are_searched_in_shares_on_spark_too(host, record, monkeypatch):
    """Only the partitions of a share are replayed, and all shares together have every entity."""
    in_one = pipeline.limits(record, by="user", tolerance=_WIDE)
    clients = len({*zip(*(pipeline.usage(record).in_all[name].to_pylist() for name in CLIENT), strict=True)})
    monkeypatch.setattr(task, "CLIENTS_PER_SHARE", clients)  # of one node: two shares
    _check_same(pipeline.limits(record, by="user", tolerance=_WIDE, spark=host), in_one)


def test_what_is_eager_returns_data_frames_too(host, record, tmp_path):
    """The groups with most bytes, and what is written."""
    _check_same(pipeline.usage(record, spark=host, top=3), pipeline.usage(record, top=3))
    _check_same(
        pipeline.usage(record, spark=host, out=tmp_path / "spark"),
        pipeline.usage(record, out=tmp_path / "here"),
    )
    with pipeline.open_record(record, spark=host, last="5h") as part:
        _check_same(pipeline.usage(part), pipeline.usage(record, last="5h"))


def test_data_frames_are_part_of_a_plan(host, record):
    """Joined with the user's own table, and read when the plan runs, as often as it does."""
    used = pipeline.usage(record, spark=host).in_all
    teams = host.createDataFrame([("alice", "payments"), ("bob", "search")], "user string, team string")
    by_team = used.join(teams, "user").groupBy("team").sum("requests").collect()
    assert {row["team"] for row in by_team} <= {"payments", "search"} != set()
    used.createOrReplaceTempView("used")
    assert host.sql("select sum(requests) as n from used").first()["n"] > 0
    assert used.where("requests < 0").count() == 0


def test_what_is_no_session_is_refused(record):
    """Before anything is read; `connect_client.py` tries a stopped one."""
    with pytest.raises(TidegateError, match="spark must be a SparkSession"):
        pipeline.usage(record, spark=object())

"""Jobs on Spark give what they give in this process for the record of a gateway with several processes.

Apache Kafka and the gateway are real; the processes write the record under node ids of their own.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.gateway.conftest import create_topic, kafka, kafka_classpath
from tests.gateway.raw_client import RawClient
from tests.gateway.test_processes import SeveralProcesses, set_quota
from tests.spark.test_local import _differing, _written
from tests.unit.pipeline.watch.test_here import WINDOW_MS, by_name, replayed
from tests.waiting import wait_until

from tidegate.pipeline.jobs.jobs import Jobs
from tidegate.pipeline.proposals.wanted import Wanted
from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.record import jobs_here, jobs_on_spark
from tidegate.pipeline.replay.limits import Tolerance, levels_of
from tidegate.pipeline.replay.plan import Plan, in_force_plan
from tidegate.pipeline.watch.checkpoint import Checkpoint
from tidegate.pipeline.watch.on_spark import watch_on_spark
from tidegate.pipeline.watching import WatchHere
from tidegate.quota import QuotaRecord
from tidegate.usage.process_nodes import node_of_process

__all__ = ["create_topic", "kafka", "kafka_classpath"]

BROKER = 1
PROCESSES = 2
CLIENTS = 6
REQUESTS = 60
VALUE_BYTES = 3000
RATE = 20_000.0


@pytest.fixture(scope="module")
def record(kafka, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the record of a gateway whose clients are throttled, and whose quotas change meanwhile."""
    options = ("--processes", str(PROCESSES), "--override", "quota.window.num=2")
    gateway = SeveralProcesses(tmp_path_factory.mktemp("gateway"), kafka.address, options)
    gateway.start()
    try:
        set_quota(gateway, "client-0", producer_byte_rate=RATE)
        with RawClient(gateway.port, "admin") as admin:
            admin.create_topics(("processes", 1))
        run_clients(gateway)
        set_quota(gateway, "client-1", consumer_byte_rate=RATE)
        run_clients(gateway)
        assert gateway.stop() == 0
        wait_until(lambda: not list(gateway.usage_dir.glob("spool/*/*.closed")))
    finally:
        gateway.close()
    recorded = {
        row["node_id"] for row in read(gateway.usage_dir) if (row["client_id"] or "").startswith("client-")
    }
    assert recorded == {node_of_process(BROKER, number) for number in range(1, PROCESSES + 1)}
    return gateway.usage_dir


def run_clients(gateway: SeveralProcesses) -> None:
    """Produce and fetch over several connections, which are at both processes."""
    with ExitStack() as closing:
        clients = [
            closing.enter_context(RawClient(gateway.port, f"client-{number % 3}"))
            for number in range(CLIENTS)
        ]
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(work, clients))


def work(client: RawClient) -> None:
    """Send requests, one after the other."""
    for number in range(REQUESTS):
        client.produce("processes", VALUE_BYTES + number)
        if number % 3 == 0:
            client.fetch("processes", max_bytes=VALUE_BYTES, max_wait_ms=0)
        if number % 20 == 0:
            client.create_topics((f"processes-{client.client_id}-{number}-{id(client)}", 1))


def plans() -> list[Plan]:
    """Return a plan, in open and in closed loop, and the quotas in force."""
    records = tuple(
        QuotaRecord(entity=(("client-id", None),), key=key, value=value)
        for key, value in (
            ("producer_byte_rate", RATE / 2),
            ("consumer_byte_rate", RATE / 2),
            ("controller_mutation_rate", 0.5),
        )
    )
    closed = Plan(name="forecast", records=records, is_closed=True)
    return [Plan(name="tight", records=records), closed, in_force_plan()]


def test_usage_and_obedience_are_the_same(spark, record, tmp_path):
    """Every client, minute, topic and listener; who came back early. The only node is the broker."""
    found = {}
    with open_usage(record) as files:
        for place, jobs in (("here", jobs_here(files)), ("spark", jobs_on_spark(spark, files))):
            found[place] = [
                jobs.usage(out=tmp_path / place, top=5),
                jobs.usage(out=tmp_path / place / "topic", top=5, by=("topic",)),
                jobs.obedience(out=tmp_path / place / "obedience"),
            ]
    assert found["here"] == found["spark"]
    by_client = {row["client_id"]: row for row in found["here"][0].top}
    assert all(by_client[f"client-{number}"]["requests"] >= 4 * REQUESTS for number in range(3))
    for directory, names in (
        ("", ("usage_by_client", "usage_by_minute")),
        ("topic", ("usage_by_topic",)),
        ("obedience", ("obedience_by_client", "obedience_by_software")),
    ):
        here, on_spark = (_written(tmp_path / place / directory, names) for place in ("here", "spark"))
        assert here == on_spark


def test_replays_are_the_same(spark, record, tmp_path):
    """The quotas in force, a plan and a forecast: every entity, client and decision, and what state is left."""
    with open_usage(record) as files:
        here = jobs_here(files).replay(plans(), out=tmp_path / "here", with_decisions=True)
        on_spark = jobs_on_spark(spark, files).replay(plans(), out=tmp_path / "spark", with_decisions=True)
    assert _differing(here.entities, on_spark.entities) == []
    throttled = {row["plan"] for row in here.entities if row["throttled_requests"]}
    assert throttled == {plan.name for plan in plans()}
    names = ("replay_by_client", "replay_by_entity", "decisions", "state")
    assert _written(tmp_path / "here", names) == _written(tmp_path / "spark", names)
    assert {row["node_id"] for row in read(tmp_path / "here" / "replay_by_client")} == {BROKER}


def test_limits_and_recommended_quotas_are_the_same(spark, record, tmp_path):
    """Every entity and node, to the last bit."""
    with open_usage(record) as files:
        found = {
            place: (
                jobs.limits(levels_of("client-id"), Tolerance(), out=tmp_path / place),
                recommended(jobs),
            )
            for place, jobs in (("here", jobs_here(files)), ("spark", jobs_on_spark(spark, files)))
        }
    assert found["here"] == found["spark"]
    names = ("limits_by_entity", "limits_by_node")
    assert _written(tmp_path / "here", names) == _written(tmp_path / "spark", names)


def test_ranges_are_the_same(spark, record, tmp_path):
    """A part of the record that begins between rows of both processes."""
    with open_usage(record) as files:
        times = sorted(time for row in read(record / "parquet") for time in [row["ts_ms"]])
        assert files.rows == len(times)
    ends = {"from_ms": times[len(times) // 3], "to_ms": times[2 * len(times) // 3]}
    with open_usage(record, **ends) as files:
        results = [
            (
                jobs.usage(out=None, top=100),
                _differing(jobs.replay(plans(), out=None).entities, ()),
            )
            for jobs in (jobs_here(files), jobs_on_spark(spark, files))
        ]
    assert results[0] == results[1]
    assert results[0][0].top


def test_a_watch_shows_the_broker(spark, record, tmp_path):
    """In this process and on Spark: one node, with the sums of `replay` and `usage`."""
    wanted = [plans()[0], in_force_plan()]
    watch = WatchHere(record, wanted, window_ms=WINDOW_MS, from_ms=0, lateness_s=0)
    while watch.step():
        pass
    with Checkpoint(tmp_path / "watched") as held:
        on_spark = watch_on_spark(
            spark,
            record,
            wanted,
            window_ms=WINDOW_MS,
            from_ms=0,
            checkpoint=held,
            every_s=0.1,
            is_once=True,
            show=lambda totals, done: False,
            lateness_s=0,
        )
    entities, usage = replayed(record, wanted)
    for totals in (watch.totals, on_spark):
        assert [*totals.nodes] == [BROKER]
        assert totals.late_events == 0
        assert by_name(totals.in_all().entities) == by_name(entities)
        assert by_name(totals.in_all().clients) == by_name(usage)


def recommended(jobs: Jobs) -> tuple:
    """Return the quotas that are proposed, and how far behind consumers read, in an order of its own."""
    found = jobs.recommend(None, Wanted(force=True))
    assert found.quotas.entries
    return found.by, found.quotas, sorted(map(repr, found.backlogs))


def read(path: Path) -> list[dict]:
    """Return the rows of Parquet files."""
    return [
        row
        for file in sorted(path.rglob("*.parquet"))
        for row in pq.read_table(file, partitioning=None).to_pylist()
    ]

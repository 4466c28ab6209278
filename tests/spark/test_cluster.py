"""On executors of their own: they find the package, which local mode would not tell."""

import json
import subprocess
import sys
from pathlib import Path
from random import Random

from pyspark.sql import SparkSession
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS, random_records, random_traffic
from tests.replaying.node import RecordingNode

from tidegate.pipeline.spark.session import running_spark


def test_executors_in_processes_of_their_own_decide_as_recorded(tmp_path):
    """Two executors that share nothing with the driver but the installed package replay a record exactly."""
    rng = Random(1)
    node = RecordingNode()
    node.start(START_MS, records=random_records(rng, at_most=8))
    random_traffic(node, rng, events=600)
    write_events(tmp_path / "usage", node.events)
    script = Path(__file__).with_name("cluster_job.py")
    command = [sys.executable, str(script), str(tmp_path / "usage")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["executors"] == 2
    assert sum(row["throttled_requests"] for row in answer["rows"]) > 0
    assert sum(row["different_decisions"] for row in answer["rows"]) == 0


def test_the_session_of_a_host_keeps_its_settings(spark):
    """In a notebook the jobs use its executors, with settings of their own, and leave it running."""
    host = spark.session
    active = SparkSession.getActiveSession()
    assert active is not None  # `host`, or where a streaming query ran before, what it has left
    of_java = host._jvm.SparkSession.getActiveSession().get()
    zone = "spark.sql.session.timeZone"
    host.conf.set(zone, "Asia/Tokyo")
    try:
        before = dict(host.conf.getAll)
        with running_spark(app_name="guest", rows=0) as guest:
            assert guest.session.sparkContext is host.sparkContext
            assert guest.session.conf.get(zone) == "UTC"
            assert dict(host.conf.getAll) == before
        assert SparkSession.getActiveSession() is active
        assert host._jvm.SparkSession.getActiveSession().get().equals(of_java)
        assert host.range(3).count() == 3
    finally:
        host.conf.set(zone, "UTC")

"""The jobs on a Spark Connect server, whose Python does not have this package."""

import os
import socket
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path
from random import Random

import pyspark
import pytest
from bench.ports import free_port
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS, random_records, random_traffic
from tests.replaying.node import RecordingNode

import tidegate

_SPARK_HOME = Path(pyspark.__file__).parent
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
_START_SECONDS, _JOB_SECONDS = 150, 280

pytestmark = pytest.mark.timeout(600)


def _bare_python(directory):
    """Make a Python that has what this one has installed, but for this package."""
    venv.create(directory)
    paths = sysconfig.get_paths(vars={"base": str(directory), "platbase": str(directory)})
    Path(paths["purelib"], "all-but-us.pth").write_text(sysconfig.get_paths()["purelib"])
    python = str(directory / "bin" / "python")
    found = subprocess.run(
        [python, "-c", "import numba, tidegate"],
        env=_environ(),
        cwd=directory,
        capture_output=True,
        text=True,
    )
    assert "No module named 'tidegate'" in found.stderr
    return python


def _environ(**more):
    ours = {"PYTHONPATH", "PYSPARK_PYTHON", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"}
    return {key: value for key, value in os.environ.items() if key not in ours} | more


@pytest.fixture
def server(tmp_path):
    """Start a server of pip's pyspark on loopback; yield its address, and end it."""
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    options = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    command = [str(_SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]", "--class", _SERVER]
    environ = _environ(SPARK_HOME=str(_SPARK_HOME), PYSPARK_PYTHON=_bare_python(tmp_path / "bare"))
    with (tmp_path / "server.log").open("wb") as log:
        running = subprocess.Popen(
            [*command, *options, "spark-internal"], cwd=tmp_path, env=environ, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with socket.socket() as asking:
                if asking.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert running.poll() is None, (tmp_path / "server.log").read_text()
            assert time.monotonic() < deadline, "the server does not listen"
            time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait()


def test_the_jobs_run_on_spark_connect(server, tmp_path):
    """Every function gives what it gives in this process; the session keeps its settings; the command, too."""
    for node_id in (1, 2):
        rng = Random(node_id)
        node = RecordingNode(node_id)
        node.start(START_MS, records=random_records(rng, at_most=8))
        random_traffic(node, rng, events=400)
        write_events(tmp_path / "usage", node.events, rows_per_file=150)
    script = Path(__file__).with_name("connect_client.py")
    source = str(Path(tidegate.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "usage"), str(tmp_path)],
        cwd=tmp_path,
        env=_environ(SPARK_REMOTE=server, PYTHONPATH=source),
        capture_output=True,
        text=True,
        timeout=_JOB_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("the same\n")
    assert "on Spark Connect: SPARK_REMOTE" in done.stderr

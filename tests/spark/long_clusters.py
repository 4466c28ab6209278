"""The commands on a standalone cluster, master and two workers on loopback, whose Python does not have this package.

What comes out is compared with what one process says of the same record.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pyspark
import pytest
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS, random_records, random_traffic
from tests.replaying.node import RecordingNode

import tidegate

_SPARK_HOME = Path(pyspark.__file__).parent
_SUBMIT = _SPARK_HOME / "bin" / "spark-submit"
_PACKAGE = Path(tidegate.__file__).parent
_RUN = "import sys\nfrom tidegate.cli.main import main\nsys.exit(main())\n"
_SECONDS = 280


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A master's URL, and the Python that its workers have: with our dependencies, without our package."""

    master: str
    python: Path


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a Python that has what this one has installed, but for this package."""
    directory = tmp_path_factory.mktemp("bare")
    venv.create(directory)
    paths = sysconfig.get_paths(vars={"base": str(directory), "platbase": str(directory)})
    Path(paths["purelib"], "all-but-us.pth").write_text(sysconfig.get_paths()["purelib"])
    python = directory / "bin" / "python"
    found = _run([str(python), "-c", "import numba, pyarrow, tidegate"], {"PYSPARK_DRIVER_PYTHON": ""})
    assert "No module named 'tidegate'" in found.stderr
    return python


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, bare_python: Path) -> Iterator[Cluster]:
    """Start a master and two workers of a core each; end them."""
    directory = tmp_path_factory.mktemp("cluster")
    environ = _environ() | {"SPARK_WORKER_DIR": str(directory)}
    deploy = "org.apache.spark.deploy"
    options = ["--host", "127.0.0.1", "--webui-port", "0"]
    log = directory / "master"
    master, url = _started(
        [f"{deploy}.master.Master", *options, "--port", "0"], r"Starting Spark master at (\S+)", environ, log
    )
    workers = []
    try:
        for number in range(2):
            command = [f"{deploy}.worker.Worker", *options, "--cores", "1", "--memory", "1g", url]
            says = r"Successfully registered with master (\S+)"
            workers.append(_started(command, says, environ, directory / str(number))[0])
        yield Cluster(master=url, python=bare_python)
    finally:
        for process in (*workers, master):
            process.terminate()
            process.wait()


@pytest.fixture(scope="module")
def usage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the record of two throttled nodes."""
    directory = tmp_path_factory.mktemp("usage")
    rng = Random(3)
    for node_id in (1, 2):
        node = RecordingNode(node_id)
        node.start(START_MS, records=random_records(rng, at_most=8))
        random_traffic(node, rng, events=600)
        write_events(directory / "parquet", node.events)
    return directory


@pytest.fixture(scope="module")
def expected(usage: Path) -> dict[str, str]:
    """Say what one process says of the record."""
    commands = {"usage": ["usage", str(usage)], "replay": ["replay", str(usage), "--in-force"]}
    return {
        name: _done([sys.executable, "-m", "tidegate", *command], {}) for name, command in commands.items()
    }


def test_the_package_goes_along(cluster: Cluster, usage: Path, expected: dict[str, str]) -> None:
    """`--master` is enough: executors with a Python of their own get the package from the driver."""
    python = {"PYSPARK_PYTHON": str(cluster.python)}
    replay = [
        sys.executable,
        "-m",
        "tidegate",
        "replay",
        str(usage),
        "--in-force",
        "--master",
        cluster.master,
    ]
    assert _done(replay, python) == expected["replay"]


def test_submitted_with_an_archive(
    cluster: Cluster, usage: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    """`spark-submit --py-files`: neither the driver's Python nor the executors' has the package."""
    archive = shutil.make_archive(str(tmp_path / "tidegate"), "zip", _PACKAGE.parent, _PACKAGE.name)
    script = tmp_path / "run_tidegate.py"
    script.write_text(_RUN)
    submit = [str(_SUBMIT), "--master", cluster.master, "--py-files", archive, str(script)]
    python = {"PYSPARK_PYTHON": str(cluster.python), "PYSPARK_DRIVER_PYTHON": str(cluster.python)}
    assert _done([*submit, "replay", str(usage), "--in-force"], python) == expected["replay"]


def test_submitted_where_it_is_installed(usage: Path, expected: dict[str, str]) -> None:
    """`spark-submit` of the installed package itself; Spark's own settings decide where it runs."""
    submit = [str(_SUBMIT), "--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2"]
    command = [*submit, str(_PACKAGE / "__main__.py"), "usage", str(usage)]
    assert _done(command, {"PYSPARK_PYTHON": sys.executable}) == expected["usage"]


def test_submitted_to_executors_of_its_own(usage: Path, expected: dict[str, str]) -> None:
    """`local-cluster`: executors in processes of their own, to which the installed package goes along."""
    options = ["--master", "local-cluster[2,1,1024]", "--conf", "spark.sql.shuffle.partitions=2"]
    submit = [str(_SUBMIT), *options, str(_PACKAGE / "__main__.py")]
    python = {"PYSPARK_PYTHON": sys.executable}
    assert _done([*submit, "usage", str(usage)], python) == expected["usage"]
    assert _done([*submit, "replay", str(usage), "--in-force"], python) == expected["replay"]


@pytest.mark.parametrize(
    ("python", "reason"),
    [
        ("/nowhere/python", "error: the executors cannot run '/nowhere/python'\n"),
        ("/usr/bin/python3", "error: the executors' Python has no module "),
    ],
)
def test_what_failed_is_said(cluster: Cluster, usage: Path, python: str, reason: str) -> None:
    """In a line, with a hint."""
    command = [
        sys.executable,
        "-m",
        "tidegate",
        "replay",
        str(usage),
        "--in-force",
        "--master",
        cluster.master,
    ]
    done = _run(command, {"PYSPARK_PYTHON": python})
    assert done.returncode == 2
    assert done.stderr.startswith(reason)
    assert "\nhint: see docs/clusters.md" in done.stderr


def _environ() -> dict[str, str]:
    """Return an environment in which Spark keeps to loopback, and nothing tells of this package."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return environ | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(_SPARK_HOME)}


def _started(
    command: list[str], says: str, environ: dict[str, str], log: Path
) -> tuple[subprocess.Popen[bytes], str]:
    """Start a part of the cluster; return it when it says that it runs, and what else it says there."""
    with log.open("wb") as said:
        process = subprocess.Popen([_SPARK_HOME / "bin" / "spark-class", *command], env=environ, stderr=said)
    while process.poll() is None:
        if found := re.search(says, log.read_text()):
            return process, found[1]
        time.sleep(0.1)
    raise AssertionError(log.read_text())


def _run(command: list[str], environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    # The driver's own package: where it is not installed it comes from here.
    ours = {} if "PYSPARK_DRIVER_PYTHON" in environ else {"PYTHONPATH": str(_PACKAGE.parent)}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
        env=_environ() | ours | environ,
    )


def _done(command: list[str], environ: dict[str, str]) -> str:
    done = _run(command, environ)
    assert done.returncode == 0, done.stderr
    return done.stdout

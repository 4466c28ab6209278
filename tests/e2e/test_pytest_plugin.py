"""The plugin of pytest, in runs of pytest that find it by its entry point as an installed Tidegate has it."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCE = """
import pytest
from confluent_kafka import Producer

def produce(kafka, topic="orders"):
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "client.id": "loader"})
    producer.produce(topic, b"x" * 14_000)
    assert producer.flush(30) == 0
    return len([each for each in kafka.requests() if each.api == "Produce"])
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that runs pytest on a file of tests, with Tidegate installed as its pyproject.toml says.

    After the run no directory of a broker is left.
    """
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    site = tmp_path / "site" / "tidegate-0.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: tidegate\nVersion: 0\n")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    points = [f"{name} = {module}" for name, module in project["entry-points"]["pytest11"].items()]
    (site / "entry_points.txt").write_text("[pytest11]\n" + "\n".join(points) + "\n")

    def run(text, *options):
        directory = tmp_path / "tests"
        directory.mkdir(exist_ok=True)
        (directory / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers -p no:cacheprovider\n")
        (directory / "test_it.py").write_text(PRODUCE + text)
        paths = [str(site.parent), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:randomly", "-ra", "--tb=short", *options],
            cwd=directory,
            env={**env, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "TMPDIR": str(temporary)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert list(temporary.glob("tidegate-*")) == []
        return done

    return run


def test_each_test_has_a_broker_as_its_marker_says(run):
    """A fresh broker for each test; quotas, nodes, users and settings by marker; a shared one; more by the factory."""
    done = run(
        """
@pytest.mark.parametrize("number", [1, 2])
def test_fresh(tidegate_broker, number):
    assert produce(tidegate_broker) == 1
    assert tidegate_broker.throttles() == []

@pytest.mark.tidegate_broker(quotas=[{"client-id": "loader", "producer_byte_rate": "1KiB"}], nodes=2)
def test_throttled(tidegate_broker):
    assert len(tidegate_broker.addresses) == 2
    produce(tidegate_broker)
    assert [each.quota_type for each in tidegate_broker.throttles(client_id="loader")] == ["Produce"]

@pytest.mark.parametrize("number", [1, 2])
def test_shared(tidegate_shared_broker, number):
    assert produce(tidegate_shared_broker) == number

def test_more(tidegate_broker_factory):
    brokers = [tidegate_broker_factory(), tidegate_broker_factory(settings={"num.partitions": 2})]
    assert [produce(kafka) for kafka in brokers] == [1, 1]
"""
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout


def test_the_log_is_in_the_report_of_a_failure(run):
    """What the broker logged during a failed test is shown, and nothing of it for tests that pass."""
    done = run(
        """
def test_right(tidegate_shared_broker):
    tidegate_shared_broker.set_quota({"client-id": "a"}, producer_byte_rate=1)

@pytest.mark.tidegate_broker(settings={"no.such.setting": 1})
def test_wrong(tidegate_broker, tidegate_shared_broker):
    assert produce(tidegate_broker) == 2

@pytest.mark.tidegate_broker(settings={"num.partitions": 0})
def test_not_started(tidegate_broker):
    pass
"""
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed, 1 error" in done.stdout
    section = re.search(
        r"-+ tidegate broker log \((127\.0\.0\.1:\d+)\) -+\n(.*?)\n(?:=|_|-)", done.stdout, re.S
    )
    assert section, done.stdout
    assert "no.such.setting" in section[2]
    assert f"listening on {section[1]}" in section[2]
    assert "num.partitions" in done.stdout


def test_options_without_a_name_are_refused(run):
    """A marker whose quotas would be ignored is an error of the test."""
    done = run(
        """
@pytest.mark.tidegate_broker([{"client-id": "loader", "producer_byte_rate": "1KiB"}])
def test_throttled(tidegate_broker):
    pass
"""
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "marker tidegate_broker takes options by name, such as quotas=[...], got [{" in done.stdout


def test_processes_of_xdist_do_not_meet(run):
    """Brokers of several processes have ports and directories of their own."""
    done = run(
        """
@pytest.mark.parametrize("number", range(6))
def test_alone(tidegate_broker, tidegate_shared_broker, number, worker_id):
    assert produce(tidegate_broker) == 1
    produce(tidegate_shared_broker, worker_id)
    print(worker_id)
""",
        *("-n", "2", "-rP"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout
    assert {"gw0", "gw1"} <= set(re.findall(r"^gw\d$", done.stdout, re.M))


def test_a_suite_without_brokers_is_left_alone(run):
    """The plugin starts nothing and loads no other module of Tidegate's engine."""
    done = run(
        """
import sys

def test_nothing():
    assert "tidegate.testing.pytest_plugin" in sys.modules
    assert not {"tidegate.quota", "tidegate.wire", "tidegate.config"} & set(sys.modules)
"""
    )
    assert done.returncode == 0, done.stdout + done.stderr

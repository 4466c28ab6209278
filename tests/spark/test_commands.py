"""`tidegate usage` and `tidegate replay` as they are typed."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from tests.replaying.callbacks import quota_groups
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS, random_records, random_traffic
from tests.replaying.node import RecordingNode

from tidegate.cli.main import main
from tidegate.quota import QuotaRecord

_QUOTAS = "quotas:\n  - user: {default: true}\n    producer_byte_rate: 1KiB\n    request_percentage: 0.01\n"


def _tidegate(*arguments, directory=None, **environ):
    command = [Path(sys.executable).with_name("tidegate"), *map(str, arguments)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=directory,
        env=os.environ | environ,
    )


@pytest.fixture
def on_spark(spark, capfd):
    """Return a function that runs a command in the session of these tests: to start one for each takes long.

    It returns the exit code, and what is on stdout and stderr.
    """

    def run(*arguments):
        capfd.readouterr()
        code = main([*map(str, arguments), "--master", "local[2]"])
        return code, *capfd.readouterr()

    return run


@pytest.fixture(scope="module")
def usage(tmp_path_factory):
    """A directory with the record of one throttled node."""
    directory = tmp_path_factory.mktemp("usage")
    rng = Random(3)
    node = RecordingNode()
    node.start(START_MS, records=random_records(rng, at_most=8))
    random_traffic(node, rng, events=600)
    write_events(directory / "parquet", node.events)
    return directory


@pytest.fixture
def astray(tmp_path):
    """A directory with modules that are nobody's business: they are named as those that the commands import.

    A module of it that is imported where a command is typed, here or in Spark's workers, fails the test.
    """
    directory, caught = tmp_path / "astray", tmp_path / "caught"
    directory.mkdir()
    for name in ("numpy", "pyarrow", "pandas", "numba", "pyspark", "tidegate", "sitecustomize"):
        (directory / f"{name}.py").write_text(
            f"open({str(caught)!r}, 'a').write({name!r} + '\\n')\nraise SystemExit(9)\n"
        )
    yield directory
    assert not caught.exists(), caught.read_text()


def test_usage_prints_a_table_and_writes_two(usage, astray, tmp_path):
    """The table is on stdout, nothing on stderr, and the Parquet files hold every client and minute."""
    options = ("--out", tmp_path / "out", "--top", 3, "--master", "local[1]")
    done = _tidegate("usage", usage, *options, directory=astray)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage by user and client-id (3 of 16, most bytes first)" in done.stdout
    by_client = pq.read_table(tmp_path / "out" / "usage_by_client")
    by_minute = pq.read_table(tmp_path / "out" / "usage_by_minute")
    assert len(by_client) == 16
    assert sum(by_client["requests"].to_pylist()) == sum(by_minute["requests"].to_pylist()) > 0


def test_replay_prints_a_table_per_plan_and_checks_the_record(usage, astray, tmp_path):
    """The plan and the quotas in force are shown, and every decision is as recorded."""
    plan = tmp_path / "tight.yaml"
    plan.write_text(_QUOTAS)
    done = _tidegate(
        "replay",
        usage,
        "--quotas",
        plan,
        "--in-force",
        "--out",
        tmp_path / "out",
        "--decisions",
        "--loop",
        "open",
        "--master",
        "local[1]",
        directory=astray,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].split()[1:] == ["recorded", "tight", "in", "force"]
    (checked,) = [line for line in done.stdout.splitlines() if "decisions as recorded" in line]
    same, of = checked.removeprefix("in force: ").removesuffix(" decisions as recorded").split(" of ")
    assert same == of != "0"
    for table in ("replay_by_entity", "replay_by_client", "decisions"):
        plans = pq.read_table(tmp_path / "out" / table, columns=["plan"])["plan"]
        assert set(plans.to_pylist()) == {"tight", "in force"}


def test_a_record_that_does_not_come_out_again_fails_the_check(on_spark, tmp_path):
    """A throttle time that no engine decided makes `--in-force` answer 1."""
    node = RecordingNode()
    node.start(START_MS)
    node.produce("alice", "c1", 10, START_MS)["produce_throttle_ms"] = 5
    write_events(tmp_path, node.events)
    code, out, _ = on_spark("replay", tmp_path, "--in-force")
    assert code == 1
    assert "in force: 1 of 2 decisions as recorded" in out


def test_what_a_callback_decided_is_replayed(on_spark, tmp_path):
    """Whoever shares a limit is told by the tags; and what is smooth by the settings."""
    node = RecordingNode()
    node.start(START_MS)
    node.exchange(quota_groups(), "tidegate.callbacks:QuotaGroups", START_MS)
    for user in ("alice", "bob") * 3:
        node.produce(user, "c1", 10_000, START_MS + 10)
    node.quota(QuotaRecord(entity=(), key="tidegate.quota.smooth", value=1.0), START_MS + 10)
    assert node.produce("bob", "c1", 10_000, START_MS + 11)["produce_throttle_ms"] == 4000
    write_events(tmp_path, node.events)
    code, out, _ = on_spark("replay", tmp_path, "--in-force")
    assert code == 0
    assert "in force: 14 of 14 decisions as recorded" in out
    assert "group=etl" in out


@pytest.mark.parametrize("command", ["usage", "replay"])
def test_missing_java_is_one_clear_error(command, usage, tmp_path):
    """Before Spark fails on it with a stack trace."""
    more = ("--in-force",) if command == "replay" else ()
    done = _tidegate(command, usage, *more, "--master", "local[1]", JAVA_HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: JAVA_HOME is ")
    assert done.stderr.splitlines()[1].startswith("hint: install Java 17 or later")


@pytest.mark.parametrize("command", ["usage", "replay"])
def test_little_input_needs_no_java(command, usage, on_spark, tmp_path):
    """The same tables as on Spark; --explain says on stderr where it ran, and why."""
    more = ("--in-force",) if command == "replay" else ()
    here = _tidegate(command, usage, *more, "--explain", JAVA_HOME=str(tmp_path))
    assert here.stderr.startswith("in this process: ")
    code, out, explained = on_spark(command, usage, *more, "--explain")
    assert explained == "on Spark: --master local[2]\n"
    assert (here.returncode, here.stdout) == (code, out)
    assert code == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("usage", "{tmp}/nowhere"), "error: no usage record at '{tmp}/nowhere'"),
        (("replay", "{usage}"), "error: no quotas to replay"),
        (
            ("replay", "{usage}", "--quotas", "{tmp}/none.yaml"),
            "error: {tmp}/none.yaml: cannot read the file",
        ),
        (("replay", "{usage}", "--in-force", "--decisions"), "error: --decisions needs --out"),
        (
            ("replay", "{usage}", "--quotas", "{tmp}/none.yaml", "--decisions", "--out", "{usage}"),
            "error: --decisions needs --loop open: in closed loop",
        ),
        (
            ("replay", "{usage}", "--quotas", "{tmp}/none.yaml", "--continue", "{usage}"),
            "hint: add --loop open, here and to the replay of the earlier hours",
        ),
        (("usage", "{usage}", "--out", "{tmp}/full"), "error: '{tmp}/full' is not empty"),
        (("usage", "{usage}", "--top", "0"), "expected a whole number from 1 to 100000, got '0'"),
    ],
)
def test_bad_options_are_one_clear_error(arguments, error, usage, tmp_path):
    """Exit code 2 and the reason on stderr, nothing on stdout."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    done = _tidegate(*(argument.format(tmp=tmp_path, usage=usage) for argument in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert error.format(tmp=tmp_path) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_corrupt_file_is_named(tmp_path):
    """Before Spark is started."""
    (tmp_path / "x.parquet").write_bytes(b"PAR1 but nothing else PAR1")
    done = _tidegate("usage", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: '{tmp_path / 'x.parquet'}' is not a usable Parquet file")


@pytest.mark.parametrize("command", ["usage", "replay"])
def test_help_has_examples_and_exit_codes(command):
    """A newcomer can begin with the help alone."""
    done = _tidegate(command, "--help")
    assert done.returncode == 0
    assert "examples:" in done.stdout
    assert "exit codes:" in done.stdout

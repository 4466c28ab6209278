"""`tidegate recommend`: what it prints is taken by `replay --quotas`, by a shell, and throttles nobody protected."""

import json
import os
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS, random_traffic
from tests.replaying.node import RecordingNode
from tests.unit.kafka_log.samples import QUICK

from tidegate.cli.main import main
from tidegate.config.quotas_file import parse_quotas_file
from tidegate.quota import QuotaRecord

_HOSTILE = (
    "--entity-default",
    "a'; touch caught; '\n# é\x1b[2J",
    '$(touch caught)`"',
    "<default>",
    "\u202eevil",
)
_FORECAST = """\
# In a forecast for the record (closed loop: throttled clients send later),
#   these quotas throttle:
#   produce user=loader: """
_FEW = settings(
    max_examples=5,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture
def usage(tmp_path: Path) -> Path:
    """Two nodes: a loader that uses the first, a checkout on both, one that was throttled, some small ones."""
    for node_id in (1, 2):
        node = RecordingNode(node_id)
        throttled = QuotaRecord(entity=(("user", "etl"),), key="consumer_byte_rate", value=1000.0)
        node.start(START_MS, records=(throttled,))
        for now_ms in range(START_MS, START_MS + 30_000, 500):
            node.produce("checkout", "web", 10_000, now_ms, handler_ns=300_000)
            node.produce(f"app{now_ms % 3}", "x", 70_000, now_ms)
            node.fetch("etl", "e", 50_000, now_ms)
            if node_id == 1:
                node.produce("loader", "l", 2_000_000, now_ms)
        write_events(tmp_path / "usage" / "parquet", node.events, rows_per_file=100)
    return tmp_path / "usage"


def _hostile_usage(directory: Path) -> Path:
    node = RecordingNode()
    node.start(START_MS)
    for number, user in enumerate((*_HOSTILE, *(f"u{number}" for number in range(40)))):
        node.produce(user, "c", 30_000_000 * 2 ** max(0, 5 - number), START_MS + number)
    write_events(directory / "usage" / "parquet", node.events)
    return directory / "usage"


def _replayed(usage: Path, quotas: Path, directory: Path) -> list[dict[str, object]]:
    out = directory / "out"
    assert main(["replay", str(usage), "--quotas", str(quotas), "--out", str(out)]) == 0
    rows: list[dict[str, object]] = pq.read_table(out / "replay_by_client").to_pylist()
    return rows


def test_the_file_is_taken_as_it_is_and_throttles_nobody(
    usage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the comments say of it is what a replay of the file says; so is who was throttled before."""
    assert main(["recommend", "--force", str(usage), "--protect", "user=checkout"]) == 0
    text = capsys.readouterr().out
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert max(map(len, comments)) <= 80
    assert "# In a replay of the record, these quotas throttle no client." in comments
    assert "# Protected, and not throttled in the forecast: user=checkout." in comments
    assert any(line.startswith("#   fetch user=etl: ") and " requests, " in line for line in comments)
    assert "# produce: 96.3% of the usage of all clients is on node 1 of 2" in comments
    (tmp_path / "quotas.yaml").write_text(text)
    named = {dict(entry.entity)["user"] for entry in parse_quotas_file(text).entries}
    assert named == {None, "checkout", "loader"}
    rows = _replayed(usage, tmp_path / "quotas.yaml", tmp_path)
    assert rows
    assert sum(int(str(row["throttled_requests"])) for row in rows) == 0


def test_a_budget_throttles_the_large_and_says_so(
    usage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Never the protected."""
    arguments = ["--protect", "user=checkout", "--budget", "producer_byte_rate=2MiB", "--headroom", "1"]
    assert main(["recommend", "--force", str(usage), *arguments]) == 0
    text = capsys.readouterr().out
    assert _FORECAST in text
    (tmp_path / "quotas.yaml").write_text(text)
    throttled = {
        row["user"]
        for row in _replayed(usage, tmp_path / "quotas.yaml", tmp_path)
        if row["throttled_requests"]
    }
    assert throttled == {"loader"}


def test_a_document_has_the_quotas_their_reasons_and_the_forecast(
    usage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Print what the file holds, for programs; without a default if so asked."""
    assert main(["recommend", "--force", str(usage), "--json", "--no-default"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["command"], document["by"], document["forecast"]) == ("recommend", "user", [])
    (loader,) = document["quotas"]
    assert loader["entity"] == {"user": "loader"}
    assert loader["values"]["producer_byte_rate"] > 4e6
    assert loader["reason"].startswith("produce: needs ")
    assert document["notes"][0].startswith("Proposed by tidegate recommend from ")
    assert main(["recommend", "--force", str(usage), "--json", "--as", "kafka-configs"]) == 2
    assert "--json cannot be used with --as" in capsys.readouterr().err


def test_a_budget_given_twice_is_refused(usage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither of the two is taken for what was meant."""
    budgets = ["--budget", "producer_byte_rate=2MiB", "--budget", "producer_byte_rate=3MiB"]
    assert main(["recommend", "--force", str(usage), *budgets]) == 2
    assert capsys.readouterr() == (
        "",
        "error: --budget producer_byte_rate is given twice\nhint: give one --budget for each key\n",
    )


@_FEW
@given(seed=st.integers(0, 2**32 - 1), budget=st.sampled_from(["100GB", "400MB", "3GB"]))
def test_nobody_protected_is_ever_throttled(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str], seed: int, budget: str
) -> None:
    """Whatever was recorded: the proposal is refused, or leaves them alone."""
    directory = tmp_path_factory.mktemp("usage")
    node = RecordingNode()
    node.start(START_MS)
    random_traffic(node, Random(seed), events=200, quotas_change=False)
    write_events(directory / "usage", node.events)
    protect = ("--protect", "user=alice", "--budget", f"producer_byte_rate={budget}")
    capsys.readouterr()  # what the last example has printed
    done = main(["recommend", "--force", str(directory / "usage"), *protect])
    text = capsys.readouterr().out
    if done == 2:
        return
    (directory / "quotas.yaml").write_text(text)
    rows = _replayed(directory / "usage", directory / "quotas.yaml", directory)
    alice = [row for row in rows if row["user"] == "alice"]
    assert alice
    assert not any(
        row["throttled_requests"] or row["rejected_mutations"] or row["capped_fetches"] for row in alice
    )


def test_hostile_names_stay_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the file and in a shell, which hands each of them to the command whole, and runs nothing else."""
    usage = _hostile_usage(tmp_path)
    protect = [f"--protect=user={name}" for name in _HOSTILE]
    assert main(["recommend", "--force", str(usage), *protect]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert {dict(entry.entity)["user"] for entry in parse_quotas_file(text).entries} == {None, *_HOSTILE}
    assert main(["recommend", "--force", str(usage), *protect, "--as", "kafka-configs"]) == 0
    script = capsys.readouterr().out
    fake = tmp_path / "bin" / "kafka-configs.sh"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\nprintf '%s\\0' \"$@\" >> {shlex.quote(str(tmp_path / 'arguments'))}\n")
    fake.chmod(0o755)
    environ = os.environ | {"PATH": f"{fake.parent}:{os.environ['PATH']}", "BOOTSTRAP": "h:1"}
    subprocess.run(["/bin/sh"], input=script.encode(), cwd=tmp_path, env=environ, check=True, timeout=60)
    words = (tmp_path / "arguments").read_bytes().decode().split("\0")
    after = dict(pairwise(words)).keys()
    names = {word for option, word in pairwise(words) if option == "--entity-name"}
    joined = {word.partition("=")[2] for word in words if word.startswith("--entity-name=")}
    assert names | joined == set(_HOSTILE)
    assert "--entity-default" in after
    assert not (tmp_path / "caught").exists()


def test_no_broker_named_sets_nothing(usage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The script says what it wants."""
    assert main(["recommend", "--force", str(usage), "--as", "kafka-configs"]) == 0
    script = capsys.readouterr().out
    done = subprocess.run(
        ["/bin/sh"],
        input=script,
        env={"PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    assert "BOOTSTRAP: names a broker: HOST:PORT" in done.stderr


def test_one_user_is_told_apart_by_client_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As where all are ANONYMOUS."""
    node = RecordingNode()
    node.start(START_MS)
    node.produce("ANONYMOUS", "a", 10_000_000, START_MS)
    node.produce("ANONYMOUS", "b", 1_000_000, START_MS)
    write_events(tmp_path, node.events)
    assert main(["recommend", "--force", str(tmp_path)]) == 0
    entities = [entry.entity for entry in parse_quotas_file(capsys.readouterr().out).entries]
    assert entities == [(("client-id", None),), (("client-id", "a"),)]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--headroom", "0.9"), "expected a number from 1 to 1000, got '0.9'"),
        (
            ("--budget", "producer_byte_rat=1"),
            "got 'producer_byte_rat=1'\nhint: did you mean 'producer_byte_rate'?",
        ),
        (("--budget", "producer_byte_rate"), "got 'producer_byte_rate'\nhint: a value is a number or a size"),
        (("--budget", "producer_byte_rate=0"), "producer_byte_rate must be greater than 0, got '0'\n"),
        (("--budget", "producer_byte_rate=4mb"), "4mb"),
        (("--protect", "checkout"), "expected user=NAME or client-id=NAME, got 'checkout'"),
    ],
)
def test_bad_options_are_one_clear_error(
    arguments: tuple[str, ...], error: str, usage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, the reason on stderr."""
    with pytest.raises(SystemExit) as stopped:
        main(["recommend", "--force", str(usage), *arguments])
    assert stopped.value.code == 2
    assert error in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("--protect user=chekout",
         "cannot protect user='chekout': the record does not contain it\nhint: did you mean 'checkout'?"),
        ("--by user --protect client-id=web", "the quotas are by user only\nhint: remove --by, or use --by both"),
        ("--budget producer_byte_rate=1",
         "a budget of 1 per broker leaves some of 5 entities less than one byte per second\nhint: "),
    ],
)  # fmt: skip
def test_what_cannot_be_proposed_is_one_clear_error(
    arguments: str, error: str, usage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, the reason, and what to ask for instead."""
    assert main(["recommend", "--force", str(usage), *arguments.split()]) == 2
    assert error in capsys.readouterr().err


def test_no_request_quota_is_proposed_from_an_imported_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its request time is too low, which is said; `--force` changes nothing, and a budget is refused."""
    main(["import", str(QUICK), "--out", str(tmp_path / "usage")])
    capsys.readouterr()
    assert main(["limits", str(tmp_path / "usage")]) == 0
    assert "request time is an estimate" in capsys.readouterr().out
    assert main(["recommend", str(tmp_path / "usage"), "--force"]) == 0
    text = capsys.readouterr().out
    keys = {key for entry in parse_quotas_file(text).entries for key in entry.values}
    assert keys == {"producer_byte_rate", "consumer_byte_rate", "controller_mutation_rate"}
    assert "# No request quota is proposed: request time cannot be judged" in text
    budget = ["--budget", "request_percentage=50", "--force"]
    assert main(["recommend", str(tmp_path / "usage"), *budget]) == 2
    assert "request_percentage cannot have a budget: an imported record" in capsys.readouterr().err


def test_too_little_data_proposes_nothing(usage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3, nothing on stdout; forced, the comments say how little it is."""
    assert main(["recommend", str(usage)]) == 3
    assert capsys.readouterr() == (
        "",
        "error: too little data for a proposal: requests in 3 windows of 10 seconds, expected 30 or more\n"
        "hint: record the busiest hours, or use --force\n",
    )
    assert main(["recommend", str(usage), "--force"]) == 0
    text = capsys.readouterr().out
    assert (
        "# Too little data (--force was given): requests in 3 windows of 10 seconds; 30\n#   are enough."
        in text
    )


def test_a_type_of_quota_with_few_requests_has_no_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """However long the record is; and few requests of every type are too little for anything."""
    node = RecordingNode()
    node.start(START_MS)
    for window in range(40):
        now_ms = START_MS + 10_000 * window
        if window < 30:
            node.mutate("alice", "c", 2, now_ms, strict=True, connection_id=1)
            node.other("alice", "c", now_ms, connection_id=1, api_key=19)
        for number in range(3):
            node.produce("alice", "c", 1000, now_ms + number)
            node.produce("alice", "7", 90_000_000, now_ms + number)
    write_events(tmp_path / "usage", node.events)
    assert main(["recommend", str(tmp_path / "usage")]) == 0
    text = capsys.readouterr().out
    (entry,) = parse_quotas_file(text).entries
    assert set(entry.values) == {"producer_byte_rate", "request_percentage"}
    assert "# No mutation quota is proposed: 30 requests; 100 are enough." in text
    assert "# Ignored: 1 entity of the brokers themselves (client-id=7)." in text
    assert "the floor of 64KiB, because it needs only " in str(entry.reason)


def test_few_requests_are_too_little_however_long_the_record_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Forty windows of ten seconds with a request each."""
    node = RecordingNode()
    node.start(START_MS)
    for window in range(40):
        node.produce("alice", "c", 1000, START_MS + 10_000 * window)
    write_events(tmp_path, node.events)
    assert main(["recommend", str(tmp_path)]) == 3
    assert "too little data for a proposal: 40 requests of one type of quota" in capsys.readouterr().err


def test_nothing_recorded_is_nothing_to_recommend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And nobody to protect is there."""
    node = RecordingNode()
    node.start(START_MS)
    write_events(tmp_path, node.events)
    assert main(["recommend", "--force", str(tmp_path)]) == 2
    assert "nothing to recommend" in capsys.readouterr().err

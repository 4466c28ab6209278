"""`tidegate quotas` against a real Apache Kafka and against `tidegate serve`: the same output on both."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.e2e.broker import Broker
from tests.e2e.holding_proxy import HoldingProxy

FILE = """\
quotas:
  - user: {name: alice}
    producer_byte_rate: 4MiB
    request_percentage: 50
    owner: payments
  - user: {default: true}
    client-id: {name: "a b"}
    consumer_byte_rate: 100KiB
  - ip: {name: 192.0.2.7}
    connection_creation_rate: 10
"""
TIMEOUT_S = 60


def quotas(*arguments: object, where: Path, **options: object) -> subprocess.CompletedProcess:
    """Run `tidegate quotas` in a directory."""
    command = [sys.executable, "-m", "tidegate", "quotas", *map(str, arguments)]
    given = {"stdin": subprocess.DEVNULL, **options}
    return subprocess.run(
        command, cwd=where, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, **given
    )


def until(check, seconds=15.0):
    """Wait until `check` returns something true: a real Kafka needs a moment to apply a change."""
    end = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < end, found
        time.sleep(0.1)
    return found


def walk(address: str, directory: Path) -> list[str]:
    """Check, plan, apply, apply again, change, prune, undo. Return what was printed."""
    directory.mkdir()
    to = ("--bootstrap-server", address)
    (directory / "quotas.yaml").write_text(FILE)
    printed = []

    def done(*arguments: object, code: int = 0) -> str:
        result = quotas(*arguments, where=directory)
        assert result.returncode == code, result
        printed.append(result.stdout.replace(address, "HOST:PORT"))
        return result.stdout

    def settled(file: str = "quotas.yaml") -> None:
        until(lambda: quotas("plan", file, "--check", *to, where=directory).returncode == 0)

    done("check", "quotas.yaml")
    done("plan", "quotas.yaml", *to)
    done("plan", "quotas.yaml", *to, "--check", code=1)
    done("apply", "quotas.yaml", *to, "--yes", "--undo-file", "first.json")
    settled()
    done("apply", "quotas.yaml", *to, "--yes")
    done("export", *to)
    (directory / "less.yaml").write_text(FILE[: FILE.index("  - ip")].replace("4MiB", "3MiB"))
    done("apply", "less.yaml", *to, "--yes", "--prune", "--undo-file", "second.json")
    settled("less.yaml")
    late = quotas("undo", "first.json", *to, "--yes", where=directory)
    assert (late.returncode, late.stdout) == (1, ""), late
    assert "user='alice': producer_byte_rate is 3145728, expected 4194304" in late.stderr
    assert "another client changed these quotas in the meantime: this command changed nothing" in late.stderr
    done("undo", "second.json", *to, "--yes", "--undo-file", "third.json")
    settled()
    done("undo", "first.json", *to, "--yes", "--undo-file", "fourth.json")
    until(lambda: "quotas: []" in quotas("export", *to, where=directory).stdout)
    return printed


def test_quotas_as_code_on_both_brokers(beside_kafka, tmp_path) -> None:
    """A real Kafka and `tidegate serve` end with no quota again, and both runs print the same."""
    ours, theirs = (walk(beside_kafka[name].address, tmp_path / name) for name in ("tidegate", "kafka"))
    assert ours == theirs
    assert ours[1] == (
        "+ user=<default>, client-id='a b'  consumer_byte_rate        100KiB\n"
        "+ user='alice'                     producer_byte_rate        4MiB\n"
        "+ user='alice'                     request_percentage        50\n"
        "+ ip='192.0.2.7'                   connection_creation_rate  10\n"
        "\n"
        "to change: 4 values of 3 entities\n"
        "as in the file: 0 entities\n"
    )
    assert ours[4] == "as in the file: 3 entities; nothing to change\n"
    assert "    producer_byte_rate: 4MiB\n" in ours[5]
    assert ours[6].splitlines()[:2] == [
        "~ user='alice'    producer_byte_rate        4MiB → 3MiB",
        "- ip='192.0.2.7'  connection_creation_rate  10",
    ]


def test_quotas_are_explained_from_their_definitions(beside_kafka, tmp_path) -> None:
    """`tidegate explain --bootstrap-server` prints the same of a real Kafka and of `tidegate serve`."""
    (tmp_path / "quotas.yaml").write_text(
        FILE
        + "  - user: {default: true}\n    producer_byte_rate: 1MiB\n"
        + '  - user: {name: "a&b"}\n    request_percentage: 1\n'
    )
    printed = []
    for name in ("tidegate", "kafka"):
        to = ("--bootstrap-server", beside_kafka[name].address)
        undo = ("--undo-file", f"{name}.json")
        assert quotas("apply", "quotas.yaml", *to, "--yes", *undo, where=tmp_path).returncode == 0
        until(lambda to=to: quotas("plan", "quotas.yaml", "--check", *to, where=tmp_path).returncode == 0)
        for client in (
            ("--user", "alice", "--client-id", "a b"),
            ("--user", "bob"),
            ("--user", "a&b", "--json"),
        ):
            command = [sys.executable, "-m", "tidegate", "explain", *to, *client]
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
            printed.append(done.stdout)
        assert (
            quotas(
                "undo", f"{name}.json", *to, "--yes", "--undo-file", f"{name}2.json", where=tmp_path
            ).returncode
            == 0
        )
    assert printed[:3] == printed[3:]
    alice, bob, odd = printed[:3]
    assert alice.startswith("user='alice', client-id='a b', quotas of the cluster\n")
    assert "Produce (producer_byte_rate): limit 4.0 MiB/s of user='alice'\n" in alice
    assert "  * user=<default>, client-id='a b': 100.0 KiB/s, applies\n" in alice
    assert "Produce (producer_byte_rate): limit 1.0 MiB/s of user=<default>\n" in bob
    (request,) = (each for each in json.loads(odd)["quotas"] if each["quota_type"] == "Request")
    assert (request["limit"], request["entity"]) == (1.0, {"user": "a&b"})


def test_a_plan_for_programs(broker: Broker, tmp_path) -> None:
    """`--json` has every change, and the entities that are not in the file."""
    (tmp_path / "quotas.yaml").write_text(FILE)
    result = quotas("plan", "quotas.yaml", "--json", "--bootstrap", broker.address, where=tmp_path)
    document = json.loads(result.stdout)
    assert (document["command"], document["differs"], len(document["changes"])) == ("quotas plan", True, 4)
    assert document["changes"][0] == {
        "entity": {"client-id": "a b", "user": None},
        "key": "consumer_byte_rate",
        "before": None,
        "after": 102400.0,
    }


def test_a_plan_shows_its_effect_on_recorded_traffic(new_broker, tmp_path) -> None:
    """`--usage` prints the forecast of `tidegate replay` for the quotas as they would be, those of others included."""
    broker = new_broker()
    to = ("--bootstrap-server", broker.address)
    (tmp_path / "before.yaml").write_text(
        "quotas:\n  - client-id: {name: slow}\n    producer_byte_rate: 1MiB\n"
    )
    assert quotas("apply", "before.yaml", *to, "--yes", where=tmp_path).returncode == 0
    for client_id in ("slow", "fast"):
        producer = Producer({"bootstrap.servers": broker.address, "client.id": client_id, "linger.ms": 0})
        for _ in range(20):
            producer.produce("orders", bytes(50_000))
            producer.flush(30)
    (tmp_path / "quotas.yaml").write_text(
        "quotas:\n  - client-id: {name: fast}\n    producer_byte_rate: 10KiB\n"
    )
    result = quotas("plan", "quotas.yaml", *to, "--usage", broker.data_dir / "usage", where=tmp_path)
    assert result.returncode == 0, result
    forecast = result.stdout.partition("left as they are: 1 entity")[2]
    assert "client-id=fast" in forecast
    assert "10KiB" in forecast
    assert "1MiB" in forecast
    usage = ("--usage", broker.data_dir / "usage")
    last = quotas("plan", "quotas.yaml", *to, *usage, "--last", "1h", where=tmp_path)
    assert (last.returncode, "client-id=fast" in last.stdout.partition("left as they are")[2]) == (0, True), (
        last
    )
    earlier = quotas("plan", "quotas.yaml", *to, *usage, "--to", "2020-01-01", where=tmp_path)
    assert (earlier.returncode, "in these hours" in earlier.stderr) == (2, True), earlier
    alone = quotas("plan", "quotas.yaml", *to, "--last", "1h", where=tmp_path)
    assert (alone.returncode, alone.stderr.splitlines()[0]) == (2, "error: --last needs --usage")


def test_nothing_changes_without_a_yes(new_broker, tmp_path) -> None:
    """On a terminal the command asks; a change that comes while it asks is not overwritten."""
    to = ("--bootstrap-server", new_broker().address)
    (tmp_path / "quotas.yaml").write_text(FILE)
    (tmp_path / "other.yaml").write_text(FILE.replace("4MiB", "1MiB"))
    refused = quotas("apply", "quotas.yaml", *to, where=tmp_path)
    assert (refused.returncode, refused.stderr) == (
        2,
        "error: cannot ask for confirmation: stdin is not a terminal\nhint: add --yes\n",
    )
    for answer, reason in (
        (b"n\n", "not confirmed: nothing was changed"),
        (b"y\n", "another client changed these quotas"),
    ):
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "tidegate", "quotas", "apply", "quotas.yaml", *to]
        with subprocess.Popen(
            command, cwd=tmp_path, stdin=theirs, stderr=subprocess.PIPE, stdout=subprocess.PIPE
        ) as run:
            assert run.stderr is not None
            asked = b""
            while not asked.endswith(b"? [y/N] "):
                asked += run.stderr.read1(1) or pytest.fail(f"ended without a question: {asked!r}")
            if answer == b"y\n":
                assert quotas("apply", "other.yaml", *to, "--yes", where=tmp_path).returncode == 0
            os.write(ours, answer)
            out, errors = run.communicate(timeout=TIMEOUT_S)
        os.close(ours)
        os.close(theirs)
        assert (run.returncode, reason in errors.decode()) == (1, True), (out, errors)
    assert "producer_byte_rate: 1MiB" in quotas("export", *to, where=tmp_path).stdout


@pytest.mark.usefixtures("signals")
def test_an_interrupted_apply_can_be_undone(new_broker, tmp_path) -> None:
    """Ctrl-C while quotas are set prints the command that takes back those that were set. Undoing twice is harmless."""
    undo = tmp_path / "undo.json"
    with contextlib.closing(HoldingProxy(begins=undo.exists, most_bytes=600_000)) as proxy:
        broker = new_broker(advertised_listeners=f"PLAINTEXT://127.0.0.1:{proxy.port}")
        proxy.target = ("127.0.0.1", broker.port)
        entries = "".join(
            f"  - {{user: {{name: u{n}{'x' * 50}}}, producer_byte_rate: {10**6 + n}}}\n"
            for n in range(15_000)
        )
        (tmp_path / "quotas.yaml").write_text(f"quotas:\n{entries}")
        to = ("--bootstrap-server", f"127.0.0.1:{proxy.port}")
        command = (sys.executable, "-m", "tidegate", "quotas", "apply", "quotas.yaml", *to, "--yes")
        with subprocess.Popen(
            [*command, "--undo-file", undo], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as run:
            assert proxy.is_held.wait(TIMEOUT_S)
            run.send_signal(signal.SIGINT)
            _, errors = run.communicate(timeout=TIMEOUT_S)
        printed = b"some quotas may have changed; to undo: tidegate quotas undo " in errors
        assert (run.returncode, printed) == (130, True), errors
        undo = undo.rename(tmp_path / "moved.json")
        assert "producer_byte_rate" in quotas("export", *to, where=tmp_path).stdout
        done = quotas("undo", undo, *to, "--yes", where=tmp_path)
        assert (done.returncode, "changed: 5,000 values of 5,000 entities" in done.stdout) == (0, True), done
        assert "quotas: []" in quotas("export", *to, where=tmp_path).stdout
        again = quotas("undo", undo, *to, "--yes", where=tmp_path)
        assert (again.returncode, again.stdout) == (0, "nothing to undo\n")


def test_many_conflicts_are_told_in_a_few_lines(new_broker, tmp_path) -> None:
    """Of 30 values that another client changed, 20 are named, and the others counted."""
    to = ("--bootstrap-server", new_broker().address)
    for percent in (5, 6):
        entries = "".join(f"  - {{user: {{name: u{n}}}, request_percentage: {percent}}}\n" for n in range(30))
        (tmp_path / "quotas.yaml").write_text(f"quotas:\n{entries}")
        undo_file = ("--undo-file", f"{percent}.json")
        assert quotas("apply", "quotas.yaml", *to, "--yes", *undo_file, where=tmp_path).returncode == 0
    refused = quotas("undo", "5.json", *to, "--yes", where=tmp_path)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 22)
    assert refused.stderr.splitlines()[-2] == "and 10 more"


def test_a_refused_file_changes_nothing(broker: Broker, tmp_path) -> None:
    """A mistake in the file, an address without a broker, and a misspelt setting are each told in a line."""
    (tmp_path / "quotas.yaml").write_text(FILE.replace("4MiB", "4mb"))
    wrong = quotas("check", "quotas.yaml", where=tmp_path)
    assert (wrong.returncode, wrong.stderr.splitlines()[0]) == (
        1,
        "error: quotas.yaml:3: producer_byte_rate: '4mb' has unknown unit 'mb'",
    )
    (tmp_path / "quotas.yaml").write_text(FILE)
    (tmp_path / "client.properties").write_text("sasl.mechanisms=PLAIN\nacks=all\n")
    result = quotas(
        "plan",
        "quotas.yaml",
        "--bootstrap-server",
        "127.0.0.1:1",
        "--command-config",
        "client.properties",
        where=tmp_path,
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        "warning: unknown setting 'sasl.mechanisms'; did you mean 'sasl.mechanism'?",
        "error: cannot connect to 127.0.0.1:1: Connection refused",
        "hint: check that a broker listens there",
    ]
    misspelt = quotas("plan", "quotas.yaml", "--bootstrap-sever", broker.address, where=tmp_path)
    assert (misspelt.returncode, misspelt.stderr.splitlines()) == (
        2,
        ["error: unrecognized argument '--bootstrap-sever'", "hint: did you mean '--bootstrap-server'?"],
    )
    no_cluster = quotas("export", where=tmp_path)
    assert (no_cluster.returncode, no_cluster.stderr.splitlines()[0]) == (2, "error: no cluster is named")


def test_what_a_file_holds_beyond_kafka_is_named(broker: Broker, tmp_path) -> None:
    """Groups, settings and windows are of the brokers' configuration: a note says so."""
    (tmp_path / "quotas.yaml").write_text("windows:\n  quota.window.num: 5\nquotas: []\n")
    result = quotas("plan", "quotas.yaml", "--bootstrap-server", broker.address, where=tmp_path)
    assert result.returncode == 0
    assert result.stderr.startswith("note: windows of the file are not applied")

"""`python tests/vectors/wire.py`: what it plays, what it refuses, and what it says of an answer that differs."""

import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.broker import Broker
from tests.vectors.wire_arrivals import WITHIN_S, Arrivals
from tests.vectors.wire_brokers import ask

from tidegate.api_keys import ALTER_CLIENT_QUOTAS, CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from tidegate.wire import encode_request

ROOT = Path(__file__).parents[2]
VECTORS = ROOT / "tests" / "vectors" / "wire"
WINDOWS = VECTORS / "windows_1x1.json"
EXACT = {"tidegate.kafka.exact": "true"}
TIMEOUT_S = 120.0


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command, as a user does."""
    return subprocess.run(
        [sys.executable, VECTORS.parent / "wire.py", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        cwd=ROOT,
    )


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the line with the numbers."""
    return done.stdout.splitlines()[-1]


@pytest.fixture
def one_scenario(tmp_path: Path):
    """Return a function that writes a file with one scenario of `windows_1x1.json`, changed."""

    def write(name: str, *, step: int = 0, **fields: object) -> Path:
        document = json.loads(WINDOWS.read_text())
        scenario = next(each for each in document["scenarios"] if each["name"] == name)
        scenario["steps"][step].update(fields)
        path = tmp_path / "changed.json"
        path.write_text(json.dumps({**document, "scenarios": [scenario]}))
        return path

    return write


@pytest.fixture
def fitting(tmp_path: Path):
    """Return an empty broker with the settings of `windows_1x1.json`."""
    settings = json.loads(WINDOWS.read_text())["broker_config"]
    broker = Broker(tmp_path, {**settings, **EXACT}).start()
    yield broker
    broker.close()


def test_what_is_not_offered_is_skipped_and_named() -> None:
    """Started for each file; what differs because an API is missing names it, and the last line has the numbers."""
    done = run("--start", "tidegate", VECTORS / "sasl.json", VECTORS / "api_versions.json")
    assert done.returncode == 0, done
    skipped, of_api = done.stdout.splitlines()[:-1], "skipped for CreateDelegationToken: "
    assert any(line.startswith(of_api) and "sasl/delegation-token-v1" in line for line in skipped)
    assert last_line(done) == "61 passed, 0 failed, 5 skipped"
    assert "api_versions: 21 passed, 0 failed, 0 skipped" in done.stderr


def test_a_broker_that_is_there(fitting: Broker) -> None:
    """A fitting broker is played on once: then it holds topics, and is refused."""
    done = run("--bootstrap", fitting.address, WINDOWS)
    assert (done.returncode, last_line(done)) == (0, "6 passed, 0 failed, 1 skipped"), done
    again = run("--bootstrap", fitting.address, WINDOWS)
    assert (again.returncode, last_line(again)) == (2, "0 passed, 0 failed, 0 skipped")
    assert "the cluster is not empty: it has the topics" in again.stderr


def test_a_broker_with_other_settings_is_refused(new_broker) -> None:
    """What the file was recorded with is asked of the broker before anything is played; all that is wrong is said."""
    done = run("--bootstrap", new_broker().address, WINDOWS)
    assert (done.returncode, last_line(done)) == (2, "0 passed, 0 failed, 0 skipped")
    for said in (
        "tidegate.kafka.exact must be true, is false",
        "log.retention.ms must be -1, is None",
        "quota.window.num must be 1, is 11",
    ):
        assert said in done.stderr


def test_a_broker_with_more_settings_is_refused(new_broker) -> None:
    """A setting that the file was not recorded with may change any answer."""
    settings = json.loads((VECTORS / "api_versions.json").read_text())["broker_config"]
    settings |= EXACT | {"message.max.bytes": "5000"}
    broker = new_broker(**{key.replace(".", "_"): value for key, value in settings.items()})
    done = run("--bootstrap", broker.address, VECTORS / "api_versions.json")
    assert done.returncode == 2
    assert "message.max.bytes must not be set, is 5000" in done.stderr


def _created(*names: str) -> dict[str, Any]:
    topics = [
        {"name": name, "num_partitions": 2, "replication_factor": 1, "assignments": [], "configs": []}
        for name in names
    ]
    return {"topics": topics, "timeout_ms": 1000, "validate_only": False}


def test_a_change_is_waited_for(fitting: Broker) -> None:
    """Behind an answer the player looks until the broker shows the change, as a busy Kafka may do late."""
    address = ("127.0.0.1", fitting.port)
    entity = [{"entity_type": "client-id", "entity_name": "c"}]
    quota = {
        "entries": [{"entity": entity, "ops": [{"key": "producer_byte_rate", "value": 5.0, "remove": False}]}],
        "validate_only": False,
    }  # fmt: skip
    none = {"entries": [{"entity": entity, "error_code": 0}]}
    grown = {
        "topics": [{"name": "t", "count": 3, "assignments": None}],
        "timeout_ms": 1000,
        "validate_only": False,
    }
    for api_key, version, message, answer in (
        (ALTER_CLIENT_QUOTAS, 1, quota, none),
        (CREATE_TOPICS, 4, _created("t"), {"topics": [{"name": "t", "error_code": 0}]}),
        (CREATE_PARTITIONS, 2, grown, {"results": [{"name": "t", "error_code": 0}]}),
        (DELETE_TOPICS, 4, {"topic_names": ["t"], "timeout_ms": 1000}, {"responses": [{"name": "t", "error_code": 0}]}),
    ):  # fmt: skip
        frame = encode_request(api_key, version, 1, "c", message)[4:]
        step = {"api_key": api_key, "request_hex": frame.hex()}
        begun = time.monotonic()
        late = threading.Timer(0.3, ask, (address, api_key, version, message))
        late.start()
        Arrivals(address).await_change(step, answer)
        assert time.monotonic() - begun >= 0.3
        late.join()
        Arrivals(address).await_change(step, answer)


def test_what_was_refused_is_not_waited_for(fitting: Broker) -> None:
    """Nothing would ever show it."""
    frame = encode_request(CREATE_TOPICS, 4, 1, "c", _created("t"))[4:]
    step = {"api_key": CREATE_TOPICS, "request_hex": frame.hex()}
    begun = time.monotonic()
    Arrivals(("127.0.0.1", fitting.port)).await_change(step, {"topics": [{"name": "t", "error_code": 89}]})
    assert time.monotonic() - begun < WITHIN_S


def test_nobody_at_the_address(fitting: Broker) -> None:
    """A broker that cannot be asked is an error, not a failure of its answers."""
    fitting.close()
    done = run("--bootstrap", fitting.address, WINDOWS)
    assert done.returncode == 2
    assert f"error: {WINDOWS}: no broker to ask at {fitting.address}" in done.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"decoded": {"throttle_time_ms": 7}}, "throttle_time_ms: expected 7, got 0"),
        ({"answered_within_ms": [5000, 6000]}, "answered_within_ms: expected 5000 to 6000, got "),
        ({"outcome": "closed"}, "connection: expected closed, got an answer of "),
        ({"outcome": "silent", "wait_ms": 5000}, "connection: expected silence, got an answer"),
        ({"correlation_id": -1}, "correlation_id: expected -1, got "),
    ],
)
def test_what_differs_is_said_in_a_line(fitting: Broker, one_scenario, change, said) -> None:
    """A failure names the file, the scenario, the step and its API, the field, and both values."""
    done = run("--bootstrap", fitting.address, one_scenario("mutation-burst-1", **change))
    assert (done.returncode, last_line(done)) == (1, "0 passed, 1 failed, 0 skipped"), done
    told = re.sub(r" \+ \d+ \(busy\)", "", done.stdout)  # what a busy machine is granted
    assert told.startswith(f"changed: mutation-burst-1, step 0 (AlterClientQuotas v1): {said}"), done.stdout
    assert len(done.stdout.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "required"),
        ((WINDOWS,), "one of the arguments --bootstrap --start is required"),
        (("--start", "kafka"), "FILE"),
        (("--start", "kafka", "--bootstrap", "a:1", WINDOWS), "not allowed with"),
        (("--bootstrap", "localhost", WINDOWS), "'localhost' is not HOST:PORT"),
        (("--bootstrap", "localhost:70000", WINDOWS), "'localhost:70000' is not HOST:PORT"),
        (("--start", "kafka", "--settle", "-1", WINDOWS), "'-1' is not a number of milliseconds"),
        (("--start", "tidegate", "missing.json"), "cannot read 'missing.json': No such file or directory"),
        (("--start", "tidegate", VECTORS / "README.md"), "is not JSON"),
        (("--start", "tidegate", ROOT / "tests/vectors/engine/rate.json"), "is not a recording"),
    ],
)
def test_wrong_usage(arguments, said) -> None:
    """Wrong usage ends with 2, and says what was wrong."""
    done = run(*arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_help_has_examples() -> None:
    """`--help` shows how it is run and what the exit codes are."""
    done = run("--help")
    assert done.returncode == 0
    assert "--start tidegate tests/vectors/wire/*.json" in done.stdout
    assert "exit code:" in done.stdout


@pytest.mark.java
def test_a_real_kafka_answers_as_recorded(kafka_classpath: str) -> None:
    """Against the broker that was recorded, nothing fails, nothing is skipped, and its own settings are needed."""
    done = run(
        "--start", "kafka", "--settle", 1000, VECTORS / "api_versions.json", VECTORS / "windows_2x5.json"
    )
    assert (done.returncode, last_line(done)) == (0, "28 passed, 0 failed, 0 skipped"), done

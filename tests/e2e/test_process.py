"""The process itself: how it starts, what it says, how it ends."""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from tests.e2e.lateness import Lateness
from tests.e2e.plain_client import PlainClient, receive_frame
from tests.unit.usage.reading import read_batches, read_events

from tidegate.api_keys import CREATE_ACLS
from tidegate.usage.readers import complete_files
from tidegate.wire import encode_request

ACL = {
    "resource_type": 2, "resource_pattern_type": 3, "principal": "User:x", "host": "*", "operation": 3,
    "permission_type": 3,
}  # fmt: skip


def tidegate(*arguments):
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "tidegate", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_stops_at_once_and_cleanly(new_broker, create_topic, signum):
    """SIGINT, SIGTERM and SIGHUP end it within two seconds, exit code 0; the log names the signal, once."""
    broker = new_broker()
    topic = create_topic(broker, "held")
    with PlainClient(broker.port, "admin") as admin:
        admin.alter_quotas({"client-id": "held"}, {"producer_byte_rate": 100.0})
    with PlainClient(broker.port, "held") as client:
        client.send_produce(topic, value_bytes=20_000)
        client.receive_produce()
        with Lateness() as lateness:
            started = time.monotonic()
            assert broker.stop(signum) == 0
            assert lateness.elapsed_s(started) < 2
    assert broker.log.count(f"stopping: received {signal.Signals(signum).name}\n") == 1
    assert "Traceback" not in broker.log


def test_the_record_is_complete_when_the_whole_group_is_told_to_end(new_broker, create_topic):
    """`kill %1` and Ctrl-C reach every process of the job; what was recorded becomes Parquet all the same."""
    broker = new_broker()
    create_topic(broker, "held")
    with PlainClient(broker.port, "counted") as client:
        for _ in range(3):
            client.send_produce("held", value_bytes=10)
            client.receive_produce()
    os.killpg(broker.process.pid, signal.SIGTERM)
    assert broker.process.wait(10) == 0
    deadline = time.monotonic() + 30
    spool = broker.data_dir / "usage" / "spool" / "node-1"
    while list(spool.glob("*.closed")):
        assert time.monotonic() < deadline, "nobody has converted the spool"
        time.sleep(0.05)
    events = list(read_events(broker.data_dir / "usage"))
    requests = [event for event in events if event["kind"] == "request"]
    assert sum(event["client_id"] == "counted" and event["api_key"] == 0 for event in requests) == 3
    assert "Traceback" not in broker.log


def test_every_request_that_was_answered_before_a_kill_is_in_the_record(new_broker, create_topic):
    """`kill -9` at once after an answer: its row is there, once, read from the spool as it lies, before any start."""
    broker = new_broker()
    create_topic(broker, "counted")
    answered = 0
    for run in range(4):
        with PlainClient(broker.port, "counted") as client:
            for _ in range(20 + run):
                client.send_produce("counted", value_bytes=10)
                client.receive_produce()
                answered += 1
            broker.kill()
        with complete_files(broker.data_dir / "usage") as files:
            events = [event for path in files for batch in read_batches(path) for event in batch.to_pylist()]
        requests = [event for event in events if event["kind"] == "request"]
        produced = [event for event in requests if event["client_id"] == "counted" and event["api_key"] == 0]
        assert len(produced) == answered
        assert len({event["seq"] for event in events}) == len(events)
        assert "gap" not in {event["kind"] for event in events}
        broker.start()


def test_help_is_for_a_newcomer():
    """`tidegate serve --help` has examples that can be typed."""
    done = tidegate("serve", "--help")
    assert done.returncode == 0
    assert "examples:" in done.stdout
    assert "--config" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--port", "70000"), "70000"),
        (("--port", "x"), "'x'"),
        (("--config", "/no/such/file"), "/no/such/file"),
        (("--override", "quota.window.num=many"), "quota.window.num"),
        (("--override", "no-equals-sign"), "no-equals-sign"),
        (("--override", "ssl.key.password:hunter2"), "begins with 'ssl.key.password', expected KEY=VALUE"),
    ],
)
def test_a_bad_option_is_one_line_and_2(tmp_path, arguments, told):
    """What cannot be used is named on stderr, without a traceback, with exit code 2."""
    done = tidegate("serve", "--override", f"log.dirs={tmp_path}", *arguments)
    assert done.returncode == 2
    assert told in done.stderr
    assert "hunter2" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_said_so(tmp_path):
    """A second server on one port is told which port, and ends with 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = tidegate("serve", "--port", str(port), "--override", f"log.dirs={tmp_path}")
    assert done.returncode == 2
    assert str(port) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_clients_are_not_told_is_said_and_written_too(tmp_path):
    """Behind a proxy or a container clients are told another port: the one of this machine is said."""
    ports = tmp_path / "ports"
    serve = [
        *(sys.executable, "-m", "tidegate", "serve", "--data", str(tmp_path / "data")),
        *("--override", "listeners=PLAINTEXT://127.0.0.1:0"),
        *("--override", "advertised.listeners=PLAINTEXT://kafka.example:9092"),
        *("--port-file", str(ports)),
    ]
    with subprocess.Popen(serve, stderr=subprocess.PIPE, text=True) as process:
        try:
            said = process.stderr.readline()
            port = int(ports.read_text())
            with PlainClient(port, "anyone") as client:
                client.send_produce("nowhere", value_bytes=1)
                client.receive_produce()
        finally:
            process.terminate()
    assert f" listening on 127.0.0.1:{port} (advertised as kafka.example:9092), data in " in said


@pytest.mark.parametrize("records", [(), ("orders-0", "recovery-point-offset-checkpoint")])
def test_a_directory_of_kafkas_is_left_alone(tmp_path, records):
    """A `server.properties` that is taken over names it; a Kafka that found ours there would not start again."""
    data = tmp_path / "kraft-combined-logs"
    data.mkdir(mode=0o755)
    for name in ("meta.properties", "bootstrap.checkpoint", *records):
        (data / name).touch()
    done = tidegate("serve", "--port", "0", "--data", str(data))
    assert is_one_line(done), done.stderr
    assert f"{str(data)!r} is a data directory of Apache Kafka" in done.stderr
    assert {path.name for path in data.rglob("*")} == {"meta.properties", "bootstrap.checkpoint", *records}


def test_nobody_can_log_in_is_said(new_broker):
    """The first SCRAM user is set by another way in; a broker that has none says so, until it knows somebody."""
    lines = {
        "listeners": "SCRAM://127.0.0.1:0",
        "listener.security.protocol.map": "SCRAM:SASL_PLAINTEXT,OPEN:PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    }
    broker = new_broker(**{name.replace(".", "_"): value for name, value in lines.items()})
    assert "warning: no client can log in: all listeners use SCRAM" in broker.log
    broker.stop()
    broker.overrides["listeners"] = "SCRAM://127.0.0.1:0,OPEN://127.0.0.1:0"
    broker.start()
    open_port = re.search(r"(\d+) \(OPEN\)", broker.log)[1]
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{open_port}"})
    made = UserScramCredentialUpsertion(
        "first", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"p"
    )
    admin.alter_user_scram_credentials([made])["first"].result(timeout=10)
    broker.stop()
    broker.overrides["listeners"] = "SCRAM://127.0.0.1:0"
    broker.start()
    assert broker.log.count("no client can log in") == 1


def test_a_setting_of_gateways_has_no_effect(new_broker):
    """A node of its own has no cluster-wide quotas, and says so at the start."""
    warning = "warning: 'tidegate.quota.cluster.wide' has no effect: only a gateway has cluster-wide quotas"
    assert warning in new_broker(tidegate_quota_cluster_wide="all").log
    assert warning not in new_broker(tidegate_quota_cluster_wide="none").log


def test_two_brokers_do_not_share_a_directory(broker):
    """A data directory that a broker works in is refused to a second one."""
    done = tidegate("serve", "--port", "0", "--override", f"log.dirs={broker.data_dir}")
    assert done.returncode == 2
    assert str(broker.data_dir) in done.stderr


def is_one_line(done):
    """Return whether a command ended as errors do: 2, `error:`, `hint:`, and nothing else."""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("warning: ")]
    return done.returncode == 2 and [line.partition(":")[0] for line in lines] == ["error", "hint"]


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nothing", "/sys/nothing"])
def test_data_where_nothing_can_be_written_is_one_line(tmp_path, place):
    """A file in the place of the data directory, or one that cannot be made, is named, with what to do."""
    (tmp_path / "file").write_text("a file")
    done = tidegate("serve", "--port", "0", "--data", str(tmp_path / place))
    assert is_one_line(done), done.stderr
    assert str(tmp_path / place) in done.stderr


def test_usage_that_is_a_file_is_one_line(tmp_path):
    """The same for the usage record."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "usage").write_text("a file")
    done = tidegate("serve", "--port", "0", "--data", str(tmp_path / "data"))
    assert is_one_line(done), done.stderr
    assert str(tmp_path / "data" / "usage") in done.stderr


def test_a_port_file_that_cannot_be_written_is_one_line(tmp_path):
    """The broker does not go on without the file that somebody waits for."""
    done = tidegate(
        "serve", "--port", "0", "--data", str(tmp_path / "data"), "--port-file", str(tmp_path / "no" / "port")
    )
    assert is_one_line(done), done.stderr
    assert str(tmp_path / "no" / "port") in done.stderr


def test_it_stops_with_the_process_that_started_it(tmp_path):
    """With --stop-on-eof the broker ends, cleanly, when its standard input is closed; what it reads has no effect."""
    ports = tmp_path / "ports"
    serve = [sys.executable, "-m", "tidegate", "serve", "--port", "0", "--data", str(tmp_path / "data")]
    with subprocess.Popen(
        [*serve, "--stop-on-eof", "--port-file", str(ports)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdin.write("stop\n" * 5000)
        process.stdin.flush()
        assert "listening on" in process.stderr.readline()
        assert process.poll() is None
        process.stdin.close()
        assert "stopping: standard input was closed" in process.stderr.read()
    assert process.returncode == 0


def test_an_input_without_an_end_is_one_line(tmp_path):
    """The end of a file says nothing about the process that opened it."""
    serve = [sys.executable, "-m", "tidegate", "serve", "--port", "0", "--data", str(tmp_path / "data")]
    done = subprocess.run(
        [*serve, "--stop-on-eof"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert is_one_line(done), done.stderr
    assert "--stop-on-eof needs a pipe" in done.stderr


def test_ports_of_an_earlier_broker_are_not_found(tmp_path):
    """Who waits for the file would connect to nobody, or to another; also where the start is refused."""
    ports = tmp_path / "ports"
    ports.write_text("1\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = tidegate("serve", "--port", port, "--data", str(tmp_path / "data"), "--port-file", str(ports))
    assert done.returncode == 2
    assert not ports.exists()


def test_with_nohup_it_outlives_its_terminal(tmp_path):
    """SIGHUP is ignored then, as by Apache Kafka, and nothing else changes."""
    serve = [sys.executable, "-m", "tidegate", "serve", "--port", "0", "--data", str(tmp_path / "data")]
    with subprocess.Popen(["nohup", *serve], stderr=subprocess.PIPE, text=True) as process:
        try:
            while "listening on" not in (said := process.stderr.readline()):
                assert said, "it has ended"
            process.send_signal(signal.SIGHUP)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1)
        finally:
            process.terminate()
    assert process.returncode == 0


@pytest.mark.parametrize("room", [0, 1_000, 20_000])
def test_a_start_on_a_full_disk_is_one_line(tmp_path, room):
    """Where files cannot grow there is an error with what to do, whichever file comes first."""
    serve = [sys.executable, "-B", "-m", "tidegate", "serve", "--port", "0", "--data", str(tmp_path / "data")]
    done = subprocess.run(
        ["prlimit", f"--fsize={room}", *serve],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert is_one_line(done), done.stderr


def test_files_are_for_the_owner_only(new_broker, create_topic):
    """Records, quotas and the usage record can be read by nobody else: files 0600, directories 0700."""
    broker = new_broker()
    topic = create_topic(broker, "private")
    with PlainClient(broker.port, "someone") as client:
        client.send_produce(topic, value_bytes=1000)
        client.receive_produce()
    found = list(broker.data_dir.rglob("*"))
    assert any(path.suffix == ".log" for path in found)
    broker.stop()
    for path in {broker.data_dir, *found, *broker.data_dir.rglob("*")}:
        if path.exists():
            assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_who_does_not_read_the_log_stops_nobody(tmp_path):
    """The log goes to a pipe that nobody reads, as of a collector that hangs: clients are served, and it can end."""
    ports = tmp_path / "port"
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    settings = [
        f"log.dirs={tmp_path / 'data'}",
        f"authorizer.class.name={authorizer}",
        "super.users=User:ANONYMOUS",
    ]
    options = [part for setting in settings for part in ("--override", setting)]
    command = [sys.executable, "-m", "tidegate", "serve", "--port", "0", "--port-file", str(ports), *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            deadline = time.monotonic() + 30
            while not ports.exists():
                assert time.monotonic() < deadline, "it does not start"
                time.sleep(0.05)
            for first in range(0, 4000, 1000):  # each ACL is a line of 100 letters
                acls = [{**ACL, "resource_name": f"topic-{first + number}"} for number in range(1000)]
                with socket.create_connection(("127.0.0.1", int(ports.read_text())), timeout=10) as client:
                    client.sendall(encode_request(CREATE_ACLS, 3, 1, "admin", {"creations": acls}))
                    receive_frame(client)
            process.terminate()
            assert process.wait(10) == 0
        finally:
            process.kill()

"""The process itself: how it starts, what it says, how it ends."""

import signal
import socket
import subprocess
import sys
import time

import pytest
from tests.e2e.plain_client import PlainClient


def tidegate(*arguments):
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "tidegate", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_at_once_and_cleanly(new_broker, create_topic, signum):
    """Ctrl-C and SIGTERM end it within two seconds, exit code 0, no traceback, even with a muted client."""
    broker = new_broker()
    topic = create_topic(broker, "held")
    with PlainClient(broker.port, "admin") as admin:
        admin.alter_quotas({"client-id": "held"}, {"producer_byte_rate": 100.0})
    with PlainClient(broker.port, "held") as client:
        client.send_produce(topic, value_bytes=20_000)
        client.receive_produce()
        started = time.monotonic()
        assert broker.stop(signum) == 0
        assert time.monotonic() - started < 2
    assert "Traceback" not in broker.log


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
    ],
)
def test_a_bad_option_is_one_line_and_2(tmp_path, arguments, told):
    """What cannot be used is named on stderr, without a traceback, with exit code 2."""
    done = tidegate("serve", "--override", f"log.dirs={tmp_path}", *arguments)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_said_so(tmp_path):
    """A second server on one port is told which port, and ends with 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = tidegate("serve", "--port", str(port), "--override", f"log.dirs={tmp_path}")
    assert done.returncode == 2
    assert str(port) in done.stderr
    assert "Traceback" not in done.stderr


def test_two_brokers_do_not_share_a_directory(broker):
    """A data directory that a broker works in is refused to a second one."""
    done = tidegate("serve", "--port", "0", "--override", f"log.dirs={broker.data_dir}")
    assert done.returncode == 2
    assert str(broker.data_dir) in done.stderr

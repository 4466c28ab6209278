"""A changed setting that keeps every client out is reset by `tidegate settings`, without a connection."""

import socket
import subprocess
import sys

import pytest
from tests.e2e.plain_client import PlainClient, receive_frame

from tidegate.api_keys import INCREMENTAL_ALTER_CONFIGS
from tidegate.wire import encode_request, read_response

BROKER, SET = 4, 0
LOCKED_OUT_S = 3.0  # with max.connections=0 the kernel accepts, and no answer comes


def change(broker, name, value, node):
    """Change a setting while the broker runs."""
    config = {"name": name, "config_operation": SET, "value": value}
    resource = {"resource_type": BROKER, "resource_name": node, "configs": [config]}
    message = {"resources": [resource], "validate_only": False}
    with socket.create_connection(("127.0.0.1", broker.port), 10) as client:
        client.sendall(encode_request(INCREMENTAL_ALTER_CONFIGS, 0, 1, "admin", message))
        try:
            answer = receive_frame(client)
        except ConnectionError:
            return  # max.connections=0 closes this connection, too
    (result,) = read_response(INCREMENTAL_ALTER_CONFIGS, 0, answer, 4)["responses"]
    assert result["error_code"] == 0, result


def is_served(broker, within_s=LOCKED_OUT_S):
    """Return whether a new connection is answered."""
    try:
        with PlainClient(broker.port, "new") as client:
            client.socket.settimeout(within_s)
            return bool(client.served_keys())
    except (OSError, EOFError, AssertionError):
        return False


@pytest.mark.parametrize(
    ("name", "value", "node"),
    [
        ("max.connections.per.ip.overrides", "127.0.0.1:0", ""),
        ("max.connections.per.ip.overrides", "127.0.0.1:0", "1"),
        ("max.connections", "0", ""),
    ],
)
def test_a_lock_out_ends(new_broker, name, value, node):
    """Locked out also after a restart, which the log says; after the reset a new connection is answered."""
    broker = new_broker()
    assert is_served(broker, 30)
    change(broker, name, value, node)
    assert not is_served(broker)
    broker.stop()
    broker.start()
    assert not is_served(broker)
    line = f"{name}={value} rejects connections, including those of admin clients; hint: "
    way_back = f"run `tidegate settings {broker.data_dir} --reset {name}`"
    assert [line in each for each in broker.log.splitlines() if way_back in each] == [True, True]
    command = [sys.executable, "-m", "tidegate", "settings", str(broker.data_dir), "--reset", name, "--yes"]
    in_use = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert in_use.returncode == 2, in_use
    assert "is in use by another process" in in_use.stderr
    broker.stop()
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, value in done.stdout) == (0, True), done
    broker.start()
    assert is_served(broker, 30)

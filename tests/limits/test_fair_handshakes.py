"""Addresses that flood a broker with TLS handshakes keep no other address from logging in."""

import contextlib
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.plain_client import receive_frame
from tests.e2e.tls_broker import LOGINS, TlsBroker
from tests.limits.frames import METADATA, metadata, request
from tests.limits.tenants import first_operation

from tidegate.api_keys import SASL_AUTHENTICATE, SASL_HANDSHAKE

pytestmark = pytest.mark.alone

TIMEOUT_S = 30.0
LOOKS = 8
FLOOD = Path(__file__).parent / "hello_flood.py"


@contextlib.contextmanager
def flooding(port: int, how: str, *sources: str) -> Iterator[None]:
    """Let processes flood a port with ClientHellos, each from its own address."""
    with contextlib.ExitStack() as ending:
        processes = []
        for source in sources:
            process = subprocess.Popen(
                [sys.executable, str(FLOOD), str(port), source, how],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            ending.callback(process.communicate, timeout=TIMEOUT_S)
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
        yield


def log_in(broker: TlsBroker, port: int) -> None:
    """Log in by SASL over TLS, and ask for the topics."""
    context = ssl.create_default_context(cafile=str(broker.certificates.authority_file))
    user, password = LOGINS["PLAIN"]
    with (
        socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as client,
    ):
        for frame in (
            request(SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"}),
            request(SASL_AUTHENTICATE, 1, {"auth_bytes": f"\0{user}\0{password}".encode()}),
            request(METADATA, 7, metadata(None)),
        ):
            client.sendall(frame)
            assert receive_frame(client)[4:6] == b"\0\0"


@pytest.mark.parametrize("sources", [("127.0.0.2",), ("127.0.0.2", "127.0.0.3")], ids=len)
@pytest.mark.parametrize("how", ["leave", "stay"])
def test_another_address_logs_in_during_a_flood(tmp_path: Path, how: str, sources: tuple[str, ...]) -> None:
    """Handshake, login and first request take less than a second, time after time."""
    broker = TlsBroker(tmp_path)
    with contextlib.ExitStack() as ending:
        ending.callback(broker.close)
        broker.start()
        port = broker.listener_ports()["LOGIN"]
        log_in(broker, port)
        with flooding(port, how, *sources):
            for _ in range(LOOKS):
                with first_operation():
                    log_in(broker, port)
                time.sleep(0.1)
    assert "Traceback" not in broker.log

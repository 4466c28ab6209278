"""The brokers of the demo: each a `tidegate serve` process of its own on a free port, and quotas set at it.

Quotas are set over the wire, with Kafka's AlterClientQuotas (KIP-546): no Python client offers it.
"""

import socket
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidegate.api_keys import ALTER_CLIENT_QUOTAS
from tidegate.child_python import module_command
from tidegate.errors import TidegateError
from tidegate.wire import encode_request, read_response

__all__ = ["running_broker", "set_client_quotas"]

_START_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 20.0
_POLL_S = 0.05

_VERSION = 0
_ANSWER_TIMEOUT_S = 10.0
_LENGTH = struct.Struct(">i")
_CORRELATION_BYTES = 4

Quotas = Mapping[str, Mapping[str, float]]


@contextmanager
def running_broker(data: Path, *options: str) -> Iterator[int]:
    """Run a broker over `data` until the end of the block, and yield its port; its log lies beside its data.

    options: more options of `tidegate serve`. Raises `TidegateError` if it does not start.
    """
    port_file, log_file = data.with_suffix(".port"), data.with_suffix(".log")
    port_file.unlink(missing_ok=True)
    command = module_command("tidegate", "serve", "--port", "0")
    command += ["--data", str(data), "--port-file", str(port_file), *options]
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
        )  # a group of its own: Ctrl-C is ours to handle
    try:
        yield _wait_port(process, port_file, log_file)
    finally:
        _stop(process)
        port_file.unlink(missing_ok=True)


def _wait_port(process: "subprocess.Popen[bytes]", port_file: Path, log: Path) -> int:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        if port_file.exists():
            return int(port_file.read_text())
        time.sleep(_POLL_S)
    raise TidegateError("the broker did not start", hint=f"what it said is in {str(log)!r}")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def set_client_quotas(port: int, quotas: Quotas) -> None:
    """Set `quotas`, client id → key → value, at the broker on `port`. Raises `TidegateError` if it refuses."""
    request = encode_request(ALTER_CLIENT_QUOTAS, _VERSION, 1, "tidegate-demo", _request(quotas))
    try:
        frame = _ask(port, request)
    except (OSError, struct.error) as error:
        raise TidegateError(f"the broker does not answer: {error}") from error
    for entry in read_response(ALTER_CLIENT_QUOTAS, _VERSION, frame, _CORRELATION_BYTES)["entries"]:
        if entry["error_code"]:
            raise TidegateError(f"quotas were refused: {entry['error_message']!r}")


def _ask(port: int, request: bytes) -> bytes:
    """Return the frame that answers `request`, cut short where the connection ended."""
    address = ("127.0.0.1", port)
    with (
        socket.create_connection(address, _ANSWER_TIMEOUT_S) as connection,
        connection.makefile("rb") as answer,
    ):
        connection.sendall(request)
        return answer.read(_LENGTH.unpack(answer.read(_LENGTH.size))[0])


def _request(quotas: Quotas) -> dict[str, Any]:
    return {
        "entries": [_entry(client_id, values) for client_id, values in quotas.items()],
        "validate_only": False,
    }


def _entry(client_id: str, values: Mapping[str, float]) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": "client-id", "entity_name": client_id}],
        "ops": [{"key": key, "value": value, "remove": False} for key, value in values.items()],
    }

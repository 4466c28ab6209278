"""Set quotas over the wire, with Kafka's AlterClientQuotas (KIP-546): no Python client offers it."""

import socket
import struct
from collections.abc import Mapping
from typing import Any

from tidegate.api_keys import ALTER_CLIENT_QUOTAS
from tidegate.errors import TidegateError
from tidegate.wire import encode_request, read_response

__all__ = ["set_client_quotas"]

_VERSION = 0
_TIMEOUT_S = 10.0
_LENGTH = struct.Struct(">i")
_CORRELATION_BYTES = 4

Quotas = Mapping[str, Mapping[str, float]]


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
    with socket.create_connection(address, _TIMEOUT_S) as connection, connection.makefile("rb") as answer:
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

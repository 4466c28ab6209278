"""Requests that the kit sends to its own broker: quotas and SCRAM users, each on a connection of its own."""

import secrets
import socket
import struct
from collections.abc import Iterable, Mapping
from typing import Any

from tidegate.testing.errors import BrokerError

__all__ = ["CLIENT_ID", "alter_quotas", "describe_quotas", "set_scram_passwords"]

CLIENT_ID = "tidegate-testing"
"""The client id of these requests."""

Entity = tuple[tuple[str, str | None], ...]
"""Pairs of Kafka's entity type and a name; None is the default entity."""

_TIMEOUT_S = 30.0
_ANSWER_BYTES_MAX = 64 << 20
_LENGTH = struct.Struct(">i")
_SALT_BYTES = 16
_HINT = "with an authorizer, add User:ANONYMOUS to super.users: the kit itself does not log in"


def alter_quotas(port: int, changes: Iterable[tuple[Entity, Mapping[str, float | None]]]) -> None:
    """Set quotas by Kafka's key, or remove them (None). Raises `BrokerError` with the broker's reason."""
    from tidegate.api_keys import ALTER_CLIENT_QUOTAS

    entries = [
        {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
            "ops": [
                {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
                for key, value in values.items()
            ],
        }
        for entity, values in changes
    ]
    if entries:
        answer = _ask(port, ALTER_CLIENT_QUOTAS, {"entries": entries, "validate_only": False})
        for entry in answer["entries"]:
            _check(entry, "a quota")


def describe_quotas(port: int) -> list[tuple[Entity, dict[str, float]]]:
    """Return all quotas: entity, and values by Kafka's key. Raises `BrokerError`."""
    from tidegate.api_keys import DESCRIBE_CLIENT_QUOTAS

    answer = _ask(port, DESCRIBE_CLIENT_QUOTAS, {"components": [], "strict": False})
    _check(answer, "to describe quotas")
    return [
        (
            tuple((part["entity_type"], part["entity_name"]) for part in entry["entity"]),
            {value["key"]: value["value"] for value in entry["values"]},
        )
        for entry in answer["entries"]
    ]


def set_scram_passwords(port: int, passwords: Mapping[str, str]) -> None:
    """Set passwords of users, for all SCRAM mechanisms. Raises `BrokerError`."""
    import hashlib

    from tidegate.api_keys import ALTER_USER_SCRAM_CREDENTIALS
    from tidegate.scram import MIN_ITERATIONS, SCRAM_MECHANISMS

    salt = secrets.token_bytes(_SALT_BYTES)
    for mechanism in SCRAM_MECHANISMS.values():  # a request changes a user once
        upsertions = [
            {
                "name": user,
                "mechanism": mechanism.type,
                "iterations": MIN_ITERATIONS,
                "salt": salt,
                "salted_password": hashlib.pbkdf2_hmac(
                    mechanism.hash_name, password.encode(), salt, MIN_ITERATIONS
                ),
            }
            for user, password in passwords.items()
        ]
        answer = _ask(port, ALTER_USER_SCRAM_CREDENTIALS, {"deletions": [], "upsertions": upsertions})
        for result in answer["results"]:
            _check(result, f"user {result['user']!r}")


def _check(result: Mapping[str, Any], subject: str) -> None:
    if result["error_code"]:
        reason = result["error_message"] or "no reason given"
        raise BrokerError(f"the broker refused {subject}: error {result['error_code']}, {reason}", hint=_HINT)


def _ask(port: int, api_key: int, message: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request of version 0. Raises `BrokerError` if there is none."""
    from tidegate.wire import API_BY_KEY, encode_request, read_response

    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S) as sock:
            sock.sendall(encode_request(api_key, 0, 0, CLIENT_ID, message))
            (size,) = _LENGTH.unpack(_receive(sock, _LENGTH.size))
            if not 0 < size <= _ANSWER_BYTES_MAX:
                raise BrokerError(f"the broker's answer has {size} bytes, expected 1 to {_ANSWER_BYTES_MAX}")
            frame = _receive(sock, size)
    except OSError as error:
        raise BrokerError(f"the broker at port {port} does not answer: {error}") from error
    body_at = _LENGTH.size + API_BY_KEY[api_key].has_tagged_response_header(0)
    return read_response(api_key, 0, frame, body_at)


def _receive(sock: socket.socket, size: int) -> bytes:
    """Return exactly `size` bytes. Raises `ConnectionError` if the connection ends first."""
    data = bytearray()
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise ConnectionError(f"connection closed after {len(data)} of {size} bytes")
        data += part
    return bytes(data)

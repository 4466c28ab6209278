"""Which broker a file of recordings needs: start one, or see whether one that is there fits."""

import re
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.ladder.brokers import SHORT_LIVED, KafkaBench
from tests.e2e.broker import Broker
from tests.e2e.plain_client import receive_frame
from tests.vectors.wire_player import TIMEOUT_S, Address
from tests.vectors.wire_recording import Recording
from tests.wire.messages import response_body_at

from tidegate.errors import TidegateError
from tidegate.wire import API_BY_KEY, encode_request, read_response

__all__ = ["Inspected", "UnusableBrokerError", "ask", "inspect", "login_of", "remove_quotas", "started"]

METADATA, SASL_HANDSHAKE, API_VERSIONS, DESCRIBE_CONFIGS, SASL_AUTHENTICATE = 3, 17, 18, 32, 36
DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS, DESCRIBE_SCRAM = 48, 49, 50
BROKER = 4
_SET = (2, 3, 4)
"""DescribeConfigs: the resource type of a node; the sources of settings made over the wire or in its file."""
_EXACT = "tidegate.kafka.exact"
_OWN = re.compile(
    r"(advertised\.)?listeners|(inter\.broker|controller|sasl)\..*listener.*|controller\.quorum\..*"
    r"|(metadata\.)?log\.dirs?|tidegate\..*"
)
"""Settings that are each broker's own: where it listens and keeps its data."""
_SASL = "SASL_PLAINTEXT"
_FROM_THE_START = {"broker.id": "1", "min.insync.replicas": "1"}
"""Settings that a new cluster has: one follows `node.id`, one is set where directories are formatted."""
_LOGIN = re.compile(r'username="([^"]*)" password="([^"]*)"')

Login = tuple[str, str]


class UnusableBrokerError(Exception):
    """A broker on which a file cannot be played: it does not start or answer, has other settings, or is not empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """What a broker that fits is: the APIs it does not offer, and whether it is Tidegate."""

    not_offered: frozenset[str]
    is_tidegate: bool


@contextmanager
def started(kind: str, recording: Recording) -> Iterator[Address]:
    """Start a `kafka` or `tidegate` with an empty cluster and the file's settings; stop it in the end.

    Raises `UnusableBrokerError` where it does not start.
    """
    # A process that was asked to stop may still write a last file.
    with tempfile.TemporaryDirectory(prefix="wire-", ignore_cleanup_errors=True) as folder:
        make = {"kafka": _kafka, "tidegate": _tidegate}[kind]
        broker, stop = make(Path(folder), recording)
        try:
            try:
                broker.start()
            except (AssertionError, OSError, RuntimeError, subprocess.CalledProcessError) as error:
                said = (getattr(error, "stderr", None) or b"").decode()
                raise UnusableBrokerError(f"{kind} could not be started: {error}\n{said}".strip()) from error
            yield "127.0.0.1", broker.port
        finally:
            stop()


def _kafka(directory: Path, recording: Recording) -> tuple[KafkaBench, Callable[[], None]]:
    settings = tuple(f"{key}={value}" for key, value in recording.broker_config.items())
    listener = _SASL if recording.with_sasl else "PLAINTEXT"
    broker = KafkaBench(
        "kafka", directory / "kafka", settings=settings, listener=listener, java_options=SHORT_LIVED
    )
    return broker, broker.stop


def _tidegate(directory: Path, recording: Recording) -> tuple[Broker, Callable[[], None]]:
    settings = dict(recording.broker_config)
    if recording.with_sasl:
        settings["listeners"] = f"{_SASL}://127.0.0.1:0"
    broker = Broker(directory, {**settings, _EXACT: "true"})
    return broker, broker.close


def inspect(address: Address, recording: Recording) -> Inspected:
    """Return what the broker is. Raises `UnusableBrokerError` where the file cannot be played on it."""
    try:
        return _inspect(address, recording)
    except (OSError, TidegateError) as error:
        raise UnusableBrokerError(f"no broker to ask at {address[0]}:{address[1]}: {error}") from error


def _inspect(address: Address, recording: Recording) -> Inspected:
    offered = {key["api_key"] for key in ask(address, API_VERSIONS, 0, {})["api_keys"]}
    not_offered = frozenset(api.name for key, api in API_BY_KEY.items() if key not in offered)
    if recording.with_sasl and SASL_HANDSHAKE not in offered:
        return Inspected(not_offered=not_offered, is_tidegate=False)
    login = login_of(recording)
    settings = _settings(address, recording.broker_config["node.id"], login)
    problem = _unfit_settings(settings, recording.broker_config) or _leftovers(address, offered, login)
    if problem:
        raise UnusableBrokerError(problem)
    return Inspected(not_offered=not_offered, is_tidegate=_EXACT in settings)


def _settings(address: Address, node_id: str, login: Login | None) -> dict[str, Any]:
    """Return what DescribeConfigs says of the node: name to `value` and `config_source`."""
    resource = {"resource_type": BROKER, "resource_name": node_id, "configuration_keys": None}
    message = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
    result = ask(address, DESCRIBE_CONFIGS, 4, message, login=login)["results"][0]
    if result["error_code"]:
        raise UnusableBrokerError(f"node.id must be {node_id}: {result['error_message']}")
    return {setting["name"]: setting for setting in result["configs"]}


def _unfit_settings(settings: Mapping[str, Any], needed: Mapping[str, str]) -> str | None:
    """Return what is wrong with the settings. What a broker does not describe, or hides, is taken to be right."""
    known = {_EXACT: "true", **_FROM_THE_START, **needed}
    shown = {name: setting["value"] for name, setting in settings.items() if not setting["is_sensitive"]}
    wrong = [
        f"{name} must be {value}, is {shown[name]}"
        for name, value in known.items()
        if shown.get(name, value) != value
    ]
    more = [
        f"{name} must not be set, is {setting['value']}"
        for name, setting in settings.items()
        if name not in known and setting["config_source"] in _SET and not _OWN.fullmatch(name)
    ]
    return "; ".join((*wrong, *more)) or None


def _leftovers(address: Address, offered: set[int], login: Login | None) -> str | None:
    """Return what the cluster holds that an empty one does not."""
    message = {
        "topics": None, "allow_auto_topic_creation": False, "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }  # fmt: skip
    topics = [topic["name"] for topic in ask(address, METADATA, 9, message, login=login)["topics"]]
    if topics:
        return f"the cluster is not empty: it has the topics {', '.join(sorted(topics)[:5])}"
    if _quota_entries(address, login):
        return "the cluster is not empty: it has client quotas"
    if DESCRIBE_SCRAM in offered and ask(address, DESCRIBE_SCRAM, 0, {"users": None}, login=login)["results"]:
        return "the cluster is not empty: it has SCRAM credentials"
    return None


def login_of(recording: Recording) -> Login | None:
    """Return the name and password that the file's settings give to the broker itself, None without SASL."""
    found = [_LOGIN.search(value) for value in recording.broker_config.values() if recording.with_sasl]
    return next(((match[1], match[2]) for match in found if match), None)


def ask(
    address: Address,
    api_key: int,
    version: int,
    message: dict[str, Any],
    *,
    login: Login | None = None,
    source: str = "",
) -> dict[str, Any]:
    """Return the decoded answer to one request on a connection of its own, which comes from the address `source`.

    Raises `OSError`, `TidegateError`.
    """
    with socket.create_connection(address, timeout=TIMEOUT_S, source_address=(source, 0)) as sock:
        if login:
            _ask(sock, SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
            token = "\0".join(("", *login)).encode()
            _ask(sock, SASL_AUTHENTICATE, 2, {"auth_bytes": token})
        return _ask(sock, api_key, version, message)


def _ask(sock: socket.socket, api_key: int, version: int, message: dict[str, Any]) -> dict[str, Any]:
    sock.sendall(encode_request(api_key, version, 0, "recordings", message))
    frame = receive_frame(sock)
    answer: dict[str, Any] = read_response(api_key, version, frame, response_body_at(api_key, version))
    return answer


def remove_quotas(address: Address, login: Login | None = None) -> None:
    """Remove what a scenario that was broken off has left defined, so that the next ones begin as recorded."""
    entries = [
        {
            "entity": entry["entity"],
            "ops": [{"key": value["key"], "value": 0.0, "remove": True} for value in entry["values"]],
        }
        for entry in _quota_entries(address, login)
    ]
    if entries:
        message = {"entries": entries, "validate_only": False}
        ask(address, ALTER_CLIENT_QUOTAS, 1, message, login=login)


def _quota_entries(address: Address, login: Login | None) -> list[dict[str, Any]]:
    message = {"components": [], "strict": False}
    return ask(address, DESCRIBE_CLIENT_QUOTAS, 1, message, login=login)["entries"] or []

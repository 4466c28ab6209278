"""Play what a real Apache Kafka was asked against our broker, and compare every answer with the recorded one.

The format is described in `tests/vectors/wire/README.md`: steps send, wait and expect; `variable` paths may differ,
`unordered` ones are compared as bags, `bounds` and `patterns` say what else a value may be. Which scenarios are not
played, and why, is in `tests/e2e/not_played.py`.
"""

import json
import re
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.e2e.lateness import Lateness
from tests.e2e.not_played import NOT_SERVED, OWN_TEXTS
from tests.e2e.plain_client import receive_frame
from tests.wire.messages import plain, response_body_at, same

from tidegate.wire import API_BY_KEY, decode_request_header, encode_request, read_request, read_response
from tidegate.wire.batch import renew_crc

VECTORS = Path(__file__).parent / "wire"
TIMEOUT_S = 20.0
DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS = 48, 49
_UNORDERED = {"ListOffsets": ("topics",)}
"""What has no order though a recording does not say so: Kafka answers in the order of a hash map."""

_BATCH_FIELDS = {"producer_id": struct.Struct(">q"), "producer_epoch": struct.Struct(">h")}
_BATCH_FIELD_AT = {"producer_id": 43, "producer_epoch": 51}

Step = dict[str, Any]


@cache
def files() -> tuple[str, ...]:
    """Return the names of all files of recordings."""
    return tuple(sorted(path.stem for path in VECTORS.glob("*.json")))


@cache
def scenarios(name: str) -> tuple[dict[str, Any], ...]:
    """Return the scenarios of one file, in order."""
    return tuple(json.loads((VECTORS / f"{name}.json").read_text())["scenarios"])


def broker_config(name: str) -> dict[str, str]:
    """Return the settings that a file was recorded with."""
    config: dict[str, str] = json.loads((VECTORS / f"{name}.json").read_text())["broker_config"]
    return config


def with_sasl(name: str) -> bool:
    """Return whether a file was recorded over SASL, which every connection of it needs."""
    return "sasl.enabled.mechanisms" in broker_config(name)


def first_use(scenario: dict[str, Any], api: str) -> int | None:
    """Return the number of the first step that uses an API, named or in raw bytes; None where none does."""
    steps = scenario["steps"]
    for number, step in enumerate(steps):
        if step.get("api", _api_of_bytes(steps[number:])) == api:
            return number
    return None


def _api_of_bytes(steps: list[Step]) -> str | None:
    """Return the API of the frame that a raw step begins; it may be sent in pieces."""
    stream = b"".join(bytes.fromhex(step.get("raw_hex", "")) for step in steps)
    key = int.from_bytes(stream[4:6], "big")
    return API_BY_KEY[key].name if steps[0]["op"] == "raw" and key in API_BY_KEY else None


class StepDiffersError(AssertionError):
    """Raised at the first step of a scenario that goes another way than recorded; `step` is its number."""

    def __init__(self, step: int, text: str) -> None:
        super().__init__(text)
        self.step = step


@dataclass
class Player:
    """The connections and answers of one scenario."""

    port: int
    lateness: Lateness
    connections: dict[str, socket.socket] = field(default_factory=dict)
    sent_at: dict[int, float] = field(default_factory=dict)
    answers: dict[int, Any] = field(default_factory=dict)

    def play(self, scenario: dict[str, Any], differing: frozenset[int] = frozenset()) -> None:
        """Play every step; those in `differing` must go another way. Raises `StepDiffersError`."""
        try:
            for number, step in enumerate(scenario["steps"]):
                where = f"{scenario['name']}, step {number} ({step.get('api', step['op'])} {step.get('note', '')})"
                time.sleep(step.get("before_ms", 0) / 1000)
                play = self._play_differing if number in differing else self._play_step
                try:
                    play(scenario["steps"], number, step, where)
                except AssertionError as error:
                    raise StepDiffersError(number, str(error)) from error
        finally:
            for sock in self.connections.values():
                sock.close()

    def _play_differing(self, steps: list[Step], number: int, step: Step, where: str) -> None:
        try:
            self._play_step(steps, number, step, where)
        except AssertionError:
            return
        raise AssertionError(f"{where}: went as recorded though it is listed as different: play it")

    def _play_step(self, steps: list[Step], number: int, step: Step, where: str) -> None:
        self.sent_at[number] = time.monotonic()
        name = step.get("connection", "main")
        if step["op"] == "close":
            self.connections.pop(name).close()
            return
        sock = self._connection(name)
        with suppress(ConnectionError):  # what follows notices that it is closed
            if step["op"] == "request":
                frame = self._request(step)
                sock.sendall(struct.pack(">i", len(frame)) + frame)
            elif step["op"] == "raw":
                sock.sendall(bytes.fromhex(step["raw_hex"]) + bytes(step.get("pad_bytes", 0)))
        self._expect(steps, number, step, sock, where)

    def _expect(self, steps: list[Step], number: int, step: Step, sock: socket.socket, where: str) -> None:
        outcome = step["outcome"]
        if outcome == "deferred":
            return
        if outcome == "silent":
            sock.settimeout(step["wait_ms"] / 1000)
            try:
                assert not sock.recv(1), f"{where}: expected silence"
                raise AssertionError(f"{where}: expected silence, the connection closed")
            except TimeoutError:
                return
        frame = self._receive(sock)
        since = step.get("since_step", step.get("of", number))
        took_ms = (time.monotonic() - self.sent_at[since]) * 1000
        if outcome == "closed":
            assert frame is None, f"{where}: expected the connection to close, got {frame!r}"
            self.connections.pop(step.get("connection", "main")).close()
        else:
            assert frame is not None, f"{where}: the connection closed"
            asked = steps[step["of"]] if step["op"] == "receive" else step
            self._compare(number, asked, step, frame, where)
        if "answered_within_ms" in step:
            low, high = step["answered_within_ms"]
            late_ms = self.lateness.ms_since(self.sent_at[since])
            assert low <= took_ms <= high + late_ms, (
                f"{where}: answered after {took_ms:.0f} ms, expected {low} to {high} + {late_ms:.0f} (busy)"
            )

    def _compare(self, number: int, asked: Step, step: Step, frame: bytes, where: str) -> None:
        if step.get("response_hex_exact"):
            assert frame.hex() == step["response_hex"], where
            return
        at = response_body_at(asked["api_key"], asked["version"])
        ours = plain(read_response(asked["api_key"], asked["version"], frame, at))
        self.answers[number] = ours
        if "correlation_id" in asked:
            assert struct.unpack_from(">i", frame)[0] == asked["correlation_id"], where
        recorded = step["decoded"]
        api = asked["api"]
        if api == "ApiVersions":
            ours, recorded = _without_features(ours), _without_features(recorded)
            recorded["api_keys"] = [
                key for key in recorded["api_keys"] if API_BY_KEY[key["api_key"]].name not in NOT_SERVED
            ]
        for body in (ours, recorded):
            for path in OWN_TEXTS.get(api, ()):
                _blank(body, path.split("."), what=str)
        unordered = (*step.get("unordered", ()), *_UNORDERED.get(api, ()))
        check(ours, recorded, {**step, "unordered": unordered, "bounds": self._bounds(step)}, where)

    def _bounds(self, step: Step) -> dict[str, tuple[float, float]]:
        """Return the bounds of a step. A throttle time shrinks while time passes: further on a machine that is late."""
        late_ms = self.lateness.ms_since(self.sent_at[0])
        return {
            path: (max(low - late_ms, min(low, 1)) if path.endswith("throttle_time_ms") else low, high)
            for path, (low, high) in step.get("bounds", {}).items()
        }

    def _request(self, step: Step) -> bytes:
        frame = bytes.fromhex(step["request_hex"])
        if "bind" not in step:
            return frame
        header = decode_request_header(frame)
        message = read_request(header.api_key, header.api_version, frame, header.body_at)
        for path, source in step["bind"].items():
            value = _at(self.answers[source["step"]], source["path"].split("."))
            path, _, batch_field = path.partition("#")
            _put(message, path.split("."), value, batch_field)
        return encode_request(
            header.api_key, header.api_version, header.correlation_id, step["client_id"], message
        )[4:]

    def _connection(self, name: str) -> socket.socket:
        if name not in self.connections:
            sock = socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections[name] = sock
        return self.connections[name]

    def _receive(self, sock: socket.socket) -> bytes | None:
        sock.settimeout(TIMEOUT_S)
        try:
            return receive_frame(sock)
        except ConnectionError:
            return None


def _without_features(body: dict[str, Any]) -> dict[str, Any]:
    """Return an ApiVersions answer without the cluster's features, of which we claim none (row S5)."""
    return {name: value for name, value in body.items() if "features" not in name}


def ask(port: int, api_key: int, version: int, message: dict[str, Any]) -> dict[str, Any]:
    """Return the decoded answer of the broker on `port` to one request on a connection of its own."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as sock:
        sock.sendall(encode_request(api_key, version, 0, "recordings", message))
        frame = receive_frame(sock)
    answer: dict[str, Any] = read_response(api_key, version, frame, response_body_at(api_key, version))
    return answer


def remove_quotas(port: int) -> None:
    """Remove what a scenario that was broken off has left defined, so that the next ones begin as recorded."""
    described = ask(port, DESCRIBE_CLIENT_QUOTAS, 1, {"components": [], "strict": False})
    entries = [
        {
            "entity": entry["entity"],
            "ops": [{"key": value["key"], "value": 0.0, "remove": True} for value in entry["values"]],
        }
        for entry in described["entries"] or ()
    ]
    if entries:
        answer = ask(port, ALTER_CLIENT_QUOTAS, 1, {"entries": entries, "validate_only": False})
        assert not any(entry["error_code"] for entry in answer["entries"]), answer


def check(ours: Any, recorded: Any, step: Step, where: str) -> None:
    """Compare two decoded bodies by the rules of the step."""
    ours, recorded = json.loads(json.dumps(ours)), json.loads(json.dumps(recorded))
    if "*" in step.get("variable", ()):
        return
    for path, (low, high) in step.get("bounds", {}).items():
        for value in _all(ours, path.split(".")):
            assert low <= value <= high, f"{where}: {path} is {value}, expected {low} to {high}"
    for path, pattern in step.get("patterns", {}).items():
        for value in _all(ours, path.split(".")):
            assert re.fullmatch(pattern, value), f"{where}: {path} is {value!r}, expected {pattern}"
    for path in (*step.get("variable", ()), *step.get("bounds", ()), *step.get("patterns", ())):
        for body in (ours, recorded):
            _blank(body, path.split("."))
    for path in sorted(step.get("unordered", ()), key=len, reverse=True):
        for body in (ours, recorded):
            for array in _all(body, path.split(".")):
                if isinstance(array, list):
                    array.sort(key=lambda item: json.dumps(item, sort_keys=True))
    assert same(ours, recorded), f"{where}:\n got      {json.dumps(ours)}\n expected {json.dumps(recorded)}"


def _all(body: Any, path: list[str]) -> list[Any]:
    if not path:
        return [body]
    if body is None:
        return []
    head, rest = path[0], path[1:]
    if head == "*":
        return [found for item in body for found in _all(item, rest)]
    if isinstance(body, list):
        return _all(body[int(head)], rest) if int(head) < len(body) else []
    return _all(body[head], rest) if head in body else []


def _at(body: Any, path: list[str]) -> Any:
    return _all(body, path)[0]


def _blank(body: Any, path: list[str], *, what: type = object) -> None:
    for parent in _all(body, path[:-1]):
        if isinstance(parent, dict) and path[-1] in parent and isinstance(parent[path[-1]], what):
            parent[path[-1]] = "varies"
        elif isinstance(parent, list):
            indexes = range(len(parent)) if path[-1] == "*" else [int(path[-1])]
            for index in indexes:
                parent[index] = "varies"


def _put(message: Any, path: list[str], value: Any, batch_field: str) -> None:
    parent = _all(message, path[:-1])[0]
    key: Any = int(path[-1]) if isinstance(parent, list) else path[-1]
    if not batch_field:
        parent[key] = value
        return
    records = bytearray(parent[key])
    _BATCH_FIELDS[batch_field].pack_into(records, _BATCH_FIELD_AT[batch_field], value)
    renew_crc(records)
    parent[key] = bytes(records)

"""Play what a real Apache Kafka was asked against our broker, and compare every answer with the recorded one.

The format is described in `tests/vectors/wire/README.md`: steps send, wait and expect; `variable` paths may differ,
`unordered` ones are compared as bags, `bounds` and `patterns` say what else a value may be.
"""

import json
import re
import socket
import struct
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.wire.messages import plain, response_body_at, same

from tidegate.wire import API_BY_KEY, decode_request_header, encode_request, read_request, read_response
from tidegate.wire.batch import renew_crc

VECTORS = Path(__file__).parent.parent / "vectors" / "wire"
TIMEOUT_S = 20.0
_BATCH_FIELDS = {"producer_id": struct.Struct(">q"), "producer_epoch": struct.Struct(">h")}
_BATCH_FIELD_AT = {"producer_id": 43, "producer_epoch": 51}

Step = dict[str, Any]


@cache
def scenarios(name: str) -> tuple[dict[str, Any], ...]:
    """Return the scenarios of one file, in order."""
    return tuple(json.loads((VECTORS / f"{name}.json").read_text())["scenarios"])


def broker_config(name: str) -> dict[str, str]:
    """Return the settings that a file was recorded with."""
    config: dict[str, str] = json.loads((VECTORS / f"{name}.json").read_text())["broker_config"]
    return config


def apis(scenario: dict[str, Any]) -> set[str]:
    """Return the names of the APIs that a scenario uses and has answered, also in raw bytes."""
    raw = [step for step in scenario["steps"] if step["op"] == "raw"]
    stream = b"".join(bytes.fromhex(step["raw_hex"]) for step in raw)
    keys = set()
    if any(step["outcome"] == "response" for step in raw):
        keys.add(int.from_bytes(stream[4:6], "big"))
    named = {step["api"] for step in scenario["steps"] if "api" in step}
    return named | {API_BY_KEY[key].name for key in keys if key in API_BY_KEY}


@dataclass
class Player:
    """The connections and answers of one scenario."""

    port: int
    connections: dict[str, socket.socket] = field(default_factory=dict)
    sent_at: dict[int, float] = field(default_factory=dict)
    answers: dict[int, Any] = field(default_factory=dict)

    def play(self, scenario: dict[str, Any]) -> None:
        """Play every step; an assertion names the step that went another way."""
        try:
            for number, step in enumerate(scenario["steps"]):
                where = f"{scenario['name']}, step {number} ({step.get('api', step['op'])} {step.get('note', '')})"
                time.sleep(step.get("before_ms", 0) / 1000)
                self._play_step(scenario["steps"], number, step, where)
        finally:
            for sock in self.connections.values():
                sock.close()

    def _play_step(self, steps: list[Step], number: int, step: Step, where: str) -> None:
        self.sent_at[number] = time.monotonic()
        name = step.get("connection", "main")
        if step["op"] == "close":
            self.connections.pop(name).close()
            return
        sock = self._connection(name)
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
        took_ms = (time.monotonic() - self.sent_at[step.get("since_step", step.get("of", number))]) * 1000
        if outcome == "closed":
            assert frame is None, f"{where}: expected the connection to close, got {frame!r}"
            self.connections.pop(step.get("connection", "main")).close()
        else:
            assert frame is not None, f"{where}: the connection closed"
            asked = steps[step["of"]] if step["op"] == "receive" else step
            self._compare(number, asked, step, frame, where)
        if "answered_within_ms" in step:
            low, high = step["answered_within_ms"]
            assert low <= took_ms <= high, (
                f"{where}: answered after {took_ms:.0f} ms, expected {low} to {high}"
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
        if asked.get("api") == "ApiVersions":
            ours, recorded = _served(ours, ours), _served(recorded, ours)
        check(ours, recorded, step, where)

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
            return _exactly(sock, struct.unpack(">i", _exactly(sock, 4))[0])
        except ConnectionError:
            return None


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise ConnectionError("closed")
        data += part
    return bytes(data)


def _served(body: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """Return an ApiVersions answer with the APIs that we serve and without features, of which we claim none."""
    keys = {key["api_key"] for key in ours["api_keys"]}
    return {
        name: [key for key in value if key["api_key"] in keys] if name == "api_keys" else value
        for name, value in body.items()
        if "features" not in name
    }


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


def _blank(body: Any, path: list[str]) -> None:
    for parent in _all(body, path[:-1]):
        if isinstance(parent, dict) and path[-1] in parent:
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

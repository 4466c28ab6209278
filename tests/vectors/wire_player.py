"""Play a recorded scenario against a broker and compare every answer with the recorded one.

The format is described in `tests/vectors/wire/README.md`: steps send, wait and expect. How answers are compared is in
`wire_compare`, which broker a file needs in `wire_brokers`.
"""

import json
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.batches import renew_crc
from tests.e2e.lateness import Lateness
from tests.e2e.plain_client import receive_frame
from tests.vectors.wire_compare import Rules, blank, first_break, values_at
from tests.wire.messages import Difference, plain, response_body_at

from tidegate.errors import TidegateError
from tidegate.wire import API_BY_KEY, decode_request_header, encode_request, read_request, read_response

__all__ = [
    "NO_EXCEPTIONS",
    "Address",
    "Exceptions",
    "Player",
    "StepDiffersError",
    "put",
]

TIMEOUT_S = 20.0
COORDINATOR_LOAD_IN_PROGRESS = 14
_LOADING_S = 0.5
"""How long Kafka takes at most until it has what it answered error 14 about. The recording does not say: some ms."""
_SETTLED_MS = 700
"""The longest wait in a recording that is for a change to arrive at the broker; longer ones are for throttles."""
_UNORDERED = {"ListOffsets": ("topics",)}
"""What has no order though a recording does not say so: Kafka answers in the order of a hash map."""

_BATCH_FIELDS = {"producer_id": struct.Struct(">q"), "producer_epoch": struct.Struct(">h")}
_BATCH_FIELD_AT = {"producer_id": 43, "producer_epoch": 51}
_INT32 = struct.Struct(">i")
_SHOWN_CHARACTERS = 200

Address = tuple[str, int]
Step = dict[str, Any]


class _DiffersError(Exception):
    """Raised inside a step at the first field that is not as recorded."""

    def __init__(self, path: str, *, expected: Any, got: Any) -> None:
        super().__init__(path)
        self.difference = Difference(path=path, expected=expected, got=got)


class StepDiffersError(Exception):
    """Raised at the first step of a scenario that goes another way than recorded; `step` is its number."""

    def __init__(self, number: int, step: Step, difference: Difference) -> None:
        named = f"{step['api']} v{step['version']}" if "api" in step else step["op"]
        expected, got = (_short(value) for value in (difference.expected, difference.got))
        super().__init__(f"step {number} ({named}): {difference.path}: expected {expected}, got {got}")
        self.step = number


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return (
        text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}... ({len(text)} characters)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Exceptions:
    """What a broker answers otherwise everywhere: APIs that it does not list, texts of its own, no features."""

    not_listed: frozenset[str] = frozenset()
    own_texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    without_features: bool = False

    def apply(self, api: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return a decoded body without what is excepted; done to both, the recorded one and that of the broker."""
        if api == "ApiVersions":
            if self.without_features:
                body = {name: value for name, value in body.items() if "features" not in name}
            keys = [key for key in body["api_keys"] if not self._is_left_out(key["api_key"])]
            body = {**body, "api_keys": keys}
        for path in self.own_texts.get(api, ()):
            blank(body, path, only=str)
        return body

    def _is_left_out(self, api_key: int) -> bool:
        return api_key in API_BY_KEY and API_BY_KEY[api_key].name in self.not_listed


NO_EXCEPTIONS = Exceptions()


@dataclass
class Player:
    """The connections and answers of one scenario.

    Times until an answer are strict, unless `lateness` says how long this process itself was kept waiting. Where a
    recording waits for a change to arrive at the broker, `settle_ms` is added, and `await_change` called with the step
    that has changed something and its answer.
    """

    address: Address
    exceptions: Exceptions = NO_EXCEPTIONS
    lateness: Lateness | None = None
    settle_ms: int = 0
    await_change: Callable[[Step, Any], None] | None = None
    connections: dict[str, socket.socket] = field(default_factory=dict)
    sent_at: dict[int, float] = field(default_factory=dict)
    answers: dict[int, Any] = field(default_factory=dict)

    def play(self, scenario: dict[str, Any], differing: frozenset[int] = frozenset()) -> None:
        """Play every step; those in `differing` must go another way. Raises `StepDiffersError`."""
        try:
            for number, step in enumerate(scenario["steps"]):
                self._wait(scenario["steps"], number)
                try:
                    self._play(scenario["steps"], number, must_differ=number in differing)
                except _DiffersError as error:
                    raise StepDiffersError(number, step, error.difference) from error
                if step.get("decoded", {}).get("error_code") == COORDINATOR_LOAD_IN_PROGRESS:
                    time.sleep(_LOADING_S)
        finally:
            for sock in self.connections.values():
                sock.close()

    def _wait(self, steps: list[Step], number: int) -> None:
        wait_ms: int = steps[number].get("before_ms", 0)
        changing = steps[number - 1]
        key = changing.get("api_key")
        settles = 0 < wait_ms <= _SETTLED_MS and key is not None and API_BY_KEY[key].forwardable
        time.sleep((wait_ms + self.settle_ms * settles) / 1000)
        if settles and self.await_change and number - 1 in self.answers:
            self.await_change(changing, self.answers[number - 1])

    def _play(self, steps: list[Step], number: int, *, must_differ: bool) -> None:
        try:
            self._play_step(steps, number)
        except (OSError, TidegateError, _DiffersError) as error:
            if must_differ:
                return
            if isinstance(error, _DiffersError):
                raise
            raise _DiffersError("connection or answer", expected="as recorded", got=str(error)) from error
        if must_differ:
            raise _DiffersError("step", expected="another way, as it is listed", got="as recorded")

    def _play_step(self, steps: list[Step], number: int) -> None:
        step = steps[number]
        self.sent_at[number] = time.monotonic()
        name = step.get("connection", "main")
        if step["op"] == "close":
            self.connections.pop(name).close()
            return
        sock = self._connection(name)
        with suppress(ConnectionError):  # what follows notices that it is closed
            if step["op"] == "request":
                frame = self._request(step)
                sock.sendall(_INT32.pack(len(frame)) + frame)
            elif step["op"] == "raw":
                sock.sendall(bytes.fromhex(step["raw_hex"]) + bytes(step.get("pad_bytes", 0)))
        if step["outcome"] == "silent":
            _expect_silence(sock, step["wait_ms"])
        elif step["outcome"] != "deferred":
            self._expect(steps, number, sock)

    def _expect(self, steps: list[Step], number: int, sock: socket.socket) -> None:
        step = steps[number]
        frame = _receive(sock)
        since = step.get("since_step", step.get("of", number))
        took_ms = (time.monotonic() - self.sent_at[since]) * 1000
        got = "closed" if frame is None else f"an answer of {len(frame)} bytes"
        if step["outcome"] == "closed":
            if frame is not None:
                raise _DiffersError("connection", expected="closed", got=got)
            self.connections.pop(step.get("connection", "main")).close()
        else:
            if frame is None:
                raise _DiffersError("connection", expected="an answer", got=got)
            self._compare(steps, number, frame)
        if "answered_within_ms" in step:
            low, high = step["answered_within_ms"]
            late_ms = self._late_ms(since)
            if not low <= took_ms <= high + late_ms:
                busy = f" + {late_ms:.0f} (busy)" if late_ms else ""
                raise _DiffersError(
                    "answered_within_ms", expected=f"{low} to {high}{busy}", got=f"{took_ms:.1f}"
                )

    def _compare(self, steps: list[Step], number: int, frame: bytes) -> None:
        step = steps[number]
        asked = steps[step["of"]] if step["op"] == "receive" else step
        if step.get("response_hex_exact"):
            if frame.hex() != step["response_hex"]:
                raise _DiffersError("response_hex", expected=step["response_hex"], got=frame.hex())
            return
        correlation_id = int.from_bytes(frame[: _INT32.size], "big", signed=True)
        if correlation_id != asked.get("correlation_id", correlation_id):
            raise _DiffersError("correlation_id", expected=asked["correlation_id"], got=correlation_id)
        api, key, version = asked["api"], asked["api_key"], asked["version"]
        self.answers[number] = read_response(key, version, frame, response_body_at(key, version))
        rules = Rules(
            variable=step.get("variable", ()),
            unordered=(*step.get("unordered", ()), *_UNORDERED.get(api, ())),
            bounds=self._bounds(steps, number),
            patterns=step.get("patterns", {}),
        )
        ours = self.exceptions.apply(api, plain(self.answers[number]))
        recorded = self.exceptions.apply(api, json.loads(json.dumps(step["decoded"])))
        found = first_break(ours, recorded, rules)
        if found:
            raise _DiffersError(found.path, expected=found.expected, got=found.got)

    def _bounds(self, steps: list[Step], number: int) -> dict[str, tuple[float, float]]:
        """Return the bounds of a step. A throttle time shrinks while time passes: by what this run is behind."""
        step, bounds = steps[number], {}
        for path, (low, high) in step.get("bounds", {}).items():
            if path.endswith("throttle_time_ms"):
                behind_ms, recorded = self._behind_ms(steps, number), values_at(step["decoded"], path)[0]
                low = round(max(low - behind_ms, min(low, 1) if behind_ms < recorded else 0))
            bounds[path] = low, high
        return bounds

    def _behind_ms(self, steps: list[Step], number: int) -> float:
        """Return how much more time has passed than in the recording, from the last step that was waited for on."""
        since = max((at for at in range(number + 1) if steps[at].get("before_ms")), default=0)
        sent_ms: dict[int, float] = {}
        recorded_ms = 0.0
        for at in range(since, number + 1):
            sent_ms[at] = recorded_ms
            begun_ms = sent_ms.get(steps[at].get("since_step", at), recorded_ms)
            recorded_ms = max(recorded_ms, begun_ms + (steps[at].get("answered_after_ms") or 0))
        return max((time.monotonic() - self.sent_at[since]) * 1000 - recorded_ms, 0)

    def _late_ms(self, since_step: int) -> float:
        return self.lateness.ms_since(self.sent_at[since_step]) if self.lateness else 0

    def _request(self, step: Step) -> bytes:
        frame = bytes.fromhex(step["request_hex"])
        if "bind" not in step:
            return frame
        header = decode_request_header(frame)
        message = read_request(header.api_key, header.api_version, frame, header.body_at)
        for path, source in step["bind"].items():
            values = values_at(self.answers.get(source["step"]), source["path"])
            if not values:
                raise _DiffersError(
                    source["path"], expected=f"an answer of step {source['step']}", got="none"
                )
            path, _, batch_field = path.partition("#")
            put(message, path, values[0], batch_field)
        return encode_request(
            header.api_key, header.api_version, header.correlation_id, step["client_id"], message
        )[4:]

    def _connection(self, name: str) -> socket.socket:
        if name not in self.connections:
            sock = socket.create_connection(self.address, timeout=TIMEOUT_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections[name] = sock
        return self.connections[name]


def _expect_silence(sock: socket.socket, wait_ms: float) -> None:
    sock.settimeout(wait_ms / 1000)
    try:
        got = "an answer" if sock.recv(1) else "closed"
    except TimeoutError:
        return
    raise _DiffersError("connection", expected="silence", got=got)


def _receive(sock: socket.socket) -> bytes | None:
    """Return the next frame, None where the connection is closed."""
    sock.settimeout(TIMEOUT_S)
    try:
        return receive_frame(sock)
    except ConnectionError:
        return None
    except TimeoutError as error:
        raise _DiffersError(
            "connection", expected=f"anything within {TIMEOUT_S:.0f} s", got="silence"
        ) from error


def put(message: Any, path: str, value: Any, batch_field: str) -> None:
    """Put a value at a path of a message, or into a field of the record batch there."""
    parent_path, _, last = path.rpartition(".")
    parent = values_at(message, parent_path)[0]
    key: Any = int(last) if isinstance(parent, list) else last
    if not batch_field:
        parent[key] = value
        return
    records = bytearray(parent[key])
    _BATCH_FIELDS[batch_field].pack_into(records, _BATCH_FIELD_AT[batch_field], value)
    renew_crc(records)
    parent[key] = bytes(records)

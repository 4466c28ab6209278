"""What a real Apache Kafka 4.3.1 answered, played against the handlers without sockets.

Compared is the decoded body, but for what the vectors call variable and for throttle times, which are the front's.
Left out are scenarios about what is not served: transactions, share groups.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.node import CONNECTION, Node, decoded

from tidegate.server.requests.handler import Request
from tidegate.wire import decode_request_header, encode_request, read_request

VECTORS = Path(__file__).parents[3] / "vectors" / "wire"
FILES = ("apis.json", "produce_throttle.json", "frames.json")
NOT_SERVED = (  # the last one met a coordinator that was not there yet (row L19)
    "consumer-group-heartbeat-",  # Kafka serves it (row S7)
    "coordinators-ready",
    "find-coordinator-",
    "init-producer-id-",
    "txn",
    "-transactions-",
    "frame-close-in-the-middle",
)
SHARED = "unknown-topic"  # earlier scenarios create it and write to it: answers about it depend on the others


def scenarios() -> list[Any]:
    """Return (file, scenario) for every scenario with a step that is served here, in the order of the files."""
    found = []
    for file in FILES:
        for scenario in json.loads((VECTORS / file).read_text())["scenarios"]:
            if not any(part in scenario["name"] for part in NOT_SERVED):
                found.append(pytest.param(scenario, id=f"{file}-{scenario['name']}"))
    return found


@pytest.mark.parametrize("scenario", scenarios())
def test_answers_are_kafkas(tmp_path: Path, scenario: dict[str, Any]) -> None:
    """Every step of ours gives the recorded answer."""
    node = Node(tmp_path, kafka_exact=True, log_retention_ms=-1, group_initial_rebalance_delay_ms=0)
    node.create(SHARED)
    answers: dict[int, Any] = {}
    for at, step in enumerate(scenario["steps"]):
        if step["op"] != "request" or step["api_key"] not in node.handlers:
            continue
        answers[at] = _play(node, step, answers)
        if step["outcome"] == "response" and SHARED not in json.dumps(step.get("decoded")):
            expected = _shape(step["decoded"], "", step)
            assert _shape(answers[at], "", step) == expected, f"step {at}, {step['api']}"
    node.storage.close()


def _play(node: Node, step: dict[str, Any], answers: dict[int, Any]) -> Any:
    """Send a step's frame, with what earlier answers bound; return the decoded answer."""
    frame = bytes.fromhex(step["request_hex"])
    header = decode_request_header(frame)
    if step.get("bind"):
        body = read_request(header.api_key, header.api_version, frame, header.body_at)
        for path, source in step["bind"].items():
            if "#" not in path:
                _put(body, path, _get(answers[source["step"]], source["path"]))
        frame = encode_request(header.api_key, header.api_version, 7, header.client_id, body)[4:]
        header = decode_request_header(frame)
    view = memoryview(bytearray(frame))
    result = node.handle(Request(header, view, CONNECTION, node.permits, node.clock.now_ms()))
    answer = node.awaited(result, wait_s=60)
    return None if answer.response is None else decoded(header.api_key, header.api_version, answer)


def _get(message: Any, path: str) -> Any:
    for part in path.split("."):
        message = message[int(part)] if part.isdigit() else message[part]
    return message


def _put(message: Any, path: str, value: Any) -> None:
    *parents, last = path.split(".")
    target = _get(message, ".".join(parents)) if parents else message
    target[int(last) if last.isdigit() else last] = value


def _shape(value: Any, path: str, step: dict[str, Any]) -> Any:
    """Return a message without what may differ, in a form that can be compared."""
    if path == "throttle_time_ms" or _matches(path, step.get("variable", ())):
        return "any"
    if isinstance(value, dict):
        plain = {key: part for key, part in value.items() if key != "_unknown_tags"}
        return {key: _shape(part, f"{path}.{key}".lstrip("."), step) for key, part in plain.items()}
    if isinstance(value, list | tuple):
        parts = [_shape(part, f"{path}.{at}", step) for at, part in enumerate(value)]
        unordered = _matches(path, step.get("unordered", ()))
        return sorted(parts, key=lambda part: json.dumps(part, sort_keys=True)) if unordered else parts
    if isinstance(value, bytes | bytearray | memoryview):
        return _cut(bytes(value).hex(), len(value)) if path.endswith("records") else bytes(value).hex()
    if path.endswith("records") and isinstance(value, str):
        head, _, size = value.partition("...(")
        return _cut(head, int(size.split(" ")[0]) if size else len(value) // 2)
    return value


def _cut(text: str, size: int) -> tuple[str, int]:
    """Return the beginning of hexadecimal records and their size: long ones are cut in the vectors."""
    return text[:56], size


def _matches(path: str, patterns: Any) -> bool:
    parts = path.split(".")
    return any(
        len(parts) >= len(wanted := pattern.split("."))
        and all(one in ("*", other) for one, other in zip(wanted, parts, strict=False))
        for pattern in patterns
    )

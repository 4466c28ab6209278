"""Request logs that a real Kafka 4.3.1 wrote, what its clients and metrics said meanwhile, and lines made up."""

import gzip
import json
from datetime import datetime
from pathlib import Path
from typing import Any

SAMPLES = Path(__file__).parents[2] / "vectors" / "request-log"
QUICK = SAMPLES / "quick.log.gz"
THROTTLED = SAMPLES / "throttled-150s.micros.log.gz"


def truth(path: Path) -> dict[str, Any]:
    """Return what is known of a sample from elsewhere than the log."""
    name = path.name.removesuffix(".log.gz").removesuffix(".micros")
    found: dict[str, Any] = json.loads((SAMPLES / f"{name}.truth.json").read_text())
    return found


def lines_before(path: Path, at_ms: int) -> list[dict[str, Any]]:
    """Return the objects of all lines whose time is before `at_ms`."""
    found = []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            text, _, rest = line.partition("]")
            stamp = datetime.fromisoformat(text.removeprefix("[").replace(",", ".") + "+00:00")
            if stamp.timestamp() * 1000 < at_ms:
                found.append(json.loads(rest[rest.index("{") : rest.rindex("}") + 1]))
    return found


def all_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of all lines."""
    return lines_before(path, 1 << 60)


def line(
    time: str = "2026-11-21 09:42:57,018",
    *,
    api_key: int = 0,
    api_version: int = 9,
    client_id: str | None = "app",
    request: dict[str, Any] | str | None = None,
    response: dict[str, Any] | str | None = None,
    **others: Any,
) -> bytes:
    """Return a line of the log, with its end: a small Produce request unless told otherwise."""
    records = {"name": "orders", "partitionData": [{"index": 1, "recordsSizeInBytes": 100}]}
    answer = {"index": 1, "errorCode": 0, "baseOffset": 0, "logAppendTimeMs": -1, "logStartOffset": 0}
    answer |= {"recordErrors": [], "errorMessage": None}
    logged = {
        "isForwarded": False,
        "requestHeader": {
            "requestApiKey": api_key, "requestApiVersion": api_version, "correlationId": 4, "clientId": client_id,
            "requestApiKeyName": "PRODUCE",
        },
        "request": {"transactionalId": None, "acks": -1, "timeoutMs": 30000, "topicData": [records]}
        if request is None
        else request,
        "response": {"responses": [{"name": "orders", "partitionResponses": [answer]}], "throttleTimeMs": 0}
        if response is None
        else response,
        "connection": "127.0.0.1:23402-127.0.0.1:59798-3-1",
        "totalTimeMs": 8.0, "requestQueueTimeMs": 0.5, "localTimeMs": 1.25, "remoteTimeMs": 0.0, "throttleTimeMs": 0,
        "responseQueueTimeMs": 5.0, "sendTimeMs": 0.2, "securityProtocol": "PLAINTEXT", "principal": "User:alice",
        "listener": "PLAINTEXT", "clientInformation": {"softwareName": "unknown", "softwareVersion": "unknown"},
        **others,
    }  # fmt: skip
    return f"[{time}] DEBUG Completed request:{json.dumps(logged)} (kafka.request.logger)\n".encode()

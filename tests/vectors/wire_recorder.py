"""Record what a real Apache Kafka 4.3.1 answers to the scenarios of `wire_scenarios` as files of `tests/vectors/wire`.

`python tests/vectors/wire_recorder.py NAME ...` starts a broker for each file and writes it; the older files were made
elsewhere and are not edited. Takes Java and the jars of `scripts/kafka-jars.sh`.
"""

import argparse
import json
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # as a program, only this directory is there

from tests.e2e.plain_client import receive_frame
from tests.vectors.wire_brokers import started
from tests.vectors.wire_compare import values_at
from tests.vectors.wire_player import TIMEOUT_S, put
from tests.vectors.wire_recording import Recording
from tests.vectors.wire_scenarios import BROKER_CONFIG, FILES, Ask, Scenario
from tests.wire.messages import plain, response_body_at

from tidegate.wire import API_BY_KEY, decode_request_header, encode_request, read_request, read_response

__all__ = ["record"]

DIRECTORY = Path(__file__).parent / "wire"
_KEYS = {api.name: key for key, api in API_BY_KEY.items()}
_CUT_AT = 1000


def record(name: str) -> Path:
    """Record one file of `FILES` and return its path."""
    about, config, scenarios = FILES[name]
    config = {**BROKER_CONFIG, **config}
    recording = Recording(name=name, broker_config=config, scenarios=())
    with started("kafka", recording) as address:
        recorded = [_Recorder(address).record(scenario) for scenario in scenarios]
    document = {"kafka": "4.3.1", "about": about, "broker_config": config, "scenarios": recorded}
    path = DIRECTORY / f"{name}.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return path


class _Recorder:
    """The connections and answers of one scenario."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._connections: dict[str, socket.socket] = {}
        self._answers: list[Any] = []

    def record(self, scenario: Scenario) -> dict[str, Any]:
        """Ask what a scenario asks and return it with the answers."""
        steps = [self._step(number, ask) for number, ask in enumerate(scenario.steps, 1)]
        for sock in self._connections.values():
            sock.close()
        note = {"note": scenario.note} if scenario.note else {}
        return {"name": scenario.name, **note, "steps": steps}

    def _step(self, number: int, ask: Ask) -> dict[str, Any]:
        time.sleep(ask.before_ms / 1000)
        key = _KEYS[ask.api]
        message = _copied(ask.message)
        for path, (step, source) in ask.bind.items():
            put(message, path, values_at(self._answers[step], source)[0], "")
        frame = encode_request(key, ask.version, number, ask.client_id, message)
        sock = self._connection(ask.client_id)
        begun = time.monotonic()
        sock.sendall(frame)
        step = {
            "op": "request",
            "api": ask.api,
            "api_key": key,
            "version": ask.version,
            "client_id": ask.client_id,
            "correlation_id": number,
            "connection": ask.client_id,
            "request_hex": frame[4:].hex(),
            "request": plain(
                read_request(key, ask.version, frame[4:], decode_request_header(frame[4:]).body_at)
            ),
        }
        optional: Mapping[str, Any] = {
            "before_ms": ask.before_ms,
            "note": ask.note,
            "variable": list(ask.variable),
            "unordered": list(ask.unordered),
            "bind": {path: {"step": at, "path": source} for path, (at, source) in ask.bind.items()},
        }
        step |= {name: value for name, value in optional.items() if value}
        if len(step["request_hex"]) > 2 * _CUT_AT:
            del step["request"]
        try:
            answer = receive_frame(sock)
        except ConnectionError:
            self._connections.pop(ask.client_id).close()
            self._answers.append(None)
            return {**step, "outcome": "closed"}
        decoded = read_response(key, ask.version, answer, response_body_at(key, ask.version))
        self._answers.append(decoded)
        return {
            **step,
            "outcome": "response",
            "answered_after_ms": round((time.monotonic() - begun) * 1000, 1),
            "response_hex": bytes(answer).hex(),
            "decoded": plain(decoded),
        }

    def _connection(self, name: str) -> socket.socket:
        if name not in self._connections:
            self._connections[name] = socket.create_connection(self._address, timeout=TIMEOUT_S)
        return self._connections[name]


def _copied(value: Any) -> Any:
    """Return a copy of a message: its lists and dicts may be written to."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list | tuple) else value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=sorted(FILES), metavar="NAME")
    for name in parser.parse_args().names:
        print(record(name))

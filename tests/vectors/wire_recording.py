"""Read a file of recordings (`tests/vectors/wire/README.md`)."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.wire import API_BY_KEY

__all__ = ["Recording", "RecordingError", "read_recording", "uses"]


class RecordingError(Exception):
    """A file that cannot be read, or is no recording."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One file: its name without `.json`, the settings it was recorded with, its scenarios in order."""

    name: str
    broker_config: Mapping[str, str]
    scenarios: tuple[dict[str, Any], ...]

    @property
    def with_sasl(self) -> bool:
        """Return whether the file was recorded over SASL, which every connection of it needs."""
        return "sasl.enabled.mechanisms" in self.broker_config


def read_recording(path: Path) -> Recording:
    """Read a file. Raises `RecordingError`."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordingError(f"cannot read {str(path)!r}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise RecordingError(f"{str(path)!r} is not JSON: {error}") from error
    if not isinstance(document, dict) or not {"broker_config", "scenarios"} <= document.keys():
        raise RecordingError(f"{str(path)!r} is not a recording: expected 'broker_config' and 'scenarios'")
    return Recording(
        name=path.stem, broker_config=document["broker_config"], scenarios=tuple(document["scenarios"])
    )


def uses(scenario: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """Yield the number and API of each step that uses one, named or in raw bytes; these may come in pieces."""
    steps = scenario["steps"]
    in_pieces = False
    for number, step in enumerate(steps):
        if "api" in step:
            yield number, step["api"]
        elif step["op"] == "raw" and not in_pieces:
            stream = b"".join(bytes.fromhex(step.get("raw_hex", "")) for step in steps[number:])
            key = int.from_bytes(stream[4:6], "big")
            if key in API_BY_KEY:
                yield number, API_BY_KEY[key].name
        in_pieces = step["op"] == "raw" and step["outcome"] == "silent"

"""Facts that all JSON documents share: their format version, their first fields, their text. They need no arrays."""

import json
from collections.abc import Mapping
from typing import Any

from tidegate.config.locations import Location

__all__ = ["DOCUMENT_FORMAT", "document_start", "json_text"]

DOCUMENT_FORMAT = 1
"""Format version of JSON documents (docs/results.md)."""


def document_start(command: str, events: int | None, out: Location | None) -> dict[str, Any]:
    """Return the first fields of the document of a command over a usage record."""
    return {
        "format": DOCUMENT_FORMAT,
        "command": command,
        "events": events,
        "tables": None if out is None else str(out),
    }


def json_text(document: Mapping[str, Any]) -> str:
    """Return the document in one line of ASCII, so that no name can write to the terminal."""
    return json.dumps(document, allow_nan=False)

"""What was seen of clients, kept in a file: each run adds to it, of one version of a client."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.e2e.clients.scenario import Obeyed

__all__ = ["RESULTS", "note"]

RESULTS = Path(__file__).parents[3] / ".cache" / "clients" / "results.json"


def note(
    name: str, version: str, *, ways: Sequence[str] = (), obeyed: Mapping[str, Obeyed] | None = None
) -> None:
    """Add what a client did. ways: by which it came in; obeyed: how it did when it was throttled, by what it did."""
    results: dict[str, Any] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    before = results.get(name, {})
    if before.get("version") != version:
        before = {"version": version, "ways": [], "obeyed": {}}
    before["ways"] = sorted({*before["ways"], *ways})
    before["obeyed"] |= {what: asdict(seen) for what, seen in (obeyed or {}).items()}
    RESULTS.write_text(json.dumps({**results, name: before}, indent=1), encoding="utf-8")

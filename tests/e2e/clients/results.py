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
    name: str,
    version: str,
    *,
    group: Sequence[str] = (),
    obeyed: Mapping[str, Sequence[Obeyed]] | None = None,
    ran: Sequence[str] = (),
) -> None:
    """Add what a client did. group: the ways in; ran: what else; obeyed: of "produce" and "fetch"."""
    results: dict[str, Any] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    before = results.get(name, {})
    if before.get("version") != version:
        before = {"version": version, "group": [], "ran": [], "obeyed": {}}
    before["group"] = sorted({*before["group"], *group})
    before["ran"] = sorted({*before["ran"], *ran})
    for what, seen in (obeyed or {}).items():
        before["obeyed"][what] = [asdict(each) for each in seen]
    RESULTS.write_text(json.dumps({**results, name: before}, indent=1), encoding="utf-8")

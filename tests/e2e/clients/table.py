"""The table of `docs/clients.md`, made of what the clients' runs have seen."""

import json
import re
from collections.abc import Mapping
from typing import Any

from tests.e2e.clients.kafka_tools import TOOLS
from tests.e2e.clients.programs import CLIENTS
from tests.e2e.clients.results import RESULTS
from tests.e2e.clients.scenario import Obeyed
from tests.e2e.clients.versions import ROOT

__all__ = ["DOCUMENT", "rows_of", "write_table"]

DOCUMENT = ROOT / "docs" / "clients.md"
BEGIN, END = "<!-- made by scripts/client_table.py -->", "<!-- until here -->"
_HEAD = """\
| client | version | creates topics | uses groups, produces, consumes | obeys throttle times: producing | fetching |
|---|---|---|---|---|---|
"""
_TOOLS_HEAD = """\
| Kafka's tool | version | runs |
|---|---|---|
"""


def write_table() -> None:
    """Put the tables between their markers in the document."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    missing = [name for name in (*CLIENTS, *TOOLS) if name not in results]
    assert not missing, f"not run yet: {', '.join(missing)}"
    lines = [_HEAD, *(_client(name, results[name]) for name in CLIENTS), "\n", _TOOLS_HEAD]
    lines += [_tool(name, results[name]) for name in TOOLS]
    text = DOCUMENT.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{''.join(lines)}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def rows_of(text: str) -> dict[str, str]:
    """Return the version of each client in the tables of a document."""
    part = text.split(BEGIN)[1].split(END)[0]
    return dict(re.findall(r"^\| ([^|]+?) \| (\d[^|]*?) \|", part, re.MULTILINE))


def _client(name: str, seen: Mapping[str, Any]) -> str:
    creates = "yes" if CLIENTS[name].creates_topics else "–"
    obeyed = [_obeyed(Obeyed(**seen["obeyed"][what])) for what in ("produce", "fetch")]
    return f"| {' | '.join((name, seen['version'], creates, _ways(seen['ways']), *obeyed))} |\n"


def _tool(name: str, seen: Mapping[str, Any]) -> str:
    return f"| {name} | {seen['version']} | {_ways(seen['ways'])} |\n"


def _ways(ways: list[str]) -> str:
    """Return by which ways a client came in: protocols, with the mechanisms of each."""
    by_protocol: dict[str, list[str]] = {}
    for way in ways:
        protocol, _, mechanism = way.partition(" ")
        by_protocol.setdefault(protocol, []).append(mechanism)
    named = {protocol: ", ".join(filter(None, own)) for protocol, own in by_protocol.items()}
    return "; ".join(f"{protocol} ({own})" if own else protocol for protocol, own in named.items())


def _obeyed(seen: Obeyed) -> str:
    if seen.waits:
        return f"**yes**, {seen.throttled - seen.early} of {seen.throttled} times"
    return f"no: {seen.early} of {seen.throttled} times early, by up to {seen.longest_early_ms} ms"

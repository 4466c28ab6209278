"""The sources of results, as their manifest lists them (`results.output`): of bounded size for any record.

The manifest holds no secrets: a URI has no credentials (decision 0072). It names no client.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from tidegate import __version__
from tidegate.config.locations import Location
from tidegate.pipeline.read.ingest import UsageFiles
from tidegate.pipeline.read.missing import Missing, NodeChunk
from tidegate.pipeline.replay.carried import End, plan_digest
from tidegate.pipeline.replay.plan import Plan

__all__ = ["MOST_LISTED", "made_of"]

MOST_LISTED = 1000
"""Most files, nodes and holes that are listed; further ones are counted."""

_HOUR_PARTS = 3  # of the path of a file of the record: its date, its hour, its name


def made_of(
    files: UsageFiles,
    *,
    nodes: Mapping[int, Sequence[NodeChunk | End]],
    missing: Sequence[Missing],
    plans: Iterable[Plan] = (),
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what the manifest says of the rows that were read and the plans that they were replayed against.

    nodes: where the rows of each node begin and end. options: what else was asked for.
    """
    names = [_name(path, files.record) for path in files.paths]
    return {
        "version": __version__,
        "options": dict(options),
        "record": {
            "directory": None if files.record is None else _shown(files.record),
            "from_ms": files.from_ms,
            "to_ms": files.to_ms,
            "rows": files.rows,
            "files_in_all": len(names),
            "files_sha256": hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest(),
            "files": names[:MOST_LISTED],
            "nodes_in_all": len(nodes),
            "nodes": [
                {
                    "node_id": node_id,
                    "first_seq": min(part.first_seq for part in parts),
                    "last_seq": max(part.last_seq for part in parts),
                }
                for node_id, parts in islice(sorted(nodes.items()), MOST_LISTED)
            ],
            "missing_in_all": len(missing),
            "missing": [asdict(place) for place in missing[:MOST_LISTED]],
        },
        "plans": [
            {
                "name": plan.name,
                "in_force": plan.is_in_force,
                "loop": "closed" if plan.is_closed else "open",
                "digest": None if plan.is_in_force else plan_digest(plan),
            }
            for plan in plans
        ],
    }


def _name(path: Location, record: Location | None) -> str:
    """Return the name of a file below the record; what was copied from its spool is told by that."""
    if record is None or path == record:
        return _shown(path)
    if not isinstance(path, Path) or not isinstance(record, Path):
        return str(path).removeprefix(f"{record}/")
    if path.is_relative_to(record):
        return path.relative_to(record).as_posix()
    return "/".join(("spool", *path.parts[-_HOUR_PARTS:]))


def _shown(place: Location) -> str:
    return str(place.absolute() if isinstance(place, Path) else place)

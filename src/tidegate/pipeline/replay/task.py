"""Lay out a replay on the driver: number the clients, find who belongs together, and give out the work."""

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.read.chunks import Chunk, ClientKey, Survey, read_sensors
from tidegate.pipeline.read.snapshots import with_snapshots
from tidegate.pipeline.read.timeline import (
    MAX_CONTROL_EVENTS,
    Timeline,
    empty_timeline,
    refuse_extensions,
    timelines,
)
from tidegate.pipeline.replay.components import assign_partitions, components
from tidegate.pipeline.replay.partition import ReplayTask
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.replay.sharing import shared_connections, shared_sensors

__all__ = ["MAX_CLIENTS", "Layout", "lay_out"]

MAX_CLIENTS = 2_000_000
"""Clients (node, user, client id) of one replay: their names are held on the driver and on every executor."""

_ROWS_PER_PARTITION = 2_000_000  # what a core sorts at once: blocks of 120 MB
_FEWER = "give fewer hours, or one date=... directory at a time"

Ints = npt.NDArray[np.int64]


class Layout(NamedTuple):
    """What a replay needs to begin: the task of every partition, and the client numbers of every chunk."""

    task: ReplayTask
    numbers: list[list[int]]


def lay_out(
    chunks: Sequence[Chunk], surveys: Sequence[Survey], plans: Sequence[Plan], *, cores: int
) -> Layout:
    """Return who goes where. surveys: of every chunk, in order; those with a needed snapshot are read again.

    Raises `UsageFilesError` where there is too much of something, an event makes no sense, or the quotas in force
    cannot be replayed.
    """
    found = timelines(_control_events(surveys), [run for survey in surveys for run in survey.runs])
    if any(plan.is_in_force for plan in plans):
        refuse_extensions(found)
        found = {node_id: _with_snapshots(chunks, surveys, node_id, found[node_id]) for node_id in found}
    clients, rows, places = _clients(surveys)
    by_node: dict[int, dict[int, tuple[str, str]]] = {}
    for place, (node_id, user, client_id) in enumerate(clients):
        by_node.setdefault(node_id, {})[place] = (user, client_id)
        found.setdefault(node_id, empty_timeline())
    shared = chain(
        shared_sensors(plans, by_node, found),
        shared_connections(surveys, places, [key[0] for key in clients]),
    )
    joined = components(len(clients), shared)
    node_ids = np.array([node_id for node_id, _, _ in clients], np.int64)
    wanted = max(cores, math.ceil(int(rows.sum()) / _ROWS_PER_PARTITION))
    given_out = assign_partitions(component=joined, node_id=node_ids, rows=rows, wanted=wanted)
    order = np.argsort(given_out.number).tolist()
    task = ReplayTask(
        plans=tuple(plans),
        users=pa.array([clients[place][1] for place in order], pa.string()),
        client_ids=pa.array([clients[place][2] for place in order], pa.string()),
        first_client=given_out.first_number,
        node_id=node_ids[order][given_out.first_number[:-1]],
        timelines=found,
    )
    return Layout(task, [given_out.number[chunk].tolist() for chunk in places])


def _with_snapshots(
    chunks: Sequence[Chunk], surveys: Sequence[Survey], node_id: int, timeline: Timeline
) -> Timeline:
    def read(after_seq: int, before_seq: int) -> list[dict[str, Any]]:
        pairs = zip(chunks, surveys, strict=True)
        return read_sensors(pairs, node_id=node_id, after_seq=after_seq, before_seq=before_seq)

    return with_snapshots(timeline, read)


def _control_events(surveys: Sequence[Survey]) -> list[dict[str, Any]]:
    events = [event for survey in surveys for event in survey.control]
    if len(events) > MAX_CONTROL_EVENTS:
        reason = f"more than {MAX_CONTROL_EVENTS} starts, quota changes and sweeps"
        raise UsageFilesError(reason, hint=_FEWER)
    return events


def _clients(surveys: Sequence[Survey]) -> tuple[list[ClientKey], Ints, list[Ints]]:
    """Return all clients, how many rows each has, and the clients of every chunk by their place among all."""
    place_of: dict[ClientKey, int] = {}
    rows: list[int] = []
    places: list[Ints] = []
    for survey in surveys:
        chunk = [place_of.setdefault(key, len(place_of)) for key in survey.keys]
        rows += [0] * (len(place_of) - len(rows))
        for place, count in zip(chunk, survey.rows.tolist(), strict=True):
            rows[place] += count
        places.append(np.array(chunk, np.int64))
        if len(place_of) > MAX_CLIENTS:
            reason = f"more than {MAX_CLIENTS} different clients (node, user, client id)"
            raise UsageFilesError(reason, hint=_FEWER)
    return list(place_of), np.array(rows, np.int64), places

"""Lay out a replay on the driver: number the clients, find who belongs together, and give out the work."""

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidegate.pipeline.components import assign_partitions, components
from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.partition import ReplayTask
from tidegate.pipeline.plan import Plan
from tidegate.pipeline.sharing import shared_sensors
from tidegate.pipeline.timeline import Timeline, empty_timeline

__all__ = ["MAX_CLIENTS", "lay_out"]

MAX_CLIENTS = 2_000_000
"""Clients (node, user, client id) of one replay: their names are held on the driver and on every executor."""

_ROWS_PER_PARTITION = 2_000_000  # what a partition sorts in memory: some 200 MB


def lay_out(
    clients: pa.Table, timelines: dict[int, Timeline], plans: Sequence[Plan], *, cores: int
) -> tuple[ReplayTask, pa.Table]:
    """Return the task for the executors and the table `CLIENT_NUMBERS`.

    clients: columns node_id, user, client_id, rows. Raises `UsageFilesError` where there are too many.
    """
    if len(clients) > MAX_CLIENTS:
        raise UsageFilesError(
            f"more than {MAX_CLIENTS} different clients (node, user, client id)",
            hint="give fewer hours, or one date=... directory at a time",
        )
    clients = clients.sort_by([("node_id", "ascending"), ("user", "ascending"), ("client_id", "ascending")])
    node_ids, rows = clients["node_id"].to_numpy(), clients["rows"].to_numpy()
    for node_id in np.unique(node_ids).tolist():
        timelines.setdefault(node_id, empty_timeline())
    joined = components(len(clients), shared_sensors(plans, _by_node(clients), timelines))
    wanted = max(cores, math.ceil(int(rows.sum()) / _ROWS_PER_PARTITION))
    assignment = assign_partitions(component=joined, node_id=node_ids, rows=rows, wanted=wanted)
    ordered = clients.take(pa.array(np.argsort(assignment.number)))
    task = ReplayTask(
        plans=tuple(plans),
        users=ordered["user"].combine_chunks(),
        client_ids=ordered["client_id"].combine_chunks(),
        first_client=assignment.first_number,
        node_id=ordered["node_id"].to_numpy()[assignment.first_number[:-1]],
        timelines=timelines,
    )
    numbers = clients.drop_columns(["rows"])
    numbers = numbers.append_column("client", pa.array(assignment.number, pa.int32()))
    return task, numbers.append_column("partition", pa.array(assignment.partition, pa.int32()))


def _by_node(clients: pa.Table) -> dict[int, dict[int, tuple[str, str]]]:
    """Return user and client id by node and place in the table."""
    found: dict[int, dict[int, tuple[str, str]]] = {}
    columns = (clients[name].to_pylist() for name in ("node_id", "user", "client_id"))
    for place, (node_id, user, client_id) in enumerate(zip(*columns, strict=True)):
        found.setdefault(node_id, {})[place] = (user, client_id)
    return found

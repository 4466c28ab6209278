"""Layout of a replay, made on the driver: the numbers of clients, the partitions of clients, and the tasks."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.layout import Int32s
from tidegate.pipeline.read.chunks import Bundle
from tidegate.pipeline.read.control_events import ControlEvents, events_together
from tidegate.pipeline.read.missing import Missing, missing_in
from tidegate.pipeline.read.snapshots import with_snapshots
from tidegate.pipeline.read.survey import Survey, read_sensors
from tidegate.pipeline.read.timeline import (
    MAX_CONTROL_BYTES,
    MAX_SWEEP_BYTES,
    NO_SWEEPS,
    Sweeps,
    Timeline,
    empty_timeline,
    gaps_of,
    timelines,
)
from tidegate.pipeline.replay.carried import Carried, End, StateRow, ends_of
from tidegate.pipeline.replay.components import (
    Shared,
    assign_partitions,
    components,
    shared_connections,
    shared_sensors,
    tasks_of,
)
from tidegate.pipeline.replay.names import Clients, Ints, clients_of
from tidegate.pipeline.replay.partition import Members, ReplayTask
from tidegate.pipeline.replay.plan import QUOTA_TYPES, Definitions, Plan
from tidegate.pipeline.replay.plan_replay import PlanReplay
from tidegate.pipeline.replay.state_rows import sensors_of, without_new
from tidegate.quota.admin.entity import Tags

__all__ = ["MAX_CLIENTS", "Layout", "lay_out", "states_left"]

MAX_CLIENTS = 2_000_000
"""Clients (node, user, client id) of one replay: their names are held on the driver and on every executor."""

CLIENTS_PER_SHARE = 1 << 13
"""Clients whose limits are searched for together: their outcomes under some twenty plans are held at once."""
_PLANS_OF_SEARCH = 1 << 3  # so many fewer clients in a partition, as each has that many plans, or more
CLIENTS_PER_PARTITION = 1 << 13  # whose sensors and tallies, some KB each, a core holds at once
_ROWS_PER_PARTITION = 2_000_000  # what a core sorts at once: blocks of 120 MB
_FEWER = "give fewer hours, or one date=... directory at a time"
_HOUR_BY_HOUR = "give fewer hours (--from, --to); a replay can continue with --out and --continue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The layout of a replay: the data that its tasks need, and the data that only the driver uses.

    numbers: the client numbers of every bundle. users, client_ids: by client number. node_id: of each partition.
    share: of each partition; the clients of an entity whose limits are searched are in one share, whatever their nodes.
    carried: the state that the plans left of each node in the hours before, by plan and node. ends: where the record
    of each node begins and ends. missing: the rows that the record lacks.
    """

    task: ReplayTask
    numbers: Sequence[Ints]
    users: pa.Array
    client_ids: pa.Array
    node_id: Ints
    share: Ints
    timelines: Mapping[int, Timeline]
    carried: Mapping[tuple[str, int], Carried]
    ends: Mapping[int, End]
    missing: Sequence[Missing]

    @property
    def shares(self) -> int:
        """Return how many shares there are."""
        return int(self.share.max(initial=0)) + 1

    def partitions_of(self, share: int | None) -> Ints:
        """Return the numbers of the partitions of a share; None: of all."""
        is_here = self.share == share if share is not None else np.ones(len(self.share), bool)
        return np.flatnonzero(is_here)

    def searched(
        self, plan: Plan, numbers: Mapping[tuple[int, Tags | str], int], share: int | None
    ) -> dict[int, Int32s]:
        """Return the numbers of the sensors of the clients of each partition of a share, see `SearchedSensors`.

        plan: of which a search is. numbers: by quota type and tags.
        """
        definitions, found = Definitions.of(plan), {}
        for partition in self.partitions_of(share).tolist():
            clients = pa.array(np.arange(*self.task.first_client[partition : partition + 2]))
            names = self.users.take(clients), self.client_ids.take(clients)
            found[partition] = np.full((len(QUOTA_TYPES), len(clients)), -1, np.int32)
            for index in filter(definitions.is_enabled, range(len(QUOTA_TYPES))):
                tags = definitions.resolved(index, *names, plan.windows).tags
                found[partition][index] = [numbers.get((index, each), -1) for each in tags]
        return found

    def members(self, groups: int) -> list[dict[int, Members]]:
        """Return the members of each partition, by its number, in so many groups of tasks."""
        found: list[dict[int, Members]] = [{} for _ in range(groups)]
        group_of = self.task.task * groups // self.task.tasks
        for number, (group, node_id) in enumerate(zip(group_of.tolist(), self.node_id.tolist(), strict=True)):
            clients = pa.array(np.arange(*self.task.first_client[number : number + 2]))
            before = {plan.name: self.carried.get((plan.name, node_id)) for plan in self.task.plans}
            found[group][number] = Members(
                node_id=node_id,
                users=self.users.take(clients),
                client_ids=self.client_ids.take(clients),
                timeline=self.timelines[node_id],
                carried={name: carried for name, carried in before.items() if carried is not None},
            )
        return found


def lay_out(
    bundles: Sequence[Bundle],
    surveys: Sequence[Survey],
    plans: Sequence[Plan],
    *,
    cores: int,
    carried: Mapping[tuple[str, int], Carried] | None = None,
    leaves_state: bool = False,
    counted_from_ms: int | None = None,
    searches: bool = False,
    others: Sequence[Plan] = (),
) -> Layout:
    """Return the layout of a replay. surveys: of every bundle, in order; those with a needed snapshot are read again.

    carried: see `Layout`. leaves_state, counted_from_ms: see `ReplayTask`. searches: there will be a plan for each
    rung of a search, so many clients are replayed a few at a time. others: plans that are replayed, too, but never for
    a share of the clients.

    Raises `UsageFilesError` if a bound is exceeded, an event makes no sense, or the quotas in force cannot be replayed.
    """
    control, runs = _control_events(surveys), [run for survey in surveys for run in survey.runs]
    found = timelines(control, runs, _sweeps(surveys))
    lost_events = gaps_of(control)
    ends = ends_of(runs, found, lost_events)
    missing = missing_in(found, lost_events)
    _check_order(carried or {}, ends)
    if any(plan.is_in_force for plan in (*plans, *others)):
        found = {node_id: _with_snapshots(bundles, surveys, node_id, found[node_id]) for node_id in found}
    clients, rows, places = _clients(surveys)
    found |= {
        node_id: empty_timeline() for node_id in np.unique(clients.node_id).tolist() if node_id not in found
    }
    shared = chain(
        shared_sensors([*plans, *others], clients, found),
        shared_connections(surveys, places, clients.node_id),
    )
    joined = components(len(clients), shared)
    wanted = max(cores, math.ceil(int(rows.sum()) / _ROWS_PER_PARTITION))
    shares, share = _shares(clients, plans, joined)
    held = CLIENTS_PER_PARTITION // (_PLANS_OF_SEARCH if searches and shares > 1 else 1)
    partitions = max(wanted, math.ceil(len(clients) / held))
    given_out = assign_partitions(
        component=joined, node_id=clients.node_id * shares + share, rows=rows, wanted=partitions
    )
    order = np.argsort(given_out.number)
    in_order = clients.select(order)
    users, client_ids = in_order.columns()
    task = ReplayTask(
        plans=(*plans, *others),
        first_client=given_out.first_number,
        task=tasks_of(given_out.rows, wanted),
        leaves_state=leaves_state,
        counted_from_ms=counted_from_ms,
    )
    return Layout(
        task=task,
        numbers=[given_out.number[bundle] for bundle in places],
        users=users,
        client_ids=client_ids,
        node_id=in_order.node_id[given_out.first_number[:-1]],
        share=share[order][given_out.first_number[:-1]],
        timelines=found,
        carried=carried or {},
        ends=ends,
        missing=missing,
    )


def _shares(clients: Clients, plans: Sequence[Plan], joined: Ints) -> tuple[int, Ints]:
    """Return how many shares there are, and that of each client.

    There is one, unless a plan measures and all entities of all plans have a kind in common. joined: the component of
    each client: those of several names, which share connections, are in one share on all nodes.
    """
    is_search = any(plan.measures for plan in plans)
    kinds = frozenset.intersection(*(plan.shared_kinds for plan in plans)) if is_search else frozenset()
    shares = max(1, math.ceil(len(clients) / CLIENTS_PER_SHARE)) if kinds else 1
    code = np.zeros(len(clients), np.int64)
    if "user" in kinds:
        code = clients.user.astype(np.int64)
    if "client-id" in kinds:
        code = code * len(clients.client_ids) + clients.client_id
    if shares > 1 and (code[joined] != code).any():
        everybody = np.arange(len(clients))
        code = components(len(clients), (Shared(everybody, code), Shared(everybody, joined)))
    used, share = np.unique(code % shares, return_inverse=True)  # few users may have many clients
    return len(used), share.reshape(-1).astype(np.int64)


def states_left(layout: Layout, rows: Iterable[StateRow]) -> Iterator[StateRow]:
    """Yield the rows of `REPLAY_STATE`: those of the partitions, and the carried state that no partition has used."""
    by_node: dict[tuple[str, int], list[StateRow]] = {}
    for row in rows:
        by_node.setdefault((row["plan"], row["node_id"]), []).append(row)
    clients = _clients_by_node(layout)
    nodes = sorted({*layout.ends, *(node_id for _, node_id in layout.carried)})
    for plan in filter(lambda plan: plan.leaves_state, layout.task.plans):
        for node_id in nodes:
            of_node = by_node.get((plan.name, node_id), [])
            before = layout.carried.get((plan.name, node_id))
            end = layout.ends.get(node_id)
            if before is not None:
                end = end or before.end
                before = before.without(sensors_of(of_node), clients.get(node_id, set()))
            assert end is not None, "a node has rows here, or had some before"
            timeline = layout.timelines.get(node_id, empty_timeline())
            unused = PlanReplay(plan, names=[], timeline=timeline, carried=before)
            yield from without_new([*of_node, *unused.left_unused(node_id, end)])


def _clients_by_node(layout: Layout) -> dict[int, set[tuple[str, str]]]:
    """Return the clients of the partitions by node; nothing if no permits were carried over."""
    found: dict[int, set[tuple[str, str]]] = {}
    if not any(carried.permits for carried in layout.carried.values()):
        return found
    users, client_ids, first = (
        layout.users.to_pylist(),
        layout.client_ids.to_pylist(),
        layout.task.first_client.tolist(),
    )
    for number, node_id in enumerate(layout.node_id.tolist()):
        here = slice(first[number], first[number + 1])
        found.setdefault(node_id, set()).update(zip(users[here], client_ids[here], strict=True))
    return found


def _check_order(carried: Mapping[tuple[str, int], Carried], ends: Mapping[int, End]) -> None:
    """Raise `UsageFilesError` if the rows do not follow the carried state, or all belong to other nodes."""
    for (_, node_id), before in carried.items():
        if node_id in ends and ends[node_id].first_seq <= before.end.last_seq:
            raise UsageFilesError(
                f"the rows of node {node_id} begin with seq {ends[node_id].first_seq}, "
                f"the state to continue from ends with seq {before.end.last_seq}",
                hint="select later rows with --from",
            )
    nodes = sorted({node_id for _, node_id in carried})
    if carried and ends and not ends.keys() & set(nodes):
        raise UsageFilesError(
            f"the state to continue from is from node {', '.join(map(str, nodes[:9]))}, "
            f"the rows are from node {', '.join(map(str, sorted(ends)[:9]))}",
            hint="pass --continue the results of a replay of the same record",
        )


def _with_snapshots(
    bundles: Sequence[Bundle], surveys: Sequence[Survey], node_id: int, timeline: Timeline
) -> Timeline:
    def read(after_seq: int, before_seq: int) -> list[dict[str, Any]]:
        pairs = zip(bundles, surveys, strict=True)
        return read_sensors(pairs, node_id=node_id, after_seq=after_seq, before_seq=before_seq)

    return with_snapshots(timeline, read)


def _control_events(surveys: Sequence[Survey]) -> ControlEvents:
    events = events_together(survey.control for survey in surveys)
    if events.size_bytes > MAX_CONTROL_BYTES:
        reason = (
            f"{len(events.seq)} starts, quotas, gaps and the like take more than {MAX_CONTROL_BYTES >> 20} MB"
        )
        raise UsageFilesError(reason, hint=_HOUR_BY_HOUR)
    return events


def _sweeps(surveys: Sequence[Survey]) -> Sweeps:
    if sum(survey.sweeps.nbytes for survey in surveys) > MAX_SWEEP_BYTES:
        most = MAX_SWEEP_BYTES // (NO_SWEEPS.itemsize * NO_SWEEPS.shape[1])
        reason = f"more than {most} sweeps of idle sensors ({MAX_SWEEP_BYTES >> 20} MB)"
        raise UsageFilesError(reason, hint=_HOUR_BY_HOUR)
    return np.concatenate([NO_SWEEPS, *(survey.sweeps for survey in surveys)])


def _clients(surveys: Sequence[Survey]) -> tuple[Clients, Ints, list[Ints]]:
    """Return all clients, how many rows each has, and the numbers of the clients of every survey."""
    clients, numbers = clients_of(survey.keys for survey in surveys)
    if len(clients) > MAX_CLIENTS:
        reason = f"more than {MAX_CLIENTS} different clients (node, user, client id)"
        raise UsageFilesError(reason, hint=_FEWER)
    rows = np.zeros(len(clients), np.int64)
    np.add.at(rows, numbers, np.concatenate([np.zeros(0, np.int64), *(survey.rows for survey in surveys)]))
    ends = np.cumsum([len(survey.keys) for survey in surveys])
    return clients, rows, np.split(numbers, ends)[: len(surveys)]

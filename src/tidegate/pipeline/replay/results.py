"""Conversion of the kernel's tallies to rows of the table `REPLAY_BY_CLIENT`."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.pipeline import layout
from tidegate.pipeline.replay.names import ClientNames, columns_of
from tidegate.pipeline.replay.plan import QUOTA_TYPES, Plan
from tidegate.pipeline.replay.plan_replay import PlanReplay
from tidegate.pipeline.replay.resolved import BY_CLIENT_ID, BY_USER, NOT_BY_NAMES
from tidegate.pipeline.replay.state.accounts import Limit, Limits, Used
from tidegate.pipeline.schemas import LIMITS_BY_NODE, REPLAY_BY_CLIENT
from tidegate.quota.admin.entity import QuotaEntity, Tags
from tidegate.quota.admin.sanitizer import desanitize
from tidegate.quota.measure.throttle import MAX_INT64

__all__ = [
    "TALLY_COLUMNS",
    "Counted",
    "Measured",
    "client_results",
    "counted",
    "limit_columns",
    "measured",
    "peak_results",
]

Ints = npt.NDArray[np.int64]

_TYPE_NAMES = pa.array([quota_type.value for quota_type in QUOTA_TYPES])

TALLY_COLUMNS = {
    "requests": layout.REQUESTS,
    "amount": layout.AMOUNT,
    "throttled_requests": layout.THROTTLED,
    "throttle_ms": layout.TOTAL_MS,
    "longest_throttle_ms": layout.LONGEST_MS,
    "delayed_amount": layout.DELAYED_AMOUNT,
    "rejected_mutations": layout.REJECTED_PERMITS,
    "recorded_throttled_requests": layout.RECORDED + layout.THROTTLED,
    "recorded_throttle_ms": layout.RECORDED + layout.TOTAL_MS,
    "recorded_longest_throttle_ms": layout.RECORDED + layout.LONGEST_MS,
    "recorded_delayed_amount": layout.RECORDED + layout.DELAYED_AMOUNT,
    "recorded_rejected_mutations": layout.RECORDED + layout.REJECTED_PERMITS,
    "capped_fetches": layout.CAPPED,
    "different_decisions": layout.DIFFERENT,
    "approximate_different_decisions": layout.APPROXIMATE_DIFFERENT,
    "approximate_after_gap": layout.APPROXIMATE + layout.AFTER_GAP,
    "approximate_missing_rows": layout.APPROXIMATE + layout.MISSING_ROWS,
    "approximate_cold_start": layout.APPROXIMATE + layout.COLD_START,
    "approximate_capped": layout.APPROXIMATE + layout.CAPPED_FETCH,
    "approximate_imported": layout.APPROXIMATE + layout.IMPORTED,
    "approximate_cluster_wide": layout.APPROXIMATE + layout.CLUSTER_WIDE,
}
"""Columns of the tallies by the name in results."""

_PEAK_COLUMNS = (
    "requests",
    "amount",
    "recorded_throttled_requests",
    "recorded_throttle_ms",
    "recorded_rejected_mutations",
)


class Counted(NamedTuple):
    """The accounts of one replay that were used: their names, and the sums."""

    plan: Plan
    node_id: int
    users: pa.Array
    client_ids: pa.Array
    used: Used
    forecasts: dict[str, pa.Array]


class Measured(NamedTuple):
    """The accounts of one replay that have a quota and were used: their names, and a row each of sums and of peaks.

    tags: which names they are counted by, see `Used`.
    """

    node_id: int
    users: pa.Array
    client_ids: pa.Array
    quota_types: Ints
    tags: Ints
    tallies: Ints
    peaks: npt.NDArray[np.float64]


def counted(plan: Plan, node_id: int, names: ClientNames, replay: PlanReplay) -> Counted:
    """Return what a replay has counted."""
    used = replay.used()
    clients = columns_of(names, used.clients)
    forecasts = replay.forecasts(used.numbers)
    return Counted(
        plan, node_id, *clients, used, forecasts if plan.is_closed else forecasts | _recorded(used.tallies)
    )


def client_results(parts: Sequence[Counted]) -> pa.Table:
    """Return a row per account, columns `REPLAY_BY_CLIENT`."""
    tallies = np.concatenate([part.used.tallies for part in parts])
    counts = [len(part.users) for part in parts]
    users, client_ids = (pa.concat_arrays([part[column] for part in parts]) for column in (2, 3))
    columns = {
        "plan": pa.concat_arrays(
            [pa.repeat(part.plan.name, count) for part, count in zip(parts, counts, strict=True)]
        ),
        "quota_type": _type_names([part.used.quota_types for part in parts]),
        **_entities(users, client_ids, [(part.used.tags, part.used.other_tags) for part in parts]),
        **limit_columns([part.used.limits for part in parts]),
        "node_id": pa.array(np.repeat(np.array([part.node_id for part in parts], np.int32), counts)),
        "user": users,
        "client_id": client_ids,
        **{name: pa.array(tallies[:, column]) for name, column in TALLY_COLUMNS.items()},
        "approximate_requests": pa.array(tallies[:, layout.APPROXIMATE + 1 : layout.CUT_AMOUNT].sum(axis=1)),
        "first_throttled_ts_ms": _first(tallies, 0),
        "recorded_first_throttled_ts_ms": _first(tallies, layout.RECORDED),
        **{
            name: pa.concat_arrays([part.forecasts[name] for part in parts])
            for name in layout.FORECAST_COLUMNS
        },
    }
    schema = to_arrow_schema(REPLAY_BY_CLIENT)
    return pa.table([columns[name] for name in schema.names], schema=schema)


def measured(node_id: int, names: ClientNames, replay: PlanReplay) -> Measured:
    """Return the measured sums and peaks of a replay, for the accounts with a quota."""
    used = replay.used()
    is_limited = np.array([not limit.is_unlimited for limit in used.limits.limits], bool)
    places = np.flatnonzero(is_limited[used.limits.places])
    clients = columns_of(names, used.clients[places])
    peaks = replay.peaks(used.numbers[places])
    return Measured(
        node_id, *clients, used.quota_types[places], used.tags[places], used.tallies[places], peaks
    )


def peak_results(parts: Sequence[Measured]) -> pa.Table:
    """Return a row per account, columns `LIMITS_BY_NODE`."""
    counts = [len(part.tallies) for part in parts]
    tallies = np.concatenate([part.tallies for part in parts])
    peaks = np.concatenate([part.peaks for part in parts])
    users, client_ids = (pa.concat_arrays([part[column] for part in parts]) for column in (1, 2))
    columns = {
        "quota_type": _type_names([part.quota_types for part in parts]),
        **_entities(users, client_ids, [(part.tags, ()) for part in parts]),  # such plans have no callback
        "node_id": pa.array(np.repeat(np.array([part.node_id for part in parts], np.int32), counts)),
        **{name: pa.array(tallies[:, TALLY_COLUMNS[name]]) for name in _PEAK_COLUMNS},
        "peak": pa.array(peaks[:, layout.RATE]),
        "largest_amount": pa.array(peaks[:, layout.LARGEST]),
    }
    schema = to_arrow_schema(LIMITS_BY_NODE)
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _recorded(tallies: Ints) -> dict[str, pa.Array]:
    """Return recorded requests and amounts, for accounts whose requests are each tried once."""
    amount, cut = tallies[:, layout.AMOUNT], tallies[:, layout.CUT_AMOUNT]
    return {
        "recorded_requests": pa.array(tallies[:, layout.REQUESTS]),
        "recorded_amount": pa.array(amount + np.minimum(cut, MAX_INT64 - amount)),
    }


def _type_names(quota_types: Sequence[Ints]) -> pa.Array:
    return _TYPE_NAMES.take(pa.array(np.concatenate(quota_types)))


def _entities(
    users: pa.Array, client_ids: pa.Array, parts: Sequence[tuple[Ints, Sequence[Tags | str]]]
) -> dict[str, pa.Array]:
    """Return the names that accounts are counted by, as they are written in results; null where there is none.

    parts: tags of each part, see `Used`.
    """
    tags, null = np.concatenate([tags for tags, _ in parts]), pa.scalar(None, pa.string())
    is_by_names = tags < NOT_BY_NAMES
    found = {
        "entity_user": pc.if_else(is_by_names & (tags & BY_USER > 0), users, null),
        "entity_client_id": pc.if_else(is_by_names & (tags & BY_CLIENT_ID > 0), client_ids, null),
        "entity_tags": pa.nulls(len(tags), pa.string()),
    }
    if is_by_names.all():
        return found
    written = [
        _written(others[number - NOT_BY_NAMES])
        for of_part, others in parts
        for number in of_part[of_part >= NOT_BY_NAMES].tolist()
    ]
    return {
        name: pc.replace_with_mask(column, ~is_by_names, pa.array(values, pa.string()))
        for (name, column), values in zip(found.items(), zip(*written, strict=True), strict=True)
    }


def _written(tags: Tags | str) -> tuple[str | None, str | None, str | None]:
    """Return user, client id and JSON of tags that are not names of a client."""
    if isinstance(tags, str):
        return None, None, tags
    user, client_id = tags
    return desanitize(user) if user else None, client_id or None, None


def limit_columns(parts: Sequence[Limits]) -> dict[str, pa.Array]:
    """Return the columns `bound`, `bound_of` and `bound_changed` of `REPLAY_BY_CLIENT`."""
    rows = [_limit_row(limit) for part in parts for limit in part.limits]
    first = np.cumsum([0, *(len(part.limits) for part in parts)]).tolist()
    places = pa.array(np.concatenate([at + part.places for at, part in zip(first, parts, strict=False)]))
    schema = to_arrow_schema(REPLAY_BY_CLIENT)
    return {
        name: pa.array([row[place] for row in rows], schema.field(name).type).take(places)
        for place, name in enumerate(("bound", "bound_of", "bound_changed"))
    }


def _limit_row(limit: Limit) -> tuple[float | None, str | None, bool]:
    if limit.has_changed or limit.is_unlimited:
        return None, None, limit.has_changed
    return limit.bound, _kind(limit.entity), False


def _kind(entity: QuotaEntity | None) -> str | None:
    """Return the kind of an entity, in Kafka's words; None for no entity."""
    parts = () if entity is None else entity.config_entities()
    return " and ".join(kind.value for kind, _ in parts) or None


def _first(tallies: Ints, offset: int) -> pa.Array:
    """Return the time of the first throttle; null if there was none."""
    return pa.array(tallies[:, offset + layout.FIRST_TS_MS], mask=tallies[:, offset + layout.THROTTLED] == 0)

"""Tallies of the kernel as rows of the table `REPLAY_BY_CLIENT`."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.pipeline import layout
from tidegate.pipeline.replay.names import ClientNames, columns_of
from tidegate.pipeline.replay.plan import QUOTA_TYPES, Plan
from tidegate.pipeline.replay.plan_replay import PlanReplay
from tidegate.pipeline.replay.state.tables import Account, Limit, Used
from tidegate.pipeline.schemas import LIMITS_BY_NODE, REPLAY_BY_CLIENT
from tidegate.quota.admin.entity import QuotaEntity
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
    """The accounts of one replay that have a quota and were used: their sums and peaks, a row each."""

    node_id: int
    accounts: list[Account]
    tallies: npt.NDArray[np.int64]
    peaks: npt.NDArray[np.float64]


def counted(plan: Plan, node_id: int, names: ClientNames, replay: PlanReplay) -> Counted:
    """Return what a replay has counted."""
    used = replay.used()
    clients = columns_of(names, np.array([account.client for account in used.accounts], np.int64))
    forecasts = replay.forecasts(used.numbers)
    return Counted(
        plan, node_id, *clients, used, forecasts if plan.is_closed else forecasts | _recorded(used.tallies)
    )


def client_results(parts: Sequence[Counted]) -> pa.Table:
    """Return a row per account, columns `REPLAY_BY_CLIENT`."""
    accounts = [account for part in parts for account in part.used.accounts]
    limits = [limit for part in parts for limit in part.used.limits]
    tallies = np.concatenate([part.used.tallies for part in parts])
    counts = [len(part.used.accounts) for part in parts]
    quota_types = np.array([account.quota_type for account in accounts], np.int8)
    pairs = [account.tags if isinstance(account.tags, tuple) else ("", "") for account in accounts]
    columns = {
        "plan": pa.concat_arrays(
            [pa.repeat(part.plan.name, count) for part, count in zip(parts, counts, strict=True)]
        ),
        "quota_type": _TYPE_NAMES.take(pa.array(quota_types)),
        "entity_user": _entity_users([user for user, _ in pairs]),
        "entity_client_id": pa.array([client_id or None for _, client_id in pairs], pa.string()),
        "entity_tags": pa.array(
            [account.tags if isinstance(account.tags, str) else None for account in accounts], pa.string()
        ),
        **limit_columns(limits),
        "node_id": pa.array(np.repeat(np.array([part.node_id for part in parts], np.int32), counts)),
        "user": pa.concat_arrays([part.users for part in parts]),
        "client_id": pa.concat_arrays([part.client_ids for part in parts]),
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


def measured(node_id: int, replay: PlanReplay) -> Measured:
    """Return what a replay of a plan that measures has found, of the accounts with a quota."""
    used = replay.used()
    places = [place for place, limit in enumerate(used.limits) if not limit.is_unlimited]
    accounts = [used.accounts[place] for place in places]
    return Measured(node_id, accounts, used.tallies[places], replay.peaks(used.numbers[places]))


def peak_results(parts: Sequence[Measured]) -> pa.Table:
    """Return a row per account, columns `LIMITS_BY_NODE`."""
    accounts = [account for part in parts for account in part.accounts]
    counts = [len(part.accounts) for part in parts]
    tallies = np.concatenate([part.tallies for part in parts])
    peaks = np.concatenate([part.peaks for part in parts])
    tags = [account.tags for account in accounts if isinstance(account.tags, tuple)]
    assert len(tags) == len(accounts), "plans that measure have no callback"
    columns = {
        "quota_type": _TYPE_NAMES.take(pa.array([account.quota_type for account in accounts], pa.int8())),
        "entity_user": _entity_users([user for user, _ in tags]),
        "entity_client_id": pa.array([client_id or None for _, client_id in tags], pa.string()),
        "node_id": pa.array(np.repeat(np.array([part.node_id for part in parts], np.int32), counts)),
        **{name: pa.array(tallies[:, TALLY_COLUMNS[name]]) for name in _PEAK_COLUMNS},
        "peak": pa.array(peaks[:, layout.RATE]),
        "largest_amount": pa.array(peaks[:, layout.LARGEST]),
    }
    schema = to_arrow_schema(LIMITS_BY_NODE)
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _recorded(tallies: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
    """Return what was recorded of accounts whose requests are tried once."""
    amount, cut = tallies[:, layout.AMOUNT], tallies[:, layout.CUT_AMOUNT]
    return {
        "recorded_requests": pa.array(tallies[:, layout.REQUESTS]),
        "recorded_amount": pa.array(amount + np.minimum(cut, MAX_INT64 - amount)),
    }


def _entity_users(tags: Sequence[str]) -> pa.Array:
    """Return the users of the tags as they are written in results; null where the level is not used."""
    written = {name: desanitize(name) if name else None for name in set(tags)}
    return pa.array([written[name] for name in tags], pa.string())


def limit_columns(limits: Sequence[Limit]) -> dict[str, pa.Array]:
    """Return the columns `bound`, `bound_of` and `bound_changed` of `REPLAY_BY_CLIENT`."""
    distinct = {id(limit): limit for limit in limits}  # many accounts have one
    rows = {number: _limit_row(limit) for number, limit in distinct.items()}
    schema = to_arrow_schema(REPLAY_BY_CLIENT)
    return {
        name: pa.array([rows[id(limit)][place] for limit in limits], schema.field(name).type)
        for place, name in enumerate(("bound", "bound_of", "bound_changed"))
    }


def _limit_row(limit: Limit) -> tuple[float | None, str | None, bool]:
    if limit.has_changed or limit.is_unlimited:
        return None, None, limit.has_changed
    return limit.bound, _kind(limit.entity), False


def _kind(entity: QuotaEntity | None) -> str | None:
    """Return what kind of entity it is, in Kafka's words; None: none."""
    parts = () if entity is None else entity.config_entities()
    return " and ".join(kind.value for kind, _ in parts) or None


def _first(tallies: npt.NDArray[np.int64], offset: int) -> pa.Array:
    """Return when the first throttle was; null where there was none."""
    return pa.array(tallies[:, offset + layout.FIRST_TS_MS], mask=tallies[:, offset + layout.THROTTLED] == 0)

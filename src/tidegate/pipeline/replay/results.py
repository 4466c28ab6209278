"""Tallies of the kernel as rows of the table `REPLAY_BY_CLIENT`."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tidegate.pipeline import layout
from tidegate.pipeline.replay.plan import QUOTA_TYPES, Plan
from tidegate.pipeline.replay.plan_replay import ClientNames, PlanReplay
from tidegate.pipeline.replay.tables import Limit
from tidegate.quota.admin.sanitizer import desanitize

__all__ = ["client_results", "peak_results"]

_COLUMNS = {
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
}

_PEAK_COLUMNS = (
    "requests",
    "amount",
    "recorded_throttled_requests",
    "recorded_throttle_ms",
    "recorded_rejected_mutations",
)


def client_results(
    plan: Plan, node_id: int, names: ClientNames, replay: PlanReplay
) -> Iterator[dict[str, Any]]:
    """Yield a row per account that was used, columns `REPLAY_BY_CLIENT`."""
    for number, (account, limit, tally) in enumerate(replay.tallies()):
        if not tally.any():
            continue
        user, client_id = names[account.client]
        entity_user, entity_client_id = account.tags
        yield {
            "plan": plan.name,
            "quota_type": QUOTA_TYPES[account.quota_type].value,
            "entity_user": desanitize(entity_user) if entity_user else None,
            "entity_client_id": entity_client_id or None,
            **_limit_columns(limit),
            "node_id": node_id,
            "user": user,
            "client_id": client_id,
            **{name: int(tally[column]) for name, column in _COLUMNS.items()},
            "approximate_requests": int(tally[layout.APPROXIMATE + 1 : layout.TALLIES].sum()),
            "first_throttled_ts_ms": _first(tally, 0),
            "recorded_first_throttled_ts_ms": _first(tally, layout.RECORDED),
            **replay.felt(number),
        }


def peak_results(node_id: int, replay: PlanReplay) -> Iterator[dict[str, Any]]:
    """Yield a row per account with a quota that was used, columns `LIMITS_BY_NODE`."""
    for account, tally, peaks in replay.peaks():
        if tally.any():
            entity_user, entity_client_id = account.tags
            yield {
                "quota_type": QUOTA_TYPES[account.quota_type].value,
                "entity_user": desanitize(entity_user) if entity_user else None,
                "entity_client_id": entity_client_id or None,
                "node_id": node_id,
                **{name: int(tally[_COLUMNS[name]]) for name in _PEAK_COLUMNS},
                "peak": float(peaks[layout.RATE]),
                "largest_amount": float(peaks[layout.LARGEST]),
            }


def _limit_columns(limit: Limit) -> dict[str, Any]:
    is_one = not limit.has_changed and not limit.is_unlimited
    parts = limit.entity.config_entities() if is_one and limit.entity is not None else ()
    return {
        "bound": limit.bound if is_one else None,
        "bound_of": " and ".join(kind.value for kind, _ in parts) or None,
        "bound_changed": limit.has_changed,
    }


def _first(tally: npt.NDArray[np.int64], offset: int) -> int | None:
    return int(tally[offset + layout.FIRST_TS_MS]) if tally[offset + layout.THROTTLED] else None

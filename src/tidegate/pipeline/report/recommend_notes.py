"""Notes on proposed quotas, in sentences; list items are indented by two spaces."""

import math
from collections.abc import Sequence

from tidegate.config.quotas_file import QuotasFile
from tidegate.pipeline.backlogs import STEP_MS
from tidegate.pipeline.evidence import ENOUGH_REQUESTS, ENOUGH_WINDOWS, Name
from tidegate.pipeline.recommend import Recommendation, Row, Wanted, entity_of, is_touched, name_of
from tidegate.pipeline.replay.limits import ENTITIES_BY
from tidegate.pipeline.replay.plan import QUOTA_TYPES
from tidegate.pipeline.report.limits_report import callback_note, entity_text, was_throttled
from tidegate.pipeline.report.replay_report import range_text
from tidegate.pipeline.report.text import (
    QUOTA_NAMES,
    bytes_text,
    count_text,
    duration_text,
    name_text,
    percent_text,
    things_text,
)
from tidegate.pipeline.rounding import given_text
from tidegate.quota.managers.quota_type import QuotaType

__all__ = [
    "evidence_notes",
    "hidden_notes",
    "outcome_notes",
    "recommend_notes",
    "skew_notes",
    "starved_notes",
]

_FEW = 3  # lines on one type of quota
_LINES = 10  # entities that a note lists
_BEHIND = 10  # seconds of a quota that a backlog may take
_UNEVEN = 1.5  # times its fair share that a node has when it is worth a word
_TYPE_BY_KEY = {quota_type.key: quota_type.value for quota_type in QUOTA_TYPES}


def recommend_notes(found: Recommendation, wanted: Wanted, *, events: int) -> list[str]:
    """Return all that is to be said of the quotas. wanted: what they were asked for with."""
    budgets = "".join(
        f", budget {key}={given_text(_TYPE_BY_KEY[key], value)}" for key, value in wanted.budgets.items()
    )
    notes = [
        f"Proposed by tidegate recommend: headroom {wanted.headroom:g}{budgets}; of {things_text(events, 'event')}.",
        *evidence_notes(found),
        *outcome_notes(found.outcomes),
    ]
    if wanted.protect:
        protected = " ".join(f"{kind}={name_text(name)}" for kind, name in wanted.protect)
        notes.append(f"Protected, and not throttled in it: {protected}.")
    notes += hidden_notes(found.entities)
    notes += starved_notes(found.by, found.quotas, found.entities, found.backlogs)
    notes += skew_notes(found.nodes)
    if found.evidence.callback is not None:
        notes.append(" ".join(callback_note(found.evidence.callback)))
    return notes


def evidence_notes(found: Recommendation) -> list[str]:
    """Return what the record is too little for, what it cannot measure, and which clients are left out."""
    evidence = found.evidence
    notes = []
    if evidence.windows < ENOUGH_WINDOWS:
        windows = things_text(evidence.windows, "window")
        notes.append(
            f"Too little data, forced: requests in {windows} of 10 seconds; {ENOUGH_WINDOWS} are enough."
        )
    notes += [
        f"No {QUOTA_NAMES[quota_type]} quota is proposed: {things_text(requests, 'request')}; "
        f"{ENOUGH_REQUESTS} are enough."
        for quota_type, requests in found.withheld.items()
    ]
    if evidence.is_imported:
        notes.append(
            "No request quota is proposed: request time cannot be judged, as a request log does not hold the time "
            "of network threads."
        )
    if found.left_out:
        left_out = things_text(len(found.left_out), "entity", "entities")
        names = ", ".join(entity_text(_named(name)) for name in found.left_out[:_FEW])
        more = ", …" if len(found.left_out) > _FEW else ""
        notes.append(f"Left out: {left_out} of the brokers themselves ({names}{more}).")
    return notes


def outcome_notes(outcomes: Sequence[Row]) -> list[str]:
    """Return what the proposal would lead to, as forecast in closed loop: rows of `REPLAY_BY_ENTITY`."""
    touched = [row for row in outcomes if is_touched(row) or row.get("throttled_requests_high")]
    touched.sort(key=lambda row: -row["throttle_ms"])
    if not touched:
        return ["Replayed against what was recorded, it throttles nobody."]
    notes = ["Forecast of what was recorded (closed loop: throttled clients come later), it throttles:"]
    notes += [
        f"  {QUOTA_NAMES[row['quota_type']]} {entity_text(row)}: "
        f"{count_text(row['throttled_requests'])} of {count_text(row['requests'])} requests, "
        f"{range_text(row, 'throttle_ms')} in all, {range_text(row, 'longest_throttle_ms')} at most"
        + (f", {things_text(row['capped_fetches'], 'fetch', 'fetches')} cut" if row["capped_fetches"] else "")
        + (
            f", {things_text(row['rejected_mutations'], 'mutation')} refused"
            if row["rejected_mutations"]
            else ""
        )
        for row in touched[:_LINES]
    ]
    return notes + _more(touched)


def hidden_notes(entities: Sequence[Row]) -> list[str]:
    """Return whose demand the record does not show, as they were throttled: rows of `LIMITS_BY_ENTITY`."""
    hidden = [row for row in entities if was_throttled(row)]
    if not hidden:
        return []
    notes = ["Throttled when recorded, so that what they wanted is hidden:"]
    notes += [
        f"  {QUOTA_NAMES[row['quota_type']]} {entity_text(row)}: {count_text(row['recorded_throttled_requests'])} of "
        f"{count_text(row['requests'])} requests, {duration_text(row['recorded_throttle_ms'])} in all"
        + (
            f", {things_text(row['recorded_rejected_mutations'], 'mutation')} refused"
            if row["recorded_rejected_mutations"]
            else ""
        )
        for row in sorted(hidden, key=lambda row: -row["recorded_throttle_ms"])[:_LINES]
    ]
    return [*notes, *_more(hidden), "Raise their quotas for a while, record that, and ask again."]


def starved_notes(by: str, quotas: QuotasFile, entities: Sequence[Row], backlogs: Sequence[Row]) -> list[str]:
    """Return which consumers the quotas would keep behind: rows of `LIMITS_BY_ENTITY` and of `BACKLOGS`.

    That is who has yet to read more than ten seconds of its quota hold: at the end of the record, as what it caught up
    with before needed no more; where the quota is less than it needed, whenever it was furthest behind.
    How long it takes is arithmetic: the backlog over what the quota leaves beside what comes in.
    """
    key = QuotaType.FETCH.key
    values = {entry.entity: entry.values[key] for entry in quotas.entries if key in entry.values}
    needs = {
        name_of(row): row["never_throttled"] for row in entities if row["quota_type"] == QuotaType.FETCH.value
    }
    behind: list[tuple[float, str]] = []
    for row in backlogs:
        value = values.get(entity_of(ENTITIES_BY[by], row), values.get(ENTITIES_BY[by]))
        if value is None or row["largest_lag_bytes"] is None:
            continue
        is_enough = value >= needs.get(name_of(row), math.inf)
        lag_bytes = row["last_lag_bytes"] if is_enough else row["largest_lag_bytes"]
        if lag_bytes > _BEHIND * value:
            behind.append((lag_bytes / value, _behind_text(row, lag_bytes, value)))
    if not behind:
        return []
    shown = [text for _, text in sorted(behind, key=lambda found: (-found[0], found[1]))]
    return [
        f"Their quota keeps them behind, with more to read than {_BEHIND} seconds of it hold:",
        *shown[:_LINES],
        *_more(shown),
        "Let them catch up first, or give them a larger quota.",
    ]


def _behind_text(row: Row, lag_bytes: int, value: float) -> str:
    seconds = (row["last_ms"] + STEP_MS - row["first_ms"]) / 1000
    grown = row["fetched_bytes"] + row["last_lag_bytes"] - row["first_lag_bytes"]
    coming = max(0.0, grown / seconds)
    if value > coming:
        how_long = f"takes {duration_text(round(1000 * lag_bytes / (value - coming)))}"
    else:
        how_long = "is never enough"
    return (
        f"  {QUOTA_NAMES[QuotaType.FETCH.value]} {entity_text(row)}: {bytes_text(lag_bytes)} behind on node "
        f"{row['node_id']}; {given_text(QuotaType.FETCH.value, value)} a second {how_long}, with "
        f"{bytes_text(coming)} a second coming in"
    )


def skew_notes(nodes: Sequence[Row]) -> list[str]:
    """Return where brokers, or one entity's use of them, are uneven: rows of `LIMITS_BY_NODE`.

    A quota holds on each broker by itself: who uses one of three most is throttled there, and only there.
    """
    node_ids = {row["node_id"] for row in nodes}
    if len(node_ids) < 2:
        return []
    notes = []
    for quota_type in (QuotaType.PRODUCE.value, QuotaType.FETCH.value, QuotaType.REQUEST.value):
        of_type = [row for row in nodes if row["quota_type"] == quota_type]
        groups: dict[Name | None, list[Row]] = {None: of_type}
        for row in of_type:
            groups.setdefault(name_of(row), []).append(row)
        uneven = sorted(
            (
                (amount, who, node, total)
                for who, rows in groups.items()
                for amount, node, total in [_largest_share(rows)]
                if amount * len(node_ids) >= _UNEVEN * total > 0
            ),
            key=lambda found: (found[1] is not None, -found[0]),
        )
        for amount, who, node, total in uneven[:_FEW]:
            whose = "all" if who is None else entity_text(_named(who))
            share = percent_text(amount, total)
            notes.append(
                f"{QUOTA_NAMES[quota_type]}: node {node} has {share} of what {whose} used of {len(node_ids)}"
            )
    if notes:
        notes.append("A quota holds on each broker by itself: evened out, less of it would do.")
    return notes


def _named(name: Name) -> Row:
    return {"entity_user": name[0], "entity_client_id": name[1]}


def _largest_share(rows: Sequence[Row]) -> tuple[int, int, int]:
    """Return the largest amount on one node, the node, and the amount on all."""
    by_node: dict[int, int] = {}
    for row in rows:
        by_node[row["node_id"]] = by_node.get(row["node_id"], 0) + row["amount"]
    node = max(by_node, key=lambda node: by_node[node]) if by_node else 0
    return by_node.get(node, 0), node, sum(by_node.values())


def _more(rows: Sequence[object]) -> list[str]:
    return [f"  and {count_text(len(rows) - _LINES)} more"] if len(rows) > _LINES else []

"""Quotas out of metrics, with the rules of `tidegate.pipeline.proposals.propose`, and the notes on them.

Kafka compares `byte-rate` and `request-time` with a quota, so the largest value is what a client needs. A mutation
quota is a token bucket, and `mutation-rate` a mean over up to a minute: the bucket of the limit that is proposed holds
all mutations of the busiest minute, however close together they come.

>>> bucket_limit(5.5)
30.0

Follows: Kafka's rates (B§1.3), token buckets (B§1.6, B§5.2), and the windows of `mutation-rate` (B§1.1, B§3.5).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.config.quotas_file import QuotasFile, parse_quotas_file
from tidegate.config.quotas_text import dump_quotas_file
from tidegate.config.windows import Windows
from tidegate.pipeline.prometheus.measured import Measured
from tidegate.pipeline.prometheus.spellings import Client
from tidegate.pipeline.proposals.evidence import ENOUGH_WINDOWS, WINDOW_MS, TooLittleDataError, is_internal
from tidegate.pipeline.proposals.limits_of_type import Row
from tidegate.pipeline.proposals.notes import proposal_fields
from tidegate.pipeline.proposals.propose import NothingToRecommendError, propose
from tidegate.pipeline.proposals.wanted import Wanted
from tidegate.pipeline.replay.levels import QUOTA_TYPES
from tidegate.pipeline.report.json_text import document_start
from tidegate.pipeline.report.names import QUOTA_NAMES, entity_text, name_text, parts_text
from tidegate.pipeline.report.rounding import given_text
from tidegate.pipeline.report.text import duration_text, things_text, time_text
from tidegate.quota.managers.quota_type import QuotaType
from tidegate.quota.measure.window import REGISTRY_WINDOW

__all__ = ["MetricsProposal", "bucket_limit", "metrics_document", "metrics_notes", "recommend_from_metrics"]

_LEVELS = ("both", "user", "client-id")
_LINES = 10  # entities that a note lists
_FEW = 3  # names of brokers' clients in a note
_TYPE_BY_KEY = {quota_type.key: quota_type.value for quota_type in QUOTA_TYPES}
_LEVEL_NAMES = {"both": "user and client id", "user": "user", "client-id": "client id"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsProposal:
    """Quotas for entities of the level `by`. entities: rows like `LIMITS_BY_ENTITY`.

    withheld: windows with use, by type of quota that has too few for a proposal. left_out: brokers' own entities.
    others: entities with use at other levels, which the proposal does not contain.
    """

    by: str
    quotas: QuotasFile
    entities: Sequence[Row]
    measured: Measured
    withheld: Mapping[str, int]
    left_out: Sequence[Row]
    others: Mapping[str, int]


def bucket_limit(mean: float) -> float:
    """Return the limit whose token bucket holds all mutations of a window with this mean rate."""
    window = Windows().mutation
    seconds = REGISTRY_WINDOW.samples * REGISTRY_WINDOW.window_ms / 1000
    return mean * seconds / (window.samples * window.window_ms / 1000)


def recommend_from_metrics(measured: Measured, by: str | None, wanted: Wanted) -> MetricsProposal:
    """Return quotas from metrics. by: their level; None: the level of --protect, else that with most entities in use.

    Raises `NothingToRecommendError`, `TooLittleDataError`, and what `propose` raises.
    """
    kept = {name for kind, name in wanted.protect if kind == "client-id"}  # one can look like a broker's
    clients = {client for client, _ in measured.peaks}
    internal = {client for client in clients if is_internal(client[2] or "") and client[2] not in kept}
    levels = Counter(
        _level(client) for client in {client[1:]: client for client in clients - internal}.values()
    )
    by = by or _chosen(levels, wanted)
    if not levels[by]:
        found = ", ".join(_LEVEL_NAMES[level] for level in _LEVELS if levels[level]) or "brokers only"
        raise NothingToRecommendError(
            f"nothing to recommend: the metrics have no entity by {_LEVEL_NAMES[by]}; they have {found}",
            hint="Kafka measures clients at the level of the quotas that are set: give --by, or set a very large "
            "default quota of this level and record again",
        )
    nodes = [
        _node_row(client, node, peak)
        for (client, node), peak in sorted(measured.peaks.items(), key=lambda item: (str(item[0]), item[1]))
        if client not in internal and _level(client) == by
    ]
    entities = _entities(nodes, measured)
    _check_evidence(measured, wanted)
    withheld = {
        quota_type: count
        for quota_type in {row["quota_type"] for row in entities}
        if (count := len(measured.windows.get(QuotaType(quota_type), ()))) < ENOUGH_WINDOWS
        and not wanted.force
    }
    enough = [row for row in entities if row["quota_type"] not in withheld]
    if not enough:
        raise _too_little(max(withheld.values()))
    proposal = propose(by, enough, nodes, wanted, named_in=entities)
    return MetricsProposal(
        by=by,
        quotas=parse_quotas_file(dump_quotas_file(proposal.quotas)),
        entities=entities,
        measured=measured,
        withheld=withheld,
        left_out=_named(sorted(internal, key=str)),
        others={level: count for level, count in levels.items() if level != by},
    )


def _chosen(levels: Mapping[str, int], wanted: Wanted) -> str:
    kinds = {kind for kind, _ in wanted.protect}
    if kinds:
        return kinds.pop() if len(kinds) == 1 else "both"
    return max(_LEVELS, key=lambda level: levels[level])


def _level(client: Client) -> str:
    if client[1] is None:
        return "client-id"
    return "user" if client[2] is None else "both"


def _node_row(client: Client, node: str, peak: float) -> Row:
    """Return a row like `LIMITS_BY_NODE`."""
    quota_type, user, client_id = client
    limit = bucket_limit(peak) if quota_type is QuotaType.CONTROLLER_MUTATION else peak
    return {
        "quota_type": quota_type.value,
        "entity_user": user,
        "entity_client_id": client_id,
        "node_id": name_text(node),
        "peak": max(0.0, limit),
        "amount": max(0.0, peak),
        "largest_amount": 0,
    }


def _entities(nodes: Sequence[Row], measured: Measured) -> list[Row]:
    """Return rows like `LIMITS_BY_ENTITY`: the largest of all brokers, as each broker applies a quota by itself."""
    largest: dict[Client, Row] = {}
    for row in nodes:
        client = QuotaType(row["quota_type"]), row["entity_user"], row["entity_client_id"]
        if client not in largest or row["peak"] > largest[client]["peak"]:
            largest[client] = row
    return [
        {
            **{name: row[name] for name in ("quota_type", "entity_user", "entity_client_id", "amount")},
            "never_throttled": row["peak"],
            "recorded_throttled_requests": int(client in measured.throttled),
            "recorded_throttle_ms": measured.throttled.get(client, 0.0),
        }
        for client, row in largest.items()
    ]


def _check_evidence(measured: Measured, wanted: Wanted) -> None:
    """Raise `TooLittleDataError` where too few windows have use."""
    windows = set().union(*measured.windows.values()) if measured.windows else set()
    if len(windows) < ENOUGH_WINDOWS and not wanted.force:
        raise _too_little(len(windows))


def _too_little(windows: int) -> TooLittleDataError:
    return TooLittleDataError(
        f"too little data for a proposal: usage in {things_text(windows, 'window')} of 10 seconds with a scrape, "
        f"expected {ENOUGH_WINDOWS} or more",
        hint="choose a busier range of time with --from and --to, or use --force",
    )


def metrics_document(found: MetricsProposal, wanted: Wanted) -> dict[str, Any]:
    """Return the proposal as a JSON document, with the keys of one from a usage record where they exist."""
    measured = found.measured
    return {
        **document_start("recommend", None, None),
        **proposal_fields(found.by, found.quotas, wanted),
        "forecast": None,
        "metrics": {
            "from_s": measured.from_s,
            "to_s": measured.to_s,
            "interval_s": measured.interval_s,
            "windows": {quota_type.value: len(windows) for quota_type, windows in measured.windows.items()},
            "throttled": [
                {
                    "quota_type": row["quota_type"],
                    "entity_user": row["entity_user"],
                    "entity_client_id": row["entity_client_id"],
                    "largest_mean_throttle_ms": row["recorded_throttle_ms"],
                }
                for row in found.entities
                if row["recorded_throttled_requests"]
            ],
        },
        "notes": metrics_notes(found, wanted),
    }


# --- notes ------------------------------------------------------------------------------------------------------------


def metrics_notes(found: MetricsProposal, wanted: Wanted) -> list[str]:
    """Return all notes on quotas out of metrics. wanted: the options of the proposal."""
    measured = found.measured
    budgets = "".join(
        f", budget {key}={given_text(_TYPE_BY_KEY[key], value)}" for key, value in wanted.budgets.items()
    )
    notes = [
        f"Proposed by tidegate recommend from Kafka's metrics in Prometheus, {time_text(measured.from_s * 1000)} to "
        f"{time_text(measured.to_s * 1000)} UTC, with headroom {wanted.headroom:g}{budgets}.",
        *_precision_notes(found),
        *_missing_notes(found),
        *_throttled_notes(found.entities),
    ]
    if wanted.protect:
        notes.append(
            f"Protected, and never cut by a budget: {parts_text(tuple(wanted.protect))}. Metrics cannot prove that "
            "these quotas never throttle them."
        )
    notes.append(
        "There is no forecast, because metrics do not contain requests. How far consumers have fallen behind is not "
        "known either."
    )
    return notes


def _precision_notes(found: MetricsProposal) -> list[str]:
    """Return how exact the numbers are, with the distance of scrapes."""
    interval_s = found.measured.interval_s
    points = "Scrapes" if found.measured.is_raw else "Points"
    how_far = (
        f"The distance of {points.lower()} is not known"
        if interval_s is None
        else f"{points} are {interval_s:.3g} s apart"
    )
    notes = [
        f"{how_far}. Kafka compares byte-rate and request-time, which cover the last {WINDOW_MS // 1000} seconds or "
        "so, with quotas. Their largest value is what a client needs, except for bursts between two scrapes."
    ]
    if any(row["quota_type"] == QuotaType.CONTROLLER_MUTATION.value for row in found.entities):
        notes.append(
            "mutation-rate is a mean over up to a minute. A mutation quota is proposed that admits all mutations of "
            "the busiest minute at once, so it can be larger than needed."
        )
    return notes


def _missing_notes(found: MetricsProposal) -> list[str]:
    """Return which quotas are not proposed, and which series are not in the proposal."""
    notes = []
    all_windows = set().union(*found.measured.windows.values()) if found.measured.windows else set()
    if len(all_windows) < ENOUGH_WINDOWS:
        windows = things_text(len(all_windows), "window")
        notes.append(
            f"Too little data (--force was given): usage in {windows} of 10 seconds; {ENOUGH_WINDOWS} are enough."
        )
    notes += [
        f"No {QUOTA_NAMES[quota_type]} quota is proposed: usage in {things_text(count, 'window')} of 10 seconds; "
        f"{ENOUGH_WINDOWS} are enough."
        for quota_type, count in sorted(found.withheld.items())
    ]
    have = {row["quota_type"] for row in found.entities}
    if missing := [QUOTA_NAMES[kind.value] for kind in QUOTA_TYPES if kind.value not in have]:
        notes.append(
            f"The metrics of this level do not contain these quota types, so none is proposed: {', '.join(missing)}. "
            "Kafka measures clients only while a quota of the type is set."
        )
    if found.others:
        others = ", ".join(
            f"{things_text(count, 'entity', 'entities')} by {_LEVEL_NAMES[level]}"
            for level, count in found.others.items()
        )
        notes.append(f"Not in this proposal, because Kafka measures them at another level: {others}.")
    if found.left_out:
        names = ", ".join(dict.fromkeys(entity_text(row) for row in found.left_out[:_FEW]))
        more = ", …" if len(found.left_out) > _FEW else ""
        notes.append(f"Ignored: clients of the brokers themselves ({names}{more}).")
    if found.measured.clusters:
        names = ", ".join(name_text(label) for label in found.measured.clusters[:_LINES])
        notes.append(
            f"The metrics may be of several clusters: {names}. Choose one with --match, or in the saved query."
        )
    return notes


def _throttled_notes(entities: Sequence[Row]) -> list[str]:
    """Return the entities whose demand is unknown because they were throttled."""
    throttled = [row for row in entities if row["recorded_throttled_requests"]]
    if not throttled:
        return []
    throttled.sort(key=lambda row: -row["recorded_throttle_ms"])
    lines = [
        f"  {QUOTA_NAMES[row['quota_type']]} {entity_text(row)}: "
        f"{duration_text(round(row['recorded_throttle_ms']))} on average"
        for row in throttled[:_LINES]
    ]
    more = [f"  and {len(throttled) - _LINES} more"] if len(throttled) > _LINES else []
    return [
        "Throttled in this time, so that their demand is unknown:",
        *lines,
        *more,
        "Raise their quotas for a while, and repeat the command.",
    ]


def _named(clients: Iterable[Client]) -> list[Row]:
    return [{"entity_user": client[1], "entity_client_id": client[2]} for client in clients]

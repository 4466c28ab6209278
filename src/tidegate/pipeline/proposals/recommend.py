"""A recommendation: the quotas that a record leads to, with a forecast of its traffic under them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tidegate.config.quotas_file import QuotasFile, parse_quotas_file
from tidegate.config.quotas_text import dump_quotas_file
from tidegate.errors import ConfigError
from tidegate.pipeline.proposals.evidence import (
    ENOUGH_REQUESTS,
    ENOUGH_WINDOWS,
    Evidence,
    Name,
    TooLittleDataError,
)
from tidegate.pipeline.proposals.limits_of_type import name_of
from tidegate.pipeline.proposals.propose import NothingToRecommendError, Proposal, proposal_of
from tidegate.pipeline.proposals.wanted import Wanted
from tidegate.pipeline.report.names import QUOTA_NAMES, entity_text
from tidegate.pipeline.report.text import things_text
from tidegate.quota.managers.quota_type import QuotaType

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.pipeline.replay.limits import Replays
    from tidegate.pipeline.replay.plan import Plan
    from tidegate.pipeline.results.table_rows import TableRows

__all__ = ["Recommendation", "forecast_levels", "recommend"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Quotas to set for entities of the level `by`, and what they come of.

    entities, nodes: rows of `LIMITS_BY_ENTITY` and `LIMITS_BY_NODE`. outcomes: a forecast of the recorded traffic under
    the quotas, rows of `REPLAY_BY_ENTITY`. backlogs: how far behind consumers read, rows of `BACKLOGS`. evidence: of
    the record. left_out: brokers' own entities. withheld: requests by type of quota that has too few for a proposal.
    """

    by: str
    quotas: QuotasFile
    entities: "TableRows"
    nodes: "TableRows"
    outcomes: "TableRows"
    backlogs: "TableRows"
    evidence: Evidence
    left_out: Sequence[Name] = ()
    withheld: Mapping[str, int] = field(default_factory=dict)


def recommend(
    replays: "Replays",
    by: str,
    wanted: Wanted,
    backlogs: "pa.Table",
    evidence: Evidence,
    *,
    only_throttled: bool = False,
) -> Recommendation:
    """Return quotas for entities of the level `by`, with a forecast of the record under them as read from their file.

    replays: of plans like `levels_of(by)` and `forecast_levels(by)`. backlogs: rows of `BACKLOGS`. only_throttled: the
    outcomes are those that `rows_touched` returns; where none can be, nothing is forecast (decision 0154).
    Raises `NothingToRecommendError`, `TooLittleDataError`, and what `propose` raises.
    """
    from tidegate.pipeline.proposals.needs import (
        TableNeeds,
        are_enough,
        requests_by_type,
        rows_judged,
        rows_of_others,
    )
    from tidegate.pipeline.replay.limits import levels_of
    from tidegate.pipeline.report.compared import entity_rows
    from tidegate.pipeline.results.table_rows import TableRows
    from tidegate.pipeline.rollup.limits import limits_without_tolerance

    if evidence.is_imported and QuotaType.REQUEST.key in wanted.budgets:
        raise ConfigError(
            "request_percentage cannot have a budget: an imported record does not contain the time of network threads",
            hint="remove this budget, or use a record of `tidegate serve`",
        )
    left_out = evidence.internal - _named(wanted.protect, evidence.internal)
    found = [TableRows(table) for table in limits_without_tolerance(replays, levels_of(by))]
    entities, nodes = (rows_judged(rows, left_out, evidence) for rows in found)
    if not entities:
        raise NothingToRecommendError(
            "nothing to recommend: the record has no request of an entity that can have a quota",
            hint="read more hours; `tidegate usage` shows the clients of the record",
        )
    requests = requests_by_type(entities)
    _check_evidence(evidence, requests, wanted)
    few = {kind: count for kind, count in requests.items() if count < ENOUGH_REQUESTS and not wanted.force}
    proposal = proposal_of(by, TableNeeds(entities, nodes, wanted, withheld=few), wanted)
    quotas = parse_quotas_file(dump_quotas_file(proposal.quotas))
    if only_throttled and not evidence.has_before and are_enough(quotas, by, found[0]):
        outcomes = entity_rows([])
    else:
        del found
        outcomes = _forecast(replays, quotas, proposal, left_out, only_throttled=only_throttled)
    return Recommendation(
        by=by,
        quotas=quotas,
        entities=entities,
        nodes=nodes,
        outcomes=outcomes,
        backlogs=rows_of_others(TableRows(backlogs), left_out),
        evidence=evidence,
        left_out=sorted(left_out, key=repr),
        withheld=few,
    )


def forecast_levels(by: str) -> "Plan":
    """Return a plan of the level of a proposal in closed loop, as `levels_of` returns one in open loop."""
    from tidegate.pipeline.replay.limits import levels_of

    return replace(levels_of(by), name="proposal", measures=False, is_closed=True)


def _check_evidence(evidence: Evidence, requests: Mapping[str, int], wanted: Wanted) -> None:
    """Raise `TooLittleDataError` where a record is too short, or has too few requests of any type."""
    if wanted.force:
        return
    hint = "record the busiest hours, or use --force"
    if evidence.windows < ENOUGH_WINDOWS:
        windows = things_text(evidence.windows, "window")
        raise TooLittleDataError(
            f"too little data for a proposal: requests in {windows} of 10 seconds, expected {ENOUGH_WINDOWS} or more",
            hint=hint,
        )
    if max(requests.values()) < ENOUGH_REQUESTS:
        most = things_text(max(requests.values()), "request")
        raise TooLittleDataError(
            f"too little data for a proposal: {most} of one type of quota, expected {ENOUGH_REQUESTS} or more",
            hint=hint,
        )


def _forecast(
    replays: "Replays",
    quotas: QuotasFile,
    proposal: Proposal,
    left_out: Collection[Name],
    *,
    only_throttled: bool,
) -> "TableRows":
    """Return what the quotas would lead to. Raises `ConfigError` where they would throttle the protected."""
    from tidegate.pipeline.proposals.needs import rows_of_others, rows_touched
    from tidegate.pipeline.replay.plan import Plan
    from tidegate.pipeline.results.table_rows import TableRows

    plan = Plan(name="proposal", records=tuple(quotas.records()), is_closed=True)
    found = replays.outcomes([plan])
    outcomes = TableRows(found.filter(found["bound"].is_valid()))
    del found
    outcomes = rows_of_others(outcomes, left_out)
    if only_throttled:
        outcomes = rows_touched(outcomes, with_ranges=True)
    for row in rows_touched(outcomes) if proposal.protected else ():
        if name_of(row) in proposal.protected:
            name = f"{QUOTA_NAMES[row['quota_type']]} {entity_text(row)}"
            raise ConfigError(
                f"the proposed quotas would throttle {name}, which is protected",
                hint="increase --headroom or --budget",
            )
    return outcomes


def _named(protect: Sequence[tuple[str, str]], names: Collection[Name]) -> set[Name]:
    """Return the names that are to be protected."""
    wanted = set(protect)
    return {name for name in names if {("user", name[0]), ("client-id", name[1])} & wanted}

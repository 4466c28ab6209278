"""Proposed quotas as a file or as commands of Apache Kafka, and the notes on them.

Notes are sentences; items of a list are indented by two spaces.
"""

import heapq
import math
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from tidegate.config.quotas_file import QuotaEntry, QuotasFile
from tidegate.config.quotas_text import dump_quotas_file
from tidegate.errors import ArgumentError, ConfigError
from tidegate.pipeline.proposals.evidence import ENOUGH_REQUESTS, ENOUGH_WINDOWS, Name, was_throttled
from tidegate.pipeline.proposals.limits_of_type import Row, entity_of, name_of
from tidegate.pipeline.proposals.recommend import Recommendation
from tidegate.pipeline.proposals.wanted import Wanted
from tidegate.pipeline.replay.levels import ENTITIES_BY, QUOTA_TYPES
from tidegate.pipeline.report.json_text import document_start
from tidegate.pipeline.report.names import QUOTA_NAMES, entity_text, name_text, parts_text
from tidegate.pipeline.report.notes import callback_note, range_text
from tidegate.pipeline.report.rounding import given_text
from tidegate.pipeline.report.text import bytes_text, count_text, duration_text, percent_text, things_text
from tidegate.quota.admin.definitions import EntityParts
from tidegate.quota.managers.quota_type import QuotaType

__all__ = [
    "hidden_notes",
    "kafka_configs_text",
    "proposal_fields",
    "quotas_text",
    "recommend_document",
    "recommend_notes",
    "starved_notes",
    "text_of",
    "uneven_notes",
]

_WIDTH = 80  # columns
_LONGEST_REASON = 1000  # characters
_FORECAST = (
    "quota_type",
    "entity_user",
    "entity_client_id",
    "requests",
    "throttled_requests",
    "throttle_ms",
    "longest_throttle_ms",
    "rejected_mutations",
    "capped_fetches",
)
_ENTITY_TYPES = {"user": "users", "client-id": "clients"}
_FEW = 3  # lines on one type of quota
_LINES = 10  # entities that a note lists
_BEHIND = 10  # seconds of a quota that a backlog may take
_UNEVEN = 1.5  # times its fair share that a node needs for a note
_SKEWED = (QuotaType.PRODUCE, QuotaType.FETCH, QuotaType.REQUEST)
_TYPE_BY_KEY = {quota_type.key: quota_type.value for quota_type in QUOTA_TYPES}


def quotas_text(quotas: QuotasFile, notes: Sequence[str]) -> str:
    """Return the text of a `quotas.yaml` with notes on top."""
    return "\n".join(_comments(notes)) + "\n" + dump_quotas_file(quotas)


def text_of(quotas: QuotasFile, notes: Sequence[str], form: str) -> str:
    """Return quotas in a form: `quotas.yaml` or `kafka-configs`. Raises `ArgumentError`."""
    if form not in ("quotas.yaml", "kafka-configs"):
        raise ArgumentError(f"form must be quotas.yaml or kafka-configs, got {form!r}")
    return kafka_configs_text(quotas, notes) if form == "kafka-configs" else quotas_text(quotas, notes)


def proposal_fields(by: str, quotas: QuotasFile, wanted: Wanted) -> dict[str, Any]:
    """Return the fields of a JSON document that every proposal has."""
    return {
        "by": by,
        "headroom": wanted.headroom,
        "budgets": dict(wanted.budgets),
        "protected": [{"entity_type": kind, "name": name} for kind, name in wanted.protect],
        "quotas": [
            {"entity": dict(entry.entity), "values": dict(entry.values), "reason": entry.reason}
            for entry in quotas.entries
        ],
    }


def recommend_document(
    found: Recommendation, wanted: Wanted, *, notes: Sequence[str], events: int
) -> dict[str, Any]:
    """Return the proposal of `tidegate recommend` as a JSON document. notes: the comments of its quotas file."""
    from tidegate.pipeline.proposals.needs import rows_touched

    touched = rows_touched(found.outcomes)
    return {
        **document_start("recommend", events, None),
        **proposal_fields(found.by, found.quotas, wanted),
        "forecast": [
            {name: row[name] for name in _FORECAST}
            for row in sorted(touched, key=lambda row: (-row["throttle_ms"], _sort_key(row)))
        ],
        "notes": list(notes),
    }


def _sort_key(row: Row) -> str:
    return repr((row["quota_type"], row["entity_user"], row["entity_client_id"]))


def kafka_configs_text(quotas: QuotasFile, notes: Sequence[str]) -> str:
    r"""Return a script for a POSIX shell that sets the quotas; BOOTSTRAP names a broker.

    Raises `ConfigError` for a name that no command line can contain.

    >>> entry = QuotaEntry(entity=(("user", "a'b"),), values={"producer_byte_rate": 1024.0})
    >>> print(kafka_configs_text(QuotasFile(entries=(entry,)), []).splitlines()[-1])
      --add-config producer_byte_rate=1024 --entity-type users --entity-name 'a'"'"'b'
    """
    lines = ["#!/bin/sh", *_comments(notes), 'set -e\n: "${BOOTSTRAP:?names a broker: HOST:PORT}"']
    for entry in quotas.entries:
        lines += ["", *_comments([] if entry.reason is None else [entry.reason])]
        lines += ['kafka-configs.sh --bootstrap-server "$BOOTSTRAP" --alter \\', f"  {_setting(entry)}"]
    return "\n".join(lines) + "\n"


def _setting(entry: QuotaEntry) -> str:
    texts = {key: format(Decimal(repr(value)), "f").removesuffix(".0") for key, value in entry.values.items()}
    values = ",".join(f"{key}={text}" for key, text in texts.items())
    return " ".join(("--add-config", values, *_entity(entry.entity)))


def _entity(entity: EntityParts) -> Iterator[str]:
    """Yield the options of an entity. A name that looks like an option is joined to its own."""
    for kind, name in sorted(entity, reverse=True):  # users before clients
        yield f"--entity-type {_ENTITY_TYPES[kind]}"
        if name is None:
            yield "--entity-default"
        elif "\0" in name:
            raise ConfigError(
                f"no command line can contain {kind}={name!r}", hint="leave out --as kafka-configs"
            )
        elif name.startswith("-"):
            yield shlex.quote(f"--entity-name={name}")
        else:
            yield f"--entity-name {shlex.quote(name)}"


def _comments(notes: Sequence[str]) -> Iterator[str]:
    """Yield the notes as comments, folded; whatever does not print is escaped."""
    for note in notes:
        indent = " " * (len(note) - len(note.lstrip()))
        shown = name_text(note.strip(), longest=_LONGEST_REASON)
        yield from textwrap.wrap(
            shown,
            _WIDTH,
            initial_indent=f"# {indent}",
            subsequent_indent=f"#   {indent}",
            break_on_hyphens=False,
        )


# --- notes ------------------------------------------------------------------------------------------------------------


def recommend_notes(found: Recommendation, wanted: Wanted, *, events: int) -> list[str]:
    """Return all notes on the quotas. wanted: the options of the proposal."""
    from tidegate.pipeline.proposals.needs import rows_throttled, rows_touched, uneven_shares

    budgets = "".join(
        f", budget {key}={given_text(_TYPE_BY_KEY[key], value)}" for key, value in wanted.budgets.items()
    )
    options = f"headroom {wanted.headroom:g}{budgets}"
    notes = [
        f"Proposed by tidegate recommend from {things_text(events, 'event')}, with {options}.",
        *_evidence_notes(found),
        *_outcome_notes(rows_touched(found.outcomes, with_ranges=True)),
    ]
    if wanted.protect:
        notes.append(f"Protected, and not throttled in the forecast: {parts_text(tuple(wanted.protect))}.")
    notes += hidden_notes(rows_throttled(found.entities))
    notes += starved_notes(found.by, found.quotas, *_that_may_starve(found))
    brokers = len(found.nodes.distinct("node_id"))
    shares = {
        kind.value: uneven_shares(found.nodes, kind, brokers=brokers, least=_UNEVEN, most=_FEW)
        for kind in (_SKEWED if brokers > 1 else ())
    }
    notes += uneven_notes(shares, brokers)
    if found.evidence.callback is not None:
        notes.append(" ".join(callback_note(found.evidence.callback)))
    return notes


def _evidence_notes(found: Recommendation) -> list[str]:
    """Return for which quotas the record is too short, what it cannot measure, and which clients are ignored."""
    evidence = found.evidence
    notes = []
    if evidence.windows < ENOUGH_WINDOWS:
        windows = things_text(evidence.windows, "window")
        notes.append(
            f"Too little data (--force was given): requests in {windows} of 10 seconds; {ENOUGH_WINDOWS} are enough."
        )
    notes += [
        f"No {QUOTA_NAMES[quota_type]} quota is proposed: {things_text(requests, 'request')}; "
        f"{ENOUGH_REQUESTS} are enough."
        for quota_type, requests in found.withheld.items()
    ]
    if evidence.is_imported:
        notes.append(
            "No request quota is proposed: request time cannot be judged, because a request log does not contain the "
            "time of network threads."
        )
    if found.left_out:
        ignored = things_text(len(found.left_out), "entity", "entities")
        names = ", ".join(entity_text(_named(name)) for name in found.left_out[:_FEW])
        more = ", …" if len(found.left_out) > _FEW else ""
        notes.append(f"Ignored: {ignored} of the brokers themselves ({names}{more}).")
    return notes


def _outcome_notes(touched: Sequence[Row]) -> list[str]:
    """Return the forecast for the proposal in closed loop. touched: rows of `REPLAY_BY_ENTITY`, those of interest."""
    if not touched:
        return ["In a replay of the record, these quotas throttle no client."]
    notes = [
        "In a forecast for the record (closed loop: throttled clients send later), these quotas throttle:"
    ]
    return notes + _listed(
        [
            f"{_throttled(row, 'throttled_requests')}, {range_text(row, 'throttle_ms')} in all, "
            f"{range_text(row, 'longest_throttle_ms')} at most"
            + (
                f", {things_text(row['capped_fetches'], 'smaller fetch', 'smaller fetches')}"
                if row["capped_fetches"]
                else ""
            )
            + _refused(row, "rejected_mutations")
            for row in heapq.nsmallest(_LINES, touched, key=lambda row: -row["throttle_ms"])
        ],
        of=len(touched),
    )


def hidden_notes(entities: Sequence[Row]) -> list[str]:
    """Return the entities whose demand is unknown because they were throttled: rows of `LIMITS_BY_ENTITY`."""
    count = sum(map(was_throttled, entities))
    if not count:
        return []
    hidden = filter(was_throttled, entities)
    listed = [
        f"{_throttled(row, 'recorded_throttled_requests')}, {duration_text(row['recorded_throttle_ms'])} in all"
        + _refused(row, "recorded_rejected_mutations")
        for row in heapq.nsmallest(_LINES, hidden, key=lambda row: -row["recorded_throttle_ms"])
    ]
    return [
        "Throttled when recorded, so that their demand is unknown:",
        *_listed(listed, of=count),
        "Raise their quotas for a while, record again, and repeat the command.",
    ]


def _throttled(row: Row, column: str) -> str:
    requests = f"{count_text(row[column])} of {count_text(row['requests'])} requests"
    return f"{QUOTA_NAMES[row['quota_type']]} {entity_text(row)}: {requests}"


def _refused(row: Row, column: str) -> str:
    return f", {things_text(row[column], 'mutation')} refused" if row[column] else ""


def _that_may_starve(found: Recommendation) -> tuple[Sequence[Row], Sequence[Row]]:
    """Return the rows of entities and backlogs for `starved_notes`: their lag is long for the smallest quota."""
    key = QuotaType.FETCH.key
    least = min(
        (entry.values[key] for entry in found.quotas.entries if key in entry.values), default=math.inf
    )
    backlogs = found.backlogs.only(found.backlogs.numbers("largest_lag_bytes") > _BEHIND * least)
    names = {name_of(row) for row in backlogs}
    fetches = found.entities.where(quota_type=QuotaType.FETCH.value)
    return fetches.of_entities(names, ("entity_user", "entity_client_id")), backlogs


def starved_notes(by: str, quotas: QuotasFile, entities: Sequence[Row], backlogs: Sequence[Row]) -> list[str]:
    """Return the consumers whose quotas keep them behind: rows of `LIMITS_BY_ENTITY` and of `BACKLOGS`.

    These consumers have a backlog of more than ten seconds of their quota: at the end of the record or, if the quota is
    less than they need, at their largest backlog. The time to catch up is the backlog divided by the rate that new data
    leaves of the quota.
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
        f"These quotas keep consumers behind, with a backlog of more than {_BEHIND} seconds of the quota:",
        *_listed(shown[:_LINES], of=len(shown)),
        "Let them catch up first, or propose a larger quota.",
    ]


def _behind_text(row: Row, lag_bytes: int, value: float) -> str:
    from tidegate.pipeline.rollup.backlogs import (
        STEP_MS,  # loads arrays, which a proposal from metrics does without
    )

    seconds = (row["last_ms"] + STEP_MS - row["first_ms"]) / 1000
    grown = row["fetched_bytes"] + row["last_lag_bytes"] - row["first_lag_bytes"]
    coming = max(0.0, grown / seconds)
    if value > coming:
        how_long = f"clears it in {duration_text(round(1000 * lag_bytes / (value - coming)))}"
    else:
        how_long = "never clears it"
    return (
        f"{QUOTA_NAMES[QuotaType.FETCH.value]} {entity_text(row)}: backlog of {bytes_text(lag_bytes)} on node "
        f"{row['node_id']}; {given_text(QuotaType.FETCH.value, value)} a second {how_long}, with "
        f"{bytes_text(coming)} a second of new data"
    )


def uneven_notes(shares: Mapping[str, Mapping[Name | None, Mapping[int, int]]], brokers: int) -> list[str]:
    """Return on which of the brokers usage is uneven: by type of quota, entity (None: all) and node.

    Each broker applies a quota by itself: a client that uses one of three brokers most is throttled only by that one.
    """
    if brokers < 2:
        return []
    notes = []
    for quota_type, of_type in shares.items():
        largest = [
            (name, *max(by_node.items(), key=lambda item: item[1]), sum(by_node.values()))
            for name, by_node in of_type.items()
        ]
        uneven = [found for found in largest if found[2] * brokers >= _UNEVEN * found[3] > 0]
        uneven.sort(key=lambda found: (found[0] is not None, -found[2]))
        for name, node, amount, total in uneven[:_FEW]:
            whose = "all clients" if name is None else entity_text(_named(name))
            notes.append(
                f"{QUOTA_NAMES[quota_type]}: {percent_text(amount, total)} of the usage of {whose} is on node {node} "
                f"of {brokers}"
            )
    if notes:
        notes.append(
            "Each broker measures only its own traffic: if usage were even, smaller quotas would be enough."
        )
    return notes


def _named(name: Name) -> Row:
    return {"entity_user": name[0], "entity_client_id": name[1]}


def _listed(lines: Sequence[str], *, of: int) -> list[str]:
    """Return lines as a list, with the number of those left out."""
    more = [f"and {count_text(of - len(lines))} more"] if of > len(lines) else []
    return [f"  {line}" for line in (*lines, *more)]

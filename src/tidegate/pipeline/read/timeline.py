"""What happened to a node besides requests: starts, changed quotas, callbacks, lost events, and sweeps of idle sensors.

These events are few. They are collected on the driver and given to every partition of their node, which meets
them in the order of `seq` among the requests.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tidegate.config.windows import Windows
from tidegate.errors import TidegateError
from tidegate.pipeline.errors import UsageFilesError
from tidegate.quota.admin.definitions import EntityParts, QuotaRecord, entity_parts
from tidegate.quota.admin.entity import Tags
from tidegate.quota.admin.keys import QUOTA_KEYS, WINDOW_SETTINGS
from tidegate.quota.admin.sanitizer import desanitize
from tidegate.quota.managers.extensions import EXEMPT_CLIENTS, EXTENSION_SETTINGS

__all__ = [
    "CONTROL_COLUMNS",
    "CONTROL_KINDS",
    "MAX_CONTROL_EVENTS",
    "SensorState",
    "Step",
    "Timeline",
    "empty_timeline",
    "refuse_extensions",
    "timelines",
]

CONTROL_KINDS = ("start", "quota", "expire", "gap", "callback")
CONTROL_COLUMNS = (
    "kind",
    "ts_ms",
    "seq",
    "node_id",
    "quota_user",
    "quota_client_id",
    "quota_ip",
    "quota_key",
    "quota_value",
    "callback",
    "snapshot",
)
MAX_CONTROL_EVENTS = 2_000_000
"""Events of these kinds in one replay: sweeps of twenty nodes over a month are 1.7 million."""

_DEFAULT_NAME = "<default>"
_PART_COLUMNS = {"user": "quota_user", "client-id": "quota_client_id", "ip": "quota_ip"}


class SensorState(NamedTuple):
    """The state of a sensor at a time, as text: see `tidegate.quota.measure.snapshot`."""

    quota_key: str
    tags: Tags
    ts_ms: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A start, a changed definition (`record`) or window setting (`setting`), a gap, or a trace of a quota callback.

    extension: the setting that is on about here, if it changes decisions of rows that do not say so.
    states_all: the steps after it state all definitions that are in force; what they do not state is not.
    text: what a `snapshot` row says that begins or ends one. With `with_snapshots` there are `begins`, `sensors` (their
    `states`) and `ends` instead, where a replay needs them.
    """

    seq: int
    ts_ms: int
    kind: str
    record: QuotaRecord | None = None
    setting: tuple[str, int] | None = None
    extension: str | None = None
    states_all: bool = False
    text: str = ""
    states: tuple[SensorState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All steps and sweeps of one node, each sorted by `seq`."""

    steps: tuple[Step, ...] = ()
    sweeps: npt.NDArray[np.int64]  # [sweep, (seq, ts_ms)]


def timelines(events: Sequence[Mapping[str, Any]]) -> dict[int, Timeline]:
    """Return the timeline of each node out of its control events, rows of `CONTROL_COLUMNS` in any order.

    Raises `UsageFilesError` where a row makes no sense.
    """
    by_node: dict[int, list[Mapping[str, Any]]] = {}
    for event in sorted(events, key=lambda event: (event["node_id"], event["seq"])):
        by_node.setdefault(event["node_id"], []).append(event)
    return {node_id: _timeline(node_events) for node_id, node_events in by_node.items()}


def empty_timeline() -> Timeline:
    """Return the timeline of a node of which only requests are known."""
    return _timeline([])


def refuse_extensions(found: Mapping[int, Timeline]) -> None:
    """Raise `UsageFilesError` where a setting beyond Kafka was on, or a quota callback decided who shares a limit.

    The kernel would decide otherwise, unnoticed.
    """
    for node_id, timeline in found.items():
        for step in timeline.steps:
            if step.extension is not None:
                raise UsageFilesError(
                    f"{step.extension} was set on node {node_id} (seq={step.seq}): "
                    "a replay of the quotas in force does not know it yet",
                    hint="leave out --in-force, or give hours in which it was not set",
                )


def _timeline(events: Sequence[Mapping[str, Any]]) -> Timeline:
    steps = [_step(event) for event in events if event["kind"] != "expire"]
    following = (*steps[1:], None)[: len(steps)]
    sweeps = [(event["seq"], event["ts_ms"]) for event in events if event["kind"] == "expire"]
    return Timeline(
        steps=tuple(
            replace(step, states_all=_states_all(step, after))
            for step, after in zip(steps, following, strict=True)
        ),
        sweeps=np.array(sweeps, np.int64).reshape(-1, 2),
    )


def _states_all(step: Step, after: Step | None) -> bool:
    """A start does. A gap does where the node noticed it itself; not where a file of the spool was damaged."""
    is_followed = after is not None and after.kind == "quota" and after.seq == step.seq + 1
    return step.kind == "start" or (step.kind == "gap" and is_followed)


def _step(event: Mapping[str, Any]) -> Step:
    seq, ts_ms, kind = event["seq"], event["ts_ms"], event["kind"]
    if kind in ("callback", "tags"):  # where one is taken away, there was one before
        name = "" if event["callback"] is None else f"={event['callback']}"
        return Step(seq=seq, ts_ms=ts_ms, kind=kind, extension=f"client.quota.callback.class{name}")
    if kind == "snapshot":
        return Step(seq=seq, ts_ms=ts_ms, kind=kind, text=event["snapshot"] or "")
    if kind != "quota":
        return Step(seq=seq, ts_ms=ts_ms, kind=kind)
    key = event["quota_key"]
    if key in WINDOW_SETTINGS:
        return Step(seq=seq, ts_ms=ts_ms, kind=kind, setting=(key, _setting_value(event)))
    if key in EXTENSION_SETTINGS:  # exempt clients: their rows say it
        is_on = event["quota_value"] is not None and key != EXEMPT_CLIENTS
        return Step(seq=seq, ts_ms=ts_ms, kind=kind, extension=key if is_on else None)
    if key not in QUOTA_KEYS:
        raise _error(event, f"quota_key must be a key of Kafka's or a setting, got {key!r}")
    record = QuotaRecord(entity=_entity(event), key=key, value=event["quota_value"])
    return Step(seq=seq, ts_ms=ts_ms, kind=kind, record=record)


def _setting_value(event: Mapping[str, Any]) -> int:
    value = event["quota_value"]
    if value is None or not math.isfinite(value) or value != int(value):
        raise _error(event, f"{event['quota_key']} must be a whole number, got {value!r}")
    try:
        Windows().replaced(event["quota_key"], int(value))
    except ValueError as error:
        raise _error(event, str(error)) from error
    return int(value)


def _entity(event: Mapping[str, Any]) -> EntityParts:
    parts = {entity_type: event[column] for entity_type, column in _PART_COLUMNS.items()}
    if all(name is None for name in parts.values()):
        raise _error(event, f"{event['quota_key']} needs a user, a client id or an ip")
    try:
        return entity_parts(
            (entity_type, None if name == _DEFAULT_NAME else desanitize(name))
            for entity_type, name in parts.items()
            if name is not None
        )
    except TidegateError as error:
        raise _error(event, str(error)) from error


def _error(event: Mapping[str, Any], reason: str) -> UsageFilesError:
    return UsageFilesError(f"quota event seq={event['seq']} of node {event['node_id']}: {reason}")

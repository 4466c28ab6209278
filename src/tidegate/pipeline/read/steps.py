"""Steps of a timeline: what control events mean to a replay.

A `Step` is an object only while it is read: `Steps` keeps the arrays of `control_events` (decision 0078).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.config.windows import Windows
from tidegate.errors import TidegateError
from tidegate.pipeline.errors import DAMAGED_HINT, UsageFilesError
from tidegate.pipeline.layout import EXACT, Floats, Int32s, Int64s
from tidegate.pipeline.read.answers import Answer, parsed_answer
from tidegate.pipeline.read.control_events import EXTENSION_KEYS, HAS_VALUE, SETTING, ControlEvents, Row
from tidegate.quota.admin.definitions import EntityParts, QuotaRecord, entity_parts
from tidegate.quota.admin.entity import Tags
from tidegate.quota.admin.keys import QUOTA_KEYS, WINDOW_SETTINGS
from tidegate.quota.admin.sanitizer import desanitize
from tidegate.usage.columns import ENTITY_COLUMNS

__all__ = [
    "SensorState",
    "Step",
    "Steps",
]

_LARGEST_SETTING = 2**31 - 1
_DEFAULT_NAME = "<default>"


class SensorState(NamedTuple):
    """The state of a sensor at a time, as text: see `tidegate.quota.measure.snapshot`. tags: or the name of a group."""

    quota_key: str
    tags: Tags | str
    ts_ms: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A start, a changed definition (`record`) or window setting (`setting`), a break, or a callback and its answers.

    kind: of a break, `gap` if a row reports it, else `break`.
    reason: of a break, why decisions after it are not exact; `ts_ms` is then the time up to which rows may be missing.
    record: a quota, or a setting beyond Kafka. callback: the class that decides from here on; None: Kafka's own rules.
    answer: an answer of the callback. is_exchange: sensors are empty from here on.
    states_all: the next steps state all definitions in force; others are no longer in force.
    text: the text of a `snapshot` row that begins or ends a snapshot. `with_snapshots` replaces the snapshots that a
    replay needs by `begins`, `sensors` (their `states`) and `ends`, and removes the others.
    """

    seq: int
    ts_ms: int
    kind: str
    reason: int = EXACT
    record: QuotaRecord | None = None
    setting: tuple[str, int] | None = None
    callback: str | None = None
    answer: Answer | None = None
    is_exchange: bool = False
    states_all: bool = False
    text: str = ""
    states: tuple[SensorState, ...] = ()


class Steps(Sequence[Step]):
    """Steps of a node in order of `seq`.

    common: the distinct steps, apart from `seq`, `ts_ms` and the value of a definition or the limit of an answer;
    place: for each step, its place in `common`.
    """

    def __init__(
        self, common: Sequence[Step], place: Int32s, seq: Int64s, ts_ms: Int64s, value: Floats
    ) -> None:
        self._common = common
        self._place = place
        self.seq = seq
        self.ts_ms = ts_ms
        self._value = value

    @classmethod
    def of(cls, steps: Iterable[Step]) -> "Steps":
        """Return the given steps, sorted."""
        found = sorted(steps, key=_order)
        value = [math.nan if (value := _value(step)) is None else value for step in found]
        return cls(
            found,
            np.arange(len(found), dtype=np.int32),
            np.array([step.seq for step in found], np.int64),
            np.array([step.ts_ms for step in found], np.int64),
            np.array(value, np.float64),
        )

    @classmethod
    def of_events(cls, events: ControlEvents) -> "dict[int, Steps]":
        """Return the steps of each node, without gaps. Raises `UsageFilesError` for an event that makes no sense."""
        is_step = pc.not_equal(events.common["kind"], "gap").to_numpy()
        some = np.flatnonzero(is_step[events.place])
        some = some[np.lexsort((events.seq[some], events.node_id[some]))]
        node_id, seq, ts_ms, value = (
            events.node_id[some],
            events.seq[some],
            events.ts_ms[some],
            events.value[some],
        )
        used, first, place = np.unique(events.place[some], return_index=True, return_inverse=True)
        common: list[Step | None] = [None] * len(used)
        rows = events.common.take(pa.array(used)).to_pylist()
        for number in np.argsort(first).tolist():  # the first that makes no sense is named
            at = int(first[number])
            common[number] = _step({**rows[number], "node_id": int(node_id[at]), "seq": int(seq[at])})
        nodes, begins = np.unique(node_id, return_index=True)
        found = {}
        for node, ends in zip(nodes.tolist(), pairwise([*begins.tolist(), len(some)]), strict=True):
            here = slice(*ends)
            own, of_node = np.unique(place[here], return_inverse=True)
            steps: list[Any] = [common[number] for number in own.tolist()]
            # Copies, because views would keep the arrays of all nodes in memory.
            numbers = seq[here].copy(), ts_ms[here].copy(), value[here].copy()
            found[node] = cls(steps, of_node.astype(np.int32), *numbers)
        return found

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.seq)

    @overload
    def __getitem__(self, at: int, /) -> Step: ...

    @overload
    def __getitem__(self, at: slice, /) -> "Steps": ...

    def __getitem__(self, at: int | slice, /) -> "Step | Steps":
        """Return a step, or some of them."""
        if isinstance(at, slice):
            return self._some(at)
        step: Step = self._common[self._place[at]]
        own: dict[str, Any] = {"seq": int(self.seq[at]), "ts_ms": int(self.ts_ms[at])}
        if _value(step) is not None:
            value = float(self._value[at])
            if step.record is not None:
                own["record"] = replace(step.record, value=value)
            if step.answer is not None:
                own["answer"] = step.answer._replace(limit=value)
        return replace(step, **own)

    def __iter__(self) -> Iterator[Step]:
        """Yield each."""
        return map(self.__getitem__, range(len(self)))

    def after(self, seq: int) -> "Steps":
        """Return those after a `seq`."""
        return self._some(slice(int(np.searchsorted(self.seq, seq, side="right")), None))

    def where(self, is_wanted: Callable[[Step], bool]) -> list[int]:
        """Return the places of the steps for which `is_wanted` is true. It must not depend on `seq`, time and value."""
        if not len(self):
            return []
        wanted = np.array([is_wanted(step) for step in self._common], bool)
        places: list[int] = np.flatnonzero(wanted[self._place]).tolist()
        return places

    def only(self, places: Sequence[int]) -> "Steps":
        """Return those at some places, in order."""
        return self._some(np.array(places, np.int64))

    def replaced(self, places: Sequence[int], steps: Iterable[Step]) -> "Steps":
        """Return these steps with `steps` in place of those at `places`."""
        more = Steps.of(steps)
        if not len(more) and not len(places):
            return self
        kept = np.ones(len(self), bool)
        kept[np.array(places, np.int64)] = False
        left = self._some(kept)
        common = [*more._common, *left._common]
        place = np.append(more._place, left._place + np.int32(len(more._common)))
        seq = np.append(more.seq, left.seq)
        is_row = np.array([_order(step)[1] for step in common], bool)[place]
        order = np.lexsort((is_row, seq))
        ts_ms, value = np.append(more.ts_ms, left.ts_ms), np.append(more._value, left._value)
        return Steps(common, place[order], seq[order], ts_ms[order], value[order])

    def at_seq(self, seq: int) -> Step | None:
        """Return the step that has a `seq`; None: none has."""
        place = int(np.searchsorted(self.seq, seq))
        return self[place] if place < len(self) and self.seq[place] == seq else None

    def _some(self, which: slice | npt.NDArray[Any]) -> "Steps":
        return Steps(self._common, self._place[which], self.seq[which], self.ts_ms[which], self._value[which])


def _order(step: Step) -> tuple[int, bool]:
    """Return the sort key of a step: a break comes before the row that shows it."""
    return step.seq, step.kind != "break"


def _value(step: Step) -> float | None:
    """Return the value of a definition, or the limit of an answer."""
    if step.record is not None:
        return step.record.value
    return None if step.answer is None else step.answer.limit


def _step(event: Row) -> Step:
    kind, where = event["kind"], {"seq": event["seq"], "ts_ms": 0, "kind": event["kind"]}
    if kind == "callback":
        return Step(**where, callback=event["callback"])
    if kind == "tags":
        return Step(**where, callback=event["callback"], answer=_answer(event))
    if kind == "snapshot":
        return Step(**where, text=event["snapshot"] or "")
    if kind != "quota":
        return Step(**where, states_all=kind == "start")
    key = event["quota_key"]
    if key in WINDOW_SETTINGS:
        return Step(**where, setting=(key, _setting_value(event)))
    if key in EXTENSION_KEYS:
        return Step(**where, record=_extension(event))
    if key not in QUOTA_KEYS:
        raise _error(event, f"quota_key must be a quota type of Kafka or a setting, got {key!r}")
    value = math.nan if event[HAS_VALUE] else None  # each has its own
    return Step(**where, record=QuotaRecord(entity=_entity(event), key=key, value=value))


def _answer(event: Row) -> Answer:
    try:
        return parsed_answer({**event, "quota_value": math.nan if event[HAS_VALUE] else None})
    except ValueError as error:
        raise _error(event, str(error)) from error


def _setting_value(event: Row) -> int:
    value = event[SETTING]
    if value is None or not math.isfinite(value) or value != int(value):
        raise _error(event, f"{event['quota_key']} must be a whole number, got {value!r}")
    try:
        Windows().replaced(event["quota_key"], int(value))
    except ValueError as error:
        raise _error(event, str(error)) from error
    return int(value)


def _extension(event: Row) -> QuotaRecord:
    """Return a setting beyond Kafka: of an entity, or of all, or a number."""
    key, value = event["quota_key"], event[SETTING]
    record = QuotaRecord(entity=_parts(event), key=key, value=value)
    if value is not None and not (0 <= value <= _LARGEST_SETTING and value == int(value)):
        raise _error(event, f"{key} must be a whole number from 0 to {_LARGEST_SETTING}, got {value!r}")
    return record


def _entity(event: Row) -> EntityParts:
    found = _parts(event)
    if not found:
        raise _error(event, f"{event['quota_key']} needs a user, a client id or an ip")
    return found


def _parts(event: Row) -> EntityParts:
    parts = {entity_type: event[column] for entity_type, column in ENTITY_COLUMNS.items()}
    try:
        return entity_parts(
            (entity_type, None if name == _DEFAULT_NAME else desanitize(name))
            for entity_type, name in parts.items()
            if name is not None
        )
    except TidegateError as error:
        raise _error(event, str(error)) from error


def _error(event: Row, reason: str) -> UsageFilesError:
    return UsageFilesError(
        f"{event['kind']} event seq={event['seq']} of node {event['node_id']}: {reason}", hint=DAMAGED_HINT
    )

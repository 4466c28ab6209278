"""Sensors that start from a state in the usage record (`tidegate.pipeline.read.snapshots`) rather than empty.

A state waits until its sensor is used, as a partition has few of them all.
"""

import json
from collections.abc import Iterable, Sequence

import numpy as np

from tidegate.pipeline.errors import DAMAGED_HINT, UsageFilesError
from tidegate.pipeline.layout import MUTATION, REASON, Int64s
from tidegate.pipeline.read.steps import SensorState
from tidegate.pipeline.replay.kernel.certainty import make_unknown
from tidegate.pipeline.replay.plan import INDEX_BY_KEY
from tidegate.pipeline.replay.state.keys import SensorKey, SensorKeys, quota_type_of
from tidegate.pipeline.replay.state.settings import SettingsBeyondKafka
from tidegate.pipeline.replay.state.tables import SensorTable
from tidegate.quota.measure.snapshot import restore_bucket, restore_rate
from tidegate.quota.measure.throttle import UNLIMITED

__all__ = ["StatedSensors"]


class StatedSensors:
    """The states of sensors that were not used since."""

    def __init__(
        self, rates: SensorTable, buckets: SensorTable, beyond: SettingsBeyondKafka, keys: SensorKeys
    ) -> None:
        self._rates, self._buckets, self._beyond, self._keys = rates, buckets, beyond, keys
        self._waiting: dict[SensorKey, tuple[SensorState, int]] = {}
        self._lost: dict[SensorKey, tuple[int, int]] = {}

    def set_states(self, states: Iterable[SensorState], *, sweep: int) -> None:
        """Set sensors to these states, which follow `sweep` sweeps. Raises `UsageFilesError`."""
        for state in states:
            key = self._keys.key(INDEX_BY_KEY[state.quota_key], state.tags)
            number = self._table(key).find_row(key)
            if number is None:
                self._waiting[key] = state, sweep
                self._lost.pop(key, None)
            else:
                self._restore(key, number, state, sweep)

    def note_used(self, keys: Sequence[SensorKey], numbers: Int64s) -> None:
        """Restore the states that wait for sensors, at these rows of their tables. Raises `UsageFilesError`."""
        if not self._waiting:
            return
        for key, number in zip(keys, numbers.tolist(), strict=True):
            waiting = self._waiting.pop(key, None)
            if waiting is not None:
                self._restore(key, number, *waiting)
                if key in self._lost:
                    make_unknown(self._table(key).use[number : number + 1], *self._lost.pop(key))

    def use_all(self) -> None:
        """Make the sensors whose state waits, and restore them. Raises `UsageFilesError`."""
        for table in (self._rates, self._buckets):
            keys = [key for key in self._waiting if self._table(key) is table]
            self.note_used(keys, table.rows_for(keys, np.full(len(keys), UNLIMITED)))

    def lose(self, reason: int, since_ms: int) -> None:
        """Mark the waiting states as not known: up to `since_ms` anything may have been recorded."""
        self._lost = dict.fromkeys(self._waiting, (reason, since_ms))

    def forget(self) -> None:
        """Remove the waiting states: their sensors are new ones."""
        self._waiting.clear()
        self._lost.clear()

    def _restore(self, key: SensorKey, number: int, state: SensorState, sweep: int) -> None:
        values, table = json.loads(state.text), self._table(key)
        last_ms = state.ts_ms + values["recorded_ms"]
        floats, ints = table.restored(number, last_ms=last_ms, sweep=sweep)
        if quota_type_of(key) == MUTATION:
            restore_bucket(values, floats, ints, state.ts_ms)
        elif len(values["samples"]) <= table.samples:
            restore_rate(values, floats, ints, state.ts_ms)
        else:
            raise UsageFilesError(
                f"a snapshot has {len(values['samples'])} samples of a rate, expected {table.samples} at most",
                hint=DAMAGED_HINT,
            )
        if "smooth" in values and quota_type_of(key) != MUTATION:
            self._beyond.restore(number, values["smooth"], state.ts_ms, rates=len(table.use))
        if unknown := values.get("unknown"):  # a broker's own states are known
            table.use[number, REASON:] = unknown

    def _table(self, key: SensorKey) -> SensorTable:
        return self._buckets if quota_type_of(key) == MUTATION else self._rates

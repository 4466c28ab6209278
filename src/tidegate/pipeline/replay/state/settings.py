"""Settings beyond Kafka, of the quotas in force or of a plan: what is set, and what it asks of each sensor.

The arrays have a row for each rate, none where no setting was on that the kernel has to know.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tidegate.pipeline.layout import (
    CHECKS_FIRST,
    FETCH,
    HELD,
    MODE_COLUMNS,
    MUTATION,
    WANTED,
    Floats,
    Int64s,
    State,
    StateBeyondKafka,
)
from tidegate.pipeline.replay.kernel.beyond_kafka import SMOOTH_FLOATS
from tidegate.pipeline.replay.plan import is_beyond_kafka
from tidegate.pipeline.replay.resolved import ResolvedColumns
from tidegate.quota.admin.definitions import QuotaRecord
from tidegate.quota.admin.entity import Tags
from tidegate.quota.admin.entity_selection import EntitySelection
from tidegate.quota.admin.sanitizer import name_of_tag
from tidegate.quota.managers.client_quota import smooth_mode_of
from tidegate.quota.managers.extensions import (
    CLUSTER_WIDE,
    MUTATIONS_SHARED,
    Extensions,
    selection_records,
)
from tidegate.quota.measure.bucket_kernel import BUCKET_INTS
from tidegate.quota.measure.smooth import SmoothMode
from tidegate.quota.measure.snapshot import bucket_snapshot, restore_bucket

__all__ = ["SettingsBeyondKafka"]

_RESTORED = -1  # `HELD` of a bucket that is restored before it is known in which mode it is to be


class SettingsBeyondKafka:
    """The settings that are in force. is_needed: a setting was applied that the kernel has to know from there on."""

    def __init__(self, records: Iterable[QuotaRecord] = ()) -> None:
        self.is_needed = False
        self.floats: Floats = np.zeros((0, SMOOTH_FLOATS))
        self.ints: Int64s = np.zeros((0, BUCKET_INTS), np.int64)
        self.modes: Int64s = np.zeros((0, MODE_COLUMNS), np.int64)
        self._extensions = Extensions()
        self._numbers: dict[SmoothMode, int] = {}
        for record in records:
            self.apply(record)

    @property
    def debt_max_s(self) -> int:
        """The deepest debt of a bucket of permits, in seconds; 0: no bound."""
        return self._extensions.debt_max_s

    def apply(self, record: QuotaRecord) -> bool:
        """Apply a setting; return False if the record is not a setting."""
        if not self._extensions.apply(record):
            return False
        self.is_needed |= is_beyond_kafka(record)
        return True

    def cluster_wide_records(self) -> list[QuotaRecord]:
        """Return the records that make those quotas cluster-wide that are."""
        records = list(selection_records(CLUSTER_WIDE, self._extensions.cluster_wide))
        if self._extensions.mutations_shared:
            records.append(QuotaRecord(entity=(), key=MUTATIONS_SHARED, value=1.0))
        return records

    def clear_cluster_wide(self) -> bool:
        """Make every quota one of each broker; return whether any was cluster-wide."""
        was_any = self._extensions.cluster_wide.any or self._extensions.mutations_shared
        self._extensions.cluster_wide = EntitySelection()
        self._extensions.mutations_shared = False
        return was_any

    def are_cluster_wide(self, index: int, found: ResolvedColumns) -> npt.NDArray[np.bool_]:
        """Return which clients have a limit of a quota type that is over all brokers, or over all gateways."""
        if index == MUTATION:
            return np.full(len(found.row), self._extensions.mutations_shared)
        if not self._extensions.cluster_wide.any:
            return np.zeros(len(found.row), bool)
        return np.array([self._is_cluster_wide(_named(each)) for each in found.tags], bool)

    def _is_cluster_wide(self, names: Mapping[str, str]) -> bool:
        user, client_id = name_of_tag(names.get("user", "")), names.get("client-id", "")
        return self._extensions.cluster_wide.selects(user, client_id)

    def clear(self) -> None:
        """Remove all settings."""
        self._extensions = Extensions()

    def forget(self) -> None:
        """Make every bucket a new one."""
        self.floats.fill(0.0)
        self.ints.fill(0)
        self.modes[:, HELD] = 0

    def extended(self, state: State) -> Any:
        """Return the state of the kernel that is needed: `state`, or `StateBeyondKafka`."""
        if not self.is_needed:
            return state
        return StateBeyondKafka(*state, self.floats, self.ints, self.modes)

    def choose(self, index: int, rate: int, tags: Tags | str, *, rates: int) -> bool:
        """Set the mode for the next use of the row `rate` of `rates`; return whether that mode is smooth."""
        self._make_room(rates)
        mode = smooth_mode_of(self._extensions, _named(tags)) if self._extensions.smooth.any else None
        if mode is None:
            self.modes[rate, WANTED] = 0
            return False
        number = self._numbers.setdefault(mode, len(self._numbers) + 1)
        is_asked_first = index == FETCH and not mode.observed
        self.modes[rate, WANTED : CHECKS_FIRST + 1] = (
            number,
            mode.burst_s,
            mode.debt_max_s,
            mode.observed,
            is_asked_first,
        )
        return True

    def snapshot(self, rate: int) -> dict[str, Any] | None:
        """Return what the bucket of a rate holds, as of time 0; None: it has none."""
        if rate >= len(self.modes) or self.modes[rate, HELD] == 0:
            return None
        return bucket_snapshot(self.floats[rate].tolist(), self.ints[rate].tolist(), 0)

    def restore(self, rate: int, snapshot: dict[str, Any], now_ms: int, *, rates: int) -> None:
        """Restore the bucket of the row `rate` of `rates` from a snapshot of `now_ms`."""
        self._make_room(rates)
        self.floats[rate] = 0.0
        self.ints[rate] = 0
        restore_bucket(snapshot, self.floats[rate], self.ints[rate], now_ms)
        self.modes[rate, HELD] = self.modes[rate, WANTED] or _RESTORED

    def _make_room(self, rates: int) -> None:
        if len(self.modes) < rates:
            more = ((0, rates - len(self.modes)), (0, 0))
            self.floats, self.ints = np.pad(self.floats, more), np.pad(self.ints, more)
            self.modes = np.pad(self.modes, more)


def _named(tags: Tags | str) -> Mapping[str, str]:
    if isinstance(tags, str):
        found: dict[str, str] = json.loads(tags)
        return found
    return dict(zip(("user", "client-id"), tags, strict=True))

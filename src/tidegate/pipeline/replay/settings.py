"""Settings beyond Kafka while the quotas in force are replayed: what is set, and what it asks of each sensor.

The arrays have a row for each rate, none where no setting was on that the kernel has to know.
"""

import json
from collections.abc import Mapping

import numpy as np

from tidegate.pipeline.layout import CHECKS_FIRST, FETCH, HELD, MODE_COLUMNS, WANTED, Floats, Int64s
from tidegate.pipeline.replay.beyond_kafka import SMOOTH_FLOATS
from tidegate.quota.admin.definitions import QuotaRecord
from tidegate.quota.admin.entity import Tags
from tidegate.quota.managers.client_quota import smooth_mode_of
from tidegate.quota.managers.extensions import EXEMPT_CLIENTS, THROTTLE_MAX_MS, Extensions
from tidegate.quota.measure.bucket_kernel import BUCKET_INTS
from tidegate.quota.measure.smooth import SmoothMode

__all__ = ["SettingsBeyondKafka"]

_IN_THE_ROWS = (EXEMPT_CLIENTS, THROTTLE_MAX_MS)  # of whom rows say all that the kernel needs


class SettingsBeyondKafka:
    """What is set. is_needed: something was set, so that from there on the kernel has to know it."""

    def __init__(self) -> None:
        self.is_needed = False
        self.floats: Floats = np.zeros((0, SMOOTH_FLOATS))
        self.ints: Int64s = np.zeros((0, BUCKET_INTS), np.int64)
        self.modes: Int64s = np.zeros((0, MODE_COLUMNS), np.int64)
        self._extensions = Extensions()
        self._numbers: dict[SmoothMode, int] = {}

    @property
    def debt_max_s(self) -> int:
        """The deepest debt of a bucket of permits, in seconds; 0: no bound."""
        return self._extensions.debt_max_s

    def apply(self, record: QuotaRecord) -> bool:
        """Put a setting in force; False where it is none."""
        if not self._extensions.apply(record):
            return False
        self.is_needed |= record.value is not None and record.key not in _IN_THE_ROWS
        return True

    def clear(self) -> None:
        """Have nothing set."""
        self._extensions = Extensions()

    def forget(self) -> None:
        """Make every bucket a new one."""
        self.floats.fill(0.0)
        self.ints.fill(0)
        self.modes[:, HELD] = 0

    def choose(self, index: int, rate: int, tags: Tags | str, *, rates: int) -> None:
        """Say in which mode the row `rate` of `rates` is to be when it is used next."""
        if len(self.modes) < rates:
            more = ((0, rates - len(self.modes)), (0, 0))
            self.floats, self.ints = np.pad(self.floats, more), np.pad(self.ints, more)
            self.modes = np.pad(self.modes, more)
        mode = smooth_mode_of(self._extensions, _named(tags)) if self._extensions.smooth.any else None
        if mode is None:
            self.modes[rate, WANTED] = 0
            return
        number = self._numbers.setdefault(mode, len(self._numbers) + 1)
        is_asked_first = index == FETCH and not mode.observed
        self.modes[rate, WANTED : CHECKS_FIRST + 1] = (
            number,
            mode.burst_s,
            mode.debt_max_s,
            mode.observed,
            is_asked_first,
        )


def _named(tags: Tags | str) -> Mapping[str, str]:
    if isinstance(tags, str):
        found: dict[str, str] = json.loads(tags)
        return found
    return dict(zip(("user", "client-id"), tags, strict=True))

"""The range of time whose requests an import takes; a record keeps the range of its first import.

Lines are known by the digest of their file, so requests that one import leaves out are not found again by a later one
with another range. The manifest therefore keeps the range, and later imports must name it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.kafka_log.merge import PlacedEvent
from tidegate.usage.files import HOUR_US

__all__ = ["TimeRange", "time_text"]

_US_PER_MS = 1000
_ALWAYS_US = -(2**62)
_BEHIND_START = (
    -1
)  # the line of quotas that were set before the range: behind `events_before`, before all requests


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """Requests from `from_ms` on and before `to_ms`; None: no limit.

    >>> half = TimeRange(from_ms=1_800_000, to_ms=3_600_000)
    >>> half.holds(1_800_000_000), half.holds(3_600_000_000), half.may_hold_hour(1), str(half)
    (True, False, False, '--from 1970-01-01T00:30:00Z --to 1970-01-01T01:00:00Z')
    """

    from_ms: int | None = None
    to_ms: int | None = None

    def holds(self, decided_us: int) -> bool:
        """Return whether a time is in the range."""
        return self._from_us <= decided_us and (self.to_ms is None or decided_us < self.to_ms * _US_PER_MS)

    def may_hold_hour(self, hour: int) -> bool:
        """Return whether some time of an hour, counted since 1970, is in the range."""
        first_us = hour * HOUR_US
        return self._from_us < first_us + HOUR_US and (
            self.to_ms is None or first_us < self.to_ms * _US_PER_MS
        )

    def times_in(self, decided_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return those of the times that are in the range."""
        return decided_us[self._mask(decided_us)]

    def requests_in(self, requests: pa.Table) -> pa.Table:
        """Return the rows whose `decided_us` is in the range."""
        return requests.filter(pa.array(self._mask(requests.column("decided_us").to_numpy())))

    def quotas_before(self, events: Sequence[PlacedEvent], first_us: int) -> list[PlacedEvent]:
        """Return the quotas that were set before the range, each with its last value, placed before `first_us`."""
        latest: dict[tuple[object, ...], PlacedEvent] = {}
        for event in sorted(events, key=lambda event: (event.decided_us, event.line)):
            if event.columns["kind"] == "quota" and event.decided_us < self._from_us:
                names = (event.columns.get(name) for name in _QUOTA_NAMES)
                latest[*names] = PlacedEvent(first_us, _BEHIND_START, True, event.columns)
        return list(latest.values())

    @property
    def _from_us(self) -> int:
        return _ALWAYS_US if self.from_ms is None else self.from_ms * _US_PER_MS

    def _mask(self, decided_us: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        mask = decided_us >= self._from_us
        return mask if self.to_ms is None else mask & (decided_us < self.to_ms * _US_PER_MS)

    def __str__(self) -> str:
        """Return the options of the command that name this range; no text for no limits."""
        ends = (("--from", self.from_ms), ("--to", self.to_ms))
        return " ".join(f"{option} {time_text(at_ms)}" for option, at_ms in ends if at_ms is not None)


_QUOTA_NAMES = ("quota_user", "quota_client_id", "quota_ip", "quota_key")


def time_text(at_ms: int) -> str:
    """Return a time as the options of ranges take it.

    >>> time_text(1_700_000_000_500)
    '2023-11-14T22:13:20.500Z'
    """
    spec = "milliseconds" if at_ms % 1000 else "seconds"
    at = datetime.fromtimestamp(at_ms // 1000, UTC).replace(microsecond=at_ms % 1000 * 1000)
    return at.isoformat(timespec=spec).replace("+00:00", "Z")

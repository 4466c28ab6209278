"""Totals of the first groups of a node: tables are added to them as they come, and nothing is sorted or merged.

A table of 100,000 rows counts nearly as many buckets as it has rows, so merging the counts of all tables took a sixth
of the time of usage. Totals hold each bucket of a group, 12 KB, so only the first groups have them.
"""

from threading import Lock

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.pipeline.errors import check_sum
from tidegate.pipeline.rollup.kernel import (
    CODES,
    FIRST_TS_MS,
    LAST_TS_MS,
    REQUESTS,
    SENSORS,
    SUMS,
    THROTTLE,
    THROTTLED,
    UsageKernel,
)
from tidegate.pipeline.rollup.merging import list_columns
from tidegate.pipeline.rollup.percentiles import BUCKETS
from tidegate.quota.measure.throttle import MAX_INT64

__all__ = ["GROUPS_WITH_TOTALS", "Totals", "no_sums"]

GROUPS_WITH_TOTALS = 1 << 12
"""Groups that have totals, which take at most 50 MB."""


Int64s = npt.NDArray[np.int64]
Int16s = npt.NDArray[np.int16]


class Totals:
    """Sums, peaks and counts by number of a group. Several threads may add to them."""

    def __init__(self) -> None:
        self._sums = no_sums(GROUPS_WITH_TOTALS)
        self._peaks = np.zeros((GROUPS_WITH_TOTALS, SENSORS))
        self._counts = np.zeros(GROUPS_WITH_TOTALS * CODES, np.int64)  # memory is taken as it is used
        self._lock = Lock()

    def add_sums(self, group: Int64s, sums: Int64s) -> None:
        """Add the sums of groups, each at most once. Raises `UsageFilesError` where a sum has no room in 64 bits."""
        with self._lock:
            before = self._sums[group]
            added = before + sums
            # Checked in doubles, because a sum of integers would wrap without an error.
            check_sum((before[:, :FIRST_TS_MS].astype(np.float64) + sums[:, :FIRST_TS_MS]).max())
            added[:, FIRST_TS_MS] = np.minimum(before[:, FIRST_TS_MS], sums[:, FIRST_TS_MS])
            added[:, LAST_TS_MS] = np.maximum(before[:, LAST_TS_MS], sums[:, LAST_TS_MS])
            self._sums[group] = added

    def count(self, passes: UsageKernel, buckets: Int16s, group: Int64s) -> None:
        """Count the buckets of rows, as `kernel.add_up` marks them. group: of each row."""
        with self._lock:
            passes.count_in_place(buckets, group, self._counts)

    def add_peaks(self, group: Int64s, peaks: npt.NDArray[np.float64]) -> None:
        """Raise the peaks of groups to those of a table."""
        self._peaks[group] = np.maximum(self._peaks[group], peaks)

    def taken(self) -> tuple[Int64s, Int64s, npt.NDArray[np.float64], dict[str, pa.Array]]:
        """Return the numbers of the groups that have rows, and their sums, peaks and `merging.COUNTS`."""
        group = np.flatnonzero(self._sums[:, LAST_TS_MS] >= 0)
        # The throttle time of each request that was not throttled is 0.
        self._counts[group * CODES + THROTTLE * BUCKETS] = (
            self._sums[group, REQUESTS] - self._sums[group, THROTTLED]
        )
        place = np.flatnonzero(self._counts[: (group.max(initial=-1) + 1) * CODES])
        number, code = np.divmod(place, CODES)
        columns = list_columns(np.searchsorted(group, number), code, self._counts[place], rows=len(group))
        return group, self._sums[group], self._peaks[group], columns


def no_sums(cells: int) -> Int64s:
    """Return the sums of cells without rows: [cell, `kernel.SUMS`]."""
    sums: Int64s = np.zeros((cells, SUMS), np.int64)
    sums[:, FIRST_TS_MS], sums[:, LAST_TS_MS] = MAX_INT64, -MAX_INT64
    return sums

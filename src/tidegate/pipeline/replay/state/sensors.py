"""The sensors of one plan on one node, and how far they are known (`kernel.certainty`).

Three families lie beside one another: rates, token buckets of permits, and the buckets of smooth mode. A state that was
stated or carried waits in `stated` until its sensor is used.
"""

import numpy as np
import numpy.typing as npt

from tidegate.config.windows import Windows
from tidegate.pipeline.layout import COLD_START, EXACT, FETCH, MUTATION, PRODUCE, Int64s
from tidegate.pipeline.replay.kernel.certainty import FOREVER
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.replay.resolved import ResolvedColumns
from tidegate.pipeline.replay.state.keys import Clients, SensorKeys
from tidegate.pipeline.replay.state.settings import SettingsBeyondKafka
from tidegate.pipeline.replay.state.stated import StatedSensors
from tidegate.pipeline.replay.state.tables import SensorTable
from tidegate.quota.measure.bucket_kernel import BUCKET_FLOATS, BUCKET_INTS
from tidegate.quota.measure.rate_kernel import FLOAT_SLOTS, INT_SLOTS
from tidegate.quota.measure.window import QuotaWindow

__all__ = ["Sensors"]


class Sensors:
    """Rates, buckets and the states that wait for them.

    reason: why sensors are not known since the last start, gap or snapshot; `EXACT`: they are.
    """

    def __init__(self, plan: Plan) -> None:
        self.windows = plan.windows
        self.rates = SensorTable(**_rate_widths(plan.windows.rate))
        self.buckets = SensorTable(floats=BUCKET_FLOATS, ints=BUCKET_INTS)
        self.beyond = SettingsBeyondKafka(plan.records or ())
        self.keys = SensorKeys()
        self.stated = StatedSensors(self.rates, self.buckets, self.beyond, self.keys)
        self.reason = EXACT

    def open(
        self, index: int, clients: Clients, found: ResolvedColumns
    ) -> tuple[Int64s, npt.NDArray[np.bool_]]:
        """Return the rows of clients' sensors, made if they are not there, and which are in smooth mode."""
        keys = self.keys.of(index, clients, found)
        table = self.buckets if index == MUTATION else self.rates
        rows = table.rows_for(keys, found.bounds)
        are_smooth = np.zeros(len(rows), bool)
        if self.beyond.is_needed and index in (PRODUCE, FETCH):
            are_smooth[:] = [
                self.beyond.choose(index, row, tags, rates=len(self.rates.use))
                for row, tags in zip(rows.tolist(), found.tags, strict=True)
            ]
        self.stated.note_used(keys, rows)
        return rows, are_smooth

    def set_windows(self, windows: Windows) -> None:
        """Measure in other windows from here on; the sensors begin anew."""
        self.windows = windows
        self.rates.resize(**_rate_widths(windows.rate))
        self.forget()

    def forget(self) -> None:
        """Reset all sensors to new ones."""
        self.rates.forget()
        self.buckets.forget()
        self.beyond.forget()
        self.stated.forget()

    def reset_to_new(self) -> None:
        """Reset all sensors to new ones, of which everything is known from here on."""
        self.rates.reset_to_new()
        self.buckets.reset_to_new()
        self.forget()

    def lose(self, reason: int, *, since_ms: int) -> None:
        """Mark all sensors as not known: anything may have been recorded up to `since_ms`."""
        self.reason = reason
        self._make_unknown(reason, since_ms)
        self.stated.lose(reason, since_ms)

    def lose_rates(self, reason: int, *, since_ms: int) -> None:
        """Mark all rates as not known up to `since_ms`; buckets of permits stay as they are."""
        self.rates.make_unknown(reason, since_ms)
        self.stated.lose(reason, since_ms)

    def begin_continued(self, reason: int, *, sensors_reason: int, since_ms: int) -> None:
        """Begin as a replay of the hours before has ended. sensors_reason, since_ms: of sensors without a state."""
        self.reason = reason
        if sensors_reason != EXACT:
            self._make_unknown(sensors_reason, since_ms)

    def begin_stating(self) -> None:
        """Reset all sensors: a snapshot begins to state those that hold something."""
        self.forget()
        self.lose(self.reason or COLD_START, since_ms=FOREVER)

    def end_stating(self) -> None:
        """Mark the sensors that no snapshot has stated as new ones, which are known."""
        self.reason = EXACT
        self.rates.make_stated()
        self.buckets.make_stated()

    def _make_unknown(self, reason: int, since_ms: int) -> None:
        self.rates.make_unknown(reason, since_ms)
        self.buckets.make_unknown(reason, since_ms)


def _rate_widths(window: QuotaWindow) -> dict[str, int]:
    slots = window.samples + 1
    return {"floats": FLOAT_SLOTS + slots, "ints": INT_SLOTS + 2 * slots}

"""State that the replay of one plan keeps from row to row on one node, and the arrays that the kernel works on."""

from typing import Any

import numpy as np

from tidegate.pipeline.layout import (
    BUCKET_SAMPLES,
    BUCKET_WINDOW_MS,
    CLUSTER_WIDE,
    COLD_START,
    DEBT_MAX_S,
    EXACT,
    FINDS_LIMITS,
    IMPORTED,
    MEASURES,
    MUTATION,
    OBSERVES,
    PERMITS_REASON,
    QUOTAS_REASON,
    SAMPLES,
    SETTINGS,
    WINDOW_MS,
    Int64s,
    State,
)
from tidegate.pipeline.replay.kernel.certainty import FOREVER
from tidegate.pipeline.replay.names import ClientNames
from tidegate.pipeline.replay.plan import QUOTA_TYPES, Definitions, Plan
from tidegate.pipeline.replay.state.lookup import Lookup, SharedWanted
from tidegate.pipeline.replay.state.permits import PendingPermits
from tidegate.pipeline.replay.state.searched import SearchedSensors, SearchLookup
from tidegate.pipeline.replay.state.sensors import Sensors

__all__ = ["PlanState"]


class PlanState:
    """The accounts of clients, the sensors, and the permits of requests in progress; empty at first."""

    def __init__(
        self,
        plan: Plan,
        *,
        names: ClientNames,
        is_imported: bool,
        is_merged: bool,
        definitions: Definitions | None,
        wanted: SharedWanted | None,
        searched: SearchedSensors | None = None,
    ) -> None:
        """searched: the sensors of a plan with a rung."""
        self.is_in_force = plan.is_in_force
        reason = EXACT
        if plan.is_in_force:  # until the first start it is not known which quotas are
            reason = IMPORTED if is_imported else COLD_START
        self.sensors = Sensors(plan)
        if is_imported or is_merged:
            self.sensors.lose(IMPORTED if is_imported else CLUSTER_WIDE, since_ms=FOREVER)
        options: dict[str, Any] = {
            "names": names,
            "sensors": self.sensors,
            "definitions": definitions,
            "reason": reason,
        }
        self.lookup = (
            Lookup(plan, wanted=wanted, **options)
            if searched is None
            else SearchLookup(plan, searched=searched, **options)
        )
        self.permits = PendingPermits()
        self.settings = np.zeros(SETTINGS, np.int64)
        self.settings[MEASURES] = plan.measures
        self.settings[OBSERVES] = plan.is_in_force
        self.settings[FINDS_LIMITS] = plan.measures or plan.rung is not None

    def arrays(self, sweeps: Int64s) -> State:
        """Return what the kernel works on as it is now; it changes with every row."""
        lookup, sensors, settings = self.lookup, self.sensors, self.settings
        rate, mutation = sensors.windows.rate, sensors.windows.mutation
        settings[: len(QUOTA_TYPES)] = [lookup.is_enabled(index) for index in range(len(QUOTA_TYPES))]
        settings[QUOTAS_REASON] = lookup.reason
        settings[DEBT_MAX_S] = sensors.beyond.debt_max_s
        asks = self.is_in_force or lookup.definitions.is_enabled(MUTATION)
        settings[PERMITS_REASON] = sensors.reason if asks else EXACT
        settings[SAMPLES], settings[WINDOW_MS] = rate.samples, rate.window_ms
        settings[BUCKET_SAMPLES], settings[BUCKET_WINDOW_MS] = mutation.samples, mutation.window_ms
        return State(
            settings=settings,
            account_of=lookup.account_of,
            accounts=lookup.accounts.accounts,
            bounds=lookup.accounts.bounds,
            tallies=lookup.accounts.tallies,
            peaks=lookup.accounts.peaks,
            rate_floats=sensors.rates.floats,
            rate_ints=sensors.rates.ints,
            rate_use=sensors.rates.use,
            bucket_floats=sensors.buckets.floats,
            bucket_ints=sensors.buckets.ints,
            bucket_use=sensors.buckets.use,
            sweeps=sweeps,
            pending=self.permits.table,
        )

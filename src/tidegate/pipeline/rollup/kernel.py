"""The passes over the rows of a node that add up usage, compiled by numba.

A *group* is the rows with equal values in the columns that usage is grouped by. It has one sensor each for bytes
produced, bytes delivered and request time, which measure like the sensors of quotas (B§1.3, 1.4, 4.3). A *cell* is a
group in one chunk, or in one minute of a chunk, and has its own sums. Each pass does one thing, which is faster than
all at once. `count_buckets` processes the rows of a cell together, so that its counters stay in the cache. `measure`
processes rows in their order, because a sensor that is used twice in a row waits for its last write. `count_in_place`
counts into totals, whose few groups stay in the cache. All functions are written for numba, as
`replay.kernel.open_loop`.
"""

import math
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tidegate.pipeline.replay.kernel.compiled import compile_cached, compile_together, compiled, made_once
from tidegate.pipeline.rollup import percentiles
from tidegate.pipeline.rollup.percentiles import BUCKETS, bucket_of
from tidegate.quota.managers.request import PERCENT_PER_NS
from tidegate.quota.measure import rate_kernel, throttle
from tidegate.quota.measure.engine_kernel import compile_kernel
from tidegate.quota.measure.rate_kernel import (
    CERTAINTY,
    OLDEST,
    OTHERS,
    SUM,
    rate_configure,
    rate_decide,
    rate_measure,
    rate_record,
)
from tidegate.quota.measure.throttle import MAX_INT64, MS_PER_S

__all__ = ["CODES", "KERNEL_MODULES", "MEASURES", "SENSORS", "SUMS", "Marks", "Sensors", "UsageKernel", "UsageRows",
           "measure", "usage_kernel"]  # fmt: skip

# What a row is.
REQUEST, NETWORK, MUTATION, RESTART, OTHER = range(5)

# Columns of sums, in the order of `schemas.USAGE_SUMS` and `schemas.TOPIC_SUMS`, then the first and last time.
REQUESTS, THROTTLED, REQUEST_BYTES, RESPONSE_BYTES, PRODUCE_BYTES, FETCH_BYTES, HANDLER_NS, NETWORK_NS = (
    range(8)
)
MUTATIONS, REJECTED, PRODUCE_MS, FETCH_MS, REQUEST_MS, MUTATION_MS = range(8, 14)
SEVERAL_REQUESTS, SEVERAL_BYTES, FIRST_TS_MS, LAST_TS_MS = range(14, 18)
SUMS = 18

# Kinds of sensors, and of peaks.
PRODUCE, FETCH, TIME = range(3)
SENSORS = 3

# What a row charges: a bit for each kind of sensor, and one for the time of its handler.
CHARGES_PRODUCE, CHARGES_FETCH, CHARGES_TIME, CHARGES_HANDLER = 1, 2, 4, 8

# What percentiles are of.
HANDLER, THROTTLE, SIZE = range(3)
MEASURES = 3
CODES = MEASURES * BUCKETS
"""A code is a measure and its bucket."""

_NOTHING = -1

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Int16s = npt.NDArray[np.int16]
Int8s = npt.NDArray[np.int8]
Doubles = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


class UsageRows(NamedTuple):
    """Rows of one node in order of `seq`: one array per column of the usage record, nulls as 0."""

    kind: Int8s
    cell: Int64s
    group: Int64s
    ts_ms: Int64s
    request_bytes: Int64s
    response_bytes: Int64s
    produce_bytes: Int64s
    fetch_bytes: Int64s
    handler_ns: Int64s
    network_ns: Int64s
    mutations: Int64s
    throttles_ms: Int32s  # [produce, fetch, request, mutation; row]
    rejected: Flags
    observed_only: Flags
    exempt: Flags
    has_several: Flags  # it has records of several topics


class Marks(NamedTuple):
    """The marks that `add_up` sets on each row for the passes after it."""

    charges: Int8s
    starts: Int32s  # how often the node has started before
    buckets: Int16s  # [measure, row]; `_NOTHING`: it is not counted


class Sensors(NamedTuple):
    """The sensors of a node. Their bounds are infinite: they decide nothing, and measure rates that may be peaks."""

    sensor_of: Int32s  # [kind of sensor, group]
    floats: Doubles  # [sensor, ...]: the engine's flat state
    ints: Int64s
    start: Int64s  # number of the start of the node before its last use
    cell: Int64s  # the cell to which `best` belongs; used with steps of time
    best: Doubles


Window = tuple[int, int, float]
"""Samples of a rate, their ms, and the seconds that it is divided by at least, even when the clock steps back."""


class UsageKernel(NamedTuple):
    """The passes, compiled."""

    add_up: Callable[[UsageRows, Int64s, Marks, Flags, int], tuple[int, int]]
    sort_rows: Callable[[Int8s, Int64s, Int64s, Int32s], None]
    count_buckets: Callable[[Int16s, Int32s, Int64s, Int64s, Int64s, Int64s, Int64s, Int64s], None]
    count_in_place: Callable[[Int16s, Int64s, Int64s], None]
    measure: Callable[[Sensors, UsageRows, Marks, Doubles, Window, bool], None]


@made_once
def usage_kernel() -> UsageKernel:
    """Return the passes compiled."""
    engine = vars(compile_kernel(compiled))
    names = {**vars(percentiles), **globals(), **engine}
    names |= compile_together((), {**vars(rate_kernel), **engine}, inlined=(rate_record, rate_decide))
    names |= compile_together((), names, inlined=(bucket_of, _use, _measure))
    made = (
        compile_cached(each, names, modules=KERNEL_MODULES)
        for each in (add_up, sort_rows, count_buckets, count_in_place, measure)
    )
    return UsageKernel(*made)


def add_up(rows: UsageRows, sums: Int64s, marks: Marks, used: Flags, starts: int) -> tuple[int, int]:
    """Add the rows to the sums of their cells, and mark them.

    used: takes which groups use a sensor, [kind of sensor, group]. starts: how often the node has started before.
    Returns all bits that occur in what is added up, and how often the node has started after the last row.
    """
    bits = 0
    for at in range(len(rows.kind)):
        kind = rows.kind[at]
        marks.charges[at] = 0
        marks.starts[at] = starts
        if kind != REQUEST:
            for place in range(MEASURES):
                marks.buckets[place, at] = _NOTHING
            if kind == RESTART:
                starts += 1
            if kind >= RESTART:
                continue
        cell, group, ts_ms = rows.cell[at], rows.group[at], rows.ts_ms[at]
        network_ns, mutations = rows.network_ns[at], rows.mutations[at]
        request_bytes, response_bytes = rows.request_bytes[at], rows.response_bytes[at]
        produce_bytes, fetch_bytes = rows.produce_bytes[at], rows.fetch_bytes[at]
        handler_ns = rows.handler_ns[at]
        bits |= network_ns | mutations | request_bytes | response_bytes
        bits |= produce_bytes | fetch_bytes | handler_ns
        of_cell = sums[cell]
        of_cell[FIRST_TS_MS] = min(of_cell[FIRST_TS_MS], ts_ms)
        of_cell[LAST_TS_MS] = max(of_cell[LAST_TS_MS], ts_ms)
        if kind == MUTATION:
            of_cell[REJECTED if rows.rejected[at] else MUTATIONS] += mutations
            continue
        of_cell[NETWORK_NS] += network_ns
        charges = 0
        if not rows.exempt[at]:
            charges = CHARGES_TIME
        if kind == REQUEST:
            of_cell[REQUESTS] += 1
            of_cell[REQUEST_BYTES] += request_bytes
            of_cell[RESPONSE_BYTES] += response_bytes
            of_cell[PRODUCE_BYTES] += produce_bytes
            of_cell[HANDLER_NS] += handler_ns
            throttle_ms = 0
            is_taken_back = False
            is_any = rows.throttles_ms[0, at] | rows.throttles_ms[1, at]
            is_any |= rows.throttles_ms[2, at] | rows.throttles_ms[3, at]
            if is_any != 0 and not rows.observed_only[at]:
                for place in range(4):
                    one_ms = max(0, rows.throttles_ms[place, at])
                    of_cell[PRODUCE_MS + place] += one_ms
                    throttle_ms = max(throttle_ms, one_ms)
                is_taken_back = max(rows.throttles_ms[1, at], rows.throttles_ms[2, at]) > 0
            if throttle_ms > 0:
                of_cell[THROTTLED] += 1
            if not is_taken_back:
                of_cell[FETCH_BYTES] += fetch_bytes
            if rows.has_several[at]:
                of_cell[SEVERAL_REQUESTS] += 1
                of_cell[SEVERAL_BYTES] += produce_bytes + (0 if is_taken_back else fetch_bytes)
            if charges != 0:
                charges |= CHARGES_HANDLER
            # Without branches: about as many rows have bytes as have none, in no order.
            has_produced = produce_bytes != 0
            charges |= CHARGES_PRODUCE * has_produced
            used[PRODUCE, group] |= has_produced
            has_fetched = (fetch_bytes != 0) & (not is_taken_back)
            charges |= CHARGES_FETCH * has_fetched
            used[FETCH, group] |= has_fetched
            marks.buckets[HANDLER, at] = bucket_of(handler_ns)
            marks.buckets[SIZE, at] = bucket_of(request_bytes)
            # Those of 0 are the other requests.
            marks.buckets[THROTTLE, at] = bucket_of(throttle_ms) if throttle_ms > 0 else _NOTHING
        marks.charges[at] = charges
        if charges & CHARGES_TIME:
            used[TIME, group] = True
    return bits, starts


def sort_rows(kind: Int8s, key: Int64s, begins: Int64s, order: Int32s) -> None:
    """Sort the positions of rows by key; rows with the same key keep their order. Kinds from `RESTART` on are left out.

    begins: two elements more than there are keys, all 0. Receives the position in `order` where each key begins, and
    the position after the last key.
    """
    # Counted two places ahead: `begins[key + 1]` then is where the key begins, moves on with each row that is placed,
    # and ends where the next key begins.
    for at in range(len(kind)):
        if kind[at] < RESTART:
            begins[key[at] + 2] += 1
    for at in range(2, len(begins)):
        begins[at] += begins[at - 1]
    for at in range(len(kind)):
        if kind[at] < RESTART:
            place = key[at] + 1
            order[begins[place]] = at
            begins[place] += 1


def count_buckets(
    buckets: Int16s,
    order: Int32s,
    begins: Int64s,
    sums: Int64s,
    counted: Int64s,
    codes: Int64s,
    counts: Int64s,
    ends: Int64s,
) -> None:
    """Count values for percentiles, cell by cell.

    order, begins: the rows by cell. counted: a number for each bucket, all 0. codes, counts: receive the codes (a
    measure and its bucket) that occur in each cell, increasing, and how often; ends: receives the end of each cell.
    """
    made = 0
    for cell in range(len(ends)):
        throttled = sums[cell, THROTTLED]
        for kind in range(MEASURES):
            low, high = BUCKETS, -1
            if kind != THROTTLE or throttled > 0:
                for place in range(begins[cell], begins[cell + 1]):
                    bucket = buckets[kind, order[place]]
                    if bucket >= 0:
                        counted[bucket] += 1
                        low, high = min(low, bucket), max(high, bucket)
            if kind == THROTTLE and sums[cell, REQUESTS] > throttled:
                counted[0] += sums[cell, REQUESTS] - throttled
                low, high = 0, max(high, 0)
            for bucket in range(low, high + 1):
                if counted[bucket] > 0:
                    codes[made] = kind * BUCKETS + bucket
                    counts[made] = counted[bucket]
                    counted[bucket] = 0
                    made += 1
        ends[cell] = made


def count_in_place(buckets: Int16s, group: Int64s, counts: Int64s) -> None:
    """Count values for percentiles by group and code, in `counts`; throttle times of 0 are not counted."""
    for at in range(len(group)):
        for kind in range(MEASURES):
            bucket = buckets[kind, at]
            if bucket >= 0:
                counts[group[at] * CODES + kind * BUCKETS + bucket] += 1


def measure(
    sensors: Sensors, rows: UsageRows, marks: Marks, peaks: Doubles, window: Window, has_steps: bool
) -> None:
    """Record what the rows charge, and keep the largest rate that is measured, by cell.

    has_steps: a group has several cells. Otherwise a peak counts only if it is above those of all chunks before.
    """
    for at in range(len(marks.charges)):
        charges, ts_ms = marks.charges[at], rows.ts_ms[at]
        if charges & CHARGES_TIME:
            rate, network = _use(sensors, rows, marks, at, TIME, window), rows.network_ns[at] * PERCENT_PER_NS
            floats, ints = sensors.floats[rate], sensors.ints[rate]
            if charges & CHARGES_HANDLER:
                # Not `rate_record`: what is checked at the same time would look through the samples once more.
                rate_decide(floats, ints, network, ts_ms)
                value = rows.handler_ns[at] * PERCENT_PER_NS
                _measure(sensors, rows.cell[at], ts_ms, TIME, rate, value, peaks, window, has_steps)
            else:
                rate_record(floats, ints, network, ts_ms)
        if charges & CHARGES_FETCH:
            rate, value = _use(sensors, rows, marks, at, FETCH, window), float(rows.fetch_bytes[at])
            _measure(sensors, rows.cell[at], ts_ms, FETCH, rate, value, peaks, window, has_steps)
        if charges & CHARGES_PRODUCE:
            rate, value = _use(sensors, rows, marks, at, PRODUCE, window), float(rows.produce_bytes[at])
            _measure(sensors, rows.cell[at], ts_ms, PRODUCE, rate, value, peaks, window, has_steps)


def _use(sensors: Sensors, rows: UsageRows, marks: Marks, at: int, kind: int, window: Window) -> int:
    """Return a row's sensor, after resetting it if the node has restarted since its last use."""
    rate: int = sensors.sensor_of[kind, rows.group[at]]
    if sensors.start[rate] != marks.starts[at]:
        sensors.floats[rate, :] = 0.0
        sensors.ints[rate, :] = 0
        rate_configure(sensors.floats[rate], sensors.ints[rate], math.inf, window[0], window[1], MAX_INT64)
        sensors.start[rate] = marks.starts[at]
    return rate


def _measure(
    sensors: Sensors,
    cell: int,
    ts_ms: int,
    kind: int,
    rate: int,
    value: float,
    peaks: Doubles,
    window: Window,
    has_steps: bool,
) -> None:
    """Record a value, and keep the rate that is measured then, if it is the largest.

    Most rates cannot be the largest: the recorded sum over the shortest window shows that without measuring.
    """
    floats, ints = sensors.floats[rate], sensors.ints[rate]
    if has_steps and sensors.cell[rate] != cell:
        sensors.cell[rate] = cell
        sensors.best[rate] = peaks[cell, kind]
    rate_decide(floats, ints, value, ts_ms)
    least_s = max(window[2], (ts_ms - ints[OLDEST]) / MS_PER_S)
    if floats[SUM] + floats[OTHERS] > sensors.best[rate] * least_s * CERTAINTY:
        measured = rate_measure(floats, ints, ts_ms)
        if measured > sensors.best[rate]:
            sensors.best[rate] = measured
            peaks[cell, kind] = measured


KERNEL_MODULES = (throttle, rate_kernel, percentiles, sys.modules[__name__])

"""The pass over the rows of a node that adds up who used what, compiled by numba.

A *group* is what has the columns in common that usage is told apart by; it has a sensor for bytes produced, bytes
delivered and request time, which measures as the quota's would (B§1.3, 1.4, 4.3). A *cell* is a group in one chunk, or
in one minute of it, for which is added up. All functions are written for numba, as `replay.kernel`.
"""

import functools
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tidegate.pipeline.replay.compiled import compile_cached, compile_together, compiled
from tidegate.pipeline.rollup import percentiles
from tidegate.pipeline.rollup.percentiles import BUCKETS, bucket_of
from tidegate.quota.managers.request import PERCENT_PER_NS
from tidegate.quota.measure import rate_kernel, throttle
from tidegate.quota.measure.engine_kernel import compile_kernel
from tidegate.quota.measure.rate_kernel import (
    ROOM,
    SUM,
    rate_configure,
    rate_decide,
    rate_measure,
    rate_record,
)
from tidegate.quota.measure.throttle import MAX_INT64

__all__ = ["KERNEL_MODULES", "MEASURES", "SENSORS", "SETTINGS", "SUMS", "Cells", "UsageRows", "add_up_kernel",
           "put_counts_kernel"]  # fmt: skip

# What a row is.
REQUEST, NETWORK, MUTATION, RESTART, OTHER = range(5)

# Columns of `Cells.sums`, in the order of `schemas.USAGE_SUMS`, then the first and last time.
REQUESTS, THROTTLED, REQUEST_BYTES, RESPONSE_BYTES, PRODUCE_BYTES, FETCH_BYTES, HANDLER_NS, NETWORK_NS = (
    range(8)
)
MUTATIONS, REJECTED, PRODUCE_MS, FETCH_MS, REQUEST_MS, MUTATION_MS, FIRST_TS_MS, LAST_TS_MS = range(8, 16)
SUMS = 16

# Kinds of sensors, and of peaks.
PRODUCE, FETCH, TIME = range(3)
SENSORS = 3

# What percentiles are of.
HANDLER, THROTTLE, SIZE = range(3)
MEASURES = 3

# Entries of `Cells.settings`: how often the node has started; how many buckets are counted in; window of the rates;
# whether there are peaks and percentiles, or sums alone.
STARTS, COUNTED, SAMPLES, WINDOW_MS, WITH_PEAKS = range(5)
SETTINGS = 5

_BUCKET_BITS = 9
_NOTHING = -1  # a place of the table of counts that is free
_SPREAD = 0x4F1BBCDCBFA53E0B  # an odd number that spreads keys over the table

Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class UsageRows(NamedTuple):
    """Rows of one node in order of `seq`: one array per column of the usage record, nulls as 0."""

    kind: npt.NDArray[np.int8]
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
    throttles_ms: npt.NDArray[np.int32]  # [produce, fetch, request, mutation; row]
    rejected: Flags
    observed_only: Flags
    exempt: Flags


class Cells(NamedTuple):
    """All that is added up, and the sensors of a node."""

    settings: Int64s
    sums: Int64s  # [cell, column]
    peaks: npt.NDArray[np.float64]  # [cell, kind of sensor]
    keys: Int64s  # a table of counts, a power of two long: cell, measure and bucket in one number
    counts: Int64s
    sensor_of: npt.NDArray[np.int32]  # [kind of sensor, group]
    rate_floats: npt.NDArray[np.float64]  # [sensor, ...]: the engine's flat state
    rate_ints: Int64s
    rate_start: Int64s  # the start of the node that a sensor was used after
    rate_cell: Int64s  # the cell whose peak a sensor is bound by


@functools.cache
def add_up_kernel() -> Callable[[Cells, UsageRows, int], int]:
    """Return `add_up` compiled."""
    names = {**vars(percentiles), **globals(), **vars(compile_kernel(compiled))}
    names |= compile_together((bucket_of, _put_count), names)
    names |= compile_together((_bound, _count, _use, _record, _measure), names, inlined=True)
    return compile_cached(add_up, names, modules=KERNEL_MODULES)


@functools.cache
def put_counts_kernel() -> Callable[[Int64s, Int64s, Int64s, Int64s], None]:
    """Return `put_counts` compiled."""
    names = globals() | compile_together((_put_count,), globals())
    return compile_cached(put_counts, names, modules=KERNEL_MODULES)


def add_up(cells: Cells, rows: UsageRows, first: int) -> int:
    """Add the rows from `first` on; return the first that was not, for the table of counts is half full."""
    with_peaks = cells.settings[WITH_PEAKS] != 0
    for at in range(first, len(rows.kind)):
        kind = rows.kind[at]
        if kind == RESTART:
            cells.settings[STARTS] += 1
        if kind >= RESTART:
            continue
        if 2 * (cells.settings[COUNTED] + MEASURES) > len(cells.keys):
            return at
        sums, cell, ts_ms = cells.sums, rows.cell[at], rows.ts_ms[at]
        sums[cell, FIRST_TS_MS] = min(sums[cell, FIRST_TS_MS], ts_ms)
        sums[cell, LAST_TS_MS] = max(sums[cell, LAST_TS_MS], ts_ms)
        if kind == MUTATION:
            sums[cell, REJECTED if rows.rejected[at] else MUTATIONS] += rows.mutations[at]
            continue
        sums[cell, NETWORK_NS] += rows.network_ns[at]
        if with_peaks and not rows.exempt[at]:
            _record(cells, rows, at, TIME, rows.network_ns[at] * PERCENT_PER_NS)
        if kind == NETWORK:
            continue
        sums[cell, REQUESTS] += 1
        sums[cell, REQUEST_BYTES] += rows.request_bytes[at]
        sums[cell, RESPONSE_BYTES] += rows.response_bytes[at]
        sums[cell, PRODUCE_BYTES] += rows.produce_bytes[at]
        sums[cell, HANDLER_NS] += rows.handler_ns[at]
        throttle_ms = 0
        if not rows.observed_only[at]:
            for place in range(4):
                one_ms = max(0, rows.throttles_ms[place, at])
                sums[cell, PRODUCE_MS + place] += one_ms
                throttle_ms = max(throttle_ms, one_ms)
            if throttle_ms > 0:  # those of 0 are the other requests
                sums[cell, THROTTLED] += 1
                _count(cells, cell, THROTTLE, throttle_ms)
        is_taken_back = (
            not rows.observed_only[at] and max(rows.throttles_ms[1, at], rows.throttles_ms[2, at]) > 0
        )
        if not is_taken_back:
            sums[cell, FETCH_BYTES] += rows.fetch_bytes[at]
        if not with_peaks:
            continue
        if not is_taken_back and rows.fetch_bytes[at] != 0:
            _measure(cells, rows, at, FETCH, float(rows.fetch_bytes[at]))
        if rows.produce_bytes[at] != 0:
            _measure(cells, rows, at, PRODUCE, float(rows.produce_bytes[at]))
        if not rows.exempt[at]:
            _measure(cells, rows, at, TIME, rows.handler_ns[at] * PERCENT_PER_NS)
        _count(cells, cell, HANDLER, rows.handler_ns[at])
        _count(cells, cell, SIZE, rows.request_bytes[at])
    return len(rows.kind)


def put_counts(keys: Int64s, counts: Int64s, from_keys: Int64s, from_counts: Int64s) -> None:
    """Put the counts of one table into another, which has room for them."""
    for place in range(len(from_keys)):
        if from_keys[place] != _NOTHING:
            _put_count(keys, counts, from_keys[place], from_counts[place])


def _put_count(keys: Int64s, counts: Int64s, key: int, count: int) -> int:
    """Add to the count of a key; return 1 where it had none."""
    place = ((key >> _BUCKET_BITS) * _SPREAD >> 20) + key & len(keys) - 1  # buckets lie together
    while keys[place] != key:
        if keys[place] == _NOTHING:
            keys[place] = key
            counts[place] = count
            return 1
        place = (place + 1) & (len(keys) - 1)
    counts[place] += count
    return 0


def _count(cells: Cells, cell: int, measure: int, value: int) -> None:
    """Count a value in its bucket."""
    key = (cell * MEASURES + measure) * BUCKETS + bucket_of(value)
    cells.settings[COUNTED] += _put_count(cells.keys, cells.counts, key, 1)


def _measure(cells: Cells, rows: UsageRows, at: int, kind: int, value: float) -> None:
    """Record a value, and keep the rate that is measured then, if it is the largest of its cell.

    The largest is the sensor's bound: most rates are within it for certain, and the engine does not look closer.
    """
    rate, cell = _use(cells, rows, at, kind), rows.cell[at]
    floats, ints = cells.rate_floats[rate], cells.rate_ints[rate]
    if cells.rate_cell[rate] != cell:
        cells.rate_cell[rate] = cell
        _bound(cells, rate, cells.peaks[cell, kind])
    rate_decide(floats, ints, value, rows.ts_ms[at])
    if floats[SUM] > floats[ROOM]:
        measured = rate_measure(floats, ints, rows.ts_ms[at])
        if measured > cells.peaks[cell, kind]:
            cells.peaks[cell, kind] = measured
            _bound(cells, rate, measured)


def _record(cells: Cells, rows: UsageRows, at: int, kind: int, value: float) -> None:
    """Record a value alone."""
    rate = _use(cells, rows, at, kind)
    rate_record(cells.rate_floats[rate], cells.rate_ints[rate], value, rows.ts_ms[at])


def _use(cells: Cells, rows: UsageRows, at: int, kind: int) -> int:
    """Return the row of a sensor, which a start of the node has made a new one."""
    rate: int = cells.sensor_of[kind, rows.group[at]]
    if cells.rate_start[rate] != cells.settings[STARTS]:
        cells.rate_floats[rate, :] = 0.0
        cells.rate_ints[rate, :] = 0
        _bound(cells, rate, 0.0)
        cells.rate_cell[rate] = _NOTHING
        cells.rate_start[rate] = cells.settings[STARTS]
    return rate


def _bound(cells: Cells, rate: int, bound: float) -> None:
    """Give a sensor another bound."""
    samples, window_ms = cells.settings[SAMPLES], cells.settings[WINDOW_MS]
    rate_configure(cells.rate_floats[rate], cells.rate_ints[rate], bound, samples, window_ms, MAX_INT64)


KERNEL_MODULES = (throttle, rate_kernel, percentiles, sys.modules[__name__])

"""The arrays that the replay kernel works on, and the numbers of their columns and values.

The engine's own classes, outside the kernel, decide the sensor and the bound of each client: the kernel sees only
numbers. An *account* is a client under one quota type and one pair of metric tags: it refers to a sensor and has a row
of tallies.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

# Bits of a row: two for its kind, two for its charge, three flags, four for the client's software, two more flags.
# A request that may ask for permits is `STRICT` too.
KIND_BITS, REQUEST_ROW, NETWORK_ROW, MUTATION_ROW = 3, 0, 1, 2
CHARGE_BITS, NO_CHARGE, PRODUCE_CHARGE, FETCH_CHARGE = 12, 0, 4, 8
EXEMPT, STRICT, REJECTED = 16, 32, 64
PIPELINES, SENDS_ON, READS_AHEAD, LOOKS_IN_STEPS = 128, 256, 512, 1024
OBSERVED = 2048
"""Flag of a request whose decision was not enforced, and of permits that were admitted although the API is strict."""
BEFORE_RANGE = 4096
"""Flag of a row before the replayed range: the row is decided, because of the state that it leaves, but not counted."""

# Rows of `State.account_of`, in the order of `QUOTA_TYPES`.
PRODUCE, FETCH, REQUEST, MUTATION = range(4)

# Columns of `State.accounts`: its sensor, the longest throttle time of that, the largest fetch, and whether its limit
# was cluster-wide when it was recorded.
SENSOR, CAP_MS, CAP_BYTES, IS_CLUSTER_WIDE = range(4)
ACCOUNT_COLUMNS = 4

# Columns of `State.rate_use` and `State.bucket_use`. `READY`: the entry is ready while this equals `settings[SWEEP]`
# (-1: never). `LAST_MS`: time of the last record. `SWEPT`: number of sweeps when it was last made ready. `REASON`: why
# its state is not known (`EXACT`: it is). The other columns are for rates that are not known, see `certainty`.
READY, LAST_MS, SWEPT, REASON, UNKNOWN_MS, SEEN_MS, EARLIEST_MS, LATEST_MS, LAPS, SYNCED_MS = range(10)
SUMS_FROM_MS, PERIOD_MS, SUM, SUM_BEFORE = range(10, 14)
USE_COLUMNS = 14

# Why a decision is not exact.
EXACT, AFTER_GAP, MISSING_ROWS, COLD_START, CAPPED_FETCH, IMPORTED, CLUSTER_WIDE = range(7)
REASON_NAMES = ("", "gap", "missing rows", "cold start", "capped fetch", "imported", "cluster-wide")

# Entries of `State.settings`: the first four are the quota types that are enabled. `SWEEPS_BEFORE`: number of sweeps
# before the last gap. `QUOTAS_REASON`: why the definitions are not known. `PERMITS_REASON`: why it is not known which
# permits a request asked for that has no recorded ones. `DEBT_MAX_S`: the largest debt of a bucket of permits, in
# seconds of its rate; 0: no bound. `OBSERVES`: clients that were observed (`OBSERVED`) are observed in the replay too,
# which applies to the quotas in force only. `FINDS_LIMITS`: a fetch that was recorded as throttled is not charged,
# because its client has asked again.
SAMPLES, WINDOW_MS, BUCKET_SAMPLES, BUCKET_WINDOW_MS, SWEEP = range(4, 9)
SWEEPS_BEFORE, QUOTAS_REASON, PERMITS_REASON, MEASURES, DEBT_MAX_S, OBSERVES, FINDS_LIMITS = range(9, 16)
SETTINGS = 16

# Columns of `State.tallies`. The recorded value is `RECORDED` columns after the decided one. Decisions that are not
# exact are counted in column `APPROXIMATE` plus their reason. `CUT_AMOUNT`: bytes of fetches above a plan's cap.
REQUESTS, DIFFERENT, APPROXIMATE_DIFFERENT, CAPPED, AMOUNT = range(5)
THROTTLED, TOTAL_MS, LONGEST_MS, FIRST_TS_MS, DELAYED_AMOUNT, REJECTED_PERMITS = range(5, 11)
RECORDED = 6
APPROXIMATE = 16
CUT_AMOUNT = APPROXIMATE + len(REASON_NAMES)
TALLIES = CUT_AMOUNT + 1

# Columns of `State.peaks`: the largest rate that was measured at a decision, and the largest amount of one row.
RATE, LARGEST = range(2)
PEAKS = 2

# Columns of an account beyond its tallies. A forecast (closed loop) has: how long requests waited for their muted
# connections; when the last one was answered, and when that was recorded; how many were sent again; and its range over
# all kinds of client software (`closed_loop`). In open loop these are null. `recorded_requests` and `recorded_amount`
# are needed because the tallies count each attempt of a fetch, and of a fetch that was cut only the rest.
FORECAST_COLUMNS = (
    "waited_ms",
    "longest_wait_ms",
    "last_ts_ms",
    "recorded_last_ts_ms",
    "sent_again",
    "recorded_requests",
    "recorded_amount",
    "throttled_requests_low",
    "throttled_requests_high",
    "throttle_ms_low",
    "throttle_ms_high",
    "longest_throttle_ms_low",
    "longest_throttle_ms_high",
    "last_ts_ms_low",
    "last_ts_ms_high",
)

# Columns of `State.modes`. `HELD`: number of the sensor's smooth mode (0: none). `WANTED`: number of the mode for its
# next use, which the other columns describe: burst and largest debt in seconds, whether its clients are observed, and
# whether the bucket is checked before it is charged.
HELD, WANTED, BURST_S, MODE_DEBT_S, IS_OBSERVED, CHECKS_FIRST = range(6)
MODE_COLUMNS = 6

# Columns of the decisions, one row each; no rows where decisions are not wanted.
BYTE_MS, REQUEST_MS, IS_REJECTED, IS_CAPPED, BYTE_REASON, REQUEST_REASON = range(6)
DECISIONS = 6

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Int16s = npt.NDArray[np.int16]
Floats = npt.NDArray[np.float64]


class Rows(NamedTuple):
    """One batch of rows of one node, sorted by `seq`: one array per column, the wider ones first."""

    seq: Int64s
    ts_ms: Int64s
    amount: Int64s  # bytes charged, or permits asked for
    handler_ns: Int64s
    network_ns: Int64s
    connection_id: Int64s
    client: Int32s
    throttle_ms: Int32s  # recorded, of the byte quota, or of the mutation quota where no bytes are charged
    request_throttle_ms: Int32s  # recorded
    flags: Int16s


ROW_TYPES: tuple[np.dtype[Any], ...] = (
    *[np.dtype("<i8")] * 6,
    *[np.dtype("<i4")] * 3,
    np.dtype("<i2"),
)


class State(NamedTuple):
    """The state of one plan on one node in the kernel."""

    settings: Int64s
    account_of: Int32s  # [quota type, client]
    accounts: Int64s  # [account, column]
    bounds: Floats  # [account]
    tallies: Int64s  # [account, tally]
    peaks: Floats  # [account, column]
    rate_floats: Floats  # [sensor, ...]: the engine's flat state
    rate_ints: Int64s
    rate_use: Int64s  # [sensor, column]
    bucket_floats: Floats
    bucket_ints: Int64s
    bucket_use: Int64s
    sweeps: Int64s  # [sweep, (seq, ts_ms)]
    pending: Int64s


class StateBeyondKafka(NamedTuple):
    """The same for the kernel that knows what goes beyond Kafka: each more array would cost the plain one time."""

    settings: Int64s
    account_of: Int32s
    accounts: Int64s
    bounds: Floats
    tallies: Int64s
    peaks: Floats
    rate_floats: Floats
    rate_ints: Int64s
    rate_use: Int64s
    bucket_floats: Floats
    bucket_ints: Int64s
    bucket_use: Int64s
    sweeps: Int64s
    pending: Int64s
    smooth_floats: Floats  # of smooth mode, beside the rates: [sensor, ...]
    smooth_ints: Int64s
    modes: Int64s  # [sensor, column]

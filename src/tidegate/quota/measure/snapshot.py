"""The state of a sensor as plain numbers: what it takes to go on measuring from here, bound and windows apart.

Times are ms less the time of the snapshot. A rate has its samples, each a value, its start and its last event, and says
which is the current one; a token bucket has its tokens and when they were last counted.

>>> from tidegate.quota.measure.rate_kernel import rate_configure, rate_decide, rate_state
>>> floats, ints = rate_state(11)
>>> rate_configure(floats, ints, 2.0, 11, 1000, 2**63 - 1)
>>> rate_decide(floats, ints, 15.0, 5000), rate_decide(floats, ints, 15.0, 6500)
(0, 4500)
>>> rate_snapshot(floats, ints, 7000)
{'samples': [[15.0, -2000, -2000], [15.0, -500, -500]], 'current': 1}

Restored elsewhere it decides as it would have done here.

Differs: Kafka keeps no state of its sensors.
"""

from typing import Any

from tidegate.quota.measure.bucket_kernel import TOKENS, UPDATED
from tidegate.quota.measure.rate_kernel import (
    DUE,
    EMPTIED,
    FLOAT_SLOTS,
    INT_SLOTS,
    LAST,
    LONG_AGO_MS,
    RECORDED,
    SLOT,
    START,
    SUM,
    USED,
)

__all__ = ["Snapshot", "bucket_snapshot", "rate_snapshot", "restore_bucket", "restore_rate"]

Snapshot = dict[str, Any]


def rate_snapshot(floats: list[float], ints: list[int], now_ms: int) -> Snapshot:
    """Return the samples of a rate, without any effect; `emptied_ms`: the last record before it was emptied."""
    samples = [
        [floats[FLOAT_SLOTS + k], ints[INT_SLOTS + 2 * k] - now_ms, ints[INT_SLOTS + 2 * k + 1] - now_ms]
        for k in range(ints[USED])
    ]
    if not samples:
        return {"samples": [], "current": 0}
    samples[ints[SLOT]] = [floats[SUM], ints[START] - now_ms, ints[LAST] - now_ms]
    snapshot: Snapshot = {"samples": samples, "current": ints[SLOT]}
    if ints[EMPTIED]:
        snapshot["emptied_ms"] = ints[RECORDED] - now_ms
    return snapshot


def restore_rate(snapshot: Snapshot, floats: Any, ints: Any, now_ms: int) -> None:
    """Write a snapshot, as of `now_ms`, to the rows of a rate, which must be long enough. Configure the rate next."""
    samples = snapshot["samples"]
    for k, (value, start_ms, last_ms) in enumerate(samples):
        floats[FLOAT_SLOTS + k] = value
        ints[INT_SLOTS + 2 * k], ints[INT_SLOTS + 2 * k + 1] = now_ms + start_ms, now_ms + last_ms
    ints[USED], ints[SLOT] = len(samples), snapshot["current"]
    if samples:
        value, start_ms, last_ms = samples[snapshot["current"]]
        floats[SUM], ints[START], ints[LAST] = value, now_ms + start_ms, now_ms + last_ms
    ints[EMPTIED] = "emptied_ms" in snapshot
    ints[RECORDED] = now_ms + snapshot.get("emptied_ms", 0)
    ints[DUE] = LONG_AGO_MS


def bucket_snapshot(floats: list[float], ints: list[int], now_ms: int) -> Snapshot:
    """Return the tokens of a bucket as of its last touch, without any effect."""
    return {"tokens": floats[TOKENS], "updated_ms": ints[UPDATED] - now_ms}


def restore_bucket(snapshot: Snapshot, floats: Any, ints: Any, now_ms: int) -> None:
    """Write a snapshot, as of `now_ms`, to the rows of a bucket. Configure the bucket next."""
    floats[TOKENS], ints[UPDATED] = snapshot["tokens"], now_ms + snapshot["updated_ms"]

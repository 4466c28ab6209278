"""Percentiles from fixed buckets: the same wherever and in whatever parts values are counted.

Each value up to 15 has a bucket of its own; above, each power of two is divided into eight buckets. The value of a
percentile is the largest value of its bucket, so it is too large by at most an eighth.

>>> [largest_of(bucket_of(value)) for value in (0, 15, 16, 17, 1000, 10**9)]
[0, 15, 17, 17, 1023, 1006632959]
"""

import numpy as np
import numpy.typing as npt

__all__ = ["BUCKETS", "PERCENTS", "bucket_of", "largest_of", "percentiles"]

PERCENTS = (50, 95, 99)
BUCKETS = 512
"""More than there are of numbers below 2**63."""

_PLAIN = 16  # values with a bucket of their own: a power of two
_PLAIN_BITS = 4
_PARTS_BITS = 3  # of a power of two
_FRACTION_BITS = 52  # of a double
_REST_BITS = _FRACTION_BITS - _PARTS_BITS
_OF_PLAIN = (1023 + _PLAIN_BITS) << _PARTS_BITS  # the bits of `_PLAIN` as a double, without the rest
_EXACT = 2**53
_FIRST_BITS = -(1 << 10)  # of a larger value: those that a double has

Int64s = npt.NDArray[np.int64]


def bucket_of(value: int) -> int:
    """Return the bucket of a value, which is not below 0 and less than 2**63. Written for numba."""
    if value < _PLAIN:
        return value
    if value >= _EXACT:
        value &= _FIRST_BITS
    # The first bits of a double are its power of two, and the next ones divide this into equal parts.
    return int(np.float64(value).view(np.int64) >> _REST_BITS) - _OF_PLAIN + _PLAIN


def largest_of(bucket: int) -> int:
    """Return the largest value of a bucket."""
    if bucket < _PLAIN:
        return bucket
    power, part = divmod(bucket - _PLAIN, 1 << _PARTS_BITS)
    return (((1 << _PARTS_BITS) + part + 1) << (power + _PLAIN_BITS - _PARTS_BITS)) - 1


def percentiles(groups: int, group: Int64s, bucket: Int64s, count: Int64s) -> dict[int, list[int | None]]:
    """Return by percent the percentile of each group; None: nothing was counted.

    group, bucket, count: arrays with one entry for each bucket that has counts, sorted, without duplicates.
    """
    ends = np.searchsorted(group, np.arange(groups + 1))
    before = np.concatenate([[0], np.cumsum(count)])
    base, total = before[ends[:-1]], before[ends[1:]] - before[ends[:-1]]
    found: dict[int, list[int | None]] = {}
    for percent in PERCENTS:
        place = np.searchsorted(before, base + -(-total * percent // 100)) - 1
        buckets = bucket[np.minimum(place, len(bucket) - 1)].tolist() if len(bucket) else [0] * groups
        pairs = zip(buckets, total.tolist(), strict=True)
        found[percent] = [largest_of(number) if some else None for number, some in pairs]
    return found

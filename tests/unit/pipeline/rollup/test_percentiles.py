"""Percentiles from fixed buckets."""

from random import Random

import numpy as np
import pytest

from tidegate.pipeline.replay.kernel.compiled import compiled
from tidegate.pipeline.rollup.percentiles import BUCKETS, bucket_of, largest_of, percentiles


@pytest.mark.parametrize("form", [bucket_of, compiled(bucket_of)])
def test_buckets_follow_one_another(form):
    """Every number has one, which reaches to just below the next, and is an eighth of its numbers wide at most."""
    largest = form(np.int64(2**63 - 1))
    for bucket in range(1, largest + 1):
        first, last = largest_of(bucket - 1) + 1, largest_of(bucket)
        assert form(np.int64(first)) == form(np.int64(last)) == bucket
        assert last - first <= first / 8
    assert largest_of(largest) == 2**63 - 1
    assert largest < BUCKETS


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_are_those_of_the_sorted_values(seed):
    """As far as buckets tell; a group of nothing has none."""
    rng = Random(seed)
    values = [[rng.randrange(2 ** rng.randrange(1, 60)) for _ in range(size)] for size in (1, 0, 7, 100, 250)]
    counts = {}
    for group, of_group in enumerate(values):
        for value in of_group:
            key = group, bucket_of(value)
            counts[key] = counts.get(key, 0) + 1
    group, bucket, count = np.array([(*key, counts[key]) for key in sorted(counts)]).T
    found = percentiles(len(values), group, bucket, count)
    for percent, of_groups in found.items():
        for of_group, told in zip(values, of_groups, strict=True):
            place = -(-len(of_group) * percent // 100) - 1
            assert told == (largest_of(bucket_of(sorted(of_group)[place])) if of_group else None)

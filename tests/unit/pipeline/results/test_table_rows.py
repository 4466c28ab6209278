"""Rows of an Arrow table that are chosen as columns."""

import random

import numpy as np
import pyarrow as pa

from tidegate.pipeline.results.table_rows import TableRows


def _rows(count, seed):
    rng = random.Random(seed)
    names = [None, "", "a", "b", "c"]
    found = [
        {
            "place": place,
            "user": rng.choice(names),
            "client": rng.choice(names),
            "ms": rng.choice([None, 0, 1, 2, 3]),
            "size": rng.randrange(-2, 3),
        }
        for place in range(count)
    ]
    types = {"place": pa.int64(), "user": pa.string(), "client": pa.string(), "ms": pa.int64()}
    table = pa.Table.from_pylist(found, pa.schema([*types.items(), ("size", pa.int64())]))
    encoded = table.set_column(1, "user", table["user"].dictionary_encode())
    return found, TableRows(pa.concat_tables([encoded[:7], encoded[7:]]))


def test_the_first_rows_are_those_of_a_stable_sort():
    """By several keys, with ties, whatever number is asked for; of no rows none."""
    for seed in range(20):
        found, rows = _rows(40, seed)
        expected = sorted(found, key=lambda row: (-(row["ms"] or 0), row["size"], row["user"] or ""))
        keys = [-rows.numbers("ms"), rows.numbers("size"), rows.table["user"].cast(pa.string()).fill_null("")]
        for top in (1, 3, 39, 40, 41):
            assert rows.first(keys, top=top) == expected[:top], seed
        largest = sorted((row for row in found if row["ms"]), key=lambda row: -row["ms"])
        assert rows.largest("ms", top=9) == largest[:9], seed
    assert rows.only(np.zeros(40, bool)).first([np.zeros(0)], top=3) == []


def test_the_rows_that_may_be_first_are_those_that_other_keys_can_tell_apart():
    """By whole columns of numbers: all that the last number needed is not worse than stay, in their order."""
    for seed in range(20):
        found, rows = _rows(40, seed)
        keys = [-rows.numbers("ms"), rows.numbers("size")]
        ranks = sorted((-(row["ms"] or 0), row["size"]) for row in found)
        for top in (1, 3, 39, 40, 41):
            last = ranks[min(top, 40) - 1]
            expected = [row for row in found if (-(row["ms"] or 0), row["size"]) <= last]
            assert [*rows.that_may_be_first(keys, top=top)] == expected, seed
    assert not len(rows.only(np.zeros(40, bool)).that_may_be_first([np.zeros(0)], top=3))


def test_rows_of_entities_have_all_their_names():
    """Null is a name of its own, and names of two entities do not mix."""
    for seed in range(20):
        found, rows = _rows(40, seed)
        for entities in ({(None, "a"), ("b", None)}, {("", "")}, {("nobody", "a")}, set()):
            expected = [row for row in found if (row["user"], row["client"]) in entities]
            assert [*rows.of_entities(entities, ("user", "client"))] == expected, seed

"""Blocks of rows."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.pipeline.layout import ROW_TYPES, Rows
from tidegate.pipeline.read import packing
from tidegate.pipeline.read.packing import gathered, merged, pack, pack_all, unpack

_numbers = st.one_of(
    st.integers(0, 3),
    st.integers(0, 70_000),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1),
)


def _wrapped(number, dtype):
    return int(np.array(number & (2**64 - 1), np.uint64).view(np.int64).astype(dtype))


@given(st.data(), st.integers(1, 30))
def test_rows_come_out_as_they_went_in(data, count):
    """Any numbers of any size, constant columns too, survive a block."""
    columns = []
    for dtype in ROW_TYPES:
        numbers = data.draw(
            st.lists(_numbers, min_size=count, max_size=count) | _numbers.map(lambda n: [n] * count)
        )
        columns.append(np.array([_wrapped(number, dtype) for number in numbers], dtype))
    rows = Rows(*columns)._replace(client=np.zeros(count, np.int32), seq=np.arange(count))
    (block,) = pack(rows, np.array([0, 1]))
    restored = unpack(block.data, block.rows)
    for name, before, after in zip(Rows._fields, rows, restored, strict=True):
        assert before.tolist() == after.tolist(), name
        assert after.dtype == before.dtype


def test_usual_rows_take_few_bytes():
    """Times, sizes and clients close together are stored as small distances."""
    count = 10_000
    rows = _rows(range(count))._replace(ts_ms=1_700_000_000_000 + np.arange(count) // 5)
    (block,) = pack(rows, np.array([0, 1]))
    assert len(block.data) / count < 5


def _rows(seqs, clients=None):
    rows = Rows(*(np.zeros(len(seqs), dtype) for dtype in ROW_TYPES))
    client = np.zeros(len(seqs), np.int32) if clients is None else np.array(clients, np.int32)
    return rows._replace(seq=np.array(seqs, np.int64), client=client)


def test_rows_go_to_their_partitions():
    """Each partition has its clients, counted from 0, in order of seq."""
    blocks = list(pack(_rows([1, 2, 3, 4, 5], clients=[0, 4, 1, 2, 3]), np.array([0, 2, 5])))
    found = {block.partition: unpack(block.data, block.rows) for block in blocks}
    assert found[0].seq.tolist() == [1, 3]
    assert found[0].client.tolist() == [0, 1]
    assert found[1].seq.tolist() == [2, 4, 5]
    assert found[1].client.tolist() == [2, 0, 1]
    assert [block.first_seq for block in blocks] == [1, 2]


def test_large_partitions_are_cut_into_blocks(monkeypatch):
    """A block has a bound, whatever a chunk holds."""
    monkeypatch.setattr(packing, "BLOCK_ROWS", 10)
    assert [block.rows for block in pack(_rows(range(25)), np.array([0, 1]))] == [10, 10, 5]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(1, 8))
def test_overlapping_blocks_are_merged(choices, blocks):
    """Whatever block a row is in, rows come out in order of seq, each once."""
    members = [
        [seq for seq, choice in enumerate(choices) if choice % blocks == number] for number in range(blocks)
    ]
    ordered = sorted(((seqs[0], _rows(seqs)) for seqs in members if seqs), key=lambda block: block[0])
    out = [seq for rows in merged(ordered) for seq in rows.seq.tolist()]
    assert out == list(range(len(choices)))


def test_blocks_that_do_not_overlap_are_not_touched():
    """The usual case copies nothing."""
    first, second = _rows([1, 2]), _rows([3, 4])
    assert [
        rows is block for rows, block in zip(merged([(1, first), (3, second)]), (first, second), strict=True)
    ] == [
        True,
        True,
    ]


@pytest.mark.parametrize("seqs", [[5, 5], [7]])
def test_rows_given_twice_are_kept_for_the_check(seqs):
    """Repeated numbers stay in the rows: the replay refuses them."""
    out = [
        seq for rows in merged([(seqs[0], _rows(seqs)), (seqs[0], _rows(seqs))]) for seq in rows.seq.tolist()
    ]
    assert out == sorted(seqs * 2)


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(1, 30))
def test_small_batches_are_gathered(sizes, least):
    """All rows come, in their order, in as few batches as have the least number of rows each."""
    ends = np.cumsum([0, *sizes])
    batches = [_rows(range(first, end)) for first, end in pairwise(ends.tolist())]
    out = list(gathered(batches, least))
    assert [seq for rows in out for seq in rows.seq.tolist()] == list(range(sum(sizes)))
    assert all(least <= len(rows.seq) < least + 9 for rows in out[:-1])
    assert all(rows.client.dtype == np.int32 for rows in out)


def test_batches_that_overlap_stay_apart():
    """A batch that begins before the one before it ends is not gathered with it: rows of a block are in order."""
    batches = [_rows([1, 2, 5]), _rows([4, 6]), _rows([]), _rows([7])]
    assert [rows.seq.tolist() for rows in gathered(batches[:2], 100)] == [[1, 2, 5], [4, 6]]
    blocks = pack_all(batches, np.array([0, 1]))
    assert [unpack(block.data, block.rows).seq.tolist() for block in blocks] == [[1, 2, 5], [4, 6, 7]]

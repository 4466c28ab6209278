"""What the kernel asks for before it goes through rows: the accounts that nobody has looked up yet."""

import numpy as np

from tidegate.pipeline.layout import (
    EXEMPT,
    FETCH,
    FETCH_CHARGE,
    MUTATION,
    MUTATION_ROW,
    NETWORK_ROW,
    PRODUCE,
    PRODUCE_CHARGE,
    REQUEST,
)
from tidegate.pipeline.replay.kernel.open_loop import find_wanted, wanted_kernel

_CLIENTS = 5
_ROWS = {
    PRODUCE_CHARGE: {PRODUCE, REQUEST},
    FETCH_CHARGE: {FETCH, REQUEST},
    FETCH_CHARGE + EXEMPT: {FETCH},
    NETWORK_ROW: {REQUEST},
    MUTATION_ROW: {MUTATION},
    MUTATION_ROW + EXEMPT: {MUTATION},
    EXEMPT: set(),
    0: {REQUEST},
}


def _found(flags, clients, looked_up, versions):
    """Return what is wanted, as (quota type, client), and how many rows ask for permits."""
    rows = np.array(flags, np.int16), np.array(clients, np.int32)
    wanted = np.empty(2 * len(flags), np.int64)
    found, mutations = wanted_kernel()(*rows, looked_up, np.array(versions, np.int64), wanted)
    return [divmod(place, _CLIENTS) for place in wanted[:found].tolist()], mutations


def test_each_row_wants_the_accounts_that_it_may_be_charged_to():
    """By its kind, charge and flags; permits are counted."""
    for flags, types in _ROWS.items():
        looked_up = np.zeros((4, _CLIENTS), np.int64)
        found, mutations = _found([flags], [3], looked_up, [1] * 4)
        assert (set(found), len(found)) == ({(quota_type, 3) for quota_type in types}, len(types)), flags
        assert mutations == (MUTATION in types)


def test_an_account_is_wanted_once_until_the_definitions_change():
    """However many rows need it, in this batch and in the next; a version that is another wants it again."""
    looked_up = np.zeros((4, _CLIENTS), np.int64)
    rows = [PRODUCE_CHARGE, PRODUCE_CHARGE, FETCH_CHARGE], [4, 4, 0]
    assert set(_found(*rows, looked_up, [1] * 4)[0]) == {(PRODUCE, 4), (REQUEST, 4), (FETCH, 0), (REQUEST, 0)}
    assert _found(*rows, looked_up, [1] * 4) == ([], 0)
    versions = [1] * 4
    versions[FETCH] = 2
    assert _found(*rows, looked_up, versions) == ([(FETCH, 0)], 0)


def test_it_is_compiled():
    """A batch of rows is gone through once."""
    assert hasattr(wanted_kernel(), "signatures")
    assert wanted_kernel() is not find_wanted

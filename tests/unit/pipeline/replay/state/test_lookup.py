"""What rows want is found once for several plans, and as if each had looked for itself."""

import numpy as np

from tidegate.pipeline.layout import (
    FETCH,
    FETCH_CHARGE,
    MUTATION,
    MUTATION_ROW,
    PRODUCE,
    PRODUCE_CHARGE,
    REQUEST,
    ROW_TYPES,
    Rows,
)
from tidegate.pipeline.replay.state.lookup import SharedWanted, wanted_of


def _rows(flags, clients):
    """Return rows of which only these columns say something."""
    zeros = Rows._make(np.zeros(len(flags), dtype) for dtype in ROW_TYPES)
    return zeros._replace(flags=np.array(flags, np.int16), client=np.array(clients, np.int32))


def _listed(wanted):
    return {index: clients.tolist() for index, clients in wanted.clients.items()}, wanted.mutations


def test_rows_want_accounts_by_quota_type_in_order():
    """Clients rise within a quota type, whatever the order of the rows."""
    rows = _rows([PRODUCE_CHARGE, FETCH_CHARGE, PRODUCE_CHARGE, MUTATION_ROW, MUTATION_ROW], [3, 2, 1, 0, 0])
    wanted = wanted_of(rows.flags, rows.client, np.zeros((4, 4), np.int64), np.ones(4, np.int64))
    assert _listed(wanted) == ({PRODUCE: [1, 3], FETCH: [2], REQUEST: [1, 2, 3], MUTATION: [0]}, 2)


def test_a_batch_tells_every_plan_the_same():
    """However often it is asked; the next batch has what is new in it alone."""
    shared = SharedWanted(3)
    first, second = _rows([PRODUCE_CHARGE, 0], [0, 1]), _rows([PRODUCE_CHARGE, PRODUCE_CHARGE], [0, 1])
    for _ in range(3):
        assert _listed(shared.of(first)) == ({PRODUCE: [0], REQUEST: [0, 1]}, 0)
    for _ in range(3):
        assert _listed(shared.of(second)) == ({PRODUCE: [1]}, 0)

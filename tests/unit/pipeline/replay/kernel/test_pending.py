"""The table of quota objects between mutation and request rows, against a dict."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate.pipeline.replay.kernel.pending import empty_pending, pending_put, pending_take, roomy_pending

_connections = st.one_of(
    st.integers(0, 5), st.integers(0, 2**62), st.sampled_from([64, 128, 2**32, 2**33 + 64])
)


@given(
    st.lists(st.tuples(st.booleans(), _connections, st.integers(0, 2**31), st.integers(0, 9)), max_size=120)
)
def test_it_is_a_dict(operations):
    """Put and take do what a dict's do, whatever collides, while the table grows."""
    table, model = empty_pending(), {}
    for put, connection, last_ms, account in operations:
        if put:
            table = roomy_pending(table, 1)
            pending_put(table, connection, last_ms, 7, account, 3)
            model[connection] = (last_ms, 7, account, 3)
        else:
            assert pending_take(table, connection) == model.pop(connection, (0, 0, -1, 0))
    for connection, entry in model.items():
        assert pending_take(table, connection) == entry


def test_room_is_made_before_it_is_needed():
    """The table is never more than half full, so a search ends."""
    table = roomy_pending(empty_pending(), 1000)
    assert len(table) >= 2000
    assert roomy_pending(table, 1000) is table

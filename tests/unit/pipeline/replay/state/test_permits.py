"""Throttles of permits between the requests that asked for them and their answers."""

from tidegate.pipeline.layout import AFTER_GAP, EXACT
from tidegate.pipeline.replay.state.permits import PendingPermits, Permits


def test_lost_permits_keep_their_throttles() -> None:
    """Their reason changes, here and for clients that are not in the replay; a start removes them all."""
    pending = PendingPermits()
    pending.make_room(1)
    pending.put(Permits("alice", "c1", 7, 500, 1000, EXACT), account=3)
    pending.elsewhere.append(Permits("bob", "c1", 8, 600, 1000, EXACT))
    assert pending.waiting() == [(7, 500, 1000, 3, EXACT)]
    pending.lose(AFTER_GAP)
    assert pending.waiting() == [(7, 500, 1000, 3, AFTER_GAP)]
    assert pending.elsewhere == [Permits("bob", "c1", 8, 600, 1000, AFTER_GAP)]
    pending.forget()
    assert (pending.waiting(), pending.elsewhere) == ([], [])

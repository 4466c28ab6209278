"""Parked sockets: they wait for the last of them, and there is a bound."""

from tidegate.quota.connections.parked_connections import MAX_PARKED_CONNECTIONS, ParkedConnections


def test_all_wait_for_the_latest_end() -> None:
    """As in Kafka, which looks at the latest end only; due is strictly past it."""
    parked: ParkedConnections[str] = ParkedConnections()
    for name, end_ms in (("a", 100), ("b", 300), ("c", 200)):
        assert parked.park(name, end_ms=end_ms) is None
    assert parked.take_due(now_ms=300) == []
    assert len(parked) == 3
    assert parked.take_due(now_ms=301) == ["a", "b", "c"]
    assert parked.take_due(now_ms=301) == []


def test_an_earlier_latest_end_is_forgotten_with_its_sockets() -> None:
    """A new crowd waits for its own latest end, also after the clock was set back."""
    parked: ParkedConnections[str] = ParkedConnections()
    parked.park("a", end_ms=5000)
    parked.take_all()
    parked.park("b", end_ms=100)
    assert parked.take_due(now_ms=101) == ["b"]


def test_past_the_bound_the_oldest_is_closed() -> None:
    """A flood that never stops holds no more descriptors than the bound."""
    parked: ParkedConnections[int] = ParkedConnections()
    evicted = [parked.park(number, end_ms=number) for number in range(MAX_PARKED_CONNECTIONS + 2)]
    assert evicted[-2:] == [0, 1]
    assert len(parked) == MAX_PARKED_CONNECTIONS
    assert parked.take_all()[0] == 2

"""The mute states: each pair of state and event, and when a connection is read again."""

import itertools

import pytest
from tests.vectors.players._channel_mute import (
    TRANSITIONS,
    ChannelMute,
    ChannelMuteError,
    MuteEvent,
    MuteState,
)


def _channel(state: MuteState) -> ChannelMute:
    mute = ChannelMute()
    mute.state = state
    return mute


@pytest.mark.parametrize(("state", "event"), [*itertools.product(MuteState, MuteEvent)])
def test_only_the_pairs_of_the_table_change_the_state(state: MuteState, event: MuteEvent) -> None:
    """A pair of the table leads to its state; any other raises Kafka's text and leaves the state."""
    mute = _channel(state)
    if (state, event) in TRANSITIONS:
        mute.handle(event)
        assert mute.state is TRANSITIONS[state, event]
        return
    with pytest.raises(
        ChannelMuteError, match=f"^Cannot transition from {state.name} for {event.name}$"
    ) as caught:
        mute.handle(event)
    assert (caught.value.state, caught.value.event, mute.state) == (state, event, state)


def test_table_has_the_six_transitions_of_kafka() -> None:
    """No pair was added, and none lost."""
    assert len(TRANSITIONS) == 6


@pytest.mark.parametrize("state", MuteState)
def test_unmuting_succeeds_only_when_nothing_is_awaited(state: MuteState) -> None:
    """MUTED and NOT_MUTED are readable after the attempt, the other three stay as they are."""
    mute = _channel(state)
    readable = state in (MuteState.MUTED, MuteState.NOT_MUTED)
    assert mute.unmute_if_idle() is readable
    assert mute.state is (MuteState.NOT_MUTED if readable else state)


@pytest.mark.parametrize("state", MuteState)
def test_muting_twice_changes_nothing(state: MuteState) -> None:
    """Only a connection that is read can become muted."""
    mute = _channel(state)
    mute.mute()
    assert mute.state is (MuteState.MUTED if state is MuteState.NOT_MUTED else state)


@pytest.mark.parametrize("last", [MuteEvent.RESPONSE_SENT, MuteEvent.THROTTLE_ENDED])
def test_connection_waits_for_response_and_throttle(last: MuteEvent) -> None:
    """Whichever of the two comes last lets the next request in."""
    mute = ChannelMute()
    mute.mute()
    mute.handle(MuteEvent.REQUEST_RECEIVED)
    mute.handle(MuteEvent.THROTTLE_STARTED)
    first = ({MuteEvent.RESPONSE_SENT, MuteEvent.THROTTLE_ENDED} - {last}).pop()
    mute.handle(first)
    assert not mute.unmute_if_idle()
    mute.handle(last)
    assert mute.unmute_if_idle()

"""The two bits of a channel walk through Kafka's mute states."""

import time

from tests.server.conftest import Pair
from tests.vectors.players._channel_mute import TRANSITIONS, ChannelMute, MuteEvent, MuteState

from tidegate.server.connection.channel import ANSWER_DUE, THROTTLED

BITS = {
    MuteState.NOT_MUTED: 0,
    MuteState.MUTED: 0,
    MuteState.MUTED_AND_RESPONSE_PENDING: ANSWER_DUE,
    MuteState.MUTED_AND_THROTTLED: THROTTLED,
    MuteState.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING: ANSWER_DUE | THROTTLED,
}
STEPS = 7


def paths(state: MuteState, steps: int) -> list[list[MuteEvent]]:
    """Return every legal sequence of so many events from a state."""
    if not steps:
        return [[]]
    next_states = [(event, target) for (source, event), target in TRANSITIONS.items() if source is state]
    return [[event, *rest] for event, target in next_states for rest in paths(target, steps - 1)]


def test_every_legal_sequence_of_events_leaves_channel_and_table_alike(with_pair) -> None:
    """After each event of each sequence the channel is readable exactly when Kafka's state machine says so."""

    async def scenario(pair: Pair) -> None:
        channel = pair.channel
        does = {
            MuteEvent.REQUEST_RECEIVED: lambda: setattr(channel, "held", channel.held | ANSWER_DUE),
            MuteEvent.THROTTLE_STARTED: lambda: channel.mute(time.monotonic_ns()),
            MuteEvent.RESPONSE_SENT: lambda: channel.release_hold(ANSWER_DUE),
            MuteEvent.THROTTLE_ENDED: channel.unmute,
        }
        sequences = paths(MuteState.MUTED, STEPS)
        assert len(sequences) > 10
        for sequence in sequences:
            channel.held = 0
            kafkas = ChannelMute()
            kafkas.mute()
            for event in sequence:
                kafkas.handle(event)
                does[event]()
                assert channel.held == BITS[kafkas.state], sequence
            channel.unmute()

    with_pair(scenario)

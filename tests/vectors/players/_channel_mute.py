"""A model of Kafka's mute states of one connection, which determine when it is read.

A connection is muted from the moment a request was read until its response is sent *and* its throttle is
over, whichever comes last. Five states and four events say which of the two is still awaited. Any pair that
is not in the table is a mistake of the caller.

Tidegate's channels keep this state in two bits (`tidegate.server.connection.channel`).
`tests/server/test_mute_states.py` compares them with this model.

>>> mute = ChannelMute()
>>> mute.mute()                                    # a request was read
>>> mute.handle(MuteEvent.REQUEST_RECEIVED)
>>> mute.handle(MuteEvent.THROTTLE_STARTED)        # over quota: decided before the response goes out
>>> mute.handle(MuteEvent.RESPONSE_SENT)
>>> mute.unmute_if_idle()
False
>>> mute.handle(MuteEvent.THROTTLE_ENDED)
>>> mute.unmute_if_idle()
True

Follows: Kafka `KafkaChannel.ChannelMuteState` and `handleChannelMuteEvent`, KIP-219, B§6.6.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["TRANSITIONS", "ChannelMute", "ChannelMuteError", "MuteEvent", "MuteState"]


class MuteState(enum.Enum):
    """The state of a connection: the events it waits for before its next request is read."""

    NOT_MUTED = "NOT_MUTED"
    MUTED = "MUTED"
    MUTED_AND_RESPONSE_PENDING = "MUTED_AND_RESPONSE_PENDING"
    MUTED_AND_THROTTLED = "MUTED_AND_THROTTLED"
    MUTED_AND_THROTTLED_AND_RESPONSE_PENDING = "MUTED_AND_THROTTLED_AND_RESPONSE_PENDING"


class MuteEvent(enum.Enum):
    """An event of a muted connection."""

    REQUEST_RECEIVED = "REQUEST_RECEIVED"
    RESPONSE_SENT = "RESPONSE_SENT"
    THROTTLE_STARTED = "THROTTLE_STARTED"
    THROTTLE_ENDED = "THROTTLE_ENDED"


_MUTED = MuteState.MUTED
_PENDING = MuteState.MUTED_AND_RESPONSE_PENDING
_THROTTLED = MuteState.MUTED_AND_THROTTLED
_THROTTLED_PENDING = MuteState.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING

TRANSITIONS: Mapping[tuple[MuteState, MuteEvent], MuteState] = MappingProxyType(
    {
        (_MUTED, MuteEvent.REQUEST_RECEIVED): _PENDING,
        (_PENDING, MuteEvent.THROTTLE_STARTED): _THROTTLED_PENDING,
        (_PENDING, MuteEvent.RESPONSE_SENT): _MUTED,
        (_THROTTLED_PENDING, MuteEvent.RESPONSE_SENT): _THROTTLED,
        (_THROTTLED, MuteEvent.THROTTLE_ENDED): _MUTED,
        (_THROTTLED_PENDING, MuteEvent.THROTTLE_ENDED): _PENDING,
    }
)


class ChannelMuteError(RuntimeError):
    """Raise when an event cannot happen in the state the connection is in; `state` and `event` say which.

    The text is the one of Kafka's IllegalStateException, capital letter included.
    """

    def __init__(self, *, state: MuteState, event: MuteEvent) -> None:
        super().__init__(f"Cannot transition from {state.name} for {event.name}")
        self.state = state
        self.event = event


class ChannelMute:
    """The mute state of one connection. Owns no socket: the caller stops and resumes reading."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = MuteState.NOT_MUTED

    def mute(self) -> None:
        """Note that the connection is not read any more; does nothing when it is muted already."""
        if self.state is MuteState.NOT_MUTED:
            self.state = MuteState.MUTED

    def handle(self, event: MuteEvent) -> None:
        """Move to the state that `event` leads to. Raises `ChannelMuteError`, and stays, where none does.

        After RESPONSE_SENT and THROTTLE_ENDED, call `unmute_if_idle()`.
        """
        target = TRANSITIONS.get((self.state, event))
        if target is None:
            raise ChannelMuteError(state=self.state, event=event)
        self.state = target

    def unmute_if_idle(self) -> bool:
        """Unmute when nothing is awaited any more; return whether the connection may be read now."""
        if self.state is MuteState.MUTED:
            self.state = MuteState.NOT_MUTED
        return self.state is MuteState.NOT_MUTED

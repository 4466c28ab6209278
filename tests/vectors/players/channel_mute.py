"""Family `channel_mute` (B§6.6): the mute state machine of one connection."""

from collections.abc import Iterator

from players._channel_mute import ChannelMute, ChannelMuteError, MuteEvent
from players._steps import play_steps

__all__ = ["play"]


def play(scenario: dict) -> Iterator[tuple[int, object, object]]:
    """Play one scenario, beginning with a connection that is read."""
    return play_steps(_Player(), scenario)


class _Player:
    def __init__(self) -> None:
        self._mute = ChannelMute()

    def mute(self) -> dict:
        self._mute.mute()
        return self._state()

    def maybe_unmute(self) -> dict:
        unmuted = self._mute.unmute_if_idle()
        return self._state() | {"unmuted": unmuted}

    def event(self, event: str) -> dict:
        try:
            self._mute.handle(MuteEvent[event])
        except ChannelMuteError as error:
            return self._state() | {"error": str(error)}
        return self._state()

    def _state(self) -> dict:
        return {"state": self._mute.state.name}

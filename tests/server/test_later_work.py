"""Requests whose answers come later, all at once."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.server.memory_network import ManualLoop

from tidegate.server.requests.handler import Answer, Deferred
from tidegate.server.requests.later_work import LaterWork
from tidegate.server.requests.slices import Slices
from tidegate.testing import ManualClock


def test_an_internal_error_of_one_answer_delays_no_other() -> None:
    """Those behind it are finished in the next turn, and so are those that come afterwards."""
    loop, done = ManualLoop(ManualClock()), []

    def on_done(exchange: Any, _: Answer | Exception) -> None:
        done.append(exchange.name)
        if exchange.name == "b":
            raise LookupError

    later = LaterWork(Slices(loop), lambda: 0, on_done, -1)
    waiting = []
    for name in "abcd":
        deferred = Deferred()
        exchange: Any = SimpleNamespace(name=name, channel=SimpleNamespace(deferred=None), handler_ns=0)
        later.wait_for(exchange, deferred)
        waiting.append(deferred)
    for deferred in waiting[:3]:
        deferred.complete(Answer(None))
    with pytest.raises(LookupError):
        loop.turn()
    loop.turn()
    waiting[3].complete(Answer(None))
    loop.turn()
    assert done == ["a", "b", "c", "d"]

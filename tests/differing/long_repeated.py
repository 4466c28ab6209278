"""Requests that name one thing 3,000 times, for which a real Apache Kafka takes half a minute: `make e2e-long`."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from tests.differing import sides
from tests.differing.play import Player
from tests.differing.requests import COMPARED, Made, repeat
from tests.differing.sequences import begun
from tests.wire.odd_messages import plain_message

from tidegate.api_keys import ALTER_CONFIGS
from tidegate.wire import API_BY_KEY

pytestmark = pytest.mark.java
TIMES = 3000
FORWARDED_TIMES = 1000  # what Kafka forwards it gives up after 30 s; its time grows as the third power
_TIMEOUT_S = 120.0


def _arrays(value: Any) -> Iterator[list[Any]]:
    if isinstance(value, list) and value:
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _arrays(item)


def _repeated() -> Iterator[Made]:
    """Yield a request for each array of the newest version of each API, with one element in it very often."""
    for api_key in COMPARED:
        api = API_BY_KEY[api_key]
        version = api.max_version
        message = _about_one(plain_message(api_key, version))
        for place in range(api_key == ALTER_CONFIGS, len(list(_arrays(message)))):  # the first one: row D7
            changed = copy.deepcopy(message)
            repeat(list(_arrays(changed))[place], FORWARDED_TIMES if api.forwardable else TIMES)
            yield Made(api_key=api_key, version=version, message=changed)


def _about_one(value: Any) -> Any:
    """Return a message about the topic `one@` in place of `x`."""
    if isinstance(value, dict):
        one = {"topic_id": "id:one@", "timeout_ms": 100_000}
        return {key: one.get(key, _about_one(item)) for key, item in value.items()}
    if isinstance(value, list):
        return [_about_one(item) for item in value]
    return "one@" if value == "x" else value


@pytest.mark.parametrize("made", list(_repeated()), ids=str)
def test_what_is_named_3000_times_is_answered_alike(
    made: Made, player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers are the same, however long Kafka takes for its own."""
    monkeypatch.setattr(sides, "TIMEOUT_S", _TIMEOUT_S)
    monkeypatch.setattr(sides, "BEHIND_S", _TIMEOUT_S)
    found = [(one.kafka, one.tidegate) for one in player.play(0, [*begun(groups=True), made])]
    assert found == []

"""Make a sequence small in which two brokers differ: with as few requests, elements and values as still show it."""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.differing.play import Difference
from tests.differing.requests import Batch, Made

__all__ = ["Shrunk", "shrunk"]

_LEFT_ALONE = (
    "topic_id",
    "replica_directory_id",
    "timeout_ms",
    "transaction_timeout_ms",
    "resource_type",
    "config_operation",
)
"""Values that no plainer one may take the place of: with it the brokers would differ in another way."""
Find = Callable[[Sequence[Made]], Difference | None]
"""Plays a sequence and returns the difference that is looked for, None where there is none."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The smallest sequence that was found, and what differs in it."""

    sequence: list[Made]
    difference: Difference


def shrunk(sequence: Sequence[Made], find: Find, *, within_s: float, tries: int = 3) -> Shrunk | None:
    """Return a smaller sequence, as far as `within_s` seconds suffice; None where nothing is found in `tries`."""
    for _ in range(tries):
        difference = find(sequence)
        if difference is not None:
            break
    else:
        return None
    best = Shrunk(list(sequence[: difference.place + 1]), difference)
    give_up_at = time.monotonic() + within_s
    for smaller in (_fewer_requests, _smaller_requests):
        progress = True
        while progress and time.monotonic() < give_up_at:
            progress = False
            for candidate in smaller(best.sequence):
                found = find(candidate)
                if found is not None:
                    best, progress = Shrunk(list(candidate[: found.place + 1]), found), True
                    break
                if time.monotonic() > give_up_at:
                    break
    return best


def _fewer_requests(sequence: Sequence[Made]) -> Iterator[list[Made]]:
    """Yield the sequence without some of its requests, many at a time first."""
    size = max(len(sequence) // 2, 1)
    while size:
        for at in range(0, len(sequence), size):
            rest = [*sequence[:at], *sequence[at + size :]]
            if rest:
                yield rest
        size //= 2


def _smaller_requests(sequence: Sequence[Made]) -> Iterator[list[Made]]:
    """Yield the sequence with one request that is plainer in one place, the last request first."""
    for at in range(len(sequence) - 1, -1, -1):
        for made in _plainer(sequence[at]):
            yield [*sequence[:at], made, *sequence[at + 1 :]]


def _plainer(made: Made) -> Iterator[Made]:
    if made.wrong is not None:
        yield replace(made, wrong=None)
    if made.client != "c@":
        yield replace(made, client="c@")
    for path, value in _places(made.message):
        if path[-1] in _LEFT_ALONE:
            continue
        for plain in _plain_values(value):
            message = copy.deepcopy(made.message)
            _put(message, path, plain)
            yield replace(made, message=message)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if path:
        yield path, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places(item, (*path, key))


def _plain_values(value: Any) -> Iterator[Any]:
    if isinstance(value, list) and value:
        size = len(value)
        while size:
            yield from ([*value[:at], *value[at + size :]] for at in range(0, len(value), size))
            size //= 2
            if len(value) // max(size, 1) > 16:
                return
    elif isinstance(value, Batch):
        yield value.content
    elif isinstance(value, bool):
        if value:
            yield False
    elif isinstance(value, str) and len(value) > 12:
        yield value[: len(value) // 2]
    elif isinstance(value, int | float) and value not in (0, -1, 1):
        yield from (0, -1, 1)


def _put(message: Any, path: tuple[Any, ...], value: Any) -> None:
    for step in path[:-1]:
        message = message[step]
    message[path[-1]] = value

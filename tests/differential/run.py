"""Ask two brokers the same requests, one after the other, and give out where they answer otherwise."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.differential.requests import PRODUCE, Made, make
from tests.differential.sides import Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A request that was answered otherwise, and both answers."""

    number: int
    made: Made
    kafka: Any
    tidegate: Any


def compare(
    kafka: Side, tidegate: Side, *, seed: int, numbers: Iterable[int], keys: Sequence[int]
) -> Iterator[Difference]:
    """Prepare both, ask both, and yield the differences. A request is made from its seed and number alone."""
    for side in (kafka, tidegate):
        side.prepare()
    for number in numbers:
        rng = random.Random(f"{seed}-{number}")
        made = make(rng.choice(keys), rng)
        if made.api_key == PRODUCE and made.message["acks"] == 0:
            continue  # has no answer
        answers = [side.answer(made) for side in (kafka, tidegate)]
        if answers[0] != answers[1]:
            yield Difference(number=number, made=made, kafka=answers[0], tidegate=answers[1])

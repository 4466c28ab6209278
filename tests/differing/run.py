"""Ask two brokers the same requests, one after the other, and give out where they answer otherwise."""

import random
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.ladder.brokers import KafkaBench, TidegateBench
from tests.differing.requests import (
    ALTER_CLIENT_QUOTAS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CLIENT_QUOTAS,
    METADATA,
    PRODUCE,
    Made,
    make,
)
from tests.differing.sides import Side

from tidegate.wire import API_BY_KEY

SHOWN_CHARACTERS = 3000
SETTLED_WITHIN_S = 2.0
"""How long Kafka may take until a change that was answered can be seen: some ms, on a busy machine more."""
_READY_S = 0.02  # from when Kafka shows a partition until it takes records for it
_ALL_TOPICS = Made(
    api_key=METADATA,
    version=9,
    message={
        "topics": None, "allow_auto_topic_creation": False, "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    },
)  # fmt: skip
_ALL_QUOTAS = Made(api_key=DESCRIBE_CLIENT_QUOTAS, version=1, message={"components": [], "strict": False})
_SHOWS = {
    METADATA: _ALL_TOPICS,
    CREATE_TOPICS: _ALL_TOPICS,
    DELETE_TOPICS: _ALL_TOPICS,
    CREATE_PARTITIONS: _ALL_TOPICS,
    ALTER_CLIENT_QUOTAS: _ALL_QUOTAS,
}
"""What shows that a change by these APIs has arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A request that was answered otherwise, and both answers."""

    number: int
    made: Made
    kafka: Any
    tidegate: Any


def described(difference: Difference) -> str:
    """Return what was asked and answered, for a person to read."""
    made = difference.made
    title = f"--- request {difference.number}: {API_BY_KEY[made.api_key].name} v{made.version}"
    parts = [("asked", made.message), ("kafka", difference.kafka), ("tidegate", difference.tidegate)]
    lines = [f"  {name:8} {_short(value)}" for name, value in parts]
    return "\n".join([title, *lines])


def _short(value: Any) -> str:
    return re.sub(r"([xm])[xm]{50,}", r"\1...\1", str(value))[:SHOWN_CHARACTERS]


@contextmanager
def two_brokers(folder: Path) -> Iterator[tuple[Side, Side]]:
    """Start Kafka and Tidegate with data in `folder`, prepared to be asked, and stop them."""
    kafka, tidegate = KafkaBench("kafka", folder / "kafka"), TidegateBench("tidegate", folder / "tidegate")
    sides: list[Side] = []
    try:
        sides += [Side("kafka", kafka.start().port), Side("tidegate", tidegate.start().port)]
        for side in sides:
            side.prepare()
        yield sides[0], sides[1]
    finally:
        for side in sides:
            side.hang_up()
        kafka.stop()
        tidegate.stop()


def compare(
    kafka: Side, tidegate: Side, *, seed: int, numbers: Iterable[int], keys: Sequence[int]
) -> Iterator[Difference]:
    """Ask both, which are prepared, and yield the differences. A request is made from its seed and number alone."""
    for number in numbers:
        rng = random.Random(f"{seed}-{number}")
        made = make(rng.choice(keys), rng)
        if made.api_key == PRODUCE and made.message["acks"] == 0:
            continue  # has no answer
        answers = [side.answer(made) for side in (kafka, tidegate)]
        if answers[0] != answers[1]:
            yield Difference(number=number, made=made, kafka=answers[0], tidegate=answers[1])
        if made.api_key in _SHOWS and _may_change(made.message):
            yield from _settle(kafka, tidegate, number, _SHOWS[made.api_key])


def _may_change(message: dict[str, Any]) -> bool:
    return not message.get("validate_only") and message.get("allow_auto_topic_creation") is not False


def _settle(kafka: Side, tidegate: Side, number: int, shown: Made) -> Iterator[Difference]:
    """Wait until both show the same; what they never do is a difference of the request before."""
    give_up_at = time.monotonic() + SETTLED_WITHIN_S
    expected = tidegate.answer(shown)
    while (found := kafka.answer(shown)) != expected:
        if time.monotonic() > give_up_at:
            yield Difference(number=number, made=shown, kafka=found, tidegate=expected)
            return
        time.sleep(0.01)
    time.sleep(_READY_S)

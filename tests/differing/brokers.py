"""The two brokers as they are compared: Kafka's own defaults, and Tidegate that follows them to the letter."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.ladder.brokers import SHORT_LIVED, BenchBroker, KafkaBench, TidegateBench
from tests.differing.play import Player
from tests.differing.sides import Side
from tests.e2e.lateness import Lateness

__all__ = ["prepared_player"]

KAFKA = (
    "controller.quorum.append.linger.ms=0",  # else each change waits 25 ms for others
    "group.coordinator.rebalance.protocols=classic",  # row S7
)
TIDEGATE = ("tidegate.kafka.exact=true", "group.initial.rebalance.delay.ms=0")


@contextmanager
def prepared_player(folder: Path, *, kafka: str | None = None, ours: str | None = None) -> Iterator[Player]:
    """Return a player that is ready, of the brokers at these addresses; who has none is started in `folder`."""
    with ExitStack() as stack:
        addresses = [
            kafka
            or _started(
                stack, KafkaBench("kafka", folder / "kafka", overrides=KAFKA, java_options=SHORT_LIVED)
            ),
            ours
            or _started(
                stack,
                TidegateBench("tidegate", folder / "tidegate", overrides=TIDEGATE),
            ),
        ]
        sides = [_side(name, address) for name, address in zip(("kafka", "tidegate"), addresses, strict=True)]
        for side in sides:
            stack.callback(side.hang_up)
        player = Player(*sides, stack.enter_context(Lateness()))
        player.prepare()
        yield player


def _started(stack: ExitStack, broker: BenchBroker) -> str:
    stack.callback(broker.stop)
    return broker.start().address


def _side(name: str, address: str) -> Side:
    host, _, port = address.rpartition(":")
    return Side(name, host.strip("[]"), int(port))

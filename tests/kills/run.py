"""Kill a broker as often as is asked for, in rounds with a data directory each."""

import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.kills.round import Round, Tally

__all__ = ["EACH", "kill"]

EACH = 25
"""Kills of a round."""
_SEVERAL = 3
_SEVERAL_EACH = 3  # one round of so many has several nodes


def kill(
    kills: int, seed: int, *, nodes: int | None = None, data: Path | None = None, say: Callable[[str], None]
) -> list[Tally]:
    """Kill and return what each round saw.

    nodes: of the process; None: one, and three in every third round. data: where directories are made, which stay where
    something is wrong; None: where temporary files are. Raises `ViolationError`, with a note how to do it again.
    """
    rng = random.Random(seed)
    tallies = []
    for number, left in enumerate(range(kills, 0, -EACH)):
        count = nodes or (_SEVERAL if number % _SEVERAL_EACH == _SEVERAL_EACH - 1 else 1)
        directory = Path(tempfile.mkdtemp(prefix="tidegate-kills-", dir=data))
        say(f"round {number + 1}: {count} node{'s' * (count > 1)}, data in {directory}")
        try:
            one = Round(
                directory, random.Random(rng.getrandbits(64)), nodes=count, kills=min(left, EACH), say=say
            )
            tallies.append(one.run())
        except Exception as error:
            chosen = f" --nodes {nodes}" if nodes else ""
            again = f"make soak ARGS='kills --kills {kills} --seed {seed}{chosen}'"
            error.add_note(f"once more: {again}\nin round {number + 1}, data and log are in {directory}")
            raise
        shutil.rmtree(directory)
    return tallies

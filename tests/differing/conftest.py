"""The two brokers, started once for the tests of a file, and what fails a test of them."""

from collections.abc import Callable, Iterator

import pytest
from tests.differing.brokers import prepared_player
from tests.differing.compare import Comparison, described
from tests.differing.play import Player


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    """Start both brokers, once."""
    with prepared_player(tmp_path_factory.mktemp("differing")) as prepared:
        yield prepared


@pytest.fixture
def compare(player: Player) -> Callable[[int, int], Comparison]:
    """Return a function that plays so many requests of a seed and fails where a difference is not declared."""

    def played(seed: int, count: int) -> Comparison:
        comparison = Comparison(player, seed)
        for found in comparison.run(count):
            if found is not None:
                again = f"again: python tests/differential.py --seed {seed} --only {found.difference.number}"
                print(described(found), again, sep="\n")
                assert found.smallest is None, again
        return comparison

    return played

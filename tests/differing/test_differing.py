"""A real Apache Kafka and `tidegate serve` answer the same requests alike, but for what is declared."""

import collections
from collections.abc import Iterator

import pytest
from tests.differing.declared import DECLARED, row_of
from tests.differing.requests import COMPARED
from tests.differing.run import compare, described, two_brokers
from tests.differing.sides import Side

pytestmark = pytest.mark.java
SEED, COUNT = 11, 150  # ten requests of each API
OTHER_SEED, OTHER_COUNT = 29, 100


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """Start both brokers, once."""
    with two_brokers(tmp_path_factory.mktemp("differing")) as started:
        yield started


def _check(sides: tuple[Side, Side], seed: int, count: int) -> collections.Counter[str]:
    """Fail where a difference is not declared; return how often each row was seen."""
    rows: collections.Counter[str] = collections.Counter()
    not_declared = []
    for difference in compare(*sides, seed=seed, numbers=range(count), keys=COMPARED):
        row = row_of(difference)
        if row is None:
            not_declared.append(described(difference))
        else:
            rows[row] += 1
    again = f"python tests/differential.py --seed {seed} --count {count}"
    assert not not_declared, "\n".join([f"seed {seed}; again: {again}", *not_declared])
    return rows


def test_known_requests_are_answered_alike(sides: tuple[Side, Side]) -> None:
    """Always the same requests, in which some declared differences are seen: both brokers are what they should be."""
    assert {"L3", "L6", "L23"} <= set(_check(sides, SEED, COUNT))


def test_other_requests_are_answered_alike(sides: tuple[Side, Side]) -> None:
    """More of them, after what the first have left behind; `python tests/differential.py` asks new ones."""
    _check(sides, OTHER_SEED, OTHER_COUNT)


def test_declared_rows_exist(request: pytest.FixtureRequest) -> None:
    """Every row that is named is in docs/kafka-differences.md."""
    text = (request.config.rootpath / "docs" / "kafka-differences.md").read_text()
    assert [row.row for row in DECLARED if f"\n| {row.row} | " not in text] == []

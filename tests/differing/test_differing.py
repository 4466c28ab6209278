"""A real Apache Kafka and `tidegate serve` answer, throttle, mute and keep alike, but for what is declared."""

from collections.abc import Callable

import pytest
from tests.differing.compare import Comparison
from tests.differing.declared import DECLARED
from tests.differing.play import Player
from tests.differing.requests import COMPARED
from tests.e2e.plain_client import PlainClient

from tidegate.api_keys import (
    ALTER_USER_SCRAM_CREDENTIALS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)

pytestmark = pytest.mark.java
SEED, OTHER_SEED, COUNT = 12, 29, 400
OF_LOGINS = (
    SASL_HANDSHAKE,
    SASL_AUTHENTICATE,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    ALTER_USER_SCRAM_CREDENTIALS,
)


def test_known_requests_are_answered_alike(compare: Callable[[int, int], Comparison]) -> None:
    """Always the same requests, in which some declared differences are seen: both brokers are what they should be."""
    assert {"L6"} <= set(compare(SEED, COUNT).rows)


def test_other_requests_are_answered_alike(compare: Callable[[int, int], Comparison]) -> None:
    """More of them; `make e2e-long` plays a hundred thousand, `python tests/differential.py` any."""
    compare(OTHER_SEED, COUNT)


def test_all_that_is_served_is_compared(player: Player) -> None:
    """An API that is served is compared, here or, those of logins, in `test_logins`."""
    with PlainClient(player.tidegate.port, "differing") as client:
        assert set(client.served_keys()) == {*COMPARED, *OF_LOGINS}


def test_declared_rows_exist(request: pytest.FixtureRequest) -> None:
    """Every row that is named is in docs/kafka-differences.md."""
    text = (request.config.rootpath / "docs" / "kafka-differences.md").read_text()
    assert [row.row for row in DECLARED if f"\n| {row.row} | " not in text] == []

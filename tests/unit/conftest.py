"""Fixtures of all unit tests."""

from collections.abc import Iterator

import pytest
from tests.unit.open_stores import close_stores


@pytest.fixture(autouse=True)
def stores_are_closed() -> Iterator[None]:
    """Close the files of stores that a test has left open."""
    yield
    close_stores()

"""Fixtures of the handlers' tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.broker.node import Node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Return a node over an empty directory."""
    node = Node(tmp_path / "data")
    yield node
    node.storage.close()

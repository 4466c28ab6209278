"""Fixtures of the storage tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.storage.node import StorageNode


@pytest.fixture
def node(tmp_path: Path) -> Iterator[StorageNode]:
    """Return a node over an empty directory."""
    node = StorageNode(tmp_path / "data")
    yield node
    node.storage.close()

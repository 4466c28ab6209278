"""Fixtures of the handlers' tests."""

from tests.unit.storage.conftest import node

__all__ = ["node"]

"""Stores that a test may leave open: their files are closed after it, as Python 3.13 warns of an open database."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.storage.metadata.store import MetadataStore

__all__ = ["close_stores", "closed_after_test"]

_OPEN: "list[MetadataStore]" = []


def closed_after_test(store: "MetadataStore") -> "MetadataStore":
    """Close a store's files after the test, whatever the test does with it. To close them twice does no harm."""
    _OPEN.append(store)
    return store


def close_stores() -> None:
    """Close the files of the stores of the test that has ended."""
    while _OPEN:
        _OPEN.pop().close()

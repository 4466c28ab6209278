"""What a handler keeps of requests that come again and again, found by the bytes they begin with.

Nothing of the request itself is kept but those bytes: what clients can make large is not among them.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tidegate.server.handler import Request
from tidegate.wire.split_reader import split_reader

__all__ = ["MAX_ENTRY_BYTES", "MAX_KEPT", "KnownRequests"]

MAX_KEPT = 8192
"""Requests of one API that are kept; when there are more, all are forgotten and those that come again kept anew."""
MAX_ENTRY_BYTES = 2048
"""What one of them takes at most, its key included: with `MAX_KEPT`, 16 MB for an API."""

Kept = TypeVar("Kept")
Find = Callable[[memoryview, int, Mapping[bytes, Kept]], Any]


class KnownRequests(dict[int, tuple[Find[Kept], dict[bytes, Kept]]]):
    """By version: how to find what is kept for a request (`SplitReader.find`), and in what.

    find, kept = known[request.header.api_version]
    found = find(request.frame, request.header.body_at, kept)
    """

    def __init__(self, api_key: int, last: str, values: tuple[str, ...]) -> None:
        super().__init__()
        self._reader = api_key, last, values

    def __missing__(self, version: int) -> tuple[Find[Kept], dict[bytes, Kept]]:
        api_key, last, values = self._reader
        found = self[version] = split_reader(api_key, version, last, values).find, {}
        return found

    def keep(self, request: Request, value: Kept) -> None:
        """Keep `value` for requests that begin as this one, which has one topic and one partition."""
        api_key, last, values = self._reader
        header = request.header
        key = split_reader(api_key, header.api_version, last, values).prefix(request.frame, header.body_at)
        if key:
            if sum(len(kept) for _, kept in self.values()) >= MAX_KEPT:
                for _, kept in self.values():
                    kept.clear()
            self[header.api_version][1][key] = value

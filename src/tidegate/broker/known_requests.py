"""The fast path of Produce and Fetch: a request that begins as an earlier one did is not parsed again.

A client sends Produce or Fetch for one partition again and again. What such a request is for comes first in its body
(acks or limits, topic, partition) and is the same each time; what changes comes last (the records; epoch, offset and
size). In one version equal beginnings are read alike, so the bytes of the body up to the partition are a key:

* *Found*: a `wire.split_reader` looks the beginning up, as bytes, and reads the rest with one `struct` call. It finds
  requests with one topic and one partition, no transaction and no tagged fields. Any other, and a malformed one, is
  read by the ordinary reader, which also says what is wrong.
* *Kept*: what the handler made of the beginning when it read such a request whole: the partition's log, the limits, and
  the answer's encoding (`broker.kept_answers`), in which a few numbers change. Of the request only the key is kept;
  what clients can make large is not in it.
* *Bound*: `MAX_KEPT` requests of an API, `MAX_ENTRY_BYTES` each; when there are more, all are forgotten.
* *Dropped*: not when a topic changes. At each use the handler compares: where the log has been deleted, or has other
  settings, the request is read whole, and kept anew under its key.
* *In a fetch session* no two requests begin alike: the session keeps what is before its number and behind it
  (`broker.fetching.known`).
* *Saved*: parsing, making a message of dicts, finding the topic, and encoding the answer. `bench/bench_wire.py` has
  both ways, "the same, known" behind the ordinary one.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tidegate.server.requests.handler import Request
from tidegate.wire.split_reader import split_reader

__all__ = ["MAX_ENTRY_BYTES", "MAX_KEPT", "KnownRequests"]

MAX_KEPT = 8192
"""Requests of one API that are kept."""
MAX_ENTRY_BYTES = 2048
"""Most memory of a known request with its key: with `MAX_KEPT`, 16 MB for an API."""

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

    def store_value(self, request: Request, value: Kept) -> None:
        """Keep `value` for requests that begin as this one, which has one topic and one partition."""
        api_key, last, values = self._reader
        header = request.header
        key = split_reader(api_key, header.api_version, last, values).prefix(request.frame, header.body_at)
        if key:
            if sum(len(kept) for _, kept in self.values()) >= MAX_KEPT:
                for _, kept in self.values():
                    kept.clear()
            self[header.api_version][1][key] = value

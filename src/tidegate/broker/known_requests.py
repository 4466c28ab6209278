"""The fast path of Produce and Fetch: a request that begins like an earlier one is not parsed again.

A client sends Produce or Fetch for one partition repeatedly. The first fields of the body (acks or limits, topic,
partition) are the same each time; the last ones (the records; epoch, offset and size) change. In one version, equal
bytes have the same meaning, so the bytes of the body up to the partition are a key:

* *Find*: a `wire.split_reader` looks up the first bytes, and reads the rest with one `struct` call. It finds requests
  with one topic and one partition, no transaction and no tagged fields. The ordinary reader reads all others; for a
  malformed request it also reports the error.
* *Keep*: when the handler has parsed such a request completely, it keeps the partition's log, the limits, and the
  encoding of the answer (`broker.kept_answers`), in which a few numbers change. Only the key of the request is kept,
  without the fields that clients can make large.
* *Bound*: `MAX_KEPT` requests of an API, `MAX_ENTRY_BYTES` each. When there are more, all are removed.
* *Check*: a change of a topic does not remove entries. Instead, the handler checks at each use whether the log was
  deleted or has other settings. If so, it parses the request completely, and replaces the entry.
* *In a fetch session* all requests begin differently: the session keeps the bytes before and after its id and epoch
  (`broker.fetching.known`).
* *Saves*: parsing, a message of dicts, the lookup of the topic, and the encoding of the answer. `bench/bench_wire.py`
  measures both paths: "the same, known" after the ordinary one.
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
    """By version, the function that finds the entry of a request (`SplitReader.find`), and the entries.

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

"""Evidence for quotas: how much of a record is enough, what it cannot measure, and which clients are brokers.

A quota out of a record is a guess about the time after it. Of n windows of the record, the next one is above the
largest of them with probability 1 / (n + 1), if traffic goes on as before. `ENOUGH_WINDOWS` makes that 3 %, and
the headroom of a proposal covers most of the rest; `ENOUGH_REQUESTS` makes it 1 % for single requests.

>>> is_internal("broker-2-fetcher-0"), is_internal("7"), is_internal("checkout")
(True, True, False)
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.pipeline.read.chunks import Chunk
    from tidegate.pipeline.read.missing import Missing

__all__ = [
    "ENOUGH_REQUESTS",
    "ENOUGH_WINDOWS",
    "WINDOW_MS",
    "Evidence",
    "Name",
    "TooLittleDataError",
    "chunk_windows",
    "internal_names",
    "is_internal",
    "was_throttled",
    "windows_in",
]

WINDOW_MS = 10_000
"""The time over which Kafka measures a rate, nearly: ten whole samples of a second (B§1.3)."""
ENOUGH_WINDOWS = 30
"""Windows with requests, five minutes of them, that a record needs for any proposal."""
ENOUGH_REQUESTS = 100
"""Requests charged to a type of quota that a proposal of this type needs."""

_INTERNAL = re.compile(
    r"\d{1,10}"  # NodeToControllerChannelManager: the id of the broker
    r"|broker-\d+-(fetcher-\d+|txn-marker-sender)"  # ReplicaFetcherManager, TransactionMarkerChannelManager
    r"|raft-client-\d+"  # KafkaRaftManager
    r"|(AddPartitionsManager|NetworkPartitionMetadataClient|Persister)(-client-\d+)?"  # BrokerServer
    r"|AddPartitionsManager-\d+"
    r"|__remote_log_metadata_client.*",  # TopicBasedRemoteLogMetadataManagerConfig
    re.DOTALL | re.ASCII,
)

Name = tuple[str | None, str | None]
"""User and client id of an entity."""


class TooLittleDataError(ConfigError):
    """Raise when a record holds too little to propose quotas from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Facts about a usage record beside its limits.

    windows: windows of `WINDOW_MS` with requests. internal: entities whose clients are all brokers. is_imported: some
    of the record comes from request logs, which lack the time of network threads. missing: rows that are missing.
    callback: the setting of the quota callback that was in use during the recording; None if there was none.
    has_before: earlier rows are replayed too, and not counted.
    """

    windows: int
    internal: frozenset[Name]
    is_imported: bool
    missing: "Sequence[Missing]"
    callback: str | None = None
    has_before: bool = False


def was_throttled(row: Mapping[str, Any]) -> bool:
    """Return whether the entity of a row of `LIMITS_BY_ENTITY` was throttled when it was recorded."""
    return bool(row["recorded_throttled_requests"] or row.get("recorded_rejected_mutations"))


def is_internal(client_id: str) -> bool:
    """Return whether a client id is one that a broker gives itself. Source: Kafka 4.3.1, the classes named above."""
    return _INTERNAL.fullmatch(client_id) is not None


def internal_names(by: str, users: "pa.Array", client_ids: "pa.Array") -> frozenset[Name]:
    """Return the entities of the level `by` whose clients are all brokers. users, client_ids: of each client."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ids = pc.unique(client_ids)
    # Arrow's regular expressions have no `fullmatch`; few of many names begin as a broker's do.
    begin_so = ids.filter(pc.match_substring_regex(ids, f"^(?:{_INTERNAL.pattern})"))
    brokers = [client_id for client_id in begin_so.to_pylist() if is_internal(client_id)]
    if not brokers:
        return frozenset()
    is_broker = pc.is_in(client_ids, value_set=pa.array(brokers, client_ids.type))
    users_of_brokers = users.filter(is_broker)
    if by != "user":
        pairs = zip(users_of_brokers.to_pylist(), client_ids.filter(is_broker).to_pylist(), strict=True)
        return frozenset((None if by == "client-id" else user, client_id) for user, client_id in pairs)
    is_also = pc.and_not(pc.is_in(users, value_set=users_of_brokers), is_broker)
    others = set(pc.unique(users.filter(is_also)).to_pylist())
    return frozenset((user, None) for user in users_of_brokers.to_pylist() if user not in others)


def chunk_windows(chunk: "Chunk") -> list[int]:
    """Return the numbers of the windows in which a chunk has requests. Raises `UsageFilesError`."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from tidegate.pipeline.read.chunks import read_chunk
    from tidegate.pipeline.read.columns import numbers_of

    table = read_chunk(chunk, ("kind", "ts_ms"))
    table = table.filter(pc.equal(table["kind"].cast(pa.string()), "request"))
    found: list[int] = np.unique(numbers_of(table, "ts_ms") // WINDOW_MS).tolist()
    return found


def windows_in(parts: Iterable[Iterable[int]]) -> int:
    """Return how many windows `chunk_windows` found in all chunks together."""
    return len(set().union(*parts))

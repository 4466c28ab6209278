"""Requests that a broker has served, with the throttle times that it decided, read from its usage record.

A broker writes a request's row before it sends the answer (decision 0026). A client that has an answer
therefore finds its request here at once.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.testing.process import BrokerError

__all__ = ["ServedRequest", "served_requests"]

_ATTEMPTS = 10  # to read a segment that the broker renames meanwhile
_RETRY_S = 0.005
_THROTTLE_COLUMNS = {
    "Request": "request_throttle_ms",  # first: ties go to the request quota (B§6.2)
    "ControllerMutation": "mutation_throttle_ms",
    "Fetch": "fetch_throttle_ms",
    "Produce": "produce_throttle_ms",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest:
    """One request, as the broker recorded it.

    node_id, time_ms: where and when it was decided, in ms since the epoch. user: `ANONYMOUS` without a login.
    api: Kafka's name, such as "Produce". request_bytes: without the 4-byte length prefix.
    produce_bytes, fetch_bytes: charged to the quota, None if the request is not charged to it.
    throttle_time_ms: what the answer says, before `tidegate.quota.throttle.max.ms`; 0 if it is not throttled.
    quota_type: the quota that caused it, by Kafka's name: "Produce", "Fetch", "Request", "ControllerMutation", or None.
    early_ms: rest of the previous throttle time when this request arrived, in ms; None if that time was over. A client
    that obeys throttle times never sends early.
    """

    node_id: int
    time_ms: int
    user: str
    client_id: str
    client_host: str
    client_software: str
    api: str
    api_version: int
    request_bytes: int
    produce_bytes: int | None
    fetch_bytes: int | None
    throttle_time_ms: int
    quota_type: str | None
    early_ms: int | None


def served_requests(usage_directory: Path) -> Iterator[ServedRequest]:
    """Yield the requests in the spools of all nodes below `usage_directory`, node by node, in order.

    Raises `BrokerError` if a spool has been removed.
    """
    for spool in sorted((usage_directory / "spool").glob("node-*")):
        for event in _events(spool):
            if event["kind"] == "request":
                yield _served(event)


def _events(spool: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a spool, segment by segment."""
    from tidegate.usage.segment import CLOSED_SUFFIX, OPEN_SUFFIX, segment_paths

    stems = {path.stem for suffix in (OPEN_SUFFIX, CLOSED_SUFFIX) for path in segment_paths(spool, suffix)}
    for stem in sorted(stems):
        yield from _segment_events(spool / stem)


def _segment_events(stem: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a segment, which the broker may close meanwhile. Raises `BrokerError`."""
    from tidegate.usage.events import segment_events
    from tidegate.usage.segment import CLOSED_SUFFIX, OPEN_SUFFIX, load_segment

    for _ in range(_ATTEMPTS):
        for suffix in (OPEN_SUFFIX, CLOSED_SUFFIX):
            try:
                segment = load_segment(stem.with_suffix(suffix))
            except FileNotFoundError:
                continue
            yield from segment_events(segment)
            return
        time.sleep(_RETRY_S)
    raise BrokerError(f"segment {str(stem)!r} of the usage record was removed while the broker ran")


def _served(event: dict[str, Any]) -> ServedRequest:
    from tidegate.wire import API_BY_KEY

    throttles = {} if event["observed_only"] else {t: event[name] for t, name in _THROTTLE_COLUMNS.items()}
    quota_type = max(throttles, key=throttles.__getitem__, default=None)
    throttle_ms = 0 if quota_type is None else max(throttles[quota_type], 0)
    api = API_BY_KEY.get(event["api_key"])
    return ServedRequest(
        node_id=event["node_id"],
        time_ms=event["ts_ms"],
        user=event["user"],
        client_id=event["client_id"],
        client_host=event["client_host"],
        client_software=event["client_software"],
        api=api.name if api else str(event["api_key"]),
        api_version=event["api_version"],
        request_bytes=event["request_bytes"],
        produce_bytes=event["produce_bytes"],
        fetch_bytes=event["fetch_bytes"],
        throttle_time_ms=throttle_ms,
        quota_type=quota_type if throttle_ms else None,
        early_ms=event["early_ms"],
    )

"""Requests to the group coordinator and their responses: messages as in the protocol's newest version."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from tidegate import error_codes
from tidegate.fair_share import UNKNOWN_OWNER

__all__ = [
    "JoinRequest",
    "Message",
    "Respond",
    "Source",
    "SyncRequest",
    "join_refusal",
    "sync_refusal",
    "why",
]

_REASON_CHARS = 255  # of a client's text in the log. Source: Kafka `JoinGroupRequest.maybeTruncateReason`

Message = dict[str, Any]
Respond = Callable[[Message], None]
"""Is called once with the body of the answer, at once or later."""


class Source(Protocol):
    """The connection of a member. `throttled_ms`: the total time that it was muted."""

    throttled_ms: int


class JoinRequest(NamedTuple):
    """JoinGroup: `protocols` are (name, metadata) in the order of preference. One that is named twice does not count.

    needs_known_id: a member without an id is given one and has to come back with it (KIP-394).
    is_known: the group has committed offsets.
    skips_assignment: a leader that comes back as a static member is told that it need not assign (KIP-814).
    reason: why it joins (KIP-800).
    owner: the principal that the member counts for.
    """

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Sequence[tuple[str, bytes]]
    needs_known_id: bool = True
    is_known: bool = False
    skips_assignment: bool = True
    reason: str | None = None
    source: Source | None = None
    owner: str = UNKNOWN_OWNER

    @property
    def size(self) -> int:
        """Return the bytes of the request that a member would keep."""
        return sum([len(name) + len(data) for name, data in self.protocols]) + len(self.client_id)

    def distinct_protocols(self) -> Sequence[tuple[str, bytes]]:
        """Return the protocols that are named once."""
        names = [name for name, _ in self.protocols]
        if len(set(names)) == len(names):
            return self.protocols
        return [(name, data) for name, data in self.protocols if names.count(name) == 1]


class SyncRequest(NamedTuple):
    """SyncGroup: `assignments` by member id, of the leader alone."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = MappingProxyType({})
    source: Source | None = None


def join_refusal(error_code: int, member_id: str) -> Message:
    """Return the answer to a JoinGroup that is refused."""
    return {
        "error_code": error_code,
        "generation_id": -1,
        "protocol_type": None,
        "protocol_name": None,
        "leader": "",
        "skip_assignment": False,
        "member_id": member_id,
        "members": [],
    }


def sync_refusal(error_code: int) -> Message:
    """Return the answer to a SyncGroup that is refused."""
    assert error_code != error_codes.NONE
    return {"error_code": error_code, "protocol_type": None, "protocol_name": None, "assignment": b""}


def why(reason: str | None) -> str:
    """Return the reason that a client gave for joining or leaving, as the end of a log line."""
    return f"; reason given by the client: {reason[:_REASON_CHARS]!r}" if reason else ""

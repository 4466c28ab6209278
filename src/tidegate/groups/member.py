"""A member of a group, what a group waits for, and until when.

Follows: Kafka 4.3 `ClassicGroupMember`.
"""

from collections import deque
from collections.abc import Callable, Sequence

from tidegate.fair_share import UNKNOWN_OWNER
from tidegate.groups.deadlines import Deadline
from tidegate.groups.requests import Message, Respond, Source

__all__ = ["DueAnswers", "JoinDeadline", "Member", "PendingMember", "SyncDeadline"]

_BYTES = 1000
_PENDING_BYTES = 500


class Member(Deadline):
    """A member; as a deadline it is its session's end.

    join, sync: how its waiting JoinGroup or SyncGroup is answered.
    owner: the principal that it counts for.
    is_new: it has not been in a generation yet.
    source, session_mark_ms, rebalance_mark_ms: the connection of its last request, and the total muted time of that
        connection when the session began, or the rebalance.
    """

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "group_id",
        "instance_id",
        "is_new",
        "join",
        "member_id",
        "owner",
        "protocols",
        "rebalance_mark_ms",
        "rebalance_timeout_ms",
        "session_mark_ms",
        "session_timeout_ms",
        "source",
        "sync",
    )

    def __init__(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: Sequence[tuple[str, bytes]],
        owner: str = UNKNOWN_OWNER,
    ) -> None:
        super().__init__()
        self.group_id = group_id
        self.member_id = member_id
        self.owner = owner
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocols = tuple(protocols)
        self.assignment = b""
        self.join: Respond | None = None
        self.sync: Respond | None = None
        self.is_new = False
        self.source: Source | None = None
        self.session_mark_ms = self.rebalance_mark_ms = 0

    @property
    def size(self) -> int:
        """About how many bytes it takes in memory."""
        names = (
            len(self.member_id) + len(self.instance_id or "") + len(self.client_id) + len(self.client_host)
        )
        return (
            _BYTES
            + names
            + len(self.assignment)
            + sum([len(name) + len(data) for name, data in self.protocols])
        )

    @property
    def request_size(self) -> int:
        """Return the bytes of the member that come from its JoinGroup (`JoinRequest.size`)."""
        return sum([len(name) + len(data) for name, data in self.protocols]) + len(self.client_id)

    def metadata(self, protocol: str | None) -> bytes:
        """Return what it says for a protocol."""
        for name, data in self.protocols:
            if name == protocol:
                return data
        return b""

    @property
    def throttled_ms(self) -> int:
        """Total time that its connection was muted."""
        return 0 if self.source is None else self.source.throttled_ms

    def answer_sync(self, answer: Message) -> None:
        """Answer its SyncGroup, if one waits."""
        sync, self.sync = self.sync, None
        if sync is not None:
            sync(answer)


class PendingMember(Deadline):
    """A member id that was given out; as a deadline it is when no member has come with it."""

    __slots__ = ("group_id", "member_id")

    def __init__(self, group_id: str, member_id: str) -> None:
        super().__init__()
        self.group_id = group_id
        self.member_id = member_id

    @property
    def size(self) -> int:
        """About how many bytes it takes in memory."""
        return _PENDING_BYTES + len(self.member_id)


class JoinDeadline(Deadline):
    """The time when a rebalance continues with the members that have joined. left_ms: further delay of a first one."""

    __slots__ = ("delay_ms", "extended_ms", "group_id", "left_ms")

    def __init__(self, group_id: str) -> None:
        super().__init__()
        self.group_id = group_id
        self.delay_ms = 0
        self.left_ms: int | None = None
        self.extended_ms = 0


class DueAnswers(Deadline):
    """Answers to members of a large group, as a deadline that is over at once.

    work: functions of the current time, each of which sends some of them.
    """

    __slots__ = ("work",)

    def __init__(self) -> None:
        super().__init__()
        self.work: deque[Callable[[int], None]] = deque()


class SyncDeadline(Deadline):
    """The time when members that did not ask for their assignment are removed."""

    __slots__ = ("extended_ms", "group_id")

    def __init__(self, group_id: str) -> None:
        super().__init__()
        self.group_id = group_id
        self.extended_ms = 0

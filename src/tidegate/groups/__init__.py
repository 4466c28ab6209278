"""Consumer groups of the classic protocol: their members, generations and sessions.

A state machine: the caller passes in requests and the time, and it calls back with answers. It uses neither sockets nor
storage; `GroupCoordinator` has everything that the broker calls.
"""

from tidegate.groups.coordinator import GroupCoordinator
from tidegate.groups.group import GroupState
from tidegate.groups.requests import JoinRequest, SyncRequest
from tidegate.groups.settings import GroupSettings
from tidegate.groups.stored import GroupStore, StoredGroup, StoredMember

__all__ = [
    "GroupCoordinator",
    "GroupSettings",
    "GroupState",
    "GroupStore",
    "JoinRequest",
    "StoredGroup",
    "StoredMember",
    "SyncRequest",
]

"""The topics and groups about whose rights two brokers are asked."""

from typing import Any

__all__ = ["DELETED", "GROUPS", "NAMES", "POSITIONS", "SINGLE_GROUPS", "TOPICS", "ZERO_ID", "Made"]

Made = tuple[int, int, dict[str, Any]]
"""API key, version and message."""
TOPICS = ("t-one", "t-two", "u-one")
NAMES = (*TOPICS, "missing")
POSITIONS = ("t-one", "u-one", "nothing")
"""Topics of positions. They are not deleted: Kafka forgets a deleted topic's positions a while later."""
DELETED = ("t-two", "missing")
GROUPS = ("g", "h")
"""Groups that have positions."""
SINGLE_GROUPS = ("g-members", "h-members")
"""Groups that have members, or none."""
ZERO_ID = "00000000-0000-0000-0000-000000000000"

"""The warning that topics with `cleanup.policy=compact` grow without end: there is no log cleaner."""

import logging
from collections.abc import Iterable

from tidegate.storage.topics.topic import Topic

__all__ = ["CompactionNotice"]

_NAMED = 5  # topics in the line
_logger = logging.getLogger(__name__)


class CompactionNotice:
    """Warns once in the life of a process, about the topics that it is shown first: Kafka Streams creates hundreds."""

    def __init__(self) -> None:
        self._given = False

    def look_at(self, topics: Iterable[Topic]) -> None:
        """Warn if any of `topics` keeps all of its records because its policy is compact alone."""
        if self._given:
            return
        names = sorted(topic.name for topic in topics if topic.settings.only_compacted)
        if not names:
            return
        self._given = True
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        _logger.warning(
            "all records are kept in topics with cleanup.policy=compact, such as %s%s: the broker has no log cleaner; "
            "hint: use cleanup.policy=compact,delete with retention.ms or retention.bytes "
            "(docs/kafka-differences.md, row L13)",
            ", ".join(names[:_NAMED]),
            more,
        )

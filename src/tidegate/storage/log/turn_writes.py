"""Batches that came in one turn of the event loop, written together: one call for each log instead of one for each.

A batch whose answer waits for the end of the turn gets its offset at once. It is written with the other batches of its
log before any of their answers is sent. If a write fails, the log is opened anew from its files, and the requests are
answered with an error.
"""

import logging

from tidegate.storage.errors import LogDamagedError
from tidegate.storage.log.partition_log import PartitionLog
from tidegate.storage.log.recovery import reopen_log

__all__ = ["TurnWrites"]

_logger = logging.getLogger(__name__)


class TurnWrites:
    """Writes to make before the answers of this turn are sent. Implements `tidegate.server.requests.handler.Turn`.

    failed: the logs that could not be written in this turn.
    """

    __slots__ = ("_logs", "failed")

    def __init__(self) -> None:
        self.failed: set[PartitionLog] = set()
        self._logs: list[PartitionLog] = []

    def add_log(self, log: PartitionLog) -> None:
        """Write the batches that `log` has gathered at the end of the turn."""
        self._logs.append(log)

    def finish(self) -> bool:
        """Write everything. Return False if a write failed, so that the answers to its requests must be made anew."""
        if self.failed:
            self.failed = set()
        if self._logs:
            logs, self._logs = self._logs, []
            for log in logs:
                try:
                    log.write_gathered()
                except OSError as error:
                    name = log.directory.name
                    _logger.error("cannot append to %s: %s", name, error, extra={"repeats": f"append {name}"})
                    self.failed.add(log)
                    self._take_back(log)
        return not self.failed

    @staticmethod
    def _take_back(log: PartitionLog) -> None:
        try:
            reopen_log(log)
        except (OSError, LogDamagedError) as error:
            log.mark_damaged(str(error))

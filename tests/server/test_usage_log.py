"""What the server does when the usage record cannot go on as it should."""

import errno
import os
import shutil

from tests.unit.usage.recording import START_MS, open_recorder

from tidegate.server.usage_log import RecordedUsageLog
from tidegate.testing import ManualClock


class Writer:
    """A writer that is there, and counts how often it was looked after and stopped."""

    looks = stops = 0

    def keep_running(self) -> None:
        """Count."""
        self.looks += 1

    def stop(self) -> None:
        """Count."""
        self.stops += 1


def test_writer_that_cannot_be_started_is_tried_again(tmp_path, caplog):
    """Without a descriptor or a process to be had the spool waits, one line says so, and nothing is raised."""
    writer, left = Writer(), [3]

    def start() -> Writer:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return writer

    usage = RecordedUsageLog(open_recorder(tmp_path), start)
    for _ in range(5):
        usage.maybe_roll(START_MS)
    usage.close()
    assert (left[0], writer.looks, writer.stops) == (0, 3, 1)
    assert caplog.messages == [
        "usage writer cannot be started, the spool waits: [Errno 24] Too many open files"
    ]


def test_losses_are_reported_when_they_grow(tmp_path, caplog):
    """Once, with how many there are by then; not again while there are no more."""
    clock = ManualClock(start_ms=START_MS)
    recorder = open_recorder(tmp_path / "usage", clock)
    usage = RecordedUsageLog(recorder, Writer)
    recorder.start(START_MS)
    shutil.rmtree(tmp_path / "usage")
    for _ in range(5):
        clock.advance(500)
        usage.maybe_roll(START_MS)
    usage.close()
    assert [text for text in caplog.messages if "lost so far" in text] == [
        "usage record: 1 events lost so far"
    ]

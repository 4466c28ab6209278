"""What the server does when the usage record cannot go on as it should."""

import errno
import os
import shutil
from types import SimpleNamespace

from tests.unit.usage.recording import START_MS, closed_events, open_recorder

from tidegate.quota import QuotaRecord, QuotaType, QuotaWindow
from tidegate.quota.measure.sensors import RateSensor
from tidegate.server.exchange import Exchange
from tidegate.server.handler import Connection
from tidegate.server.usage_log import RecordedUsageLog
from tidegate.testing import ManualClock
from tidegate.usage.spool import NONE
from tidegate.wire import RequestHeader

HEADER = RequestHeader(19, 7, 1, "app", 20)
USER = (("user", "alice"),)
SENSOR = RateSensor("s", {"group": "etl"}, window=QuotaWindow(), bound=1.0, cap_ms=0, now_ms=START_MS)


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


def test_rows_are_in_the_order_in_which_the_engine_was_asked(tmp_path):
    """Whatever else happens between two requests of a turn, its row stands between theirs."""
    usage = RecordedUsageLog(open_recorder(tmp_path), Writer)
    channel = SimpleNamespace(connection=connection(), early_ms=None)
    between = {
        "network": lambda: usage.network(channel, HEADER, START_MS, 5, False),
        "mutation": lambda: usage.mutation(
            channel.connection, HEADER, 3, SimpleNamespace(strict=False), True, START_MS
        ),
        "quota": lambda: usage.quota(QuotaRecord(entity=USER, key="producer_byte_rate", value=1.0), START_MS),
        "callback": lambda: usage.callback("a:Callback", START_MS),
        "tags": lambda: usage.tags(QuotaType.PRODUCE, "alice", "app", SENSOR, START_MS),
        "expire": lambda: usage.expire(START_MS),
        "clock": lambda: usage.clock(START_MS, 7),
    }
    for event in between.values():
        usage.request(exchange(channel))
        event()
    usage.commit()
    usage.close()
    kinds = [event["kind"] for event in closed_events(tmp_path)]
    assert kinds == [kind for name in between for kind in ("request", name)]


def connection() -> Connection:
    """Return a connection of a client on this machine."""
    return Connection(7, "PLAINTEXT", "127.0.0.1", "127.0.0.1", 9092)


def exchange(channel: SimpleNamespace) -> Exchange:
    """Return a request that was decided and not throttled."""
    decided = Exchange(channel, HEADER, 100, 0)
    decided.response, decided.exempt, decided.now_ms = None, False, START_MS
    decided.produce_bytes = decided.fetch_bytes = NONE
    decided.network_ns = decided.throttle_ms = decided.row_flags = 0
    decided.produce_ms = decided.fetch_ms = decided.request_ms = decided.mutation_ms = 0
    return decided

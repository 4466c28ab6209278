"""Cluster-wide quotas of one process: bounds, the division between users, and a process that has not begun."""

import pytest
from tests.simulation.shared_limit import START_MS, WINDOW_MS

from tidegate.gateway.shares import Usage
from tidegate.gateway.sharing import (
    LOST_AFTER_MS,
    MAX_FOLLOWED,
    MAX_PROCESSES,
    TICK_MS,
    Sharing,
    UsageReport,
)
from tidegate.in_slices import run_at_once
from tidegate.quota import UNLIMITED, QuotaManagers, QuotaRecord, QuotaType
from tidegate.quota.managers.client_quota import cluster_key
from tidegate.quota.managers.extensions import CLUSTER_WIDE

LIMIT = 1000.0
CLIENT_IDS = 20_000


def sharing_of(managers: QuotaManagers) -> Sharing:
    """Return the sharing of a process with one broker and a limit for each client of each user."""
    each = (("client-id", None), ("user", None))
    managers.apply(QuotaRecord(entity=each, key=QuotaType.PRODUCE.key, value=LIMIT))
    managers.apply(QuotaRecord(entity=(), key=CLUSTER_WIDE, value=1.0))
    sharing = Sharing("own", window_ms=WINDOW_MS)
    sharing.add_node(managers)
    return sharing


def tick(sharing: Sharing, now_ms: int) -> UsageReport:
    """Return the report of a tick, which other processes and this one receive."""
    return run_at_once(sharing.tick_in_slices(now_ms))


def gauge(sharing: Sharing, name: str) -> float:
    """Return a metric."""
    return next(value for gauge, value, _ in sharing.gauges() if gauge == f"tidegate_cluster_quota_{name}")


def test_many_client_ids_of_a_user_leave_room_for_another() -> None:
    """The table is divided between users: that of 20,000 client ids loses its oldest, and another has its own share."""
    managers = QuotaManagers()
    sharing = sharing_of(managers)
    sharing.begin(START_MS)
    for number in range(CLIENT_IDS):
        managers.produce.record("alice", f"c{number}", 1.0, START_MS)
    managers.produce.record("bob", "c", 1.0, START_MS)
    report = tick(sharing, START_MS + TICK_MS)
    assert cluster_key(QuotaType.PRODUCE, {"user": "bob", "client-id": "c"}) in report.usage
    assert len(report.usage) == MAX_FOLLOWED == gauge(sharing, "followed")
    assert report.is_partial
    assert gauge(sharing, "omitted") == CLIENT_IDS - MAX_FOLLOWED


def test_processes_above_the_maximum_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """A writer that invents names of processes takes no memory."""
    sharing = sharing_of(QuotaManagers())
    sharing.begin(START_MS)
    for number in range(1000):
        sharing.receive(UsageReport(process=f"p{number}", nodes=1, usage={}), START_MS)
    tick(sharing, START_MS + TICK_MS)
    assert sharing.processes == MAX_PROCESSES
    assert "64 processes share cluster-wide quotas, which is the maximum" in caplog.text


def test_others_that_use_too_much_leave_a_process_finite_throttle_times() -> None:
    """The largest usage that a report may have, of all processes, throttles a client for a time that fits."""
    managers = QuotaManagers()
    sharing = sharing_of(managers)
    sharing.begin(START_MS)
    managers.produce.record("alice", "c", 1.0, START_MS)
    (key,) = tick(sharing, START_MS + TICK_MS).usage
    most = Usage(rate=UNLIMITED, demand=UNLIMITED, claim=UNLIMITED)
    for number in range(MAX_PROCESSES):
        sharing.receive(UsageReport(process=f"p{number}", nodes=1000, usage={key: most}), START_MS + TICK_MS)
    tick(sharing, START_MS + 2 * TICK_MS)
    assert 0 < managers.produce.record("alice", "c", 1.0, START_MS + 2 * TICK_MS) < 2**31


def test_a_process_is_cut_off_until_it_has_begun(caplog: pytest.LogCaptureFixture) -> None:
    """Before the topic is open it knows no other process, and says so; then it shares at once."""
    managers = QuotaManagers()
    sharing = sharing_of(managers)
    caplog.set_level("INFO")
    tick(sharing, START_MS)
    assert gauge(sharing, "cut_off") == 1
    assert (
        "cluster-wide quotas are 1/1 of their limits here until topic __tidegate_usage is open" in caplog.text
    )
    sharing.begin(START_MS + TICK_MS)
    sharing.receive(UsageReport(process="other", nodes=1, usage={}), START_MS + TICK_MS)
    tick(sharing, START_MS + 2 * TICK_MS)
    assert gauge(sharing, "cut_off") == 0
    assert sharing.processes == 2


def test_a_process_that_begins_again_divides_by_the_last_number() -> None:
    """While the setting was off, others may have come or gone: until the topic is open, the last number counts."""
    managers = QuotaManagers()
    sharing = sharing_of(managers)
    sharing.begin(START_MS)
    sharing.receive(UsageReport(process="other", nodes=1, usage={"k": Usage()}), START_MS)
    tick(sharing, START_MS)
    sharing.end()
    now_ms = START_MS + 100 * LOST_AFTER_MS
    tick(sharing, now_ms)
    assert sharing.is_cut_off
    managers.produce.record("alice", "c", 1.0, now_ms)
    tick(sharing, now_ms + TICK_MS)
    sensor = managers.produce.sensor("alice", "c", now_ms + TICK_MS)
    assert sensor.share == pytest.approx(LIMIT / 2)

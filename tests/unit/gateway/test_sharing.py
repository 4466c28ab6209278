"""Cluster-wide quotas of one process: bounds, the division between users, and a process that has not begun."""

from collections.abc import Sequence

import pytest
from tests.simulation.shared_limit import START_MS, WINDOW_MS

from tidegate.gateway.shares import Usage
from tidegate.gateway.sharing import (
    LOST_AFTER_MS,
    MAX_PROCESSES,
    TICK_MS,
    Sharing,
)
from tidegate.gateway.usage_report import MAX_FOLLOWED, MAX_OMITTED, UsageReport
from tidegate.in_slices import run_at_once
from tidegate.quota import UNLIMITED, QuotaManagers, QuotaRecord, QuotaType
from tidegate.quota.managers.client_quota import cluster_key
from tidegate.quota.managers.extensions import CLUSTER_WIDE
from tidegate.quota.measure.cluster_sensor import ClusterSensor

LIMIT = 1000.0
CLIENT_IDS = 20_000
EACH_CLIENT = (("client-id", None), ("user", None))


def sharing_of(*brokers: QuotaManagers, process: str = "own") -> Sharing:
    """Return the sharing of a process with brokers and a limit for each client of each user."""
    sharing = Sharing(process, window_ms=WINDOW_MS)
    for managers in brokers:
        managers.apply(QuotaRecord(entity=EACH_CLIENT, key=QuotaType.PRODUCE.key, value=LIMIT))
        managers.apply(QuotaRecord(entity=(), key=CLUSTER_WIDE, value=1.0))
        sharing.add_node(managers)
    return sharing


def share(managers: QuotaManagers, user: str, client_id: str) -> float:
    """Return the share that the sensor of a client has."""
    sensor = managers.produce.existing_sensor(user, client_id)
    assert isinstance(sensor, ClusterSensor)
    return sensor.share


def exchange(sharings: Sequence[Sharing], now_ms: int) -> None:
    """Run a tick of each process, and pass its report to all."""
    for sharing in sharings:
        report = tick(sharing, now_ms)
        for each in sharings:
            each.receive(report, now_ms)


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
    assert len(report.omitted) == MAX_OMITTED
    assert gauge(sharing, "omitted") == CLIENT_IDS - MAX_FOLLOWED


def test_many_client_ids_of_a_user_leave_the_limits_of_others_at_other_processes() -> None:
    """Only the quotas that a process has no room for count as used there: that of another user stays."""
    brokers = [QuotaManagers(), QuotaManagers()]
    sharings = [sharing_of(each, process=f"p{number}") for number, each in enumerate(brokers)]
    for sharing in sharings:
        sharing.begin(START_MS)
    for at in range(60):
        now_ms = START_MS + at * TICK_MS
        for number in range(MAX_FOLLOWED + 10):
            brokers[0].produce.record("alice", f"c{number}", 10.0, now_ms)
        brokers[1].produce.record("alice", f"c{MAX_FOLLOWED + 5}", 400.0, now_ms)
        brokers[1].produce.record("bob", "c", 400.0, now_ms)
        exchange(sharings, now_ms)
        if at > 1:  # the processes know of each other
            assert share(brokers[1], "bob", "c") > 0.9 * LIMIT, at
            assert sum(share(each, "alice", f"c{MAX_FOLLOWED + 5}") for each in brokers) <= LIMIT * (
                1 + 1e-9
            ), at


def test_a_quota_without_room_at_one_broker_has_a_fair_share_at_each() -> None:
    """The brokers of a process together have no more than the limit."""
    brokers = [QuotaManagers(), QuotaManagers()]
    sharing = sharing_of(*brokers)
    sharing.begin(START_MS)
    for at in range(30):
        now_ms = START_MS + at * TICK_MS
        for number in range(MAX_FOLLOWED):
            brokers[0].produce.record("alice", f"c{number}", 10.0, now_ms)
        brokers[1].produce.record("alice", "c500", 10.0, now_ms)
        shares = [share(each, "alice", "c500") for each in brokers]
        assert sum(shares) <= LIMIT * (1 + 1e-9), (at, shares)
        exchange([sharing], now_ms)
        shares = [share(each, "alice", "c500") for each in brokers]
        assert sum(shares) <= LIMIT * (1 + 1e-9), (at, shares)


def test_a_fetch_carries_what_is_left_of_the_share() -> None:
    """It may have that, at least a tenth of a second's worth of the limit, and ten seconds' worth where it is alone."""
    managers = QuotaManagers()
    sharing = sharing_of(managers)
    managers.apply(QuotaRecord(entity=EACH_CLIENT, key=QuotaType.FETCH.key, value=LIMIT))
    sharing.begin(START_MS)
    for at, (others, least, most) in enumerate(((0.0, 10.0, 10.0), (0.6, 3.5, 4.0), (1.2, 0.1, 0.1))):
        now_ms = START_MS + at * TICK_MS
        managers.fetch.record("alice", "c", 1.0, now_ms)
        (key,) = tick(sharing, now_ms).usage
        usage = Usage(rate=others * LIMIT, demand=0.0, claim=others * LIMIT)
        if others:
            sharing.receive(UsageReport(process="other", nodes=1, usage={key: usage}), now_ms)
        tick(sharing, now_ms)
        largest = managers.fetch.max_value_in_window("alice", "c", lambda now_ms=now_ms: now_ms)
        assert least * LIMIT <= largest <= most * LIMIT


def test_a_quota_may_lose_its_place_while_usage_is_measured() -> None:
    """A tick goes on when clients of another user take the places of those that it has not come to."""
    managers = QuotaManagers()
    sharing = sharing_of(managers)
    sharing.begin(START_MS)
    for number in range(MAX_FOLLOWED):
        managers.produce.record("alice", f"c{number}", 1.0, START_MS)
    slices = sharing.tick_in_slices(START_MS + TICK_MS)
    next(slices)
    for number in range(MAX_FOLLOWED // 4):
        managers.produce.record("bob", f"c{number}", 1.0, START_MS + TICK_MS)
    report = run_at_once(slices)
    assert len(report.usage.keys() - report.omitted) == MAX_FOLLOWED - MAX_FOLLOWED // 4


def test_only_the_usage_of_the_report_that_came_back_is_confirmed() -> None:
    """A report that was not sent, as one before it was under way, has no part in the shares."""
    claims = []
    for is_late in (False, True):
        managers = QuotaManagers()
        sharing = sharing_of(managers)
        sharing.begin(START_MS)
        sharing.receive(UsageReport(process="other", nodes=1, usage={}), START_MS)
        managers.produce.record("alice", "c", 100.0, START_MS)
        first = tick(sharing, START_MS + TICK_MS)
        if not is_late:
            sharing.receive(first, START_MS + TICK_MS)
        managers.produce.record("alice", "c", 5000.0, START_MS + TICK_MS)
        tick(sharing, START_MS + 2 * TICK_MS)
        if is_late:
            sharing.receive(first, START_MS + 2 * TICK_MS)
        (usage,) = tick(sharing, START_MS + 3 * TICK_MS).usage.values()
        claims.append(usage.claim)
    assert claims[0] == claims[1]


def test_what_others_reported_before_the_setting_was_off_is_forgotten() -> None:
    """A process that has stopped meanwhile does not count, and a late report of the own process begins nothing."""
    sharing = sharing_of(QuotaManagers())
    sharing.begin(START_MS)
    sharing.receive(UsageReport(process="other", nodes=1, usage={}), START_MS)
    report = tick(sharing, START_MS)
    sharing.end()
    sharing.receive(report, START_MS + 1)
    tick(sharing, START_MS + TICK_MS)
    assert sharing.is_cut_off
    sharing.begin(START_MS + 2 * TICK_MS)
    tick(sharing, START_MS + 2 * TICK_MS)
    assert (sharing.is_cut_off, sharing.processes) == (False, 1)


def test_processes_above_the_maximum_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """A writer that invents names of processes takes no memory."""
    sharing = sharing_of(QuotaManagers())
    sharing.begin(START_MS)
    for number in range(1000):
        sharing.receive(UsageReport(process=f"p\n{number}", nodes=1, usage={}), START_MS)
    tick(sharing, START_MS + TICK_MS)
    assert sharing.processes == MAX_PROCESSES
    assert not any("\n" in line for line in caplog.messages)
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

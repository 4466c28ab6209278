"""Several processes of a gateway: the memory that they share, whose quotas are shared with whom, and their settings."""

import os
from collections.abc import Sequence

from tests.simulation.shared_limit import START_MS, WINDOW_MS

from tidegate.gateway.processes import Process, ProcessSharing, SharedReports
from tidegate.gateway.settings import broker_config
from tidegate.gateway.sharing import LOST_AFTER_MS, TICK_MS, Sharing
from tidegate.in_slices import run_at_once
from tidegate.quota import QuotaManagers, QuotaRecord, QuotaType
from tidegate.quota.managers.extensions import CLUSTER_WIDE
from tidegate.quota.measure.cluster_sensor import ClusterSensor
from tidegate.server.settings.config import ServerConfig

LIMIT = 1000.0
ALL = ServerConfig.load({"tidegate.quota.cluster.wide": "user=wide"})


class OneProcess:
    """A process with a node for each of two brokers, and a clock that the test sets."""

    def __init__(self, number: int, count: int, reports: SharedReports) -> None:
        self.now_ms = START_MS
        self.cluster = Sharing(f"cluster {number}", window_ms=WINDOW_MS)
        process = Process(number=number, count=count, reports=reports)
        self.sharing = ProcessSharing(process, self.cluster, window_ms=WINDOW_MS, now_ms=lambda: self.now_ms)
        self.sharing.set_cluster_wide(ALL)
        self.brokers = {broker_id: QuotaManagers() for broker_id in (1, 2)}
        for broker_id, managers in self.brokers.items():
            for entity in ("wide", "own"):
                key = QuotaType.PRODUCE.key
                managers.apply(QuotaRecord(entity=(("user", entity),), key=key, value=LIMIT))
            managers.apply(QuotaRecord(entity=(), key=CLUSTER_WIDE, value=1.0))
            self.sharing.add_node(broker_id, managers)

    def sensor(self, broker_id: int, user: str) -> ClusterSensor:
        """Return the sensor of a user."""
        found = self.brokers[broker_id].produce.existing_sensor(user, "")
        assert isinstance(found, ClusterSensor)
        return found


def tick(processes: Sequence[OneProcess], now_ms: int) -> None:
    """Run a tick of each process."""
    for process in processes:
        process.now_ms = now_ms
        run_at_once(process.sharing.tick_in_slices())


def test_a_report_is_read_once_by_each_process_and_survives_its_writer() -> None:
    """A forked process writes, and ends; this one reads what it has written."""
    reports = SharedReports(2, room=1000)
    assert reports.read(2) is None
    pid = os.fork()
    if pid == 0:
        reports.write(2, b"first")
        reports.write(2, b"second")
        os._exit(0)
    os.waitpid(pid, 0)
    assert reports.read(2) == (2, b"second")
    assert reports.read(2, after=2) is None


def test_a_report_that_is_being_written_is_not_read() -> None:
    """Its checksum does not fit."""
    reports = SharedReports(1, room=1000)
    reports.write(1, b"complete")
    reports._memory[20] ^= 1
    assert reports.read(1) is None


def test_quotas_of_a_broker_are_shared_by_its_processes_and_no_other_broker() -> None:
    """Usage at broker 1 in one process counts at broker 1 in the other, and not at broker 2."""
    reports = SharedReports(2, room=1 << 18)
    processes = [OneProcess(number, 2, reports) for number in (1, 2)]
    for process in processes:
        for managers in process.brokers.values():
            managers.produce.record("own", "", 1.0, START_MS)
    processes[0].brokers[1].produce.record("own", "", 5000.0, START_MS)
    for ticks in range(1, 4):
        tick(processes, START_MS + ticks * TICK_MS)
    now_ms = START_MS + 3 * TICK_MS
    first, second = (process.sensor(1, "own") for process in processes)
    assert first.is_of_broker
    assert second.is_of_broker
    assert abs(second.peek_rate(now_ms) - first.peek_rate(now_ms)) < 0.05 * first.peek_rate(now_ms)
    assert processes[1].sensor(2, "own").peek_rate(now_ms) < 1.0
    assert [process.sharing.processes(1) for process in processes] == [2, 2]


def test_cluster_wide_quotas_are_shared_with_all_gateways() -> None:
    """They are followed by the sharing of the cluster; a changed setting moves them."""
    process = OneProcess(1, 2, SharedReports(2, room=1 << 18))
    process.brokers[1].produce.record("wide", "", 1.0, START_MS)
    assert not process.sensor(1, "wide").is_of_broker
    assert {name: value for name, value, _ in process.cluster.gauges()}[
        "tidegate_cluster_quota_followed"
    ] == 1
    process.sharing.set_cluster_wide(ServerConfig.load({}))
    process.brokers[1].produce.sensor("wide", "", START_MS).decide(1.0, START_MS)
    assert process.sensor(1, "wide").is_of_broker


def test_a_process_that_is_lost_leaves_its_share() -> None:
    """The report that it has left in the memory counts no more after three seconds."""
    reports = SharedReports(2, room=1 << 18)
    processes = [OneProcess(number, 2, reports) for number in (1, 2)]
    tick(processes, START_MS + TICK_MS)
    tick(processes, START_MS + 2 * TICK_MS)
    assert processes[0].sharing.processes(1) == 2
    for ticks in range(3, 5 + LOST_AFTER_MS // TICK_MS):
        tick(processes[:1], START_MS + ticks * TICK_MS)
    assert processes[0].sharing.processes(1) == 1


def test_limits_are_those_of_the_gateway_and_metrics_have_ports_of_their_own() -> None:
    """Processes share the limits of connections; the ports of listeners are the same in all processes."""
    given = ServerConfig.load(
        {
            "listeners": "PLAINTEXT://127.0.0.1:19092",
            "max.connections": "10",
            "max.connections.per.ip": "9",
            "listener.name.plaintext.max.connections": "6",
            "tidegate.metrics.listener": "127.0.0.1:9300",
        }
    )
    config = broker_config(given, 1, Process(number=3, count=4))
    assert config["max.connections"] == 10
    assert config["max.connections.per.ip"] == 9
    assert config.listeners[0].limits.max_connections == 6
    assert config.listeners[0].address.port == 19093
    assert config.metrics is not None
    assert config.metrics.port == 11_301

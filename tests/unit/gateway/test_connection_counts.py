"""Limits of connections that several processes share: real memory, real processes, a virtual clock."""

import random
import time
from functools import partial

import pytest
from tests.unit.gateway.test_shared_states import forked

from tidegate.gateway.connection_counts import ConnectionCounts, SharedConnections
from tidegate.gateway.shared_states import SharedRates
from tidegate.quota.connections.connection_quotas import AdmissionOutcome, ConnectionQuotas
from tidegate.quota.connections.limits import ConnectionLimits, ListenerLimits

T0 = 1_700_000_000_000
SAMPLES = 4
MOST = 9
LISTENER = "EXTERNAL"
RACING = 4
WAIT_S = 30.0
LIMITS = ConnectionLimits(max_connections=MOST, max_connection_creation_rate=4, max_connections_per_ip=5)


class Processes:
    """The quotas of one broker in several processes, of which only the memory is real."""

    def __init__(self, count: int = 3, *, places: int = 256) -> None:
        self.counts = ConnectionCounts(count, places=places)
        self.rates = SharedRates(SAMPLES)
        self.quotas = [self.start(number) for number in range(1, count + 1)]

    def others(self, process: int, broker_id: int = 1) -> SharedConnections:
        """Return what a process knows of the others."""
        return SharedConnections(
            self.counts, self.rates, process=process, broker_id=broker_id, now_ms=lambda: T0
        )

    def start(self, process: int, limits: ConnectionLimits = LIMITS) -> ConnectionQuotas:
        """Return the quotas of a process that has just begun."""
        return new_quotas(self.others(process), limits)

    def kill(self, process: int) -> None:
        """End a process as the parent sees it."""
        self.counts.clear(process)
        del self.quotas[process - 1]


def new_quotas(others: SharedConnections | None, limits: ConnectionLimits = LIMITS) -> ConnectionQuotas:
    """Return quotas with a listener that has a limit of its own, and a limit of all addresses."""
    quotas = ConnectionQuotas(limits, samples=SAMPLES, window_ms=1000, others=others)
    quotas.add_listener(LISTENER)
    quotas.add_listener("SMALL", ListenerLimits(max_connections=3, max_connection_creation_rate=2))
    quotas.set_ip_rate(None, 2.0)
    return quotas


def fill(quotas: ConnectionQuotas, connections: int) -> None:
    """Admit connections of different addresses."""
    for _ in range(connections):
        assert quotas.slot_available(LISTENER)
        outcome = quotas.admit(LISTENER, f"192.0.2.{quotas.total}", now_ms=T0).outcome
        assert outcome is AdmissionOutcome.ACCEPTED


def test_connections_of_a_name_count_in_all_processes() -> None:
    """Until they are closed, or their process has ended; also where many addresses have been there before."""
    processes = Processes(2)
    first, second = processes.others(1), processes.others(2)
    for number in range(10_000):
        first.set_own(f"192.0.2.{number}", 1)
        assert second.count(f"192.0.2.{number}") == 1
        first.set_own(f"192.0.2.{number}", 0)
        assert second.count(f"192.0.2.{number}") == 0
    first.set_own("192.0.2.7", 3)
    processes.others(1, broker_id=2).set_own("192.0.2.7", 5)
    assert (first.count("192.0.2.7"), second.count("192.0.2.7")) == (0, 3)
    processes.counts.clear(1)
    assert second.count("192.0.2.7") == 0


def fill_table(others: SharedConnections, addresses: int = 2000) -> None:
    """Count a connection of each of more addresses than the table has places."""
    for number in range(addresses):
        others.set_own(f"198.51.{number >> 8}.{number & 255}", 1)


def test_an_address_without_a_place_has_a_part_of_its_limit(caplog) -> None:
    """Its process assumes as many connections of it in each of the others, and says so; the others admit it."""
    processes = Processes(2)
    fill_table(processes.others(1))
    assert {record.repeats for record in caplog.records} == {"connection counts"}
    assert "hint: " in caplog.records[0].getMessage()
    first, second = processes.quotas
    for quotas in processes.quotas:
        quotas.set_ip_rate(None, None)
        quotas.update_limits(ConnectionLimits(max_connections_per_ip=5))
    ip = next(ip for ip in (f"203.0.113.{number}" for number in range(99)) if is_unplaced(processes, ip))
    outcomes = [first.admit(LISTENER, ip, now_ms=T0).outcome for _ in range(3)]
    assert outcomes == [AdmissionOutcome.ACCEPTED] * 2 + [AdmissionOutcome.TOO_MANY_CONNECTIONS]
    assert first.address_is_full(ip)
    for _ in outcomes:
        first.release(LISTENER, ip)
    assert not first.address_is_full(ip)
    assert second.admit(LISTENER, ip, now_ms=T0).outcome is AdmissionOutcome.ACCEPTED


def is_unplaced(processes: Processes, name: str) -> bool:
    """Return whether the table of the first process has no place for a name."""
    processes.others(1).set_own(name, 1)
    is_seen = processes.others(2).count(name) == 1
    processes.others(1).set_own(name, 0)
    return not is_seen


def test_brokers_and_listeners_keep_their_places() -> None:
    """Addresses that come while a broker or a listener has no connections do not take its place."""
    processes = Processes(2)
    fill_table(processes.others(1))
    first, second = processes.quotas
    fill(first, 2)
    first.admit("SMALL", "192.0.2.99", now_ms=T0)
    others = processes.others(2)
    assert [others.count(name) for name in ("broker", f"listener {LISTENER}", "listener SMALL")] == [3, 2, 1]
    first.release("SMALL", "192.0.2.99")
    assert others.count("listener SMALL") == 0
    assert second.slot_available("SMALL")


@pytest.mark.parametrize("seed", range(20))
def test_processes_decide_as_one(seed: int) -> None:
    """Connections that come and go at random processes are held back, admitted and refused as at one process."""
    chosen = random.Random(seed)
    processes, one = Processes(), new_quotas(None)
    now_ms, opened = T0, []
    for _ in range(600):
        now_ms += chosen.choice((0, 1, 40, 200, 900))
        ip, listener = f"192.0.2.{chosen.randrange(4)}", chosen.choice((LISTENER, "SMALL"))
        here = chosen.choice(processes.quotas)
        hold_ms = one.record_arrival(listener, now_ms=now_ms)
        assert here.record_arrival(listener, now_ms=now_ms) == hold_ms, f"seed {seed}"
        assert here.slot_available(listener) == one.slot_available(listener), f"seed {seed}"
        assert here.listener_is_full(listener) == one.listener_is_full(listener), f"seed {seed}"
        assert here.address_is_full(ip) == one.address_is_full(ip), f"seed {seed}"
        if one.slot_available(listener):
            admission = one.admit(listener, ip, now_ms=now_ms)
            assert here.admit(listener, ip, now_ms=now_ms) == admission, f"seed {seed}"
            if admission.outcome is not AdmissionOutcome.THROTTLED:
                opened.append((here, listener, ip))
        if opened and chosen.random() < 0.4:
            there, *of = opened.pop(chosen.randrange(len(opened)))
            there.release(*of)
            one.release(*of)
    rates = {metric.name: metric.value for metric in one.metrics(now_ms)}
    for quotas in processes.quotas:
        seen = {metric.name: metric.value for metric in quotas.metrics(now_ms)}
        assert seen["broker-connection-accept-rate"] == rates["broker-connection-accept-rate"] > 0


def test_each_process_accepts_a_connection_in_a_window() -> None:
    """A listener is held back for at most a window, however far all processes together are above the rate."""
    processes = Processes()
    holds = [processes.quotas[number % 3].record_arrival(LISTENER, now_ms=T0) for number in range(90)]
    assert holds[:12] == [0] * 12  # 4 a second, in the three seconds of a window that has begun
    assert (holds[12], max(holds), holds[-1]) == (250, 1000, 1000)


def test_a_killed_process_gives_its_connections_back() -> None:
    """Its slots are free for the others, and for the process that takes its place."""
    processes = Processes()
    first, second, _ = processes.quotas
    fill(first, 6)
    fill(second, 3)
    assert not second.slot_available(LISTENER)
    processes.kill(1)
    fill(second, 4)
    fill(processes.start(1), 2)
    assert not second.slot_available(LISTENER)


def test_each_process_closes_its_part_of_too_many() -> None:
    """After the maximum was lowered; one after the other, or all at once."""
    processes = Processes()
    for quotas, connections in zip(processes.quotas, (6, 2, 1), strict=True):
        fill(quotas, connections)
    assert [quotas.excess() for quotas in processes.quotas] == [0, 0, 0]
    for quotas in processes.quotas:
        quotas.update_limits(ConnectionLimits(max_connections=3))
    assert [quotas.excess() for quotas in processes.quotas] == [4, 2, 1]
    while closing := [quotas for quotas in processes.quotas if quotas.excess()]:
        for quotas in closing:
            for ip in [*quotas._counts][: quotas.excess()]:
                quotas.release(LISTENER, ip)
    assert sum(quotas.total for quotas in processes.quotas) == 3


def test_no_limit_is_exceeded_by_processes_that_race_for_the_last_slot() -> None:
    """Four real processes fill one broker after the other, and begin each at the same moment."""
    processes = Processes(RACING, places=1 << 14)
    brokers = range(1, 101)

    def race(process: int) -> None:
        for broker_id in brokers:
            others = processes.others(process, broker_id)
            quotas = new_quotas(others, ConnectionLimits(max_connections=MOST))
            quotas.set_ip_rate(None, None)
            others.set_own("ready", 1)
            until_s = time.monotonic() + WAIT_S
            while others.count("ready") < RACING - 1:
                assert time.monotonic() < until_s
            for number in range(3 * MOST):
                if quotas.slot_available(LISTENER):
                    quotas.admit(LISTENER, f"192.0.2.{number}", now_ms=T0)

    children = [forked(partial(race, process)) for process in range(1, RACING + 1)]
    for child in children:
        child.__enter__()
    for child in children:
        child.__exit__(None, None, None)
    counted = [processes.others(0, broker_id).count("broker") for broker_id in brokers]
    assert max(counted) == MOST
    assert min(counted) > MOST - RACING, counted  # two that ask for the last slot at once may both wait

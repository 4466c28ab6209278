"""Cluster-wide quotas: processes under moving load, lost, cut off, and alone.

`long_shared_limit` measures the error bound.
"""

import pytest
from tests.simulation.long_shared_limit import (
    LIMIT,
    LOADS,
    PRODUCE,
    WORST,
    busiest_minute_and_all,
    clients,
    gateways,
    of_one_gateway,
)
from tests.simulation.shared_limit import Process, Run, gateway, one_broker

from tidegate.quota import QuotaRecord
from tidegate.quota.managers.extensions import CLUSTER_WIDE


@pytest.mark.parametrize("made", [gateways, of_one_gateway])
@pytest.mark.parametrize("name", ["skewed, and moves", "bursts"])
def test_eight_processes_admit_what_one_broker_admits(name: str, made) -> None:
    """A minute of skewed, moving load is within the bound that `long_shared_limit` measures over ten."""
    processes = made(LIMIT, PRODUCE)
    minute, total = busiest_minute_and_all(processes, LOADS[name], seed=1, minutes=2)
    minute_of_one, total_of_one = busiest_minute_and_all(
        [one_broker(LIMIT, PRODUCE)], LOADS[name], seed=1, minutes=2
    )
    assert minute <= WORST * minute_of_one
    assert total >= 0.85 * total_of_one


def some_gateways(number: int) -> list[Process]:
    """Return gateway processes with the limit for Produce."""
    return [gateway(each, LIMIT, PRODUCE) for each in range(number)]


def rate(run: Run, until_s: int, seconds: int = 44) -> float:
    """Run to a time, and return the rate of the last seconds as a multiple of the limit."""
    outcome = run.until(until_s * 1000)
    return outcome.bytes((until_s - seconds) * 1000, until_s * 1000) / (seconds * LIMIT)


def test_one_process_has_all_of_the_limit_within_seconds() -> None:
    """A client that moves to another process has nearly all of the limit there within five seconds."""
    load = clients(4, 2e4, lambda each, at: 0 if at < 30_000 else 1)
    outcome = Run(some_gateways(8), load, seed=1).until(60_000)
    assert 0.9 <= outcome.bytes(35_000, 57_000) / (22 * LIMIT) <= 1.1


def test_the_share_of_a_lost_process_is_used_by_the_others() -> None:
    """When a process is killed, the others use its share after three seconds and the rest of the window."""
    processes = some_gateways(2)
    run = Run(processes, clients(2, 2e4, lambda each, at: each if at < 30_000 else 1), seed=1)
    run.until(30_000)
    processes[0].is_alive = False
    assert rate(run, 90) > 0.85
    assert processes[1].sharing.processes == 1


@pytest.mark.parametrize("lost", ["hears", "speaks"])
def test_a_process_that_is_cut_off_has_its_fair_share(lost: str, caplog: pytest.LogCaptureFixture) -> None:
    """It says so, limits its clients to the limit divided by the last number of processes, and shares again later."""
    processes = some_gateways(4)
    run = Run(processes, clients(8, 2e4, lambda each, at: 0), seed=1)
    assert rate(run, 60) > 0.85
    setattr(processes[0], lost, False)
    assert 0.2 < rate(run, 200, seconds=88) < 0.3
    assert processes[0].sharing.is_cut_off
    assert "cluster-wide quotas are 1/4 of their limits here" in caplog.text
    setattr(processes[0], lost, True)
    assert rate(run, 280) > 0.85
    assert not processes[0].sharing.is_cut_off


def test_brokers_of_one_process_share_the_limit() -> None:
    """Two nodes of a process are two sensors of the limit."""
    process = gateway(0, LIMIT, PRODUCE)
    other = one_broker(LIMIT, PRODUCE)
    other.managers.apply(QuotaRecord(entity=(), key=CLUSTER_WIDE, value=1.0))
    process.sharing.add_node(other.managers)
    run = Run([process, other], clients(4, 2e4, lambda each, at: each), seed=1)
    assert 0.85 < rate(run, 60) < 1.1


def test_a_single_process_decides_as_one_broker() -> None:
    """Without other brokers and processes, each throttle time of Produce is Kafka's."""
    load = clients(5, 7e4, lambda each, at: 0)
    alone, one = Run(some_gateways(1), load, seed=3), Run([one_broker(LIMIT, PRODUCE)], load, seed=3)
    assert alone.until(300_000).admitted == one.until(300_000).admitted

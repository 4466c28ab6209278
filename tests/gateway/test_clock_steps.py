"""Gateways whose wall clock is stepped: quotas, what is shared between processes, and what is kept in the cluster."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import pytest
from bench.ports import free_port
from tests.e2e.lateness import Lateness
from tests.e2e.throttled_clients import Load, produce_plain_waiting
from tests.gateway import stepped_clock
from tests.gateway.raw_client import RawClient
from tests.gateway.test_processes import SeveralProcesses, admitted
from tests.waiting import wait_until

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
STEPS_MS = (-HOUR_MS, DAY_MS)
RATE = 200_000
VALUE_BYTES = 10_000
WINDOW_S = 3.0
SECONDS = 9.0
OPTIONS = (
    *("--override", "quota.window.num=4"),
    *("--override", "controller.quota.window.num=4"),
    *("--override", "tidegate.usage.parquet.enable=false"),
)


class SteppedGateway(SeveralProcesses):
    """A gateway whose wall clock a test steps."""

    def step(self, step_ms: int) -> None:
        """Set how far the wall clock is ahead."""
        self.directory.mkdir(parents=True, exist_ok=True)
        stepped_clock.set_step(self.directory / "step", step_ms)


@pytest.fixture
def stepped(kafka, tmp_path: Path) -> Iterator[Callable[..., SteppedGateway]]:
    """Return a function that starts a gateway with a clock of its own, given options of the command."""
    started: list[SteppedGateway] = []

    def start(*options: str) -> SteppedGateway:
        directory = tmp_path / f"stepped-{len(started)}"
        gateway = SteppedGateway(directory, kafka.address, (*OPTIONS, *options))
        gateway.program = (stepped_clock.__file__, str(directory / "step"))
        gateway.step(0)
        started.append(gateway)
        return started[-1].start()

    yield start
    for gateway in started:
        gateway.close()


@pytest.mark.parametrize("step_ms", STEPS_MS)
def test_quotas_go_on_after_a_step(step_ms, kafka, stepped, create_topic, unique):
    """A client over its quota waits as long as before, one within it does not wait, and quotas can be changed."""
    topic = create_topic(kafka, unique)
    gateway = stepped()
    with RawClient(gateway.port, unique) as busy, RawClient(gateway.port, "other") as other:
        other.set_quotas(unique, producer_byte_rate=RATE)
        other.set_quotas("other", producer_byte_rate=RATE)
        wait_until(lambda: other.quota("other") == RATE, told=lambda: gateway.log)
        busy.produce(topic, int(RATE * WINDOW_S * 1.5))
        gateway.step(step_ms)
        throttled_ms = busy.produce(topic, 10)["throttle_time_ms"]
        assert 0 < throttled_ms <= 1.5 * WINDOW_S * 1000
        time.sleep(throttled_ms / 1000 + WINDOW_S)
        for _ in range(5):
            assert busy.produce(topic, 10)["throttle_time_ms"] == 0
            assert other.produce(topic, 10)["throttle_time_ms"] == 0
        other.set_quotas("other", producer_byte_rate=2.0 * RATE)
        wait_until(lambda: other.quota("other") == 2.0 * RATE, told=lambda: gateway.log)
    (jump_ms,) = re.findall(r"wall clock jumped by ([+-]\d+) ms", gateway.log)
    assert int(jump_ms) == pytest.approx(step_ms, abs=50)


@pytest.mark.parametrize("step_ms", [-DAY_MS, DAY_MS])
def test_gateways_with_different_clocks_share_a_limit(
    step_ms, kafka, stepped, create_topic, unique, lateness: Lateness
):
    """One whose clock is a day off publishes its usage, and reads that of the other; together they admit the limit."""
    topic = create_topic(kafka, unique)
    ports = [free_port(2) for _ in range(2)]
    gateways = [
        stepped(
            *("--override", "tidegate.quota.cluster.wide=all"),
            *("--override", f"tidegate.metrics.listener=127.0.0.1:{port}"),
        )
        for port in ports
    ]

    def metric(port: int, name: str) -> float:
        text = urlopen(f"http://127.0.0.1:{port + 1}/metrics").read().decode()
        return float(text.partition(f"\n{name} ")[2].split()[0])

    for gateway in gateways:
        with RawClient(gateway.port, "admin") as admin:
            if gateway is gateways[0]:
                admin.set_quotas(unique, producer_byte_rate=RATE)
            wait_until(lambda admin=admin: admin.quota(unique) == RATE, told=lambda: gateways[0].log)
    for port in ports:
        wait_until(lambda port=port: metric(port, "tidegate_cluster_quota_processes") >= 2)
    gateways[1].step(step_ms)
    begin = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(
                produce_plain_waiting,
                Load(port=each.port, client_id=unique, topic=topic, value_bytes=VALUE_BYTES, seconds=SECONDS),
            )
            for each in gateways
        ]
        results = [job.result() for job in jobs]
    together = sum(admitted(each, begin, SECONDS) for each in results)
    limit, burst = RATE * SECONDS, RATE * WINDOW_S
    assert limit - burst <= together <= limit + 1.5 * burst, f"{together:,}"
    for gateway, port in zip(gateways, ports, strict=True):
        wait_until(
            lambda port=port: (
                metric(port, "tidegate_cluster_quota_cut_off") == 0
                and metric(port, "tidegate_cluster_quota_processes") >= 2
            ),
            told=lambda gateway=gateway: gateway.log,
        )
        # A process that stands still for 3 s is cut off from the others.
        assert lateness.has_stalled(2.0) or "cut off" not in gateway.log


@pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS])
def test_a_process_that_starts_after_a_step_shares_the_mutation_quota(step_ms, kafka, stepped, unique):
    """Whichever process a client asks, it neither waits for an hour, nor has a new burst."""
    rate, burst = 0.5, 1.5
    gateway = stepped("--processes", "2")
    with RawClient(gateway.port, "admin") as admin:
        admin.set_quotas(unique, controller_mutation_rate=rate)
    wait_until(lambda: is_known_by_all(gateway, unique, rate), told=lambda: gateway.log)
    created = throttled_ms = 0
    begin = time.monotonic()

    def create(tries: int) -> None:
        nonlocal created, throttled_ms
        for _ in range(tries):
            with RawClient(gateway.port, unique) as client:
                answer = client.create_topics((f"{unique}-{time.monotonic_ns()}", 1))
                created += answer["topics"][0]["error_code"] == 0
                throttled_ms = max(throttled_ms, answer["throttle_time_ms"])

    create(8)
    assert created
    gateway.step(step_ms)
    since = len(gateway.log)
    os.kill(gateway.children[1], signal.SIGKILL)
    wait_until(lambda: " serves" in gateway.log[since:], told=lambda: gateway.log)
    create(24)
    assert created <= burst + 1 + rate * (time.monotonic() - begin) + 1, created
    assert 0 < throttled_ms < 10_000, throttled_ms


def is_known_by_all(gateway: SteppedGateway, client_id: str, rate: float) -> bool:
    """Return whether connections to any of two processes find a mutation quota."""
    for _ in range(20):
        with RawClient(gateway.port, "admin") as admin:
            if admin.quota(client_id, "controller_mutation_rate") != rate:
                return False
    return True

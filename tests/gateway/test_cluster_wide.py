"""Cluster-wide quotas: gateway processes before one cluster share a limit by demand."""

import asyncio
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from bench.ports import free_port
from tests.e2e.throttled_clients import Admissions, Load, fetch_plain_waiting, produce_plain_waiting
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.raw_client import RawClient
from tests.waiting import wait_until

from tidegate.client.settings import client_settings
from tidegate.gateway.shared_mutations import SharedMutations
from tidegate.gateway.sharing import LOST_AFTER_MS, Sharing
from tidegate.gateway.usage_topic import UsageExchange

RATE = 200_000
VALUE_BYTES = 10_000
WINDOW_S = 3.0
SETTINGS = ("tidegate.quota.cluster.wide=all", "quota.window.num=4", "tidegate.usage.parquet.enable=false")
SECONDS = 9.0
STOPPED_S = LOST_AFTER_MS / 1000 + 0.7


@pytest.fixture(scope="module")
def three(kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[GatewayProcess]]:
    """Return three gateways that share their quotas."""
    directory = tmp_path_factory.mktemp("three")
    options = [option for setting in SETTINGS for option in ("--override", setting)]
    processes = [
        GatewayProcess(directory / str(number), kafka.address, tuple(options)) for number in range(3)
    ]
    for process in processes:
        process.start()
    yield processes
    for process in processes:
        process.close()


def admitted(admissions: Admissions, begin: float, seconds: float) -> int:
    """Return the bytes of a range of time."""
    return sum(size for at, size in admissions if begin <= at < begin + seconds)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("work", "quota"),
    [(produce_plain_waiting, "producer_byte_rate"), (fetch_plain_waiting, "consumer_byte_rate")],
)
def test_processes_share_a_limit(work, quota, kafka, three, create_topic, unique):
    """Clients at three processes get the limit together, not each; when two clients leave, the third gets all of it."""
    topic = create_topic(kafka, unique)
    with RawClient(three[0].port, "admin") as admin:
        admin.produce(topic, VALUE_BYTES)
        admin.set_quotas(unique, **{quota: RATE})
    for process in three:
        with RawClient(process.port, "admin") as admin:
            wait_until(
                lambda admin=admin: admin.quota(unique, quota) == RATE,
                10.0,
                told=lambda process=process: process.log,
            )

    def run(process: GatewayProcess, seconds: float) -> Admissions:
        load = Load(
            port=process.port, client_id=unique, topic=topic, value_bytes=VALUE_BYTES, seconds=seconds
        )
        return work(load)

    begin = time.monotonic()
    with ThreadPoolExecutor(3) as pool:
        jobs = [
            pool.submit(run, process, seconds)
            for process, seconds in zip(three, (2 * SECONDS, SECONDS, SECONDS), strict=True)
        ]
        results = [job.result() for job in jobs]
    limit, burst = RATE * SECONDS, RATE * WINDOW_S
    together = sum(admitted(each, begin, SECONDS) for each in results)
    alone = admitted(results[0], begin + SECONDS, SECONDS)
    for found in (together, alone):
        assert limit - burst <= found <= limit + 1.5 * burst, f"together {together:,}, alone {alone:,}"


def test_a_process_that_was_stopped_reads_the_topic_from_its_end(three):
    """The reports that were written meanwhile, of processes that may have ended since, are old."""
    process = three[0]
    assert process.process is not None
    begin = len(process.log)
    process.process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(STOPPED_S)
    finally:
        process.process.send_signal(signal.SIGCONT)
    shared = "can be read: cluster-wide quotas and mutation quotas are shared"
    wait_until(lambda: shared in process.log[begin:], 10.0, told=lambda: process.log)
    assert "cut off from the other gateway processes" not in process.log[begin:]


def test_a_process_that_cannot_open_the_topic_is_cut_off(caplog):
    """As after SIGHUP with a cluster that does not answer: the log and the metric say so."""
    sharing = Sharing("own", window_ms=11_000)
    settings = client_settings(
        {
            "bootstrap.servers": f"127.0.0.1:{free_port()}",
            "default.api.timeout.ms": "300",
            "request.timeout.ms": "200",
        }
    )
    exchange = UsageExchange(
        settings,
        sharing,
        mutations=SharedMutations("own"),
        now_ms=lambda: int(time.monotonic() * 1000),
        is_wanted=lambda: True,
    )

    async def run() -> None:
        running = asyncio.create_task(exchange.run())
        async with asyncio.timeout(10.0):
            while "cannot share" not in caplog.text:
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await exchange.close()

    asyncio.run(run())
    assert "until the cluster answers, they are 1/1 of their limits here" in caplog.text
    assert ("tidegate_cluster_quota_cut_off", True) in [(name, value) for name, value, _ in sharing.gauges()]

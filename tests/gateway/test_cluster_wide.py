"""Cluster-wide quotas: gateway processes before one cluster share a limit by demand."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.e2e.throttled_clients import Admissions, Load, fetch_plain_waiting, produce_plain_waiting
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.raw_client import RawClient

RATE = 200_000
VALUE_BYTES = 10_000
WINDOW_S = 3.0
SETTINGS = ("tidegate.quota.cluster.wide=all", "quota.window.num=4", "tidegate.usage.parquet.enable=false")
SECONDS = 9.0


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
    time.sleep(1.0)

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

"""Our broker answers as a real Apache Kafka 4.3.1 did, scenario by scenario, under `tidegate.kafka.exact`."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.e2e.broker import Broker
from tests.e2e.recordings import Player, apis, broker_config, scenarios

FILES = (
    "alter_client_quotas",
    "api_versions",
    "connection_quotas",
    "controller_mutation",
    "describe_client_quotas",
    "fetch_throttle",
    "frames",
    "produce_throttle",
    "request_throttle",
    "windows_1x1",
    "windows_2x5",
    "windows_3x2",
)
SERVED = {
    "AlterClientQuotas", "ApiVersions", "CreatePartitions", "CreateTopics", "DeleteTopics", "DescribeClientQuotas",
    "DescribeCluster", "DescribeConfigs", "DescribeTopicPartitions", "Fetch", "FindCoordinator", "InitProducerId",
    "ListOffsets", "Metadata", "OffsetCommit", "OffsetFetch", "Produce",
}  # fmt: skip
"""The APIs that the broker serves; a scenario that uses another cannot be played yet (README, "does / does not")."""

EXCEPTIONS = {
    "coordinators-ready": "asks for the coordinator of a transaction, and transactions are not served",
    "fetch-session-throttled": "fetch sessions are not kept: every answer is to a full fetch",
    "fetch-session-throttled-v15": "the same",
    "request-quota-init_producer_id": "Kafka's transaction coordinator was still loading (error 14)",
}
"""Scenarios that need what we do not have, and why."""


AT_A_TIME = 4
"""Files played side by side, each on a broker of its own: they wait for throttles most of the time."""


@pytest.fixture(scope="session")
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[list[str]]]]:
    """Return what differs, by file, for the files whose tests are to run."""
    names = [item.callspec.params["name"] for item in request.session.items if item.path == Path(__file__)]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        yield {name: pool.submit(_differences, name, tmp_path_factory.mktemp(name)) for name in names}


@pytest.mark.parametrize("name", FILES)
def test_answers_as_recorded(played: dict[str, Future[list[str]]], name: str) -> None:
    """Every scenario of a file, in order, on one broker that starts empty."""
    failures = played[name].result()
    assert not failures, f"{len(failures)} scenarios differ:\n" + "\n".join(failures)


def _differences(name: str, directory: Path) -> list[str]:
    config = {
        key: value
        for key, value in broker_config(name).items()
        if "window" in key or key in ("num.partitions", "socket.request.max.bytes", "log.retention.ms")
    }
    broker = Broker(directory, {**config, "tidegate.kafka.exact": "true"}).start()
    failures = []
    try:
        for scenario in scenarios(name):
            if apis(scenario) <= SERVED and scenario["name"] not in EXCEPTIONS:
                try:
                    Player(broker.port).play(scenario)
                except AssertionError as error:
                    failures.append(str(error))
    finally:
        broker.close()
    return failures

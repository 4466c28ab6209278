"""Our broker answers as a real Apache Kafka 4.3.1 did, scenario by scenario, under `tidegate.kafka.exact`."""

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


@pytest.mark.parametrize("name", FILES)
def test_answers_as_recorded(tmp_path, name: str) -> None:
    """Every scenario of a file, in order, on one broker that starts empty."""
    config = {
        key: value
        for key, value in broker_config(name).items()
        if "window" in key or key in ("num.partitions", "socket.request.max.bytes")
    }
    directory = tmp_path / "broker"
    directory.mkdir()
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
    assert not failures, f"{len(failures)} scenarios differ:\n" + "\n".join(failures)

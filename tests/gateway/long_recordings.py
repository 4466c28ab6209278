"""A gateway before a real Kafka answers as Kafka itself did: the recordings of `tests/vectors/wire` about quotas.

A scenario in `OTHERWISE` goes another way, for the reason that it names; one that goes as recorded must leave the list,
unless milliseconds decide.
"""

from collections.abc import Callable

import pytest
from tests.e2e.lateness import Lateness
from tests.e2e.test_recordings import FILES
from tests.gateway.gateway_process import GatewayProcess
from tests.vectors.wire_brokers import remove_quotas, started
from tests.vectors.wire_player import NO_EXCEPTIONS, Player, StepDiffersError
from tests.vectors.wire_recording import read_recording

PLAYED = (
    "alter_client_quotas", "connection_quotas", "controller_mutation", "describe_client_quotas", "fetch_throttle",
    "produce_throttle", "request_throttle", "windows_1x1", "windows_2x5", "windows_3x2",
)  # fmt: skip
OTHERWISE = {
    "controller_mutation": {
        "auto-topic-creation": "G7",
        "create-partitions-v3": "G19",
        "create-topics-v6": "G6",
        "create-topics-v7": "G6",
        "failed-topics-are-free": "G6",
    },
    "fetch_throttle": {
        "fetch-from-follower-not-throttled": "G18",
        "fetch-throttled-v17": "G2",
        "fetch-throttled-v18": "G2",
    },
    "produce_throttle": {"produce-bad-records-not-charged": "G17"},
    "request_throttle": {
        "request-quota-api_versions": "G2",
        "request-quota-exempt": "G18",
        "request-quota-sasl_handshake": "G10",
        "request-quota-write_txn_markers": "G18",
    },
}
"""File to scenario to row of docs/kafka-differences.md."""
MILLISECONDS = {"create-partitions-v3"}
"""Scenarios that go as recorded if the broker has learned of a change in time."""


@pytest.mark.parametrize("file", PLAYED)
def test_answers_as_recorded(gateway_before: Callable[..., GatewayProcess], file: str):
    """With the settings of the recording, before a new Kafka."""
    recording = read_recording(FILES[file])
    windows = [
        option
        for name, value in recording.broker_config.items()
        if "quota" in name
        for option in ("--override", f"{name}={value}")
    ]
    differing: dict[str, str] = {}
    with started("kafka", recording) as (host, port), Lateness() as lateness:
        gateway = gateway_before(f"{host}:{port}", *windows, "--override", "tidegate.kafka.exact=true")
        address = (host, gateway.port)
        for scenario in recording.scenarios:
            try:
                Player(address, NO_EXCEPTIONS, lateness, 0, None).play(scenario)
            except StepDiffersError as error:
                differing[scenario["name"]] = str(error)
                remove_quotas(address)
        assert "Traceback" not in gateway.log
        gateway.close()
    expected = OTHERWISE.get(file, {}).keys()
    assert differing.keys() | (MILLISECONDS & expected) == expected, differing

"""The commands of `tidegate recommend` set its quotas on a real Apache Kafka, with Kafka's own kafka-configs."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from bench.ladder.brokers import BenchBroker
from kafka.protocol.admin import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from tests.e2e.plain_client import PlainClient

from tidegate.config.quotas_file import QuotaEntry, QuotasFile
from tidegate.pipeline.proposals.notes import kafka_configs_text

pytestmark = pytest.mark.java

_JVM = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_NAMES = ("checkout", 'a\'b "c" $(d)`', "--entity-default", "<default>", "é,=[x]")


def _entries() -> list[QuotaEntry]:
    rates = {"producer_byte_rate": 1048576.0, "consumer_byte_rate": 12345.0, "controller_mutation_rate": 4.8}
    users = [QuotaEntry(entity=(("user", name),), values={"request_percentage": 12.5}) for name in _NAMES]
    return [
        QuotaEntry(entity=(("user", None),), values=rates, reason="the default"),
        *users,
        QuotaEntry(entity=(("client-id", None), ("user", None)), values=rates),
        QuotaEntry(entity=(("client-id", "x"), ("user", "a b")), values=rates),
        QuotaEntry(entity=(("client-id", "-x"),), values=rates),
    ]


def _described(address: str) -> dict[frozenset[tuple[str, str | None]], dict[str, float]]:
    """Return the quotas of a broker by entity, as its protocol says."""
    with PlainClient(int(address.partition(":")[2]), "asks") as client:
        request = DescribeClientQuotasRequest[0](components=[], strict=False)
        answer = client.ask(request, DescribeClientQuotasResponse[0])
    return {
        frozenset((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries
    }


@pytest.mark.parametrize("name", ["kafka", "tidegate"])
def test_the_commands_set_what_was_proposed(
    beside_kafka: dict[str, BenchBroker], kafka_classpath: str, tmp_path: Path, name: str
) -> None:
    """Every entity, whatever it is called, and every value."""
    command = tmp_path / "kafka-configs.sh"
    java = shlex.join([*_JVM, "-cp", kafka_classpath, "kafka.admin.ConfigCommand"])
    command.write_text(f'#!/bin/sh\nexec {java} "$@"\n')
    command.chmod(0o755)
    entries = _entries()
    script = kafka_configs_text(QuotasFile(entries=tuple(entries)), ["what it is"])
    address = beside_kafka[name].address
    environ = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "BOOTSTRAP": address}
    done = subprocess.run(
        ["/bin/sh"], input=script, env=environ, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert _described(address) == {frozenset(entry.entity): dict(entry.values) for entry in entries}

"""Apache Kafka's own Java tools against `tidegate serve`."""

import re
import subprocess

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.e2e.kafka_commands import run_commands

pytestmark = pytest.mark.java
JVM = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def run(classpath, tool, *arguments):
    """Run a Java tool to its end and return what it printed."""
    done = subprocess.run(
        [*JVM, "-cp", classpath, tool, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_producer_performance(kafka_classpath, broker, topic):
    """kafka-producer-perf-test, idempotent and acks=all by default, delivers every record."""
    out = run(
        kafka_classpath,
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", "5000", "--record-size", "100", "--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={broker.address}"),
    )
    assert re.search(r"^5000 records sent", out, re.MULTILINE), out
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "unused"})
    try:
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10) == (0, 5000)
    finally:
        consumer.close()


def test_topic_command(kafka_classpath, broker, unique):
    """kafka-topics creates a topic."""
    out = run(
        kafka_classpath,
        "org.apache.kafka.tools.TopicCommand",
        *("--bootstrap-server", broker.address, "--create", "--topic", unique, "--partitions", "3"),
    )
    assert f"Created topic {unique}." in out


def test_topic_command_does_not_retry_error_89(kafka_classpath, broker, unique, tmp_path):
    """kafka-topics prints the refusal of the mutation quota on stdout, and exits with code 1 (B§9.4)."""
    file = tmp_path / "client.properties"
    file.write_text(f"client.id={unique}\n")
    server = ("--bootstrap-server", broker.address, "--command-config", str(file))
    topics, of_client = (
        "org.apache.kafka.tools.TopicCommand",
        ("--entity-type", "clients", "--entity-name", unique),
    )
    create = (topics, *server, "--create", "--partitions", "50", "--topic")
    commands = [
        (
            "kafka.admin.ConfigCommand",
            *server,
            "--alter",
            "--add-config",
            "controller_mutation_rate=0.5",
            *of_client,
        ),
        (*create, unique),  # admitted: the tokens may go below zero
        (*create, f"{unique}-2"),
        (topics, *server, "--list"),
    ]
    _, created, refused, listed = run_commands(kafka_classpath, commands, tmp_path)
    assert created == (0, f"Created topic {unique}.\n")
    assert refused[0] == 1
    assert refused[1].startswith(
        "Error while executing topic command : The throttling quota has been exceeded."
    )
    assert unique in listed[1].splitlines()
    assert f"{unique}-2" not in listed[1].splitlines()


OF_THE_CLUSTER = """\
Default configs for brokers in the cluster are:
  min.insync.replicas=1 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:min.insync.replicas=1}
"""
"""What kafka-configs prints of a new cluster of Apache Kafka 4.3.1."""


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        ((), "Dynamic configs for broker 1 are:\n" + OF_THE_CLUSTER),
        (("--entity-default",), OF_THE_CLUSTER),
        (("--entity-name", "1"), "Dynamic configs for broker 1 are:\n"),
        (("--entity-name", "7"), "The broker '7' doesn't exist and doesn't have dynamic config.\n"),
    ],
)
def test_config_command_describes_brokers(kafka_classpath, broker, arguments, printed):
    """kafka-configs prints of our broker what it prints of Kafka."""
    describe = ("--bootstrap-server", broker.address, "--describe", "--entity-type", "brokers")
    assert run(kafka_classpath, "kafka.admin.ConfigCommand", *describe, *arguments) == printed


def test_config_command_describes_all(kafka_classpath, broker):
    """`--all` prints every setting with where it comes from."""
    describe = (
        "--bootstrap-server",
        broker.address,
        "--describe",
        "--entity-type",
        "brokers",
        "--entity-name",
        "1",
    )
    lines = run(kafka_classpath, "kafka.admin.ConfigCommand", *describe, "--all").splitlines()
    assert lines[0] == "All configs for broker 1 are:"
    assert "  quota.window.num=11 sensitive=false synonyms={DEFAULT_CONFIG:quota.window.num=11}" in lines
    assert "  log.flush.interval.ms=null sensitive=false synonyms={}" in lines
    assert len(lines) > 60

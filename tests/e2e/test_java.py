"""Apache Kafka's own Java tools against `tidegate serve`."""

import re
import subprocess

import pytest
from confluent_kafka import Consumer, TopicPartition

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

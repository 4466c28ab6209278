"""Kafka's own commands for logs, leaders and topics' settings against `tidegate serve`, in one Java process."""

import json

import pytest
from tests.e2e.kafka_commands import run_commands
from tests.unit.storage.logs import batch
from tests.vectors.wire_brokers import ask

from tidegate.api_keys import CREATE_TOPICS, PRODUCE

pytestmark = pytest.mark.java

TOOLS = "org.apache.kafka.tools"
RECORDS = 5


def test_commands_for_logs_leaders_and_settings(kafka_classpath, new_broker, tmp_path):
    """Each does what it does of Apache Kafka, and says so."""
    broker = new_broker()
    name = "logs"
    address = "127.0.0.1", broker.port
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    ask(address, CREATE_TOPICS, 5, {"topics": [topic], "timeout_ms": 5000, "validate_only": False})
    data = {"name": name, "partition_data": [{"index": 0, "records": batch(RECORDS)}]}
    ask(
        address,
        PRODUCE,
        9,
        {"transactional_id": None, "acks": -1, "timeout_ms": 5000, "topic_data": [data]},
    )
    offsets = tmp_path / "offsets.json"
    deleted = [{"topic": name, "partition": 0, "offset": 2}]
    offsets.write_text(json.dumps({"partitions": deleted, "version": 1}))
    server = ("--bootstrap-server", broker.address)
    of_topic = ("--entity-type", "topics", "--entity-name", name)
    config = ("kafka.admin.ConfigCommand", *server)
    of_brokers = ("--entity-type", "brokers", "--entity-default")
    commands = [
        (f"{TOOLS}.LogDirsCommand", *server, "--describe", "--topic-list", name),
        (f"{TOOLS}.DeleteRecordsCommand", *server, "--offset-json-file", str(offsets)),
        (f"{TOOLS}.GetOffsetShell", *server, "--topic", name, "--time", "-2"),
        (f"{TOOLS}.GetOffsetShell", *server, "--topic", name, "--time", "-1"),
        (
            *(f"{TOOLS}.LeaderElectionCommand", *server, "--election-type", "preferred"),
            *("--topic", name, "--partition", "0"),
        ),
        (f"{TOOLS}.reassign.ReassignPartitionsCommand", *server, "--list"),
        (f"{TOOLS}.TransactionsCommand", *server, "describe-producers", "--topic", name, "--partition", "0"),
        ("kafka.admin.ConfigCommand", *server, "--alter", *of_topic, "--add-config", "retention.ms=777000"),
        ("kafka.admin.ConfigCommand", *server, "--describe", *of_topic),
        (
            "kafka.admin.ConfigCommand",
            *server,
            "--alter",
            *of_topic,
            "--add-config",
            "cleanup.policy=compact",
        ),
        (*config, "--alter", *of_brokers, "--add-config", "log.retention.ms=888000,compression.type=zstd"),
        (*config, "--describe", *of_brokers),
        (*config, "--describe", "--all", *of_topic),
        (*config, "--alter", *of_brokers, "--delete-config", "log.retention.ms,compression.type"),
        (*config, "--alter", *of_brokers, "--add-config", "num.io.threads=9"),
    ]
    printed = run_commands(kafka_classpath, commands, tmp_path)
    for command, (code, out) in zip(commands, printed, strict=True):
        print(command, code, out, sep="\n")
    (_, directories), (_, deletion), (_, first), (_, end), *others = printed
    (found,) = json.loads(directories.splitlines()[-1])["brokers"][0]["logDirs"]
    assert (found["error"], found["partitions"][0]["size"]) == (None, len(batch(RECORDS)))
    assert "low_watermark: 2" in deletion
    assert (first, end) == (f"{name}:0:2\n", f"{name}:0:{RECORDS}\n")
    texts = [out for _, out in others]
    assert "Valid replica already elected" in texts[0]
    assert "No partition reassignments found." in texts[1]
    assert "ProducerId" in texts[2]
    assert "retention.ms=777000" in texts[4]
    assert "log.retention.ms=888000 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:log" in texts[7]
    assert (
        "compression.type=zstd sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:compression"
        in texts[8]
    )
    assert [code for code, _ in printed] == [*[0] * 14, 1]

"""Kafka's own tools for topics, quotas, ACLs, groups and loads, logged in, one after the other in one Java process."""

import re

from tests.e2e.clients.programs import Tools
from tests.e2e.clients.scenario import PARTITIONS, QUOTA, ClientsBroker, by_client
from tests.e2e.kafka_commands import run_commands

__all__ = ["AUTHORIZER", "TOOLS", "run_tools"]

AUTHORIZER = {
    "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow_everyone_if_no_acl_found": "true",
    "super_users": "User:tools;User:ANONYMOUS",
}
USER = "tools"
RECORDS, RECORD_BYTES = 60, 8_000
_OF = "org.apache.kafka.tools"
TOOLS = {
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-topics": f"{_OF}.TopicCommand",
    "kafka-acls": f"{_OF}.AclCommand",
    "kafka-producer-perf-test": f"{_OF}.ProducerPerformance",
    "kafka-consumer-perf-test": f"{_OF}.ConsumerPerformance",
    "kafka-consumer-groups": f"{_OF}.consumer.group.ConsumerGroupCommand",
    "kafka-get-offsets": f"{_OF}.GetOffsetShell",
    "kafka-log-dirs": f"{_OF}.LogDirsCommand",
}
"""The tools by the names of their scripts, and the class of each."""


def run_tools(broker: ClientsBroker, tools: Tools, mechanism: str) -> list[str]:
    """Run all of `TOOLS`, and hold what each printed to what it is to print; return the lines in order of use."""
    topic = f"tools-{mechanism}"
    job = broker.job(USER, mechanism=mechanism, topic=topic)
    file = tools.properties("tools", {**job.login.java(), "client.id": USER})
    server = ("--bootstrap-server", job.bootstrap, "--command-config", file)
    of_user = ("--entity-type", "users", "--entity-name", job.login.principal)
    of_topic = ("--topic", topic)
    load = (*of_topic, "--num-records", str(RECORDS))
    reader = ("--allow-principal", "User:reader", "--operation", "Read", *of_topic)
    steps = [
        ("kafka-topics", ("--create", *of_topic, "--partitions", str(PARTITIONS)), rf"Created topic {topic}"),
        ("kafka-topics", ("--describe", *of_topic), rf"PartitionCount: {PARTITIONS}\b"),
        (
            "kafka-configs",
            ("--alter", "--add-config", f"producer_byte_rate={QUOTA}", *of_user),
            "Completed updating config for user",
        ),
        ("kafka-configs", ("--describe", *of_user), rf"producer_byte_rate={QUOTA}"),
        (
            "kafka-producer-perf-test",
            (*load, "--record-size", str(RECORD_BYTES), "--throughput", "-1"),
            rf"{RECORDS} records sent",
        ),
        ("kafka-get-offsets", of_topic, rf"^{topic}:0:\d+$"),
        ("kafka-consumer-perf-test", (*load, "--group", topic), rf", {RECORDS}, "),
        ("kafka-consumer-groups", ("--describe", "--group", topic), rf"{topic} +0 +(\d+) +\1 +0 "),
        ("kafka-acls", ("--add", *reader), r"User:reader, host=\*, operation=READ"),
        ("kafka-acls", ("--list", *of_topic), r"User:reader, host=\*, operation=READ"),
        ("kafka-acls", ("--remove", "--force", *reader), ""),
        ("kafka-log-dirs", ("--describe", "--topic-list", topic), rf'"partition":"{topic}-0"'),
        ("kafka-configs", ("--alter", "--delete-config", "producer_byte_rate", *of_user), "Completed"),
        ("kafka-consumer-groups", ("--delete", "--group", topic), "successful"),
        ("kafka-topics", ("--delete", *of_topic), ""),
    ]
    commands = [(TOOLS[name], *server, *words) for name, words, _ in steps]
    printed = run_commands(tools.classpath, commands, tools.directory)
    for (name, words, expected), (code, out) in zip(steps, printed, strict=True):
        assert code == 0, f"{name} {words}: {code}\n{out}"
        assert re.search(expected, out, re.MULTILINE), f"{name} {words}: {expected!r} is not in\n{out}"
    rows = by_client(broker.broker.data_dir / "usage", tools.directory / "used")
    assert [row for row in rows if row["user"] == job.login.principal and row["throttled_requests"]]
    return [f"{name} {' '.join(words)}" for name, words, _ in steps]

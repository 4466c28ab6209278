"""Kafka's own kafka-acls against `tidegate serve`: it prints of our broker what it printed of Apache Kafka 4.3.1.

The commands and what they printed are in `tests/vectors/cli/acls.json`; they build on one another, from an empty
broker. All of them run in one Java process. Then the broker is killed, and has the ACLs that were left.
"""

import json
import re
from pathlib import Path

import pytest
from tests.e2e.kafka_commands import run_commands

pytestmark = pytest.mark.java

COMMANDS = json.loads((Path(__file__).parents[2] / "tests/vectors/cli/acls.json").read_text())["commands"]
AUTHORIZER = {
    "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super_users": "User:ANONYMOUS",
}
TOOL = "org.apache.kafka.tools.AclCommand"


def blocks(printed):
    """Return what was printed, a block for each resource, in an order of its own: Java's differs from run to run."""
    printed = re.sub(r"^(ACLs for principal .*)$", r"\1\n", printed, flags=re.MULTILINE)
    return sorted(sorted(map(str.strip, block.splitlines())) for block in printed.split("\n\n"))


def test_acl_commands_print_what_they_print_of_kafka(kafka_classpath, new_broker, tmp_path):
    """Fourteen commands in order, and the last of them again after `kill -9`."""
    broker = new_broker(**AUTHORIZER)

    def run(commands):
        lines = [[TOOL, *(broker.address if w == "{bootstrap}" else w for w in c["argv"])] for c in commands]
        return [(code, blocks(out)) for code, out in run_commands(kafka_classpath, lines, tmp_path)]

    expected = [(command["exit_code"], blocks(command["stdout"])) for command in COMMANDS]
    assert len(COMMANDS) == 14
    assert run(COMMANDS) == expected
    assert "(listener PLAINTEXT) deleted ACL ALLOW 'User:alice' READ from host '*'" in broker.log
    broker.kill()
    broker.start()
    assert run(COMMANDS[-1:]) == expected[-1:]

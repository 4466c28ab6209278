"""Kafka's own kafka-configs against `tidegate serve`: it prints of our broker what it printed of Apache Kafka 4.3.1.

The commands and what they printed are in `tests/vectors/cli/quotas.json`; they build on one another, from an empty
broker. All of them run in one Java process.
"""

import json
from pathlib import Path

import pytest
from tests.e2e.kafka_commands import run_commands

pytestmark = pytest.mark.java

ROOT = Path(__file__).parents[2]
COMMANDS = json.loads((ROOT / "tests/vectors/cli/quotas.json").read_text())["commands"]
CONFIG_FILE = "producer_byte_rate=2222\nconsumer_byte_rate=3333\n"


def _run(classpath: str, address: str, directory: Path) -> list[tuple[int, str]]:
    (directory / "file").write_text(CONFIG_FILE)
    names = {"{bootstrap}": address, "{file}": str(directory / "file")}
    lines = [["kafka.admin.ConfigCommand", *(names.get(w, w) for w in c["argv"])] for c in COMMANDS]
    return run_commands(classpath, lines, directory)


def test_quota_commands_print_what_they_print_of_kafka(kafka_classpath, new_broker, tmp_path):
    """Sixty-five commands in order: exit code and output."""
    printed = _run(kafka_classpath, new_broker().address, tmp_path)
    assert len(printed) == len(COMMANDS) == 65
    for command, (code, out) in zip(COMMANDS, printed, strict=True):
        assert (code, out) == (command["exit_code"], command["stdout"]), command

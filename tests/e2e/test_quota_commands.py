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
ENDS_WITH_AN_ERROR = "it asks for SCRAM credentials after the quotas, which are not served"
NOT_SERVED = "AlterUserScramCredentials is not served"


def _difference(argv: list[str]) -> str | None:
    """Return why a command differs, None where it does not."""
    words = set(argv)
    if "SCRAM" in " ".join(argv):
        return NOT_SERVED
    describes_users = "--describe" in words and words & {"users", "--user"}
    if describes_users and not words & {"clients", "--client", "--client-defaults"}:
        return ENDS_WITH_AN_ERROR
    return None


def _run(classpath: str, address: str, directory: Path) -> list[tuple[int, str]]:
    (directory / "file").write_text(CONFIG_FILE)
    names = {"{bootstrap}": address, "{file}": str(directory / "file")}
    lines = [["kafka.admin.ConfigCommand", *(names.get(w, w) for w in c["argv"])] for c in COMMANDS]
    return run_commands(classpath, lines, directory)


def test_quota_commands_print_what_they_print_of_kafka(kafka_classpath, new_broker, tmp_path):
    """Sixty-five commands in order: exit code and output, but for what needs an API that is not served."""
    printed = _run(kafka_classpath, new_broker().address, tmp_path)
    assert len(printed) == len(COMMANDS) == 65
    differences = [_difference(command["argv"]) for command in COMMANDS]
    for command, difference, (code, out) in zip(COMMANDS, differences, printed, strict=True):
        expected = command["stdout"]
        if difference == ENDS_WITH_AN_ERROR:
            quotas = [line for line in expected.splitlines() if not line.startswith("SCRAM")]
            assert (code, out.splitlines()) == (1, quotas), command
        elif difference is None:
            assert (code, out) == (command["exit_code"], expected), command
    assert differences.count(NOT_SERVED) == 4
    assert differences.count(ENDS_WITH_AN_ERROR) == 9

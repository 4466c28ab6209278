"""The commands of docs/operating-quotas.md, with Kafka's own tool, in the order of the page."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.java

PAGE = Path(__file__).parents[2] / "docs" / "operating-quotas.md"
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for line in block.splitlines()
    if line.startswith("kafka-configs.sh ")
]


def _run(classpath, address, command):
    """Return what a command prints."""
    _, *words = shlex.split(command.replace("127.0.0.1:19092", address))
    java = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classpath)
    done = subprocess.run(
        [*java, "kafka.admin.ConfigCommand", *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def test_commands_do_what_the_page_says(kafka_classpath, new_broker):
    """All are taken; the last one describes what the others have set."""
    *altering, describing = COMMANDS
    broker = new_broker()
    for command in altering:
        assert "Completed updating" in _run(kafka_classpath, broker.address, command)
    described = _run(kafka_classpath, broker.address, describing)
    found = re.findall(r"(tidegate[a-z.]+)=(\[[^\]]*\]|[^, ']*)", "\n".join(altering))
    given = {name: value.strip("[]") for name, value in found}
    given.pop("tidegate.quota.observe")  # was taken back
    assert len(given) == 5
    for name, value in given.items():
        assert f"{name}={value} " in described, name
    assert "tidegate.quota.observe=" not in described

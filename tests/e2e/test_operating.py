"""The commands of docs/operating-quotas.md, in the order of the page: with Kafka's own tool, and with ours."""

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.cli.main import main as tidegate

TOOLS = ("kafka-configs.sh ", "tidegate configs ")
PAGE = Path(__file__).parents[2] / "docs" / "operating-quotas.md"
COMMANDS = [
    shlex.split(line)[1 if line.startswith(TOOLS[0]) else 2 :]
    for block in re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for line in block.splitlines()
    if line.startswith(TOOLS)
]


def _check(run: Callable[[list[str]], str], address: str) -> None:
    """Run all commands: the last one describes what the others have set."""
    altering = [command for command in COMMANDS if "--alter" in command]
    described = ""
    for command in COMMANDS:
        printed = run([address if word == "127.0.0.1:19092" else word for word in command])
        if command in altering:
            assert "Completed updating" in printed
        else:
            described = printed
    found = re.findall(r"(tidegate[a-z.]+)=(\[[^\]]*\]|[^, ']*)", "\n".join(map(" ".join, altering)))
    given = {name: value.strip("[]") for name, value in found}
    given.pop("tidegate.quota.observe")  # was taken back
    assert len(given) == 5
    for name, value in given.items():
        assert f"{name}={value} " in described, name
    assert "tidegate.quota.observe=" not in described


@pytest.mark.java
def test_commands_do_what_the_page_says(kafka_classpath, new_broker):
    """With Kafka's own tool."""

    def run(arguments: list[str]) -> str:
        java = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", kafka_classpath)
        command = [*java, "kafka.admin.ConfigCommand", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    _check(run, new_broker().address)


def test_commands_do_the_same_without_a_jvm(new_broker, capsys):
    """With `tidegate configs`."""

    def run(arguments: list[str]) -> str:
        code = tidegate(["configs", *arguments])
        printed = capsys.readouterr()
        assert (code, printed.err) == (0, ""), arguments
        return printed.out

    _check(run, new_broker().address)

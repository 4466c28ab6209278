"""Kafka's own command line tools, many calls in one Java process: each of its own would take a second or two."""

import base64
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["run_commands"]

ROOT = Path(__file__).parents[2]
JAVA = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def run_commands(classpath: str, commands: Iterable[Sequence[str]], directory: Path) -> list[tuple[int, str]]:
    """Run commands in order, each a class and its arguments; return of each its exit code and what it printed."""
    file = directory / "commands"
    file.write_text("".join("\t".join(command) + "\n" for command in commands))
    done = subprocess.run(
        [*JAVA, "-cp", classpath, str(ROOT / "tests/java/Commands.java"), str(file)],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    printed = []
    for line in done.stdout.splitlines():
        code, out, errors = line.split(" ")
        if code != "0":  # for the report of a test that fails
            print(base64.b64decode(errors[1:]).decode())
        printed.append((int(code), base64.b64decode(out[1:]).decode()))
    return printed

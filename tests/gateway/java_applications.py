"""Applications of Kafka's Java libraries as processes: Streams, Connect, MirrorMaker, share groups, transactions."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench.ladder.brokers import ROOT

__all__ = ["JavaApplication", "applications_classpath", "write_properties"]

SOURCE = ROOT / "tests" / "java" / "Applications.java"
_JAVA = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LOG4J = """\
Configuration:
  Appenders:
    Console:
      name: STDERR
      target: SYSTEM_ERR
      PatternLayout: {pattern: "%d{ABSOLUTE} %p %c{1} %m%n"}
  Loggers:
    Root:
      level: WARN
      AppenderRef: {ref: STDERR}
"""


def applications_classpath() -> str:
    """Return the class path of Kafka's applications; fetch the jars where they are missing."""
    done = subprocess.run(
        [ROOT / "scripts" / "kafka-jars.sh", "applications"],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )
    assert done.returncode == 0, f"the jars could not be fetched:\n{done.stderr}"
    return f"{done.stdout.strip()}/*"


def write_properties(path: Path, settings: Mapping[str, object]) -> Path:
    """Write a file of settings."""
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


class JavaApplication:
    """A Java process that runs as long as the `with` block; what it prints is in files of `directory`."""

    def __init__(self, directory: Path, main: str, *arguments: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        log4j = directory / "log4j2.yaml"
        log4j.write_text(_LOG4J)
        self._command = [
            *(*_JAVA, f"-Dlog4j2.configurationFile={log4j.as_uri()}", "-cp", applications_classpath()),
            *(main, *arguments),
        ]
        self.process: subprocess.Popen | None = None

    def __enter__(self) -> "JavaApplication":
        with (self._directory / "out").open("ab") as out, (self._directory / "err").open("ab") as err:
            self.process = subprocess.Popen(self._command, stdout=out, stderr=err, cwd=self._directory)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def out(self) -> str:
        """Return what it has written to stdout."""
        return (self._directory / "out").read_text()

    @property
    def err(self) -> str:
        """Return what it has written to stderr."""
        return (self._directory / "err").read_text(errors="replace")

    def kill(self) -> None:
        """Kill it as a crash would."""
        self.process.kill()
        self.process.wait()

    def run(self, timeout_s: float) -> str:
        """Run it to its end; return what it has printed."""
        with self:
            assert self.process.wait(timeout_s) == 0, self.err[-3000:]
        return self.out

    def check_running(self) -> None:
        """Check that it has not ended."""
        assert self.process.poll() is None, self.err[-3000:]

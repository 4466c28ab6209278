"""The two brokers that are compared, each a real process with its data in a directory of its own."""

import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 30.0

_KAFKA_NODE = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners={listeners},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners={listeners}
controller.listener.names=CONTROLLER
log.dirs={directory}/data
"""
_KAFKA_SETTINGS = (
    "offsets.topic.replication.factor=1",
    "transaction.state.log.replication.factor=1",
    "transaction.state.log.min.isr=1",
    "group.initial.rebalance.delay.ms=0",
    "message.max.bytes=2097152",
    "log.segment.delete.delay.ms=0",
)
_LOG4J = """\
Configuration:
  Appenders:
    Console:
      name: STDOUT
      PatternLayout: {pattern: "[%d] %p %m (%c)%n"}
  Loggers:
    Root:
      level: WARN
      AppenderRef: {ref: STDOUT}
"""
SHORT_LIVED = ("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Java's options where a node lives for some tests: half of its time would go into compiling what then hardly runs."""
_CPU_CLOCK_OF_PROCESS = 2  # Linux: the clock id of another process's CPU time
_LOG_END_CHARS = 5_000
_CLUSTER_ID = "dGlkZWdhdGUtYmVuY2gtMQ"


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used so far, all its threads together, to the microsecond."""
    return time.clock_gettime((~pid << 3) | _CPU_CLOCK_OF_PROCESS)


@dataclass
class BenchBroker:
    """A running broker: its name, process and port.

    further: listeners beside the one at `port`, `NAME://host:port` each.
    """

    name: str
    directory: Path
    port: int = 0
    overrides: tuple[str, ...] = ()
    further: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    start_s: float = 0.0

    @property
    def address(self) -> str:
        """Return what clients connect to."""
        return f"127.0.0.1:{self.port}"

    @property
    def further_address(self) -> str:
        """Return what clients of the first of the further listeners connect to."""
        return self.further[0].partition("://")[2]

    def start(self) -> "BenchBroker":
        """Start and wait for the first answer; `start_s` is how long that took."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port()
        command, environment = self._command()
        begun = time.monotonic()
        with (self.directory / "broker.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, cwd=self.directory
            )
        while not _answers(self.port):
            if self.process.poll() is not None or time.monotonic() - begun > START_TIMEOUT_S:
                raise RuntimeError(f"{self.name} did not start:\n{self._log_end()}")
            time.sleep(0.002)
        self.start_s = time.monotonic() - begun
        return self

    def check_running(self) -> None:
        """Raise `RuntimeError` with the end of the log if the process has ended by itself."""
        if self.process is not None and self.process.poll() is not None:
            code, self.process = self.process.returncode, None
            raise RuntimeError(f"{self.name} has ended with exit code {code}:\n{self._log_end()}")

    def kill(self) -> None:
        """Kill the process as a crash would (SIGKILL)."""
        self.check_running()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """Stop the process; kill it where it takes too long, as Apache Kafka does now and then.

        Raises `RuntimeError` where it has ended by itself before.
        """
        self.check_running()
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def cpu_s(self) -> float:
        """Return the CPU seconds that the process has used so far."""
        assert self.process is not None
        return cpu_s(self.process.pid)

    def resident_mb(self) -> float:
        """Return the resident memory of the process and its children in MB."""
        assert self.process is not None
        return sum(_resident_kb(pid) for pid in _with_children(self.process.pid)) / 1000

    def _log_end(self) -> str:
        text = (self.directory / "broker.log").read_text(encoding="utf-8", errors="replace")
        return text[-_LOG_END_CHARS:]

    def _command(self) -> tuple[list[str], dict[str, str]]:
        raise NotImplementedError


class TidegateBench(BenchBroker):
    """`tidegate serve` with recording of usage on, as by default."""

    def _command(self) -> tuple[list[str], dict[str, str]]:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        serve = [sys.executable, "-m", "tidegate", "serve"]
        # As installed: with compiled bytecode in place.
        subprocess.run([*serve, "--list-settings"], env=environment, check=True, stdout=subprocess.DEVNULL)
        settings = ("message.max.bytes=2097152", "group.initial.rebalance.delay.ms=0", *self.overrides)
        overrides = [word for setting in settings for word in ("--override", setting)]
        address = ["--port", str(self.port)]
        if self.further:
            address = ["--override", ",".join((f"listeners=PLAINTEXT://{self.address}", *self.further))]
        return [*serve, *address, "--data", "data", *overrides], environment


@dataclass
class GatewayBench(BenchBroker):
    """`tidegate gateway` before the broker with the id 1 at `upstream`, with recording of usage on, as by default.

    sources: the directory with the package of another version; empty: this one. processes: that serve its port.
    """

    upstream: str = ""
    sources: str = ""
    processes: int = 1

    def cpu_s(self) -> float:
        """Return the CPU seconds of the processes that serve: without those that convert the usage record."""
        if self.processes == 1:
            return super().cpu_s()
        assert self.process is not None
        return sum(map(cpu_s, _children(self.process.pid)))

    def _command(self) -> tuple[list[str], dict[str, str]]:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        if self.sources:
            environment["PYTHONPATH"] = self.sources
        gateway = [sys.executable, "-m", "tidegate", "gateway"]
        # As installed: with compiled bytecode in place.
        subprocess.run([*gateway, "--help"], env=environment, check=True, stdout=subprocess.DEVNULL)
        overrides = [word for setting in self.overrides for word in ("--override", setting)]
        address = f"127.0.0.1:{self.port - 1}"  # broker 1 has the port behind it
        return [
            *gateway,
            "--upstream",
            self.upstream,
            "--listen",
            address,
            "--data",
            "data",
            "--processes",
            str(self.processes),
            *overrides,
        ], environment


@dataclass
class KafkaBench(BenchBroker):
    """Apache Kafka 4.3, one combined node, as `kafka-server-start` would run it (1 GB heap, G1).

    listener: the name of the one at `port`. java_options: others than those.
    """

    settings: tuple[str, ...] = _KAFKA_SETTINGS
    java_options: tuple[str, ...] = ("-Xmx1g", "-Xms1g", "-XX:+UseG1GC")
    listener: str = "PLAINTEXT"

    def _command(self) -> tuple[list[str], dict[str, str]]:
        classpath = subprocess.run(
            [ROOT / "scripts" / "kafka-jars.sh"], check=True, capture_output=True, text=True
        ).stdout.strip()
        properties, log4j = self.directory / "server.properties", self.directory / "log4j2.yaml"
        node = _KAFKA_NODE.format(
            listeners=",".join((f"{self.listener}://127.0.0.1:{self.port}", *self.further)),
            controller_port=free_port(),
            directory=self.directory,
        )
        settings = (*self.settings, *self.overrides)
        properties.write_text(node + "".join(f"{setting}\n" for setting in settings))
        log4j.write_text(_LOG4J)
        java = ["java", f"-Dlog4j2.configurationFile={log4j.as_uri()}", "-cp", f"{classpath}/*"]
        if not (self.directory / "data" / "meta.properties").exists():
            format_tool = ("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(properties))
            subprocess.run(
                [java[0], *SHORT_LIVED, *java[1:], *format_tool],
                check=True,
                capture_output=True,
            )
        return [java[0], *self.java_options, *java[1:], "kafka.Kafka", str(properties)], dict(os.environ)


def machine() -> str:
    """Return the machine in one line."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        os.uname().machine,
    )
    return f"{model}, {os.cpu_count()} cores, Linux {os.uname().release}, Python {sys.version.split()[0]}"


def _answers(port: int) -> bool:
    """Return whether an ApiVersions v0 is answered without error."""
    request = bytes.fromhex("0000000a0012000000000001ffff")
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as sock:
            sock.sendall(request)
            head = sock.recv(10, socket.MSG_WAITALL)
            return len(head) == 10 and head[8:10] == b"\0\0"
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _with_children(pid: int) -> list[int]:
    return [pid, *(grand for child in _children(pid) for grand in _with_children(child))]


def _resident_kb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


__all__ = [
    "SHORT_LIVED",
    "BenchBroker",
    "GatewayBench",
    "KafkaBench",
    "TidegateBench",
    "cpu_s",
    "free_port",
    "machine",
]

"""A real `tidegate gateway` process before a running cluster: started, stopped, killed, started again."""

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench.ports import free_port

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
MOST_BROKERS = 4
_SERVES = re.compile(r"gateway: broker (\d+) \(.*?\) at \S+?:(\d+)")


@dataclass
class GatewayProcess:
    """A gateway before the cluster at `upstream`. options: further options of `tidegate gateway`.

    listener: the name of its listener, which is its security protocol. program: what Python runs.
    ports: the port of each broker, by id.
    """

    directory: Path
    upstream: str
    options: tuple[str, ...] = ()
    listener: str = "PLAINTEXT"
    base_port: int = 0
    ports: dict[int, int] = field(default_factory=dict)
    process: subprocess.Popen | None = None
    program: tuple[str, ...] = ("-m", "tidegate")

    @property
    def address(self) -> str:
        """Return the address of the first broker, for a client's bootstrap servers."""
        return f"127.0.0.1:{min(self.ports.values())}"

    @property
    def addresses(self) -> str:
        """Return the addresses of all brokers, for a client's bootstrap servers."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    @property
    def port(self) -> int:
        """Return the port of the first broker."""
        return min(self.ports.values())

    @property
    def log(self) -> str:
        """Return all that the gateway has written to stderr, over all its lives."""
        return (self.directory / "gateway.log").read_text(encoding="utf-8", errors="replace")

    @property
    def usage_dir(self) -> Path:
        """Return the directory of the usage record."""
        return self.directory / "data" / "usage"

    def start(self) -> "GatewayProcess":
        """Start the process and wait until it serves."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.base_port = self.base_port or free_port(MOST_BROKERS)
        port_file = self.directory / "ports"
        port_file.unlink(missing_ok=True)
        with (self.directory / "gateway.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, *self.program, "gateway", "--upstream", self.upstream),
                    *("--override", f"listeners={self.listener}://127.0.0.1:{self.base_port}"),
                    *("--data", str(self.directory / "data")),
                    *("--port-file", str(port_file), *self.options),
                ],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                process_group=0,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not port_file.exists() or not _SERVES.search(self.log):
            assert self.process.poll() is None, f"the gateway ended:\n{self.log}"
            assert time.monotonic() < deadline, f"the gateway did not start:\n{self.log}"
            time.sleep(0.02)
        self.ports = {port - self.base_port: port for port in map(int, port_file.read_text().split())}
        return self

    @property
    def pid(self) -> int:
        """Return the id of the running process."""
        return self.process.pid

    def resident_mb(self) -> float:
        """Return the memory of the process that serves, in MB."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1000
        raise AssertionError("the process has ended")

    def waited_s(self) -> float:
        """Return how long, in all, the main thread has waited for a processor that others used, in seconds."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[1]) / 1e9

    def descriptors(self) -> int:
        """Return how many descriptors the process has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def kill(self) -> None:
        """Kill the process as a crash would (SIGKILL)."""
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)

    def stop(self) -> int:
        """Ask the process to end and return its exit code."""
        self.process.terminate()
        return self.process.wait(STOP_TIMEOUT_S)

    def close(self) -> None:
        """End the process if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(STOP_TIMEOUT_S)

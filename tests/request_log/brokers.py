"""A real Apache Kafka of any version from 2.4 on, one node or, with ZooKeeper, several, that writes a request log."""

import os
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
START_TIMEOUT_S = 120.0
USERS = ("alice", "bob")

_CLUSTER_ID = "dGlkZWdhdGUtYmVuY2gtMQ"
_SHORT_LIVED = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

_SETTINGS = """\
listeners=PLAINTEXT://127.0.0.1:{plain},SIX://[::1]:{six},LOGIN://127.0.0.1:{login}{more_listeners}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain},SIX://[::1]:{six},LOGIN://127.0.0.1:{login}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SIX:PLAINTEXT,LOGIN:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.login.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required {users};
log.dirs={directory}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.num.partitions=2
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""
_KRAFT = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
"""
_ZOOKEEPER = """\
broker.id=1
zookeeper.connect=127.0.0.1:{controller}
"""
_PEER = """\
broker.id=10{peer}
listeners=PLAINTEXT://127.0.0.1:{port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
log.dirs={directory}/data-{peer}
"""
_ZOOKEEPER_SERVER = """\
dataDir={directory}/zookeeper
clientPort={controller}
clientPortAddress=127.0.0.1
admin.enableServer=false
"""
_LOG4J = """\
log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n
log4j.appender.requests=org.apache.log4j.DailyRollingFileAppender
log4j.appender.requests.DatePattern='.'yyyy-MM-dd-HH
log4j.appender.requests.File={log}
log4j.appender.requests.layout=org.apache.log4j.PatternLayout
log4j.appender.requests.layout.ConversionPattern=[%d] %p %m (%c)%n
log4j.logger.kafka.request.logger=DEBUG, requests
log4j.additivity.kafka.request.logger=false
"""
LOG4J2 = """\
Configuration:
  Appenders:
    Console:
      name: STDOUT
      PatternLayout: {{pattern: "[%d] %p %m (%c)%n"}}
    File:
      name: requests
      fileName: "{log}"
      PatternLayout: {{pattern: "[%d{{yyyy-MM-dd HH:mm:ss,SSSSSS}}] %p %m (%c)%n"}}
  Loggers:
    Root: {{level: WARN, AppenderRef: {{ref: STDOUT}}}}
    Logger:
      - {{name: kafka.request.logger, level: debug, additivity: false, AppenderRef: {{ref: requests}}}}
"""


@dataclass
class LoggingKafka:
    """One node with its request log at `log`; with ZooKeeper where `zookeeper` says so.

    Listeners: `plain` and `login` (SASL PLAIN) on 127.0.0.1, `six` on ::1. settings: lines beside those of this file.
    peers: further brokers, with ZooKeeper, each with a listener for plain connections.
    """

    version: str
    directory: Path
    zookeeper: bool = False
    settings: tuple[str, ...] = ()
    peers: int = 0
    ports: dict[str, int] = field(default_factory=dict)
    _processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def address(self) -> str:
        """Return the address of the listener for plain connections."""
        return f"127.0.0.1:{self.ports['plain']}"

    @property
    def log(self) -> Path:
        """Return the file of the request log."""
        return self.directory / "kafka-request.log"

    def __enter__(self) -> "LoggingKafka":
        """Fetch the jars and start; return once the broker writes to its log."""
        self._fetch()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self.ports = {name: free_port() for name in ("plain", "six", "login", "controller", "jmx")}
        self._configure()
        if self.zookeeper:
            self._start("org.apache.zookeeper.server.ZooKeeperServerMain", "zookeeper.properties")
        else:
            tool = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", "server.properties"]
            subprocess.run([*self._java(), *tool], check=True, cwd=self.directory, stdout=subprocess.DEVNULL)
        for peer in range(self.peers):
            self._start("kafka.Kafka", f"peer-{peer}.properties")
        self._start("kafka.Kafka", "server.properties", jmx=True)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all processes, the broker first."""
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def has_ended(self) -> bool:
        """Return whether the broker is gone."""
        return self._processes[-1].poll() is not None

    def totals(self) -> str:
        """Return the broker's own counters as JSON text (`Totals.java`)."""
        return subprocess.run(
            ["java", "-XX:TieredStopAtLevel=1", str(HERE / "Totals.java"), str(self.ports["jmx"])],
            check=True, stdout=subprocess.PIPE, text=True,
        ).stdout  # fmt: skip

    @property
    def _is_log4j2(self) -> bool:
        return int(self.version.partition(".")[0]) >= 4

    @property
    def _jars(self) -> Path:
        return ROOT / ".cache" / f"kafka-{self.version}" / "libs"

    def _fetch(self) -> None:
        if not (self._jars / ".complete").exists():
            profile = "log4j2" if self._is_log4j2 else "reload4j"
            subprocess.run(
                ["mvn", "--quiet", "--batch-mode", "--file", HERE / "pom.xml", f"-Dkafka.version={self.version}",
                 f"-P{profile}", "dependency:copy-dependencies", f"-DoutputDirectory={self._jars}"],
                check=True,
            )  # fmt: skip
            (self._jars / ".complete").touch()

    def _configure(self) -> None:
        users = " ".join(f'user_{user}="{user}"' for user in USERS)
        facts = {**self.ports, "directory": self.directory, "log": self.log, "users": users}
        facts["more_listeners"] = "" if self.zookeeper else f",CONTROLLER://127.0.0.1:{facts['controller']}"
        node = _ZOOKEEPER if self.zookeeper else _KRAFT
        server = node + _SETTINGS + "".join(f"{line}\n" for line in self.settings)
        texts = {
            "server.properties": server,
            **{
                f"peer-{peer}.properties": server + _PEER.format(peer=peer, port=free_port(), **facts)
                for peer in range(self.peers)
            },
            "zookeeper.properties": _ZOOKEEPER_SERVER,
            "log4j.properties": _LOG4J,
            "log4j2.yaml": LOG4J2,
        }
        for name, text in texts.items():
            (self.directory / name).write_text(text.format(**facts))

    def _java(self) -> list[str]:
        logging = (
            "-Dlog4j2.configurationFile=file:log4j2.yaml"
            if self._is_log4j2
            else "-Dlog4j.configuration=file:log4j.properties"
        )
        return ["java", *_SHORT_LIVED, logging, "-Duser.timezone=UTC", "-cp", f"{self._jars}/*"]

    def _start(self, main: str, settings: str, *, jmx: bool = False) -> None:
        java = self._java()
        if jmx:
            java[1:1] = [
                f"-Dcom.sun.management.jmxremote.port={self.ports['jmx']}",
                f"-Dcom.sun.management.jmxremote.rmi.port={self.ports['jmx']}",
                "-Dcom.sun.management.jmxremote.host=127.0.0.1", "-Djava.rmi.server.hostname=127.0.0.1",
                "-Dcom.sun.management.jmxremote.authenticate=false",
                "-Dcom.sun.management.jmxremote.ssl=false",
            ]  # fmt: skip
        with (self.directory / "out.log").open("ab") as out:
            self._processes.append(
                subprocess.Popen(
                    [*java, main, settings], cwd=self.directory, stdout=out, stderr=out, env=dict(os.environ)
                )
            )


def wait_until(condition: "object", what: str) -> None:
    """Wait for a condition, a function without arguments. Raises `RuntimeError` after two minutes."""
    assert callable(condition)
    until_s = time.monotonic() + START_TIMEOUT_S
    while not condition():
        if time.monotonic() > until_s:
            raise RuntimeError(f"{what} did not happen within {START_TIMEOUT_S:.0f} s")
        time.sleep(0.05)

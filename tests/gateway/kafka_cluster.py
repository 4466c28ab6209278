"""A real Apache Kafka cluster of several brokers, of which some are controllers, too; brokers can join and leave."""

import contextlib
import os
import subprocess
import time
from pathlib import Path

from bench.ladder.brokers import ROOT
from bench.ports import free_port
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
_CLUSTER_ID = "dGlkZWdhdGUtY2x1c3Rlcg"
_JAVA = ("-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LOG4J = """\
Configuration:
  Appenders:
    Console:
      name: STDOUT
      PatternLayout: {pattern: "%p %m%n"}
  Loggers:
    Root:
      level: WARN
      AppenderRef: {ref: STDOUT}
"""
_SETTINGS = """\
process.roles={roles}
node.id={node_id}
controller.quorum.voters={voters}
listeners={listeners}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={directory}/data
offsets.topic.replication.factor={replicas}
offsets.topic.num.partitions=5
transaction.state.log.replication.factor={replicas}
transaction.state.log.num.partitions=5
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor={replicas}
min.insync.replicas=1
log.retention.ms=-1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=6000
"""


class KafkaCluster:
    """`controllers` combined nodes with the ids 1, 2, ...; `add` starts further brokers. `ports`: by id."""

    def __init__(self, directory: Path, controllers: int = 3) -> None:
        self.directory = directory
        self.ports: dict[int, int] = {}
        self.processes: dict[int, subprocess.Popen] = {}
        self._voters = {node_id: free_port() for node_id in range(1, controllers + 1)}

    @property
    def address(self) -> str:
        """Return the addresses of all brokers, for a client's bootstrap servers."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def start(self) -> "KafkaCluster":
        """Start the combined nodes, and wait until each serves."""
        for node_id in self._voters:
            self._prepare(node_id)
        for node_id in self._voters:
            self.run(node_id)
        self.await_brokers(set(self._voters))
        return self

    def add(self, node_id: int) -> None:
        """Start a further broker."""
        self._prepare(node_id)
        self.run(node_id)
        self.await_brokers({*self.ports} & {*self.processes})

    def run(self, node_id: int) -> None:
        """Start the process of a broker, maybe again."""
        folder = self.directory / f"node-{node_id}"
        log4j = folder / "log4j2.yaml"
        command = ["java", *_JAVA, f"-Dlog4j2.configurationFile={log4j.as_uri()}", "-cp", _classpath()]
        with (folder / "broker.log").open("ab") as log:
            self.processes[node_id] = subprocess.Popen(
                [*command, "kafka.Kafka", str(folder / "server.properties")],
                stdout=log,
                stderr=log,
                cwd=folder,
            )

    def kill(self, node_id: int) -> None:
        """Kill a broker as a crash would."""
        process = self.processes.pop(node_id)
        process.kill()
        process.wait(STOP_TIMEOUT_S)

    def stop(self, node_id: int) -> None:
        """Ask a broker to end: its partitions move first."""
        process = self.processes.pop(node_id)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
        process.kill()
        process.wait(STOP_TIMEOUT_S)

    def close(self) -> None:
        """End all processes."""
        for node_id in list(self.processes):
            self.kill(node_id)

    def await_brokers(self, wanted: set[int]) -> None:
        """Wait until the cluster has these brokers and no others."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            for node_id, process in self.processes.items():
                assert process.poll() is None, (self.directory / f"node-{node_id}" / "broker.log").read_text()
            with contextlib.suppress(KafkaException):
                admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
                if set(admin.list_topics(timeout=5).brokers) == wanted:
                    return
            assert time.monotonic() < deadline, f"the cluster does not have the brokers {wanted}"
            time.sleep(0.5)

    def _prepare(self, node_id: int) -> None:
        folder = self.directory / f"node-{node_id}"
        folder.mkdir(parents=True)
        self.ports[node_id] = port = free_port()
        listeners, roles = f"PLAINTEXT://127.0.0.1:{port}", "broker"
        if node_id in self._voters:
            listeners += f",CONTROLLER://127.0.0.1:{self._voters[node_id]}"
            roles = "broker,controller"
        properties = folder / "server.properties"
        properties.write_text(
            _SETTINGS.format(
                roles=roles,
                node_id=node_id,
                voters=",".join(f"{each}@127.0.0.1:{own}" for each, own in self._voters.items()),
                listeners=listeners,
                port=port,
                directory=folder,
                replicas=min(len(self._voters), 3),
            )
        )
        (folder / "log4j2.yaml").write_text(_LOG4J)
        storage = ("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(properties))
        subprocess.run(["java", *_JAVA, "-cp", _classpath(), *storage], check=True, capture_output=True)


def _classpath() -> str:
    jars = subprocess.run(
        [ROOT / "scripts" / "kafka-jars.sh"], check=True, capture_output=True, text=True, env=dict(os.environ)
    )
    return f"{jars.stdout.strip()}/*"

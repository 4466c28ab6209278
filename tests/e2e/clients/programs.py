"""Real clients as programs, all called alike: each creates a topic, produces, or is a member of a group.

Most are small programs of ours around an unmodified library (`python_client.py`, `node/`, `go/`, `java/`), told by one
argument in JSON; kcat and Kafka's console tools are called as they are.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from tests.e2e.clients.versions import PINNED, kcat_version

__all__ = ["CLIENTS", "Job", "Login", "Member", "Program", "Tools"]

HERE = Path(__file__).parent
SESSION_MS, HEARTBEAT_MS = 10_000, 500
TIMEOUT_S = 100.0
JVM = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """How a client comes in: mechanism, user and password are empty without SASL, ca (a PEM file) without TLS."""

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    user: str = ""
    password: str = ""
    ca: str = ""

    @property
    def principal(self) -> str:
        """Return the user that quotas see."""
        return self.user or "ANONYMOUS"

    def librdkafka(self) -> dict[str, str]:
        """Return librdkafka's settings."""
        settings = {"security.protocol": self.protocol}
        if self.mechanism:
            settings["sasl.mechanism"] = self.mechanism
            settings |= {"sasl.username": self.user, "sasl.password": self.password}
        if self.ca:
            settings["ssl.ca.location"] = self.ca
        return settings

    def java(self) -> dict[str, str]:
        """Return the settings of Kafka's own clients."""
        settings = {"security.protocol": self.protocol}
        if self.mechanism:
            module = PLAIN if self.mechanism == "PLAIN" else SCRAM
            settings["sasl.mechanism"] = self.mechanism
            settings["sasl.jaas.config"] = (
                f'{module} required username="{self.user}" password="{self.password}";'
            )
        if self.ca:
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.ca}
        return settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a client does. count, size: records, and bytes of each. fetch_bytes: what a Fetch asks for."""

    bootstrap: str
    login: Login
    client_id: str
    topic: str
    partitions: int
    group: str = ""
    count: int = 0
    size: int = 1
    fetch_bytes: int = 1 << 20

    def document(self, role: str, properties: Mapping[str, str] | None = None) -> str:
        """Return the argument of our programs."""
        job = {key: value for key, value in asdict(self).items() if key != "login"}
        return json.dumps({"role": role, **job, **asdict(self.login), "properties": properties or {}})

    def librdkafka(self, role: str) -> dict[str, str]:
        """Return librdkafka's settings."""
        settings = {
            "bootstrap.servers": self.bootstrap,
            "client.id": self.client_id,
            **self.login.librdkafka(),
        }
        if role == "produce":
            settings |= {"linger.ms": "0", "max.in.flight": "1", "batch.num.messages": "1"}
        if role == "consume":
            settings |= {
                "group.id": self.group, "auto.offset.reset": "earliest", "session.timeout.ms": str(SESSION_MS),
                "heartbeat.interval.ms": str(HEARTBEAT_MS), "max.partition.fetch.bytes": str(self.fetch_bytes),
            }  # fmt: skip
        return settings

    def java(self, role: str) -> dict[str, str]:
        """Return the settings of Kafka's own clients."""
        settings = {"bootstrap.servers": self.bootstrap, "client.id": self.client_id, **self.login.java()}
        if role == "produce":
            settings |= {"batch.size": "1", "max.in.flight.requests.per.connection": "1"}
        if role == "consume":
            settings |= {
                "group.id": self.group, "auto.offset.reset": "earliest", "session.timeout.ms": str(SESSION_MS),
                "heartbeat.interval.ms": str(HEARTBEAT_MS), "max.partition.fetch.bytes": str(self.fetch_bytes),
                "fetch.max.bytes": str(self.fetch_bytes),
            }  # fmt: skip
        return settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Where what is called lies. built: of `scripts/client-programs.sh`; directory: for files of settings."""

    built: Path
    classpath: str
    directory: Path

    def java(self, main: str, *arguments: str) -> list[str]:
        """Return a command that starts a class of Kafka's, or our own."""
        return [*JVM, "-cp", f"{self.classpath}:{self.built / 'java'}", main, *arguments]

    def properties(self, name: str, settings: Mapping[str, str]) -> str:
        """Write a file of settings and return its path."""
        path = self.directory / f"{name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return str(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command, and what it is given: records as lines."""

    words: Sequence[str]
    lines: str = ""


class Member:
    """A running member of a group: what it has read so far, as partitions and offsets."""

    def __init__(self, command: Command, record: re.Pattern[str], *, leaves_by_signal: bool) -> None:
        self.records: list[tuple[int, int]] = []
        self._errors: list[str] = []
        self._leaves_by_signal = leaves_by_signal
        self._record = record
        self.process = subprocess.Popen(
            command.words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=HERE.parents[2],
        )
        self._threads = [
            threading.Thread(target=self._follow, args=(self.process.stdout, self._note), daemon=True),
            threading.Thread(
                target=self._follow, args=(self.process.stderr, self._errors.append), daemon=True
            ),
        ]
        for thread in self._threads:
            thread.start()

    def _follow(self, stream: IO[str], note: Callable[[str], None]) -> None:
        for line in stream:
            note(line)

    def _note(self, line: str) -> None:
        if match := self._record.search(line):
            self.records.append((int(match[1]), int(match[2])))

    @property
    def errors(self) -> str:
        """Return what it wrote to stderr."""
        return "".join(self._errors)

    def check(self) -> None:
        """Fail where it has ended."""
        code = self.process.poll()
        assert code is None, f"the member ended with {code}:\n{self.errors}"

    def leave(self) -> None:
        """Leave the group, as the client does when it closes."""
        self.check()
        if self._leaves_by_signal:
            self.process.send_signal(signal.SIGTERM)
        else:
            self.process.stdin.close()
        code = self.process.wait(TIMEOUT_S)
        self._close()
        ended = (0, -signal.SIGTERM, 128 + signal.SIGTERM) if self._leaves_by_signal else (0,)
        assert code in ended, f"{code}:\n{self.errors}"

    def kill(self) -> None:
        """End it whatever state it is in."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._close()

    def _close(self) -> None:
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()


class Program:
    """A client of which there is a program of ours, told in JSON."""

    record = re.compile(r"^(\d+) (\d+)$")
    leaves_by_signal = False

    def __init__(
        self,
        name: str,
        start: Callable[[Tools], Sequence[str]],
        properties: Callable[[Job, str], dict[str, str]] | None = None,
        *,
        pin: str = "",
    ) -> None:
        self.name = name
        self._start = start
        self._properties = properties
        self._pin = pin or name

    @property
    def version(self) -> str:
        """Return the version, as it is pinned."""
        return PINNED[self._pin]()

    @property
    def creates_topics(self) -> bool:
        """Return whether the client has a call that creates topics."""
        return True

    def can_log_in_by(self, mechanism: str) -> bool:
        """Return whether a real Kafka lets it in so."""
        return True

    def command(self, tools: Tools, job: Job, role: str) -> Command:
        """Return what does a job: role "create", "produce" or "consume"."""
        properties = self._properties(job, role) if self._properties else None
        return Command(words=[*self._start(tools), job.document(role, properties)])

    def run(self, tools: Tools, job: Job, role: str) -> None:
        """Do a job to its end."""
        command = self.command(tools, job, role)
        done = subprocess.run(
            command.words,
            input=command.lines,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            cwd=HERE.parents[2],
        )
        assert done.returncode == 0, f"{self.name}, {role}: {done.returncode}\n{done.stdout}{done.stderr}"

    def member(self, tools: Tools, job: Job) -> Member:
        """Start a member of the job's group."""
        command = self.command(tools, job, "consume")
        return Member(command, self.record, leaves_by_signal=self.leaves_by_signal)


class Kcat(Program):
    """kcat as it is; a topic is made by the broker when it is asked for."""

    leaves_by_signal = True

    def __init__(self) -> None:
        super().__init__("kcat", lambda _: ())

    @property
    def version(self) -> str:
        """Return the version of the system's package."""
        return kcat_version()

    @property
    def creates_topics(self) -> bool:
        """Return False: it has no such command."""
        return False

    def can_log_in_by(self, mechanism: str) -> bool:
        """Return False of SCRAM where librdkafka is older than 2.6.1, which sends a wrong nonce; Kafka refuses it."""
        library = re.search(r"librdkafka ([\d.]+)", self.version)[1]
        return mechanism in ("", "PLAIN") or tuple(map(int, library.split("."))) >= (2, 6, 1)

    def command(self, tools: Tools, job: Job, role: str) -> Command:
        """Return how kcat is called."""
        path = shutil.which("kcat")
        assert path, "kcat is missing: 'make setup' says how to install it"
        settings = [word for item in job.librdkafka(role).items() for word in ("-X", "=".join(item))]
        if role == "produce":
            lines = f"{'x' * job.size}\n" * job.count
            return Command(words=[path, *settings, "-P", "-t", job.topic], lines=lines)
        return Command(words=[path, *settings, "-q", "-u", "-f", "%p %o\\n", "-G", job.group, job.topic])


class ConsoleTools(Program):
    """kafka-topics, kafka-console-producer and kafka-console-consumer."""

    record = re.compile(r"^Partition:(\d+)\tOffset:(\d+)")
    leaves_by_signal = True

    def __init__(self) -> None:
        super().__init__("Kafka's console tools", lambda _: (), pin="kafka")

    def command(self, tools: Tools, job: Job, role: str) -> Command:
        """Return how the tool of a role is called."""
        file = tools.properties(f"{job.client_id}-{role}", job.java(role))
        words = ("--bootstrap-server", job.bootstrap, "--command-config", file, "--topic", job.topic)
        if role == "create":
            more = ("--create", "--partitions", str(job.partitions))
            return Command(words=tools.java("org.apache.kafka.tools.TopicCommand", *words, *more))
        if role == "produce":
            lines = f"{'x' * job.size}\n" * job.count
            tool = tools.java("org.apache.kafka.tools.ConsoleProducer", *words, "--sync", "--timeout", "0")
            return Command(words=tool, lines=lines)
        shown = ("print.partition=true", "print.offset=true", "print.value=false")
        more = [word for what in shown for word in ("--formatter-property", what)]
        return Command(words=tools.java("org.apache.kafka.tools.consumer.ConsoleConsumer", *words, *more))


def _python(name: str) -> Program:
    properties = Job.librdkafka if name == "confluent-kafka" else None
    command = (sys.executable, str(HERE / "python_client.py"), name)
    return Program(name, lambda _: command, properties)


def _node(name: str, file: str) -> Program:
    return Program(name, lambda tools: (str(tools.built / "node/node"), str(tools.built / "node" / file)))


CLIENTS = {
    client.name: client
    for client in (
        _python("confluent-kafka"),
        _python("kafka-python"),
        _python("aiokafka"),
        Kcat(),
        _node("kafkajs", "kafkajs.mjs"),
        _node("@platformatic/kafka", "platformatic.mjs"),
        Program("franz-go", lambda tools: (str(tools.built / "franz"),)),
        Program("Kafka's Java clients", lambda tools: tools.java("Client"), Job.java, pin="kafka"),
        ConsoleTools(),
    )
}
"""The clients by their names, as in the table of `docs/clients.md`."""

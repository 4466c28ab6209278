"""A gateway with one TLS port for all brokers, and the names, certificates and clients that go with it."""

import ssl
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from bench.ports import free_port
from tests.e2e.tls_broker import Certificates
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.login_client import LoginClient
from tests.unit.tls.certificates import identity

__all__ = [
    "DOMAIN",
    "PATTERN",
    "ROUND_TRIP",
    "NamedGateway",
    "hello_of",
    "name_of",
    "run_with_hosts",
    "with_hosts",
]

DOMAIN = "kafka.example.com"
PATTERN = f"broker-{{id}}.{DOMAIN}"
ROUND_TRIP = """
import sys, time
from confluent_kafka import Consumer, Producer
servers, topic, authority = sys.argv[1:]
settings = {"bootstrap.servers": servers, "security.protocol": "ssl", "ssl.ca.location": authority}
producer = Producer(settings)
for number in range(100):
    producer.produce(topic, str(number))
assert producer.flush(30) == 0
consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
consumer.subscribe([topic])
found, deadline = [], time.monotonic() + 30
while len(found) < 100 and time.monotonic() < deadline:
    found += [int(message.value()) for message in consumer.consume(100, 0.5) if not message.error()]
print(sorted(found) == list(range(100)))
print(sorted(broker.host for broker in consumer.list_topics(timeout=10).brokers.values()))
consumer.close()
"""
"""A program: produces and consumes 100 records. Its arguments are servers, topic and the file of an authority."""


class NamedGateway(GatewayProcess):
    """A gateway whose only listener distinguishes brokers by name; its certificate is of all names below `DOMAIN`."""

    def __init__(
        self, directory: Path, upstream: str, *options: str, host: str = "127.0.0.1", base_port: int = 0
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.host = host
        self.certificates = Certificates.make(directory, "carol")
        own = identity("gateway", self.certificates.authority, hosts=(DOMAIN, f"*.{DOMAIN}"))
        self.certificates.write("gateway", own)
        super().__init__(directory, upstream, options, listener="SSL", base_port=base_port)

    def start(self) -> "NamedGateway":
        """Start the process. Its port has to be chosen first: it is the advertised port, too."""
        self.base_port = self.base_port or free_port()
        settings = {
            "listeners": f"SSL://{self.host}:{self.base_port}",
            "advertised.listeners": f"SSL://{PATTERN}:{self.base_port}",
            **self.certificates.settings("gateway"),
        }
        given = self.options
        self.options += tuple(part for item in settings.items() for part in ("--override", "=".join(item)))
        super().start()
        self.options = given
        return self

    def context(self, own: str | None = None) -> ssl.SSLContext:
        """Return the context of a client that compares names; own: with the certificate of this name."""
        context = ssl.create_default_context(cafile=str(self.certificates.authority_file))
        if own is not None:
            context.load_cert_chain(self.certificates.file(own))
        return context

    def connect(
        self, server: str = DOMAIN, *, client_id: str = "client", own: str | None = None
    ) -> LoginClient:
        """Return a client that is connected to a server name."""
        return LoginClient(self.port, self.context(own), client_id, server)


def name_of(broker_id: int) -> str:
    """Return the server name of a broker."""
    return PATTERN.format(id=broker_id)


def hello_of(context: ssl.SSLContext, server: str) -> bytes:
    """Return the ClientHello of a client, a record."""
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=server)
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def with_hosts(
    directory: Path, brokers: Iterable[int], command: Sequence[str], *, lines: Iterable[str] = ()
) -> list[str]:
    """Return a command for which the names of the cluster and of these brokers are addresses of this machine.

    It has a file of hosts of its own, in a mount namespace. lines: those of the file, if not these.
    """
    hosts = directory / "hosts"
    names = " ".join(["127.0.0.1", DOMAIN, *map(name_of, brokers)])
    hosts.write_text("\n".join(["127.0.0.1 localhost", *(lines or [names]), ""]))
    script = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", str(hosts), *command]


def run_with_hosts(
    directory: Path,
    brokers: Iterable[int],
    command: Sequence[str],
    *,
    given: str = "",
    lines: Iterable[str] = (),
) -> str:
    """Run a command as `with_hosts` has it; return what it printed."""
    done = subprocess.run(
        with_hosts(directory, brokers, command, lines=lines),
        input=given,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

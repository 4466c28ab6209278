"""A broker with a listener of every security protocol, and what its clients need."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.broker import Broker
from tests.unit.tls.certificates import Identity, identity

__all__ = [
    "LISTENERS",
    "LOGINS",
    "SCRAM",
    "Certificates",
    "TlsBroker",
    "java_settings",
    "listener_settings",
    "user_of",
]

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
LISTENERS = {"PLAIN": "PLAINTEXT", "TLS": "SSL", "MTLS": "SSL", "LOGIN": "SASL_SSL"}
LOGINS = {
    "PLAIN": ("alice", "alice-secret"),
    "SCRAM-SHA-256": ("sam", "sam-secret"),
    "SCRAM-SHA-512": ("max", "max-secret"),
}


@dataclass(frozen=True)
class Certificates:
    """PEM files in a directory: those of the authority, and key and certificate of some names."""

    directory: Path
    authority: Identity

    @classmethod
    def make(cls, directory: Path, *names: str) -> "Certificates":
        """Write them; the first name is the broker's."""
        made = cls(directory, identity("authority", authority=True))
        made.authority_file.write_text(made.authority.certificate_pem)
        for name in names:
            made.write(name, identity(name, made.authority))
        return made

    def write(self, name: str, own: Identity) -> None:
        """Write key and certificate of a name."""
        self.file(name).write_text(own.pem)
        self.file(name).chmod(0o600)

    @property
    def authority_file(self) -> Path:
        """Whom all trust."""
        return self.directory / "authority.pem"

    def file(self, name: str) -> Path:
        """Return the file with key and certificate of `name`."""
        return self.directory / f"{name}.pem"

    def settings(self, name: str) -> dict[str, str]:
        """Return the settings of a broker, or of a Java client, that is called `name`."""
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.file(name)),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority_file),
        }


def listener_settings(certificates: Certificates) -> dict[str, str]:
    """Return the settings of a broker with the listeners of `LISTENERS`, all but their addresses."""
    users = " ".join(f'user_{user}="{password}"' for user, password in [LOGINS["PLAIN"]])
    return {
        "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in LISTENERS.items()),
        "inter.broker.listener.name": "PLAIN",
        "group.initial.rebalance.delay.ms": "0",
        **certificates.settings("localhost"),
        "listener.name.mtls.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": ",".join(LOGINS),
        "listener.name.login.plain.sasl.jaas.config": f"{PLAIN} required {users};",
    }


def java_settings(certificates: Certificates, listener: str, mechanism: str = "PLAIN") -> dict[str, str]:
    """Return the settings of a Java client at a listener."""
    settings = {"security.protocol": LISTENERS[listener], **certificates.settings("carol")}
    if listener != "MTLS":
        settings = {name: text for name, text in settings.items() if "keystore" not in name}
    if listener == "LOGIN":
        user, password = LOGINS[mechanism]
        module = PLAIN if mechanism == "PLAIN" else SCRAM
        settings |= {
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f'{module} required username="{user}" password="{password}";',
        }
    return settings


class TlsBroker(Broker):
    """A broker with the listeners of `LISTENERS`; at MTLS clients need a certificate."""

    def __init__(self, directory: Path, **more: str) -> None:
        self.certificates = Certificates.make(directory, "localhost", "carol")
        settings = {
            "listeners": ",".join(f"{name}://127.0.0.1:0" for name in LISTENERS),
            "advertised.listeners": ",".join(f"{name}://localhost:0" for name in LISTENERS),
            **listener_settings(self.certificates),
            **{name.replace("_", "."): value for name, value in more.items()},
        }
        super().__init__(directory, settings)

    def listener_ports(self) -> dict[str, int]:
        """Return the port of each listener."""
        pattern = ", ".join(rf"localhost:(\d+) \({name}\)" for name in LISTENERS)
        return dict(zip(LISTENERS, map(int, self.wait_log(re.compile(pattern)).groups()), strict=True))

    def servers(self, listener: str) -> str:
        """Return the bootstrap servers at a listener."""
        return f"localhost:{self.listener_ports()[listener]}"

    def librdkafka(self, listener: str, mechanism: str = "PLAIN", **more: Any) -> dict[str, Any]:
        """Return the settings of a confluent-kafka client, or of kcat."""
        settings = {
            "bootstrap.servers": self.servers(listener),
            "security.protocol": LISTENERS[listener].lower(),
        }
        if listener != "PLAIN":
            settings["ssl.ca.location"] = str(self.certificates.authority_file)
        if listener == "MTLS":
            own = str(self.certificates.file("carol"))
            settings |= {"ssl.certificate.location": own, "ssl.key.location": own}
        if listener == "LOGIN":
            user, password = LOGINS[mechanism]
            settings |= {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
        return {**settings, **more}

    def python(self, listener: str, mechanism: str = "PLAIN") -> dict[str, Any]:
        """Return the settings of a client of kafka-python."""
        settings: dict[str, Any] = {
            "bootstrap_servers": self.servers(listener), "security_protocol": LISTENERS[listener],
            "ssl_cafile": str(self.certificates.authority_file),
        }  # fmt: skip
        if listener == "MTLS":
            own = str(self.certificates.file("carol"))
            settings |= {"ssl_certfile": own, "ssl_keyfile": own}
        if listener == "LOGIN":
            user, password = LOGINS[mechanism]
            settings |= {
                "sasl_mechanism": mechanism,
                "sasl_plain_username": user,
                "sasl_plain_password": password,
            }
        return settings

    def java(self, listener: str, mechanism: str = "PLAIN") -> dict[str, str]:
        """Return the settings of a Java client."""
        return java_settings(self.certificates, listener, mechanism)


def user_of(listener: str, mechanism: str = "PLAIN") -> str:
    """Return the name of the principal that a client of `TlsBroker` has."""
    return {"MTLS": "CN=carol", "LOGIN": LOGINS[mechanism][0]}.get(listener, "ANONYMOUS")


def run_kcat(kcat: str, settings: dict[str, Any], *arguments: str, given: bytes = b"") -> bytes:
    """Run kcat with librdkafka's settings; return what it printed."""
    options = [part for name, text in settings.items() for part in ("-X", f"{name}={text}")]
    done = subprocess.run([kcat, *options, *arguments], input=given, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout

"""A real Apache Kafka with logins, TLS and an authorizer, and what clients and gateways before it need."""

import json
import time
from pathlib import Path

from bench.ladder.brokers import SHORT_LIVED, KafkaBench
from bench.ports import free_port
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from tests.e2e.tls_broker import PLAIN, SCRAM, Certificates
from tests.waiting import wait_for_leaders

__all__ = ["PASSWORDS", "SESSION_MS", "SecureKafka"]

LISTENERS = {"LOGIN": "SASL_PLAINTEXT", "SECURE": "SASL_SSL", "TLS": "SSL", "SHORT": "SASL_PLAINTEXT"}
SESSION_MS = 2_000
"""Lifetime of a login at the listener SHORT."""
PASSWORDS = {"gateway": "g,=secret", "alice": "a,=secret", "bob": "b-secret"}
SUPER_USERS = ("ANONYMOUS", "gateway", "CN=gateway")
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


class SecureKafka:
    """One broker with the listeners of `LISTENERS`, and PLAINTEXT; all users may use topics and groups."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.certificates = Certificates.make(directory, "localhost", "gateway", "carol")
        self.ports = {name: free_port() for name in LISTENERS}
        self.broker = KafkaBench(
            "kafka",
            directory / "kafka",
            java_options=SHORT_LIVED,
            further=tuple(f"{name}://localhost:{port}" for name, port in self.ports.items()),
            overrides=tuple(f"{name}={text}" for name, text in self._settings().items()),
        )

    def _settings(self) -> dict[str, str]:
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **LISTENERS}
        users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
        settings = {
            "listener.security.protocol.map": ",".join(map(":".join, protocols.items())),
            "inter.broker.listener.name": "PLAINTEXT",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": ";".join(f"User:{name}" for name in SUPER_USERS),
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "connection.failed.authentication.delay.ms": "10",
            "ssl.client.auth": "requested",
            "num.partitions": "3",
            **self.certificates.settings("localhost"),
        }
        for name in ("login", "secure", "short"):
            prefix = f"listener.name.{name}"
            settings[f"{prefix}.plain.sasl.jaas.config"] = f"{PLAIN} required {users};"
            settings[f"{prefix}.oauthbearer.sasl.jaas.config"] = f"{OAUTH} required;"
            for mechanism in ("scram-sha-256", "scram-sha-512"):
                settings[f"{prefix}.{mechanism}.sasl.jaas.config"] = f"{SCRAM} required;"
        for mechanism in MECHANISMS:
            settings[f"listener.name.short.{mechanism.lower()}.connections.max.reauth.ms"] = str(SESSION_MS)
        return settings

    def start(self) -> "SecureKafka":
        """Start the broker and create its SCRAM users and ACLs."""
        self.broker.start()
        admin = AdminClient({"bootstrap.servers": self.broker.address})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            info = ScramCredentialInfo(mechanism, 4096)
            for name, password in PASSWORDS.items():
                change = UserScramCredentialUpsertion(name, info, password.encode())
                admin.alter_user_scram_credentials([change])[name].result(30)
        for resource in (ResourceType.TOPIC, ResourceType.GROUP):
            self.allow(resource, "*", AclOperation.ALL, "*")
        return self

    def forbid(self, user: str) -> None:
        """Delete the ACLs of a user."""
        acls = AclBindingFilter(
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            f"User:{user}",
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        admin = AdminClient({"bootstrap.servers": self.broker.address})
        admin.delete_acls([acls])[acls].result(30)

    def allow(self, resource: ResourceType, name: str, operation: AclOperation, user: str) -> None:
        """Create an ACL."""
        acl = AclBinding(
            resource,
            name,
            ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        admin = AdminClient({"bootstrap.servers": self.broker.address})
        admin.create_acls([acl])[acl].result(30)

    def topic(self, name: str) -> str:
        """Create a topic with one partition and return its name, which is `name` and the time."""
        name = f"{name}-{time.time_ns()}"
        admin = AdminClient({"bootstrap.servers": self.broker.address})
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
        wait_for_leaders(admin, name)
        return name

    def check_running(self) -> None:
        """Raise `RuntimeError` with the end of the log if the broker has ended by itself."""
        self.broker.check_running()

    def stop(self) -> None:
        """Stop the broker."""
        self.broker.stop()

    def address(self, listener: str) -> str:
        """Return the address of a listener."""
        return f"localhost:{self.ports[listener]}"

    def client_properties(self, path: Path, listener: str, mechanism: str = "", **more: str) -> Path:
        """Write the settings with which a gateway connects to a listener, as the user `gateway`."""
        settings = {"security.protocol": LISTENERS[listener]}
        if settings["security.protocol"].endswith("SSL"):
            settings["ssl.truststore.type"] = "PEM"
            settings["ssl.truststore.location"] = str(self.certificates.authority_file)
        if mechanism:
            module = PLAIN if mechanism == "PLAIN" else SCRAM
            settings["sasl.mechanism"] = mechanism
            password = more.pop("password", PASSWORDS["gateway"])
            settings["sasl.jaas.config"] = (
                f'{module} required username="gateway" password={json.dumps(password)};'
            )
        settings |= {name.replace("_", "."): text for name, text in more.items()}
        path.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
        return path

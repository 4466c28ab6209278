"""Every setting that Apache Kafka 4.3.1 knows has an effect here, or is named at the start; files as they are."""

import json
from pathlib import Path

import pytest
from tests.unit.tls.certificates import identity

from tidegate.config.properties import parse_properties
from tidegate.errors import ConfigError
from tidegate.server.listening.tls_config import tls_config
from tidegate.server.settings.config import ServerConfig
from tidegate.server.settings.table import SETTINGS
from tidegate.server.settings.unused_settings import is_unused

ROWS = json.loads((Path(__file__).parents[1] / "vectors" / "settings" / "settings.json").read_text())
KAFKA = {name: (kind, default, valid) for name, kind, default, valid, _, _ in ROWS}
"""Name → type, default and what is valid (`tests/vectors/settings/Settings.java` wrote them down)."""
OTHER_DEFAULTS = {
    "listeners": "at the loopback address alone",
    "log.dirs": "a folder where the broker starts; Kafka's log.dir is /tmp/kafka-logs",
    "log.flush.interval.ms": "Kafka's scheduler interval stands behind it, which is as large",
    "log.retention.ms": "Kafka's log.retention.hours stands behind it, which is as long",
    "log.roll.ms": "Kafka's log.roll.hours stands behind it, which is as long",
    "node.id": "Kafka has none and asks for one",
    "queued.max.request.bytes": "S9",
    "socket.listen.backlog.size": "S8",
}
"""Settings whose default is another than Kafka's, and why or the row of docs/kafka-differences.md."""
OTHER_LEAST = {
    "log.flush.interval.ms": "below 0 is a mistake",
    "log.retention.ms": "Kafka refuses 0 and what is below -1 later (`validateValues`), as here",
    "log.roll.ms": "Kafka refuses what is below 1 later (`validateValues`), as here",
    "queued.max.request.bytes": "below -1 is a mistake",
    "sasl.server.max.receive.size": "nothing could be received",
    "socket.receive.buffer.bytes": "below -1 is a mistake",
    "socket.send.buffer.bytes": "below -1 is a mistake",
}
READ_BEFORE = {
    "broker.id",
    "log.dir",
    "log.flush.scheduler.interval.ms",
    "log.retention.hours",
    "log.retention.minutes",
    "log.roll.hours",
}
"""Settings that `ServerConfig.load` turns into others."""
A_CLIENTS = {"sasl.jaas.config"}
"""Known, and of no effect without a listener and a mechanism, which is said."""


@pytest.mark.parametrize("name", sorted(KAFKA))
def test_every_setting_of_kafka_is_known(name: str) -> None:
    """It is in force, or of those that are named as having no meaning."""
    assert (name in SETTINGS or name in READ_BEFORE or name in A_CLIENTS) != is_unused(name)


@pytest.mark.parametrize("name", sorted(KAFKA.keys() & SETTINGS.keys()))
def test_defaults_and_limits_are_kafkas(name: str) -> None:
    """But for those that are listed with their reason."""
    kind, default, valid = KAFKA[name]
    setting = SETTINGS[name]
    ours = str(setting.default).lower() if setting.type == "bool" else str(setting.default)
    assert (ours == (default or "")) == (name not in OTHER_DEFAULTS), (ours, default)
    types = {"INT": "int", "LONG": "long", "BOOLEAN": "bool"}
    assert isinstance(setting.type, tuple) or setting.type in (types.get(kind, "string"), "principals")
    if kind in ("INT", "LONG"):
        least = int(valid[1:].partition(",")[0]) if valid else None
        assert (setting.least == least) == (name not in OTHER_LEAST), (setting.least, valid)


def test_what_means_nothing_is_named_once() -> None:
    """All together in one line; one of a listener, too; what is not Kafka's is not among them."""
    config = ServerConfig.load(
        {"num.io.threads": "8", "listener.name.plaintext.ssl.provider": "BC", "num.io.thread": "8"}
    )
    assert config.notices() == [
        "unknown setting 'num.io.thread' has no effect",
        "ignored Kafka settings without effect in Tidegate: listener.name.plaintext.ssl.provider, num.io.threads",
    ]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"delete.topic.enable": "false"}, "is 'false', expected true: Tidegate cannot turn off the deletion of"),
        ({"create.topic.policy.class.name": "x.Y"}, "is 'x.Y', expected none: Tidegate cannot load Java classes"),
        ({"principal.builder.class": "x.Y"}, "principal.builder.class is 'x.Y', expected none or org.apache.kafka"),
        ({"listener.name.a.ssl.engine.factory.class": "x.Y"}, "listener.name.a.ssl.engine.factory.class is 'x.Y'"),
        ({"listener.name.a.plain.sasl.server.callback.handler.class": "x.Y"}, "callback.handler.class is 'x.Y'"),
        ({"config.providers": "file"}, "config.providers is 'file', expected none"),
        ({"log.retention.ms": "0"}, "log.retention.ms is 0, expected at least 1, or -1"),
        ({"log.retention.minutes": "0"}, "log.retention.ms is 0, expected at least 1, or -1"),
        ({"log.retention.hours": "many"}, "log.retention.hours is 'many', expected a whole number"),
        ({"queued.max.request.bytes": "1000"}, "expected at least socket.request.max.bytes, which is 104857600"),
        ({"max.connections.per.ip": "0"}, "max.connections.per.ip is 0, which rejects every client"),
        ({"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}, "authorizer.class.name is 'kafka.secur"),
        ({"super.users": "alice"}, "super.users"),
        ({"group.max.size": "0"}, "group.max.size is '0', expected a whole number from 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused(texts: dict[str, str], message: str) -> None:
    """Setting, value and what was expected: nothing that somebody relies on is left out silently."""
    with pytest.raises(ConfigError) as refused:
        ServerConfig.load(texts)
    assert message in str(refused.value)


def test_the_shortest_unit_of_retention_wins() -> None:
    """As in Kafka: ms before minutes before hours; -1 is for ever in each."""
    units = {"log.retention.hours": "2", "log.retention.minutes": "3"}
    assert ServerConfig.load({"log.retention.hours": "2"})["log.retention.ms"] == 7_200_000
    assert ServerConfig.load(units)["log.retention.ms"] == 180_000
    assert ServerConfig.load({**units, "log.retention.ms": "5"})["log.retention.ms"] == 5
    assert ServerConfig.load({"log.retention.minutes": "-1"})["log.retention.ms"] == -1


KRAFT = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""
"""The settings of Kafka 4.3's own config/server.properties."""


@pytest.mark.parametrize("roles", ["broker,controller", "broker"])
def test_kafkas_own_files_are_understood(roles: str) -> None:
    """The only thing to add is that the port is open on purpose: nothing in them is called unknown."""
    texts = parse_properties(KRAFT, source="server.properties")
    if roles == "broker":
        texts |= {"process.roles": "broker", "node.id": "2", "listeners": "PLAINTEXT://localhost:9092"}
        texts["advertised.listeners"] = "PLAINTEXT://localhost:9092"
    else:
        with pytest.raises(
            ConfigError,
            match=r"'PLAINTEXT' accepts unauthenticated clients at all addresses .* tidegate\.allow\.anonymous=true",
        ):
            ServerConfig.load(texts)
        texts["tidegate.allow.anonymous"] = "true"
    config = ServerConfig.load(texts)
    assert config.unknown == ()
    assert [listener.name for listener in config.listeners] == ["PLAINTEXT"]
    assert config["log.retention.ms"] == 604_800_000
    [notice] = config.notices()
    assert notice.startswith(
        "ignored Kafka settings without effect in Tidegate: controller.quorum.bootstrap.servers"
    )


SCRAM_AND_ACLS = """
process.roles=broker
node.id=11
listeners=SASL_SSL://0.0.0.0:9094
advertised.listeners=SASL_SSL://kafka-11.example.com:9094
security.inter.broker.protocol=SASL_SSL
sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule \\
    required \\
    username="broker" \\
    password="hunter2";
ssl.keystore.type=PKCS12
ssl.keystore.location={stores}/keytool.p12
ssl.keystore.password=secret
ssl.key.password=secret
ssl.truststore.location={stores}/trust-keytool.p12
ssl.truststore.password=secret
ssl.endpoint.identification.algorithm=https
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:broker;User:admin
allow.everyone.if.no.acl.found=false
connections.max.reauth.ms=3600000
auto.create.topics.enable=false
default.replication.factor=3
min.insync.replicas=2
unclean.leader.election.enable=false
num.network.threads=8
background.threads=10
group.initial.rebalance.delay.ms=3000
offsets.retention.minutes=20160
"""
MUTUAL_TLS = """
process.roles=broker
node.id=12
listeners=SSL://:9093
listener.name.ssl.ssl.client.auth=required
ssl.keystore.type=PEM
ssl.keystore.key={key}
ssl.keystore.certificate.chain={chain}
ssl.truststore.type=PEM
ssl.truststore.certificates={chain}
ssl.enabled.protocols=TLSv1.3,TLSv1.2
ssl.protocol=TLSv1.3
ssl.secure.random.implementation=SHA1PRNG
ssl.principal.mapping.rules=RULE:^CN=([^,]+),OU=Clients.*$/$1/L,DEFAULT
principal.builder.class=org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:CN=broker,OU=Kafka
"""
LISTENERS_AND_QUOTAS = """
node.id=13
listeners=INTERNAL://127.0.0.1:9092,CLIENTS://:9093,PARTNERS://:9094
advertised.listeners=CLIENTS://kafka.example.com:9093,PARTNERS://partners.example.com:9094
listener.security.protocol.map=INTERNAL:PLAINTEXT,CLIENTS:SASL_PLAINTEXT,PARTNERS:SASL_SSL
inter.broker.listener.name=INTERNAL
sasl.enabled.mechanisms=SCRAM-SHA-256
listener.name.clients.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256
listener.name.clients.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule \\
    required user_a="hunter2";
listener.name.partners.ssl.keystore.location={stores}/openssl.p12
listener.name.partners.ssl.keystore.password=secret
listener.name.partners.max.connections=200
listener.name.partners.max.connection.creation.rate=20
max.connections.per.ip=100
max.connections.per.ip.overrides=127.0.0.1:1000
quota.window.num=11
quota.window.size.seconds=2
controller.quota.window.num=11
replication.quota.window.num=11
metric.reporters=com.example.Reporter
log.cleanup.policy=delete
log.roll.hours=24
log.retention.minutes=1440
"""


@pytest.mark.parametrize("text", [SCRAM_AND_ACLS, MUTUAL_TLS, LISTENERS_AND_QUOTAS])
def test_files_of_production_are_understood(text: str) -> None:
    """SASL_SSL with SCRAM and ACLs; mutual TLS; several listeners with quotas: all is known, no secret is shown."""
    broker = identity("broker")
    stores = Path(__file__).parents[1] / "vectors" / "stores"
    inline = {"key": broker.key_pem(), "chain": broker.certificate_pem}
    escaped = {name: pem.replace("\n", "\\n\\\n  ") for name, pem in inline.items()}
    given = parse_properties(text.format(stores=stores, **escaped), source="server.properties")
    config = ServerConfig.load(given)
    for listener in config.listeners:
        if listener.is_encrypted:
            assert tls_config(listener.name, config.values, given).context
    assert config.unknown == ()
    for notice in config.notices():
        assert notice.startswith("ignored Kafka settings without effect in Tidegate: ")
    assert "hunter2" not in repr(config)
    assert "PRIVATE KEY" not in repr(config)

"""`tidegate.client` and the commands that use it against real Apache Kafkas of several versions."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from bench.ladder.brokers import SHORT_LIVED, KafkaBench
from bench.ports import free_port
from tests.e2e.test_client import consume, limit, settings
from tests.e2e.test_configs import RECORDED
from tests.e2e.test_quotas_as_code import until, walk
from tests.e2e.tls_broker import LISTENERS, LOGINS, SCRAM, Certificates, java_settings, listener_settings
from tests.request_log.brokers import LoggingKafka, wait_until
from tests.vectors import cli

from tidegate import error_codes
from tidegate.api_keys import ALTER_USER_SCRAM_CREDENTIALS, CREATE_ACLS
from tidegate.client import (
    Admin,
    BrokerError,
    ConfigChange,
    Consumer,
    NewTopic,
    Producer,
    Record,
    ScramChange,
    ThrottlingQuotaExceededError,
    TopicPartition,
    UnsupportedApiError,
    client_settings,
)
from tidegate.quota.admin.definitions import Alteration, FilterComponent

pytestmark = pytest.mark.java
VERSIONS = {"2.8.2": True, "3.3.2": False, "3.9.1": False, "4.3.1": False}
"""Each version, and whether its broker runs with ZooKeeper."""
OLD_KRAFT = "3.3.2"
"""KRaft has SCRAM users (KIP-900) and controller mutation quotas (KAFKA-14351) since Kafka 3.5."""
TOO_OLD = "2.5.1"
_BROKER_DEFAULTS = {
    "--describe --entity-type brokers",
    "--describe --broker-defaults",
}  # min.insync.replicas of 4.x
DIFFERENT = {
    "2.8.2": {
        *_BROKER_DEFAULTS,
        "--describe --client all",  # another order of keys
        "--alter --client a --add-config producer_byte_rate=0",  # is accepted
        # It sets both mechanisms of a user in one request.
        "--alter --add-config SCRAM-SHA-256=[password=s],SCRAM-SHA-512=[password=s] --entity-type users "
        "--entity-name bob",
        "--describe --entity-type users",
        "--describe --user bob",
    },
    "3.9.1": _BROKER_DEFAULTS,
}
"""Recorded commands whose output an older broker changes, by version."""
TIMEOUT_S = 60
SETTINGS = (
    "quota.window.num=3",
    "controller.quota.window.num=3",
    "super.users=User:ANONYMOUS;User:alice",
    "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    *(f"listener.name.login.scram-sha-{bits}.sasl.jaas.config={SCRAM} required;" for bits in (256, 512)),
)
TOPIC, BROKER = 2, 4  # Kafka's numbers of resource types


@pytest.fixture(scope="module", params=VERSIONS)
def kafka(request, tmp_path_factory) -> Iterator[LoggingKafka]:
    """Return a running Apache Kafka with short windows and an authorizer; two of them with ZooKeeper."""
    zookeeper = VERSIONS[request.param]
    authorizer = (
        "kafka.security.authorizer.AclAuthorizer"
        if zookeeper
        else "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    )
    with LoggingKafka(
        request.param,
        tmp_path_factory.mktemp("kafka") / request.param,
        zookeeper,
        (*SETTINGS, f"authorizer.class.name={authorizer}"),
        peers=1 if zookeeper else 0,
    ) as broker:
        wait_answers(broker, 2 if zookeeper else 1)
        yield broker


def wait_answers(broker: LoggingKafka, count: int = 1) -> None:
    """Wait until all brokers of a cluster answer."""

    async def found() -> bool:
        try:
            async with Admin(settings(broker)) as admin:
                await admin.cluster.refresh()
                return len(admin.cluster.node_ids) == count
        except ConnectionError:
            return False

    wait_until(lambda: broker.has_ended() or asyncio.run(found()), "the broker's first answer")
    assert not broker.has_ended(), (broker.directory / "out.log").read_text()


async def becomes(describe, wanted) -> None:
    """Wait until a description is as wanted: brokers apply changes a moment after their answer."""
    until_s = asyncio.get_running_loop().time() + TIMEOUT_S
    while (found := await describe()) != wanted:
        assert asyncio.get_running_loop().time() < until_s, found
        await asyncio.sleep(0.05)


def clear(broker: LoggingKafka) -> None:
    """Remove all quotas: other tests leave theirs."""

    async def work() -> None:
        async with Admin(settings(broker)) as admin:
            found = await admin.describe_client_quotas()
            gone = [
                Alteration(entity=entity, ops=[(key, None) for key in values]) for entity, values in found
            ]
            assert not any((await admin.alter_client_quotas(gone)).values())
            await becomes(admin.describe_client_quotas, [])

    asyncio.run(work())


def tidegate(*arguments: str, code: int | None = 0) -> subprocess.CompletedProcess:
    """Run a command."""
    command = [sys.executable, "-m", "tidegate", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert code in (None, done.returncode), done
    return done


def test_quotas_are_described_altered_and_validated(kafka):
    """Entities of every kind, a filter, a change that is only validated, a refusal, and the removal."""
    of = {
        (("client-id", None), ("user", "u")): {"consumer_byte_rate": 5.0},
        (("client-id", "c"),): {"producer_byte_rate": 7.0, "request_percentage": 50.0},
        (("user", None),): {"controller_mutation_rate": 2.0},
        (("ip", "192.0.2.7"),): {"connection_creation_rate": 10.0},
    }
    clear(kafka)
    changes = [Alteration(entity=entity, ops=tuple(values.items())) for entity, values in of.items()]

    async def work():
        async with Admin(settings(kafka)) as admin:

            async def described(*components):
                return dict(await admin.describe_client_quotas(components))

            assert await admin.alter_client_quotas(changes, validate_only=True) == dict.fromkeys(of)
            assert await described() == {}
            assert await admin.alter_client_quotas(changes) == dict.fromkeys(of)
            await becomes(described, of)
            of_c = FilterComponent("client-id", 0, "c")
            assert list(await described(of_c)) == [(("client-id", "c"),)]
            wrong = Alteration(entity=(("client-id", "c"),), ops=(("no_such_key", 5.0),))
            for validates in (True, False):
                (error,) = (await admin.alter_client_quotas([wrong], validate_only=validates)).values()
                assert error.code == error_codes.INVALID_REQUEST
            gone = [Alteration(entity=entity, ops=[(key, None) for key in of[entity]]) for entity in of]
            assert await admin.alter_client_quotas(gone) == dict.fromkeys(of)
            await becomes(described, {})

    asyncio.run(work())


def test_scram_users(kafka):
    """Users are set, described and deleted, whichever broker is asked first; where there are none, an error."""
    change = ScramChange(user="sam", mechanism="SCRAM-SHA-512", password="s3cret", iterations=5000)

    async def work():
        async with Admin(settings(kafka)) as admin:

            async def described(user):
                found = (await admin.describe_scram_users([user]))[user]
                return found.code if isinstance(found, BrokerError) else found

            assert await admin.alter_scram_users([change]) == {"sam": None}
            await becomes(lambda: described("sam"), {"SCRAM-SHA-512": 5000})
            assert await described("unknown") == error_codes.RESOURCE_NOT_FOUND
            if kafka.zookeeper:
                message = {"deletions": [{"name": "x", "mechanism": 1}], "upsertions": []}
                answers = [
                    (await admin.cluster.ask_node(node, ALTER_USER_SCRAM_CREDENTIALS, message)).message
                    for node in admin.cluster.node_ids
                ]
                codes = {answer["results"][0]["error_code"] for answer in answers}
                assert error_codes.NOT_CONTROLLER in codes  # one of the brokers takes no changes of users
            deletion = ScramChange(user="sam", mechanism="SCRAM-SHA-512")
            assert await admin.alter_scram_users([deletion]) == {"sam": None}
            await becomes(lambda: described("sam"), error_codes.RESOURCE_NOT_FOUND)

    if kafka.version != OLD_KRAFT:
        asyncio.run(work())
        return
    with pytest.raises(
        UnsupportedApiError,
        match="does not support AlterUserScramCredentials",
    ) as caught:
        asyncio.run(work())
    assert "KRaft 3.5" in caught.value.hint


def test_settings_of_topics_and_brokers(kafka):
    """Settings of a topic and of a broker are described and altered, and say where they are from."""

    async def work():
        async with Admin(settings(kafka)) as admin:
            await admin.create_topics([NewTopic(name="set", partitions=1, configs={"retention.ms": "60000"})])

            async def value(kind, name, setting, node_id=None):
                return {
                    each.name: each.value
                    for each in await admin.describe_configs(kind, name, node_id=node_id)
                }.get(setting)

            await becomes(lambda: value(TOPIC, "set", "retention.ms"), "60000")
            await admin.alter_configs(TOPIC, "set", [ConfigChange(name="retention.ms", value="70000")])
            await becomes(lambda: value(TOPIC, "set", "retention.ms"), "70000")
            await admin.alter_configs(
                BROKER, "1", [ConfigChange(name="log.cleaner.threads", value="2")], node_id=1
            )
            await becomes(lambda: value(BROKER, "1", "log.cleaner.threads", 1), "2")
            with pytest.raises(BrokerError):
                await admin.alter_configs(TOPIC, "set", [ConfigChange(name="retention.ms", value="x")])

    asyncio.run(work())


def test_topics_and_error_89(kafka):
    """Topics are created, extended and deleted; those that a quota refuses are tried again, or come back at once."""

    async def work():
        async with Admin(settings(kafka, "mutating")) as admin:
            (exists,) = (await admin.create_topics([NewTopic(name="set-2", partitions=1)])).values()
            assert exists is None
            again = await admin.create_topics([NewTopic(name="set-2", partitions=1)])
            assert again["set-2"].code == error_codes.TOPIC_ALREADY_EXISTS
            await limit(admin, "mutating", controller_mutation_rate=5.0)
            await asyncio.sleep(1)  # the controller takes the quota over a moment after the answer
            names = [f"m{number}" for number in range(4)]
            topics = [NewTopic(name=name, partitions=10, replication_factor=1) for name in names]
            assert await admin.create_topics(topics) == dict.fromkeys(names)
            refused = await admin.create_partitions({"m0": 30}, retry_on_quota_violation=False)
            if kafka.version == OLD_KRAFT:
                assert refused == {"m0": None}
            else:
                assert isinstance(refused["m0"], ThrottlingQuotaExceededError)
                assert refused["m0"].throttle_time_ms > 0
            assert await admin.create_partitions({"m0": 40}) == {"m0": None}
            assert set(names) <= set(await admin.list_topics())
            assert await admin.delete_topics(names) == dict.fromkeys(names)
            await limit(admin, "mutating", controller_mutation_rate=None)

    asyncio.run(work())


def test_acls_and_groups(kafka):
    """An ACL is described as it was created; groups are listed, and one without members is described as dead."""
    acl = {
        "resource_type": TOPIC, "resource_name": "orders", "resource_pattern_type": 3,
        "principal": "User:alice", "host": "*", "operation": 3, "permission_type": 3,
    }  # fmt: skip

    async def work():
        async with Admin(settings(kafka)) as admin:
            answer = (await admin.cluster.ask_any(CREATE_ACLS, {"creations": [acl]})).message
            assert answer["results"][0]["error_code"] == 0
            described = {
                "resource_type": TOPIC, "resource_name": "orders", "pattern_type": 3,
                "principal": "User:alice", "host": "*", "operation": 3, "permission_type": 3,
            }  # fmt: skip
            await becomes(admin.describe_acls, [described])
            assert await admin.list_groups() == {}
            if kafka.version < "4":
                assert (await admin.describe_group("no-members"))["group_state"] == "Dead"
            else:
                with pytest.raises(BrokerError, match="GROUP_ID_NOT_FOUND"):
                    await admin.describe_group("no-members")

    asyncio.run(work())


@pytest.mark.parametrize("gzip", [False, True])
def test_records_under_a_quota(kafka, gzip):
    """A throttled producer and consumer store and read all records; metrics have the throttle times.

    The request timeout is below the throttle times: a request that was sent before its time would fail, because the
    broker reads nothing from a throttled connection.
    """
    topic, values = f"slow-{gzip}", [b"%04d" % at + bytes(996) for at in range(8)]
    client_id = f"records-{gzip}"

    async def work():
        async with Admin(settings(kafka)) as admin:
            await admin.create_topics([NewTopic(name=topic, partitions=1, replication_factor=1)])
            await limit(
                admin, client_id, producer_byte_rate=200.0 if gzip else 2000.0, consumer_byte_rate=2000.0
            )
        own = settings(kafka, client_id, request_timeout_ms=1500)
        async with Producer(own, gzip=gzip) as producer, Consumer(own, partition_bytes=1) as consumer:
            for at, value in enumerate(values):
                assert await producer.send(topic, 0, [Record(value=value)]) == at
            assert await consume(consumer, TopicPartition(topic, 0), len(values)) == values
            return producer.metrics(), consumer.metrics()

    produced, fetched = asyncio.run(work())
    assert 0 < produced["produce-throttle-time-avg"] <= produced["produce-throttle-time-max"]
    assert produced["produce-throttle-time-max"] > 1500
    if not gzip:
        assert 0 < fetched["fetch-throttle-time-avg"] <= fetched["fetch-throttle-time-max"]


def test_quotas_as_code(kafka, tmp_path):
    """Check, plan, apply, export, prune and undo: what is printed is the same of every version."""
    clear(kafka)
    printed = walk(kafka.address, tmp_path / "walk")
    assert printed[4] == "as in the file: 3 entities; nothing to change\n"
    assert "    producer_byte_rate: 4MiB\n" in printed[5]


def test_configs_and_explain(kafka, tmp_path):
    """`tidegate configs` alters and describes quotas, users and topics; `tidegate explain` explains the quotas."""
    to = ("--bootstrap-server", kafka.address)
    configs = ("configs", *to)
    done = tidegate(*configs, "--alter", "--client", "app", "--add-config", "producer_byte_rate=1000")
    assert done.stdout == "Completed updating config for client app.\n"
    shown = "Quota configs for client-id 'app' are producer_byte_rate=1000.0\n"
    until(lambda: tidegate(*configs, "--describe", "--client", "app").stdout == shown)
    explained = tidegate("explain", *to, "--user", "alice", "--client-id", "app", "--json").stdout
    (produce,) = (each for each in json.loads(explained)["quotas"] if each["quota_type"] == "Produce")
    assert (produce["limit"], produce["entity"]) == (1000.0, {"client-id": "app"})
    tidegate(*configs, "--alter", "--client", "app", "--delete-config", "producer_byte_rate")
    until(lambda: tidegate(*configs, "--describe", "--client", "app").stdout == "")

    user = ("--user", "sue", "--add-config", "SCRAM-SHA-256=[iterations=4096,password=secret]")
    if kafka.version == OLD_KRAFT:
        refused = tidegate(*configs, "--alter", *user, code=1).stderr.splitlines()
        assert refused[1].startswith("error: ")
        assert "does not support AlterUserScramCredentials" in refused[1]
        assert refused[2].startswith("hint: ")
        assert len(refused) == 3
        assert tidegate(*configs, "--describe", "--user", "sue").stdout == ""
    else:
        tidegate(*configs, "--alter", *user)
        shown = "SCRAM credential configs for user-principal 'sue' are SCRAM-SHA-256=iterations=4096\n"
        until(lambda: tidegate(*configs, "--describe", "--user", "sue").stdout == shown)
        tidegate(*configs, "--alter", "--user", "sue", "--delete-config", "SCRAM-SHA-256")
    broker = tidegate(*configs, "--describe", "--broker", "1", "--all").stdout
    assert "  log.retention.hours=168 " in broker


def test_logins(kafka, tmp_path):
    """Users log in by every mechanism that the version has; one without rights and a wrong password are refused."""
    mechanisms = ["PLAIN"] if kafka.version == OLD_KRAFT else ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    changes = [ScramChange(user="alice", mechanism=name, password="alice") for name in mechanisms[1:]]

    async def set_passwords():
        async with Admin(settings(kafka)) as admin:
            for change in changes:  # a request changes a user once
                assert await admin.alter_scram_users([change]) == {"alice": None}
            if changes:
                wanted = {"alice": dict.fromkeys(mechanisms[1:], 4096)}
                await becomes(lambda: admin.describe_scram_users(["alice"]), wanted)

    def export(mechanism, user="alice", password="alice", **options):
        module = SCRAM if mechanism != "PLAIN" else SCRAM.replace("scram.Scram", "plain.Plain")
        file = tmp_path / f"{mechanism}-{user}.properties"
        file.write_text(
            f"bootstrap.servers=127.0.0.1:{kafka.ports['login']}\nsecurity.protocol=SASL_PLAINTEXT\n"
            f"sasl.mechanism={mechanism}\n"
            f'sasl.jaas.config={module} required username="{user}" password="{password}";\n'
        )
        return tidegate("quotas", "export", "--command-config", str(file), **options)

    asyncio.run(set_passwords())
    for mechanism in mechanisms:
        until(lambda mechanism=mechanism: export(mechanism, code=None).returncode == 0)
        wrong = export(mechanism, password="s3cret", code=2).stderr
        assert "refused the login of 'alice'" in wrong
        assert "s3cret" not in wrong
    assert "CLUSTER_AUTHORIZATION_FAILED" in export("PLAIN", "bob", "bob", code=2).stderr


@pytest.mark.parametrize("version", DIFFERENT)
def test_recorded_commands(version, tmp_path, capsys):
    """The 111 commands that were recorded of Kafka's tool print the same, except where the older broker differs."""
    with LoggingKafka(version, tmp_path / version, VERSIONS[version], SETTINGS) as broker:
        wait_answers(broker, 1)
        assert cli.main(["--in-process", "--bootstrap", broker.address, *RECORDED]) == 1
    lines = capsys.readouterr().out.splitlines()
    different = {line.partition("{bootstrap} ")[2] for line in lines if "json: --bootstrap-server" in line}
    assert different == DIFFERENT[version]
    assert lines[-1] == f"{111 - len(different)} passed, {len(different)} failed"


def test_a_broker_that_is_too_old_is_named(tmp_path):
    """Kafka 2.5 has no quotas API: each command ends with one error that says so, and a hint."""
    with LoggingKafka(TOO_OLD, tmp_path / TOO_OLD, zookeeper=True) as broker:
        wait_answers(broker)
        to = ("--bootstrap-server", broker.address)
        (tmp_path / "quotas.yaml").write_text("quotas:\n  - user: {name: a}\n    request_percentage: 5\n")
        commands = {
            ("quotas", "export", *to): "DescribeClientQuotas",
            ("quotas", "plan", str(tmp_path / "quotas.yaml"), *to): "DescribeClientQuotas",
            ("explain", *to, "--user", "a"): "DescribeClientQuotas",
        }
        for command, api in commands.items():
            error, hint = tidegate(*command, code=2).stderr.splitlines()
            assert error == f"error: broker {broker.address} does not support {api}"
            assert hint == "hint: client quotas need Apache Kafka 2.6 or later"


def test_a_controller_of_kraft_is_named(kafka):
    """A controller has no quotas and no Metadata: the error says that it is not a broker."""
    if kafka.zookeeper:
        return
    to = ("--bootstrap-server", f"127.0.0.1:{kafka.ports['controller']}")
    error, hint = tidegate("quotas", "export", *to, code=2).stderr.splitlines()
    assert error == f"error: broker {to[1]} does not support Metadata"
    assert "not of a KRaft controller" in hint


@pytest.fixture(scope="module")
def tls_kafka(tmp_path_factory) -> Iterator[tuple[Certificates, dict[str, str]]]:
    """Return the certificates for, and the addresses of, an Apache Kafka 4.3 with a listener of every protocol."""
    folder = tmp_path_factory.mktemp("tls")
    certificates = Certificates.make(folder, "localhost", "carol")
    own = {
        **listener_settings(certificates),
        **{
            f"listener.name.login.{name.lower()}.sasl.jaas.config": f"{SCRAM} required;"
            for name in LOGINS
            if name != "PLAIN"
        },
    }
    own["listener.security.protocol.map"] += ",CONTROLLER:PLAINTEXT"
    ports = {name: free_port() for name in LISTENERS}
    kafka = KafkaBench(
        "kafka",
        folder / "kafka",
        port=ports["PLAIN"],
        listener="PLAIN",
        settings=tuple(f"{name}={value}" for name, value in own.items()),
        further=tuple(f"{name}://localhost:{port}" for name, port in ports.items() if name != "PLAIN"),
        java_options=SHORT_LIVED,
    )
    kafka.start()
    yield certificates, {name: f"localhost:{port}" for name, port in ports.items()}
    kafka.stop()


def test_tls_and_logins(tls_kafka, tmp_path):
    """A client and each command come in by TLS, with a client's certificate, and with a login by every mechanism."""
    certificates, addresses = tls_kafka

    def texts(listener, mechanism="PLAIN"):
        own = java_settings(certificates, listener, mechanism)
        return {"bootstrap.servers": addresses[listener], **own}

    def properties(given):
        file = tmp_path / "client.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        return ("--command-config", str(file))

    async def set_users():
        async with Admin(client_settings(texts("TLS"))) as admin:
            changes = [
                ScramChange(user=user, mechanism=mechanism, password=password)
                for mechanism, (user, password) in LOGINS.items()
                if mechanism != "PLAIN"
            ]
            wanted = {change.user: {change.mechanism: 4096} for change in changes}
            assert await admin.alter_scram_users(changes) == dict.fromkeys(wanted)
            await becomes(admin.describe_scram_users, wanted)
            await limit(admin, "app", producer_byte_rate=1000.0)
            await admin.create_topics([NewTopic(name="t", partitions=1, replication_factor=1)])

    async def store_and_read(given, number):
        own = client_settings(given)
        async with Producer(own) as producer, Consumer(own) as consumer:
            assert await producer.send("t", 0, [Record(value=b"%d" % number)]) == number
            assert (await consume(consumer, TopicPartition("t", 0), number + 1))[-1] == b"%d" % number

    asyncio.run(set_users())
    ways = [("TLS", "PLAIN"), ("MTLS", "PLAIN"), *(("LOGIN", mechanism) for mechanism in LOGINS)]
    for number, way in enumerate(ways):
        given = texts(*way)
        asyncio.run(store_and_read(given, number))
        config = properties(given)
        assert "producer_byte_rate: 1kB" in tidegate("quotas", "export", *config).stdout
        described = tidegate(
            "configs", "--bootstrap-server", addresses[way[0]], *config, "--describe", "--client", "app"
        )
        assert described.stdout == "Quota configs for client-id 'app' are producer_byte_rate=1000.0\n"
        assert "limit 1000" in tidegate("explain", *config, "--client-id", "app").stdout


@pytest.mark.parametrize(
    ("listener", "changed", "message"),
    [
        ("TLS", {"ssl.truststore.location": "carol.pem"}, "certificate of broker localhost"),
        (
            "MTLS",
            {"ssl.keystore.location": None, "ssl.keystore.type": None},
            "TLS with localhost:[0-9]+ failed",
        ),
        (
            "LOGIN",
            {"sasl.jaas.config": f'{SCRAM} required username="sam" password="s3cret";'},
            "refused the login",
        ),
        ("TLS", {"security.protocol": "PLAINTEXT"}, "answered by TLS"),
        (
            "LOGIN",
            {"security.protocol": "SSL"},
            "broker localhost:[0-9]+ closed the connection",
        ),
        ("LOGIN", {"sasl.mechanism": "SCRAM-SHA-512"}, "refused the login of 'sam'"),
        ("PLAIN", {"security.protocol": "SASL_PLAINTEXT"}, "expects no login|closed the connection"),
    ],
)
def test_what_a_real_listener_refuses(tls_kafka, tmp_path, listener, changed, message):
    """The command ends with one error and a hint, and shows no password."""
    certificates, addresses = tls_kafka
    given = {"bootstrap.servers": addresses[listener]}
    given |= java_settings(certificates, "LOGIN" if listener == "PLAIN" else listener, "SCRAM-SHA-256")
    for name, value in changed.items():
        given.pop(name, None)
        if value is not None:
            given[name] = str(certificates.directory / value) if value.endswith(".pem") else value
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    error, hint = tidegate("quotas", "export", "--command-config", str(file), code=2).stderr.splitlines()
    assert error.startswith("error: ")
    assert re.search(message, error), error
    assert hint.startswith("hint: ")
    assert "s3cret" not in error + hint

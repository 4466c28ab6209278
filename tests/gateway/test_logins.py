"""Logins of clients: those that pass through to the brokers, and those that end at the gateway."""

import random
import secrets
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.login_client import LoginClient, unsecured_token
from tests.gateway.raw_client import is_closed
from tests.gateway.secure_kafka import PASSWORDS, SESSION_MS

from tidegate import error_codes
from tidegate.api_keys import ALTER_CLIENT_QUOTAS, SASL_AUTHENTICATE
from tidegate.gateway.logins import MAX_TOKEN_BYTES, claimed_name
from tidegate.wire import encode_request

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
CLOSED = (ConnectionError, ssl.SSLError)
RENEWED_AFTER_S = 1.1
"""Time after which a broker accepts another login of a connection (KIP-368)."""
QUOTAS = """\
version: 1
quotas:
  - user: {name: alice}
    producer_byte_rate: 1000
  - user: {name: "CN=carol"}
    producer_byte_rate: 1000
"""
PLAIN_USERS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'user_alice="a,=secret" user_bob="b-secret";'
)


@pytest.fixture(scope="module")
def quotas(tmp_path_factory) -> str:
    """Return a file with a quota of alice, and one of the user of carol's certificate."""
    path = tmp_path_factory.mktemp("quotas") / "quotas.yaml"
    path.write_text(QUOTAS)
    return str(path)


@pytest.fixture(scope="module")
def gateways(secure_kafka, quotas, tmp_path_factory) -> Iterator[dict[str, GatewayProcess]]:
    """Return a gateway through which logins pass by listener of Kafka: PLAINTEXT to LOGIN and SHORT, SSL to SECURE."""
    directory = tmp_path_factory.mktemp("passing")
    processes = {}
    for name in ("LOGIN", "SHORT", "SECURE"):
        config = secure_kafka.client_properties(directory / f"{name}.properties", name, "SCRAM-SHA-256")
        options = ["--upstream-config", str(config), "--quotas", quotas]
        processes[name] = GatewayProcess(directory / name, secure_kafka.address(name), tuple(options))
    secure = processes["SECURE"]
    stores = secure_kafka.certificates.settings("localhost")
    secure.listener = "SSL"
    secure.options += tuple(part for item in stores.items() for part in ("--override", "=".join(item)))
    for process in processes.values():
        process.start()
    yield processes
    for process in processes.values():
        process.close()


@pytest.fixture(scope="module")
def topic(secure_kafka) -> str:
    """Return a topic for all tests here."""
    return secure_kafka.topic("logins")


def connect(secure_kafka, gateway: GatewayProcess) -> LoginClient:
    """Return a client that is connected to the broker of a gateway."""
    (port,) = gateway.ports.values()
    tls = ssl.create_default_context(cafile=str(secure_kafka.certificates.authority_file))
    return LoginClient(port, tls if gateway.listener == "SSL" else None)


# --- logins that pass through -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["LOGIN", "SECURE"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_quota_of_the_user_counts_after_the_login(secure_kafka, gateways, topic, name, mechanism):
    """alice has a quota and bob has none, whichever mechanism carries the name, with and without TLS."""
    for user, is_throttled in (("alice", True), ("bob", False)):
        with connect(secure_kafka, gateways[name]) as client:
            assert client.log_in(mechanism, user, PASSWORDS[user])["error_code"] == 0
            assert (client.produce(topic, 20_000)["throttle_time_ms"] > 0) is is_throttled


def confluent_settings(secure_kafka, gateway: GatewayProcess, mechanism: str) -> dict[str, object]:
    """Return the settings of a client of bob's over TLS."""
    settings = {
        "bootstrap.servers": gateway.address.replace("127.0.0.1", "localhost"),
        "broker.address.family": "v4",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(secure_kafka.certificates.authority_file),
        "ssl.endpoint.identification.algorithm": "none",
        "sasl.mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        return settings | {
            "enable.sasl.oauthbearer.unsecure.jwt": True,
            "sasl.oauthbearer.config": "principal=bob",
        }
    return settings | {"sasl.username": "bob", "sasl.password": PASSWORDS["bob"]}


def test_confluent_kafka_logs_in_through_the_gateway(secure_kafka, gateways, topic):
    """A usual client produces with each of the mechanisms, over TLS."""
    for mechanism in MECHANISMS:
        producer = Producer(confluent_settings(secure_kafka, gateways["SECURE"], mechanism))
        producer.produce(topic, b"x")
        assert producer.flush(20) == 0, mechanism


def test_large_responses_pass_by_tls_on_both_sides(secure_kafka, gateways):
    """Responses of megabytes are decrypted and encrypted again in parts; a slow reader gets every byte."""
    large = secure_kafka.topic("large")
    settings = confluent_settings(secure_kafka, gateways["SECURE"], "SCRAM-SHA-512")
    producer = Producer({**settings, "message.max.bytes": 2_000_000})
    values = [bytes([number]) * 900_000 for number in range(20)]
    for value in values:
        producer.produce(large, value)
    assert producer.flush(30) == 0
    consumer = Consumer({**settings, "group.id": large, "fetch.message.max.bytes": 10_000_000})
    consumer.assign([TopicPartition(large, 0, OFFSET_BEGINNING)])
    found = []
    deadline = time.monotonic() + 30
    while len(found) < len(values) and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None:
            assert not message.error(), message.error()
            found.append(message.value())
            time.sleep(0.02)
    consumer.close()
    assert found == values


@pytest.mark.parametrize("mechanism", MECHANISMS[:3])
def test_wrong_password_is_answered_as_by_kafka(secure_kafka, gateways, mechanism):
    """The answer is the broker's, and the connection closes; the name of the user does not count."""
    with connect(secure_kafka, gateways["LOGIN"]) as client:
        answer = client.log_in(mechanism, "alice", "wrong")
        assert is_closed(client.socket)
    with LoginClient(secure_kafka.ports["LOGIN"]) as direct:
        assert answer == direct.log_in(mechanism, "alice", "wrong")
    assert answer["error_code"] == error_codes.SASL_AUTHENTICATION_FAILED
    with (
        LoginClient(secure_kafka.ports["LOGIN"]) as direct,
        connect(secure_kafka, gateways["LOGIN"]) as client,
    ):
        assert direct.handshake("GSSAPI") == client.handshake("GSSAPI")


def test_requests_before_the_login_close_the_connection(secure_kafka, gateways):
    """Metadata before the login ends at the broker, which closes the connection, and so does the gateway."""
    with connect(secure_kafka, gateways["LOGIN"]) as client, pytest.raises(CLOSED):
        client.metadata()


def test_client_logs_in_again_and_stays(secure_kafka, gateways, topic):
    """A session that is renewed goes on beyond its lifetime, with the quota of its user."""
    with connect(secure_kafka, gateways["SHORT"]) as client:
        answer = client.log_in("SCRAM-SHA-256", "bob", PASSWORDS["bob"])
        assert 0 < answer["session_lifetime_ms"] <= SESSION_MS
        for _ in range(2):
            time.sleep(0.6 * SESSION_MS / 1000)
            assert client.log_in("SCRAM-SHA-256", "bob", PASSWORDS["bob"])["error_code"] == 0
            assert client.produce(topic, 20_000)["throttle_time_ms"] == 0


def test_session_that_is_not_renewed_ends(secure_kafka, gateways, topic):
    """The broker closes the connection at the first request after the end of the session."""
    with connect(secure_kafka, gateways["SHORT"]) as client:
        client.log_in("PLAIN", "bob", PASSWORDS["bob"])
        time.sleep(SESSION_MS / 1000 + 0.2)
        with pytest.raises(CLOSED):
            client.produce(topic)


def test_second_login_as_another_user_is_refused(secure_kafka, gateways, topic):
    """The broker refuses it as on a direct connection, and closes the connection: no quota applies to it any more."""
    answers = []
    with (
        connect(secure_kafka, gateways["SHORT"]) as through,
        LoginClient(secure_kafka.ports["SHORT"]) as direct,
    ):
        for client in (through, direct):
            client.log_in("PLAIN", "alice", PASSWORDS["alice"])
        time.sleep(RENEWED_AFTER_S)
        for client in (through, direct):
            answers.append(client.log_in("PLAIN", "bob", PASSWORDS["bob"]))
            with pytest.raises(CLOSED):
                client.produce(topic)
    assert answers[0] == answers[1]
    assert answers[0]["error_code"] == error_codes.SASL_AUTHENTICATION_FAILED


def test_login_on_a_connection_that_needs_none_changes_no_name(secure_kafka, gateways, topic):
    """Without a limited session the broker refuses a second login; alice stays alice, with her quota."""
    with connect(secure_kafka, gateways["LOGIN"]) as client:
        client.log_in("PLAIN", "alice", PASSWORDS["alice"])
        assert client.handshake("PLAIN")["error_code"] == error_codes.ILLEGAL_SASL_STATE
        assert (
            client.token(f"\0bob\0{PASSWORDS['bob']}".encode())["error_code"]
            == error_codes.ILLEGAL_SASL_STATE
        )
        assert client.produce(topic, 20_000)["throttle_time_ms"] > 0


def test_handshake_without_headers_is_refused(secure_kafka, gateways):
    """Version 0 of SaslHandshake is answered by error 35, and the log says what to do."""
    gateway = gateways["LOGIN"]
    with connect(secure_kafka, gateway) as client:
        assert client.handshake("PLAIN", version=0)["error_code"] == error_codes.UNSUPPORTED_VERSION
        assert is_closed(client.socket)
    assert "refused SaslHandshake version 0" in gateway.log
    assert "hint: update the client" in gateway.log


def test_hostile_tokens_harm_nothing(secure_kafka, gateways, topic):
    """Tokens of any kind are answered by the broker; the gateway serves on, without a traceback."""
    seed = secrets.randbits(32)
    rng = random.Random(seed)
    gateway = gateways["LOGIN"]
    deep = b"n,,\x01auth=Bearer e30." + b"W" * 40_000 + b".\x01\x01"
    tokens = [
        deep,
        b"",
        b"\0",
        b"\0\0\0\0",
        b"\0" + b"\xff" * 30 + b"\0x",
        b"\0" + b"a" * MAX_TOKEN_BYTES + b"\0x",
        b"n,,n=,r=",
        b"n,,",
        b"n,,n=alice",
        unsecured_token({"sub": ["alice"]}),
        unsecured_token({"sub": {"a": 1}}),
        unsecured_token({"sub": "x" * 40_000}),
        unsecured_token({}),
        *(rng.randbytes(rng.randrange(300)) for _ in range(4)),
    ]
    for token in tokens:
        with connect(secure_kafka, gateway) as client:
            client.handshake(rng.choice(MECHANISMS))
            try:
                client.token(token)
                client.token(token)
            except OSError:
                pass
    with connect(secure_kafka, gateway) as client:
        client.handshake("PLAIN")
        frame = bytearray(encode_request(SASL_AUTHENTICATE, 2, 7, "client", {"auth_bytes": b"\0a\0b"}))
        frame[5] = 99  # a version that nobody knows
        client.socket.sendall(frame)
        assert is_closed(client.socket)
    with connect(secure_kafka, gateway) as client:
        client.log_in("PLAIN", "alice", PASSWORDS["alice"])
        assert client.produce(topic, 20_000)["throttle_time_ms"] > 0
    assert "Traceback" not in gateway.log, seed


@pytest.mark.parametrize(
    ("mechanism", "token", "name"),
    [
        ("PLAIN", b"alice\0alice\0x", "alice"),
        ("PLAIN", b"\0alice\0x\0", None),
        ("PLAIN", b"\0\xff\0x", None),
        ("SCRAM-SHA-256", b"n,a=bob,n=b=3D=2Cc,r=x", "b=,c"),
        ("SCRAM-SHA-256", b"n,,n=token-id,r=x,tokenauth=true", None),
        ("SCRAM-SHA-512", b"n,,r=x", None),
        ("OAUTHBEARER", unsecured_token({"sub": "alice"}), "alice"),
        ("OAUTHBEARER", unsecured_token({"sub": 5}), None),
        ("OAUTHBEARER", b"n,,\x01auth=Bearer x\x01\x01", None),
        ("OAUTHBEARER", b"n,,\x01auth=Bearer a." + b"A" * 5 + b".\x01\x01", None),
        ("GSSAPI", b"alice", None),
    ],
)
def test_claimed_name_is_read(mechanism, token, name):
    """The name is the one that the broker would read; of what cannot be read there is none."""
    assert claimed_name(mechanism, token) == name


# --- logins that end at the gateway -----------------------------------------------------------------------------------


def test_logins_by_plain_end_at_the_gateway(secure_kafka, gateway_before, quotas, topic, tmp_path):
    """The gateway knows its users, the brokers see the gateway's own, and the quota of alice applies."""
    config = secure_kafka.client_properties(tmp_path / "upstream.properties", "SECURE", "SCRAM-SHA-512")
    gateway = gateway_before(
        secure_kafka.address("SECURE"),
        *("--upstream-config", str(config), "--quotas", quotas),
        *("--override", "sasl.enabled.mechanisms=PLAIN"),
        *("--override", f"listener.name.sasl_plaintext.plain.sasl.jaas.config={PLAIN_USERS}"),
        listener="SASL_PLAINTEXT",
    )
    with connect(secure_kafka, gateway) as client:
        assert client.log_in("PLAIN", "alice", PASSWORDS["alice"])["error_code"] == 0
        assert client.produce(topic, 20_000)["throttle_time_ms"] > 0
    with connect(secure_kafka, gateway) as client:
        assert (
            client.log_in("PLAIN", "alice", "wrong")["error_code"] == error_codes.SASL_AUTHENTICATION_FAILED
        )
        assert is_closed(client.socket)
    with connect(secure_kafka, gateway) as client, pytest.raises(CLOSED):
        client.metadata()
    assert "without a login" not in gateway.log


def test_certificates_of_clients_map_to_users(secure_kafka, gateway_before, quotas, topic, tmp_path):
    """TLS ends at the gateway: the certificate names the user of quotas, and none is no way in."""
    config = secure_kafka.client_properties(tmp_path / "upstream.properties", "LOGIN", "SCRAM-SHA-512")
    stores = secure_kafka.certificates.settings("localhost")
    gateway = gateway_before(
        secure_kafka.address("LOGIN"),
        *("--upstream-config", str(config), "--quotas", quotas, "--login", "gateway"),
        *(part for item in stores.items() for part in ("--override", "=".join(item))),
        *("--override", "ssl.client.auth=required"),
        listener="SSL",
    )
    (port,) = gateway.ports.values()
    context = ssl.create_default_context(cafile=str(secure_kafka.certificates.authority_file))
    with pytest.raises(CLOSED), LoginClient(port, context) as client:
        client.metadata()
    context.load_cert_chain(secure_kafka.certificates.file("carol"))
    with LoginClient(port, context) as client:
        assert client.handshake("PLAIN")["error_code"] == error_codes.ILLEGAL_SASL_STATE
        assert client.produce(topic, 20_000)["throttle_time_ms"] > 0
    assert "without a login" not in gateway.log
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.sendall(encode_request(ALTER_CLIENT_QUOTAS, 1, 1, "c", {"entries": [], "validate_only": True}))
        assert plain.recv(100)[:1] in (b"", b"\x15")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            (
                "--override", "listeners=SASL_PLAINTEXT://127.0.0.1:29192",
                "--override", "sasl.enabled.mechanisms=SCRAM-SHA-256",
            ),
            "listener SASL_PLAINTEXT has SCRAM-SHA-256 in sasl.enabled.mechanisms, expected PLAIN",
        ),
        (
            (
                "--override", "listeners=SASL_PLAINTEXT://127.0.0.1:29192",
                "--override", "sasl.enabled.mechanisms=PLAIN", "--login", "clients",
                "--override", f"listener.name.sasl_plaintext.plain.sasl.jaas.config={PLAIN_USERS}",
            ),
            "--login is clients, but the gateway checks logins of listener SASL_PLAINTEXT (SASL_PLAINTEXT)",
        ),
    ],
)  # fmt: skip
def test_logins_that_a_gateway_cannot_end_are_an_error(tmp_path, options, error):
    """A gateway with SCRAM at a listener, or with two kinds of logins, does not start."""
    command = [sys.executable, "-m", "tidegate", "gateway", "--upstream", "127.0.0.1:1", *options]
    command += ["--data", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert error in done.stderr
    assert "hint:" in done.stderr

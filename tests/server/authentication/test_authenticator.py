"""Logins at a node: what is served before, how they fail, how long they hold, and what they cost whom."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.authentication.login_client import (
    CLIENTS,
    SETTINGS,
    LoginClient,
    add_user,
    plain_token,
)
from tests.server.memory_network import MemoryNode

from tidegate.api_keys import (
    API_VERSIONS,
    DESCRIBE_CLIENT_QUOTAS,
    METADATA,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from tidegate.server.authentication.logins import MAX_DELAYED, MAX_LOGIN_S
from tidegate.wire import encode_request

WRONG = "Authentication failed: Invalid username or password"
OF_MECHANISM = "Authentication failed during authentication due to invalid credentials with SASL mechanism "
DESCRIBE: dict[str, Any] = {"components": [], "strict": True}
DELAY_MS = 100
MIXED = [("PLAIN", "alice", "alice-secret"), ("SCRAM-SHA-256", "sam", "s1"), ("SCRAM-SHA-512", "max", "s2")]


@pytest.fixture
def node_with(tmp_path: Path) -> Iterator[Callable[..., MemoryNode]]:
    """Return a function that starts a node in memory with a listener for logins and one without."""
    started: list[MemoryNode] = []

    def start(**settings: str) -> MemoryNode:
        node = MemoryNode(tmp_path / str(len(started)), texts={**SETTINGS, **settings})
        started.append(node)
        add_user(node, "sam", "s1", "SCRAM-SHA-256")
        add_user(node, "max", "s2", "SCRAM-SHA-512")
        return node

    yield start
    for node in started:
        node.close()


def is_served(client: LoginClient) -> bool:
    """Return whether a request is answered."""
    answer = client.ask(DESCRIBE_CLIENT_QUOTAS, 0, DESCRIBE)
    return answer is not None and answer["error_code"] == 0


def users(node: MemoryNode) -> list[str]:
    """Return whose connections there are."""
    return [channel.connection.user for channel in node.node._front.channels]


@pytest.mark.parametrize(("mechanism", "user", "password"), MIXED)
def test_a_login_makes_a_principal(
    node_with: Callable[..., MemoryNode], mechanism: str, user: str, password: str
) -> None:
    """After ApiVersions, SaslHandshake and SaslAuthenticate requests are the user's; quotas see the name."""
    node = node_with()
    client = LoginClient(node)
    assert client.versions()["error_code"] == 0
    assert client.handshake(mechanism)["error_code"] == 0
    assert users(node) == ["ANONYMOUS"]
    client.transport.client_take()
    fresh = LoginClient(node)
    answer = fresh.log_in(user, password, mechanism)
    assert (answer["error_code"], answer["session_lifetime_ms"]) == (0, 0)
    assert is_served(fresh)
    assert users(node)[-1] == user
    assert len(node.node._logins._begun) == 1  # the first one's


def test_a_listener_without_logins_knows_nobody(node_with: Callable[..., MemoryNode]) -> None:
    """Beside a listener with logins a plain one serves at once, and refuses a login as Kafka does."""
    client = LoginClient(node_with(), "PLAINTEXT")
    assert is_served(client)
    assert client.handshake("PLAIN") == {"error_code": 34, "mechanisms": []}
    assert client.authenticate(b"") == {
        "error_code": 34, "auth_bytes": b"", "session_lifetime_ms": 0,
        "error_message": "SaslAuthenticate request received after successful authentication",
    }  # fmt: skip
    assert is_served(client)


def test_tokens_without_headers(node_with: Callable[..., MemoryNode]) -> None:
    """After a SaslHandshake v0 tokens are frames by themselves, and so are the answers."""
    client = LoginClient(node_with())
    assert client.handshake("PLAIN", version=0)["error_code"] == 0
    client.send_frame(plain_token("alice", "alice-secret"))
    assert client.receive() == b""
    assert is_served(client)


def test_all_at_once(node_with: Callable[..., MemoryNode]) -> None:
    """A client may send its whole login and the first request without waiting."""
    node = node_with()
    client = LoginClient(node)
    frames = [
        (SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"}),
        (SASL_AUTHENTICATE, 2, {"auth_bytes": plain_token("bob", "bob-secret")}),
        (DESCRIBE_CLIENT_QUOTAS, 0, DESCRIBE),
    ]
    client.transport.client_send(b"".join(encode_request(*frame[:2], 1, "c", frame[2]) for frame in frames))
    node.loop.turn()
    assert [client.answer(*frame[:2])["error_code"] for frame in frames] == [0, 0, 0]
    assert users(node) == ["bob"]


@pytest.mark.parametrize(
    ("mechanism", "user", "password", "told"),
    [
        ("PLAIN", "alice", "guess", WRONG),
        ("PLAIN", "nobody", "guess", WRONG),
        ("PLAIN", "sam", "s1", WRONG),
        ("PLAIN", "alice", "", "Authentication failed: password not specified"),
        ("PLAIN", "", "x", "Authentication failed: username not specified"),
        ("SCRAM-SHA-256", "sam", "guess", f"{OF_MECHANISM}SCRAM-SHA-256"),
        ("SCRAM-SHA-256", "nobody", "guess", f"{OF_MECHANISM}SCRAM-SHA-256"),
        ("SCRAM-SHA-512", "sam", "s1", f"{OF_MECHANISM}SCRAM-SHA-512"),
    ],
)
def test_a_failed_login_is_answered_late_and_closed(
    node_with: Callable[..., MemoryNode], mechanism: str, user: str, password: str, told: str
) -> None:
    """It costs the delay, then error 58 and the end; the server says no more than Kafka's."""
    node = node_with()
    client = LoginClient(node)
    assert client.log_in(user, password, mechanism) is None
    client.send(DESCRIBE_CLIENT_QUOTAS, 0, DESCRIBE)
    node.loop.advance(DELAY_MS - 1)
    assert (client.receive(), client.closed, len(node.node._logins._delayed)) == (None, False, 1)
    node.loop.advance(1)
    answer = client.answer(SASL_AUTHENTICATE, 2)
    assert answer == {"error_code": 58, "error_message": told, "auth_bytes": b"", "session_lifetime_ms": 0}
    assert client.closed
    assert (len(node.node._logins._delayed), len(node.node._logins._begun), users(node)) == (0, 0, [])


def test_a_user_that_is_not_there_is_asked_for_a_proof(node_with: Callable[..., MemoryNode]) -> None:
    """Nobody learns from SCRAM who is there; in exact mode the first token fails, as Kafka's."""
    client = LoginClient(node_with())
    client.handshake("SCRAM-SHA-256")
    first = b"n,,n=mallory,r=x"
    answer = client.authenticate(first)
    again = LoginClient(client.node)
    again.handshake("SCRAM-SHA-256")
    salts = {each["auth_bytes"].split(b",")[1] for each in (answer, again.authenticate(first))}
    assert answer["error_code"] == 0
    assert len(salts) == 1
    exact = LoginClient(node_with(**{"tidegate.kafka.exact": "true"}))
    exact.handshake("SCRAM-SHA-256")
    assert exact.authenticate(first) is None
    exact.node.loop.advance(DELAY_MS)
    assert exact.answer(SASL_AUTHENTICATE, 2)["error_code"] == 58


def test_a_failed_login_without_headers_has_no_answer(node_with: Callable[..., MemoryNode]) -> None:
    """A raw token that is wrong costs the delay; then the connection closes."""
    client = LoginClient(node_with())
    client.handshake("PLAIN", version=0)
    client.send_frame(plain_token("alice", "guess"))
    client.node.loop.advance(DELAY_MS - 1)
    assert not client.closed
    client.node.loop.advance(1)
    assert (client.closed, client.receive()) == (True, None)


def test_a_mechanism_that_is_not_enabled(node_with: Callable[..., MemoryNode]) -> None:
    """Error 33 with those that are, after the delay."""
    client = LoginClient(node_with())
    assert client.handshake("GSSAPI") is None
    client.node.loop.advance(DELAY_MS)
    answer = client.answer(SASL_HANDSHAKE, 1)
    assert answer["error_code"] == 33
    assert sorted(answer["mechanisms"]) == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert client.closed


def test_before_login_nothing_else_is_served(node_with: Callable[..., MemoryNode]) -> None:
    """ApiVersions is answered once, any version; any other request closes at once."""
    node = node_with()
    client = LoginClient(node)
    client.send_frame(bytes.fromhex("00120063000000070003746467000101"))  # version 99
    assert client.receive()[4:6] == b"\x00\x23"
    assert (
        client.ask(API_VERSIONS, 3, {"client_software_name": "?", "client_software_version": "?"})[
            "error_code"
        ]
        == 42
    )
    assert client.versions()["error_code"] == 0
    assert client.versions() is None
    assert client.closed
    for api_key, message in ((DESCRIBE_CLIENT_QUOTAS, DESCRIBE), (SASL_AUTHENTICATE, {"auth_bytes": b""})):
        other = LoginClient(node)
        assert other.ask(api_key, 0, message) is None
        assert other.closed
    assert users(node) == []


@pytest.mark.parametrize(
    "frame", [b"", b"\x60\x01", b"\x03\xe7\x00\x00\x00\x00\x00\x01\xff\xff", b"\x00\x11\x00\x63" * 4]
)
def test_a_first_frame_that_is_no_request(node_with: Callable[..., MemoryNode], frame: bytes) -> None:
    """It closes the connection at once."""
    client = LoginClient(node_with())
    client.send_frame(frame)
    assert (client.closed, client.receive()) == (True, None)


def test_another_request_instead_of_a_token(node_with: Callable[..., MemoryNode]) -> None:
    """It gets its API's answer with error 34, where that has a field for it, after the delay."""
    node = node_with()
    for api_key, message in ((DESCRIBE_CLIENT_QUOTAS, DESCRIBE), (SASL_HANDSHAKE, {"mechanism": "PLAIN"})):
        client = LoginClient(node)
        client.handshake("PLAIN")
        assert client.ask(api_key, 0, message) is None
        node.loop.advance(DELAY_MS)
        assert client.answer(api_key, 0)["error_code"] == 34
        assert client.closed


def test_every_api_has_an_answer_that_says_nothing(node_with: Callable[..., MemoryNode]) -> None:
    """Whatever is asked instead of a token, the refusal can be written."""
    from tidegate.server.authentication.authenticator import _encoded, _refusal
    from tidegate.wire import RequestHeader
    from tidegate.wire.apis import spoken_pairs

    for api_key, version in spoken_pairs():
        header = RequestHeader(api_key, version, 1, "c", 0)
        assert _encoded(header, _refusal(header, 34)).size


def test_frames_are_short_before_a_login(node_with: Callable[..., MemoryNode]) -> None:
    """`sasl.server.max.receive.size` holds until then, `socket.request.max.bytes` after it."""
    node = node_with(**{"sasl.server.max.receive.size": "100"})
    client = LoginClient(node)
    client.send_frame(bytes(101))
    assert client.closed
    client = LoginClient(node)
    client.log_in("alice", "alice-secret")
    client.send(
        METADATA,
        9,
        {
            "topics": [{"name": "x" * 200}],
            "allow_auto_topic_creation": False,
            "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        },
    )
    assert client.answer(METADATA, 9)["topics"][0]["error_code"]


def test_a_login_has_a_deadline(
    node_with: Callable[..., MemoryNode], caplog: pytest.LogCaptureFixture
) -> None:
    """Who has not logged in by then is closed, whether silent, in the middle, or asking for versions."""
    node = node_with()
    silent, half, done = LoginClient(node), LoginClient(node), LoginClient(node)
    half.handshake("SCRAM-SHA-256")
    done.log_in("alice", "alice-secret")
    node.loop.advance(int(MAX_LOGIN_S * 1000) - 1500)
    assert not silent.closed
    node.loop.advance(3000)
    assert (silent.closed, half.closed, done.closed) == (True, True, False)
    assert "login not completed within 30 s" in caplog.text


def test_failed_logins_that_wait_are_bounded(node_with: Callable[..., MemoryNode]) -> None:
    """When there are too many, the first ends at once; one that left meanwhile is forgotten."""
    node = node_with(**{"connection.failed.authentication.delay.ms": "60000"})
    first = LoginClient(node)
    first.log_in("alice", "guess")
    gone = LoginClient(node)
    gone.log_in("alice", "guess")
    gone.transport.client_break()
    node.loop.turn()
    for _ in range(MAX_DELAYED - 1):
        LoginClient(node).log_in("alice", "guess")
    assert len(node.node._logins._delayed) == MAX_DELAYED
    assert first.closed
    assert first.answer(SASL_AUTHENTICATE, 2)["error_code"] == 58
    node.loop.advance(60_000)
    assert (len(node.node._logins._delayed), users(node)) == (0, [])


# --- sessions


def test_a_session_ends_unless_the_client_logs_in_again(node_with: Callable[..., MemoryNode]) -> None:
    """The answer says how long it holds; a request after that closes the connection; another login prolongs it."""
    node = node_with(**{"connections.max.reauth.ms": "10000"})
    lapsed, renewed = LoginClient(node), LoginClient(node)
    assert lapsed.log_in("alice", "alice-secret")["session_lifetime_ms"] == 10_000
    renewed.log_in("sam", "s1", "SCRAM-SHA-256")
    node.loop.advance(9_000)
    assert is_served(lapsed)
    assert renewed.log_in("sam", "s1", "SCRAM-SHA-256")["session_lifetime_ms"] == 10_000
    node.loop.advance(2_000)
    assert is_served(renewed)
    assert not lapsed.closed  # nothing was asked yet
    assert lapsed.ask(DESCRIBE_CLIENT_QUOTAS, 0, DESCRIBE) is None
    assert lapsed.closed
    counts = node.node._front.requests.listeners[CLIENTS]
    assert (counts.logins, counts.relogins, counts.expired) == (2, 1, 1)
    names = (
        "successful-authentication-total", "successful-authentication-no-reauth-total", "failed-authentication-total",
        "successful-reauthentication-total", "failed-reauthentication-total", "expired-connections-killed-count",
    )  # fmt: skip
    metrics = {
        metric.name: metric.value
        for metric in node.node.metrics(node.clock.now_ms())
        if metric.tags.get("listener") == CLIENTS
    }
    assert [metrics[name] for name in names] == [2.0, 0.0, 0.0, 1.0, 0.0, 1.0]


def test_a_login_again_is_possible_after_the_session(node_with: Callable[..., MemoryNode]) -> None:
    """A handshake is let through even when the session has expired."""
    node = node_with(**{"connections.max.reauth.ms": "1000"})
    client = LoginClient(node)
    client.log_in("alice", "alice-secret")
    node.loop.advance(5_000)
    assert client.log_in("alice", "alice-secret")["error_code"] == 0
    assert is_served(client)


def test_another_user_cannot_come_back(node_with: Callable[..., MemoryNode]) -> None:
    """The principal must not change; the mechanism neither."""
    node = node_with(**{"connections.max.reauth.ms": "10000"})
    client = LoginClient(node)
    client.log_in("alice", "alice-secret")
    client.log_in("bob", "bob-secret")
    node.loop.advance(DELAY_MS)
    text = "Cannot change principals during re-authentication from User.alice: User.bob"
    answer = client.answer(SASL_AUTHENTICATE, 2)
    assert (answer["error_code"], answer["error_message"], client.closed) == (58, text, True)
    client = LoginClient(node)
    client.log_in("alice", "alice-secret")
    assert client.handshake("SCRAM-SHA-256")["error_code"] == 0
    assert client.authenticate(b"n,,n=alice,r=x") is None
    node.loop.advance(DELAY_MS)
    assert (client.closed, client.receive()) == (True, None)
    counts = node.node._front.requests.listeners[CLIENTS]
    assert (counts.logins, counts.failed_relogins) == (2, 2)


def test_logging_in_again_too_often_or_without_need_is_refused(node_with: Callable[..., MemoryNode]) -> None:
    """Once a second at most, and only where sessions end: else error 34, and the connection goes on."""
    node = node_with(**{"connections.max.reauth.ms": "10000"})
    client = LoginClient(node)
    client.log_in("alice", "alice-secret")
    client.log_in("alice", "alice-secret")
    assert client.handshake("PLAIN")["error_code"] == 34
    node.loop.advance(1_000)
    assert client.log_in("alice", "alice-secret")["error_code"] == 0
    endless = LoginClient(node_with())
    endless.log_in("alice", "alice-secret")
    assert endless.handshake("PLAIN")["error_code"] == 34
    assert is_served(endless)


def test_a_failed_login_again_says_so(node_with: Callable[..., MemoryNode]) -> None:
    """It is answered after the delay, with the word that Kafka has for it."""
    node = node_with(**{"connections.max.reauth.ms": "10000"})
    client = LoginClient(node)
    client.log_in("sam", "s1", "SCRAM-SHA-256")
    client.log_in("sam", "guess", "SCRAM-SHA-256")
    node.loop.advance(DELAY_MS)
    assert "during re-authentication due to invalid" in client.answer(SASL_AUTHENTICATE, 2)["error_message"]
    assert client.closed


def test_a_mechanism_may_have_a_lifetime_of_its_own(node_with: Callable[..., MemoryNode]) -> None:
    """The mechanism's setting wins over the listener's, and that over the node's."""
    prefix = f"listener.name.{CLIENTS.lower()}"
    node = node_with(
        **{
            "connections.max.reauth.ms": "10000",
            f"{prefix}.connections.max.reauth.ms": "20000",
            f"{prefix}.scram-sha-256.connections.max.reauth.ms": "30000",
            f"{prefix}.scram-sha-512.connections.max.reauth.ms": "0",
        }
    )
    lifetimes = [
        LoginClient(node).log_in(user, word, name)["session_lifetime_ms"] for name, user, word in MIXED
    ]
    assert lifetimes == [20_000, 30_000, 0]


def test_no_secret_is_logged(node_with: Callable[..., MemoryNode], caplog: pytest.LogCaptureFixture) -> None:
    """Whatever goes wrong, the lines say who and why, and nothing that a client sent as a secret."""
    caplog.set_level(logging.DEBUG)
    node = node_with()
    for user, password in (("alice", "hunter2"), ("", "hunter2"), ("hunter2", "")):
        LoginClient(node).log_in(user, password)
    LoginClient(node).log_in("sam", "hunter2", "SCRAM-SHA-256")
    client = LoginClient(node)
    client.handshake("PLAIN")
    client.send_frame(b"\x00\x24\x00\x02hunter2")
    client = LoginClient(node)
    client.handshake("PLAIN", version=0)
    client.send_frame(b"hunter2")
    node.loop.advance(DELAY_MS)
    assert "failed login" in caplog.text
    assert "hunter2" not in caplog.text
    assert "alice-secret" not in repr(node.configs)

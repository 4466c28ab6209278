"""What the settings say of logins: whose setting wins, and what is refused with a way out."""

import pytest

from tidegate.errors import ConfigError
from tidegate.server.listening.sasl_config import SaslConfig
from tidegate.server.settings.config import ServerConfig

JAAS = "listener.name.clients.plain.sasl.jaas.config"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
CLIENTS = {
    "listeners": "CLIENTS://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
    "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN, SCRAM-SHA-256",
    JAAS: f'{PLAIN} required username="admin" password="x" user_admin="x" user_alice="hunter2";',
}


def sasl_of(texts: dict[str, str]) -> SaslConfig | None:
    """Return what holds at the listener CLIENTS."""
    return ServerConfig.load({**CLIENTS, **texts}).listeners[0].sasl


def test_a_listener_has_its_mechanisms_and_users() -> None:
    """Users are those of the PLAIN line; the plain listener beside it has no logins; all names are known."""
    config = ServerConfig.load(
        {
            **CLIENTS,
            "listener.name.clients.scram-sha-256.sasl.jaas.config": f'{SCRAM} required username="a" password="b";',
        }
    )
    sasl = config.listeners[0].sasl
    assert sasl is not None
    assert sasl.mechanisms == ("PLAIN", "SCRAM-SHA-256")
    assert sasl.plain_users == {"admin": "x", "alice": "hunter2"}
    assert sasl.max_reauth_ms == {"PLAIN": 0, "SCRAM-SHA-256": 0}
    assert config.listeners[1].sasl is None
    assert config.unknown == ()
    assert config.notices() == []
    assert "hunter2" not in repr(config)


def test_the_nearest_setting_wins() -> None:
    """A listener's mechanisms, and a mechanism's lifetime, before those of the node; below zero is none."""
    own = sasl_of(
        {
            "listener.name.clients.sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN,PLAIN",
            "connections.max.reauth.ms": "5",
            "listener.name.clients.connections.max.reauth.ms": "-1",
            "listener.name.clients.plain.connections.max.reauth.ms": "7",
        }
    )
    assert own is not None
    assert own.mechanisms == ("SCRAM-SHA-512", "PLAIN")
    assert own.max_reauth_ms == {"SCRAM-SHA-512": 0, "PLAIN": 7}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "sasl.enabled.mechanisms is 'GSSAPI', expected a list of PLAIN, SCRAM"),
        ({"sasl.enabled.mechanisms": " , "}, "sasl.enabled.mechanisms is ',', expected a list of PLAIN"),
        (
            {"listener.name.clients.sasl.enabled.mechanisms": "plain"},
            "listener.name.clients.sasl.enabled.mechanisms is 'plain', expected a list of",
        ),
        ({JAAS: f"{SCRAM} required;"}, f"{JAAS} has login module {SCRAM!r}, expected {PLAIN!r}"),
        ({JAAS: f'{PLAIN} required user_alice="hunter2"'}, f"{JAAS} is not a valid JAAS configuration"),
        (
            {"listener.name.clients.connections.max.reauth.ms": "soon"},
            "listener.name.clients.connections.max.reauth.ms is 'soon', expected a whole number",
        ),
        ({"connections.max.reauth.ms": "soon"}, "connections.max.reauth.ms is 'soon', expected a whole number"),
        ({"sasl.server.max.receive.size": "0"}, "is '0', expected a whole number from 1"),
        ({"connection.failed.authentication.delay.ms": "-1"}, "is '-1', expected a whole number from 0"),
    ],
)  # fmt: skip
def test_mistakes_are_refused(texts: dict[str, str], message: str) -> None:
    """Key, value and what was expected; never a secret."""
    with pytest.raises(ConfigError) as refused:
        sasl_of(texts)
    assert message in str(refused.value)
    assert "hunter2" not in f"{refused.value}{refused.value.hint}"


def test_plain_without_users_is_refused() -> None:
    """Nobody could log in."""
    with pytest.raises(ConfigError, match=r"has PLAIN in sasl\.enabled\.mechanisms but no users") as refused:
        ServerConfig.load({name: text for name, text in CLIENTS.items() if name != JAAS})
    assert "user_NAME" in str(refused.value.hint)


def test_a_clients_line_is_said_to_be_one() -> None:
    """`sasl.jaas.config` by itself has no effect on a broker, in Kafka neither; a misspelt name is guessed."""
    config = ServerConfig.load({**CLIENTS, "sasl.jaas.config": "x", f"{JAAS}s": "hunter2"})
    notices = "\n".join(config.notices())
    assert (
        "sasl.jaas.config is a setting of clients; hint: use listener.name.<name>.<mechanism>.sasl.jaas.config"
        in notices
    )
    assert f"did you mean '{JAAS}'?" in notices
    assert "hunter2" not in notices


def test_kafkas_settings_between_brokers_are_accepted() -> None:
    """They mean nothing on one node, and are said to."""
    config = ServerConfig.load(
        {"sasl.mechanism.inter.broker.protocol": "PLAIN", "security.inter.broker.protocol": "SASL_PLAINTEXT"}
    )
    assert config.unknown == ()
    assert "sasl.mechanism.inter.broker.protocol" in config.notices()[0]

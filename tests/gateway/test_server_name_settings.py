"""Settings of a port that serves all brokers by server name."""

import pytest

from tidegate.errors import ConfigError
from tidegate.gateway.addresses import ServerNames
from tidegate.gateway.settings import server_names
from tidegate.server.settings.config import ServerConfig


@pytest.mark.parametrize(
    ("advertised", "more", "bootstrap", "error"),
    [
        ("PLAINTEXT://broker-{id}.example.com:9093", {}, [], "has {id} for listener PLAINTEXT (PLAINTEXT)"),
        ("SSL://broker-{id}-{id}.example.com:9093", {}, [], "expected a host name with {id} once"),
        ("SSL://broker_{id}*.example.com:9093", {}, [], "expected a host name with {id} once"),
        ("SSL://localhost:9093", {}, ["kafka"], "no listener distinguishes brokers by name"),
        ("SSL://{id}.example.com:9093", {}, ["a b"], "--bootstrap-name has 'a b'"),
        (
            "SSL://{id}.example.com:9093",
            {"socket.receive.buffer.bytes": "4096"},
            [],
            "socket.receive.buffer.bytes is 4096",
        ),
    ],
)
def test_wrong_settings_are_refused(advertised, more, bootstrap, error):
    """One sentence says what is wrong."""
    name = advertised.partition(":")[0]
    given = {"listeners": f"{name}://127.0.0.1:9093", "advertised.listeners": advertised, **more}
    with pytest.raises(ConfigError) as found:
        server_names(ServerConfig.load(given), bootstrap)
    assert error in str(found.value)


def test_bootstrap_names():
    """By default the domain of the brokers, if they have one; or those that are given."""
    found = {
        pattern: ServerNames(pattern).bootstrap
        for pattern in ("broker-{id}.kafka.Example.com", "{id}.local", "kafka.{id}.local", "broker-{id}")
    }
    assert list(found.values()) == [("kafka.example.com",), ("local",), ("local",), ()]
    names = ServerNames("broker-{id}", ["kafka", "Broker-0"])
    assert [names.find(name) for name in ("KAFKA", "broker-0", "broker-1", "other")] == [-1, -1, 1, None]

"""Settings: Kafka's names, defaults and limits."""

from pathlib import Path

import pytest

from tidegate.errors import ConfigError
from tidegate.server.config import SETTINGS, ServerConfig, machine_memory_bytes, request_memory_bytes


def test_defaults_are_kafkas() -> None:
    """Without any setting the quota windows are 11 samples of one second."""
    config = ServerConfig.load({})
    assert config["quota.window.num"] == 11
    assert config["quota.window.size.seconds"] == 1
    assert config["controller.quota.window.num"] == 11
    assert config["fetch.max.bytes"] == 57_671_680
    assert config.listener.port == 9092
    assert config.usage_dir == Path("tidegate-data/usage")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"quota.window.num": "0"}, "quota.window.num is '0', expected a whole number from 1 to 2147483647"),
        ({"quota.window.num": "eleven"}, "quota.window.num is 'eleven', expected a whole number"),
        ({"quota.window.num": "1" * 400}, "expected a whole number"),
        ({"fetch.max.bytes": "1023"}, "fetch.max.bytes is '1023', expected a whole number from 1024"),
        ({"auto.create.topics.enable": "yes"}, "auto.create.topics.enable is 'yes', expected true or false"),
        ({"log.message.timestamp.type": "Mine"}, "expected one of CreateTime, LogAppendTime"),
        ({"listeners": "9092"}, "listeners has '9092', expected NAME://host:port"),
        ({"listeners": "PLAINTEXT://h:99999"}, "expected NAME://host:port"),
        ({"listeners": "SSL://h:1"}, "listeners has listener 'SSL', expected PLAINTEXT"),
        ({"listeners": "PLAINTEXT://:1,PLAINTEXT://:2"}, "expected one listener"),
        ({"log.dirs": "a,b"}, "log.dirs is 'a,b', expected one directory"),
        ({"log.retention.hours": "x"}, "log.retention.hours is 'x'"),
    ],
)
def test_bad_values_are_refused_by_name(texts: dict[str, str], message: str) -> None:
    """A value that cannot be is refused with its name, itself and what was expected."""
    with pytest.raises(ConfigError) as refused:
        ServerConfig.load(texts)
    assert message in str(refused.value)


def test_unknown_settings_are_reported_with_a_guess() -> None:
    """A name that does not exist has no effect, and says so."""
    config = ServerConfig.load({"quota.window.nun": "11", "num.io.threads": "8"})
    assert config.notices() == [
        "unknown setting 'quota.window.nun' has no effect; did you mean 'quota.window.num'?",
        "settings of Kafka's that mean nothing on one node: num.io.threads",
    ]


def test_older_names_are_understood() -> None:
    """log.dir, broker.id and log.retention.hours are other names for what we have."""
    config = ServerConfig.load({"log.dir": "d", "broker.id": "7", "log.retention.hours": "2"})
    assert (config.data_dir, config["node.id"], config["log.retention.ms"]) == (Path("d"), 7, 7_200_000)


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_every_default_is_a_value_that_is_accepted(name: str) -> None:
    """The default of each setting passes its own check."""
    setting = SETTINGS[name]
    text = str(setting.default).lower() if setting.type == "bool" else str(setting.default)
    assert setting.parse(text) == setting.default


def test_addresses_may_be_ipv6_or_empty() -> None:
    """Brackets hold an IPv6 address; no host means all interfaces."""
    assert ServerConfig.load({"listeners": "PLAINTEXT://[::1]:0"}).listener.host == "::1"
    assert ServerConfig.load({"listeners": "PLAINTEXT://:0"}).listener.host == ""


def test_memory_for_requests_is_a_share_of_the_machine_unless_it_is_set() -> None:
    """0, the default, stands for an eighth of the machine's memory; -1 is Kafka's word for no bound."""
    machine = machine_memory_bytes()
    assert 2**28 < machine < 2**50
    for texts, most_bytes in (
        ({}, machine // 8),
        ({"queued.max.request.bytes": "0"}, machine // 8),
        ({"queued.max.request.bytes": "-1"}, -1),
        ({"queued.max.request.bytes": "5000000000"}, 5_000_000_000),
    ):
        assert request_memory_bytes(ServerConfig.load(texts)) == most_bytes

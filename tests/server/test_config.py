"""Settings: Kafka's names, defaults and limits."""

from pathlib import Path

import pytest

from tidegate.errors import ConfigError
from tidegate.quota.connections.limits import ListenerLimits
from tidegate.server.listening.listener_config import ListenerAddress
from tidegate.server.process_memory import process_memory_bytes
from tidegate.server.settings.config import ServerConfig, request_memory_bytes
from tidegate.server.settings.metrics_settings import MetricsConfig
from tidegate.server.settings.node_configs import node_configs
from tidegate.server.settings.table import SETTINGS


def test_defaults_are_kafkas() -> None:
    """Without any setting the quota windows are 11 samples of one second."""
    config = ServerConfig.load({})
    assert config["quota.window.num"] == 11
    assert config["quota.window.size.seconds"] == 1
    assert config["controller.quota.window.num"] == 11
    assert config["fetch.max.bytes"] == 57_671_680
    assert config.listeners[0].address.port == 9092
    assert config.usage_dir == Path("tidegate-data/usage")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"quota.window.num": "0"}, "quota.window.num is '0', expected a whole number from 1 to 3600"),
        ({"quota.window.num": "3601"}, "quota.window.num is '3601', expected a whole number from 1 to 3600"),
        (
            {"controller.quota.window.num": "3601"},
            "controller.quota.window.num is '3601', expected a whole number from 1 to 3600",
        ),
        ({"quota.window.num": "eleven"}, "quota.window.num is 'eleven', expected a whole number"),
        ({"quota.window.num": "1" * 400}, "expected a whole number"),
        ({"fetch.max.bytes": "1023"}, "fetch.max.bytes is '1023', expected a whole number from 1024"),
        ({"auto.create.topics.enable": "yes"}, "auto.create.topics.enable is 'yes', expected true or false"),
        ({"log.message.timestamp.type": "Mine"}, "expected one of CreateTime, LogAppendTime"),
        ({"listeners": "9092"}, "listeners has '9092', expected NAME://host:port"),
        ({"listeners": "PLAINTEXT://h:99999"}, "expected NAME://host:port"),
        ({"listeners": " , "}, "listeners is ',', expected at least one listener"),
        ({"listeners": "PLAINTEXT://:1,plaintext://:2"}, "listeners has listener 'PLAINTEXT' twice"),
        (
            {"listeners": "IN://:1"},
            "'IN' has no security protocol, expected an entry in listener.security.protocol.map",
        ),
        (
            {"listener.security.protocol.map": "IN=PLAINTEXT"},
            "map has 'IN=PLAINTEXT', expected NAME:PROTOCOL",
        ),
        (
            {"listener.security.protocol.map": "IN:TLS"},
            "has 'IN:TLS', expected NAME:PROTOCOL with one of PLAINTEXT,",
        ),
        ({"listener.security.protocol.map": "IN:SSL,in:SSL"}, "has listener 'IN' twice"),
        ({"advertised.listeners": "OUT://h:1"}, "has listener 'OUT', expected one of listeners: PLAINTEXT"),
        (
            {"advertised.listeners": "PLAINTEXT://0.0.0.0:1"},
            "has 0.0.0.0 for listener 'PLAINTEXT', expected a reachable address",
        ),
        (
            {"listeners": "PLAINTEXT://[::1]:9,SSL://[::1]:9"},
            "'PLAINTEXT' and 'SSL' both at [::1]:9, expected a different port for each",
        ),
        ({"broker.id": "1", "node.id": "2"}, "broker.id is '1' and node.id is '2', expected the same number"),
        ({"inter.broker.listener.name": "OUT"}, "is 'OUT', expected one of listeners: PLAINTEXT"),
        (
            {"controller.listener.names": "PLAINTEXT"},
            "expected at least one listener that is not a controller's",
        ),
        ({"listener.name.plaintext.max.connections": "0"}, "is '0', expected a whole number from 1 to"),
        (
            {"listener.name.plaintext.max.connection.creation.rate": "many"},
            "is 'many', expected a whole number",
        ),
        ({"log.dirs": "a,b"}, "log.dirs is 'a,b', expected one directory"),
        ({"log.retention.hours": "x"}, "log.retention.hours is 'x'"),
        ({"log.roll.hours": "0"}, "log.roll.hours is '0', expected a whole number from 1 to"),
    ],
)
def test_bad_values_are_refused_by_name(texts: dict[str, str], message: str) -> None:
    """A value that cannot be is refused with its name, itself and what was expected."""
    with pytest.raises(ConfigError) as refused:
        ServerConfig.load(texts)
    assert message in str(refused.value)


def test_authorizers() -> None:
    """Kafka's StandardAuthorizer stands for our ACLs; what needs it says so without it."""
    name = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    given = {"super.users": "User:a", "allow.everyone.if.no.acl.found": "true"}
    assert ServerConfig.load({"authorizer.class.name": name, **given}).notices() == []
    assert ServerConfig.load(given).notices() == [
        "'super.users' has no effect without authorizer.class.name",
        "'allow.everyone.if.no.acl.found' has no effect without authorizer.class.name",
    ]
    with pytest.raises(ConfigError, match=f"is 'my.Authorizer', expected one of nothing, {name}"):
        ServerConfig.load({"authorizer.class.name": "my.Authorizer"})
    with pytest.raises(ConfigError, match=r"super\.users has 'admin', expected TYPE:NAME"):
        ServerConfig.load({"super.users": "admin"})


def test_two_super_users_with_a_comma_between_them_are_reported() -> None:
    """They are one name, as in Kafka: names of certificates have commas."""
    given = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
    (notice,) = ServerConfig.load({**given, "super.users": "User:a,User:b"}).notices()
    assert (
        notice == "super.users contains ',User:', which is read as part of a name; hint: separate users by ;"
    )
    assert ServerConfig.load({**given, "super.users": "User:CN=a,O=b;User:b"}).notices() == []


def test_unknown_settings_are_reported_with_a_guess() -> None:
    """A name that does not exist has no effect, and says so."""
    config = ServerConfig.load({"quota.window.nun": "11", "num.io.threads": "8"})
    assert config.notices() == [
        "unknown setting 'quota.window.nun' has no effect; did you mean 'quota.window.num'?",
        "ignored Kafka settings without effect in Tidegate: num.io.threads",
    ]
    names = {
        "listener.name.plaintxt.max.connections": "; did you mean 'listener.name.plaintext.max.connections'?",
        "odd.name": "",
        "quota.window.num" * 100: "",
    }
    config = ServerConfig.load(dict.fromkeys(names, "5"))
    assert config.notices() == [
        f"unknown setting {name!r} has no effect{names[name]}" for name in sorted(names)
    ]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("tidegate.quota.obsreve", "did you mean 'tidegate.quota.observe'?"),
        ("tidegate.x", "`tidegate serve --list-settings` lists the settings"),
    ],
)
def test_a_misspelt_setting_of_tidegate_is_refused(name: str, hint: str) -> None:
    """Without `tidegate.quota.observe`, clients that were to be observed only would be throttled."""
    with pytest.raises(ConfigError, match=f"unknown setting '{name}'") as caught:
        ServerConfig.load({name: "all"})
    assert caught.value.hint == hint


def test_settings_of_a_callback_that_is_not_there_are_reported() -> None:
    """A misspelt `client.quota.callback.class` is a callback's own setting; without a callback it means nothing."""
    config = ServerConfig.load(
        {"client.quota.callback.clas": "a:B", "client.quota.callback.group.x.members": "user:a"}
    )
    assert config.notices() == [
        "'client.quota.callback.clas' has no effect without client.quota.callback.class; "
        "did you mean 'client.quota.callback.class'?",
        "'client.quota.callback.group.x.members' has no effect without client.quota.callback.class",
    ]
    assert (
        ServerConfig.load({"client.quota.callback.class": "a:B", "client.quota.callback.x": "1"}).notices()
        == []
    )


def test_older_names_are_understood() -> None:
    """log.dir, broker.id and log.retention.hours are other names for what we have."""
    config = ServerConfig.load({"log.dir": "d", "broker.id": "7", "log.retention.hours": "2"})
    assert (config.data_dir, config["node.id"], config["log.retention.ms"]) == (Path("d"), 7, 7_200_000)


def test_settings_that_stand_behind_others_count_where_those_are_not_set() -> None:
    """Hours and minutes behind milliseconds, the interval of Kafka's scheduler behind that of syncs."""
    behind = {"log.roll.hours": "2", "log.flush.scheduler.interval.ms": "1000", "log.retention.minutes": "3"}
    config = ServerConfig.load(behind)
    assert (config["log.roll.ms"], config["log.flush.interval.ms"]) == (7_200_000, 1000)
    assert (config["log.retention.ms"], config.ignored, config.unknown) == (180_000, (), ())
    config = ServerConfig.load({**behind, "log.roll.ms": "5", "log.flush.interval.ms": "6"})
    assert (config["log.roll.ms"], config["log.flush.interval.ms"]) == (5, 6)


def test_metrics_are_served_where_it_is_said() -> None:
    """Nowhere by default; on loopback without a token, elsewhere with one."""
    assert ServerConfig.load({}).metrics is None
    given = {"tidegate.metrics.listener": "[::1]:9404"}
    assert ServerConfig.load(given).metrics == MetricsConfig(host="::1", port=9404, token_file=None)
    given = {
        "tidegate.metrics.listener": "metrics.example.com:0",
        "tidegate.metrics.token.file": "/run/token",
    }
    expected = MetricsConfig(host="metrics.example.com", port=0, token_file=Path("/run/token"))
    assert ServerConfig.load(given).metrics == expected
    first, second = node_configs(ServerConfig.load({"tidegate.metrics.listener": "localhost:9404"}), 2)
    assert (first.metrics, second.metrics) == (
        MetricsConfig(host="localhost", port=9404, token_file=None),
        MetricsConfig(host="localhost", port=9405, token_file=None),
    )


@pytest.mark.parametrize(
    "text",
    [
        "9404", ":9404", "127.0.0.1", "127.0.0.1:70000", "::1:9404",
        "ftp://127.0.0.1:1", "https://127.0.0.1", "https://127.0.0.1:1/", "https://:9404", "://127.0.0.1:1",
    ],
)  # fmt: skip
def test_an_address_of_metrics_is_a_host_and_a_port(text: str) -> None:
    """IPv6 is in brackets."""
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        ServerConfig.load({"tidegate.metrics.listener": text})


def test_metrics_are_served_over_tls() -> None:
    """With a token or a required client certificate beyond loopback; by TLS settings of the name METRICS."""
    own = "listener.name.metrics.ssl.client.auth"
    config = ServerConfig.load({"tidegate.metrics.listener": "https://[::1]:9404", own: "none"})
    assert config.metrics == MetricsConfig(host="::1", port=9404, token_file=None, is_https=True)
    assert (config.tls_listeners, config.unknown) == (("METRICS",), ())
    config = ServerConfig.load({"tidegate.metrics.listener": "http://127.0.0.1:9404", own: "none"})
    assert config.metrics == MetricsConfig(host="127.0.0.1", port=9404, token_file=None)
    assert (config.tls_listeners, config.unknown) == ((), (own,))
    beyond = {"tidegate.metrics.listener": "https://0.0.0.0:9404"}
    for given in ({own: "required"}, {"ssl.client.auth": "required"}):
        metrics = ServerConfig.load({**beyond, **given}).metrics
        assert metrics is not None
        assert (metrics.host, metrics.token_file) == ("0.0.0.0", None)
    for refused in ({}, {own: "requested"}, {"ssl.client.auth": "required", own: "none"}):
        with pytest.raises(ConfigError, match="which other machines may reach"):
            ServerConfig.load({**beyond, **refused})
    with pytest.raises(ConfigError, match="which other machines may reach"):
        ServerConfig.load({"tidegate.metrics.listener": "0.0.0.0:9404", own: "required"})
    with pytest.raises(ConfigError, match=f"{own} is 'maybe', expected one of none, requested, required"):
        ServerConfig.load({**beyond, own: "maybe"})
    shifted = node_configs(ServerConfig.load({"tidegate.metrics.listener": "https://localhost:9404"}), 2)
    assert [(node.metrics.port, node.metrics.is_https) for node in shifted if node.metrics] == [
        (9404, True),
        (9405, True),
    ]


def test_no_other_listener_has_the_name_of_the_metrics() -> None:
    """Their settings of TLS would be the same."""
    listeners = {
        "listeners": "METRICS://127.0.0.1:9092",
        "listener.security.protocol.map": "METRICS:PLAINTEXT",
    }
    assert ServerConfig.load({**listeners, "tidegate.metrics.listener": "127.0.0.1:1"}).metrics is not None
    with pytest.raises(ConfigError, match="listeners has 'METRICS', which is the name of tidegate") as error:
        ServerConfig.load({**listeners, "tidegate.metrics.listener": "https://127.0.0.1:1"})
    assert error.value.hint == "rename the listener, also in listener.security.protocol.map"


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.5", "broker.example.com"])
def test_metrics_need_a_token_beyond_loopback(host: str) -> None:
    """The broker does not start without one, and says how to make one."""
    with pytest.raises(ConfigError, match="which other machines may reach") as error:
        ServerConfig.load({"tidegate.metrics.listener": f"{host}:9404"})
    assert "openssl rand" in str(error.value.hint)


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_every_default_is_a_value_that_is_accepted(name: str) -> None:
    """The default of each setting passes its own check."""
    setting = SETTINGS[name]
    text = str(setting.default).lower() if setting.type == "bool" else str(setting.default)
    assert setting.parse(text) == setting.default


def test_addresses_may_be_ipv6_or_empty() -> None:
    """Brackets hold an IPv6 address; no host means all interfaces."""
    assert ServerConfig.load({"listeners": "PLAINTEXT://[::1]:0"}).listeners[0].address.host == "::1"
    given = {"listeners": "PLAINTEXT://:0", "tidegate.allow.anonymous": "true"}
    assert ServerConfig.load(given).listeners[0].address.host == ""


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]", "10.0.0.5", "[2001:db8::1]", "broker.example.com"])
def test_nobody_comes_in_from_elsewhere_without_saying_who(host: str) -> None:
    """At any address but this machine's own, a listener has logins or certificates, or is said to be open."""
    at_elsewhere = {
        "listeners": f"OUT://{host}:1",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    }

    def load(protocol: str, **texts: str) -> ServerConfig:
        named = {name.replace("_", "."): text for name, text in texts.items()}
        return ServerConfig.load(
            {**at_elsewhere, "listener.security.protocol.map": f"OUT:{protocol}", **named}
        )

    for protocol in ("PLAINTEXT", "SSL"):
        with pytest.raises(ConfigError, match="accepts unauthenticated clients") as refused:
            load(protocol)
        where = f"{host.strip('[]') or 'all addresses'} ({protocol})"
        assert f"listener 'OUT' accepts unauthenticated clients at {where}, expected" in str(refused.value)
        assert "tidegate.allow.anonymous=true" in str(refused.value.hint)
        assert load(protocol, tidegate_allow_anonymous="true").listeners
    with pytest.raises(ConfigError, match="accepts unauthenticated clients"):
        load("SSL", ssl_client_auth="requested")
    assert load("SSL", ssl_client_auth="required").listeners
    assert load("SASL_PLAINTEXT").listeners
    assert load("SASL_SSL").listeners


def test_listeners_have_what_the_settings_say_of_each() -> None:
    """Names are upper case, limits and advertised addresses each listener's own; a controller's are left out."""
    config = ServerConfig.load(
        {
            "listeners": "in://127.0.0.1:1, OUT://:2,CONTROLLER://:3",
            "tidegate.allow.anonymous": "true",
            "advertised.listeners": "OUT://broker.example:9,CONTROLLER://broker.example:3",
            "listener.security.protocol.map": "IN:PLAINTEXT,OUT:PLAINTEXT,CONTROLLER:SSL",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "IN",
            "listener.name.out.max.connections": "5",
            "listener.name.out.max.connection.creation.rate": "7",
            "listener.name.other.max.connections": "5",
        }
    )
    inside, outside = config.listeners
    assert (inside.name, inside.advertised, inside.limits) == ("IN", None, ListenerLimits())
    assert outside.advertised == ListenerAddress(name="OUT", host="broker.example", port=9)
    assert outside.limits == ListenerLimits(max_connections=5, max_connection_creation_rate=7)
    assert config.inter_broker_listener == "IN"
    assert config.unknown == ("listener.name.other.max.connections",)


def test_plaintext_is_protected_where_nothing_else_is_said() -> None:
    """As in Kafka the listener between brokers is PLAINTEXT; where there is none of that name, none is protected."""
    names = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,A:PLAINTEXT,B:PLAINTEXT"}
    assert (
        ServerConfig.load({**names, "listeners": "A://localhost:1,PLAINTEXT://[::1]:2"}).inter_broker_listener
        == "PLAINTEXT"
    )
    assert (
        ServerConfig.load({**names, "listeners": "A://127.0.0.1:1,B://127.1.2.3:2"}).inter_broker_listener
        is None
    )


def test_memory_for_requests_is_a_share_of_the_machine_unless_it_is_set() -> None:
    """0, the default, stands for an eighth of the machine's memory; -1 is Kafka's word for no bound."""
    machine = process_memory_bytes()
    assert 2**28 < machine < 2**50
    for texts, most_bytes in (
        ({}, machine // 8),
        ({"queued.max.request.bytes": "0"}, machine // 8),
        ({"queued.max.request.bytes": "-1"}, -1),
        ({"queued.max.request.bytes": "5000000000"}, 5_000_000_000),
    ):
        assert request_memory_bytes(ServerConfig.load(texts)) == most_bytes

"""Settings of a client by Kafka's names: what is read, and errors that show no secret."""

import pytest

from tidegate.client import Address, client_settings, load_client_settings
from tidegate.errors import ConfigError

SECRET = "s3cret"
PLAIN = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="{SECRET}";'


def settings(**texts):
    """Return settings; a dot is written as an underscore."""
    given = {"bootstrap.servers": "localhost:9092"}
    return client_settings({**given, **{name.replace("_", "."): text for name, text in texts.items()}})


def test_defaults_are_kafkas():
    """Timeouts of 30 and 60 s, no TLS and no login, two samples of 30 s."""
    own = settings()
    assert (own.request_timeout_s, own.api_timeout_s, own.tls, own.mechanism) == (30.0, 60.0, None, "")
    assert (own.metrics_samples, own.metrics_window_ms) == (2, 30_000)


def test_a_file_of_settings(tmp_path):
    """The address of the command line wins over that of the file; other clients' settings have no effect."""
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=a:1\nacks=all\nclient.id=ops\nrequest.timeout.ms=1500\n")
    own = load_client_settings("[::1]:2,b:3", path)
    assert own.addresses == (Address("::1", 2), Address("b", 3))
    assert (own.client_id, own.request_timeout_s, own.misspelt) == ("ops", 1.5, {})
    assert str(own.addresses[0]) == "[::1]:2"


def test_a_misspelt_name_is_found():
    """The name that was meant is offered."""
    assert settings(**{"request.timeout.mss": "1"}).misspelt == {"request.timeout.mss": "request.timeout.ms"}


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"bootstrap_servers": ""}, "1 to 100 addresses, got 0"),
        ({"bootstrap_servers": ",".join(["a:1"] * 101)}, "got 101"),
        ({"bootstrap_servers": "a"}, "must be HOST:PORT, got 'a'"),
        ({"bootstrap_servers": "a:70000"}, "HOST:PORT"),
        ({"request_timeout_ms": "-1"}, "request.timeout.ms must be"),
        ({"request_timeout_ms": "9" * 5000}, "request.timeout.ms must be"),
        ({"metrics_num_samples": "0"}, "metrics.num.samples must be a whole number from 1 to 100"),
        ({"security_protocol": "TLS"}, "one of PLAINTEXT, SSL"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"}, "sasl.mechanism must be one of"),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_jaas_config": PLAIN[:-1]}, "semicolon"),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_jaas_config": PLAIN.replace("username", "user")}, "no username"),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_jaas_config": PLAIN.replace("Plain", "O")}, "expected one of"),
    ],
)  # fmt: skip
def test_mistakes_are_named_without_secrets(texts, words):
    """The setting, what it is and what was expected; never a password."""
    with pytest.raises(ConfigError) as caught:
        settings(**texts)
    assert words in str(caught.value)
    assert SECRET not in f"{caught.value!r} {caught.value.hint}"


def test_a_login():
    """User and password come from the JAAS setting, and the password is not shown."""
    own = settings(security_protocol="SASL_PLAINTEXT", sasl_jaas_config=PLAIN)
    assert (own.mechanism, own.user, own.password) == ("PLAIN", "u", SECRET)
    assert SECRET not in repr(own)

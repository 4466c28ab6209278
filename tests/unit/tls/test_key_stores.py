"""Stores as keytool and openssl make them (`tests/vectors/stores`, with the script that made them)."""

import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import NoEncryption, pkcs12
from tests.server.listening.test_tls_config import client_context, shake_hands
from tests.unit.tls.certificates import identity

from tidegate.errors import ConfigError
from tidegate.server.listening.tls_config import TlsConfig, tls_config
from tidegate.server.settings.config import ServerConfig

STORES = Path(__file__).parents[2] / "vectors" / "stores"
KEY_STORES = ["keytool.p12", "keytool-legacy.p12", "openssl.p12", "openssl-legacy.p12", "both.p12"]
TRUST_STORES = ["trust-keytool.p12", "trust-keytool-legacy.p12", "trust-openssl.p12"]
PROTOCOLS = {"listener.security.protocol.map": "CLIENTS:SSL,PLAINTEXT:PLAINTEXT"}
GIVEN = {"ssl.keystore.location": str(STORES / "keytool.p12"), "ssl.keystore.password": "secret"}


def tls_of(texts: dict[str, str]) -> TlsConfig:
    """Return what holds at a listener."""
    texts = {**PROTOCOLS, **texts}
    return tls_config("CLIENTS", ServerConfig.load(texts).values, texts)


def trusting(store: str) -> dict[str, str]:
    """Return the settings that trust a store."""
    return {
        "ssl.truststore.location": str(STORES / store),
        "ssl.truststore.password": "secret",
        "ssl.client.auth": "required",
    }


@pytest.mark.parametrize("store", KEY_STORES)
@pytest.mark.parametrize("type_", [{}, {"ssl.keystore.type": "PKCS12"}, {"ssl.keystore.type": "jks"}])
def test_key_stores_are_read(store: str, type_: dict[str, str]) -> None:
    """With the whole chain, so that whoever trusts the authority alone finds the broker; also as Java's default."""
    tls = tls_of({**type_, "ssl.keystore.location": str(STORES / store), "ssl.keystore.password": "secret"})
    authority = tls_of({**GIVEN, **trusting("trust-keytool.p12")}).context.get_ca_certs(binary_form=True)[0]
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(cadata=authority)
    assert shake_hands(tls.context, client).version() == "TLSv1.3"


@pytest.mark.parametrize("store", TRUST_STORES)
def test_trust_stores_are_read(store: str, tmp_path: Path) -> None:
    """They trust the broker's own authority, and no stranger."""
    tls = tls_of({**GIVEN, **trusting(store), "ssl.key.password": "secret"})
    [trusted] = tls.context.get_ca_certs()
    assert trusted["subject"] == ((("commonName", "authority"),),)
    client = client_context(identity("stranger"), tmp_path)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(tls.context, client)


def test_a_store_without_a_password_needs_none(tmp_path: Path) -> None:
    """A store of certificates alone may have none."""
    store = tmp_path / "open.p12"
    entries = [pkcs12.PKCS12Certificate(identity("authority", authority=True).certificate, b"authority")]
    store.write_bytes(pkcs12.serialize_java_truststore(entries, NoEncryption()))
    texts = {"ssl.truststore.location": str(store), "ssl.client.auth": "required"}
    assert len(tls_of({**GIVEN, **texts}).context.get_ca_certs()) == 1


@pytest.mark.parametrize(
    ("texts", "message", "hint"),
    [
        ({"ssl.keystore.password": "hunter2"}, "keytool.p12' cannot be opened with ssl.keystore.password", "keytool"),
        ({"ssl.keystore.password": ""}, "keytool.p12' cannot be opened without ssl.keystore.password", "keytool -list"),
        (
            {"ssl.keystore.location": str(STORES / "old.jks")},
            "old.jks' is in Java's old format JKS, expected PKCS12",
            f"keytool -importkeystore -srckeystore {STORES}/old.jks -destkeystore {STORES}/old.jks.p12 "
            "-deststoretype PKCS12",
        ),
        (
            {"ssl.keystore.location": str(STORES / "trust-keytool.p12")},
            "trust-keytool.p12' has no private key, expected one",
            "trust store",
        ),
        ({"ssl.keystore.location": __file__}, "test_key_stores.py' has an unknown format", ""),
        ({"ssl.keystore.type": "BKS"}, "ssl.keystore.type is 'BKS', expected one of PKCS12, PEM", ""),
        ({"ssl.key.password": "hunter2"}, "ssl.key.password differs from ssl.keystore.password", "remove"),
        (trusting("trust-old.jks"), "trust-old.jks' is in Java's old format JKS", "-deststoretype PKCS12"),
        (trusting("keytool.p12"), "has a private key, expected only trusted certificates", "keytool -importcert"),
        ({**trusting("trust-keytool.p12"), "ssl.truststore.password": "hunter2"}, "with ssl.truststore.password", ""),
        ({**trusting("trust-keytool.p12"), "ssl.truststore.password": ""}, "without ssl.truststore.password", ""),
    ],
)  # fmt: skip
def test_mistakes_are_refused(texts: dict[str, str], message: str, hint: str) -> None:
    """Setting, file, what was found and what was expected, and the command that mends it; never a password."""
    with pytest.raises(ConfigError) as refused:
        tls_of({**GIVEN, **texts})
    assert message in str(refused.value)
    assert hint in str(refused.value.hint)
    assert "hunter" not in f"{refused.value!r}{refused.value.hint}"


def test_pem_under_the_default_type_is_recognised(tmp_path: Path) -> None:
    """`ssl.keystore.type` is JKS until it is set, which is forgotten easily."""
    path = tmp_path / "broker.pem"
    path.write_text(identity("broker").pem)
    with pytest.raises(ConfigError, match="is in PEM, expected PKCS12") as refused:
        tls_of({"ssl.keystore.location": str(path)})
    assert refused.value.hint == "set ssl.keystore.type=PEM"


def test_stores_last() -> None:
    """The certificates hold for as long as anybody runs these tests."""
    tls = tls_of({**GIVEN, **trusting("trust-keytool.p12")})
    until = ssl.cert_time_to_seconds(tls.context.get_ca_certs()[0]["notAfter"])
    assert datetime.fromtimestamp(until, UTC).year > 2100


def test_no_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is nowhere but in its store, and never readable in between."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    tls_of(GIVEN)
    assert list(tmp_path.iterdir()) == []

"""The context of a client: what it trusts, which certificate it shows, and which versions it enables."""

import ssl
from pathlib import Path

import pytest
from tests.server.listening.test_tls_config import shake_hands, tls_of
from tests.unit.tls.certificates import DER, identity

from tidegate.errors import ConfigError
from tidegate.tls.contexts import client_context

AUTHORITY = identity("authority", authority=True)
BROKER = identity("broker", AUTHORITY)
ALICE = identity("alice", AUTHORITY)
TRUST = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": AUTHORITY.certificate_pem}
SHOWN = {
    "ssl.keystore.type": "PEM",
    "ssl.keystore.key": ALICE.key_pem(),
    "ssl.keystore.certificate.chain": ALICE.certificate_pem,
}


def server_context(**texts: str) -> ssl.SSLContext:
    """Return the context of a listener that requires a certificate of the authority."""
    own = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": BROKER.key_pem(),
        "ssl.keystore.certificate.chain": BROKER.certificate_pem,
        "ssl.client.auth": "required",
    }
    return tls_of({**TRUST, **own, **texts}).context


def test_a_client_trusts_its_trust_store_and_shows_its_certificate() -> None:
    """The broker sees the certificate of the client's key store."""
    server = shake_hands(server_context(), client_context({**TRUST, **SHOWN}))
    assert server.getpeercert(binary_form=True) == ALICE.certificate.public_bytes(DER)


def test_stores_are_read_from_files(tmp_path: Path) -> None:
    """A PEM file serves as a text does."""
    (tmp_path / "trust.pem").write_text(AUTHORITY.certificate_pem)
    (tmp_path / "alice.pem").write_text(ALICE.pem)
    texts = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(tmp_path / "trust.pem"),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tmp_path / "alice.pem"),
    }
    server = shake_hands(server_context(), client_context(texts))
    assert server.getpeercert(binary_form=True) == ALICE.certificate.public_bytes(DER)


def test_without_a_trust_store_the_authorities_of_the_system_are_trusted() -> None:
    """They have not signed the broker's certificate."""
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server_context(), client_context(SHOWN))


@pytest.mark.parametrize(("algorithm", "is_checked"), [(None, True), ("https", True), ("", False)])
def test_host_names_are_checked_unless_the_algorithm_is_empty(
    algorithm: str | None, is_checked: bool
) -> None:
    """The certificate is of another host than `localhost`."""
    elsewhere = identity("elsewhere", AUTHORITY, hosts=("kafka.example",))
    keys = {
        "ssl.keystore.key": elsewhere.key_pem(),
        "ssl.keystore.certificate.chain": elsewhere.certificate_pem,
    }
    given = {} if algorithm is None else {"ssl.endpoint.identification.algorithm": algorithm}
    context = client_context({**TRUST, **SHOWN, **given})
    if is_checked:
        with pytest.raises(ssl.SSLCertVerificationError, match="localhost"):
            shake_hands(server_context(**keys), context)
    else:
        shake_hands(server_context(**keys), context)


def test_versions_are_those_enabled() -> None:
    """A client of TLS 1.2 alone gets TLS 1.2."""
    context = client_context({**TRUST, **SHOWN, "ssl.enabled.protocols": "TLSv1.2"})
    assert shake_hands(server_context(), context).version() == "TLSv1.2"
    with pytest.raises(ConfigError, match=r"ssl\.enabled\.protocols is 'SSLv3'"):
        client_context({"ssl.enabled.protocols": "SSLv3"})

"""What the settings say of TLS: whose setting wins, what a context does, and what is refused with a way out."""

import ssl
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from tests.unit.tls.certificates import DER, Identity, identity

from tidegate.config.principal_rules import NoRuleError
from tidegate.errors import ConfigError
from tidegate.fair_share import ANONYMOUS
from tidegate.server.listening.cipher_suites import TLS_1_3_SUITES
from tidegate.server.listening.tls_config import TlsConfig, tls_config
from tidegate.server.settings.config import ServerConfig
from tidegate.tls.settings import tls_settings

AUTHORITY = identity("authority", authority=True)
BROKER = identity("broker", AUTHORITY)
ALICE = identity("alice", AUTHORITY)
PROTOCOLS = {"listener.security.protocol.map": "CLIENTS:SSL,LOGINS:SASL_SSL,PLAINTEXT:PLAINTEXT"}
INLINE = {
    "ssl.keystore.type": "PEM",
    "ssl.keystore.key": BROKER.key_pem(),
    "ssl.keystore.certificate.chain": BROKER.certificate_pem,
}
TRUST = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": AUTHORITY.certificate_pem}
OWN = "listener.name.clients."


def tls_of(texts: dict[str, str], listener: str = "CLIENTS") -> TlsConfig:
    """Return what holds at a listener."""
    texts = {**PROTOCOLS, **texts}
    return tls_config(listener, ServerConfig.load(texts).values, texts)


def client_context(shown: Identity | None, path: Path) -> ssl.SSLContext:
    """Return a client that trusts the authority and shows a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=AUTHORITY.certificate_pem)
    if shown is not None:
        (path / "client.pem").write_text(shown.pem)
        context.load_cert_chain(path / "client.pem")
    return context


def shake_hands(server_context: ssl.SSLContext, client_context: ssl.SSLContext) -> ssl.SSLObject:
    """Return the server's side of a connection in memory, after the handshake. Raises `ssl.SSLError`."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server, server_hostname="localhost")
    waiting = [client, server]
    while waiting:
        for side in list(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
    return server


def test_a_file_or_the_settings_themselves_hold_key_and_certificate(tmp_path: Path) -> None:
    """Either gives a context that a client finds the broker behind."""
    path = tmp_path / "broker.pem"
    path.write_text(
        f"friendlyName: broker\n{BROKER.certificate_pem}{AUTHORITY.certificate_pem}{BROKER.key_pem()}"
    )
    for texts in ({"ssl.keystore.type": "PEM", "ssl.keystore.location": str(path)}, INLINE):
        tls = tls_of(texts)
        assert tls.client_auth == "none"
        server = shake_hands(tls.context, client_context(None, tmp_path))
        assert server.version() == "TLSv1.3"
        assert server.getpeercert(binary_form=True) is None


def test_a_setting_has_its_text_in_one_line(tmp_path: Path) -> None:
    """A properties file has line ends or blanks between the lines of a key, or nothing, as Kafka reads them."""
    key = BROKER.key_pem().replace("\n", " ")
    chain = f"{BROKER.certificate_pem}{AUTHORITY.certificate_pem}".replace("\n", " ").strip()
    tls = tls_of({**INLINE, "ssl.keystore.key": key, "ssl.keystore.certificate.chain": chain})
    shake_hands(tls.context, client_context(None, tmp_path))


def test_an_encrypted_key_needs_its_password(tmp_path: Path) -> None:
    """`ssl.key.password` opens PKCS#8 and is shown by nothing."""
    texts = {**INLINE, "ssl.keystore.key": BROKER.key_pem("hunter2"), "ssl.key.password": "hunter2"}
    shake_hands(tls_of(texts).context, client_context(None, tmp_path))
    assert "hunter2" not in repr(tls_of(texts))
    assert "hunter2" not in repr(ServerConfig.load(texts))


def test_the_listeners_own_setting_wins(tmp_path: Path) -> None:
    """One listener has another key, versions and demands than the rest."""
    other = identity("other", AUTHORITY)
    texts = {
        **INLINE,
        **TRUST,
        f"{OWN}ssl.keystore.key": other.key_pem(),
        f"{OWN}ssl.keystore.certificate.chain": other.certificate_pem,
        f"{OWN}ssl.enabled.protocols": "TLSv1.2",
        f"{OWN}ssl.client.auth": "requested",
    }
    own, rest = tls_of(texts), tls_of(texts, "OTHERS")
    assert (own.client_auth, rest.client_auth) == ("requested", "none")
    assert shake_hands(own.context, client_context(None, tmp_path)).version() == "TLSv1.2"
    assert shake_hands(rest.context, client_context(None, tmp_path)).version() == "TLSv1.3"


def test_a_sasl_listener_asks_for_certificates_by_its_own_setting_only() -> None:
    """As Kafka: `ssl.client.auth` of the node is for SSL listeners."""
    texts = {**INLINE, **TRUST, "ssl.client.auth": "required"}
    assert tls_of(texts).client_auth == "required"
    assert tls_of(texts, "LOGINS").client_auth == "none"
    assert (
        tls_of({**texts, "listener.name.logins.ssl.client.auth": "required"}, "LOGINS").client_auth
        == "required"
    )


@pytest.mark.parametrize("client_auth", ["none", "requested", "required"])
def test_who_comes_in_with_which_certificate(client_auth: str, tmp_path: Path) -> None:
    """Without one, with one of the authority, with somebody else's; and as whom."""
    tls = tls_of({**INLINE, **TRUST, "ssl.client.auth": client_auth})
    stranger = identity("stranger", identity("elsewhere", authority=True))
    came = {}
    for who, shown in (("nobody", None), ("alice", ALICE), ("stranger", stranger)):
        try:
            server = shake_hands(tls.context, client_context(shown, tmp_path))
            came[who] = tls.principal(server.getpeercert(binary_form=True))
        except ssl.SSLError:
            came[who] = "refused"
    assert (
        came
        == {
            "none": {"nobody": ANONYMOUS, "alice": ANONYMOUS, "stranger": ANONYMOUS},
            "requested": {"nobody": ANONYMOUS, "alice": "CN=alice", "stranger": "refused"},
            "required": {"nobody": "refused", "alice": "CN=alice", "stranger": "refused"},
        }[client_auth]
    )


def test_a_trusted_certificate_needs_no_authority(tmp_path: Path) -> None:
    """As in Java, whoever is in the trust store is trusted, and whomever an authority in its middle has signed."""
    between = identity("between", AUTHORITY, authority=True)
    tls = tls_of(
        {
            **INLINE,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": between.certificate_pem + ALICE.certificate_pem,
            "ssl.client.auth": "required",
        }
    )
    for shown in (ALICE, identity("bob", between)):
        server = shake_hands(tls.context, client_context(shown, tmp_path))
        assert server.getpeercert(binary_form=True) == shown.certificate.public_bytes(DER)


def test_rules_make_names_of_subjects() -> None:
    """A listener has its own; whom no rule is for is refused by an error of its own, as is what is no certificate."""
    texts = {**INLINE, "ssl.principal.mapping.rules": "RULE:^CN=(a.*)$/$1/U"}
    tls = tls_of(texts)
    assert tls.principal(ALICE.certificate.public_bytes(DER)) == "ALICE"
    assert tls.principal(None) == ANONYMOUS
    with pytest.raises(NoRuleError, match="no rule matches subject 'CN=broker'"):
        tls.principal(BROKER.certificate.public_bytes(DER))
    with pytest.raises(NoRuleError, match="cannot read the certificate"):
        tls.principal(b"x")
    own = tls_of({**texts, f"{OWN}ssl.principal.mapping.rules": "DEFAULT"})
    assert own.principal(ALICE.certificate.public_bytes(DER)) == "CN=alice"


def test_a_broker_without_tls_does_not_load_what_reads_stores() -> None:
    """It takes 10 MB, and time at the start."""
    code = "import sys, tidegate.cli.serving; print('cryptography' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_names_are_known() -> None:
    """No setting of a listener's TLS is called unknown."""
    texts = dict.fromkeys(tls_settings(["PLAINTEXT"]), "")
    assert "listener.name.plaintext.ssl.keystore.location" in texts
    assert ServerConfig.load(texts).unknown == ()


@pytest.mark.parametrize(
    ("suites", "protocols", "negotiated", "notices"),
    [
        ("", "", ("TLSv1.3", "TLS_AES_256_GCM_SHA384"), 0),
        ("", "TLSv1.2", ("TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384"), 0),
        (
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
            "TLSv1.2,TLSv1.3",
            ("TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256"),
            0,
        ),
        ("TLS_AES_128_GCM_SHA256", "TLSv1.3,TLSv1.2", ("TLSv1.3", "TLS_AES_256_GCM_SHA384"), 1),
        (",".join(sorted(TLS_1_3_SUITES)), "", ("TLSv1.3", "TLS_AES_256_GCM_SHA384"), 0),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384", "", ("TLSv1.2", "ECDHE-ECDSA-AES256-SHA384"), 0),
    ],
)
def test_ciphers_and_versions_are_those_that_are_allowed(
    suites: str, protocols: str, negotiated: tuple[str, str], notices: int, tmp_path: Path
) -> None:
    """By Java's names, the first that both know; suites of TLS 1.3 that stay though nobody allowed them are told."""
    tls = tls_of({**INLINE, "ssl.cipher.suites": suites, "ssl.enabled.protocols": protocols})
    server = shake_hands(tls.context, client_context(None, tmp_path))
    cipher = server.cipher()
    assert cipher is not None
    assert (server.version(), cipher[0]) == negotiated
    assert len(tls.notices) == notices


RSA_1024 = rsa.generate_private_key(65537, 1024)
SHORT = identity("short", AUTHORITY, key=RSA_1024)
EDWARDS = identity("edwards", AUTHORITY, key=ed25519.Ed25519PrivateKey.generate())
OLD = identity("old", AUTHORITY, key=BROKER.key, since=timedelta(days=-2), until=timedelta(days=-1))
EARLY = identity("early", AUTHORITY, key=BROKER.key, since=timedelta(days=1), until=timedelta(days=2))
CHAIN = "ssl.keystore.certificate.chain"
KEY = "ssl.keystore.key"


@pytest.mark.parametrize(
    ("texts", "message", "hint"),
    [
        ({KEY: "", CHAIN: ""}, "CLIENTS uses TLS but has no private key, expected ssl.keystore", "ssl.keystore.type"),
        ({CHAIN: ""}, "ssl.keystore.key is set without ssl.keystore.certificate.chain", ""),
        ({KEY: ""}, "no private key, expected ssl.keystore.location", ""),
        ({"ssl.keystore.location": "x"}, "location and ssl.keystore.key are both set, expected only one", ""),
        ({"ssl.keystore.password": "x"}, "ssl.keystore.password is set, but PEM stores", "ssl.key.password"),
        ({"ssl.keystore.type": "BKS"}, "ssl.keystore.type is 'BKS', expected one of PKCS12, PEM", ""),
        ({"ssl.keystore.type": "PKCS12"}, "key is set, but ssl.keystore.type is 'PKCS12', expected PEM", ""),
        ({KEY: "hunter2"}, "ssl.keystore.key has 0 private keys, expected exactly one", ""),
        ({KEY: BROKER.key_pem() * 2}, "ssl.keystore.key has 2 private keys, expected exactly one", ""),
        ({KEY: BROKER.key_pem(form="TraditionalOpenSSL")}, "format 'EC PRIVATE KEY', expected PKCS#8", "pkcs8"),
        ({KEY: BROKER.key_pem("hunter2", "TraditionalOpenSSL")}, "format 'EC PRIVATE KEY', expected", "pkcs8"),
        ({KEY: BROKER.key_pem("hunter2")}, "an encrypted private key, expected its password in ssl.key.password", ""),
        ({"ssl.key.password": "hunter2"}, "an unencrypted private key, expected no ssl.key.password", ""),
        (
            {KEY: BROKER.key_pem("hunter2"), "ssl.key.password": "hunter3"},
            "ssl.keystore.key has a private key that cannot be decrypted with ssl.key.password",
            "",
        ),
        ({KEY: "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"}, "private key that cannot be read", ""),
        ({KEY: "-----BEGIN PRIVATE KEY-----\nAAA\n-----END PRIVATE KEY-----"}, "'PRIVATE KEY' that is not base64", ""),
        ({CHAIN: "x"}, "ssl.keystore.certificate.chain has no certificate", ""),
        ({CHAIN: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"}, "certificate 1 cannot be read", ""),
        ({CHAIN: ALICE.certificate_pem}, "private key does not match the first certificate, 'CN=alice'", ""),
        ({CHAIN: ALICE.certificate_pem + BROKER.certificate_pem}, "key does not match", "put the certificate of"),
        ({CHAIN: OLD.certificate_pem}, "ssl.keystore.key: certificate 'CN=old' expired at", ""),
        ({CHAIN: EARLY.certificate_pem}, "ssl.keystore.key: certificate 'CN=early' is not valid before", "clock"),
        ({KEY: SHORT.key_pem(), CHAIN: SHORT.certificate_pem}, "cannot be used for TLS: EE_KEY_TOO_SMALL", "2048"),
        ({KEY: EDWARDS.key_pem(), CHAIN: EDWARDS.certificate_pem}, "expected RSA or EC", ""),
        ({"ssl.enabled.protocols": "TLSv1.1,TLSv1.2"}, "expected a list of TLSv1.2, TLSv1.3", "Java"),
        ({"ssl.protocol": "SSLv3"}, "ssl.protocol is 'SSLv3', expected one of TLS, TLSv1.2, TLSv1.3", ""),
        ({"ssl.cipher.suites": "TLS_X"}, "ssl.cipher.suites has 'TLS_X', expected a name such as TLS_AES_256_GCM", ""),
        ({"ssl.cipher.suites": "SSL_RSA_WITH_RC4_128_MD5"}, "ssl.cipher.suites has 'SSL_RSA_WITH_RC4_128_MD5'", ""),
        (
            {"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384", "ssl.enabled.protocols": "TLSv1.2"},
            "ssl.cipher.suites has no cipher suite for ssl.enabled.protocols=TLSv1.2",
            "TLSv1.3 has its own suites",
        ),
        ({"ssl.principal.mapping.rules": "x"}, "ssl.principal.mapping.rules: invalid rule 'x', expected DEFAULT", ""),
        ({"ssl.principal.mapping.rules": "RULE:(/x/"}, "ssl.principal.mapping.rules: pattern '(' is not supported", ""),
        ({"ssl.principal.mapping.rules": "RULE:x/$1/"}, "mapping.rules: replacement '$1' refers to group 1", ""),
        ({"ssl.principal.mapping.rules": ","}, "mapping.rules is ',', expected at least one rule, or DEFAULT", ""),
        ({f"{OWN}ssl.principal.mapping.rules": "x"}, f"{OWN}ssl.principal.mapping.rules: invalid rule 'x'", ""),
        ({"ssl.client.auth": "REQUIRED"}, "ssl.client.auth is 'REQUIRED', expected one of none, requested", ""),
        ({f"{OWN}ssl.client.auth": "x"}, f"{OWN}ssl.client.auth is 'x', expected one of", ""),
        ({"ssl.client.auth": "required"}, "needs trusted certificates: expected ssl.truststore", "authorit"),
        ({**TRUST, "ssl.truststore.password": "x"}, "ssl.truststore.password is set, but PEM stores", ""),
        ({**TRUST, "ssl.truststore.location": "x"}, "ssl.truststore.certificates are both set, expected only one", ""),
        ({**TRUST, "ssl.truststore.certificates": "x"}, "ssl.truststore.certificates has no certificate", ""),
    ],
)  # fmt: skip
def test_mistakes_are_refused(texts: dict[str, str], message: str, hint: str) -> None:
    """Setting, what was found and what was expected; never a secret."""
    with pytest.raises(ConfigError) as refused:
        tls_of({**INLINE, **texts})
    assert message in str(refused.value)
    assert hint in str(refused.value.hint)
    assert "hunter" not in f"{refused.value!r}{refused.value.hint}"


@pytest.mark.parametrize("store", ["keystore", "truststore"])
def test_files_that_cannot_be_read_are_refused(store: str, tmp_path: Path) -> None:
    """With setting, path and reason."""
    large = tmp_path / "large.pem"
    with large.open("wb") as file:
        file.truncate(5 << 20)
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    inline = {} if store == "keystore" else INLINE
    reasons = {
        str(tmp_path / "none.pem"): "No such file",
        str(tmp_path): "Is a directory",
        str(large): "expected at most",
    }
    for location, reason in {**reasons, str(empty): "has", "\0": "null byte"}.items():
        with pytest.raises(ConfigError, match=f"ssl.{store}.location .*{reason}"):
            tls_of({**inline, f"ssl.{store}.type": "PEM", f"ssl.{store}.location": location})

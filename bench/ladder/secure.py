"""The SASL_SSL listener of both brokers: a key, the settings, and what clients of it are told."""

import subprocess
from pathlib import Path

__all__ = ["LISTENER", "client_settings", "make_key", "secure_settings"]

LISTENER = "SASL_SSL"
_USER, _PASSWORD = "bench", "bench-secret"
_KEY, _CERTIFICATE, _BOTH = "bench-key.pem", "bench-certificate.pem", "bench.pem"


def make_key(directory: Path) -> None:
    """Write an RSA key of 2048 bits, as most brokers have, and its certificate, signed by itself."""
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    files = ["-keyout", str(directory / _KEY), "-out", str(directory / _CERTIFICATE)]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", names, *files],
        check=True,
        capture_output=True,
    )  # fmt: skip
    (directory / _BOTH).write_text((directory / _KEY).read_text() + (directory / _CERTIFICATE).read_text())


def secure_settings(directory: Path) -> tuple[str, ...]:
    """Return the settings of a broker with a plain listener and this one."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return (
        f"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,{LISTENER}:SASL_SSL,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name=PLAINTEXT",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={directory / _BOTH}",
        "sasl.enabled.mechanisms=PLAIN",
        f'listener.name.sasl_ssl.plain.sasl.jaas.config={module} required user_{_USER}="{_PASSWORD}";',
    )


def client_settings(directory: Path) -> dict[str, str]:
    """Return the settings of a librdkafka client."""
    return {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "PLAIN",
        "sasl.username": _USER,
        "sasl.password": _PASSWORD,
        "ssl.ca.location": str(directory / _CERTIFICATE),
    }

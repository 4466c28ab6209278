"""Settings of the metrics listener: its address, and the token that its clients need.

    tidegate.metrics.listener=https://10.0.0.5:9404
    tidegate.metrics.token.file=/etc/tidegate/metrics-token
    listener.name.metrics.ssl.keystore.location=/etc/tidegate/key-and-certificates.pem

With `https://`, the settings of TLS are those of a listener of Kafka's protocol that is called METRICS. Metrics name
users and client ids, which are personal data. On loopback every process of the machine may read them, unless there is a
token; elsewhere a token or a client certificate is required.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.errors import ConfigError
from tidegate.server.listening.listener_config import is_loopback
from tidegate.tls.settings import CLIENT_AUTH, REQUIRED, client_auth, listener_prefix

__all__ = [
    "MAX_TOKEN_CHARS",
    "METRICS_LISTENER",
    "METRICS_NAME",
    "METRICS_TOKEN_FILE",
    "MIN_TOKEN_CHARS",
    "MetricsConfig",
    "metrics_config",
    "read_token",
]

METRICS_LISTENER = "tidegate.metrics.listener"
METRICS_TOKEN_FILE = "tidegate.metrics.token.file"
METRICS_NAME = "METRICS"
"""The name that the listener has in the settings of TLS: `listener.name.metrics.ssl...`."""
MIN_TOKEN_CHARS = 16
MAX_TOKEN_CHARS = 1024
_ADDRESS = re.compile(r"(?:(https?)://)?(?:\[([0-9A-Fa-f:.%]+)\]|([^:/\[\]\s]+)):([0-9]{1,5})")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # Follows: RFC 6750, b64token
_MAKE_TOKEN = "write one with: openssl rand -hex 32 > FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """The address of the metrics listener (port 0: any free one), and the file of its token, if it has one.

    is_https: whether it uses TLS.
    """

    host: str
    port: int
    token_file: Path | None
    is_https: bool = False


def metrics_config(values: Mapping[str, Any], texts: Mapping[str, str]) -> MetricsConfig | None:
    """Return the settings of the metrics listener, None without one. Raises `ConfigError`.

    `values` are settings in force, `texts` those that were given.
    """
    text, token_file = values[METRICS_LISTENER], values[METRICS_TOKEN_FILE]
    if not text:
        return None
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[4]) > 65_535:
        raise ConfigError(
            f"{METRICS_LISTENER} is {text!r}, expected HOST:PORT or https://HOST:PORT, such as 127.0.0.1:9404"
        )
    is_https, host = match[1] == "https", match[2] or match[3]
    asks_for_certificate = is_https and client_auth(METRICS_NAME, values, texts) == REQUIRED
    if not (token_file or asks_for_certificate or is_loopback(host)):
        raise ConfigError(
            f"{METRICS_LISTENER} is {text!r}, which other machines may reach: expected 127.0.0.1, "
            f"{METRICS_TOKEN_FILE}, or https:// with {CLIENT_AUTH}={REQUIRED}",
            hint=f"set {METRICS_TOKEN_FILE} to a file with a secret token; {_MAKE_TOKEN}; or use https:// and "
            f"{listener_prefix(METRICS_NAME)}{CLIENT_AUTH}={REQUIRED}",
        )
    return MetricsConfig(
        host=host,
        port=int(match[4]),
        token_file=Path(token_file) if token_file else None,
        is_https=is_https,
    )


def read_token(path: Path) -> str:
    """Return the bearer token in a file. Raises `ConfigError`, which does not repeat the token."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TOKEN_CHARS + 2)
    except OSError as error:
        raise ConfigError(
            f"cannot read the token file {str(path)!r}: {error.strerror or error}", hint=_MAKE_TOKEN
        ) from error
    token = content.decode("ascii", "replace").strip()
    if not MIN_TOKEN_CHARS <= len(token) <= MAX_TOKEN_CHARS or not _TOKEN.fullmatch(token):
        raise ConfigError(
            f"the token file {str(path)!r} has no usable token, expected {MIN_TOKEN_CHARS} to {MAX_TOKEN_CHARS} "
            "letters, digits and ._~+/-=",
            hint=_MAKE_TOKEN,
        )
    return token

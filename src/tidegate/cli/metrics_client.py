"""Client of the metrics listener of a broker, for the commands that show its documents."""

import argparse
import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from tidegate.cli.client_options import warn_of_misspelt
from tidegate.cli.job_options import json_option, path_type
from tidegate.config.properties import load_properties
from tidegate.errors import ConfigError, TidegateError
from tidegate.server.monitoring.links import LINK_FIELDS, LINK_PATH

__all__ = [
    "DEFAULT_URL",
    "MetricsClient",
    "MetricsError",
    "add_metrics_options",
    "clock_text",
    "link_fields",
    "tls_problem",
]

DEFAULT_URL = "http://127.0.0.1:9404"
MAX_BYTES = 64 << 20
"""Most bytes of an answer. A listener sends a few megabytes at most."""
TIMEOUT_S = 10.0
_FORMAT = 1
_NO_LISTENER = (
    "start the broker with --override tidegate.metrics.listener=127.0.0.1:9404, or correct --metrics"
)
_OTHER_NAMES = (62, 64)  # of a host, of an IP address. Source: OpenSSL `X509_V_ERR_HOSTNAME_MISMATCH`
_EXPIRED = 10  # `X509_V_ERR_CERT_HAS_EXPIRED`
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")
_NO_CERTIFICATE = ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_HANDSHAKE_FAILURE")
_REFUSED_CERTIFICATE = (
    "TLSV1_ALERT_UNKNOWN_CA",
    "SSLV3_ALERT_BAD_CERTIFICATE",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
    "TLSV1_ALERT_DECRYPT_ERROR",
)
_TRUST = (
    "set ssl.truststore.location in --command-config FILE to the certificate of the authority that signed it"
)
_SHOW = "set ssl.keystore.location in --command-config FILE to a key and certificate that the listener trusts"


class MetricsError(TidegateError):
    """Raised if a metrics listener cannot be reached, or does not return the document."""


def add_metrics_options(parser: argparse.ArgumentParser, *, with_links: bool = False) -> None:
    """Add the options that name the listener and its token, and `--json`. with_links: also accept a signed link."""
    parser.add_argument(
        "--metrics",
        metavar="URL",
        type=_url_or_link if with_links else _url,
        help=f"metrics listener of the broker, with http:// or https://{', or a link of --link' if with_links else ''} "
        f"(default: {DEFAULT_URL})",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        type=path_type,
        help="file with the listener's token (tidegate.metrics.token.file)",
    )
    json_option(parser, "print one JSON document (docs/monitoring.md)")


def _url(text: str) -> str:
    """Return the address of a listener as a URL without a path. Raises `argparse.ArgumentTypeError`."""
    shown = text.partition("?")[0]  # behind it may be the signature of a link
    hint = f" (hint: write {DEFAULT_URL})"
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"expected http://HOST:PORT or https://HOST:PORT, got {shown!r}{hint}"
        ) from error
    is_plain = parts.path in ("", "/", "/metrics") and not (parts.query or parts.fragment or parts.username)
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        raise argparse.ArgumentTypeError(
            f"expected http://HOST:PORT or https://HOST:PORT, got {shown!r}{hint}"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}"


def _url_or_link(text: str) -> str:
    """Return the URL of `_url`, or an unchanged signed link. Raises `ArgumentTypeError`, without the signature."""
    address, mark, query = text.partition("?")
    if not mark:
        return _url(text)
    fields = link_fields(text)
    if not address.endswith(LINK_PATH) or fields.keys() != LINK_FIELDS:
        raise argparse.ArgumentTypeError(
            "malformed link (hint: copy the complete link, and put it in quotes)"
        )
    return f"{_url(address.removesuffix(LINK_PATH))}{LINK_PATH}?{query}"


def link_fields(url: str) -> dict[str, str]:
    """Return the fields of a signed link; none where `url` is not one."""
    return dict(parse_qsl(url.partition("?")[2], keep_blank_values=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsClient:
    """The client of one listener. token_file: the file with its token, if any. tls: for a URL with https://."""

    url: str
    token_file: Path | None = None
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(cls, args: argparse.Namespace) -> "MetricsClient":
        """Return a client of the listener that the options name. Raises `ConfigError`.

        Errors repeat its URL, which is that of the listener without the signature of a link.
        """
        url = (args.metrics or DEFAULT_URL).partition(LINK_PATH)[0]
        tls = None
        if url.startswith("https://"):
            tls = _context(args.command_config)
        elif args.command_config is not None and getattr(args, "bootstrap_server", None) is None:
            raise ConfigError(
                f"--command-config has no effect on {url}, which does not use TLS",
                hint="write https:// in --metrics, or leave out --command-config",
            )
        return cls(url=url, token_file=args.token_file, tls=tls)

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Return a JSON document. Raises `MetricsError`."""
        fields = urlencode({name.replace("_", "-"): text for name, text in query.items()})
        status, content_type, body = self._ask(f"{path}?{fields}" if fields else path)
        document: Any = None
        if content_type.startswith("application/json"):
            try:
                document = json.loads(body)
            except ValueError:
                document = None
        if not isinstance(document, dict):
            raise MetricsError(
                f"{self.url} is not a metrics listener of tidegate (status {status}, {content_type or 'no type'})",
                hint=_NO_LISTENER,
            )
        if status != 200:
            raise self._refusal(status, document)
        if document.get("format") != _FORMAT:
            raise MetricsError(
                f"{self.url} sends format {document.get('format')!r}, expected {_FORMAT}",
                hint="use the version of tidegate that the broker has",
            )
        return document

    def _refusal(self, status: int, document: Mapping[str, Any]) -> MetricsError:
        reason, hint = document.get("error"), document.get("hint")
        if status == 401:
            given = (
                "has no token"
                if self.token_file is None
                else f"refuses the token in {str(self.token_file)!r}"
            )
            reason = (
                f"the bearer token is missing or wrong: this command {given}"
                if self.token_file is None
                else (f"the listener {given}")
            )
            hint = "use --token-file with the file that the broker's tidegate.metrics.token.file names"
        return MetricsError(
            f"{self.url}: {reason} (status {status})", hint=None if hint is None else str(hint)
        )

    def _ask(self, target: str) -> tuple[int, str, bytes]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None, "checked by `_url`"
        connection: http.client.HTTPConnection
        if self.tls is None:
            connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S)
        else:
            connection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=TIMEOUT_S, context=self.tls
            )
        headers = {"Accept": "application/json"}
        if self.token_file is not None:
            from tidegate.server.settings.metrics_settings import read_token

            headers["Authorization"] = f"Bearer {read_token(self.token_file)}"
        try:
            connection.request("GET", target, headers=headers)
            response = connection.getresponse()
            body = response.read(MAX_BYTES + 1)
        except ssl.SSLError as error:
            reason, hint = tls_problem(error)
            raise MetricsError(
                f"cannot reach the metrics listener at {self.url}: {reason}", hint=hint
            ) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise MetricsError(
                f"cannot reach the metrics listener at {self.url}: {reason}", hint=_NO_LISTENER
            ) from error
        finally:
            connection.close()
        if len(body) > MAX_BYTES:
            raise MetricsError(f"{self.url} sends more than {MAX_BYTES} bytes", hint=_NO_LISTENER)
        return response.status, response.headers.get("Content-Type", ""), body


def _context(command_config: Path | None) -> ssl.SSLContext:
    """Return the TLS context of a client with these settings. Without them, it trusts the system's certificates."""
    from tidegate.client.settings import misspelt_settings
    from tidegate.tls.contexts import client_context  # imports cryptography: 40 ms

    texts = {} if command_config is None else load_properties(command_config)
    warn_of_misspelt(misspelt_settings(texts))
    return client_context(texts)


def clock_text(time_ms: int) -> str:
    """Return a time of day, local, with tenths of a second."""
    moment = datetime.fromtimestamp(time_ms / 1000)
    return f"{moment:%H:%M:%S}.{moment.microsecond // 100_000}"


def tls_problem(error: ssl.SSLError) -> tuple[str, str | None]:
    """Return the reason, as the end of a sentence about the listener, and a hint where a fix is known."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}", _certificate_hint(
            error.verify_code
        )
    name = error.reason or ""
    if name in _NO_TLS:
        return "it does not use TLS", "write http:// in --metrics"
    if name in _NO_CERTIFICATE:
        return "it requires a client certificate", _SHOW
    if name in _REFUSED_CERTIFICATE:
        return f"it refuses the client certificate ({_words(name)})", _SHOW
    return _words(name) or str(error.strerror or error), None


def _certificate_hint(code: int) -> str | None:
    if code == _EXPIRED:
        return "replace the certificate of the listener"
    if code in _OTHER_NAMES:
        return "write a host name in --metrics that the certificate has"
    return _TRUST


def _words(name: str) -> str:
    return name.replace("_", " ").lower()

"""The source of metrics that a caller names: a Prometheus server, or saved answers of one.

A server is asked over its HTTP API. Credentials come from files and are in no message.
"""

import base64
import http.client
import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request, build_opener

from tidegate.errors import ConfigError, TidegateError
from tidegate.pipeline.prometheus.answers import (
    MAX_ANSWER_BYTES,
    AnswerError,
    Series,
    read_answer,
    series_of,
    shown_answer,
)
from tidegate.pipeline.prometheus.spellings import KNOWN, Spellings, load_spellings

__all__ = [
    "MAX_DAYS",
    "Credential",
    "MetricsServer",
    "MetricsServerError",
    "MetricsSource",
    "basic_auth",
    "checked_url",
    "range_s",
]

TIMEOUT_S = 120.0
"""Longest time of a read, in s: the default time limit of a query in Prometheus."""

_URL_HINT = "write http://HOST:PORT, without /api/v1/... and what follows '?'"
_SECRET_HINT = "the file must be readable, with nothing but the secret in it"
_MAX_SECRET_BYTES = 16 * 1024
_UNAUTHORIZED = (401, 403)
_NOT_FOUND = 404
_REFUSED_QUERY = (400, 422)  # with the reason as JSON
_REDIRECTS = range(300, 400)
MAX_DAYS = 366
"""Longest time that metrics are asked for, in days."""

_DAYS = 7  # that are read by default
_DAY_S = 24 * 3600
_MOST_FILES = 100


class MetricsServerError(TidegateError):
    """Raise when a Prometheus server cannot be reached, or does not answer a query."""


@dataclass(frozen=True, slots=True)
class Credential:
    """The value of the header Authorization; its text is not shown."""

    header: str = field(repr=False)


class _NoRedirects(HTTPRedirectHandler):
    """Refuses redirects: a credential is for the server that was named."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Return None: the answer is then an error."""


class MetricsServer:
    """The HTTP API of a server. url: its base, as `checked_url` returns it."""

    def __init__(self, url: str, credential: Credential | None = None) -> None:
        self.url = url
        self._credential = credential
        self._opener: OpenerDirector = build_opener(
            _NoRedirects, HTTPSHandler(context=ssl.create_default_context())
        )

    def names(self, *, from_s: int, to_s: int) -> list[str]:
        """Return the names of all metrics in a time. Raises `MetricsServerError`, `AnswerError`."""
        data = self._ask("label/__name__/values", {"start": from_s, "end": to_s})
        if not isinstance(data, list) or not all(isinstance(name, str) for name in data):
            raise AnswerError(
                f"{self.url} is not an answer of Prometheus",
                hint="check that the URL is that of a Prometheus server",
            )
        return data

    def query_range(self, query: str, *, from_s: int, to_s: int, step_s: int) -> list[Series]:
        """Return the values of a query at each step. Raises `MetricsServerError`, `AnswerError`."""
        asked = {"query": query, "start": from_s, "end": to_s, "step": step_s}
        return series_of(self._ask("query_range", asked), source=self.url)

    def query(self, query: str, *, at_s: int) -> list[Series]:
        """Return the values of a query at one time. Raises `MetricsServerError`, `AnswerError`."""
        return series_of(self._ask("query", {"query": query, "time": at_s}), source=self.url)

    def _ask(self, path: str, asked: Mapping[str, object]) -> Any:
        request = Request(f"{self.url}/api/v1/{path}?{urlencode(asked)}")
        if self._credential is not None:
            request.add_unredirected_header("Authorization", self._credential.header)
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                content: bytes = answer.read(MAX_ANSWER_BYTES + 1)
        except HTTPError as error:
            with error:
                self._refuse(error)
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, URLError) else error
            shown = getattr(reason, "strerror", None) or shown_answer(reason)
            hint = "check the URL, and that Prometheus is running"
            if isinstance(reason, ssl.SSLError):
                hint = "set SSL_CERT_FILE to the certificate of your own certificate authority"
            elif isinstance(reason, TimeoutError):
                hint = "give a shorter time with --from, or fewer series with --match"
            raise MetricsServerError(f"cannot reach {self.url}: {shown}", hint=hint) from error
        return read_answer(content, source=self.url)

    def _refuse(self, error: HTTPError) -> NoReturn:
        """Raise the error for an answer with a status that is not 200."""
        status = f"{error.code} {error.reason}".strip()
        if error.code in _UNAUTHORIZED:
            hint = "give --bearer-token-file or --basic-auth-file, with the right to query"
        elif error.code in _REDIRECTS:
            hint = f"redirects are not followed; the server names {shown_answer(error.headers.get('Location'))!r}"
        elif error.code == _NOT_FOUND:
            hint = "give the base URL, which comes before /api/v1/query_range, such as http://localhost:9090"
        elif error.code in _REFUSED_QUERY:
            reason = _reason(error)
            raise MetricsServerError(
                f"{self.url} refuses the query: {reason}",
                hint="check --match; where the query is too large, give a shorter time with --from",
            ) from error
        else:
            hint = "look into the server's log; where the query is too large, give a shorter time with --from"
        raise MetricsServerError(f"{self.url} answers {status!r}", hint=hint) from error


def _reason(error: HTTPError) -> str:
    try:
        answer = json.loads(error.read(MAX_ANSWER_BYTES))
        return shown_answer(answer["error"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError, http.client.HTTPException):
        return f"status {error.code}"


def checked_url(text: str) -> str:
    """Return the base URL of a server without its last slash. Raises `ConfigError`, which repeats no secret."""
    try:
        parts = urlsplit(text)
        is_secret = parts.username is not None or parts.password is not None
        is_base = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError as error:
        raise ConfigError("the URL of Prometheus cannot be read", hint=_URL_HINT) from error
    if is_secret:
        raise ConfigError(
            "the URL of Prometheus must not contain a user or password",
            hint="write USER:PASSWORD into a file and give --basic-auth-file",
        )
    if not is_base or parts.query or parts.fragment or not text.isprintable() or " " in text:
        raise ConfigError(
            "the URL of Prometheus must be http://HOST:PORT or https://HOST:PORT, with a path where it has one",
            hint=_URL_HINT,
        )
    return text.rstrip("/")


def basic_auth(path: Path) -> Credential:
    """Return the user and password that a file contains, as USER:PASSWORD. Raises `ConfigError`."""
    secret = _secret(path)
    if ":" not in secret:
        raise ConfigError(f"{str(path)!r} must contain one line, USER:PASSWORD", hint=_SECRET_HINT)
    return Credential(f"Basic {base64.b64encode(secret.encode()).decode()}")


def _secret(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_SECRET_BYTES + 1)
        text = content.decode().strip()
    except OSError as error:
        raise ConfigError(
            f"cannot read {str(path)!r}: {error.strerror or error}", hint=_SECRET_HINT
        ) from error
    except UnicodeDecodeError:
        text = ""
    if not text or not text.isprintable() or len(content) > _MAX_SECRET_BYTES:
        raise ConfigError(f"{str(path)!r} must contain one line of printable text", hint=_SECRET_HINT)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSource:
    """A Prometheus server, or saved answers of one. sources: its URL, or the paths of the files.

    match: label matchers, such as `job="kafka"`. metric_names: a file with names of metrics and labels. The credential
    is in one of the two files. is_command: errors name the options of the command line.
    """

    sources: Sequence[str]
    match: str | None = None
    metric_names: Path | None = None
    bearer_token_file: Path | None = None
    basic_auth_file: Path | None = None
    is_command: bool = False

    def spellings(self) -> Spellings:
        """Return the names of metrics and labels. Raises `ConfigError`."""
        return KNOWN if self.metric_names is None else load_spellings(self.metric_names)

    def server(self) -> MetricsServer | None:
        """Return the server; None: the source is files. Raises `ConfigError`."""
        if not any("://" in source for source in self.sources):
            return None
        if len(self.sources) > 1:
            raise ConfigError(
                f"{self.name('prometheus')} with a URL is given with another source",
                hint="give one URL, or files",
            )
        credential = None
        if self.bearer_token_file is not None:
            credential = Credential(f"Bearer {_secret(self.bearer_token_file)}")
        elif self.basic_auth_file is not None:
            credential = basic_auth(self.basic_auth_file)
        return MetricsServer(checked_url(self.sources[0]), credential)

    def files(self) -> list[Path]:
        """Return the saved answers. Raises `ConfigError` where a parameter is for a server only."""
        for name in ("match", "bearer_token_file", "basic_auth_file"):
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"{self.name(name)} is for the URL of a server, not for a saved answer",
                    hint=f"leave out {self.name(name)}, or give {self.name('prometheus')} a URL",
                )
        if len(self.sources) > _MOST_FILES:
            raise ConfigError(
                f"{self.name('prometheus')} is given {len(self.sources)} times, expected at most {_MOST_FILES}",
                hint="save the answers of a longer time in each file",
            )
        return [Path(source) for source in self.sources]

    def name(self, parameter: str) -> str:
        """Return the name of a parameter as the caller writes it."""
        return f"--{parameter.replace('_', '-')}" if self.is_command else parameter


def range_s(from_ms: int | None, to_ms: int | None, last_ms: int | None, *, now_s: int) -> tuple[int, int]:
    """Return the first and the last second to ask a server for: by default the last 7 days. Raises `ConfigError`."""
    to_s = now_s if to_ms is None else to_ms // 1000
    from_s = to_s - (_DAYS * _DAY_S if last_ms is None else -(-last_ms // 1000))
    if from_ms is not None:
        from_s = from_ms // 1000
    if from_s >= to_s:
        raise ConfigError("the range of time must end after its start", hint="give an earlier start")
    if to_s - from_s > MAX_DAYS * _DAY_S:
        raise ConfigError(f"the range of time must be at most {MAX_DAYS} days", hint="give a later start")
    return from_s, to_s

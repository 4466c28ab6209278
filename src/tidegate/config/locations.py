"""Locations of files: a path on this machine, or the URI of a directory or file on another filesystem.

>>> location("usage"), location("file:///var/usage")
(PosixPath('usage'), PosixPath('/var/usage'))
>>> uri = location("s3://bucket/usage?region=eu-west-1")
>>> str(uri / "parquet"), uri.name
('s3://bucket/usage/parquet?region=eu-west-1', 'usage')
>>> location("s3://key:secret@bucket/usage")
Traceback (most recent call last):
tidegate.errors.ConfigError: a URI must not contain credentials, got 's3://...@bucket/usage'

A `Uri` holds no secret, so it may be shown, logged and kept in results. `tidegate.pipeline.read.filesystems` lists
the filesystems.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from tidegate.errors import ConfigError

__all__ = ["Location", "Uri", "location"]

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_CONTAINER_SCHEMES = frozenset({"abfs", "abfss"})  # what stands before the @ is no secret: container@account
_HARMLESS = frozenset(
    {
        "allow_bucket_creation",
        "enable_tls",
        "endpoint_override",
        "region",
        "replication",
        "retry_limit_seconds",
        "scheme",
        "tls_verify_certificates",
        "user",
    }
)
"""Parameters of a URI's query: options of Arrow's filesystems that hold no secret."""

_HINT = "pass credentials as the storage client expects them: AWS_ACCESS_KEY_ID, a profile, a role (docs/clusters.md)"
_MAX_CHARS = 4096


@dataclass(frozen=True, slots=True, order=True)
class Uri:
    """A directory or a file elsewhere. base: scheme and authority; path: begins with a slash; query: may be empty."""

    base: str
    path: str
    query: str = ""

    def __str__(self) -> str:
        """Return it as it is written."""
        return f"{self.base}{self.path}{'?' if self.query else ''}{self.query}"

    def __truediv__(self, name: str) -> "Uri":
        """Return what is called `name` in it; the characters of a name mean themselves."""
        return Uri(self.base, f"{self.path.rstrip('/')}/{quote(name, safe='/=:+,@')}", self.query)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]


Location = Path | Uri


def location(text: str) -> Location:
    """Return the place that `text` names; a `file:` URI is a path. Raises `ConfigError`, which repeats no secret."""
    match = _URI.fullmatch(text)
    if match is None:
        return Path(text)
    if len(text) > _MAX_CHARS or any(ord(char) <= ord(" ") for char in text):
        raise ConfigError(f"a URI must have no spaces and at most {_MAX_CHARS} characters")
    return _local(text) if match[1].lower() == "file" else _remote(text)


def _local(text: str) -> Path:
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise ConfigError(f"a file: URI must have an absolute path and no host, got {text!r}")
    return Path(unquote(parts.path))


def _remote(text: str) -> Uri:
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise ConfigError("invalid URI: its host cannot be parsed") from error
    user, _, host = parts.netloc.rpartition("@")
    if user and (parts.scheme not in _CONTAINER_SCHEMES or ":" in user):
        shown = f"{parts.scheme}://...@{host}{parts.path}"
        raise ConfigError(f"a URI must not contain credentials, got {shown!r}", hint=_HINT)
    for name, _ in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _HARMLESS:
            shown = f"{parts.scheme}://{host}{parts.path}"
            raise ConfigError(
                f"unknown parameter {name[:80]!r} of URI {shown!r}, expected one of {', '.join(sorted(_HARMLESS))}",
                hint=_HINT,
            )
    if parts.fragment:
        raise ConfigError("a URI of files must not contain '#'")
    path = parts.path.rstrip("/") or "/"
    return Uri(f"{parts.scheme}://{parts.netloc}", path, parts.query)

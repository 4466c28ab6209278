"""Errors of the client: what a broker answered, what it cannot do, and connections that fail."""

from collections.abc import Sequence
from typing import Any

from tidegate import error_codes
from tidegate.errors import TidegateError

__all__ = [
    "BrokerError",
    "ClientError",
    "ConnectionLostError",
    "LoginError",
    "RequestTimeoutError",
    "ThrottlingQuotaExceededError",
    "UnreachableError",
    "UnsupportedApiError",
    "error_name",
    "only_entry",
    "raise_for",
    "shown",
]

MAX_SHOWN_CHARACTERS = 1000
"""Most characters of a broker's text that an error has."""

_NAMES = {
    code: name
    for name, code in vars(error_codes).items()
    if name.isupper() and isinstance(code, int) and not isinstance(code, bool)
}
_HINTS = {
    error_codes.OFFSET_OUT_OF_RANGE: "assign the partition again, at EARLIEST or LATEST",
    error_codes.CLUSTER_AUTHORIZATION_FAILED: "this user needs an ACL on the cluster, or must be a super user",
    error_codes.TOPIC_AUTHORIZATION_FAILED: "this user needs an ACL on the topic",
}


class ClientError(TidegateError):
    """Base of the errors that the client raises."""


class UnreachableError(ClientError, ConnectionError):
    """Raised where no connection to a broker can be made."""


class ConnectionLostError(ClientError, ConnectionError):
    """Raised where a connection ended before the response came. The broker may have done what was asked.

    is_first: the client does not log in, and nothing but ApiVersions was answered on the connection. A listener with
    SASL ends a connection so.
    """

    def __init__(self, message: str, *, hint: str | None = None, is_first: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.is_first = is_first


class LoginError(ClientError):
    """Raised where the broker refuses the credentials, or the TLS handshake fails."""


class RequestTimeoutError(ClientError, TimeoutError):
    """Raised where no response came in time."""


class UnsupportedApiError(ClientError):
    """Raised where the broker has no version of an API that the client speaks."""


class BrokerError(ClientError):
    """Raised for an error that a broker answered.

    code: Kafka's number of the error. text: the broker's own message, or that of the code.
    """

    def __init__(self, code: int, text: str | None = None) -> None:
        self.code = code
        self.text = shown(text or "") or error_codes.TEXTS.get(code) or error_name(code)
        name = error_name(code)
        super().__init__(self.text if self.text == name else f"{self.text} ({name})", hint=_HINTS.get(code))


class ThrottlingQuotaExceededError(BrokerError):
    """Raised where a topic was refused by a controller mutation quota.

    throttle_time_ms: how long the broker asked to wait, less what has passed when the error is raised.
    Follows: Kafka `ThrottlingQuotaExceededException`, B§7.3.
    """

    def __init__(self, throttle_time_ms: int, text: str | None = None) -> None:
        super().__init__(error_codes.THROTTLING_QUOTA_EXCEEDED, text)
        self.throttle_time_ms = throttle_time_ms


def error_name(code: int) -> str:
    """Return Kafka's name of an error code.

    >>> error_name(89)
    'THROTTLING_QUOTA_EXCEEDED'
    """
    return _NAMES.get(code, f"error {code}")


def shown(text: object) -> str:
    r"""Return a broker's text as part of an error: one line, without control characters, and of bounded length.

    >>> shown("no such topic\n\x1b[2J")
    'no such topic  [2J'
    """
    cut = str(text)[: MAX_SHOWN_CHARACTERS + 1]
    clean = "".join(character if character.isprintable() else " " for character in cut)
    return clean if len(clean) <= MAX_SHOWN_CHARACTERS else f"{clean[:MAX_SHOWN_CHARACTERS]}…"


def raise_for(code: int, text: str | None) -> None:
    """Raise `BrokerError` unless `code` is 0."""
    if code != error_codes.NONE:
        raise BrokerError(code, text)


def only_entry(entries: Sequence[Any]) -> Any:
    """Return the one entry of a response. Raises `ClientError` where there is another number of them."""
    if len(entries) != 1:
        raise ClientError(f"the broker sent {len(entries)} results, expected 1")
    return entries[0]

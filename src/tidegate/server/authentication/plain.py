"""SASL PLAIN, the server's side: one token with name and password. Follows: RFC 4616, Kafka `PlainSaslServer`."""

import hashlib
import hmac
from collections.abc import Mapping

from tidegate.scram import AuthenticationError

__all__ = ["PlainServer"]

_TOKENS = 3  # authorization id, name, password


class PlainServer:
    """One login, over with its first token; `user` is logged in when `complete`. users: password by name."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self.complete = False
        self.user = ""
        self._users = users

    def respond(self, token: bytes) -> bytes:
        """Return the answer to a token. Raises `AuthenticationError`: the login is over then."""
        tokens = token.decode(errors="replace").split("\0", _TOKENS)
        if len(tokens) != _TOKENS:
            raise AuthenticationError(
                f"Invalid SASL/PLAIN response: expected {_TOKENS} tokens, got {len(tokens)}"
            )
        authorization_id, user, password = tokens
        if not user:
            raise AuthenticationError("Authentication failed: username not specified")
        if not password:
            raise AuthenticationError("Authentication failed: password not specified")
        if not self._fits(user, password):
            raise AuthenticationError("Authentication failed: Invalid username or password")
        if authorization_id and authorization_id != user:
            raise AuthenticationError(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.user = user
        self.complete = True
        return b""

    def _fits(self, user: str, password: str) -> bool:
        """Compare hashes, so that the time reveals neither the length of a password nor whether a user exists."""
        fits = hmac.compare_digest(_digest(password), _digest(self._users.get(user, "")))
        return fits and user in self._users


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode(errors="surrogatepass")).digest()

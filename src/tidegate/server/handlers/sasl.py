"""SaslHandshake (key 17), v0-1, and SaslAuthenticate (key 36), v0-2, of a connection that needs no login any more.

They are refused: a login is over, or there is none on this listener. Before it ends, a connection is not served by
handlers (`tidegate.server.authentication.authenticator`). KIP-43, KIP-152, KIP-368.
"""

import logging
from collections.abc import Container

from tidegate import error_codes
from tidegate.config.values import cut
from tidegate.server.repeated_lines import repeats
from tidegate.server.requests.handler import Answer, Request

__all__ = ["handle_sasl_authenticate", "handle_sasl_handshake"]

_log = logging.getLogger("tidegate.server")


def handle_sasl_handshake(with_sasl: Container[str], request: Request) -> Answer:
    """Refuse SaslHandshake, and log why. with_sasl: the names of listeners with logins."""
    mechanism = request.body()["mechanism"]
    connection = request.connection
    if connection.listener not in with_sasl:
        _log.warning(
            "refused SASL handshake (%r) of connection %d from %s: listener %s does not use SASL; hint: set the "
            "client's security.protocol to PLAINTEXT (SSL if it uses TLS), or connect to a listener with SASL",
            cut(mechanism),
            connection.id,
            connection.client_host,
            connection.listener,
            extra=repeats("no SASL", connection.client_host),
        )
    return request.answer({"error_code": error_codes.ILLEGAL_SASL_STATE, "mechanisms": []})


def handle_sasl_authenticate(request: Request) -> Answer:
    """Refuse SaslAuthenticate."""
    request.body()
    return request.answer(
        {
            "error_code": error_codes.ILLEGAL_SASL_STATE,
            "error_message": "SaslAuthenticate request received after successful authentication",
            "auth_bytes": b"",
            "session_lifetime_ms": 0,
        }
    )

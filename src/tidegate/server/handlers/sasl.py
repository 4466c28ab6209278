"""SaslHandshake (key 17), v0-1, and SaslAuthenticate (key 36), v0-2, of a connection that needs no login any more.

They are refused: a login is over, or there is none on this listener. Before it ends, a connection is not served by
handlers (`tidegate.server.authentication.authenticator`). KIP-43, KIP-152, KIP-368.
"""

from tidegate import error_codes
from tidegate.server.requests.handler import Answer, Handler, Request

__all__ = ["sasl_authenticate_handler", "sasl_handshake_handler"]


def sasl_handshake_handler() -> Handler:
    """Return the handler that refuses SaslHandshake."""

    def handle(request: Request) -> Answer:
        request.body()
        return request.answer({"error_code": error_codes.ILLEGAL_SASL_STATE, "mechanisms": []})

    return handle


def sasl_authenticate_handler() -> Handler:
    """Return the handler that refuses SaslAuthenticate."""

    def handle(request: Request) -> Answer:
        request.body()
        return request.answer(
            {
                "error_code": error_codes.ILLEGAL_SASL_STATE,
                "error_message": "SaslAuthenticate request received after successful authentication",
                "auth_bytes": b"",
                "session_lifetime_ms": 0,
            }
        )

    return handle

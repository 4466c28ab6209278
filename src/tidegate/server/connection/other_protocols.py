"""Detection, by the first bytes of a client, of a protocol that is not the listener's."""

from tidegate.wire.encoded import LENGTH_BYTES

__all__ = ["HTTP_HINT", "HTTP_METHODS", "NO_TLS_HINT", "not_a_length", "other_protocol"]

HTTP_METHODS = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"CONN", b"OPTI", b"TRAC", b"PATC", b"PRI ")
HTTP_HINT = (
    "looks like an HTTP request; hint: connect with a Kafka client, not with a browser or an HTTP probe"
)
NO_TLS_HINT = (
    "looks like a Kafka client without TLS; hint: set the client's security.protocol to SSL or SASL_SSL"
)
_RECORD_TYPES = range(20, 25)


def not_a_length(size: int) -> str:
    """Return an explanation if the first four bytes of a connection are another protocol's; else an empty text."""
    first = size.to_bytes(LENGTH_BYTES, "big", signed=True)
    if first[:2] == b"\x16\x03":
        return (
            ": looks like a TLS handshake, but the listener does not use TLS; "
            "hint: change the client's security.protocol from SSL to PLAINTEXT"
        )
    if first in HTTP_METHODS:
        return f": {HTTP_HINT}"
    return ""


def other_protocol(first: bytes) -> str:
    """Return an explanation if the first bytes of a TLS connection are another protocol's; else an empty text."""
    if not first or first[0] in _RECORD_TYPES:
        return ""
    if first[:4] in HTTP_METHODS:
        return HTTP_HINT
    if first[0] == 0:
        return NO_TLS_HINT
    return "client sent data that is not TLS"

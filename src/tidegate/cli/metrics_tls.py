"""Meaning of the TLS failures of a client of the metrics listener, and what to do about them."""

import ssl

__all__ = ["tls_problem"]

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

"""Cipher suites: Java's names, which are IANA's, and OpenSSL's.

>>> chosen = cipher_suites(("TLS_AES_256_GCM_SHA384", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"))
>>> chosen.older, chosen.of_tls_1_3
('ECDHE-RSA-AES128-GCM-SHA256', frozenset({'TLS_AES_256_GCM_SHA384'}))

Suites of TLS 1.3 have one name in both. Follows: JDK 17's supported suites, RFC 8446, openssl-ciphers(1).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidegate.errors import ConfigError

__all__ = ["TLS_1_3_SUITES", "CipherSuites", "cipher_suites"]

TLS_1_3_SUITES = frozenset(
    ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
)
_KEY_EXCHANGES = {"ECDHE_ECDSA": "ECDHE-ECDSA-", "ECDHE_RSA": "ECDHE-RSA-", "RSA": ""}
_CIPHERS = {
    "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
    "AES_256_CBC_SHA384": "AES256-SHA384",
    "AES_256_CBC_SHA256": "AES256-SHA256",
    "AES_128_CBC_SHA256": "AES128-SHA256",
    "AES_256_CBC_SHA": "AES256-SHA",
    "AES_128_CBC_SHA": "AES128-SHA",
}
_OF_NO_KEY = ("TLS_DHE_DSS_WITH_", "TLS_DHE_RSA_WITH_")
"""Suites of Java's that are known and never chosen here: no key is of DSA, and Python gives DHE no group."""
_NO_SUITE = "TLS_EMPTY_RENEGOTIATION_INFO_SCSV"


_NOT_ASSIGNED = frozenset(
    (
        "TLS_RSA_WITH_CHACHA20_POLY1305_SHA256",
        "TLS_RSA_WITH_AES_256_CBC_SHA384",
        "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA256",
    )
)
"""Pairs of key exchange and cipher that IANA has no number for."""
_SUITES: Mapping[str, str] = {
    f"TLS_{java}_WITH_{cipher}": openssl + written
    for java, openssl in _KEY_EXCHANGES.items()
    for cipher, written in _CIPHERS.items()
    if f"TLS_{java}_WITH_{cipher}" not in _NOT_ASSIGNED
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CipherSuites:
    """Suites that are chosen: OpenSSL's list of those before TLS 1.3, empty for none, and those of TLS 1.3."""

    older: str
    of_tls_1_3: frozenset[str]


def cipher_suites(names: Iterable[str]) -> CipherSuites:
    """Return the suites of these names of Java's, in their order. Raises `ConfigError` for one that is not known."""
    older: list[str] = []
    newer: set[str] = set()
    for name in names:
        if name in TLS_1_3_SUITES:
            newer.add(name)
        elif name in _SUITES:
            older.append(_SUITES[name])
        elif not name.startswith(_OF_NO_KEY) and name != _NO_SUITE:
            raise ConfigError(
                f"has {name!r}, expected a name such as TLS_AES_256_GCM_SHA384 or TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"
            )
    return CipherSuites(older=":".join(older), of_tls_1_3=frozenset(newer))

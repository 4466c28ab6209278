"""Cipher suites: Java's names and OpenSSL's are of the same numbers."""

import ssl

from tidegate.server.listening.cipher_suites import TLS_1_3_SUITES, cipher_suites

JAVA = {
    0xC02C: "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", 0xC02B: "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    0xCCA9: "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", 0xC030: "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    0xCCA8: "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", 0xC02F: "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    0xC024: "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384", 0xC028: "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384",
    0xC023: "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256", 0xC027: "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    0xC00A: "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA", 0xC014: "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    0xC009: "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA", 0xC013: "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    0x009D: "TLS_RSA_WITH_AES_256_GCM_SHA384", 0x009C: "TLS_RSA_WITH_AES_128_GCM_SHA256",
    0x003D: "TLS_RSA_WITH_AES_256_CBC_SHA256", 0x003C: "TLS_RSA_WITH_AES_128_CBC_SHA256",
    0x0035: "TLS_RSA_WITH_AES_256_CBC_SHA", 0x002F: "TLS_RSA_WITH_AES_128_CBC_SHA",
}  # fmt: skip
"""The suites that JDK 17 supports, by number, as its own `CipherSuite` says; but for DHE."""
NEVER_CHOSEN = ["TLS_DHE_RSA_WITH_AES_256_GCM_SHA384", "TLS_DHE_DSS_WITH_AES_128_CBC_SHA"]


def test_all_suites_of_java_are_known() -> None:
    """Each name stands for one of OpenSSL's suites, which has the number that the name has."""
    for number, name in JAVA.items():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_ciphers(cipher_suites([name]).older)
        numbers = [
            each["id"] & 0xFFFF for each in context.get_ciphers() if each["name"] not in TLS_1_3_SUITES
        ]
        assert numbers == [number], name


def test_suites_without_a_key_are_left_out() -> None:
    """They are Java's, and no client could be given one."""
    chosen = cipher_suites([*NEVER_CHOSEN, *JAVA.values(), *TLS_1_3_SUITES])
    assert chosen.older.count(":") == len(JAVA) - 1
    assert chosen.of_tls_1_3 == TLS_1_3_SUITES

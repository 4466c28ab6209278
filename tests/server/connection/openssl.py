"""A TLS client made of OpenSSL itself, which does what Python's `ssl` does not let one do: new keys, renegotiation."""

import ctypes
import ssl
from pathlib import Path

__all__ = ["OpenSslClient"]

_MORE_BYTES = 1 << 16
_NEW_KEYS_REQUESTED = 1  # SSL_KEY_UPDATE_REQUESTED
_ERROR_SSL = 1


def _library() -> ctypes.CDLL:
    """Return the library that this process's `ssl` uses."""
    assert ssl.OPENSSL_VERSION
    maps = Path("/proc/self/maps").read_text()
    (path,) = {line.split()[-1] for line in maps.splitlines() if "/libssl" in line}
    library = ctypes.CDLL(path)
    for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new", "BIO_new", "BIO_s_mem"):
        getattr(library, name).restype = ctypes.c_void_p
    return library


class OpenSslClient:
    """The client's end of a connection in memory; it takes any certificate."""

    def __init__(self, *, version: ssl.TLSVersion) -> None:
        self._lib = lib = _library()
        pointer = ctypes.c_void_p
        self._context = pointer(lib.SSL_CTX_new(pointer(lib.TLS_client_method())))
        self._tls = pointer(lib.SSL_new(self._context))
        self._incoming = pointer(lib.BIO_new(pointer(lib.BIO_s_mem())))
        self._outgoing = pointer(lib.BIO_new(pointer(lib.BIO_s_mem())))
        lib.SSL_set_bio(self._tls, self._incoming, self._outgoing)
        set_most = 124  # SSL_CTRL_SET_MAX_PROTO_VERSION
        lib.SSL_ctrl(self._tls, set_most, ctypes.c_long(version.value), None)
        lib.SSL_set_connect_state(self._tls)

    def close(self) -> None:
        """Let go of the memory."""
        self._lib.SSL_free(self._tls)
        self._lib.SSL_CTX_free(self._context)

    @property
    def out(self) -> bytes:
        """Take what is to be sent."""
        buffer = ctypes.create_string_buffer(_MORE_BYTES)
        count = self._lib.BIO_read(self._outgoing, buffer, _MORE_BYTES)
        return buffer.raw[: max(count, 0)]

    def receive(self, data: bytes = b"") -> bool:
        """Go on with what the server has sent; return whether the handshake is over. Raises `ssl.SSLError`."""
        if data:
            self._lib.BIO_write(self._incoming, data, len(data))
        result = self._lib.SSL_do_handshake(self._tls)
        if result != 1 and self._lib.SSL_get_error(self._tls, result) == _ERROR_SSL:
            raise ssl.SSLError("the handshake failed")
        return bool(result == 1)

    def read(self, data: bytes) -> tuple[bytes, bool]:
        """Return what the server has sent, and whether TLS goes on."""
        self._lib.BIO_write(self._incoming, data, len(data))
        buffer = ctypes.create_string_buffer(_MORE_BYTES)
        count = self._lib.SSL_read(self._tls, buffer, _MORE_BYTES)
        failed = count <= 0 and self._lib.SSL_get_error(self._tls, count) == _ERROR_SSL
        return buffer.raw[: max(count, 0)], not failed

    def encrypt(self, data: bytes) -> bytes:
        """Return what is to be sent for `data`."""
        assert self._lib.SSL_write(self._tls, data, len(data)) == len(data)
        return self.out

    def new_keys(self) -> bytes:
        """Return what changes the keys of this end and asks the other for as much."""
        assert self._lib.SSL_key_update(self._tls, _NEW_KEYS_REQUESTED) == 1
        assert self._lib.SSL_do_handshake(self._tls) == 1
        return self.out

    def renegotiation(self) -> bytes:
        """Return what asks for another handshake."""
        assert self._lib.SSL_renegotiate(self._tls) == 1
        self._lib.SSL_do_handshake(self._tls)
        return self.out

"""What Python's `ssl` does not give of OpenSSL: reads that come back, suites in another order, no detours.

By default a read goes on until there is data. A peer that sends KeyUpdates and nothing else (RFC 8446, 4.6.3: 27 bytes,
and 10 µs of work each) then keeps the read, and with it the event loop, for as long as it likes: 20 Mbit/s of anybody's
are enough. The mode that says so, SSL_MODE_AUTO_RETRY, is one that Python's `ssl` sets and has no way to clear.

AES-128 takes ten rounds where AES-256 takes fourteen, and is as strong as the curves that the keys here are of (P-256,
secp256k1). Both ends prefer it; whoever does not offer it gets another suite of TLS 1.3.
"""

from __future__ import annotations

import _ssl
import ctypes
import logging
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl

_KNOWN = ((3, 11), (3, 12), (3, 13))
"""Versions of CPython in which an `_SSLSocket` begins with a reference to the socket, then OpenSSL's `SSL *`."""
_CLEAR_MODE, _AUTO_RETRY = 78, 4  # openssl/ssl.h
_SUITES = b"TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"

_log = logging.getLogger("nodewire.wire")


def prepare(tls: ssl.SSLSocket) -> bool:
    """Set OpenSSL's reads and order of ciphers, before the handshake.

    Reads of a socket that does not block raise SSLWantReadError when a record held no data. AES-128 comes before
    AES-256.

    False where that cannot be done: then nothing has changed.
    """
    library = _library()
    inner = getattr(tls, "_sslobj", None)
    if library is None or inner is None:
        return False
    place = id(inner) + object.__basicsize__ + ctypes.sizeof(ctypes.c_void_p)
    found = ctypes.c_void_p.from_address(place)
    if library.SSL_get_fd(found) != tls.fileno():
        return False
    library.SSL_ctrl(found, _CLEAR_MODE, _AUTO_RETRY, None)
    library.SSL_set_ciphersuites(found, _SUITES)  # all or nothing
    return True


def bare(tls: ssl.SSLSocket) -> Any:
    """What has `read`, `write` and `pending` of a socket without the checks that Python's `ssl` makes around them.

    Its `read` raises ssl.SSLEOFError where a peer has closed without a goodbye.
    """
    return getattr(tls, "_sslobj", None) or tls


@cache
def _library() -> ctypes.CDLL | None:
    """The OpenSSL that Python's `ssl` uses."""
    if sys.implementation.name == "cpython" and sys.version_info[:2] in _KNOWN:
        try:
            library = ctypes.CDLL(getattr(_ssl, "__file__", None))
            library.SSL_get_fd.argtypes = [ctypes.c_void_p]
            library.SSL_set_ciphersuites.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
            library.SSL_ctrl.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_void_p]
            library.SSL_ctrl.restype = ctypes.c_long
            return library
        except (OSError, AttributeError) as error:
            _log.warning("OpenSSL cannot be spoken to: %s", error)
    _log.warning("a peer's KeyUpdates can hold this process up: not a Python whose `ssl` is known")
    return None

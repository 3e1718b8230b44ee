"""Pure: translates Java's names of cipher suites (`ssl.cipher.suites`) to OpenSSL's."""

from __future__ import annotations

import re
from collections.abc import Sequence

# OpenSSL enables all suites of TLS 1.3, and Python's ssl cannot select among them.
SUITES_OF_TLS_1_3 = frozenset(
    {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
)
_JAVA = re.compile(
    r"(?:TLS|SSL)_(?P<exchange>[A-Z0-9_]+)_WITH_(?P<cipher>[A-Z0-9_]+)_(?P<hash>[A-Z0-9]+)"
)
_CIPHERS = {
    "CHACHA20_POLY1305": "CHACHA20-POLY1305",
    "AES_128_GCM": "AES128-GCM",
    "AES_256_GCM": "AES256-GCM",
    "AES_128_CBC": "AES128",
    "AES_256_CBC": "AES256",
    "AES_128_CCM": "AES128-CCM",
    "AES_256_CCM": "AES256-CCM",
}


def openssl_name(suite: str) -> str:
    """OpenSSL's name of a TLS 1.2 suite; a name that is not Java's is returned unchanged."""
    match = _JAVA.fullmatch(suite)
    if match is None or match["cipher"] not in _CIPHERS:
        return suite
    parts = [] if match["exchange"] == "RSA" else [match["exchange"].replace("_", "-")]
    parts.append(_CIPHERS[match["cipher"]])
    if match["cipher"] != "CHACHA20_POLY1305":
        parts.append(match["hash"])
    return "-".join(parts)


def split(suites: Sequence[str]) -> tuple[list[str], list[str]]:
    """The suites of TLS 1.3, and OpenSSL's names of the others."""
    newest = [suite for suite in suites if suite in SUITES_OF_TLS_1_3]
    return newest, [openssl_name(suite) for suite in suites if suite not in SUITES_OF_TLS_1_3]

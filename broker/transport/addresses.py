"""Pure: the canonical text of an address.

An address has several spellings; ACL hosts, limits and quotas need one. An IPv4 client of an IPv6 socket is
`::ffff:10.0.0.1` there; as in Java it is 10.0.0.1. Java writes 0:0:0:0:0:0:0:1, Python ::1.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address


def one_text(written: str) -> str:
    """The canonical text of an address; anything else is returned as it is."""
    try:
        address = ip_address(written)
    except ValueError:
        return written
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(address if mapped is None else mapped)

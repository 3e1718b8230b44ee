"""Pure: the addresses of clients as texts, one text for each.

An address can be written in many ways, and what is said of it (an ACL's host, a limit, a quota) is said in one of them.
A client that comes by IPv4 to a socket of IPv6 is `::ffff:10.0.0.1` there; as in Java it is 10.0.0.1. Java writes
0:0:0:0:0:0:0:1, Python ::1.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address


def one_text(written: str) -> str:
    """The text that stands for this address, however it was written; what is no address is returned as it is."""
    try:
        address = ip_address(written)
    except ValueError:
        return written
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(address if mapped is None else mapped)

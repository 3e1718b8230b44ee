"""Shell: the sockets between Spark and its Python workers: nothing on them waits for an acknowledgement.

Rules of this file:
- PySpark (4.0 to 4.2) leaves Nagle's algorithm on (RFC 896): the end of an answer that fills no packet waits until the
  JVM has acknowledged what went before, and the JVM's system puts that off for up to 40 ms (delayed acknowledgements,
  RFC 1122, 4.2.3.2). That is more than most small tasks take, and in a stream each micro-batch asks several times.
- So does the JVM: a task's worker gets its function first, and what it shall read in a packet of its own, which waits
  until the worker's system has acknowledged the function. Only the receiver can end that wait (`acknowledge`), and only
  while the function is unpickled does code of ours run at that moment: readers and writers do it in ``__setstate__``.
- A worker has no name for its socket, so it is done to every TCP connection of the process with its own machine.
  Connections of ours to brokers are so already; for whatever else it is no change but of the delay.
"""

from __future__ import annotations

import os
import socket
import stat
from functools import lru_cache
from ipaddress import ip_address

# The open files of this process, on Linux and macOS.
_DESCRIPTORS = "/dev/fd"
# Linux has it.
_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)


@lru_cache(maxsize=1)
def answer_at_once() -> None:
    """Have this process's answers to Spark sent without delay."""
    set_without_delay()


def set_without_delay() -> int:
    """Turn off Nagle's algorithm for connections with this machine; returns for how many."""
    return _each_is_set(socket.TCP_NODELAY)


def acknowledge() -> int:
    """Acknowledge what has come so far on connections with this machine; returns on how many (0 except on Linux).

    Linux's TCP_QUICKACK (tcp(7)) sends an acknowledgement that is put off at once. It does not last: each call is for
    what came before it.
    """
    return 0 if _QUICKACK is None else _each_is_set(_QUICKACK)


def _each_is_set(option: int) -> int:
    try:
        names = os.listdir(_DESCRIPTORS)
    except OSError:
        return 0
    return sum(_set(int(name), option) for name in names if name.isdigit())


def _set(descriptor: int, option: int) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
        found = socket.socket(fileno=descriptor)
    except OSError:
        # Closed meanwhile: that of the listing itself is.
        return False
    try:
        if found.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        if not ip_address(found.getpeername()[0]).is_loopback:
            return False
        found.setsockopt(socket.IPPROTO_TCP, option, 1)
    except (OSError, ValueError):
        # It is not connected, or no TCP.
        return False
    finally:
        # It belongs to somebody else.
        found.detach()
    return True

"""Shell: which hosts had an address in this process.

Rules of this file: a name that had an address is no mistake. If no name server knows it later, that passes: in
Kubernetes the name of a headless service is unknown for some seconds while its pods are rolled. A sink has a new client
for each task and commit, so what a client has seen is not enough. What is remembered stays true in a forked child.
"""

from __future__ import annotations

from typing import Final

REMEMBERED_MAX: Final = 1024

# Single operations on a set need no lock, and so none is held while a process forks.
_HAD_ADDRESS: set[str] = set()


def has_address(host: str) -> None:
    """Remember that the name has an address. If there are too many names, others are forgotten."""
    if host not in _HAD_ADDRESS and len(_HAD_ADDRESS) >= REMEMBERED_MAX:
        _HAD_ADDRESS.clear()
    _HAD_ADDRESS.add(host)


def had_address(host: str) -> bool:
    """Whether the name had an address since the process began, as far as is remembered."""
    return host in _HAD_ADDRESS

"""Shell: the cache folder for compiled code.

The code in it is executed, so a folder that other users may write to is not used. It is in the user's cache, or else
in the temporary folder.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

__all__ = ["NUMBA", "cache_folder", "private_folders"]

NUMBA = "numba"


@contextlib.contextmanager
def cache_folder(kind: str = NUMBA) -> Iterator[str | None]:
    """The folder, locked; None if there is none. Other processes wait, and then load what this one compiles."""
    for folder in private_folders(kind):
        with contextlib.ExitStack() as stack:
            try:
                lock = stack.enter_context(open(os.path.join(folder, "lock"), "wb"))
                _wait_for(lock.fileno())
            except OSError:
                continue
            yield folder
            return
    yield None


def private_folders(kind: str = NUMBA) -> Iterator[str]:
    """The folders that no other user may write to or replace, created if necessary; the preferred one first."""
    return filter(_is_private, _candidates(kind))


def _wait_for(descriptor: int) -> None:
    with contextlib.suppress(
        ImportError
    ):  # Without fcntl (Windows) several processes may compile at once.
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _candidates(kind: str) -> Iterator[str]:
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.path.isabs(user):
        yield os.path.join(user, "kafka-ds", kind)
    uid = os.geteuid() if hasattr(os, "geteuid") else 0
    yield os.path.join(tempfile.gettempdir(), f"kafka-ds-{uid}", kind)


def _is_private(folder: str) -> bool:
    """Create the folder if necessary; whether no other user may write to it or replace it."""
    try:
        os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        for path in (os.path.dirname(folder), folder):
            status = os.lstat(path)
            if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
                return False
            if status.st_mode & 0o022:
                return False
    except OSError:
        return False
    return True

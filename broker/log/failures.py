"""Pure: what is wrong with a log directory, or a log in it, and which errors of a system call say so.

Rules of this file:
- As in Kafka one error is enough (KIP-112): what a disk that lies will do next is anybody's guess.
- Unlike in Kafka a full disk is none: what is refused leaves no trace, and room may be made while the broker runs.
  Neither is what the process itself has run out of, nor a file that was closed under a reader.
- A file that is not there is one only where its folder is gone as well: a reader may come too late for a segment.
"""

from __future__ import annotations

import errno


class LogDirectoryError(OSError):
    """A log directory that this broker must not use; the message names it."""


class DamagedLogError(LogDirectoryError):
    """One log of a directory that must not be used, nor cut; the message names file and place."""


_OF_NO_DISK = frozenset(
    {
        None,  # An error of our own making: a short write, which is a full disk.
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.EAGAIN,
        errno.EINTR,
        errno.EBADF,
    }
)


def is_failure(error: OSError, *, folder_is_there: bool) -> bool:
    """Whether the directory in whose folder this has happened is not to be trusted any more."""
    if error.errno == errno.ENOENT and folder_is_there:
        return False
    return error.errno not in _OF_NO_DISK

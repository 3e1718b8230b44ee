"""Pure: errors of log directories and logs, and which errors of a system call mean that a directory failed.

- As in Kafka one error is enough (KIP-112): what a failing disk does next is unpredictable.
- A full disk fails only if that moves a partition to another replica (`Lifecycle`): a refused write leaves no trace,
  and space may be freed while the broker runs.
- A shortage of the process itself is no failure, nor is a file that was closed under a reader.
- A missing file is a failure only if its folder is missing as well: a reader may come too late for a segment.
"""

from __future__ import annotations

import errno


class LogDirectoryError(OSError):
    """A log directory that this broker must not use; the message names it."""


class DamagedLogError(LogDirectoryError):
    """One log of a directory that must not be used, nor truncated; the message names file and place."""


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_OF_NO_DISK = _FULL | frozenset(
    {
        None,  # An error raised here.
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.EAGAIN,
        errno.EINTR,
        errno.EBADF,
    }
)


def is_failure(error: OSError, *, folder_is_there: bool) -> bool:
    """Whether the directory of this folder can no longer be trusted after this error."""
    if error.errno == errno.ENOENT and folder_is_there:
        return False
    return error.errno not in _OF_NO_DISK


def is_full(error: OSError) -> bool:
    """Whether the disk, or the quota of its user, had no room."""
    return error.errno in _FULL

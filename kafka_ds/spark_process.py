"""Shell: what a Python process of Spark needs beside its job: answers without delay, short collections, a quiet end.

PySpark (4.0 to 4.2) has no place for any of it, so a process does it to itself; each section says why. Nothing here
changes what a query reads or writes, and where a system does not know the means nothing happens.
"""

from __future__ import annotations

import gc
import os
import socket
import stat
import sys
import threading
import time
import traceback
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

# -- sockets ------------------------------------------------------------------------------------
#
# PySpark leaves Nagle's algorithm on (RFC 896): the end of an answer that fills no packet waits until the JVM has
# acknowledged what went before, and the JVM's system puts that off for up to 40 ms (RFC 1122, 4.2.3.2). That is more
# than most small tasks take. So does the JVM: a task's worker gets its function first, and what it shall read in a
# packet of its own, which waits until the worker's system has acknowledged the function. Only the receiver can end that
# wait (`acknowledge`), and only while the function is unpickled does code of ours run at that moment: readers and
# writers do it in ``__setstate__``. A worker has no name for its socket, so it is done to every TCP connection of the
# process with its own machine. Measured: a micro-batch of one partition takes 109 to 121 ms (p50), without
# `acknowledge` 155 to 204 ms.

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
        # It belongs to another library.
        found.detach()
    return True


# -- collections --------------------------------------------------------------------------------
#
# PySpark's daemon calls ``gc.collect()`` each time a process of its has served a task or a plan, and the next one waits
# for that. It walks the modules of Arrow, numba and pandas each time: 10 to 50 ms, more than most small tasks take.
# Measured with and without `settle`, CPU: a small query 210 and 445 ms, a scan of 600,000 rows 0.71 and 1.17 s.
# What lives when `settle` is called lives as long as the process.

# Objects that a collection may walk (a few milliseconds), and how often more than those are put aside: what is put
# aside and goes in a cycle later is never freed.
UNSETTLED_MAX: Final = 10_000
SETTLED_TIMES_MAX: Final = 4


class Settling:
    """How often a process has put aside what it holds."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        """Put aside what this process holds, if it is much; to be called where a job is over.

        The first jobs load most of it while they run.
        """
        if self.times < SETTLED_TIMES_MAX and len(gc.get_objects()) > UNSETTLED_MAX:
            self.times += 1
            gc.collect()
            gc.freeze()


settle: Final = Settling()


# -- a task whose consumer has enough -----------------------------------------------------------
#
# `show`, `take`, `isEmpty` and LIMIT stop in the midst of rows: Spark closes its connection, and what is still in the
# worker's buffer has nowhere to go. PySpark's daemon then prints a traceback on the terminal, though nothing is wrong.
# So this one traceback is left out, recognised by where it was raised; the worker ends as before.

_print: Final = traceback.print_exc
# Which function flushes what is left, in which file.
_FUNCTION: Final = "worker"
_FILE: Final = ("pyspark", "daemon.py")


def end_quietly() -> None:
    """Suppress this process's errors when Spark hangs up before it has all rows."""
    traceback.print_exc = _print_unless_left


def _print_unless_left(*arguments: Any, **named: Any) -> None:
    if not _was_left(sys.exc_info()[1]):
        _print(*arguments, **named)


def _was_left(problem: BaseException | None) -> bool:
    if not isinstance(problem, BrokenPipeError | ConnectionResetError):
        return False
    code = [frame.f_code for frame, _ in traceback.walk_tb(problem.__traceback__)][-1]
    return code.co_name == _FUNCTION and Path(code.co_filename).parts[-2:] == _FILE


# -- a driver that is gone ----------------------------------------------------------------------
#
# The process of a stream's source notices that its driver is gone when it reads the next question: minutes later, where
# brokers do not answer. So a thread looks whether the driver is still its
# parent. Other processes of Spark end with the daemon that forks them.

# What PySpark (4.0 to 4.2) runs as the main module of that process.
RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
LOOK_EVERY_S: Final = 1.0


@lru_cache(maxsize=1)
def end_with_driver() -> None:
    """If Spark runs a stream's source in this process, end the process as soon as its driver has ended."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == RUNNER:
        threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_EVERY_S)
    # No caller is left, and nothing has to be stored: positions are in Spark's checkpoint.
    os._exit(1)

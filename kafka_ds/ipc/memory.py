"""Shell: returns memory to the system: code that was only needed at start-up, and freed memory.

Code that ran once (LLVM: 70 MiB) stays resident. Clean pages of read-only file mappings can be dropped: if they are
needed again, they come from the page cache. Without /proc nothing is done. The C library keeps freed memory, some
50 MiB after files were merged. Once a minute it must return that if it is much; not more often, because each page that
is needed again costs time.
"""

import contextlib
import ctypes
import logging
import mmap
import re
import time
from collections.abc import Callable, Iterator
from typing import ClassVar, NamedTuple

log = logging.getLogger(__name__)

# Clean pages are dropped once so much more is resident than after the last time.
GROWTH_BYTES = 32 * 1024 * 1024
# How often that is checked: a check costs about as much as a read from the cache.
LOOK_SECONDS = 0.25
# How much freed memory the C library may keep, and how often that is checked.
FREE_BYTES = 24 * 1024 * 1024
FREE_SECONDS = 60.0
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \d+\s*(.*)")


class _Mapping(NamedTuple):
    start: int
    end: int
    permissions: str
    path: str
    resident_kib: int
    own_kib: int


class _Mallinfo2(ctypes.Structure):
    """The result of glibc's mallinfo2 (2.33 and later)."""

    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


class Trimmer:
    """Drops clean pages of files and returns freed memory. Not thread-safe."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """`now_s` is a clock that never goes back."""
        self._now_s = now_s
        self._kept_bytes = 0
        self._look_at_s = 0.0
        self._free_at_s = now_s() + FREE_SECONDS
        self._own_bytes = 0
        """The resident anonymous memory after freed memory was last returned."""

    def look(self) -> None:
        """Drop or return memory if that is due; may be called often."""
        now_s = self._now_s()
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + LOOK_SECONDS
        if now_s >= self._free_at_s:
            self._free_at_s = now_s + FREE_SECONDS
            with contextlib.suppress(OSError, AttributeError, ValueError):
                self._give_back_freed()
        with contextlib.suppress(OSError, AttributeError, ValueError):
            if resident_file_bytes() - self._kept_bytes >= GROWTH_BYTES:
                dropped = _drop_clean_pages()
                self._kept_bytes = resident_file_bytes()
                log.debug("released %d MiB of clean pages", dropped // 1024)

    def _give_back_freed(self) -> None:
        """Return freed memory. mallinfo2 also counts what was returned before, so resident memory must have grown."""
        before = resident_own_bytes()
        self._own_bytes = min(self._own_bytes, before)
        if before - self._own_bytes >= FREE_BYTES and freed_bytes() >= FREE_BYTES:
            trim()
            self._own_bytes = resident_own_bytes()
            log.debug(
                "returned %d MiB of freed memory to the system", (before - self._own_bytes) >> 20
            )


def freed_bytes() -> int:
    """Bytes of freed memory that the C library keeps; 0 if it does not report that."""
    with contextlib.suppress(AttributeError, OSError):
        mallinfo = ctypes.CDLL(None).mallinfo2
        mallinfo.restype = _Mallinfo2
        return int(mallinfo().fordblks)
    return 0


def trim() -> None:
    ctypes.CDLL(None).malloc_trim(0)


def resident_file_bytes() -> int:
    """The resident bytes of file mappings."""
    return _status_bytes("RssFile:")


def resident_own_bytes() -> int:
    """The resident bytes of anonymous memory."""
    return _status_bytes("RssAnon:")


def _status_bytes(name: str) -> int:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0


def _drop_clean_pages() -> int:
    """Drop the clean pages of read-only file mappings; returns how many KiB."""
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    dropped = 0
    with open("/proc/self/smaps") as smaps:
        mappings = list(_mappings(smaps.read()))
    for each in mappings:
        is_file = each.path.startswith("/") and "(deleted)" not in each.path
        is_clean = each.permissions in ("r-xp", "r--p") and each.own_kib == 0
        if is_file and is_clean:
            failed = madvise(each.start, each.end - each.start, mmap.MADV_DONTNEED)
            dropped += 0 if failed else each.resident_kib
    return dropped


def _mappings(smaps: str) -> Iterator[_Mapping]:
    """The mappings in /proc/self/smaps."""
    heading: re.Match[str] | None = None
    sizes: dict[str, int] = {}
    for line in (*smaps.splitlines(), "0-0 ---p 0 0:0 0 "):
        match = _MAPPING.fullmatch(line.rstrip("\n"))
        if match is None:
            name, _, rest = line.partition(":")
            if rest.endswith(" kB"):
                sizes[name] = int(rest.split()[0])
            continue
        if heading is not None:
            yield _Mapping(
                start=int(heading[1], 16),
                end=int(heading[2], 16),
                permissions=heading[3],
                path=heading[4],
                resident_kib=sizes.get("Rss", 0),
                # Without these lines a mapping counts as private.
                own_kib=sizes.get("Anonymous", 1) + sizes.get("Private_Dirty", 1),
            )
        heading, sizes = match, {}

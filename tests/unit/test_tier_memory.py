"""What a worker has freed goes back to the system, below what is in use, too; not at once, and not if it is little."""

import ctypes
from pathlib import Path

import pytest

from broker.workers.memory import FREE_BYTES, FREE_SECONDS, Trimmer, freed_bytes

MIB = 1 << 20
# Below what the C library maps by itself, and gives back by itself.
BLOCK_BYTES = 100 * 1024
LIBRARY = ctypes.CDLL(None)
LIBRARY.malloc.restype = ctypes.c_void_p
LIBRARY.free.argtypes = [ctypes.c_void_p]


def resident_bytes() -> int:
    (line,) = (
        each
        for each in Path("/proc/self/status").read_text().splitlines()
        if each.startswith("RssAnon:")
    )
    return int(line.split()[1]) * 1024


def filled(count: int) -> list[int]:
    blocks = [LIBRARY.malloc(BLOCK_BYTES) for _ in range(count)]
    for each in blocks:
        ctypes.memset(each, 1, BLOCK_BYTES)
    return blocks


@pytest.mark.skipif(not hasattr(LIBRARY, "mallinfo2"), reason="glibc tells it, and no other")
def test_what_was_freed_below_something_in_use_goes_back_once_a_minute() -> None:
    now_s = 0.0
    trimmer = Trimmer(lambda: now_s)
    *blocks, last = filled(4 * FREE_BYTES // BLOCK_BYTES)
    try:
        for each in blocks:
            LIBRARY.free(each)
        full, freed = resident_bytes(), freed_bytes()
        assert freed >= 3 * FREE_BYTES
        trimmer.look()
        assert resident_bytes() > full - MIB
        now_s = FREE_SECONDS
        trimmer.look()
        assert resident_bytes() < full - 3 * FREE_BYTES
    finally:
        LIBRARY.free(last)

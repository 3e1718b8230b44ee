"""Memory that a worker has freed goes back to the system, even below blocks in use: after a while, if it is enough."""

import ctypes

import pytest

from kafka_ds.ipc import memory
from kafka_ds.ipc.memory import (
    FREE_BYTES,
    FREE_SECONDS,
    Trimmer,
    freed_bytes,
    resident_own_bytes,
)

MIB = 1 << 20
# Below what the C library maps by itself, and gives back by itself.
BLOCK_BYTES = 100 * 1024
LIBRARY = ctypes.CDLL(None)
LIBRARY.malloc.restype = ctypes.c_void_p
LIBRARY.free.argtypes = [ctypes.c_void_p]


def filled(count: int) -> list[int]:
    blocks = [LIBRARY.malloc(BLOCK_BYTES) for _ in range(count)]
    for each in blocks:
        ctypes.memset(each, 1, BLOCK_BYTES)
    return blocks


@pytest.mark.skipif(not hasattr(LIBRARY, "mallinfo2"), reason="glibc tells it, and no other")
def test_what_was_freed_below_something_in_use_goes_back_once_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    trimmer = Trimmer(lambda: now_s)
    *blocks, last = filled(4 * FREE_BYTES // BLOCK_BYTES)
    try:
        for each in blocks:
            LIBRARY.free(each)
        full, freed = resident_own_bytes(), freed_bytes()
        assert freed >= 3 * FREE_BYTES
        trimmer.look()
        assert resident_own_bytes() > full - MIB
        now_s = FREE_SECONDS
        trimmer.look()
        assert resident_own_bytes() < full - 3 * FREE_BYTES
        # Nobody has it, and it is counted on: to give it back again would be work for nothing.
        assert freed_bytes() >= 3 * FREE_BYTES
        trims: list[int] = []
        monkeypatch.setattr(memory, "trim", lambda: trims.append(0))
        now_s = 2 * FREE_SECONDS
        trimmer.look()
        assert trims == []
        *blocks, last_too = filled(2 * FREE_BYTES // BLOCK_BYTES)
        now_s = 3 * FREE_SECONDS
        trimmer.look()
        assert trims == [0]
        for each in (*blocks, last_too):
            LIBRARY.free(each)
    finally:
        LIBRARY.free(last)

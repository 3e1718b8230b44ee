"""Pure: CRC-32C (Castagnoli), the checksum of a record batch.

The processor's instruction is 30 times faster than crcmod's C code and 1,500 times faster than Python, so it is
preferred. crcmod is used on machines without it, and by tests as the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from kafka_ds.process.buffers import Buffer

__all__ = ["crc32c", "portable_crc32c"]


# google_crc32c takes only `bytes`: a longer view is copied in pieces that fit into the processor's cache.
_PIECE_BYTES = 1 << 20


def _hardware() -> Callable[[int, bytes], int] | None:
    try:
        import google_crc32c
    except ImportError:
        return None
    if google_crc32c.implementation != "c":
        return None
    return cast("Callable[[int, bytes], int]", google_crc32c.extend)


def _portable() -> Callable[[Buffer], int]:
    import crcmod.predefined

    return cast("Callable[[Buffer], int]", crcmod.predefined.mkPredefinedCrcFun("crc-32c"))


extend = _hardware()
_table: Callable[[Buffer], int] | None = None


def portable_crc32c(buffer: Buffer) -> int:
    """CRC-32C without special instructions; slower, the same everywhere."""
    global _table
    if _table is None:
        _table = _portable()
    return _table(memoryview(buffer).cast("B"))


def crc32c(buffer: Buffer) -> int:
    """CRC-32C of all bytes of the buffer, as an unsigned number."""
    if extend is None:
        return portable_crc32c(buffer)
    if isinstance(buffer, bytes):
        return extend(0, buffer)
    view = memoryview(buffer)
    if view.nbytes <= _PIECE_BYTES:
        return extend(0, view.tobytes())
    view = view.cast("B")
    crc = 0
    for start in range(0, len(view), _PIECE_BYTES):
        crc = extend(crc, bytes(view[start : start + _PIECE_BYTES]))
    return crc

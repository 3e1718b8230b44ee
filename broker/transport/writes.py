"""Shell: writes the parts of a response, buffers and ranges of files, to a connection's transport.

TLS takes buffers alone, and reports back-pressure only after a whole write, so large ones are written in pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

# Up to this size one copy is cheaper than writing many parts.
JOINED_BYTES_MAX = 16 << 10
TLS_PIECE_BYTES_MAX = 256 << 10


def write(
    transport: asyncio.Transport, parts: Sequence[Any], size_bytes: int, *, by_tls: bool
) -> None:
    """Write parts of `size_bytes` altogether."""
    if size_bytes <= JOINED_BYTES_MAX:
        transport.write(parts[0] if len(parts) == 1 else b"".join(parts))
    elif by_tls:
        for part in parts:
            view = memoryview(part)
            for start in range(0, len(view), TLS_PIECE_BYTES_MAX):
                transport.write(view[start : start + TLS_PIECE_BYTES_MAX])
    else:
        transport.writelines(parts)

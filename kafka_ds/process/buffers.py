"""Pure: bytes, whoever owns them."""

from __future__ import annotations

Buffer = bytes | bytearray | memoryview

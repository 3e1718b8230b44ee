"""What several tests use: with_header."""

from __future__ import annotations

import struct

from kafka_ds.records.batch import (
    HEADER,
    read_header,
)
from kafka_ds.records.crc import crc32c


def with_header(data: bytes | bytearray, **changes: int) -> bytes:
    """A batch with a header that lies, its checksum made right again."""
    header = read_header(data)._replace(**changes)
    changed = bytearray(HEADER.pack(*header) + data[HEADER.size :])
    struct.pack_into(">I", changed, 17, crc32c(memoryview(changed)[21:]))
    return bytes(changed)

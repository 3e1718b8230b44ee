"""Pure: messages with a prefix of two bytes, their version or type.

Kafka uses this for records of coordinators, the consumer protocol, and principals of forwarded requests.
"""

from __future__ import annotations

import struct
from typing import Any

from kafka_ds.process.buffers import Buffer
from kafka_ds.protocol.codec import write_parts
from kafka_ds.protocol.errors import MalformedFrame

_NUMBER = struct.Struct(">h")
NUMBER_BYTES = _NUMBER.size


def encode_numbered(body: Any, version: int, number: int | None = None) -> bytes:
    """The message with a prefix: `number`, or by default the version."""
    head = bytearray(_NUMBER.pack(version if number is None else number))
    return b"".join(write_parts(body, version, head))


def read_number(data: Buffer, what: str) -> int:
    """The prefix; the message begins at `NUMBER_BYTES`. Raises MalformedFrame if ``what`` is truncated."""
    if len(data) < NUMBER_BYTES:
        raise MalformedFrame(f"{what} is truncated")
    number: int = _NUMBER.unpack_from(data)[0]
    return number

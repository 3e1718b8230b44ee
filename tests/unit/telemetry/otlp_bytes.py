"""Metrics as clients write them, by hand: Protobuf's bytes without its library."""

from __future__ import annotations

import struct
from collections.abc import Mapping


def field(number: int, content: bytes | str) -> bytes:
    """A field with a length."""
    data = content.encode() if isinstance(content, str) else content
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def metrics_data(*metrics: bytes, **of_client: str) -> bytes:
    """The metrics of one client."""
    scope = field(2, b"".join(field(2, metric) for metric in metrics))
    return field(1, field(1, _attributes(1, of_client)) + scope)


def metric(
    name: str, value: float, *, kind: int = 5, monotonic: bool = False, **attributes: str
) -> bytes:
    """A metric with one point; `kind` 5 is a gauge, 7 a sum, 9 a histogram."""
    coded = (
        b"\x31" + struct.pack("<q", value)
        if isinstance(value, int)
        else b"\x21" + struct.pack("<d", value)
    )
    point = b"\x19" + struct.pack("<Q", 1_700_000_000_123_456_789) + coded
    point += _attributes(7, attributes)
    data = field(1, point) + (b"\x18\x01" if monotonic else b"")
    return field(1, name) + field(2, "what a description says") + field(kind, data)


def _attributes(number: int, values: Mapping[str, str]) -> bytes:
    return b"".join(
        field(number, field(1, name) + field(2, field(1, text))) for name, text in values.items()
    )


def _varint(number: int) -> bytes:
    digits = []
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])

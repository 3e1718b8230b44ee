"""Pure: which topics a consumer subscribes to, from the bytes that it joins with.

Rules of this file: the coordinator understands only this much of the consumer protocol, to know which offsets are still
in use. All versions begin with the version and the topics; the rest concerns the members alone. Other bytes are no
error: they mean that the topics are unknown.
"""

from __future__ import annotations

import struct

CONSUMER_PROTOCOL = "consumer"

_HEAD = struct.Struct(">hi")  # version, number of topics
_LENGTH = struct.Struct(">h")
_USER_DATA = struct.Struct(">i")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics of one member, or None if the bytes do not tell."""
    try:
        version, count = _HEAD.unpack_from(metadata)
        if version < 0 or not 0 <= count <= len(metadata) // _LENGTH.size:
            return None
        topics = set()
        position = _HEAD.size
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, position)
            position += _LENGTH.size
            if length < 0 or position + length > len(metadata):
                return None
            topics.add(metadata[position : position + length].decode())
            position += length
        # User data follows in every version; without it these are not a subscription's bytes.
        (length,) = _USER_DATA.unpack_from(metadata, position)
        if length > len(metadata) - position - _USER_DATA.size:
            return None
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)

"""Pure: what consumers tell each other in the classic protocol: subscriptions and assignments as bytes.

Rules of this file:
- A coordinator understands them only where it has to: when members of both protocols are in one group (KIP-848).
- Bytes begin with the version of what follows. A later version than ours begins like the last that we know (Kafka).
"""

import struct
from typing import Any

from kafka_ds.wire.compile import Buffer, decode, write_parts
from kafka_ds.wire.errors import MalformedFrame
from kafka_ds.wire.types import bytes_, i32, message, message_info, string, v
from kafka_ds.wire.types import struct as wire_struct

_VERSION = struct.Struct(">h")


@wire_struct
class OwnedTopicPartitions:
    topic: string
    partitions: list[i32]


@message(key=None, versions="0-3", flexible=None)
class ConsumerProtocolSubscription:
    """What a consumer wants, and what it has had."""

    topics: list[string]
    user_data: bytes_ | None = v(nullable="0+", default=None)
    owned_partitions: list[OwnedTopicPartitions] = v("1+", default=[])
    generation_id: i32 = v("2+", default=-1)
    rack_id: string | None = v("3+", nullable="3+", default=None)


@wire_struct
class AssignedTopicPartitions:
    topic: string
    partitions: list[i32]


@message(key=None, versions="0-3", flexible=None)
class ConsumerProtocolAssignment:
    """What a consumer is to read."""

    assigned_partitions: list[AssignedTopicPartitions]
    user_data: bytes_ | None = v(nullable="0+", default=None)


def version_of(data: Buffer) -> int:
    """The version in which these bytes were written; raises MalformedFrame."""
    if len(data) < _VERSION.size:
        raise MalformedFrame("the version of the consumer protocol is cut short")
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise MalformedFrame(f"version {version} of the consumer protocol")
    return version


def decode_subscription(data: Buffer) -> ConsumerProtocolSubscription:
    """The subscription; raises MalformedFrame."""
    found: ConsumerProtocolSubscription = _decode(ConsumerProtocolSubscription, data)
    return found


def decode_assignment(data: Buffer) -> ConsumerProtocolAssignment:
    """The assignment; no bytes at all are an empty one. Raises MalformedFrame."""
    if not data:
        return ConsumerProtocolAssignment(assigned_partitions=[])
    found: ConsumerProtocolAssignment = _decode(ConsumerProtocolAssignment, data)
    return found


def encode_assignment(assignment: ConsumerProtocolAssignment, version: int) -> bytes:
    """The assignment as a member of this version reads it."""
    known = min(version, message_info(ConsumerProtocolAssignment).versions.last)
    return b"".join(write_parts(assignment, known, bytearray(_VERSION.pack(known))))


def encode_subscription(subscription: ConsumerProtocolSubscription, version: int) -> bytes:
    """The subscription in this version."""
    return b"".join(write_parts(subscription, version, bytearray(_VERSION.pack(version))))


def _decode(cls: type, data: Buffer) -> Any:
    version = min(version_of(data), message_info(cls).versions.last)
    # What later versions have added stands behind what we know.
    return decode(cls, data, version, _VERSION.size, spare_bytes_max=len(data))

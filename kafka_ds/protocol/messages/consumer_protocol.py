"""Pure: what consumers exchange in the classic protocol: subscriptions and assignments as bytes.

- A coordinator understands them only where it has to: when members of both protocols are in one group (KIP-848).
- Bytes begin with the version of what follows. A later version begins like the last known one (Kafka).
"""

from typing import Any

from kafka_ds.process.buffers import Buffer
from kafka_ds.protocol.codec import decode
from kafka_ds.protocol.errors import MalformedFrame
from kafka_ds.protocol.types import bytes_, i32, message, message_info, string, struct, v
from kafka_ds.protocol.versioned import NUMBER_BYTES, encode_numbered, read_number


@struct
class OwnedTopicPartitions:
    topic: string
    partitions: list[i32]


@message(key=None, versions="0-3", flexible=None)
class ConsumerProtocolSubscription:
    """A consumer's subscription, and its owned partitions."""

    topics: list[string]
    user_data: bytes_ | None = v(nullable="0+", default=None)
    owned_partitions: list[OwnedTopicPartitions] = v("1+", default=[])
    generation_id: i32 = v("2+", default=-1)
    rack_id: string | None = v("3+", nullable="3+", default=None)


@struct
class AssignedTopicPartitions:
    topic: string
    partitions: list[i32]


@message(key=None, versions="0-3", flexible=None)
class ConsumerProtocolAssignment:
    """A consumer's assignment."""

    assigned_partitions: list[AssignedTopicPartitions]
    user_data: bytes_ | None = v(nullable="0+", default=None)


def version_of(data: Buffer) -> int:
    """The version in which these bytes were written; raises MalformedFrame."""
    version = read_number(data, "the version of the consumer protocol")
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
    return encode_numbered(assignment, known)


def _decode(cls: type, data: Buffer) -> Any:
    version = min(version_of(data), message_info(cls).versions.last)
    # Fields of later versions follow the known ones.
    return decode(cls, data, version, NUMBER_BYTES, spare_bytes_max=len(data))

"""Bytes that are not Kafka: every codec refuses them as malformed, and allocates no more than they hold."""

import tracemalloc
from random import Random
from typing import Any

import pytest

from kafka_ds.protocol.codec import decode, encode
from kafka_ds.protocol.errors import MalformedFrame
from kafka_ds.protocol.messages import (
    ApiVersionsRequest,
    CreateTopicsRequest,
    FetchRequest,
    FetchResponse,
    JoinGroupRequest,
    MetadataRequest,
    ProduceRequest,
)
from kafka_ds.protocol.types import i32, message, string, struct, v
from tests.wire.random_messages import ALL_VERSIONS, random_message

MANY = b"\x7f\xff\xff\xff"  # 2^31-1 as a plain count or length
MANY_COMPACT = b"\xff\xff\xff\xff\x07"  # the same as a varint


def outcome(cls: type, frame: bytes, version: int) -> Any:
    """The message, or None where the frame is malformed; any other exception is a failure."""
    try:
        return decode(cls, frame, version)
    except MalformedFrame:
        return None


@pytest.mark.parametrize(
    ("cls", "version", "head"),
    [
        (MetadataRequest, 1, MANY),
        (MetadataRequest, 12, MANY_COMPACT),
        (FetchRequest, 4, bytes(17) + MANY),
        (FetchRequest, 17, bytes(21) + MANY_COMPACT),
        (FetchRequest, 17, bytes(21) + b"\x02" + bytes(16) + MANY_COMPACT),
        (FetchRequest, 11, bytes(25) + b"\x00\x00\x00\x01\x00\x01t" + MANY),
        (CreateTopicsRequest, 7, b"\x02\x02t" + bytes(6) + b"\x02" + bytes(4) + MANY_COMPACT),
        (ProduceRequest, 3, b"\xff\xff" + bytes(6) + b"\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x01" + bytes(4) + MANY),
        (ProduceRequest, 9, bytes(7) + b"\x02\x02t\x02" + bytes(4) + MANY_COMPACT),
        (JoinGroupRequest, 9, MANY_COMPACT),
        (JoinGroupRequest, 0, b"\x7f\xff"),
        (FetchResponse, 12, bytes(10) + b"\x02\x02t\x02" + bytes(30) + MANY_COMPACT),
    ],
)  # fmt: skip
def test_absurd_counts_and_lengths_allocate_nothing(cls: type, version: int, head: bytes) -> None:
    frame = head.ljust(45, b"\x01")
    assert outcome(cls, frame, version) is None
    tracemalloc.start()
    assert outcome(cls, frame, version) is None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000


def test_a_count_is_bounded_by_the_least_size_of_an_element() -> None:
    # 41 bytes are left for partitions of 33 bytes each: two of them do not fit, and nothing is tried.
    frame = bytes(21) + b"\x02" + bytes(16) + b"\x03" + bytes(41)
    with pytest.raises(MalformedFrame, match="partitions has more elements than bytes"):
        decode(FetchRequest, frame, 17)


@pytest.mark.parametrize(
    ("version", "frame"),
    [
        (1, b"\x00\x0f\x42\x41" + bytes(2_000_002)),  # 1,000,001 topics with empty names
        (9, b"\xc2\x84\x3d" + b"\x01\x00" * 1_000_001 + b"\x00\x00\x00\x00"),
    ],
)
def test_more_elements_than_any_cluster_has(version: int, frame: bytes) -> None:
    with pytest.raises(MalformedFrame, match="more elements than a message may have"):
        decode(MetadataRequest, frame, version)


def test_elements_are_counted_over_all_arrays_of_a_message() -> None:
    topic = b"\x02t" + bytes(6) + b"\x01" + b"\xe1\xd4\x03" + b"\x01\x00\x00" * 60_000 + b"\x00"
    frame = b"\x12" + topic * 17 + bytes(6)
    with pytest.raises(MalformedFrame, match="more elements than a message may have"):
        decode(CreateTopicsRequest, frame, 7)


@struct
class OldPart:
    name: string


@message(key=None, versions="0", flexible="0+")
class OldRequest:
    """What we know."""

    parts: list[OldPart]
    size: i32 = v(tag=1, default=0)


@struct
class NewPart:
    name: string
    colour: string = v(tag=0, default="")
    weight: i32 = v(tag=200, default=0)


@message(key=None, versions="0", flexible="0+")
class NewRequest:
    """What a newer peer sends: known tags between unknown ones, at both levels."""

    parts: list[NewPart]
    before: string = v(tag=0, default="")
    size: i32 = v(tag=1, default=0)
    after: list[NewPart] = v(tag=70_000, default=[])


def test_unknown_tags_are_skipped() -> None:
    part = NewPart(name="a", colour="x" * 300, weight=7)
    new = NewRequest(parts=[part, part], before="b", size=5, after=[part])
    old = OldRequest(parts=[OldPart(name="a"), OldPart(name="a")], size=5)
    assert decode(OldRequest, encode(new, 0), 0) == old


@pytest.mark.parametrize(
    "tags",
    [
        b"\x01",  # a tag without number
        b"\x01\x09",  # without size
        b"\x01\x09\x02\x00",  # unknown and longer than the frame
        b"\x01\x09" + MANY_COMPACT,
        b"\x01\x01\x05\x00\x00\x00\x01\x00",  # known and longer than its type
        b"\x01\x01\x03\x00\x00\x00\x01",  # known and shorter
        MANY_COMPACT,
        b"\xff\xff\xff\xff\xff\xff\xff",  # a varint without end
        b"\x80\x80\x80\x80\x80\x00",  # a varint of six bytes
        b"\xff\xff\xff\xff\x1f",  # more than 32 bits
        b"\x00\x00",  # a byte too many
    ],
)
def test_malformed_tags(tags: bytes) -> None:
    assert decode(OldRequest, b"\x01\x00", 0) == OldRequest(parts=[])
    assert outcome(OldRequest, b"\x01" + tags, 0) is None


@pytest.mark.parametrize(
    ("cls", "version", "frame"),
    [
        (ApiVersionsRequest, 3, b"\x00\x01\x00"),  # null in a string that is never null
        (MetadataRequest, 0, b"\xff\xff\xff\xff"),  # and in a list
        (ApiVersionsRequest, 3, b"\x03\xff\xfe\x01\x00"),  # not UTF-8
        (ApiVersionsRequest, 3, b"\x04\xed\xa0\x80\x01\x00"),  # half of a surrogate pair
        (ApiVersionsRequest, 3, b"\x81\x80\x02" + b"a" * 32_768 + b"\x01\x00"),  # too long for a string
    ],
)  # fmt: skip
def test_malformed_values(cls: type, version: int, frame: bytes) -> None:
    assert outcome(cls, frame, version) is None


def test_the_longest_string_is_read() -> None:
    frame = b"\x80\x80\x02" + b"a" * 32_767 + b"\x01\x00"
    assert decode(ApiVersionsRequest, frame, 3).client_software_name == "a" * 32_767


def test_a_frame_cut_anywhere_is_malformed() -> None:
    random = Random(1)
    for cls, version in ALL_VERSIONS:
        frame = encode(
            random_message(cls, version, random, elements_max=1, sizes=[0, 1, 3]), version
        )
        for end in range(len(frame)):
            assert outcome(cls, frame[:end], version) is None
        assert outcome(cls, frame + b"\x00", version) is None


def test_a_frame_with_a_damaged_byte_is_malformed_or_another_message() -> None:
    random = Random(2)
    for cls, version in ALL_VERSIONS:
        frame = bytearray(
            encode(random_message(cls, version, random, sizes=[0, 1, 5, 127]), version)
        )
        for _ in range(10 if frame else 0):
            at = random.randrange(len(frame))
            kept, frame[at] = (
                frame[at],
                random.choice([0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)]),
            )
            another = outcome(cls, bytes(frame), version)
            if another is not None:
                assert decode(cls, encode(another, version), version) == another
            frame[at] = kept


def test_random_bytes_are_malformed_or_a_message() -> None:
    random = Random(3)
    for cls, version in ALL_VERSIONS:
        for size in (1, 7, 40, 300):
            frame = random.randbytes(size)
            another = outcome(cls, frame, version)
            if another is not None:
                assert decode(cls, encode(another, version), version) == another

"""Codecs: bytes written by hand, what is copied and what is not, and the kinds of error."""

import tracemalloc
from typing import Any

import pytest

from kafka_ds.protocol.codec import decode, encode, encode_parts
from kafka_ds.protocol.errors import MalformedFrame
from kafka_ds.protocol.messages import (
    DescribeTopicPartitionsRequest,
    FetchResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
)
from kafka_ds.protocol.messages.cluster import MetadataRequestTopic
from kafka_ds.protocol.messages.data import (
    FetchableTopicResponse,
    FetchPartitionData,
    LeaderIdAndEpoch,
    PartitionProduceData,
    TopicProduceData,
)
from kafka_ds.protocol.messages.quorum import Cursor, DescribeTopicPartitionsTopicRequest
from kafka_ds.protocol.types import f64, i32, message, string, u16, u32, v


def produce(records: Any) -> ProduceRequest:
    partition = PartitionProduceData(index=7, records=records)
    topic = TopicProduceData(name="t", partition_data=[partition])
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])


def fetched(*records: Any) -> FetchResponse:
    partitions = [
        FetchPartitionData(partition_index=i, high_watermark=5, records=r)
        for i, r in enumerate(records)
    ]
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])


def test_a_version_before_flexible_ones_byte_by_byte() -> None:
    expected = (
        b"\xff\xff"  # no transactional id
        b"\xff\xff\x00\x00\x03\xe8"  # acks, timeout
        b"\x00\x00\x00\x01\x00\x01t"  # one topic, its name
        b"\x00\x00\x00\x01\x00\x00\x00\x07"  # one partition, its index
        b"\x00\x00\x00\x03abc"
    )
    assert encode(produce(b"abc"), 3) == expected
    assert decode(ProduceRequest, expected, 3) == produce(b"abc")


def test_a_flexible_version_byte_by_byte() -> None:
    expected = (
        b"\x00"  # no transactional id
        b"\xff\xff\x00\x00\x03\xe8"
        b"\x02\x02t"  # one topic: counts and lengths are one more
        b"\x02\x00\x00\x00\x07\x04abc"
        b"\x00\x00\x00"  # no tags: partition, topic, message
    )
    assert encode(produce(b"abc"), 9) == expected
    assert decode(ProduceRequest, expected, 9) == produce(b"abc")


def test_what_a_version_lacks_has_its_default() -> None:
    request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
    assert decode(MetadataRequest, encode(request, 3), 3).allow_auto_topic_creation is True
    response = decode(MetadataResponse, b"\x00" * 8, 0)
    assert (response.controller_id, response.cluster_id, response.error_code) == (-1, None, 0)


def test_null_and_empty_are_told_apart() -> None:
    for topics in (None, []):
        request = MetadataRequest(topics=topics)
        for version in (1, 12):
            assert decode(MetadataRequest, encode(request, version), version).topics == topics


def test_a_nullable_struct_is_announced_by_one_byte() -> None:
    topics = [DescribeTopicPartitionsTopicRequest(name="t")]
    without = DescribeTopicPartitionsRequest(topics=topics)
    with_one = DescribeTopicPartitionsRequest(
        topics=topics, cursor=Cursor(topic_name="t", partition_index=3)
    )
    assert encode(without, 0) == b"\x02\x02t\x00\x00\x00\x07\xd0\xff\x00"
    assert encode(with_one, 0) == b"\x02\x02t\x00\x00\x00\x07\xd0\x01\x02t\x00\x00\x00\x03\x00\x00"
    for request in (without, with_one):
        assert decode(DescribeTopicPartitionsRequest, encode(request, 0), 0) == request


def test_a_tagged_struct_of_nothing_but_defaults_is_left_out() -> None:
    plain, default = fetched(b""), fetched(b"")
    default.responses[0].partitions[0].current_leader = LeaderIdAndEpoch()
    assert encode(default, 12) == encode(plain, 12)
    set_ = fetched(b"")
    set_.responses[0].partitions[0].current_leader = LeaderIdAndEpoch(leader_id=1)
    assert decode(FetchResponse, encode(set_, 12), 12) == set_


@message(key=None, versions="0-1", flexible="1+")
class Measurement:
    """What no API holds, so that the types not used there are tried as well."""

    count: u32
    port: u16
    ratio: f64
    ratios: list[f64]
    label: string = v("1+", tag=0, default="none")
    size: i32 = v("1+", tag=5, default=7)


def test_the_rarer_types() -> None:
    value = Measurement(count=2**32 - 1, port=65535, ratio=-0.5, ratios=[1e300, 0.0])
    expected = (
        b"\xff\xff\xff\xff\xff\xff\xbf\xe0" + b"\x00" * 6
        + b"\x00\x00\x00\x02\x7e\x37\xe4\x3c\x88\x00\x75\x9c" + b"\x00" * 8
    )  # fmt: skip
    assert encode(value, 0) == expected
    assert decode(Measurement, expected, 0) == value


def test_tags_are_written_in_order_and_read_in_any() -> None:
    value = Measurement(count=0, port=0, ratio=0.0, ratios=[], label="ab", size=9)
    body = b"\x00" * 14 + b"\x01"
    label, size = b"\x00\x03\x03ab", b"\x05\x04\x00\x00\x00\x09"
    assert encode(value, 1) == body + b"\x02" + label + size
    assert decode(Measurement, body + b"\x02" + size + label, 1) == value
    twice = decode(Measurement, body + b"\x02" + b"\x05\x04\x00\x00\x00\x01" + size, 1)
    assert (twice.size, twice.label) == (9, "none")


def test_records_are_a_view_into_the_frame() -> None:
    frame = bytearray(encode(produce(b"abc"), 9))
    records = decode(ProduceRequest, frame, 9).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    frame[frame.index(b"abc")] = ord("X")
    assert bytes(records) == b"Xbc"
    records[1] = ord("Y")
    assert b"XYc" in frame


def test_large_records_are_handed_on_uncopied() -> None:
    large, other = memoryview(bytes(5000)), bytearray(3000)
    parts = encode_parts(fetched(large, b"small", [other, large]), 16)
    assert [part for part in parts if part is large or part is other] == [large, other, large]
    assert b"".join(parts) == encode(
        fetched(bytes(large), b"small", bytes(other) + bytes(large)), 16
    )


@pytest.mark.parametrize(
    "records", [None, b"", (), [], [b"", b"ab"], memoryview(b"xyz"), bytearray(2000)]
)
def test_records_may_be_any_buffer_or_several(records: Any) -> None:
    expected = b"".join(records) if isinstance(records, (list, tuple)) else records
    for version in (11, 12):
        decoded = decode(FetchResponse, encode(fetched(records), version), version)
        assert decoded.responses[0].partitions[0].records == expected


def test_encoding_large_records_allocates_next_to_nothing() -> None:
    response = fetched(*[memoryview(bytes(1 << 20))] * 8)
    encode_parts(response, 16)
    tracemalloc.start()
    parts = encode_parts(response, 16)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(map(len, parts)) > 8 << 20 and peak < 20_000


def test_a_message_that_cannot_be_written_is_our_own_fault() -> None:
    for wrong, version in [
        (MetadataRequest(topics=None), 0),
        (MetadataRequest(topics=[MetadataRequestTopic(name=None)]), 9),
        (ProduceRequest(acks=40_000, timeout_ms=0, topic_data=[]), 9),
        (ProduceRequest(transactional_id="\ud800", acks=0, timeout_ms=0, topic_data=[]), 9),
        (ProduceRequest(transactional_id="x" * 32_768, acks=0, timeout_ms=0, topic_data=[]), 3),
    ]:
        with pytest.raises(AssertionError, match="cannot be written"):
            encode(wrong, version)


def test_a_version_that_is_not_declared_is_our_own_fault() -> None:
    for version in (-1, 2, 14):
        with pytest.raises(AssertionError, match="3-13"):
            decode(ProduceRequest, b"", version)


def test_a_decoded_error_names_message_version_and_field() -> None:
    with pytest.raises(MalformedFrame, match=r"MetadataRequest 12: topics has more elements"):
        decode(MetadataRequest, b"\xff\xff\xff\xff\x07", 12)

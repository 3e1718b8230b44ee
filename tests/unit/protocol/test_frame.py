"""Frames: headers of requests and responses, and headers that are none."""

import pytest

from kafka_ds.protocol.codec import decode, encode
from kafka_ds.protocol.errors import MalformedFrame, UnknownApiKey
from kafka_ds.protocol.frame import (
    RequestHeader,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
)
from kafka_ds.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FetchRequest,
    FetchResponse,
    MetadataRequest,
    OffsetDeleteRequest,
)
from kafka_ds.protocol.messages.data import FetchableTopicResponse, FetchPartitionData


def test_a_request_before_flexible_versions() -> None:
    frame = encode_request(MetadataRequest(topics=[]), 8, 7, "me")
    assert (
        frame
        == b"\x00\x00\x00\x13\x00\x03\x00\x08\x00\x00\x00\x07\x00\x02me"
        + bytes(4)
        + b"\x01\x00\x00"
    )
    header, position = decode_request_header(memoryview(frame)[4:])
    assert header == RequestHeader(3, 8, 7, "me")
    assert decode(MetadataRequest, memoryview(frame)[4:], 8, position) == MetadataRequest(topics=[])


def test_a_flexible_request_has_tags_but_no_compact_client_id() -> None:
    frame = encode_request(MetadataRequest(topics=[]), 12, 7, "me")
    assert (
        frame == b"\x00\x00\x00\x11\x00\x03\x00\x0c\x00\x00\x00\x07\x00\x02me\x00\x01\x01\x00\x00"
    )
    header, position = decode_request_header(frame[4:])
    assert header.client_id == "me" and position == 13


def test_a_client_may_have_no_name() -> None:
    header, position = decode_request_header(encode_request(MetadataRequest(topics=[]), 12, 7)[4:])
    assert header.client_id is None and position == 11


def test_tags_in_a_request_header_are_skipped() -> None:
    frame = (
        b"\x00\x12\x00\x04\x00\x00\x00\x01\x00\x00" + b"\x02\x00\x02ab\x63\x00" + b"\x01\x01\x00"
    )
    header, position = decode_request_header(frame)
    assert header == RequestHeader(18, 4, 1, "")
    assert decode(ApiVersionsRequest, frame, 4, position) == ApiVersionsRequest()


@pytest.mark.parametrize("count", [10_000, 10_001])
def test_a_struct_has_ten_thousand_tagged_fields_at_most(count: int) -> None:
    """As in Kafka 4.4: in the header, in a struct without tags of its own, and in one that has some."""
    tags = count.to_bytes(2, "little")
    many = bytes([tags[0] & 0x7F | 0x80, count >> 7]) + b"\x63\x00" * count
    header = b"\x00\x12\x00\x04\x00\x00\x00\x01\x00\x00"
    without = encode(ApiVersionsRequest(), 4)
    fetch = encode(FetchRequest(max_wait_ms=0, min_bytes=0, topics=[]), 12)
    readings = (
        lambda: decode_request_header(header + many),
        lambda: decode(ApiVersionsRequest, without[:-1] + many, 4),
        lambda: decode(FetchRequest, fetch[:-1] + many, 12),
    )
    for read in readings:
        if count <= 10_000:
            read()
            continue
        with pytest.raises(MalformedFrame, match="10001 tagged fields"):
            read()


def test_the_header_of_a_version_that_is_not_declared_is_read() -> None:
    header, _ = decode_request_header(b"\x00\x12\x7f\xff\x00\x00\x00\x01\x00\x01xgarbage")
    assert header == RequestHeader(18, 32767, 1, "x")


def test_an_unknown_api_key() -> None:
    for key in (b"\x7f\xff", b"\xff\xff", b"\x00\x04"):
        with pytest.raises(UnknownApiKey):
            decode_request_header(key + bytes(8))


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00\x03\x00\x08\x00\x00\x00\x07\x00",
        b"\x00\x03\x00\x08\x00\x00\x00\x07\x00\x05abcd",
        b"\x00\x03\x00\x08\x00\x00\x00\x07\x00\x02\xff\xfe",
        b"\x00\x03\x00\x0c\x00\x00\x00\x07\x00\x00",
        b"\x00\x03\x00\x0c\x00\x00\x00\x07\x00\x00\x01\x00\x7f",
        b"\x00\x03\x00\x0c\x00\x00\x00\x07\x00\x00\xff\xff\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_what_is_no_request_header(frame: bytes) -> None:
    with pytest.raises(MalformedFrame):
        decode_request_header(frame)


def test_a_message_that_is_never_flexible_has_no_tags_in_its_header() -> None:
    frame = encode_request(OffsetDeleteRequest(group_id="g", topics=[]), 0, 1, None)
    assert frame[14:] == encode(OffsetDeleteRequest(group_id="g", topics=[]), 0)


def test_the_response_of_api_versions_never_has_tags_in_its_header() -> None:
    (frame,) = encode_response(ApiVersionsResponse(api_keys=[]), 4, 9)
    assert frame == b"\x00\x00\x00\x0c\x00\x00\x00\x09\x00\x00\x01\x00\x00\x00\x00\x00"
    assert decode_response(ApiVersionsResponse, frame[4:], 4) == (
        9,
        ApiVersionsResponse(api_keys=[]),
    )


def test_the_length_of_a_response_counts_all_its_parts() -> None:
    partition = FetchPartitionData(
        partition_index=0, high_watermark=1, records=memoryview(bytes(4096))
    )
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])])
    for version, count in ((11, 2), (12, 3)):  # in 12 the tags follow the records
        parts = encode_response(response, version, 5)
        frame = b"".join(parts)
        assert len(parts) == count and parts[1] is partition.records
        assert int.from_bytes(frame[:4]) == len(frame) - 4
        assert decode_response(FetchResponse, frame[4:], version) == (5, response)


def test_a_response_that_is_none() -> None:
    for frame in (b"", b"\x00\x00\x00", b"\x00\x00\x00\x01", b"\x00\x00\x00\x01\x09"):
        with pytest.raises(MalformedFrame):
            decode_response(FetchResponse, frame, 12)

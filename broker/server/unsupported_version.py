"""Pure: responses to requests in unsupported versions.

An unsupported version closes the connection, as in Kafka. There are two exceptions. ApiVersions is answered in version
0, which every client can read (KIP-511). Produce 0-2 gets UNSUPPORTED_VERSION: Kafka 4 advertises but does not support
them, because old librdkafka derives the supported compression from the range.
"""

from __future__ import annotations

from typing import Any

from broker.registry import Served
from kafka_ds.protocol.codec import decode
from kafka_ds.protocol.errors import ErrorCode, MalformedFrame
from kafka_ds.protocol.frame import RequestHeader, encode_response
from kafka_ds.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ProduceRequest,
)
from kafka_ds.protocol.messages.cluster import ApiVersion
from kafka_ds.protocol.refusal import refusal_of

_NO_TRANSACTIONAL_ID = b"\xff\xff"  # a null string
_PRODUCE_LIKE = 3  # has the fields of 0-2 and the transactional id
_THROTTLE_TIME_BYTES = 4


def refuse_unsupported(
    served: Served, header: RequestHeader, frame: memoryview, position: int
) -> list[Any]:
    """The response to a request in an unsupported version. Raises MalformedFrame if there is none."""
    if served.request is ApiVersionsRequest:
        own = ApiVersion(
            api_key=served.api_key,
            min_version=served.advertised[0],
            max_version=served.advertised[1],
        )
        response = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own])
        return encode_response(response, 0, header.correlation_id)
    advertised = served.advertised[0] <= header.api_version <= served.advertised[1]
    if served.request is ProduceRequest and advertised:
        request = decode(
            ProduceRequest, _NO_TRANSACTIONAL_ID + bytes(frame[position:]), _PRODUCE_LIKE
        )
        if request.acks != 0:
            return _refuse_produce(request, header)
    raise MalformedFrame(f"unsupported version {header.api_version} of {served.name}")


def _refuse_produce(request: ProduceRequest, header: RequestHeader) -> list[Any]:
    """UNSUPPORTED_VERSION for each partition; versions 0 and 1 lack the last fields of 2 (KIP-32)."""
    if header.api_version == _PRODUCE_LIKE - 1:
        response = refusal_of(request, _PRODUCE_LIKE, ErrorCode.UNSUPPORTED_VERSION)
        return encode_response(response, _PRODUCE_LIKE, header.correlation_id)
    out = bytearray(header.correlation_id.to_bytes(4, "big", signed=True))
    out += len(request.topic_data).to_bytes(4, "big")
    for topic in request.topic_data:
        name = topic.name.encode()
        out += len(name).to_bytes(2, "big") + name
        out += len(topic.partition_data).to_bytes(4, "big")
        for data in topic.partition_data:
            out += data.index.to_bytes(4, "big", signed=True)
            out += int(ErrorCode.UNSUPPORTED_VERSION).to_bytes(2, "big")
            out += (-1).to_bytes(8, "big", signed=True)
    if header.api_version == 1:
        out += bytes(_THROTTLE_TIME_BYTES)
    return [len(out).to_bytes(4, "big"), out]

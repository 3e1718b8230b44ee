"""kafka-python reads our frames, headers included, and writes the same bytes: a third opinion."""

from random import Random
from typing import Any

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
import kafka.protocol.sasl
import pytest

from kafka_ds.protocol.codec import encode
from kafka_ds.protocol.frame import encode_request, encode_response
from kafka_ds.protocol.messages import ApiVersionsResponse
from tests.wire.random_messages import MESSAGES, random_message, versions_of

MODULES: list[Any] = [
    kafka.protocol.admin,
    kafka.protocol.consumer,
    kafka.protocol.metadata,
    kafka.protocol.producer,
    kafka.protocol.sasl,
]
ROUNDS = 2
# kafka-python declares none of these: brokers and the tools of operators alone speak them, members of the newer group
# protocols, and clients that push their metrics.
NOT_THEIRS = {
    "AlterPartition",
    "Envelope",
    "BrokerRegistration",
    "BrokerHeartbeat",
    "AllocateProducerIds",
    "AssignReplicasToDirs",
    "UnregisterBroker",
    "CreateDelegationToken",
    "RenewDelegationToken",
    "ExpireDelegationToken",
    "DescribeDelegationToken",
    "GetTelemetrySubscriptions",
    "PushTelemetry",
    "ConsumerGroupHeartbeat",
    "ConsumerGroupDescribe",
    "ShareFetch",
    "ShareAcknowledge",
    "InitializeShareGroupState",
    "ReadShareGroupState",
    "WriteShareGroupState",
    "DeleteShareGroupState",
    "ReadShareGroupStateSummary",
    "ShareGroupHeartbeat",
    "ShareGroupDescribe",
    "DescribeShareGroupOffsets",
    "AlterShareGroupOffsets",
    "DeleteShareGroupOffsets",
    "StreamsGroupHeartbeat",
    "StreamsGroupDescribe",
}


def of_clients(ending: str) -> list[type]:
    return [
        cls
        for cls in MESSAGES
        if cls.__name__.endswith(ending) and cls.__name__.removesuffix(ending) not in NOT_THEIRS
    ]


def theirs(cls: type) -> Any:
    return next(getattr(m, cls.__name__) for m in MODULES if hasattr(m, cls.__name__))


@pytest.mark.parametrize("cls", of_clients("Request"), ids=lambda cls: cls.__name__)
def test_requests(cls: type) -> None:
    random = Random(cls.__name__)
    for version in versions_of(cls):
        for client_id in (None, "", "client-λ"):
            message = random_message(cls, version, random)
            ours = encode_request(message, version, 77, client_id)
            decoded = theirs(cls).decode(ours, version=version, header=True, framed=True)
            again = decoded.encode(version=version, header=True, framed=True)
            assert bytes(again) == ours


@pytest.mark.parametrize("cls", of_clients("Response"), ids=lambda cls: cls.__name__)
def test_responses(cls: type) -> None:
    random = Random(cls.__name__)
    for version in versions_of(cls):
        for _ in range(ROUNDS):
            message: Any = random_message(cls, version, random)
            if isinstance(message, ApiVersionsResponse):
                message.error_code = 0  # on an error kafka-python expects the form of version 0
            frame = b"".join(encode_response(message, version, 77))
            decoded = theirs(cls).decode(frame, version=version, header=True, framed=True)
            assert decoded.header.correlation_id == 77
            # Without the header, which kafka-python cannot write of a response, and in the version that was read.
            assert bytes(decoded.encode()) == encode(message, version)


def test_a_version_that_is_not_served_is_answered_in_the_form_of_version_0() -> None:
    frame = b"".join(encode_response(ApiVersionsResponse(error_code=35, api_keys=[]), 0, 7))
    decoded = theirs(ApiVersionsResponse).decode(frame, version=4, header=True, framed=True)
    assert decoded.error_code == 35

"""Shell: a broker's own requests to its controller: topics, producer ids, the end of a recovery, forwarding.

On the controller its own functions are called if they return more than the protocol; all others send Kafka's own
requests. An error in the answer becomes a KafkaError.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from broker.controller.controller import NewTopic, TopicResult
from broker.metadata.events import RECOVERED, RECOVERING, PartitionRegistration
from broker.principal import encode_principal
from kafka_ds.protocol.errors import ErrorCode, KafkaError, check_code
from kafka_ds.protocol.frame import LENGTH_BYTES, decode_response, encode_request
from kafka_ds.protocol.messages import (
    RESPONSES,
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    CreateTopicsRequest,
    EnvelopeRequest,
)
from kafka_ds.protocol.messages.brokers import (
    AlterPartitionBrokerState,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
)
from kafka_ds.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
)
from kafka_ds.protocol.topic_partition import PartitionId
from kafka_ds.protocol.types import message_info

if TYPE_CHECKING:
    from broker.controller.metadata_driver import MetadataDriver
    from broker.membership.channel import ControllerChannel
    from broker.membership.lifecycle import Lifecycle
    from broker.principal import Principal
    from kafka_ds.protocol.frame import RequestHeader

# How long a topic that was created elsewhere is waited for in the metadata here.
SEEN_SECONDS_MAX = 5.0


class ControllerRequests:
    """The controller's services, as this broker uses them."""

    def __init__(
        self,
        driver: MetadataDriver,
        channel: ControllerChannel,
        lifecycle: Lifecycle,
        *,
        request_timeout_ms: int,
    ) -> None:
        self._driver = driver
        self._channel = channel
        self._lifecycle = lifecycle
        self._node_id = lifecycle.identity.node_id
        self._timeout_ms = request_timeout_ms

    @property
    def is_controller_here(self) -> bool:
        """Whether this broker is the active controller."""
        return self._driver.is_active

    async def create_topics(self, topics: Sequence[NewTopic]) -> list[TopicResult]:
        """Create topics; the metadata here include them when this returns, if they could be created."""
        if self._driver.is_active:
            return await self._driver.create_topics(topics)
        request = CreateTopicsRequest(
            topics=[_creatable(topic) for topic in topics], timeout_ms=self._timeout_ms
        )
        version = message_info(CreateTopicsRequest).versions.last
        client_id = f"broker-{self._node_id}"
        response = await self._send_on(request, version, client_id, "127.0.0.1")
        results = [
            TopicResult(
                name=each.name,
                topic_id=each.topic_id,
                error=ErrorCode(each.error_code),
                message=each.error_message,
                num_partitions=each.num_partitions,
                replication_factor=each.replication_factor,
            )
            for each in response.topics
        ]
        await self.seen({each.topic_id for each in results if each.error == ErrorCode.NONE})
        return results

    async def seen(self, made: Set[bytes]) -> None:
        """Wait until the metadata here include these new topics, but no longer than SEEN_SECONDS_MAX."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SEEN_SECONDS_MAX
        while (
            not made <= self._driver.image.topics_by_id.keys()
            and (left := deadline - loop.time()) > 0
        ):
            await self._driver.wait_for_change(left)

    async def allocate_producer_ids(self) -> range:
        """A block of producer ids for this broker."""
        request = AllocateProducerIdsRequest(
            broker_id=self._node_id, broker_epoch=self._lifecycle.broker_epoch
        )
        answer = await self._channel.send(request, timeout_ms=self._timeout_ms)
        check_code(answer.error_code)
        first = answer.producer_id_start
        return range(first, first + answer.producer_id_len)

    async def recovered(self, partitions: Sequence[PartitionId]) -> None:
        """These partitions, which this broker leads, were compared with the lake after an unclean stop."""
        held = {key: holds for key in partitions if (holds := self._led(key)) is not None}
        recovering = {
            key: each for key, each in held.items() if each.leader_recovery_state == RECOVERING
        }
        await self._alter_partitions(recovering, RECOVERED, self._lifecycle.broker_epoch)

    async def switch_partitions(
        self, leader_epochs: Mapping[PartitionId, int], state: int, broker_epoch: int
    ) -> None:
        """Ask for TO_DISKLESS: the write-ahead log of this broker epoch has all records of these partitions that their
        table lacks. Or for TO_REPLICATED: the table has all.

        Only what was put or copied in the leader epoch that is given here counts, and nothing was appended since.
        """
        held = {
            key: holds
            for key, epoch in leader_epochs.items()
            if (holds := self._led(key)) is not None and holds.leader_epoch == epoch
        }
        await self._alter_partitions(held, state, broker_epoch)

    def _led(self, key: PartitionId) -> PartitionRegistration | None:
        topic = self._driver.image.topics_by_id.get(key[0])
        holds = topic.partitions.get(key[1]) if topic else None
        return holds if holds is not None and holds.leader == self._node_id else None

    async def _alter_partitions(
        self, held: Mapping[PartitionId, PartitionRegistration], state: int, broker_epoch: int
    ) -> None:
        """Ask for this state of partitions, as they are registered. Raises KafkaError."""
        topics: dict[bytes, list[AlterPartitionRequestPartition]] = {}
        for (topic_id, partition), holds in held.items():
            members = holds.isr if state == RECOVERED else (self._node_id,)
            topics.setdefault(topic_id, []).append(
                AlterPartitionRequestPartition(
                    partition_index=partition,
                    leader_epoch=holds.leader_epoch,
                    partition_epoch=holds.partition_epoch,
                    new_isr_with_epochs=[
                        AlterPartitionBrokerState(broker_id=each) for each in members
                    ],
                    leader_recovery_state=state,
                )
            )
        if not topics:
            return
        request = AlterPartitionRequest(
            broker_id=self._node_id,
            broker_epoch=broker_epoch,
            topics=[
                AlterPartitionRequestTopic(topic_id=topic_id, partitions=each)
                for topic_id, each in topics.items()
            ],
        )
        answer = await self._channel.send(request, timeout_ms=self._timeout_ms)
        check_code(answer.error_code)
        for topic in answer.topics:
            for partition in topic.partitions:
                check_code(partition.error_code)

    async def forward(
        self, request: Any, header: RequestHeader, client_host: str, principal: Principal
    ) -> Any:
        """The controller's answer to a client's request that came here (KIP-590)."""
        who = encode_principal(principal)
        return await self._send_on(request, header.api_version, header.client_id, client_host, who)

    async def _send_on(
        self,
        request: Any,
        version: int,
        client_id: str | None,
        client_host: str,
        principal: bytes | None = None,
    ) -> Any:
        """Without a principal it is this broker's own request."""
        frame = encode_request(request, version, 0, client_id)
        envelope = EnvelopeRequest(
            request_data=frame[LENGTH_BYTES:],
            request_principal=principal,
            client_host_address=_packed(client_host),
        )
        answer = await self._channel.send(envelope, timeout_ms=self._timeout_ms)
        return _opened(answer, request, version)


def _opened(answer: Any, request: Any, version: int) -> Any:
    """The response inside the returned envelope."""
    check_code(answer.error_code)
    key = message_info(type(request)).key
    assert key is not None
    if answer.response_data is None:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the controller gave no answer")
    return decode_response(RESPONSES[key], memoryview(bytes(answer.response_data)), version)[1]


def _packed(host: str) -> bytes:
    try:
        return ipaddress.ip_address(host).packed
    except ValueError:
        return b""


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=partition, broker_ids=list(replicas))
            for partition, replicas in topic.assignments
        ],
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs],
    )

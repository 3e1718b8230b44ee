"""Members of a share group at a broker in the test's own process, without a group coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.registry import ClientInformation
from kafka_ds.protocol.messages import (
    IncrementalAlterConfigsRequest,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
)
from kafka_ds.protocol.messages.configs import (
    GROUP_RESOURCE,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsResource,
)
from kafka_ds.protocol.messages.share_fetch import (
    AcknowledgementBatch,
    ShareAcknowledgePartition,
    ShareAcknowledgeTopic,
    ShareFetchPartition,
    ShareFetchTopic,
)
from kafka_ds.protocol.messages.share_state import InitializeStatePartition
from tests.in_process import InProcess

GROUP = "g"


async def initialize(
    broker: InProcess, topic_id: bytes, *, partitions: int = 1, start: int = 0
) -> None:
    """What a group's coordinator does before it assigns partitions."""
    wanted = {
        (topic_id, each): InitializeStatePartition(
            partition=each, state_epoch=0, start_offset=start
        )
        for each in range(partitions)
    }
    results = await broker.node.shares.persister.initialize_state(GROUP, wanted)
    assert not any(each.error_code for each in results.values()), results


async def configure(broker: InProcess, settings: Mapping[str, object]) -> None:
    """Settings of the group."""
    configs = [
        IncrementalAlterableConfig(name=name, config_operation=0, value=str(value))
        for name, value in settings.items()
    ]
    resource = IncrementalAlterConfigsResource(
        resource_type=GROUP_RESOURCE, resource_name=GROUP, configs=configs
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    response = await broker.ask(request, 1)
    assert not response.responses[0].error_code, response


def batch(first: int, last: int, *kinds: int) -> AcknowledgementBatch:
    return AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=list(kinds))


class Member:
    """A member that fetches the partitions of one topic."""

    def __init__(
        self, broker: InProcess, topic_id: bytes, name: str = "m", partitions: int = 1
    ) -> None:
        self.broker = broker
        self.topic_id = topic_id
        self.name = name
        self.partitions = partitions
        self.epoch = 0
        self.connection = ClientInformation()

    async def fetch(
        self, *acknowledgements: AcknowledgementBatch, max_wait_ms: int = 300, **changes: Any
    ) -> Any:
        """The response; acknowledgements are of the first partition."""
        partitions = [ShareFetchPartition(partition_index=i) for i in range(self.partitions)]
        if acknowledgements:
            partitions[0].acknowledgement_batches = list(acknowledgements)
        topics = [ShareFetchTopic(topic_id=self.topic_id, partitions=partitions)]
        fields: dict[str, Any] = {
            "group_id": GROUP,
            "member_id": self.name,
            "share_session_epoch": self.epoch,
            "max_wait_ms": max_wait_ms,
            "min_bytes": 1,
            "max_records": 500,
            "batch_size": 500,
            "topics": topics if not self.epoch or acknowledgements else [],
        }
        request = ShareFetchRequest(**fields | changes)
        response = await self.broker.ask(request, 2, client=self.connection)
        if not response.error_code:
            self.epoch = request.share_session_epoch + 1
        return response

    async def acquire(self, *acknowledgements: AcknowledgementBatch, **changes: Any) -> list[Any]:
        """First and last offset and delivery count of what is acquired, of all partitions."""
        response = await self.fetch(*acknowledgements, **changes)
        assert not response.error_code, response
        return [
            (each.first_offset, each.last_offset, each.delivery_count)
            for topic in response.responses
            for partition in topic.partitions
            for each in partition.acquired_records
        ]

    async def acknowledge(
        self,
        *batches: AcknowledgementBatch,
        partition: int = 0,
        epoch: int | None = None,
        **changes: Any,
    ) -> Any:
        """The partition's result, or the response if that has an error or no partition."""
        acknowledged = ShareAcknowledgePartition(
            partition_index=partition, acknowledgement_batches=list(batches)
        )
        topic = ShareAcknowledgeTopic(topic_id=self.topic_id, partitions=[acknowledged])
        request = ShareAcknowledgeRequest(
            group_id=GROUP,
            member_id=self.name,
            share_session_epoch=self.epoch if epoch is None else epoch,
            topics=[topic] if batches else [],
            **changes,
        )
        response = await self.broker.ask(request, 2, client=self.connection)
        if response.error_code or not response.responses:
            return response
        self.epoch += 1
        return response.responses[0].partitions[0]

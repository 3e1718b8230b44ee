"""Shell: DescribeProducers 0: the producers of a partition, and the transactions that are open there (KIP-664).

- Any replica answers from its log's producer state, without producers that were silent for producer.id.expiration.ms:
  `find-hanging --broker-id` asks one broker about all partitions that it has.
- A partition that has no replica here is NOT_LEADER_OR_FOLLOWER, one that does not exist UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from broker.registry import RequestContext, serves
from kafka_ds.protocol.messages import DescribeProducersRequest, DescribeProducersResponse
from kafka_ds.protocol.messages.transaction_admin import (
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from kafka_ds.protocol.refusal import refusal


@serves(DescribeProducersRequest, versions="0")
def describe_producers(
    request: DescribeProducersRequest, context: RequestContext
) -> DescribeProducersResponse:
    """List the producers of each partition."""
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[
                    _describe(topic.name, partition, context)
                    for partition in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


def _describe(topic: str, partition: int, context: RequestContext) -> PartitionResponse:
    replicas = context.broker.replica_manager
    replica = replicas.replica(topic, partition)
    if replica is None:
        return refusal(PartitionResponse, partition, replicas.why_absent(topic, partition))
    return PartitionResponse(
        partition_index=partition,
        active_producers=[
            ProducerState(
                producer_id=producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp_ms,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.transaction_start,
            )
            for producer_id, producer in replica.log.producers
        ],
    )

"""Shell: DescribeQuorum 0-2: the controller, and how far its log is (KIP-595).

- There is no quorum: one broker is the controller and its log is a Delta table. The answer shows a quorum with one
  voter, its leader. The leader epoch is the controller's, the high watermark is the number of the table's commits. The
  other live brokers are observers, each at the offset that its last heartbeat reported.
- Only __cluster_metadata-0 can be described: all else is UNKNOWN_TOPIC_OR_PARTITION. A broker that is not (or no
  longer) the controller answers NOT_LEADER_OR_FOLLOWER.

Versions: 1 times; 2 directory ids, listeners of the voters and error messages (KIP-853).
Left out: directory ids of observers that have reported none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import DescribeQuorumRequest, DescribeQuorumResponse
from kafka_ds.protocol.messages.quorum import (
    DescribeQuorumReplicaState,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Listener,
    QuorumNode,
)
from kafka_ds.protocol.refusal import refusal
from kafka_ds.protocol.types import NO_UUID
from kafka_ds.segments.names import METADATA_TOPIC

if TYPE_CHECKING:
    from broker.kafka_broker import KafkaBroker


@serves(DescribeQuorumRequest, versions="0-2", forwarded=True)
def describe_quorum(
    request: DescribeQuorumRequest, context: RequestContext
) -> DescribeQuorumResponse:
    """Describe the controller as a quorum of one."""
    broker = context.broker
    return DescribeQuorumResponse(
        topics=[
            DescribeQuorumResponseTopicData(
                topic_name=topic.topic_name,
                partitions=[
                    _partition(broker, topic.topic_name, each.partition_index)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
        nodes=_nodes(broker),
    )


def _partition(
    broker: KafkaBroker, topic: str, partition: int
) -> DescribeQuorumResponsePartitionData:
    if (topic, partition) != (METADATA_TOPIC, 0):
        return refusal(
            DescribeQuorumResponsePartitionData, partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
    if not broker.metadata_driver.is_active:
        return refusal(
            DescribeQuorumResponsePartitionData, partition, ErrorCode.NOT_LEADER_OR_FOLLOWER
        )
    image, now_ms = broker.metadata, broker.clock.now_ms()
    end_offset = image.version + 1
    voter = DescribeQuorumReplicaState(
        replica_id=image.controller_id,
        replica_directory_id=next(iter(broker.log_manager.directory_ids.values())),
        log_end_offset=end_offset,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )
    return DescribeQuorumResponsePartitionData(
        partition_index=partition,
        leader_id=image.controller_id,
        leader_epoch=image.controller_epoch,
        high_watermark=end_offset,
        current_voters=[voter],
        observers=_observers(broker, now_ms),
    )


def _observers(broker: KafkaBroker, now_ms: int) -> list[DescribeQuorumReplicaState]:
    image, monotonic_ms = broker.metadata, broker.clock.monotonic_ms()
    observers = []
    for broker_id, session in sorted(broker.metadata_driver.controller.sessions().items()):
        registered = image.brokers.get(broker_id)
        if registered is None or broker_id == image.controller_id:
            continue
        heard_ms = now_ms - (monotonic_ms - session.last_contact_ms)
        is_caught_up = session.metadata_version >= image.version
        observers.append(
            DescribeQuorumReplicaState(
                replica_id=broker_id,
                replica_directory_id=next(iter(registered.log_dirs), NO_UUID),
                log_end_offset=session.metadata_version + 1,
                last_fetch_timestamp=heard_ms,
                # A broker that was behind at its last heartbeat may have caught up since: unknown.
                last_caught_up_timestamp=heard_ms if is_caught_up else -1,
            )
        )
    return observers


def _nodes(broker: KafkaBroker) -> list[QuorumNode]:
    """Where the voter is."""
    controller = broker.metadata.brokers.get(broker.metadata.controller_id)
    if controller is None:
        return []
    listeners = [Listener(name=e.listener, host=e.host, port=e.port) for e in controller.endpoints]
    return [QuorumNode(node_id=controller.broker_id, listeners=listeners)]

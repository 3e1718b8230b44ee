"""Shell: DescribeQuorum 0-2: who decides for the cluster, and how far its log is (KIP-595).

- There is no quorum: one broker decides and its log is a Delta table. It is told as a quorum with one voter, which is
  its leader; the leader's epoch is the controller's, the high watermark counts the commits of the table.
- Only __cluster_metadata-0 can be asked for: all else is UNKNOWN_TOPIC_OR_PARTITION. A broker that does not decide (any
  more) answers NOT_LEADER_OR_FOLLOWER.

Versions: 1 times; 2 directory ids, listeners of the voters and error messages (KIP-853).
Left out: observers, of which there are none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.net.registry import RequestContext, serves
from kafka_ds.wire.errors import ErrorCode
from kafka_ds.wire.messages import DescribeQuorumRequest, DescribeQuorumResponse
from kafka_ds.wire.messages.quorum import (
    DescribeQuorumReplicaState,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Listener,
    Node,
)

if TYPE_CHECKING:
    from broker.node import Node as Broker

METADATA_TOPIC = "__cluster_metadata"


def refuse(
    request: DescribeQuorumRequest, code: ErrorCode, message: str | None
) -> DescribeQuorumResponse:
    """The answer to a request that cannot be answered."""
    return DescribeQuorumResponse(error_code=code, error_message=message, topics=[])


@serves(DescribeQuorumRequest, versions="0-2", failure=refuse, forwarded=True)
def describe_quorum(
    request: DescribeQuorumRequest, context: RequestContext
) -> DescribeQuorumResponse:
    """Tell who decides."""
    node = context.node
    return DescribeQuorumResponse(
        topics=[
            DescribeQuorumResponseTopicData(
                topic_name=topic.topic_name,
                partitions=[
                    _partition(node, topic.topic_name, each.partition_index)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
        nodes=_nodes(node),
    )


def _partition(node: Broker, topic: str, index: int) -> DescribeQuorumResponsePartitionData:
    if (topic, index) != (METADATA_TOPIC, 0):
        return _refused(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if not node.controller.is_active:
        return _refused(index, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    image, now_ms = node.metadata, node.clock.now_ms()
    end_offset = image.version + 1
    voter = DescribeQuorumReplicaState(
        replica_id=image.controller_id,
        replica_directory_id=next(iter(node.log_manager.directory_ids.values())),
        log_end_offset=end_offset,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )
    return DescribeQuorumResponsePartitionData(
        partition_index=index,
        leader_id=image.controller_id,
        leader_epoch=image.controller_epoch,
        high_watermark=end_offset,
        current_voters=[voter],
        observers=[],
    )


def _refused(index: int, code: ErrorCode) -> DescribeQuorumResponsePartitionData:
    return DescribeQuorumResponsePartitionData(
        partition_index=index,
        error_code=code,
        leader_id=-1,
        leader_epoch=-1,
        high_watermark=-1,
        current_voters=[],
        observers=[],
    )


def _nodes(node: Broker) -> list[Node]:
    broker = node.metadata.brokers[node.metadata.controller_id]
    listeners = [Listener(name=e.listener, host=e.host, port=e.port) for e in broker.endpoints]
    return [Node(node_id=broker.broker_id, listeners=listeners)]

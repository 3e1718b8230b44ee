"""Shell: AddOffsetsToTxn 0-4: offsets of a group become part of a transaction.

- It is the group's partition of `__consumer_offsets` that joins the transaction: the marker in it makes the offsets
  count that TxnOffsetCommit writes there.
- An empty group id is INVALID_GROUP_ID.

Versions: 1 is 0; 2 PRODUCER_FENCED; 3 flexible; 4 TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.groups.placement import TOPIC, partition_for
from broker.handlers.transactional import answered, told
from broker.net.registry import RequestContext, serves
from broker.transactions.values import ProducerIdAndEpoch, TopicPartition
from kafka_ds.wire.errors import ErrorCode
from kafka_ds.wire.messages import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

FIRST_VERSION_WITH_FENCING = 2


@serves(AddOffsetsToTxnRequest, versions="0-4")
def add_offsets_to_txn(
    request: AddOffsetsToTxnRequest, context: RequestContext
) -> AddOffsetsToTxnResponse | Awaitable[AddOffsetsToTxnResponse]:
    """Take the partition of a group into the transaction."""

    def refuse(code: ErrorCode) -> AddOffsetsToTxnResponse:
        knows = context.header.api_version >= FIRST_VERSION_WITH_FENCING
        return AddOffsetsToTxnResponse(error_code=told(code, knows_fencing=knows))

    if not request.group_id:
        return refuse(ErrorCode.INVALID_GROUP_ID)
    topic = context.node.metadata.topics.get(TOPIC)
    if topic is None:
        return refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    where = TopicPartition(TOPIC, partition_for(request.group_id, len(topic.partitions)))
    return answered(
        lambda: context.node.transactions.add_partitions(
            request.transactional_id,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            [where],
        ),
        lambda _: AddOffsetsToTxnResponse(),
        refuse,
    )

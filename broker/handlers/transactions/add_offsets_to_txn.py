"""Shell: AddOffsetsToTxn 0-4: adds a group's offsets to a transaction.

- This adds the group's partition of `__consumer_offsets` to the transaction. TxnOffsetCommit writes the offsets there,
  and the marker in that partition makes them count.
- That topic is created if necessary, because a client looks for the group's coordinator only after this.
- An empty group id is INVALID_GROUP_ID.

Versions: 1 is 0; 2 PRODUCER_FENCED; 3 flexible; 4 TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.coordinator.result import ProducerIdAndEpoch
from broker.handlers.responses import answered
from broker.handlers.transactions.common import code_for_client
from broker.metadata.topic_names import GROUP_METADATA_TOPIC_NAME
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from kafka_ds.protocol.topic_partition import TopicPartition

FIRST_VERSION_WITH_FENCING = 2


@serves(AddOffsetsToTxnRequest, versions="0-4")
def add_offsets_to_txn(
    request: AddOffsetsToTxnRequest, context: RequestContext
) -> AddOffsetsToTxnResponse | Awaitable[AddOffsetsToTxnResponse]:
    """Take the partition of a group into the transaction."""
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    if not context.broker.groups.runtime.is_there:
        return _add_when_there_is_a_topic(request, context)
    return _add(request, context)


async def _add_when_there_is_a_topic(
    request: AddOffsetsToTxnRequest, context: RequestContext
) -> AddOffsetsToTxnResponse:
    await context.broker.groups.runtime.ensure()
    answer = _add(request, context)
    return await answer if isinstance(answer, Awaitable) else answer


def _add(
    request: AddOffsetsToTxnRequest, context: RequestContext
) -> AddOffsetsToTxnResponse | Awaitable[AddOffsetsToTxnResponse]:
    partition = context.broker.groups.runtime.partition_of(request.group_id)
    if partition is None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    knows = context.header.api_version >= FIRST_VERSION_WITH_FENCING
    return answered(
        lambda: context.broker.transactions.add_partitions(
            request.transactional_id,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            [TopicPartition(GROUP_METADATA_TOPIC_NAME, partition)],
        ),
        lambda _: AddOffsetsToTxnResponse(),
        lambda code: AddOffsetsToTxnResponse(error_code=code_for_client(code, knows_fencing=knows)),
    )

"""Shell: WriteTxnMarkers 1-2: the ends of transactions, from coordinators and from operators who end a hanging one.

- A marker is answered when it is below the high watermark; what follows for the offsets of groups has happened then.
- A marker of an older producer epoch is INVALID_PRODUCER_EPOCH, of an older coordinator
  TRANSACTION_COORDINATOR_FENCED.

Versions: 2 the transaction's version (KIP-1228), by which nothing here differs.
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.net.registry import RequestContext, serves
from broker.transactions.markers import Marker
from broker.transactions.values import TopicPartition
from kafka_ds.wire.errors import ErrorCode
from kafka_ds.wire.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from kafka_ds.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
)


def refuse(
    request: WriteTxnMarkersRequest, code: ErrorCode, message: str | None
) -> WriteTxnMarkersResponse:
    """The same error for every partition."""
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[_result(index, code) for index in topic.partition_indexes],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


@serves(WriteTxnMarkersRequest, versions="1-2", failure=refuse)
async def write_txn_markers(
    request: WriteTxnMarkersRequest, context: RequestContext
) -> WriteTxnMarkersResponse:
    """Append a control batch to each partition."""
    return WriteTxnMarkersResponse(
        markers=[await _write(marker, context) for marker in request.markers]
    )


async def _write(wanted: WritableTxnMarker, context: RequestContext) -> WritableTxnMarkerResult:
    marker = Marker(
        producer_id=wanted.producer_id,
        producer_epoch=wanted.producer_epoch,
        coordinator_epoch=wanted.coordinator_epoch,
        committed=wanted.transaction_result,
    )
    write = context.node.transactions.markers.write
    topics = []
    for topic in wanted.topics:
        outcomes = [
            (index, write(marker, TopicPartition(topic.name, index)))
            for index in topic.partition_indexes
        ]
        results = []
        for index, outcome in outcomes:
            code = await outcome if isinstance(outcome, Awaitable) else outcome
            results.append(_result(index, code))
        topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=results))
    return WritableTxnMarkerResult(producer_id=wanted.producer_id, topics=topics)


def _result(index: int, code: ErrorCode) -> WritableTxnMarkerPartitionResult:
    return WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)

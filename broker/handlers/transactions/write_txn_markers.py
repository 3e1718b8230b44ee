"""Shell: WriteTxnMarkers 1-2: writes markers, for coordinators and for operators who end a hanging transaction.

- A marker is answered when it is below the high watermark; offsets of groups that depend on it count by then. If that
  takes longer than request.timeout.ms it is REQUEST_TIMED_OUT, and the sender tries again.
- All markers are appended before the first one is waited for.
- A marker of an older producer epoch is INVALID_PRODUCER_EPOCH, of an older coordinator
  TRANSACTION_COORDINATOR_FENCED.

Versions: 2 the transaction's version: a marker of the second protocol that comes late, when the producer's next
transaction is open, is INVALID_PRODUCER_EPOCH (KIP-1228).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from broker.coordinator.transaction.marker_sender import MarkerOutcome, TxnMarkerEntry
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from kafka_ds.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
)
from kafka_ds.protocol.refusal import refusal_of
from kafka_ds.protocol.topic_partition import TopicPartition


@serves(WriteTxnMarkersRequest, versions="1-2")
async def write_txn_markers(
    request: WriteTxnMarkersRequest, context: RequestContext
) -> WriteTxnMarkersResponse:
    """Append a control batch to each partition."""
    response: WriteTxnMarkersResponse = refusal_of(
        request, context.header.api_version, ErrorCode.REQUEST_TIMED_OUT
    )
    waiting: dict[asyncio.Task[ErrorCode], WritableTxnMarkerPartitionResult] = {}
    for wanted, marker in zip(request.markers, response.markers, strict=True):
        for topic in marker.topics:
            for partition in topic.partitions:
                outcome = _write(wanted, topic.name, partition.partition_index, context)
                if isinstance(outcome, ErrorCode):
                    partition.error_code = outcome
                else:
                    waiting[asyncio.ensure_future(_of(outcome))] = partition
    if waiting:
        timeout = context.broker.config.request_timeout_ms / 1_000
        done, late = await asyncio.wait(waiting, timeout=timeout)
        for task in done:
            waiting[task].error_code = task.result()
        for task in late:
            task.cancel()
    return response


def _write(
    wanted: WritableTxnMarker, topic: str, partition: int, context: RequestContext
) -> MarkerOutcome:
    marker = TxnMarkerEntry(
        producer_id=wanted.producer_id,
        producer_epoch=wanted.producer_epoch,
        coordinator_epoch=wanted.coordinator_epoch,
        committed=wanted.transaction_result,
        transaction_version=wanted.transaction_version,
    )
    return context.broker.transactions.markers.write(marker, TopicPartition(topic, partition))


async def _of(outcome: Awaitable[ErrorCode]) -> ErrorCode:
    return await outcome

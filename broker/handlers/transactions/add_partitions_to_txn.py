"""Shell: AddPartitionsToTxn 0-5: adds partitions to a transaction, before anything is written to them.

- Up to version 3 a client adds partitions to its transaction. If one of them does not exist none is added: that one
  gets UNKNOWN_TOPIC_OR_PARTITION, the others OPERATION_NOT_ATTEMPTED. Partitions of internal topics, to which no client
  writes, get TOPIC_AUTHORIZATION_FAILED in the same way.
- From version 4 on brokers ask for many transactions, to add partitions or only to verify them (KIP-890): a partition
  that was not added is TRANSACTION_ABORTABLE. They add those of `__consumer_offsets`, too.

Versions: 1 is 0; 2 PRODUCER_FENCED; 3 flexible; 4 many transactions and verification; 5 TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from broker.coordinator.result import ProducerIdAndEpoch
from broker.coordinator.transaction.transaction_metadata import (
    TRANSACTION_VERSION_0,
    TRANSACTION_VERSION_2,
)
from broker.handlers.responses import answered
from broker.handlers.transactions.common import code_for_client, partitions_of
from broker.metadata.image import MetadataImage
from broker.metadata.topic_names import INTERNAL_TOPICS
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from kafka_ds.protocol.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from kafka_ds.protocol.refusal import refusal_of
from kafka_ds.protocol.topic_partition import TopicPartition

FIRST_VERSION_WITH_FENCING = 2
FIRST_VERSION_FOR_BROKERS = 4
FIRST_VERSION_THAT_MAY_ADD = 5

Results = list[AddPartitionsToTxnTopicResult]


@serves(AddPartitionsToTxnRequest, versions="0-5")
def add_partitions_to_txn(
    request: AddPartitionsToTxnRequest, context: RequestContext
) -> AddPartitionsToTxnResponse | Awaitable[AddPartitionsToTxnResponse]:
    """Take partitions into transactions, or look whether they belong there."""
    version = context.header.api_version
    if version >= FIRST_VERSION_FOR_BROKERS:
        return _for_brokers(request, context)
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )

    def finish(results: Results) -> AddPartitionsToTxnResponse:
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)

    knows = version >= FIRST_VERSION_WITH_FENCING
    return answered(
        lambda: _add(
            transaction, context, TRANSACTION_VERSION_0, knows_fencing=knows, is_clients=True
        ),
        finish,
        lambda code: refusal_of(request, version, code_for_client(code, knows_fencing=knows)),
    )


async def _for_brokers(
    request: AddPartitionsToTxnRequest, context: RequestContext
) -> AddPartitionsToTxnResponse:
    asked = [
        _verify(each, context) if each.verify_only else _add_for_broker(each, context)
        for each in request.transactions
    ]
    by_transaction = []
    for each, results in zip(request.transactions, asked, strict=True):
        by_transaction.append(
            AddPartitionsToTxnResult(
                transactional_id=each.transactional_id,
                topic_results=await results if isinstance(results, Awaitable) else results,
            )
        )
    return AddPartitionsToTxnResponse(results_by_transaction=by_transaction)


def _add_for_broker(
    transaction: AddPartitionsToTxnTransaction, context: RequestContext
) -> Results | Awaitable[Results]:
    can_bump = context.header.api_version >= FIRST_VERSION_THAT_MAY_ADD
    return _add(
        transaction,
        context,
        TRANSACTION_VERSION_2 if can_bump else TRANSACTION_VERSION_0,
        knows_fencing=True,
    )


def _add(
    transaction: AddPartitionsToTxnTransaction,
    context: RequestContext,
    client_transaction_version: int,
    *,
    knows_fencing: bool,
    is_clients: bool = False,
) -> Results | Awaitable[Results]:
    """Each partition's result; nothing is added where one may not be, or does not exist."""
    topics = transaction.topics
    partitions = partitions_of(topics)
    image = context.broker.metadata
    refused = {
        each: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for each in partitions
        if not _exists(image, each)
    }
    if is_clients:
        internal = (each for each in partitions if each.topic in INTERNAL_TOPICS)
        refused |= dict.fromkeys(internal, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if refused:
        return _results(topics, lambda each: refused.get(each, ErrorCode.OPERATION_NOT_ATTEMPTED))
    return answered(
        lambda: context.broker.transactions.add_partitions(
            transaction.transactional_id,
            ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch),
            partitions,
            client_transaction_version=client_transaction_version,
        ),
        lambda _: _results(topics, lambda _: ErrorCode.NONE),
        lambda code: _results(topics, lambda _: code_for_client(code, knows_fencing=knows_fencing)),
    )


def _verify(
    transaction: AddPartitionsToTxnTransaction, context: RequestContext
) -> Awaitable[Results]:
    transactional_id = transaction.transactional_id
    producer = ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)
    asked = {
        partition: answered(
            partial(context.broker.transactions.verify, transactional_id, producer, partition),
            lambda _: ErrorCode.NONE,
            lambda code: code,
        )
        for partition in partitions_of(transaction.topics)
    }

    async def verified() -> Results:
        codes = {
            partition: await code if isinstance(code, Awaitable) else code
            for partition, code in asked.items()
        }
        return _results(transaction.topics, codes.__getitem__)

    return verified()


def _exists(image: MetadataImage, where: TopicPartition) -> bool:
    return image.partition(where.topic, where.partition) is not None


def _results(
    topics: list[AddPartitionsToTxnTopic], code_of: Callable[[TopicPartition], ErrorCode]
) -> Results:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=partition,
                    partition_error_code=code_of(TopicPartition(topic.name, partition)),
                )
                for partition in topic.partitions
            ],
        )
        for topic in topics
    ]

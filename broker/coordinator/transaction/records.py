"""Pure: transactions as records of `__transaction_state`.

Rules of this file: the value's version is 1, which Kafka reads since 3.5 and writes if its transaction.version is above
0; with it the previous producer id survives a restart. Partitions are null without a transaction, as in Kafka.
"""

from __future__ import annotations

from collections import defaultdict

from broker.coordinator.transaction.states import BY_NUMBER, TransactionState
from broker.coordinator.transaction.values import TransactionMetadata
from kafka_ds.protocol.errors import MalformedFrame
from kafka_ds.protocol.messages.persisted_transactions import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from kafka_ds.protocol.topic_partition import TopicPartition

VALUE_VERSION = 1


def encode_record(
    transactional_id: str, transaction: TransactionMetadata | None
) -> tuple[bytes, bytes | None]:
    """Key and value of a transactional id's record; without a transaction it is a tombstone."""
    key = encode_key(TransactionLogKey(transactional_id=transactional_id))
    if transaction is None:
        return key, None
    partitions = None
    if transaction.state is not TransactionState.EMPTY:
        partitions = [
            PartitionsSchema(topic=topic, partition_ids=indexes)
            for topic, indexes in by_topic(transaction.partitions).items()
        ]
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state.number,
        transaction_partitions=partitions,
        transaction_last_update_timestamp_ms=transaction.updated_ms,
        transaction_start_timestamp_ms=transaction.started_ms,
        client_transaction_version=transaction.client_version,
    )
    return key, encode_value(value, VALUE_VERSION)


def decode_record(key: bytes, value: bytes | None) -> tuple[str, TransactionMetadata | None] | None:
    """What a record says; None for one of another type. Raises MalformedFrame."""
    known = decode_key(key)
    if known is None:
        return None
    if value is None:
        return known.transactional_id, None
    found = decode_value(value)
    state = BY_NUMBER.get(found.transaction_status)
    if state is None:
        raise MalformedFrame(f"transaction status {found.transaction_status} is not known")
    transaction = TransactionMetadata(
        transactional_id=known.transactional_id,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        timeout_ms=found.transaction_timeout_ms,
        state=state,
        updated_ms=found.transaction_last_update_timestamp_ms,
        partitions=frozenset(
            TopicPartition(topic.topic, index)
            for topic in found.transaction_partitions or ()
            for index in topic.partition_ids
        ),
        started_ms=found.transaction_start_timestamp_ms,
        previous_producer_id=found.previous_producer_id,
        next_producer_id=found.next_producer_id,
        client_version=found.client_transaction_version,
    )
    return known.transactional_id, transaction


def by_topic(partitions: frozenset[TopicPartition]) -> dict[str, list[int]]:
    """Partitions under their topics, in order."""
    found: dict[str, list[int]] = defaultdict(list)
    for topic, index in sorted(partitions):
        found[topic].append(index)
    return found

"""Shell: TxnOffsetCommit 0-6: commits offsets of a group with the producer's transaction.

- The group's partition of `__consumer_offsets` must belong to the transaction: up to version 4 it was added by
  AddOffsetsToTxn (INVALID_TXN_STATE, in 4 TRANSACTION_ABORTABLE), since version 5 it joins by this request (KIP-890).
- Partitions that do not exist are UNKNOWN_TOPIC_OR_PARTITION each, or UNKNOWN_TOPIC_ID where topics are named by id;
  all other errors come from the group's coordinator.
- Versions 0 and 1 get COORDINATOR_NOT_AVAILABLE, which clients retry, instead of COORDINATOR_LOAD_IN_PROGRESS.

Versions: 1 is 0; 2 leader epochs; 3 flexible, member and generation (KIP-447); 4 TRANSACTION_ABORTABLE; 5 KIP-890;
6 topic ids, GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH instead of ILLEGAL_GENERATION (KIP-1319).
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.coordinator.result import ProducerIdAndEpoch
from broker.coordinator.transaction.add_partitions_to_txn_manager import (
    PendingVerification,
    support_of,
)
from broker.handlers.groups.common import client_of
from broker.handlers.groups.known_partitions import merge, remove_unknown
from broker.handlers.responses import answered
from broker.metadata.topic_names import GROUP_METADATA_TOPIC_NAME
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from kafka_ds.protocol.messages.transactions import FIRST_VERSION_WITH_TOPIC_IDS
from kafka_ds.protocol.refusal import refusal_of

FIRST_VERSION_WITH_LOADING = 2
FIRST_VERSION_THAT_JOINS = 5
# The group's log cannot be written now: for a client that is an error of its coordinator.
_COORDINATOR_ERRORS = {
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
}


@serves(TxnOffsetCommitRequest, versions="0-6")
def txn_offset_commit(
    request: TxnOffsetCommitRequest, context: RequestContext
) -> TxnOffsetCommitResponse | Awaitable[TxnOffsetCommitResponse]:
    """Commit the offsets of partitions that exist, with the transaction."""
    version = context.header.api_version
    by_id = version >= FIRST_VERSION_WITH_TOPIC_IDS
    refused = remove_unknown(request, version, context.broker.metadata, by_id=by_id)

    def finish(response: TxnOffsetCommitResponse) -> TxnOffsetCommitResponse:
        merge(response, refused, by_id=by_id)
        return response

    def fail(code: ErrorCode) -> TxnOffsetCommitResponse:
        return finish(refusal_of(request, version, _code_for_client(code, version)))

    def submit() -> object:
        return context.broker.groups.submit(request.group_id, request, client_of(context))

    def join_and_submit() -> object:
        pending = _join(request, context) if request.group_id else None
        return submit() if pending is None else pending.before(submit)

    if refused and not request.topics:
        return TxnOffsetCommitResponse(topics=refused)
    return answered(join_and_submit, finish, fail)


def _join(request: TxnOffsetCommitRequest, context: RequestContext) -> PendingVerification | None:
    """Check that the offsets belong to the open transaction: None, or what to wait for; raises KafkaError."""
    broker = context.broker
    partition = broker.groups.runtime.partition_of(request.group_id)
    if partition is None:
        raise KafkaError(ErrorCode.NOT_COORDINATOR)
    return broker.transactions.add_partitions_to_txn.join(
        broker.replica_manager.get(GROUP_METADATA_TOPIC_NAME, partition),
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        support_of(context.header.api_version, FIRST_VERSION_THAT_JOINS),
    )


def _code_for_client(code: ErrorCode, version: int) -> ErrorCode:
    code = _COORDINATOR_ERRORS.get(code, code)
    if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < FIRST_VERSION_WITH_LOADING:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code

"""Shell: ShareAcknowledge 1-2: a member of a share group says what became of records.

- A partition's acknowledgements are taken all or none, and answered when their state is written. INVALID_RECORD_STATE
  for records that the member does not have (any more), INVALID_REQUEST for batches that are not in order or types that
  do not exist; COORDINATOR_NOT_AVAILABLE if the state could not be written: the records are the member's as before.
- The last request of a session, epoch -1, releases what the member still has. SHARE_SESSION_NOT_FOUND and
  INVALID_SHARE_SESSION_EPOCH concern the whole request; it cannot begin a session.
- While share.version is 0: UNSUPPORTED_VERSION.

Versions: 2 renewals of locks (KIP-1222).
"""

from __future__ import annotations

import asyncio

from broker.handlers.common import LEADERSHIP_ERRORS, check_share_groups
from broker.handlers.records.share_acknowledgements import acknowledge_all, acknowledgements_of
from broker.handlers.records.share_fetch import current_leader, endpoints, session_key
from broker.registry import RequestContext, serves
from broker.share.share_sessions import FINAL_EPOCH, INITIAL_EPOCH
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import ShareAcknowledgeRequest, ShareAcknowledgeResponse
from kafka_ds.protocol.messages.share_fetch import (
    ShareAcknowledgePartitionData,
    ShareAcknowledgeTopicResponse,
    ShareLeaderIdAndEpoch,
)


@serves(ShareAcknowledgeRequest, versions="1-2")
async def share_acknowledge(
    request: ShareAcknowledgeRequest, context: RequestContext
) -> ShareAcknowledgeResponse:
    """Take the acknowledgements of each partition."""
    check_share_groups(context.broker.metadata)
    shares = context.broker.share_partitions
    key = session_key(request)
    if request.share_session_epoch == INITIAL_EPOCH:
        raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
    shares.sessions.use(key, request.share_session_epoch, now_ms=shares.now_ms())
    outcomes = await acknowledge_all(
        key, acknowledgements_of(request.topics), context, may_renew=request.is_renew_ack
    )
    if request.share_session_epoch == FINAL_EPOCH:
        released = [task for _, task in shares.leave(key)]
        await asyncio.gather(*released, return_exceptions=True)
    topics: dict[bytes, list[ShareAcknowledgePartitionData]] = {}
    leaders: list[ShareLeaderIdAndEpoch] = []
    for (topic_id, partition), error in outcomes.items():
        data = ShareAcknowledgePartitionData(
            partition_index=partition, current_leader=ShareLeaderIdAndEpoch()
        )
        if error is not None:
            data.error_code, data.error_message = error.code, error.message or None
            if error.code in LEADERSHIP_ERRORS:
                data.current_leader = current_leader((topic_id, partition), context)
                leaders.append(data.current_leader)
        topics.setdefault(topic_id, []).append(data)
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=shares.config_of(key.group_id).lock_ms,
        responses=[
            ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics.items()
        ],
        node_endpoints=endpoints(leaders, context),
    )

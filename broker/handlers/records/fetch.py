"""Shell: Fetch 4-18: reads batches from logs; waits for more if there are fewer than min_bytes.

- Batches go out whole, as they are in the log, beginning with the one that holds the offset: a consumer that asks for
  the middle of a batch gets all of it. At most max_bytes (and fetch.max.bytes) in all and partition_max_bytes of each
  partition, but always one batch (KIP-74).
- Consumers read below the high watermark, with read_committed below the last stable offset. With read_committed the
  answer lists the aborted transactions in the returned range.
- With fewer than min_bytes the request is parked for max_wait_ms, and events wake it (`parking`).
- Offsets that are only in the lake are read from there, for all partitions at the same time, and answered in the same
  response as the others. If that fails, or too many requests wait, the partition alone gets KAFKA_STORAGE_ERROR. If it
  takes longer than remote.fetch.max.wait.ms, or the fetch quota is used up (KIP-956), the partition's answer has no
  records and no error: the consumer asks again.
- OFFSET_OUT_OF_RANGE outside of log start and log end. FENCED_LEADER_EPOCH and UNKNOWN_LEADER_EPOCH if the
  reader's current epoch is not this leader's (v9+, KIP-320); a diverging epoch if the epoch of its last batch
  ended earlier here (v12+, KIP-595).
- Sessions (v7+, KIP-227): `broker.replica.serving.fetch_sessions`. FETCH_SESSION_ID_NOT_FOUND for a closed session,
  INVALID_FETCH_SESSION_EPOCH for a request that is not the next one, FETCH_SESSION_TOPIC_ID_ERROR if names and ids
  are mixed.
- Followers give their id (replica_id, from v15 on replica_state with their broker epoch). They read up to the log's
  end, uncommitted records as well. The offset that a follower asks for is the end of its log
  (`LeaderPartition.fetched`). Appends wake it, and it is answered at once when it can move its high watermark (v18 says
  where that is). UNKNOWN_LEADER_EPOCH for a broker that is no replica, NOT_LEADER_OR_FOLLOWER for an old broker epoch,
  and OFFSET_MOVED_TO_TIERED_STORAGE for offsets that are only in the lake. A throttled follower (KIP-73) gets nothing.
- Consumers of v11+ may read from followers, too, below the follower's own high watermark (KIP-392). If
  replica.selector.class says so, the leader names a replica in the consumer's rack and returns no records.
- Unknown: UNKNOWN_TOPIC_OR_PARTITION, by id UNKNOWN_TOPIC_ID.

Versions: 5 log_start_offset; 7 sessions; 9 current_leader_epoch; 10 zstd; 11 rack_id (KIP-392); 12 flexible,
last_fetched_epoch; 13 topic ids (KIP-516); 14 tiered storage (KIP-405); 15 replica_state (KIP-903); 16 endpoints with
NOT_LEADER_OR_FOLLOWER (KIP-951); 17 directory ids (KIP-853); 18 the follower's high watermark (KIP-1166).
Left out: zstd batches are not converted for requests before version 10.
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.handlers.records.found import replica_of
from broker.handlers.records.parking import ParkedFetch
from broker.handlers.records.reading import Reading
from broker.log.values import READ_COMMITTED, READ_UNCOMMITTED
from broker.registry import RequestContext, serves
from broker.replica.serving.fetch_sessions import FetchContext
from broker.replica.session_epochs import FINAL_EPOCH
from kafka_ds.wire.errors import ErrorCode
from kafka_ds.wire.messages import FetchRequest, FetchResponse
from kafka_ds.wire.messages.data import (
    FIRST_VERSION_WITH_TOPIC_IDS,
    FetchableTopicResponse,
    FetchPartitionData,
)


def refuse(request: FetchRequest, code: ErrorCode, message: str | None) -> FetchResponse:
    """The same error for the whole (v7+) and for every partition."""
    return FetchResponse(
        error_code=code,
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    FetchPartitionData(
                        partition_index=wanted.partition,
                        error_code=code,
                        high_watermark=-1,
                        records=b"",
                    )
                    for wanted in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


@serves(FetchRequest, versions="4-18", failure=refuse)
def fetch(
    request: FetchRequest, context: RequestContext
) -> FetchResponse | Awaitable[FetchResponse]:
    """Read from each partition, or wait until there is something to read."""
    wants = _wants(request, context)
    if wants.error is not ErrorCode.NONE:
        return FetchResponse(error_code=wants.error, responses=[])
    if request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        return refuse(request, ErrorCode.INVALID_REQUEST, None)
    reading = Reading(request, context, wants)
    reading.find()
    may_wait = request.max_wait_ms > 0 and wants.has_partitions
    if reading.is_urgent or not may_wait or reading.size_bytes >= reading.min_bytes:
        return reading.answer()
    return ParkedFetch(reading, request.max_wait_ms).future


def _wants(request: FetchRequest, context: RequestContext) -> FetchContext:
    """All partitions that the request asks for, with those of its session."""
    if request.session_epoch == FINAL_EPOCH and not request.session_id:
        # As most clients do that know nothing of sessions.
        return FetchContext(topics=request.topics)
    node = context.node
    version = context.header.api_version
    replica_id, broker_epoch = replica_of(request)
    return node.fetching.sessions.begin(
        request,
        has_topic_ids=version >= FIRST_VERSION_WITH_TOPIC_IDS,
        replica_id=replica_id,
        now_ms=node.clock.monotonic_ms(),
        basis=(version, broker_epoch, request.isolation_level, node.metadata.version),
    )

"""Shell: Fetch 4-18: batches out of logs, waiting a while where there is little.

- Batches go out as they lie in the log, whole, from the one that holds the offset: a consumer that asks for the
  middle of a batch gets all of it. At most max_bytes (and fetch.max.bytes) in all and partition_max_bytes of each
  partition, but always one batch (KIP-74).
- Consumers read below the high watermark, with read_committed below the last stable offset; then the aborted
  transactions of what is returned come with it.
- With fewer than min_bytes the request is parked for max_wait_ms and woken by what happens (`parking`).
- Offsets that are in the lake alone are read from there and answered in the same response as the others; when that
  fails it is KAFKA_STORAGE_ERROR for the partition and nothing else.
- OFFSET_OUT_OF_RANGE outside of log start and log end. FENCED_LEADER_EPOCH and UNKNOWN_LEADER_EPOCH where the
  reader's current epoch is not this leader's (v9+, KIP-320); a diverging epoch where the epoch of its last batch
  ended earlier here (v12+, KIP-595).
- Sessions (v7+, KIP-227): a full fetch is answered with session id 0, "no session", which KIP-227 allows; an
  incremental one can only be of a session that nobody has: FETCH_SESSION_ID_NOT_FOUND.
- Unknown: UNKNOWN_TOPIC_OR_PARTITION, by id UNKNOWN_TOPIC_ID.

Versions: 5 log_start_offset; 7 sessions; 9 current_leader_epoch; 10 zstd; 11 rack_id (KIP-392); 12 flexible,
last_fetched_epoch; 13 topic ids (KIP-516); 14 tiered storage (KIP-405); 15 replica_state (KIP-903); 16 endpoints with
NOT_LEADER_OR_FOLLOWER (KIP-951); 17 directory ids (KIP-853); 18 the follower's high watermark (KIP-1166).
Left out: followers. A fetch in the name of a replica is UNKNOWN_LEADER_EPOCH, as it is of one that Kafka does not
know; preferred read replicas are never named. Batches older than zstd's version are not converted.
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.handlers.parking import ParkedFetch
from broker.handlers.reading import Reading
from broker.net.registry import RequestContext, serves
from kafka_ds.wire.errors import ErrorCode
from kafka_ds.wire.messages import FetchRequest, FetchResponse
from kafka_ds.wire.messages.data import FetchableTopicResponse, FetchPartitionData

READ_UNCOMMITTED = 0
READ_COMMITTED = 1
# Session epochs of a request that stands for itself: the first of a session, and the last.
FULL_FETCH_EPOCHS = (0, -1)


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
    if request.session_epoch not in FULL_FETCH_EPOCHS:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, responses=[])
    if request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        return refuse(request, ErrorCode.INVALID_REQUEST, None)
    reading = Reading(request, context)
    reading.find()
    may_wait = request.max_wait_ms > 0 and request.topics
    if reading.is_urgent or not may_wait or reading.size_bytes >= reading.min_bytes:
        return reading.answer()
    return ParkedFetch(reading, request.max_wait_ms).future

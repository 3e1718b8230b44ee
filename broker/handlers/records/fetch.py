"""Shell: Fetch 4-18: batches out of logs, waiting a while where there is little.

- Batches go out as they lie in the log, whole, from the one that holds the offset: a consumer that asks for the
  middle of a batch gets all of it. At most max_bytes (and fetch.max.bytes) in all and partition_max_bytes of each
  partition, but always one batch (KIP-74).
- Consumers read below the high watermark, with read_committed below the last stable offset; then the aborted
  transactions of what is returned come with it.
- With fewer than min_bytes the request is parked for max_wait_ms and woken by what happens (`parking`).
- Offsets that are in the lake alone, of however many partitions, are read from there side by side and answered in
  the same response as the others; when that fails, or too many wait, it is KAFKA_STORAGE_ERROR for the partition and
  nothing else. What is not there within remote.fetch.max.wait.ms, and what the fetch quota sheds (KIP-956), is an
  answer without records and without an error: the consumer asks again.
- OFFSET_OUT_OF_RANGE outside of log start and log end. FENCED_LEADER_EPOCH and UNKNOWN_LEADER_EPOCH where the
  reader's current epoch is not this leader's (v9+, KIP-320); a diverging epoch where the epoch of its last batch
  ended earlier here (v12+, KIP-595).
- Sessions (v7+, KIP-227): `broker.replica.fetch_sessions`. FETCH_SESSION_ID_NOT_FOUND for one that was closed,
  INVALID_FETCH_SESSION_EPOCH for a request that is not the next one, FETCH_SESSION_TOPIC_ID_ERROR where names and ids
  are mixed.
- Followers say who they are (replica_id, from v15 on replica_state with their broker epoch). They read up to the log's
  end, uncommitted records as well; the offset that they ask for is what they have (`LeaderPartition.fetched`). They
  are woken by appends, and answered at once when they can move their high watermark (v18 says where it is).
  UNKNOWN_LEADER_EPOCH for who is no replica, NOT_LEADER_OR_FOLLOWER for a broker epoch that is over, and
  OFFSET_MOVED_TO_TIERED_STORAGE for offsets that are in the lake alone. Throttled (KIP-73) they get nothing.
- Consumers of v11+ may read from followers too, below the follower's own high watermark (KIP-392). The leader names a
  replica in the consumer's rack, and gives no records, where replica.selector.class says so.
- Unknown: UNKNOWN_TOPIC_OR_PARTITION, by id UNKNOWN_TOPIC_ID.

Versions: 5 log_start_offset; 7 sessions; 9 current_leader_epoch; 10 zstd; 11 rack_id (KIP-392); 12 flexible,
last_fetched_epoch; 13 topic ids (KIP-516); 14 tiered storage (KIP-405); 15 replica_state (KIP-903); 16 endpoints with
NOT_LEADER_OR_FOLLOWER (KIP-951); 17 directory ids (KIP-853); 18 the follower's high watermark (KIP-1166).
Left out: batches older than zstd's version are not converted.
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.handlers.records.found import replica_of
from broker.handlers.records.parking import ParkedFetch
from broker.handlers.records.reading import CONSUMER, FIRST_VERSION_WITH_TOPIC_IDS, Reading
from broker.registry import RequestContext, serves
from broker.replica.fetch_sessions import FINAL_EPOCH, FetchContext
from kafka_ds.wire.errors import ErrorCode
from kafka_ds.wire.messages import FetchRequest, FetchResponse
from kafka_ds.wire.messages.data import FetchableTopicResponse, FetchPartitionData

READ_UNCOMMITTED = 0
READ_COMMITTED = 1


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
    may_wait = request.max_wait_ms > 0 and wants.topics
    if reading.is_urgent or not may_wait or reading.size_bytes >= reading.min_bytes:
        return reading.answer()
    return ParkedFetch(reading, request.max_wait_ms).future


def _wants(request: FetchRequest, context: RequestContext) -> FetchContext:
    """What the request stands for within its session."""
    if request.session_epoch == FINAL_EPOCH and not request.session_id:
        return FetchContext(
            topics=request.topics
        )  # As most clients do that know nothing of sessions.
    node = context.node
    return node.fetching.sessions.begin(
        request,
        has_topic_ids=context.header.api_version >= FIRST_VERSION_WITH_TOPIC_IDS,
        is_follower=replica_of(request)[0] > CONSUMER,
        now_ms=node.clock.monotonic_ms(),
    )

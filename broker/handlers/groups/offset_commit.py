"""Shell: OffsetCommit 2-10: commits offsets of a group.

- Members name their generation. A commit for another generation is ILLEGAL_GENERATION, one by an unknown member
  UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID. While the assignment is awaited: REBALANCE_IN_PROGRESS. Generation -1 is for
  "simple" consumers and operators, and only while the group has no members.
- If the group does not exist: with a generation GROUP_ID_NOT_FOUND (v9+) or ILLEGAL_GENERATION; else it is created.
- Partitions that do not exist: UNKNOWN_TOPIC_OR_PARTITION, or UNKNOWN_TOPIC_ID where topics are named by id. Metadata
  longer than offset.metadata.max.bytes: OFFSET_METADATA_TOO_LARGE. The others of the request are committed.
- A commit is in the log, and below the high watermark, when it is answered. It keeps the member's session alive.

Versions: 2-4 retention_time_ms, which is kept; 5 without it (KIP-211); 6 leader epochs (KIP-320); 7 static members
(KIP-345); 8 flexible; 9 the errors of KIP-848; 10 topic ids (KIP-848).
Left out: nothing. Members of KIP-848's groups name their epoch: STALE_MEMBER_EPOCH if it is not the present one.
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.handlers.groups.common import client_of
from broker.handlers.groups.known_partitions import merge, remove_unknown
from broker.handlers.responses import answered
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import OffsetCommitRequest, OffsetCommitResponse
from kafka_ds.protocol.messages.group_offsets import FIRST_VERSION_WITH_TOPIC_IDS
from kafka_ds.protocol.refusal import refusal_of


@serves(OffsetCommitRequest, versions="2-10")
def offset_commit(
    request: OffsetCommitRequest, context: RequestContext
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    """Commit the offsets of partitions that exist."""
    version = context.header.api_version
    by_id = version >= FIRST_VERSION_WITH_TOPIC_IDS
    refused = remove_unknown(request, version, context.broker.metadata, by_id=by_id)
    if refused and not request.topics:
        return OffsetCommitResponse(topics=refused)

    def finish(response: OffsetCommitResponse) -> OffsetCommitResponse:
        merge(response, refused, by_id=by_id)
        return response

    def fail(code: ErrorCode) -> OffsetCommitResponse:
        return finish(refusal_of(request, version, code))

    def submit() -> object:
        return context.broker.groups.submit(request.group_id, request, client_of(context))

    return answered(submit, finish, fail)

"""Shell: DescribeShareGroupOffsets 0-1: from where on share groups have records to deliver, and their lag (KIP-932).

- Without topics: all partitions that have a state, but for topics that the client may not describe.
- A start offset of -1: the partition has no state yet, or it could not be read (Kafka shows no error either).
- The lag is the high watermark less the start offset and the records that are done with behind it; -1 if not known.
- Topics that the client may not describe: TOPIC_AUTHORIZATION_FAILED for each partition. The coordinator's errors, for
  each group by itself. While share.version is 0: UNSUPPORTED_VERSION.

Versions: 1 the lag (KIP-1226).
Left out: nothing.
"""

from __future__ import annotations

from broker.handlers.common import check_share_groups
from broker.handlers.groups.common import client_of
from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
)
from kafka_ds.protocol.messages.share_groups import (
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from kafka_ds.protocol.refusal import refusal

NO_EPOCH = 0


@serves(DescribeShareGroupOffsetsRequest, versions="0-1")
async def describe_share_group_offsets(
    request: DescribeShareGroupOffsetsRequest, context: RequestContext
) -> DescribeShareGroupOffsetsResponse:
    """Describe the groups, each by itself."""
    return DescribeShareGroupOffsetsResponse(
        groups=[await _describe(group, context) for group in request.groups]
    )


async def _describe(
    asked: DescribeShareGroupOffsetsRequestGroup, context: RequestContext
) -> DescribeShareGroupOffsetsResponseGroup:
    client = client_of(context)
    denied = [each for each in asked.topics or () if not client.sees(each.topic_name)]
    if asked.topics is not None:
        asked.topics = [each for each in asked.topics if client.sees(each.topic_name)]
    try:
        check_share_groups(context.broker.metadata)
        described = await context.broker.groups.share_states.describe(asked, client)
    except KafkaError as error:
        return refusal(
            DescribeShareGroupOffsetsResponseGroup, asked, error.code, error.message or None
        )
    shown = [topic for topic in described.topics if client.sees(topic.topic_name)]
    described.topics = [*shown, *map(_denied, denied)]
    return described


def _denied(topic: DescribeShareGroupOffsetsRequestTopic) -> DescribeShareGroupOffsetsResponseTopic:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return DescribeShareGroupOffsetsResponseTopic(
        topic_name=topic.topic_name,
        partitions=[
            DescribeShareGroupOffsetsResponsePartition(
                partition_index=partition,
                start_offset=0,
                leader_epoch=NO_EPOCH,
                error_code=code,
                error_message="Topic authorization failed.",
            )
            for partition in topic.partitions
        ],
    )

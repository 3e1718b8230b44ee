"""What several tests use: commit_in_transaction."""

from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    TxnOffsetCommitRequest,
)
from tests.requests import build
from tests.unit.coordinator.group.group_desk import GROUP, GroupDesk

ID_1, ID_2 = bytes([1] * 16), bytes([2] * 16)


def commit_in_transaction(
    desk: GroupDesk,
    offset: int,
    *,
    producer_id: int = 7,
    member_id: str = "",
    generation_id: int = -1,
    group: str = GROUP,
    topic: str = "t",
    metadata: str | None = None,
    version: int = 5,
) -> ErrorCode:
    request = build(
        TxnOffsetCommitRequest,
        transactional_id="tx",
        group_id=group,
        producer_id=producer_id,
        producer_epoch=0,
        generation_id_or_member_epoch=generation_id,
        member_id=member_id,
        name=topic,
        partition_index=0,
        committed_offset=offset,
        committed_metadata=metadata,
    )
    try:
        response = desk.call(request, version=version)
    except KafkaError as error:
        return error.code
    return ErrorCode(response.topics[0].partitions[0].error_code)

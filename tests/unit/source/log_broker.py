"""What several tests use: LogBroker."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    OffsetForLeaderEpochResponse,
)
from kafka_ds.protocol.messages.offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochEndOffset,
)
from kafka_ds.source.options.options import parse_options
from kafka_ds.source.plan.scan_plan import ScanTask
from kafka_ds.source.stream import KafkaStreamReader
from tests.fakes.scripted_broker import TOPIC_ID, ScriptedBroker
from tests.requests import build

OTHER_ID = bytes(range(2, 18))


class LogBroker:
    """A broker with one partition, of which only the bounds and epochs are there."""

    def __init__(self) -> None:
        self.topic_id = TOPIC_ID
        self.there = True
        self.start, self.end = 0, 100
        self.first_epoch = 0
        # An epoch to where it ends in the leader's log.
        self.epoch_ends: dict[int, int] = {}
        self.broker = ScriptedBroker(self._answer)

    def _answer(self, request: Any) -> Any:
        match request:
            case MetadataRequest():
                code = ErrorCode.NONE if self.there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                return self.broker.metadata(topic_id=self.topic_id, error_code=code)
            case ListOffsetsRequest():
                latest = request.topics[0].partitions[0].timestamp == -1
                offset = ListOffsetsPartitionResponse(
                    partition_index=0,
                    offset=self.end if latest else self.start,
                    leader_epoch=self.broker.leader_epoch if latest else self.first_epoch,
                )
                topic = ListOffsetsTopicResponse(name="t", partitions=[offset])
                return ListOffsetsResponse(topics=[topic])
            case DescribeConfigsRequest():
                return DescribeConfigsResponse(results=[])
        epoch = request.topics[0].partitions[0].leader_epoch
        end = OffsetForLeaderEpochEndOffset(
            partition=0, leader_epoch=epoch, end_offset=self.epoch_ends[epoch]
        )
        return build(OffsetForLeaderEpochResponse, topics=[{"topic": "t", "partitions": [end]}])

    def options(self, **more: str) -> dict[str, str]:
        servers = f"127.0.0.1:{self.broker.port}"
        return {
            "kafka.bootstrap.servers": servers, "subscribePattern": "t", "tiers": "local",
            "startingOffsets": "earliest", **more,
        }  # fmt: skip

    def planned(self, start: dict[str, Any], end: dict[str, Any], **more: str) -> list[ScanTask]:
        """The tasks of a batch, as a reader lays them that has just been started."""
        reader = KafkaStreamReader(parse_options(self.options(**more), stream=True), pa.schema([]))
        try:
            return [task for each in reader.partitions(start, end) for task in each.value]
        finally:
            reader.stop()

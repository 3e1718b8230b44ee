"""What is counted of groups is the broker's, and not less when a partition of theirs has another leader."""

from __future__ import annotations

from pathlib import Path

from broker.broker_metrics import broker_samples
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import FindCoordinatorRequest, OffsetCommitRequest
from kafka_ds.protocol.messages.group_offsets import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.in_process import InProcess, in_process
from tests.loops import in_loop

COMMITTED = "kafka.server:type=group-coordinator-metrics:offset-commit-count"


def committed(broker: InProcess) -> object:
    (shown,) = (
        value for metric, _, value in broker_samples(broker.node) if metric.bean == COMMITTED
    )
    return shown


@in_loop
async def test_what_was_counted_stays_when_a_partition_goes(memory_path: Path) -> None:
    async with in_process(memory_path, offsets_topic_num_partitions=1) as broker:
        await broker.create("t")
        find = FindCoordinatorRequest(key="g", key_type=0)
        assert (await broker.ask(find, 2)).error_code == ErrorCode.NONE
        partition = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=5, committed_metadata=None
        )
        topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
        request = OffsetCommitRequest(
            group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=[topic]
        )
        answer = await broker.ask(request, 8)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
        assert committed(broker) == 1
        broker.node.groups.runtime.context_of("g").close()
        assert not list(broker.node.groups.shards())
        assert committed(broker) == 1

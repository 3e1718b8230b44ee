"""Shell: AlterPartition 2-3: a leader asks the controller to change the ISR of its partitions (KIP-497).

- Answered by the active controller, once the change is durable: NOT_CONTROLLER elsewhere.
- STALE_BROKER_EPOCH for the whole request, if it is from an older incarnation of the broker.
- Each partition has its own answer: its present state, or an error of `broker.controller.isr`.

Versions: 3 an epoch for each member of the ISR (KIP-903); before, any incarnation of a member is accepted.
Left out: nothing.
"""

from __future__ import annotations

from broker.controller.isr import AlterPartition, AlterPartitionResult
from broker.registry import RequestContext, serves
from kafka_ds.protocol.messages import AlterPartitionRequest, AlterPartitionResponse
from kafka_ds.protocol.messages.brokers import (
    AlterPartitionRequestPartition,
    AlterPartitionResponsePartition,
    AlterPartitionResponseTopic,
)
from kafka_ds.topic.metadata_table import NO_BROKER_EPOCH

FIRST_VERSION_WITH_EPOCHS = 3


@serves(AlterPartitionRequest, versions="2-3", internal=True, pipelined=True)
async def alter_partition(
    request: AlterPartitionRequest, context: RequestContext
) -> AlterPartitionResponse:
    """Change the ISRs, or say why not."""
    with_epochs = context.header.api_version >= FIRST_VERSION_WITH_EPOCHS
    wanted = [
        _wanted(topic.topic_id, partition, with_epochs)
        for topic in request.topics
        for partition in topic.partitions
    ]
    results = await context.broker.metadata_driver.decide(
        lambda c: c.alter_partitions(request.broker_id, request.broker_epoch, wanted)
    )
    topics: dict[bytes, list[AlterPartitionResponsePartition]] = {}
    for result in results:
        topics.setdefault(result.topic_id, []).append(_answer(result))
    return AlterPartitionResponse(
        topics=[
            AlterPartitionResponseTopic(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics.items()
        ]
    )


def _wanted(
    topic_id: bytes, wanted: AlterPartitionRequestPartition, with_epochs: bool
) -> AlterPartition:
    if with_epochs:
        new_isr = tuple((each.broker_id, each.broker_epoch) for each in wanted.new_isr_with_epochs)
    else:
        new_isr = tuple((broker_id, NO_BROKER_EPOCH) for broker_id in wanted.new_isr)
    return AlterPartition(
        topic_id=topic_id,
        partition=wanted.partition_index,
        new_isr=new_isr,
        leader_epoch=wanted.leader_epoch,
        partition_epoch=wanted.partition_epoch,
        leader_recovery_state=wanted.leader_recovery_state,
    )


def _answer(result: AlterPartitionResult) -> AlterPartitionResponsePartition:
    holds = result.registration
    if holds is None:
        return AlterPartitionResponsePartition(
            partition_index=result.partition,
            error_code=result.error,
            leader_id=-1,
            leader_epoch=-1,
            isr=[],
            partition_epoch=-1,
        )
    return AlterPartitionResponsePartition(
        partition_index=result.partition,
        error_code=result.error,
        leader_id=holds.leader,
        leader_epoch=holds.leader_epoch,
        isr=list(holds.isr),
        leader_recovery_state=holds.leader_recovery_state,
        partition_epoch=holds.partition_epoch,
    )

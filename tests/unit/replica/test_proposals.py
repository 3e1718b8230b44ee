"""AlterPartition requests: one at a time, what they batch, and what happens without an answer."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.replica.leader.alter_partition import AlterPartitionManager
from broker.replica.leader.isr import Proposal
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import AlterPartitionRequest, AlterPartitionResponse
from tests.fakes.cluster import identity_of
from tests.fakes.network import Respondent
from tests.in_process import batch_of, in_process
from tests.loops import in_loop, pass_time, turns, until
from tests.requests import build
from tests.unit.replica.follower_desk import EPOCH, FollowerDesk, desk


class ScriptedController(Respondent):
    """A controller that grants requests, or answers as the test says, when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.says: list[KafkaError | ErrorCode | dict[str, Any]] = []

    def answer(self, request: AlterPartitionRequest) -> Any:
        says = self.says.pop(0) if self.says else {}
        if isinstance(says, KafkaError):
            return says
        if isinstance(says, ErrorCode):
            return AlterPartitionResponse(throttle_time_ms=0, error_code=says, topics=[])
        return build(
            AlterPartitionResponse,
            throttle_time_ms=0,
            error_code=0,
            topics=[
                {
                    "topic_id": topic.topic_id,
                    "partitions": [
                        {
                            **{
                                "partition_index": each.partition_index,
                                "error_code": 0,
                                "leader_id": 1,
                                "leader_epoch": each.leader_epoch,
                                "isr": [member.broker_id for member in each.new_isr_with_epochs],
                                "partition_epoch": each.partition_epoch + 1,
                                **says,
                            }
                        }
                        for each in topic.partitions
                    ],
                }
                for topic in request.topics
            ],
        )


def lifecycle_of(broker_epoch: int) -> Any:
    """Of broker 1, with this epoch."""
    return SimpleNamespace(identity=identity_of(1), broker_epoch=broker_epoch)


async def asking(leader: FollowerDesk) -> tuple[ScriptedController, AlterPartitionManager]:
    """The desk's partition asks this controller."""
    controller = ScriptedController()
    proposals = AlterPartitionManager(controller, lifecycle_of(EPOCH + 1), timeout_ms=1000)
    leader.partition.alter_partition = proposals
    return controller, proposals


@in_loop
async def test_a_proposal_goes_out_and_its_answer_comes_back(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        leader = await desk(broker, isr=(1,))
        controller, proposals = await asking(leader)
        controller.may_answer.clear()
        await leader.fetch(2, 0)
        await until(lambda: controller.asked)
        (request,) = controller.asked
        assert (request.broker_id, request.broker_epoch) == (1, EPOCH + 1)
        (partition,) = request.topics[0].partitions
        assert request.topics[0].topic_id == leader.topic_id
        members = [(each.broker_id, each.broker_epoch) for each in partition.new_isr_with_epochs]
        assert members == [(1, EPOCH + 1), (2, EPOCH + 2)]
        assert partition.new_isr == [1, 2]
        controller.may_answer.set()
        await until(lambda: leader.partition.leader.isr == {1, 2})
        assert (proposals.expands, proposals.shrinks, proposals.failed) == (1, 0, 0)
        # The next one goes by itself.
        await leader.fetch(3, 0)
        await until(lambda: leader.partition.leader.isr == {1, 2, 3})
        assert len(controller.asked) == 2


@pytest.mark.parametrize(
    "trouble",
    [
        KafkaError(ErrorCode.REQUEST_TIMED_OUT),
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.NONE,  # The answer does not tell of the partition.
        {"error_code": ErrorCode.UNKNOWN_SERVER_ERROR},
        {"error_code": ErrorCode.NOT_CONTROLLER},
        {"error_code": 9_999},  # Of a controller that is newer than this broker.
    ],
)
@in_loop
async def test_it_is_asked_again(
    memory_path: Path, trouble: KafkaError | ErrorCode | dict[str, Any]
) -> None:
    async with in_process(memory_path) as broker:
        leader = await desk(broker, isr=(1,))
        controller, proposals = await asking(leader)
        controller.says = [trouble, trouble]
        await leader.fetch(2, 0)
        await until(lambda: leader.partition.leader.isr == {1, 2})
        assert len(controller.asked) == 3
        assert (proposals.expands, proposals.failed) == (1, 2)


@in_loop
async def test_a_later_proposal_takes_the_place_of_one_that_waits() -> None:
    controller = ScriptedController()
    manager = AlterPartitionManager(controller, lifecycle_of(EPOCH), timeout_ms=1000)
    first, later = (
        Proposal(isr=isr, leader_epoch=0, partition_epoch=0, leader_recovery_state=0)
        for isr in (((1, -1),), ((1, -1), (2, -1)))
    )
    answers = [manager.submit(b"t" * 16, 0, each) for each in (first, later)]
    other = manager.submit(b"t" * 16, 1, first)
    await turns()
    assert answers[0].cancelled()
    assert [each.result().isr for each in (answers[1], other)] == [(1, 2), (1,)]
    assert len(controller.asked) == 1


@in_loop
async def test_nothing_is_asked_for_what_metadata_have_overtaken(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        leader = await desk(broker, isr=(1,))
        controller, proposals = await asking(leader)
        controller.says = [ErrorCode.STALE_BROKER_EPOCH]
        await leader.fetch(2, 0)
        await until(lambda: proposals.failed)
        await leader.replicate((1, 2))
        await pass_time(60)
        assert len(controller.asked) == 1
        assert leader.partition.leader.isr == {1, 2}


@in_loop
async def test_a_broker_that_stops_asks_nothing_more(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        leader = await desk(broker, isr=(1,))
        controller, proposals = await asking(leader)
        controller.may_answer.clear()
        await leader.fetch(2, 0)
        await until(lambda: controller.asked)
        proposals.stop()
        controller.may_answer.set()
        await pass_time(60)
        assert leader.partition.leader.isr == {1}
        await broker.produce("t", batch_of([b"a"]), acks=1)
        await leader.fetch(3, 1)
        assert len(controller.asked) == 1

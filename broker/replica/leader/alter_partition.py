"""Shell: asking the controller to change ISRs (AlterPartition, KIP-497).

Rules of this file:
- One request at a time is under way for the whole broker; what is proposed meanwhile goes with the next one, of each
  partition the latest. So a controller that is slow or away is not asked more the longer it is.
- What comes of a proposal is the partition's to decide (`LeaderPartition.alter_partition_answered`): each is told the
  answer, or the error that stands for none. The caller repeats the question if it wants to, after a pause.
- The broker epoch is the one of the moment of sending: a broker that has just registered anew asks in its new epoch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from broker.membership.channel import ControllerChannel
from broker.metrics.names import meter
from broker.replica.leader.isr import AlterPartitionAnswer, Proposal
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import AlterPartitionRequest
from kafka_ds.protocol.messages.brokers import (
    AlterPartitionBrokerState,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    AlterPartitionResponsePartition,
)

if TYPE_CHECKING:
    from broker.metrics.names import Sample
    from broker.replica.leader.effects import NoteIsr, ProposeIsr
    from broker.replica.leader.hosted import HostedPartition

_LOGGER = logging.getLogger(__name__)

_BEAN = "kafka.server:type=ReplicaManager,name="
_EXPANDS = meter(f"{_BEAN}IsrExpandsPerSec", "Replicas that came into an ISR, by the change.")
_SHRINKS = meter(f"{_BEAN}IsrShrinksPerSec", "Replicas that went out of an ISR, by the change.")
_FAILED = meter(f"{_BEAN}FailedIsrUpdatesPerSec", "Changes of an ISR that the controller refused.")

Key = tuple[bytes, int]
Batch = Mapping[Key, "tuple[HostedPartition, Proposal]"]


class IsrProposals:
    """The proposals of all partitions that this broker leads."""

    def __init__(
        self,
        controller: ControllerChannel,
        *,
        node_id: int,
        broker_epoch: Callable[[], int],
        timeout_ms: int,
    ) -> None:
        """`timeout_ms` bounds one request; it is asked again until metadata or an answer decide."""
        self._controller = controller
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._timeout_ms = timeout_ms
        self._waiting: dict[Key, tuple[HostedPartition, Proposal]] = {}
        self._asking: asyncio.Task[None] | None = None
        self._is_stopped = False
        self.expands = self.shrinks = self.failed = 0

    def propose(self, partition: HostedPartition, effect: ProposeIsr) -> None:
        """Ask, and apply the answer."""
        loop = asyncio.get_running_loop()
        leader, isr = partition.leader, effect.proposal.members
        _LOGGER.info(
            "%s-%d: %s ISR from %s to %s. Leader: (highWatermark: %d, endOffset: %d)",
            partition.topic,
            partition.partition,
            "Shrinking" if isr < set(leader.isr) else "Expanding",
            _listed(leader.isr),
            _listed(isr),
            partition.high_watermark,
            partition.log.log_end_offset,
        )
        if effect.after_ms:
            loop.call_later(effect.after_ms / 1000, self._add, partition, effect.proposal)
        else:
            self._add(partition, effect.proposal)

    def note(self, partition: HostedPartition, effect: NoteIsr) -> None:
        """Count what came of a proposal."""
        self.expands += effect.expanded
        self.shrinks += effect.shrunk
        self.failed += not (effect.expanded or effect.shrunk)
        if effect.expanded or effect.shrunk:
            leader = partition.leader
            _LOGGER.info(
                "%s-%d: ISR updated to %s and version updated to %d",
                partition.topic, partition.partition, _listed(leader.isr), leader.partition_epoch,
            )  # fmt: skip

    def samples(self) -> Iterator[Sample]:
        """What has come of the proposals."""
        yield _EXPANDS, (), self.expands
        yield _SHRINKS, (), self.shrinks
        yield _FAILED, (), self.failed

    def stop(self) -> None:
        """Ask nothing more."""
        self._is_stopped = True
        self._waiting.clear()
        if self._asking is not None:
            self._asking.cancel()

    def _add(self, partition: HostedPartition, proposal: Proposal) -> None:
        if self._is_stopped or partition.is_lost or not partition.leader.awaits(proposal):
            return  # It has been overtaken by metadata.
        self._waiting[partition.topic_id, partition.partition] = (partition, proposal)
        if self._asking is None:
            # In the loop's next turn: what one event has brought about goes together.
            self._asking = asyncio.get_running_loop().create_task(self._ask_all(), name="isr")

    async def _ask_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, {}
                self._tell(batch, await self._ask(batch))
        finally:
            self._asking = None

    async def _ask(self, batch: Batch) -> Callable[[Key], AlterPartitionAnswer]:
        """What the controller says of each."""
        try:
            response = await self._controller.ask(self._request(batch), timeout_ms=self._timeout_ms)
        except KafkaError as error:
            _LOGGER.warning(
                "the controller does not answer AlterPartition for %d partitions: %s",
                len(batch),
                error,
            )
            failed = AlterPartitionAnswer(error=error.code)
            return lambda _: failed
        except Exception:
            # A mistake of ours must not leave the ISRs as they are for ever.
            _LOGGER.exception("AlterPartition for %d partitions", len(batch))
            unknown = AlterPartitionAnswer(error=ErrorCode.UNKNOWN_SERVER_ERROR)
            return lambda _: unknown
        whole = ErrorCode(response.error_code)
        if whole is not ErrorCode.NONE:
            _LOGGER.warning("the controller refused AlterPartition: %s", whole.name)
        answers = {
            (topic.topic_id, each.partition_index): _answer(each)
            for topic in response.topics
            for each in topic.partitions
        }
        # One that is not in the answer was forgotten over there.
        missing = AlterPartitionAnswer(error=whole or ErrorCode.UNKNOWN_SERVER_ERROR)
        return lambda key: answers.get(key, missing)

    def _tell(self, batch: Batch, answer_of: Callable[[Key], AlterPartitionAnswer]) -> None:
        for key, (partition, proposal) in batch.items():
            if partition.is_lost:
                continue
            answer = answer_of(key)
            if answer.error is not ErrorCode.NONE:
                _LOGGER.info(
                    "%s-%d: Failed to alter partition: %s",
                    partition.topic, partition.partition, answer.error.name,
                )  # fmt: skip
            try:
                partition.answered(proposal, answer)
            except Exception:  # as above: the other answers are not asked for again
                _LOGGER.exception("%s-%d", partition.topic, partition.partition)

    def _request(self, batch: Batch) -> AlterPartitionRequest:
        own_epoch = self._broker_epoch()
        topics: dict[bytes, AlterPartitionRequestTopic] = {}
        for (topic_id, partition), (_, proposal) in batch.items():
            topic = topics.setdefault(
                topic_id, AlterPartitionRequestTopic(topic_id=topic_id, partitions=[])
            )
            topic.partitions.append(
                AlterPartitionRequestPartition(
                    partition_index=partition,
                    leader_epoch=proposal.leader_epoch,
                    partition_epoch=proposal.partition_epoch,
                    leader_recovery_state=proposal.leader_recovery_state,
                    new_isr=[member for member, _ in proposal.isr],
                    new_isr_with_epochs=[
                        AlterPartitionBrokerState(
                            broker_id=member,
                            broker_epoch=own_epoch if member == self._node_id else epoch,
                        )
                        for member, epoch in proposal.isr
                    ],
                )
            )
        return AlterPartitionRequest(
            broker_id=self._node_id, broker_epoch=own_epoch, topics=list(topics.values())
        )


def _listed(members: Iterable[int]) -> str:
    return ",".join(map(str, sorted(members)))


def _answer(told: AlterPartitionResponsePartition) -> AlterPartitionAnswer:
    return AlterPartitionAnswer(
        error=ErrorCode(told.error_code),
        isr=tuple(told.isr),
        leader_epoch=told.leader_epoch,
        partition_epoch=told.partition_epoch,
    )

"""Shell: asks the controller to change ISRs (AlterPartition, KIP-497).

- One request at a time is in flight for the whole broker; later submissions wait for the next one, of each partition
  the latest. So a slow controller gets no more requests.
- Each submission gets the controller's answer, or an error; the partition decides whether to ask again. The broker
  epoch is that of the moment of sending.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from broker.membership.channel import ControllerChannel
from broker.membership.lifecycle import Lifecycle
from broker.metrics.names import meter
from broker.replica.leader.isr import AlterPartitionAnswer, Proposal
from kafka_ds.process.amounts import counted
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import AlterPartitionRequest
from kafka_ds.protocol.messages.brokers import (
    AlterPartitionBrokerState,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    AlterPartitionResponsePartition,
)
from kafka_ds.protocol.topic_partition import PartitionId

if TYPE_CHECKING:
    from broker.metrics.names import MetricSample
    from broker.replica.leader.effects import CountIsrChange

_LOGGER = logging.getLogger(__name__)

_BEAN = "kafka.server:type=ReplicaManager,name="
_EXPANDS = meter(f"{_BEAN}IsrExpandsPerSec", "Replicas that came into an ISR, by the change.")
_SHRINKS = meter(f"{_BEAN}IsrShrinksPerSec", "Replicas that went out of an ISR, by the change.")
_FAILED = meter(f"{_BEAN}FailedIsrUpdatesPerSec", "Changes of an ISR that the controller refused.")

AnswerFuture = asyncio.Future[AlterPartitionAnswer]
Proposals = Mapping[PartitionId, tuple[Proposal, AnswerFuture]]


class AlterPartitionManager:
    """The changes of ISRs that partitions of this broker propose."""

    def __init__(
        self,
        controller: ControllerChannel,
        lifecycle: Lifecycle,
        *,
        timeout_ms: int,
    ) -> None:
        """`timeout_ms` bounds one request."""
        self._controller = controller
        self._lifecycle = lifecycle
        self._timeout_ms = timeout_ms
        self._waiting: dict[PartitionId, tuple[Proposal, AnswerFuture]] = {}
        self._sending: asyncio.Task[None] | None = None
        self._is_stopped = False
        self.expands = self.shrinks = self.failed = 0

    def submit(self, topic_id: bytes, partition: int, proposal: Proposal) -> AnswerFuture:
        """The future answer; cancelled if a later proposal of the partition, or a stop, comes first."""
        loop = asyncio.get_running_loop()
        answer: AnswerFuture = loop.create_future()
        if self._is_stopped:
            answer.cancel()
            return answer
        replaced = self._waiting.get((topic_id, partition))
        if replaced is not None:
            replaced[1].cancel()
        self._waiting[topic_id, partition] = proposal, answer
        if self._sending is None:
            # In the loop's next turn: proposals of one event go together.
            self._sending = loop.create_task(self._send_all(), name="isr")
        return answer

    def count(self, effect: CountIsrChange) -> None:
        """Count the outcome of a proposal."""
        self.expands += effect.expanded
        self.shrinks += effect.shrunk
        self.failed += not (effect.expanded or effect.shrunk)

    def samples(self) -> Iterator[MetricSample]:
        """The outcomes of proposals."""
        yield _EXPANDS, (), self.expands
        yield _SHRINKS, (), self.shrinks
        yield _FAILED, (), self.failed

    def stop(self) -> None:
        """Send nothing more."""
        self._is_stopped = True
        for _, answer in self._waiting.values():
            answer.cancel()
        self._waiting.clear()
        if self._sending is not None:
            self._sending.cancel()

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, {}
                answer_of = await self._send(batch)
                for key, (_, answer) in batch.items():
                    answer.set_result(answer_of(key))
        finally:
            self._sending = None

    async def _send(self, batch: Proposals) -> Callable[[PartitionId], AlterPartitionAnswer]:
        """The controller's answer for each."""
        try:
            response = await self._controller.send(
                self._request(batch), timeout_ms=self._timeout_ms
            )
        except KafkaError as error:
            _LOGGER.warning(
                "Failed to send AlterPartition for %s to the controller, retrying: %s",
                counted(len(batch), "partition"),
                error,
            )
            failed = AlterPartitionAnswer(error=error.code)
            return lambda _: failed
        except Exception:
            # A bug must not leave the ISRs as they are for ever.
            _LOGGER.exception("Unexpected error in AlterPartition for %d partitions", len(batch))
            unknown = AlterPartitionAnswer(error=ErrorCode.UNKNOWN_SERVER_ERROR)
            return lambda _: unknown
        whole = ErrorCode(response.error_code)
        if whole is not ErrorCode.NONE:
            _LOGGER.warning("The controller rejected AlterPartition: %s", whole.name)
        answers = {
            (topic.topic_id, each.partition_index): _answer(each)
            for topic in response.topics
            for each in topic.partitions
        }
        # The controller's answer lacks it.
        missing = AlterPartitionAnswer(error=whole or ErrorCode.UNKNOWN_SERVER_ERROR)
        return lambda key: answers.get(key, missing)

    def _request(self, batch: Proposals) -> AlterPartitionRequest:
        node_id, own_epoch = self._lifecycle.identity.node_id, self._lifecycle.broker_epoch
        topics: dict[bytes, AlterPartitionRequestTopic] = {}
        for (topic_id, partition), (proposal, _) in batch.items():
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
                            broker_epoch=own_epoch if member == node_id else epoch,
                        )
                        for member, epoch in proposal.isr
                    ],
                )
            )
        return AlterPartitionRequest(
            broker_id=node_id, broker_epoch=own_epoch, topics=list(topics.values())
        )


def _answer(answer: AlterPartitionResponsePartition) -> AlterPartitionAnswer:
    return AlterPartitionAnswer(
        error=ErrorCode(answer.error_code),
        isr=tuple(answer.isr),
        leader_epoch=answer.leader_epoch,
        partition_epoch=answer.partition_epoch,
    )

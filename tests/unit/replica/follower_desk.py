"""A broker in the test's process that leads a partition which others follow; the followers are the test itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

from broker.metadata.events import Endpoint, PartitionChanged
from broker.replica.leader.effects import CountIsrChange
from broker.replica.leader.isr import AlterPartitionAnswer, Proposal
from broker.replica.leader.partition import LeaderPartition
from broker.server.dispatch import Waiting
from kafka_ds.protocol.messages import FetchRequest
from kafka_ds.protocol.messages.data import FetchPartitionData, FetchReplicaState
from tests.fakes.cluster import registration_of
from tests.in_process import LISTENER, InProcess, fetch_request

EPOCH = 1000


@dataclass
class Proposals:
    """What would have been asked of the controller."""

    asked: list[Proposal] = field(default_factory=list)
    noted: list[CountIsrChange] = field(default_factory=list)

    def submit(
        self, topic_id: bytes, partition: int, proposal: Proposal
    ) -> asyncio.Future[AlterPartitionAnswer]:
        self.asked.append(proposal)
        return asyncio.get_running_loop().create_future()

    def count(self, effect: CountIsrChange) -> None:
        self.noted.append(effect)


class FollowerDesk:
    """Topic "t": broker 1 leads partition 0, brokers 2 and 3 follow it."""

    def __init__(self, broker: InProcess, topic_id: bytes) -> None:
        self.broker = broker
        self.topic_id = topic_id
        self.proposals = Proposals()

    @property
    def partition(self) -> LeaderPartition:
        return self.broker.node.replica_manager.get("t", 0)

    def register(self, broker_id: int, **fields: Any) -> None:
        """Let the metadata know a broker."""
        known: dict[str, Any] = {
            "broker_epoch": EPOCH + broker_id,
            "incarnation_id": bytes([broker_id]) * 16,
            "endpoints": (Endpoint(listener=LISTENER, host="127.0.0.1", port=1),),
            "rack": f"rack-{broker_id}",
        }
        registration = registration_of(broker_id, **(known | fields))
        self.broker.node.metadata.brokers[broker_id] = registration

    async def replicate(self, isr: tuple[int, ...]) -> None:
        """Let 2 and 3 follow, as of a new leader epoch."""
        metadata, replicas = self.broker.node.metadata, self.broker.node.replica_manager
        topic = metadata.topics["t"]
        before = topic.partitions[0]
        after = replace(
            before,
            replicas=(1, 2, 3),
            isr=isr,
            leader_epoch=before.leader_epoch + 1,
            partition_epoch=before.partition_epoch + 1,
        )
        topic.partitions[0] = after
        event = PartitionChanged(topic="t", topic_id=self.topic_id, partition=0, registration=after)
        await replicas.apply([event])

    def request(
        self, replica: int, offset: int, *, fields: dict[str, Any] | None = None, **options: Any
    ) -> FetchRequest:
        """What a follower sends (version 18)."""
        wanted = {"log_start_offset": 0, "high_watermark": offset, **(fields or {})}
        state = FetchReplicaState(replica_id=replica, replica_epoch=EPOCH + replica)
        return fetch_request(
            "",
            offset,
            topic_id=self.topic_id,
            partition_fields=wanted,
            **{"replica_state": state, **options},
        )

    async def fetch(self, replica: int, offset: int, **options: Any) -> FetchPartitionData:
        """A follower's fetch, answered at once or not at all."""
        answer = self.broker.begin(self.request(replica, offset, **options), 18)
        assert not isinstance(answer, Waiting), "the fetch was parked"
        data: FetchPartitionData = answer.responses[0].partitions[0]
        return data


async def desk(
    broker: InProcess, *, isr: tuple[int, ...] = (1, 2, 3), **configs: object
) -> FollowerDesk:
    """Set it up."""
    proposals = Proposals()
    vars(broker.node.alter_partition_manager).update(submit=proposals.submit, count=proposals.count)
    made = FollowerDesk(broker, await broker.create("t", **configs))
    made.proposals = proposals
    for follower in (2, 3):
        made.register(follower)
    await made.replicate(isr)
    return made

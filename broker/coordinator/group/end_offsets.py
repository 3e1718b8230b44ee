"""Shell: the ends of partitions, wherever they are led, for the lag of share groups (KIP-1226).

Leaders are asked once: who cannot be reached, or leads no more, makes the answer an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TypeAlias

from broker.membership.channel import endpoint_of
from broker.membership.other_brokers import OtherBrokers
from broker.replica.replica_manager import ReplicaManager
from broker.transport.peer import PeerUnreachable
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import ListOffsetsRequest
from kafka_ds.protocol.messages.data import CONSUMER
from kafka_ds.protocol.messages.offsets import LATEST, ListOffsetsPartition, ListOffsetsTopic
from kafka_ds.protocol.topic_partition import TopicPartition

Ends: TypeAlias = dict[TopicPartition, int | ErrorCode]


class EndOffsets:
    """Looks up where the partitions of topics end."""

    def __init__(self, partitions: ReplicaManager, others: OtherBrokers) -> None:
        self._partitions = partitions
        self._others = others
        self._peers = others.new_peers()

    async def latest(self, wanted: Iterable[TopicPartition]) -> Ends:
        """The high watermark of each partition, or why it is not known."""
        ends: Ends = {}
        elsewhere: dict[int, list[TopicPartition]] = {}
        for each in wanted:
            led = self._partitions.find(*each)
            kept = self._others.image.partition(*each)
            if led is not None:
                leader = led.leader
                is_unknown = leader.is_recovering or leader.is_high_watermark_behind
                ends[each] = ErrorCode.OFFSET_NOT_AVAILABLE if is_unknown else led.high_watermark
            elif kept is None:
                ends[each] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                elsewhere.setdefault(kept.leader, []).append(each)
        answers = await asyncio.gather(
            *(self._ask(broker, items) for broker, items in elsewhere.items())
        )
        for answer in answers:
            ends |= answer
        return ends

    def stop(self) -> None:
        """Ask nothing more."""
        self._peers.close()

    async def _ask(self, broker_id: int, wanted: list[TopicPartition]) -> Ends:
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for topic, partition in wanted:
            item = ListOffsetsPartition(partition_index=partition, timestamp=LATEST)
            topics.setdefault(topic, []).append(item)
        request = ListOffsetsRequest(
            replica_id=CONSUMER,
            topics=[ListOffsetsTopic(name=name, partitions=each) for name, each in topics.items()],
        )
        others = self._others
        endpoint = endpoint_of(others.image, broker_id, others.listener)
        found: Ends = dict.fromkeys(wanted, ErrorCode.NETWORK_EXCEPTION)
        if endpoint is None:
            return dict.fromkeys(wanted, ErrorCode.LEADER_NOT_AVAILABLE)
        try:
            response = await self._peers.send(
                broker_id, *endpoint, request, timeout_ms=others.timeout_ms
            )
        except (PeerUnreachable, KafkaError):
            return found
        return found | {
            TopicPartition(told.name, each.partition_index): ErrorCode(each.error_code)
            or each.offset
            for told in response.topics
            for each in told.partitions
        }

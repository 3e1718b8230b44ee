"""Pure: a follower's requests to its leader: for records, for the ends of epochs, for the ends of the log.

A request has the broker id, and the broker epoch where it may matter (KIP-903), so that the leader takes the fetch
offset as the follower's log end. Topics are given by name and by id; the version decides which of them is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from broker.replica.fetcher.session import SessionRequest
from kafka_ds.protocol.messages import (
    FetchRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from kafka_ds.protocol.messages.data import (
    FetchPartition,
    FetchReplicaState,
    FetchTopic,
    ForgottenTopic,
)
from kafka_ds.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsTopic,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

if TYPE_CHECKING:
    from broker.config.broker import BrokerConfig
    from broker.replica.follower.partition import FollowerPartition


def fetch_request(
    session: SessionRequest,
    names: Mapping[bytes, str],
    settings: BrokerConfig,
    *,
    replica_id: int,
    broker_epoch: int,
    max_wait_ms: int,
) -> FetchRequest:
    """What the session sends; `names` are those of the topics in it."""
    to_send: dict[bytes, list[FetchPartition]] = {}
    for (topic_id, _), partition in session.to_send.items():
        to_send.setdefault(topic_id, []).append(partition)
    to_forget: dict[bytes, list[int]] = {}
    for topic_id, number in session.to_forget:
        to_forget.setdefault(topic_id, []).append(number)
    return FetchRequest(
        replica_id=replica_id,
        replica_state=FetchReplicaState(replica_id=replica_id, replica_epoch=broker_epoch),
        max_wait_ms=max_wait_ms,
        min_bytes=settings.replica_fetch_min_bytes,
        max_bytes=settings.replica_fetch_response_max_bytes,
        session_id=session.session_id,
        session_epoch=session.session_epoch,
        topics=[
            FetchTopic(topic=names[topic_id], topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in to_send.items()
        ],
        forgotten_topics_data=[
            ForgottenTopic(topic=names.get(topic_id, ""), topic_id=topic_id, partitions=numbers)
            for topic_id, numbers in to_forget.items()
        ],
    )


def epoch_request(
    partitions: Iterable[FollowerPartition], replica_id: int
) -> OffsetForLeaderEpochRequest:
    """Asks where the last epoch of each of these logs ends at the leader."""
    topics: dict[str, list[OffsetForLeaderPartition]] = {}
    for each in partitions:
        position = each.follower.fetch_position
        topics.setdefault(each.topic, []).append(
            OffsetForLeaderPartition(
                partition=each.partition,
                current_leader_epoch=position.leader_epoch,
                leader_epoch=position.last_fetched_epoch,
            )
        )
    return OffsetForLeaderEpochRequest(
        replica_id=replica_id,
        topics=[
            OffsetForLeaderTopic(topic=name, partitions=asked) for name, asked in topics.items()
        ],
    )


def offset_request(
    partition: FollowerPartition, timestamp: int, replica_id: int
) -> ListOffsetsRequest:
    """Asks where the leader's log ends (LATEST) or begins (EARLIEST), locally or in the lake."""
    return offsets_request([partition], timestamp, replica_id)


def offsets_request(
    partitions: Iterable[FollowerPartition], timestamp: int, replica_id: int
) -> ListOffsetsRequest:
    """The same of several partitions of one leader."""
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for each in partitions:
        topics.setdefault(each.topic, []).append(
            ListOffsetsPartition(
                partition_index=each.partition,
                current_leader_epoch=each.follower.leader_epoch,
                timestamp=timestamp,
            )
        )
    return ListOffsetsRequest(
        replica_id=replica_id,
        topics=[ListOffsetsTopic(name=name, partitions=asked) for name, asked in topics.items()],
    )

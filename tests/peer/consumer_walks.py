"""Pure: members of a group of the consumer protocol (KIP-848) as they come, go and ask, drawn at random.

- A walk is determined by its number and by the answers of Apache Kafka: a member goes on from what it was told.
- All ask for the assignor `range`, which leaves no choice. Ids are the members' own, and an id always has the same
  instance: who becomes static later is no client that there is. Nobody joins without a topic (Kafka 4.3 then assigns
  nothing to the others, either).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import broker.handlers  # noqa: F401 - registers what is served
from broker.registry import REGISTRY
from kafka_ds.protocol.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from kafka_ds.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequestTopicPartitions
from kafka_ds.protocol.messages.group_offsets import OffsetFetchRequestGroup
from tests.peer.group_talks import commit, delete_offsets, leave
from tests.peer.pair_cases import Case
from tests.peer.pair_values import symbol

# Member -> the instance that it is, of a static one.
INSTANCES = {"a": "i", "b": "i", "c": "j", "d": None, "e": None}
NAMES = (["t"], ["t", "u"], ["u"], ["missing"])
_SERVED = {served.request: served for served in REGISTRY}
_VERSIONS = {
    ConsumerGroupDescribeRequest: (0, 1),
    ConsumerGroupHeartbeatRequest: (0, 1),
    LeaveGroupRequest: (3, 4, 5),
    OffsetCommitRequest: (8, 9),
    OffsetDeleteRequest: (0,),
    OffsetFetchRequest: (9,),
}


@dataclass(slots=True)
class _WalkingMember:
    """What a member was told last; partitions by topic."""

    epoch: int = 0
    has: dict[str, list[int]] = field(default_factory=dict)
    had: dict[str, list[int]] = field(default_factory=dict)


class ConsumerWalk:
    """One group."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._random = Random(number)
        self._group = f"walk-{number}"
        self._members: dict[str, _WalkingMember] = {}

    def next(self) -> Case:
        """What somebody asks now."""
        draw = self._random.choices(
            (self._beat, self._commit, self._fetch, self._describe, self._leave, self._delete),
            (60, 12, 6, 14, 3, 3),
        )[0]
        request = draw()
        version = self._random.choice(_VERSIONS[type(request)])
        served = _SERVED[type(request)]
        return Case(served=served, version=version, number=self._number, request=request)

    def answered(self, case: Case, answer: dict[str, Any]) -> None:
        """What it was told."""
        request = case.request
        if not isinstance(request, ConsumerGroupHeartbeatRequest):
            return
        if request.member_epoch == -1 and not answer["error_code"]:
            self._members.pop(request.member_id, None)
        if request.member_epoch < 0:
            return
        if answer["error_code"]:
            if self._is_rare(0.5):
                self._members.pop(request.member_id, None)
            return
        member = self._members.setdefault(request.member_id, _WalkingMember())
        member.epoch = answer["member_epoch"]
        if answer["assignment"] is not None:
            member.had = member.has
            member.has = {
                each["topic_id"].removeprefix("<id of ").removesuffix(">"): each["partitions"]
                for each in answer["assignment"]["topic_partitions"]
            }

    def _is_rare(self, share: float) -> bool:
        return self._random.random() < share

    def _beat(self) -> ConsumerGroupHeartbeatRequest:
        draw, member_id = self._random, self._random.choice(sorted(INSTANCES))
        member = self._members.get(member_id)
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group,
            member_id=member_id,
            member_epoch=0,
            instance_id=INSTANCES[member_id],
        )
        if member is None or self._is_rare(0.08):
            request.rebalance_timeout_ms = 60_000
            request.subscribed_topic_names = draw.choice(NAMES)
            request.server_assignor = "range"
            request.topic_partitions = []
            return request
        request.member_epoch = draw.choices(
            (member.epoch, -1, -2, max(1, member.epoch + draw.choice((-2, -1, 1)))), (82, 7, 4, 7)
        )[0]
        if request.member_epoch < 0:
            return request
        if self._is_rare(0.12):
            request.subscribed_topic_names = draw.choice((*NAMES[:3], []))
        if self._is_rare(0.1):
            request.rebalance_timeout_ms = 60_000
        if not self._is_rare(0.25):
            one_each = {topic: indexes[:1] for topic, indexes in member.has.items()}
            owned = draw.choices((member.has, member.had, one_each, {}), (70, 10, 10, 10))[0]
            request.topic_partitions = [
                ConsumerGroupHeartbeatRequestTopicPartitions(
                    topic_id=symbol(topic), partitions=indexes
                )
                for topic, indexes in sorted(owned.items())
            ]
        return request

    def _somebody(self) -> tuple[str, int]:
        """A member and an epoch, mostly its own."""
        known = sorted(self._members)
        if not known or self._is_rare(0.2):
            return self._random.choice((("", -1), ("stranger", 1)))
        member_id = self._random.choice(known)
        return member_id, self._members[member_id].epoch + self._random.choice((0, 0, 0, -1, 1))

    def _commit(self) -> OffsetCommitRequest:
        member_id, epoch = self._somebody()
        topic, partition = self._random.choice("tu"), self._random.choice((0, 1))
        offset = self._random.randrange(100)
        request: OffsetCommitRequest = commit(
            self._group, offset, member_id, epoch, topic=topic, partition=partition
        )
        return request

    def _fetch(self) -> OffsetFetchRequest:
        member_id, epoch = self._somebody()
        group = OffsetFetchRequestGroup(
            group_id=self._group, member_id=member_id or None, member_epoch=epoch, topics=None
        )
        return OffsetFetchRequest(groups=[group], require_stable=self._is_rare(0.5))

    def _describe(self) -> ConsumerGroupDescribeRequest:
        return ConsumerGroupDescribeRequest(
            group_ids=[self._group], include_authorized_operations=True
        )

    def _leave(self) -> LeaveGroupRequest:
        named = [("", "i"), ("", "j"), ("d", None), ("stranger", None), ("a", "j")]
        request: LeaveGroupRequest = leave(self._group, self._random.choice(named))
        return request

    def _delete(self) -> OffsetDeleteRequest:
        topic, partition = self._random.choice("tu"), self._random.choice((0, 1))
        request: OffsetDeleteRequest = delete_offsets(self._group, {topic: [partition]})
        return request

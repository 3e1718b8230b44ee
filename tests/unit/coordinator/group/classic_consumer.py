"""Members of the classic protocol at a desk: for tests of groups that have members of both protocols (KIP-848)."""

from __future__ import annotations

from typing import Any

from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import JoinGroupResponse
from kafka_ds.protocol.messages.consumer_protocol import (
    AssignedTopicPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    OwnedTopicPartitions,
    decode_assignment,
    encode_assignment,
)
from kafka_ds.protocol.versioned import encode_numbered
from tests.unit.coordinator.group.group_desk import WAITING, GroupDesk

COOPERATIVE = 3


class OldConsumer:
    """A client of the classic protocol with a cooperative assignor: it keeps what it is not asked for."""

    def __init__(
        self, desk: GroupDesk, instance_id: str | None = None, name: str = "cooperative-sticky"
    ) -> None:
        self.desk, self.instance_id, self.name = desk, instance_id, name
        self.member_id, self.generation = "", -1
        self.owned: set[int] = set()

    def protocols(self) -> list[tuple[str, bytes]]:
        owned = [OwnedTopicPartitions(topic="t", partitions=sorted(self.owned))]
        said = ConsumerProtocolSubscription(
            topics=["t"], owned_partitions=owned, generation_id=self.generation
        )
        return [(self.name, encode_numbered(said, COOPERATIVE))]

    def ask_join(self) -> int:
        return self.desk.ask_join(
            self.member_id, instance_id=self.instance_id, protocols=self.protocols()
        )

    def join(self) -> JoinGroupResponse:
        """Join, if need be twice, where the answer comes at once."""
        response: Any = self.desk.answer(self.ask_join())
        assert response is not WAITING
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            return self.join()
        if not response.error_code:
            self.member_id, self.generation = response.member_id, response.generation_id
        return response  # type: ignore[no-any-return]

    def sync(self) -> ErrorCode:
        """Take over what the coordinator says; whether something had to go."""
        response = self.desk.answer(
            self.desk.ask_sync(self.member_id, self.generation, instance_id=self.instance_id)
        )
        if not response.error_code:
            told = decode_assignment(response.assignment).assigned_partitions
            self.owned = {index for topic in told for index in topic.partitions}
        return ErrorCode(response.error_code)

    def heartbeat(self) -> ErrorCode:
        return self.desk.heartbeat(self.member_id, self.generation, instance_id=self.instance_id)

    def go_on(self) -> None:
        """What a client does once: heartbeat, and whatever that asks for."""
        if self.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS:
            assert self.join().error_code == 0
            self.sync()


def classic_group(
    desk: GroupDesk, name: str = "cooperative-sticky", user_data: bytes | None = None
) -> OldConsumer:
    """A group of one member of the classic protocol, that leads it and has everything."""
    old = OldConsumer(desk, name=name)
    first = desk.answer(old.ask_join())
    old.member_id = first.member_id
    ticket = old.ask_join()
    desk.pass_time(0)
    old.generation = desk.answer(ticket).generation_id
    everything = [AssignedTopicPartitions(topic="t", partitions=[0, 1, 2, 3])]
    assignment = ConsumerProtocolAssignment(assigned_partitions=everything, user_data=user_data)
    data = encode_assignment(assignment, COOPERATIVE)
    given = desk.ask_sync(old.member_id, old.generation, {old.member_id: data})
    assert desk.answer(given).assignment == data
    old.owned = {0, 1, 2, 3}
    return old

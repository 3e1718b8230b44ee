"""What the coordinator's shell does, without a log on disk and without waiting: for tests of the machine of groups."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from broker.config.broker import BrokerConfig
from broker.coordinator.group.metadata_image import CoordinatorMetadataImage
from broker.coordinator.group.records import encode_record
from broker.coordinator.group.shard import FetchOffsets, GroupCoordinatorShard, GroupRequest
from broker.coordinator.group.values import NO_PRODUCER_ID, Client, sees_all
from broker.coordinator.result import CoordinatorResult, Instant, Reply
from broker.metadata.image import MetadataImage
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
)
from kafka_ds.protocol.messages.group_offsets import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kafka_ds.protocol.messages.groups import (
    MemberIdentity,
)
from kafka_ds.protocol.messages.persisted import decode_key, decode_value
from kafka_ds.protocol.types import NO_UUID
from tests.requests import build

BEGAN = Instant(1_700_000_000_000, 1_000)
SESSION_MS = 10_000
REBALANCE_MS = 60_000
GROUP = "g"
WAITING = "no answer yet"
Protocols = Sequence[tuple[str, bytes]]


def subscription(*topics: str) -> bytes:
    """What a consumer of these topics joins with (version 0, no user data)."""
    names = [topic.encode() for topic in topics]
    body = b"".join(len(name).to_bytes(2, "big") + name for name in names)
    return b"\x00\x00" + len(topics).to_bytes(4, "big") + body + b"\xff\xff\xff\xff"


RANGE: Protocols = (("range", subscription("t")),)
# A test that is about waiting sets what it waits for.
AT_ONCE = {
    "group_initial_rebalance_delay_ms": 0,
    "group_consumer_assignment_interval_ms": 0,
    "group_share_assignment_interval_ms": 0,
}
# What no group begins with.
REFUSED_JOINS: list[dict[str, Any]] = [
    {"member_id": "late"},
    {"session_ms": 1},
    {"protocols": ()},
    {"protocol_type": ""},
]


class GroupDesk:
    """A coordinator whose log is a list and whose clock only moves when the test moves it."""

    def __init__(self, topology: CoordinatorMetadataImage | None = None, **settings: Any) -> None:
        self.topology = topology or CoordinatorMetadataImage(MetadataImage())
        self.settings = BrokerConfig(**{**AT_ONCE, **settings})
        self.now = BEGAN
        self.log: list[tuple[bytes, bytes | None, int]] = []
        self.answers: dict[int, Any] = {}
        self._lost_tickets: set[int] = set()
        # The error that the next append meets.
        self.append_error: ErrorCode | None = None
        # What the shell is to do, of records that are in the log.
        self.effects: list[Any] = []
        # Which topics whoever asks may describe.
        self.sees: Callable[[str], bool] = sees_all
        self._asked = 0
        self._ids = itertools.count(1)
        self.shard = self._new_shard()
        self.perform(self.shard.loaded(self.now))

    def _new_shard(self) -> GroupCoordinatorShard:
        return GroupCoordinatorShard(
            lambda: self.settings, lambda: f"id{next(self._ids)}", self.topology
        )

    # -- the shell ----------------------------------------------------------------------------------

    def perform(self, result: CoordinatorResult | None, ticket: int | None = None) -> None:
        """Append, replay, say so, answer; `ticket` is that of the request, if it is one."""
        while result is not None:
            error, self.append_error = (
                (self.append_error, None) if result.records else (None, self.append_error)
            )
            if error is None:
                self._append(result)
                self.effects += result.effects
            for reply in result.replies:
                failed = error is not None and reply.ticket == ticket
                self._answer(Reply(reply.ticket, KafkaError(error)) if failed and error else reply)
            if result.storing is None:
                return
            if error is None:
                result = self.shard.stored(result, self.now)
            else:
                result = self.shard.not_stored(result, error, self.now)

    def _append(self, result: CoordinatorResult) -> None:
        producer_id = NO_PRODUCER_ID if result.producer is None else result.producer.producer_id
        for record in result.records:
            key, value = encode_record(record)
            self.log.append((key, value, producer_id))
            self.shard.replay(
                record.key,
                record.value,
                record_offset=len(self.log) - 1,
                producer_id=producer_id,
            )

    def _answer(self, reply: Reply) -> None:
        assert reply.ticket not in self.answers, "answered twice"
        self.answers[reply.ticket] = reply.response

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """What a marker in the log does."""
        self.log.append((b"marker", b"commit" if committed else b"abort", producer_id))
        self.shard.replay_end_of_transaction(producer_id, committed=committed)

    def replayed(self) -> GroupCoordinatorShard:
        """Another coordinator that has read the same log."""
        twin = self._new_shard()
        for offset, (key, value, producer_id) in enumerate(self.log):
            if key == b"marker":
                twin.replay_end_of_transaction(producer_id, committed=value == b"commit")
                continue
            known = decode_key(key)
            assert known is not None
            body = None if value is None else decode_value(known, value)
            twin.replay(known, body, record_offset=offset, producer_id=producer_id)
        return twin

    def check_replay(self) -> None:
        """The replicated state equals the state that replaying the log gives."""
        twin = self.replayed()
        assert twin.state.metadata == self.shard.state.metadata
        assert twin.state.offsets.committed == self.shard.state.offsets.committed
        assert twin.state.offsets.pending == self.shard.state.offsets.pending
        assert {name: group.facts() for name, group in twin.state.consumers.items()} == {
            name: group.facts() for name, group in self.shard.state.consumers.items()
        }
        assert {name: group.facts() for name, group in twin.state.shares.items()} == {
            name: group.facts() for name, group in self.shard.state.shares.items()
        }
        assert {name: group.facts() for name, group in twin.state.streams.items()} == {
            name: group.facts() for name, group in self.shard.state.streams.items()
        }

    def restart(self) -> None:
        """Restart the coordinator from its log."""
        self._lost_tickets.update(self.open_tickets())
        self.shard = self.replayed()
        self.perform(self.shard.loaded(self.now))

    def pass_time(self, duration_ms: int) -> None:
        """Let time pass, and everything happen that is due meanwhile, each when it is."""
        end_ms = self.now.monotonic_ms + duration_ms
        while (due_ms := self.shard.next_due_ms()) is not None and due_ms <= end_ms:
            self._set_clock(max(due_ms, self.now.monotonic_ms))
            self.perform(self.shard.tick(self.now))
        self._set_clock(end_ms)

    def _set_clock(self, monotonic_ms: int) -> None:
        passed = monotonic_ms - self.now.monotonic_ms
        self.now = Instant(self.now.now_ms + passed, monotonic_ms)

    # -- requests -----------------------------------------------------------------------------------

    def ask(self, request: GroupRequest, *, version: int = 9, client_id: str = "c") -> int:
        """Hand a request in; `answer` knows it by the ticket."""
        ticket = self._asked
        self._asked += 1
        client = Client(client_id, "/127.0.0.1", version, self.sees)
        self.perform(self.shard.handle((request, client), ticket, self.now), ticket)
        return ticket

    def answer(self, ticket: int) -> Any:
        """The answer, or WAITING."""
        return self.answers.get(ticket, WAITING)

    def open_tickets(self) -> list[int]:
        """Those who wait for an answer of this coordinator."""
        done = self.answers.keys() | self._lost_tickets
        return [ticket for ticket in range(self._asked) if ticket not in done]

    def call(self, request: GroupRequest, *, version: int = 9, client_id: str = "c") -> Any:
        """Hand a request in that is answered at once; a KafkaError is raised."""
        answer = self.answer(self.ask(request, version=version, client_id=client_id))
        assert answer is not WAITING
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    def refusal(self, request: GroupRequest) -> ErrorCode:
        """The error that a request comes to."""
        try:
            self.call(request, version=1)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    def ask_join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: Protocols = RANGE,
        protocol_type: str = "consumer",
        version: int = 9,
        group: str = GROUP,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        client_id: str = "c",
    ) -> int:
        request = build(
            JoinGroupRequest,
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocols=[{"name": n, "metadata": m} for n, m in protocols],
        )
        return self.ask(request, version=version, client_id=client_id)

    def ask_sync(
        self,
        member_id: str,
        generation_id: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
        group: str = GROUP,
    ) -> int:
        request = build(
            SyncGroupRequest,
            group_id=group,
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[{"member_id": m, "assignment": a} for m, a in (assignments or {}).items()],
        )
        return self.ask(request, version=5)

    def heartbeat(
        self,
        member_id: str,
        generation_id: int,
        *,
        instance_id: str | None = None,
        group: str = GROUP,
    ) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=group,
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=instance_id,
        )
        return ErrorCode(self.call(request).error_code)

    def leave(self, *members: str | tuple[str, str | None], group: str = GROUP) -> list[ErrorCode]:
        """Let members leave, given as ids or as (id, instance id)."""
        identities = [
            MemberIdentity(member_id=m)
            if isinstance(m, str)
            else MemberIdentity(member_id=m[0], group_instance_id=m[1])
            for m in members
        ]
        response = self.call(LeaveGroupRequest(group_id=group, members=identities))
        assert response.error_code == 0
        return [ErrorCode(each.error_code) for each in response.members]

    def commit(
        self,
        offset: int,
        *,
        member_id: str = "",
        generation_id: int = -1,
        instance_id: str | None = None,
        topic: str = "t",
        partition: int = 0,
        metadata: str | None = None,
        retention_ms: int = -1,
        topic_id: bytes = NO_UUID,
        version: int = 9,
        group: str = GROUP,
    ) -> ErrorCode:
        request = build(
            OffsetCommitRequest,
            group_id=group,
            generation_id_or_member_epoch=generation_id,
            member_id=member_id,
            group_instance_id=instance_id,
            retention_time_ms=retention_ms,
            name=topic,
            topic_id=topic_id,
            partition_index=partition,
            committed_offset=offset,
            committed_leader_epoch=3,
            committed_metadata=metadata,
        )
        try:
            response = self.call(request, version=version)
        except KafkaError as error:
            return error.code
        return ErrorCode(response.topics[0].partitions[0].error_code)

    def fetch(
        self, *wanted: tuple[str, int], group: str = GROUP, stable: bool = False, **more: Any
    ) -> dict[tuple[str, int], Any]:
        """Offsets (or error codes) by topic and partition; without any wanted, all that there are."""
        topics = [
            OffsetFetchRequestTopics(name=topic, partition_indexes=[partition], **more)
            for topic, partition in wanted
        ]
        asked = OffsetFetchRequestGroup(group_id=group, topics=topics or None)
        response = self.call(FetchOffsets(group=asked, require_stable=stable))
        return {
            (topic.name, each.partition_index): ErrorCode(each.error_code)
            if each.error_code
            else each.committed_offset
            for topic in response.topics
            for each in topic.partitions
        }

    # -- whole groups -------------------------------------------------------------------------------

    def member_id(self, **more: Any) -> str:
        """An id for a dynamic member, as version 4 and later give it out."""
        answer = self.answer(self.ask_join(**more))
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return str(answer.member_id)

    def joined_group(self, count: int, **more: Any) -> tuple[int, list[str]]:
        """A group of this many dynamic members, all joined; returns its generation and the ids, the leader first."""
        ids = [self.member_id(**more) for _ in range(count)]
        tickets = [self.ask_join(member_id, **more) for member_id in ids]
        self.pass_time(0)
        if self.answer(tickets[0]) is WAITING:
            self.pass_time(self.settings.group_initial_rebalance_delay_ms)
        answers = [self.answer(ticket) for ticket in tickets]
        assert all(answer.error_code == 0 for answer in answers), answers
        (generation,) = {answer.generation_id for answer in answers}
        assert answers[0].leader == ids[0]
        return generation, ids

    def stable_group(self, count: int, **more: Any) -> tuple[int, list[str]]:
        """The same with assignments: b"a0" for the leader, b"a1", and so on."""
        generation, ids = self.joined_group(count, **more)
        group = more.get("group", GROUP)
        followers = [self.ask_sync(member_id, generation, group=group) for member_id in ids[1:]]
        assignments = {member_id: b"a%d" % i for i, member_id in enumerate(ids)}
        leader = self.ask_sync(ids[0], generation, assignments, group=group)
        answers = [self.answer(ticket) for ticket in (leader, *followers)]
        assert [answer.assignment for answer in answers] == list(assignments.values())
        return generation, ids

    def state(self, group: str = GROUP) -> str | None:
        """The group's state as users see it, None if there is no such group."""
        found = self.shard.state.groups.get(group)
        return None if found is None else found.state.value

"""Groups of the consumer protocol under all faults at once: members of both protocols that join, leave, sleep and lose
answers; topics that are created, grow and are deleted; logs that refuse records; coordinators that restart (KIP-848).

After every step: no partition has two owners; a member never believes that it owns a partition which the coordinator
has not assigned to it; a fenced member commits nothing; and a coordinator that reloads the log has the same state. At
the end, when the remaining members run without faults, every subscribed partition has an owner.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import initialize, invariant, precondition, rule

from broker.coordinator.group.consumer_group import ConsumerGroupState
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    OwnedTopicPartitions,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from kafka_ds.protocol.topic_partition import PartitionId
from kafka_ds.protocol.versioned import encode_numbered
from tests.model_runs import examples
from tests.requests import build
from tests.unit.coordinator.group.consumer_desk import NewConsumer, Topics
from tests.unit.coordinator.group.group_desk import GROUP, WAITING, GroupDesk
from tests.unit.coordinator.group.group_machine import GroupMachine

CLIENTS_MAX = 5
TOPICS = ("t", "u")
BEGIN_ANEW = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
}
LATER = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.UNRELEASED_INSTANCE_ID}


class New:
    """A consumer of the new protocol."""

    def __init__(self, desk: GroupDesk, name: str, instance_id: str | None, regex: bool) -> None:
        topics = () if regex else TOPICS
        self.client = NewConsumer(
            desk, name, *topics, regex="[tu]" if regex else None, instance_id=instance_id
        )
        self.instance_id = instance_id
        self.is_fenced = False

    @property
    def member_id(self) -> str:
        return self.client.member_id

    @property
    def epoch(self) -> int:
        return self.client.epoch

    @property
    def owned(self) -> frozenset[PartitionId]:
        return self.client.owned

    def step(self, *, full: bool = True, answered: bool = True) -> None:
        """One heartbeat, whose answer may be lost."""
        client = self.client
        try:
            response = client.desk.call(client.request(full=full), version=1)
        except KafkaError as error:
            assert error.code in BEGIN_ANEW | LATER, error
            if error.code is ErrorCode.FENCED_INSTANCE_ID:
                self.is_fenced = True
            if error.code in BEGIN_ANEW and answered:
                client.epoch, client.owned = 0, frozenset()
            return
        if answered:
            client.take(response)

    def leave(self) -> None:
        """Leave for ever; a static member may leave for a moment."""
        try:
            self.client.leave(for_a_moment=self.instance_id is not None)
        except KafkaError as error:
            assert error.code in BEGIN_ANEW | LATER, error
        self.client.epoch, self.client.owned = 0, frozenset()


class Old:
    """A consumer of the classic protocol, eager or cooperative; whoever leads deals out what nobody has."""

    def __init__(self, desk: GroupDesk, topics: Topics, cooperative: bool) -> None:
        self.desk, self.topics, self.cooperative = desk, topics, cooperative
        self.member_id, self.epoch = "", -1
        self.owned: frozenset[PartitionId] = frozenset()
        self.instance_id, self.is_fenced = None, False
        self.joining: int | None = None
        self.syncing: int | None = None
        self.leads: dict[str, list[str]] | None = None
        self.wants_to_join = True

    def _named(self, partitions: frozenset[PartitionId]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for topic_id, index in sorted(partitions):
            name = self.topics.name_of(topic_id)
            if name is not None:
                found.setdefault(name, []).append(index)
        return found

    def _protocols(self) -> list[tuple[str, bytes]]:
        owned = [
            OwnedTopicPartitions(topic=name, partitions=indexes)
            for name, indexes in self._named(self.owned).items()
        ]
        said = ConsumerProtocolSubscription(
            topics=list(TOPICS), owned_partitions=owned, generation_id=self.epoch
        )
        return [("both", encode_numbered(said, 3))]

    def step(self, *, full: bool = True, answered: bool = True) -> None:
        """Whatever comes next; an answer may be lost."""
        if self.joining is not None:
            self._joined(self.desk.answer(self.joining))
        elif self.syncing is not None:
            self._synced(self.desk.answer(self.syncing))
        elif self.wants_to_join:
            self.owned = self.owned if self.cooperative else frozenset()
            ticket = self.desk.ask_join(self.member_id, protocols=self._protocols())
            if answered:
                self.joining = ticket
        else:
            code = self.desk.heartbeat(self.member_id, self.epoch)
            if answered:
                self._told(code)

    def _told(self, code: int) -> None:
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            # Who does not know its generation has to take all that it had for another's.
            self.owned = frozenset()
            if code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
        if code:
            self.wants_to_join = True

    def _joined(self, answer: Any) -> None:
        if answer is WAITING:
            return
        self.joining = None
        if isinstance(answer, KafkaError):
            return
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            return
        self._told(answer.error_code)
        if answer.error_code:
            return
        self.wants_to_join = False
        self.member_id, self.epoch = answer.member_id, answer.generation_id
        given = None
        if answer.leader == self.member_id:
            given = self._deal({m.member_id: m.metadata for m in answer.members})
        self.syncing = self.desk.ask_sync(self.member_id, self.epoch, given)

    def _deal(self, members: dict[str, bytes]) -> dict[str, bytes]:
        """Members keep the partitions that they say they own; only unowned ones are assigned (KIP-429)."""
        free = {(name, index) for name in TOPICS for index in range(self._size(name))}
        dealt: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in members}
        for member_id, data in members.items():
            for topic in decode_subscription(data).owned_partitions:
                for index in topic.partitions:
                    if (topic.topic, index) in free:
                        free.remove((topic.topic, index))
                        dealt[member_id].setdefault(topic.topic, []).append(index)
        order = sorted(members)
        for number, (name, index) in enumerate(sorted(free)):
            dealt[order[number % len(order)]].setdefault(name, []).append(index)
        return {
            member_id: encode_assignment(
                build(
                    ConsumerProtocolAssignment,
                    assigned_partitions=[
                        {"topic": name, "partitions": sorted(indexes)}
                        for name, indexes in topics.items()
                    ],
                ),
                3,
            )
            for member_id, topics in dealt.items()
        }

    def _size(self, name: str) -> int:
        shape = self.topics.topic(name)
        return 0 if shape is None else shape.partitions

    def _synced(self, answer: Any) -> None:
        if answer is WAITING:
            return
        self.syncing = None
        if isinstance(answer, KafkaError):
            self.wants_to_join = True
            return
        self._told(answer.error_code)
        if answer.error_code:
            return
        had = self.owned
        self.owned = frozenset(
            (shape.topic_id, index)
            for topic in decode_assignment(answer.assignment).assigned_partitions
            if (shape := self.topics.topic(topic.topic)) is not None
            for index in topic.partitions
        )
        # Who had to give something back says so by joining again (KIP-429).
        self.wants_to_join = self.cooperative and not had <= self.owned

    def leave(self) -> None:
        """Leave for ever."""
        if self.member_id:
            self.desk.append_error = None
            self.desk.leave(self.member_id)
        self.owned, self.member_id = frozenset(), ""
        self.joining = self.syncing = None
        self.wants_to_join = True

    def forget_requests(self) -> None:
        """The coordinator has changed: requests in flight are never answered."""
        if self.joining is not None or self.syncing is not None:
            self.joining = self.syncing = None
            self.wants_to_join = True


class ConsumerGroups(GroupMachine):
    """One group."""

    @initialize(
        size=st.integers(1, 4),
        new=st.integers(0, 2),
        old=st.integers(0, 2),
        cooperative=st.booleans(),
        assignor=st.sampled_from([("uniform", "range"), ("range",)]),
        rounds=st.sampled_from([0, 5]),
        interval_ms=st.sampled_from([0, 1_000, 15_000]),
    )
    def begin(
        self,
        size: int,
        new: int,
        old: int,
        cooperative: bool,
        assignor: tuple[str, ...],
        rounds: int,
        interval_ms: int,
    ) -> None:
        self.topics = Topics(t=size, u=2)
        self.desk = GroupDesk(
            self.topics,
            group_consumer_assignors=assignor,
            group_consumer_assignment_interval_ms=interval_ms,
            offsets_retention_check_interval_ms=10**12,
        )
        self.clients: list[New | Old] = []
        self.names = 0
        for _ in range(old):
            self.clients.append(Old(self.desk, self.topics, cooperative))
        for _ in range(rounds if old else 0):
            self._all_step(1)
        for _ in range(new):
            self.new_client_comes(None, False)
        for _ in range(rounds):
            self._all_step(1)

    # -- what happens -------------------------------------------------------------------------------

    @rule(instance=st.sampled_from([None, None, "x", "y"]), regex=st.booleans())
    def new_client_comes(self, instance: str | None, regex: bool) -> None:
        if len(self.clients) < CLIENTS_MAX:
            self.names += 1
            self.clients.append(New(self.desk, f"n{self.names}", instance, regex))

    @rule(cooperative=st.booleans())
    def old_client_comes(self, cooperative: bool) -> None:
        if len(self.clients) < CLIENTS_MAX:
            self.clients.append(Old(self.desk, self.topics, cooperative))

    @precondition(lambda self: self.clients)
    @rule(
        order=st.lists(st.integers(0, CLIENTS_MAX - 1), min_size=1, max_size=12),
        full=st.booleans(),
        answered=st.sampled_from([True, True, True, False]),
    )
    def some_go_on(self, order: list[int], full: bool, answered: bool) -> None:
        for number in order:
            self.clients[number % len(self.clients)].step(full=full, answered=answered)

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, CLIENTS_MAX - 1), says_so=st.booleans())
    def one_goes(self, number: int, says_so: bool) -> None:
        client = self.clients.pop(number % len(self.clients))
        if says_so:
            client.leave()

    @rule(passed_ms=st.sampled_from([1_000, 5_000, 20_000, 61_000]))
    def time_passes(self, passed_ms: int) -> None:
        self.desk.pass_time(passed_ms)

    @rule()
    def the_coordinator_begins_anew(self) -> None:
        self.desk.restart()
        for client in self.clients:
            if isinstance(client, Old):
                client.forget_requests()

    @rule(name=st.sampled_from(TOPICS), size=st.integers(0, 6))
    def a_topic_changes(self, name: str, size: int) -> None:
        known = self.topics.topic(name)
        if known is None:
            self.topics.make(name, max(size, 1))
        elif size == 0:
            self.topics.delete(name)
        elif size > known.partitions:
            self.topics.grow(name, size)

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, CLIENTS_MAX - 1))
    def one_commits(self, number: int) -> None:
        client = self.clients[number % len(self.clients)]
        group = self.desk.shard.state.consumers.get(GROUP)
        if group is None or not client.owned or client.epoch < 1:
            return
        topic_id, index = min(client.owned)
        name = self.topics.name_of(topic_id)
        if name is None:
            return
        self.desk.append_error = None
        code = self.desk.commit(
            1, topic=name, partition=index, member_id=client.member_id, generation_id=client.epoch
        )
        member = group.members.get(client.member_id)
        if member is None:
            assert code is not ErrorCode.NONE, "a fenced member has committed"
        elif code is ErrorCode.NONE:
            assert (topic_id, index) in set(member.owned)
        else:
            assert client.epoch != member.epoch

    # -- what must be true --------------------------------------------------------------------------

    @invariant()
    def nothing_is_two_members(self) -> None:
        if not hasattr(self, "desk"):
            return
        group = self.desk.shard.state.consumers.get(GROUP)
        if group is None:
            return
        owners: dict[PartitionId, str] = {}
        for member in group.members.values():
            for partition in member.owned:
                assert partition not in owners, (partition, owners[partition], member.member_id)
                owners[partition] = member.member_id
        assert owners == group.owners
        for client in self.clients:
            known = group.members.get(client.member_id)
            # A classic client knows topics by name: it takes one that was made again for the one before. In the end
            # (`teardown`) no two clients of either kind may own a partition.
            if known is not None and isinstance(client, New):
                assert client.owned <= set(known.owned), client.member_id

    def _all_step(self, passed_ms: int) -> None:
        for client in self.clients:
            client.step()
            self.nothing_is_two_members()
        self.desk.pass_time(passed_ms)

    def teardown(self) -> None:
        """Let all who are left go on in peace."""
        if not hasattr(self, "desk"):
            return
        self.desk.append_error = None
        self.clients = [client for client in self.clients if not client.is_fenced]
        # Instance ids that two have are a mistake of theirs: the last one stays.
        for number in range(len(self.clients) - 1, -1, -1):
            later = {c.instance_id for c in self.clients[number + 1 :]} - {None}
            if self.clients[number].instance_id in later:
                del self.clients[number]
        for _ in range(60):
            self._all_step(3_000)
        group = self.desk.shard.state.consumers.get(GROUP)
        if group is None or not group.members:
            return
        assert group.state is ConsumerGroupState.STABLE
        assert set(group.members) == {client.member_id for client in self.clients}
        everything: set[PartitionId] = set()
        for client in self.clients:
            assert not everything & client.owned
            everything |= client.owned
        assert everything == self.topics.all_of(*TOPICS)
        self.desk.check_replay()


ConsumerGroups.TestCase.settings = settings(
    max_examples=examples(40), stateful_step_count=25, deadline=None
)
TestConsumerGroups = ConsumerGroups.TestCase

"""Share groups under all faults at once (KIP-932).

Members join, leave, sleep and lose answers; topics are created, grow and are deleted; a share coordinator answers late,
never, or with an error; logs refuse records; coordinators restart; operators reset and delete. After every step: only
partitions are assigned whose state the share coordinator has begun; and a coordinator that reloads the log has the same
state. At the end, when the remaining members run without faults, every subscribed partition has a member, and no member
has much more than another.
"""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import initialize, invariant, precondition, rule

from broker.coordinator.group.shard import TopicsDeleted
from broker.coordinator.group.share_admin import DeleteShareStates
from broker.coordinator.group.share_group import partitions_of
from broker.coordinator.group.share_protocol import ShareStateInitialized
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import AlterShareGroupOffsetsRequest, DeleteGroupsRequest
from kafka_ds.protocol.topic_partition import PartitionId
from tests.model_runs import examples
from tests.requests import build
from tests.unit.coordinator.group.consumer_desk import Topics
from tests.unit.coordinator.group.group_desk import GROUP, GroupDesk
from tests.unit.coordinator.group.group_machine import BEGIN_ANEW, LATER, BeatingGroupMachine
from tests.unit.coordinator.group.share_desk import Sharer, assigned_to

CLIENTS_MAX = 4
TOPICS = ("t", "u")


class ShareGroupsModel(BeatingGroupMachine):
    """One share group."""

    @initialize(size=st.integers(1, 3), interval_ms=st.sampled_from([0, 1_000]))
    def begin(self, size: int, interval_ms: int) -> None:
        self.topics = Topics(t=size)
        self.desk = GroupDesk(self.topics, group_share_assignment_interval_ms=interval_ms)
        self.clients: list[Sharer] = []
        self.named = 0
        # What the share coordinator has begun, whether or not its answer arrived.
        self.begun: set[PartitionId] = set()

    # -- members ------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.clients) < CLIENTS_MAX)
    @rule(topics=st.sampled_from([("t",), TOPICS]))
    def another_joins(self, topics: tuple[str, ...]) -> None:
        self.named += 1
        self.clients.append(Sharer(self.desk, f"m{self.named}", *topics))
        self.beat(self.clients[-1])

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), answered=st.booleans())
    def one_beats(self, data: st.DataObject, answered: bool) -> None:
        self.beat(data.draw(st.sampled_from(self.clients)), answered=answered)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), topics=st.sampled_from([("t",), ("u",), TOPICS]))
    def one_resubscribes(self, data: st.DataObject, topics: tuple[str, ...]) -> None:
        client = data.draw(st.sampled_from(self.clients))
        client.topics = list(topics)
        self.beat(client, subscribed_topic_names=list(topics))

    def beat(self, client: Sharer, *, answered: bool = True, **more: object) -> None:
        try:
            if answered:
                client.beat(**more)
            else:
                self.desk.call(client.request(**more), version=1)
        except KafkaError as error:
            assert error.code in BEGIN_ANEW | LATER, error
            if error.code in BEGIN_ANEW and answered:
                client.epoch, client.assigned = 0, frozenset()

    # -- the share coordinator ----------------------------------------------------------------------

    @precondition(lambda self: self.desk.effects)
    @rule(data=st.data(), begins=st.booleans(), arrives=st.booleans())
    def the_share_coordinator_answers(
        self, data: st.DataObject, begins: bool, arrives: bool
    ) -> None:
        asked = self.desk.effects.pop(data.draw(st.integers(0, len(self.desk.effects) - 1)))
        if begins:
            self.begun |= asked.partitions
        if arrives:
            self._answer(asked.group_id, asked.partitions, begins)

    def _answer(self, group_id: str, partitions: frozenset[PartitionId], success: bool) -> None:
        event = ShareStateInitialized(group_id=group_id, partitions=partitions, success=success)
        try:
            self.desk.call(event)
        except KafkaError as error:
            assert error.code in LATER

    # -- faults, topics, time, operators ------------------------------------------------------------

    @rule()
    def the_coordinator_restarts(self) -> None:
        self.desk.effects.clear()
        self.desk.restart()

    @rule(passed_ms=st.sampled_from([100, 5_000, 31_000, 46_000]))
    def time_passes(self, passed_ms: int) -> None:
        self.desk.pass_time(passed_ms)

    @rule(name=st.sampled_from(TOPICS))
    def a_topic_comes_or_grows(self, name: str) -> None:
        shape = self.topics.topic(name)
        if shape is None:
            self.topics.make(name, 2)
        elif shape.partitions < 4:
            self.topics.grow(name, shape.partitions + 1)

    @rule(name=st.sampled_from(TOPICS))
    def a_topic_goes(self, name: str) -> None:
        shape = self.topics.topic(name)
        if shape is not None:
            self.topics.delete(name)
            self._operate(TopicsDeleted(topics=((name, shape.topic_id),)))

    @rule()
    def an_operator_resets(self) -> None:
        partitions = [{"partition_index": 0, "start_offset": 5}]
        topics = [{"topic_name": "t", "partitions": partitions}]
        reset = self._operate(build(AlterShareGroupOffsetsRequest, group_id=GROUP, topics=topics))
        if reset is not None and reset.start_offsets:
            self.begun |= reset.start_offsets.keys()
            self._answer(GROUP, frozenset(reset.start_offsets), True)

    @rule(arrives=st.booleans())
    def an_operator_deletes(self, arrives: bool) -> None:
        gone = self._operate(DeleteShareStates(group_id=GROUP))
        if gone is not None and arrives:
            self.begun -= gone
            self._operate(DeleteGroupsRequest(groups_names=[GROUP]))

    def _operate(self, request: object) -> object:
        try:
            return self.desk.call(request)  # type: ignore[arg-type]
        except KafkaError as error:
            assert error.code in {ErrorCode.NON_EMPTY_GROUP, ErrorCode.COORDINATOR_NOT_AVAILABLE}
            return None

    # -- what must be true --------------------------------------------------------------------------

    @invariant()
    def only_states_that_were_begun_are_assigned(self) -> None:
        group = self.desk.shard.state.shares.get(GROUP) if hasattr(self, "desk") else None
        if group is None:
            return
        assert partitions_of(group.initialized) <= self.begun
        for member in group.members.values():
            assert member.assigned <= self.begun

    def teardown(self) -> None:
        """Let all who are left go on in peace."""
        if not hasattr(self, "desk"):
            return
        self.desk.append_error = None
        for _ in range(30):
            for client in self.clients:
                self.beat(client)
            for asked in self.desk.effects:
                self.begun |= asked.partitions
                self._answer(asked.group_id, asked.partitions, True)
            self.desk.effects.clear()
            self.desk.pass_time(3_000)
        names = {name for client in self.clients for name in client.topics}
        assert assigned_to(self.clients) == self.topics.all_of(*names)
        group = self.desk.shard.state.shares.get(GROUP)
        if group is not None:
            assert set(group.members) == {client.member_id for client in self.clients}
        if len({tuple(client.topics) for client in self.clients}) == 1:
            counts = [len(client.assigned) for client in self.clients]
            assert max(counts) - min(counts) <= 1
        self.desk.check_replay()


ShareGroupsModel.TestCase.settings = settings(
    max_examples=examples(40), stateful_step_count=25, deadline=None
)
TestShareGroups = ShareGroupsModel.TestCase

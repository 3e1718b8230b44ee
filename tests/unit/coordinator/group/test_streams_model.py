"""Streams groups under all faults at once (KIP-1071).

Members of a few processes join, leave, restart, sleep, lose answers and keep tasks that they should give up; topics are
created, deleted and have wrong sizes; settings change; logs refuse records; coordinators restart. After every step: no
task is active twice, no two members of a process have the same task, members have only what is theirs, and a
coordinator that reloads the log has the same state. At the end, when the remaining members run without faults and all
topics are there, each task is active in one of them, numbers are even, and stateful tasks have their standbys.
"""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.coordinator.group.streams_group import Task, Tasks
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import DeleteGroupsRequest, StreamsGroupDescribeRequest
from tests.model_runs import examples
from tests.unit.coordinator.group.group_desk import GROUP
from tests.unit.coordinator.group.streams_desk import (
    Streamer,
    active_in,
    make_missing,
    new_desk,
)

CLIENTS_MAX = 4
BEGIN_ANEW = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.FENCED_INSTANCE_ID,
}
LATER = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.UNRELEASED_INSTANCE_ID}


class StreamsGroupsModel(RuleBasedStateMachine):
    """One streams group that counts words."""

    @initialize(
        delay_ms=st.sampled_from([0, 3_000]),
        interval_ms=st.sampled_from([0, 1_000]),
        replicas=st.sampled_from(["0", "1"]),
    )
    def begin(self, delay_ms: int, interval_ms: int, replicas: str) -> None:
        self.desk, self.topics = new_desk(lines=3)
        self.topics.settings[GROUP] = {
            "streams.initial.rebalance.delay.ms": str(delay_ms),
            "streams.assignment.interval.ms": str(interval_ms),
            "streams.num.standby.replicas": replicas,
        }
        self.clients: list[Streamer] = []
        self.named = 0

    # -- members ------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.clients) < CLIENTS_MAX)
    @rule(process=st.sampled_from("pq"), is_static=st.booleans())
    def another_joins(self, process: str, is_static: bool) -> None:
        self.named += 1
        name = f"m{self.named}"
        self.clients.append(
            Streamer(
                self.desk,
                name,
                process=process,
                endpoint=(process, 1),
                instance=f"i-{name}" if is_static else None,
            )
        )
        self._beat(self.clients[-1])

    @precondition(lambda self: any(each.instance for each in self.clients))
    @rule(data=st.data(), says_so=st.booleans())
    def a_static_member_restarts(self, data: st.DataObject, says_so: bool) -> None:
        client = data.draw(st.sampled_from([each for each in self.clients if each.instance]))
        if says_so:
            self._beat(client, answered=False, member_epoch=-2)
        client.forget()
        self.named += 1
        client.member_id = f"m{self.named}"

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), answered=st.booleans(), creates=st.booleans(), says=st.booleans())
    def one_beats(self, data: st.DataObject, answered: bool, creates: bool, says: bool) -> None:
        client = data.draw(st.sampled_from(self.clients))
        nothing = (
            {}
            if says or not client.epoch
            else dict.fromkeys(("active_tasks", "standby_tasks", "warmup_tasks"))
        )
        self._beat(client, answered=answered, creates=creates, **nothing)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def one_forgets_everything(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.clients)).forget()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), says_so=st.booleans())
    def one_leaves(self, data: st.DataObject, says_so: bool) -> None:
        client = data.draw(st.sampled_from(self.clients))
        self.clients.remove(client)
        if says_so:
            self._beat(client, member_epoch=-1)

    def _beat(
        self, client: Streamer, *, answered: bool = True, creates: bool = True, **more: object
    ) -> None:
        try:
            if not answered:
                self.desk.call(client.request(**more), version=1)
                return
            result = client.result(**more)
            if creates:
                make_missing(self.topics, result)
        except KafkaError as error:
            assert error.code in BEGIN_ANEW | LATER, error
            if error.code in BEGIN_ANEW and answered:
                client.forget()

    # -- faults, topics, settings, time, operators --------------------------------------------------

    @rule()
    def the_log_refuses(self) -> None:
        self.desk.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE

    @rule()
    def the_coordinator_restarts(self) -> None:
        self.desk.restart()

    @rule(passed_ms=st.sampled_from([100, 3_000, 31_000, 46_000, 61_000]))
    def time_passes(self, passed_ms: int) -> None:
        self.desk.pass_time(passed_ms)

    @rule(name=st.sampled_from(["lines", "words", "counts"]), size=st.sampled_from([2, 3]))
    def a_topic_comes_or_goes(self, name: str, size: int) -> None:
        if self.topics.topic(name) is None:
            self.topics.make(name, size)
        else:
            self.topics.delete(name)

    @rule(replicas=st.sampled_from(["0", "1"]))
    def standbys_are_wanted(self, replicas: str) -> None:
        own = self.topics.settings[GROUP]
        self.topics.settings[GROUP] = {**own, "streams.num.standby.replicas": replicas}

    @rule()
    def an_operator_looks_and_deletes(self) -> None:
        self.desk.call(StreamsGroupDescribeRequest(group_ids=[GROUP]))
        try:
            self.desk.call(DeleteGroupsRequest(groups_names=[GROUP]))
        except KafkaError as error:
            assert error.code in LATER

    # -- what must be true --------------------------------------------------------------------------

    @invariant()
    def no_task_is_somewhere_twice(self) -> None:
        group = self.desk.shard.state.streams.get(GROUP) if hasattr(self, "desk") else None
        if group is None:
            return
        active: Counter[Task] = Counter()
        here: Counter[tuple[str, Task]] = Counter()
        for member in group.members.values():
            has = member.assigned.with_(member.revoking)
            active.update(has.active)
            here.update((member.process_id, task) for task in frozenset().union(*has))
            assert member.since.keys() == has.active
            for client in self.clients:
                if client.member_id == member.member_id:
                    assert client.tasks.without(has) == Tasks(), "it was not asked to give this up"
        assert not active or max(active.values()) == 1
        assert not here or max(here.values()) == 1

    @invariant()
    def the_log_says_it_all(self) -> None:
        if hasattr(self, "desk"):
            self.desk.check_replay()

    def teardown(self) -> None:
        """Let all who are left go on in peace."""
        if not hasattr(self, "desk"):
            return
        self.desk.append_error = None
        for name in ("lines", "words", "counts"):
            shape = self.topics.topic(name)
            if shape is None:
                self.topics.make(name, 3)
            elif shape.partitions != 3:
                self.topics.grow(name, 3)
        for _ in range(30):
            for client in self.clients:
                self._beat(client)
            self.desk.pass_time(3_000)
        group = self.desk.shard.state.streams.get(GROUP)
        if group is not None:
            assert set(group.members) == {client.member_id for client in self.clients}
        self.desk.check_replay()
        if not self.clients:
            return
        assert group is not None and group.state.value == "Stable"
        assert active_in(self.clients) == [(s, p) for s in "01" for p in range(3)]
        replicas = int(self.topics.settings[GROUP].get("streams.num.standby.replicas", "0"))
        room = min(replicas, len({client.process for client in self.clients}) - 1)
        standbys = Counter(task for client in self.clients for task in client.tasks.standby)
        assert standbys == Counter({("1", p): room for p in range(3) if room})


StreamsGroupsModel.TestCase.settings = settings(
    max_examples=examples(40), stateful_step_count=25, deadline=None
)
TestStreamsGroups = StreamsGroupsModel.TestCase

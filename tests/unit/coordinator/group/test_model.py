"""Many clients, restarts and failures against one group: the invariants after every step.

- Members of a stable generation get the assignment that its leader gave, and never another one.
- Generations only grow (except, over a restart, generations in which nobody was assigned anything).
- A member that is fenced, unknown or of another generation changes nothing.
- The replicated state equals what the log holds, and an accepted commit is visible from then on.
- When the clients behave and time passes, the group becomes stable with all of them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kafka_ds.protocol.errors import ErrorCode, KafkaError
from tests.model_runs import examples
from tests.unit.coordinator.group.group_desk import (
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    WAITING,
    GroupDesk,
    subscription,
)

CLIENTS_MAX = 6
REJOIN = (
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
)


class ModelConsumer:
    """A client as real ones behave: it joins, syncs, and starts over when it is told to."""

    def __init__(self, desk: GroupDesk, instance_id: str | None, version: int, name: str) -> None:
        self.desk = desk
        self.instance_id = instance_id
        self.version = version
        self.name = name
        self.member_id = ""
        self.generation_id = -1
        self.join: int | None = None
        self.sync: int | None = None
        self.assignment: bytes | None = None
        self.is_fenced = self.is_asleep = False
        self.protocols = (("range", subscription("t")), ("sticky", name.encode()))

    def begin_anew(self, *, forget_id: bool = False) -> None:
        self.join = self.sync = self.assignment = None
        self.generation_id = -1
        if forget_id:
            self.member_id = ""

    def step(self) -> tuple[int, str, bytes] | None:
        """Go one step on; returns (generation, member id, assignment) when that was learned."""
        if self.is_asleep or self.is_fenced or self.assignment is not None:
            return None
        if self.join is None:
            self.join = self.desk.ask_join(
                self.member_id,
                instance_id=self.instance_id,
                protocols=self.protocols,
                version=self.version,
            )
            return None
        answer = self.desk.answer(self.join)
        if answer is WAITING:
            return None
        if self.generation_id < 0:
            self._joined(answer)
            return None
        assert self.sync is not None
        return self._synced(self.desk.answer(self.sync))

    def _joined(self, answer: Any) -> None:
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.join, self.member_id = None, answer.member_id
        elif answer.error_code:
            self._fail(answer.error_code)
        else:
            self.member_id, self.generation_id = answer.member_id, answer.generation_id
            given = {}
            if answer.leader == self.member_id and not answer.skip_assignment:
                unique = f"{self.name}-{self.generation_id}-{len(self.desk.answers)}"
                given = {m.member_id: f"{unique}-{m.member_id}".encode() for m in answer.members}
            self.sync = self.desk.ask_sync(
                self.member_id, self.generation_id, given, instance_id=self.instance_id
            )

    def _synced(self, answer: Any) -> tuple[int, str, bytes] | None:
        if answer is WAITING:
            return None
        if answer.error_code:
            self._fail(answer.error_code)
            return None
        self.assignment = answer.assignment
        return self.generation_id, self.member_id, answer.assignment

    def _fail(self, code: int) -> None:
        if code == ErrorCode.FENCED_INSTANCE_ID:
            self.is_fenced = True
        else:
            assert code in (*REJOIN, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED)
            self.begin_anew(forget_id=code == ErrorCode.UNKNOWN_MEMBER_ID)

    def heartbeat(self) -> None:
        if self.generation_id < 0 or self.is_fenced or self.is_asleep:
            return
        code = self.desk.heartbeat(self.member_id, self.generation_id, instance_id=self.instance_id)
        if code is not ErrorCode.NONE:
            waits = self.sync is not None and self.desk.answer(self.sync) is WAITING
            if not (waits and code is ErrorCode.REBALANCE_IN_PROGRESS):
                self._fail(code)


class Groups(RuleBasedStateMachine):
    """One group, its clients, and what they have observed."""

    @initialize(
        delay_ms=st.sampled_from([0, 3_000]),
        instances=st.sampled_from(
            [[None] * 2, [None] * 4, ["x", None, "y"], ["x", "y"], [None, "x", None]]
        ),
        rounds=st.sampled_from([12, 4, 0]),
    )
    def begin(self, delay_ms: int, instances: list[str | None], rounds: int) -> None:
        # Never look for old offsets: a group that is removed for being empty begins with generation 1 again.
        self.desk = GroupDesk(
            group_initial_rebalance_delay_ms=delay_ms,
            offsets_retention_check_interval_ms=10**12,
        )
        self.clients: list[ModelConsumer] = []
        self.zombies: list[ModelConsumer] = []
        self.assigned: dict[tuple[int, str], bytes] = {}
        self.generation = 0
        self.offset = -1
        self.names = 0
        self.has_restarted = False
        for instance in instances:
            self._new_client(instance, 9)
        self.all_go_on(rounds, 1_000)

    def _new_client(self, instance_id: str | None, version: int) -> ModelConsumer:
        self.names += 1
        client = ModelConsumer(self.desk, instance_id, version, f"n{self.names}")
        self.clients.append(client)
        return client

    # -- what happens -------------------------------------------------------------------------------

    @rule(instance=st.sampled_from([None, None, "x", "y"]), version=st.sampled_from([3, 5, 9]))
    def client_comes(self, instance: str | None, version: int) -> None:
        if instance is not None:
            known = [c for c in self.clients if c.instance_id == instance]
            self.zombies += known
            self.clients = [c for c in self.clients if c not in known]
        if len(self.clients) < CLIENTS_MAX:
            self._new_client(instance, max(version, 5) if instance else version)

    @precondition(lambda self: self.clients)
    @rule(order=st.lists(st.integers(0, CLIENTS_MAX - 1), min_size=1, max_size=15))
    def some_go_on(self, order: list[int]) -> None:
        for number in order:
            self._step(self.clients[number % len(self.clients)])

    def _step(self, client: ModelConsumer) -> None:
        before = self._generation()
        learned = client.step()
        if self._generation() > before:
            # No time has passed: all have joined, those included to whom an id was given out (KIP-394).
            assert not self.desk.shard.state.groups[GROUP].pending_join_members
        if learned is not None:
            generation_id, member_id, assignment = learned
            known = self.assigned.setdefault((generation_id, member_id), assignment)
            assert known == assignment, "one assignment a member and generation"

    def _generation(self) -> int:
        group = self.desk.shard.state.groups.get(GROUP)
        if group is None:
            self.generation = 0  # nothing is left of it: the next one begins anew
            return 0
        return group.generation_id

    @precondition(lambda self: self.clients)
    @rule(
        rounds=st.sampled_from([2, 1, 3, 4, 10]),
        passed_ms=st.sampled_from([1_000, 0, 1, SESSION_MS // 2, SESSION_MS - 1]),
        idle=st.sampled_from([None, 0, 1, 2]),
    )
    def all_go_on(self, rounds: int, passed_ms: int, idle: int | None = None) -> None:
        for _ in range(rounds):
            for number, client in enumerate(self.clients):
                if number != idle:
                    self._step(client)
            self.desk.pass_time(passed_ms)
            for client in self.clients:
                client.heartbeat()

    @precondition(lambda self: self.clients)
    @rule(
        number=st.integers(0, CLIENTS_MAX - 1),
        what=st.sampled_from(["changes", "falls asleep", "wakes", "leaves", "vanishes"]),
        changed=st.binary(max_size=2),
    )
    def client_does_something(self, number: int, what: str, changed: bytes) -> None:
        client = self.clients[number % len(self.clients)]
        if what in ("falls asleep", "wakes"):
            client.is_asleep = what == "falls asleep"
            return
        if what == "changes":
            client.protocols = (("range", subscription("t", "u")), ("sticky", changed))
            client.begin_anew()
            self._step(client)
            return
        self.clients.remove(client)
        if what == "leaves" and client.member_id:
            with suppress(KafkaError):  # the log may fail; the client is gone all the same
                self.desk.leave((client.member_id, client.instance_id))
            self.zombies.append(client)
        if not self.clients:
            self._new_client(None, 9)

    @rule(passed_ms=st.sampled_from([SESSION_MS - 1, SESSION_MS, 60_000, 300_000]))
    def nobody_is_heard_of(self, passed_ms: int) -> None:
        self.desk.pass_time(passed_ms)

    @precondition(lambda self: len(self.clients) > 1)
    @rule(number=st.integers(0, CLIENTS_MAX - 1))
    def who_is_not_heard_of_is_dropped(self, number: int) -> None:
        lost = self.clients.pop(number % len(self.clients))
        self.zombies.append(lost)
        self.all_go_on(4 * (REBALANCE_MS + SESSION_MS) // SESSION_MS, SESSION_MS // 2)
        group = self.desk.shard.state.groups.get(GROUP)
        assert group is None or lost.member_id not in group.members

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, CLIENTS_MAX - 1))
    def client_commits(self, number: int) -> None:
        client = self.clients[number % len(self.clients)]
        if client.generation_id < 0 or client.is_fenced:
            return
        before = len(self.desk.log)
        code = self.desk.commit(
            before,
            member_id=client.member_id,
            generation_id=client.generation_id,
            instance_id=client.instance_id,
        )
        if code is ErrorCode.NONE:
            self.offset = before
            assert client.generation_id == self.desk.shard.state.groups[GROUP].generation_id
        else:
            assert len(self.desk.log) == before

    @rule(code=st.sampled_from([ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE]))
    def the_next_append_fails(self, code: ErrorCode) -> None:
        self.desk.append_error = code

    @rule()
    def the_coordinator_restarts(self) -> None:
        self.desk.append_error = None
        self.has_restarted = True
        self.desk.restart()
        stored = self.desk.shard.state.metadata.get(GROUP)
        self.generation = 0 if stored is None else stored.generation
        for client in self.clients + self.zombies:
            for ticket in (client.join, client.sync):
                if ticket is not None and self.desk.answer(ticket) is WAITING:
                    client.begin_anew()

    @rule(data=st.data())
    def somebody_interferes(self, data: st.DataObject) -> None:
        """Requests of a member that was replaced, has left, is of another generation, or never joined."""
        before = self._everything()
        self._interfere(data)
        assert self._everything() == before

    def _interfere(self, data: st.DataObject) -> None:
        desk = self.desk
        group = desk.shard.state.groups.get(GROUP)
        present = {} if group is None else group.members
        gone = {z.member_id for z in self.zombies} - {"", *present}
        if group is not None:
            gone -= group.pending_join_members
        member_id = data.draw(st.sampled_from(["stranger", *sorted(gone)]))
        generation_id = 0 if group is None else group.generation_id
        if present and data.draw(st.booleans()):
            member_id = data.draw(st.sampled_from(list(present)))
            generation_id += data.draw(st.sampled_from([-1, 1]))
        assert desk.heartbeat(member_id, generation_id) is not ErrorCode.NONE
        assert desk.answer(desk.ask_sync(member_id, generation_id, {member_id: b"!"})).error_code
        if generation_id >= 0:
            code = desk.commit(10**9, member_id=member_id, generation_id=generation_id)
            assert code is not ErrorCode.NONE
        if member_id not in present:
            assert desk.answer(desk.ask_join(member_id)).error_code
            assert desk.leave(member_id) == [ErrorCode.UNKNOWN_MEMBER_ID]

    @precondition(lambda self: any(client.instance_id for client in self.zombies))
    @rule(number=st.integers(0, 50))
    def who_was_replaced_is_fenced(self, number: int) -> None:
        """It must not rejoin: it would fence its successor, which would fence it, and so on."""
        group = self.desk.shard.state.groups.get(GROUP)
        static = {} if group is None else group.static_ids
        replaced = [
            z
            for z in self.zombies
            if z.member_id and static.get(z.instance_id or "", z.member_id) != z.member_id
        ]
        if group is None or not replaced:
            return
        zombie = replaced[number % len(replaced)]
        who, instance_id = zombie.member_id, zombie.instance_id
        fenced, before = ErrorCode.FENCED_INSTANCE_ID, self._everything()
        generation_id = group.generation_id
        assert self.desk.heartbeat(who, generation_id, instance_id=instance_id) is fenced
        asked = self.desk.ask_sync(who, generation_id, instance_id=instance_id)
        assert self.desk.answer(asked).error_code == fenced
        asked = self.desk.ask_join(who, instance_id=instance_id)
        assert self.desk.answer(asked).error_code == fenced
        assert self.desk.leave((who, instance_id)) == [fenced]
        code = self.desk.commit(
            10**9, member_id=who, generation_id=generation_id, instance_id=instance_id
        )
        assert code is fenced
        assert self._everything() == before

    def _everything(self) -> Any:
        shard = self.desk.shard
        groups = {
            group_id: (
                group.state,
                group.generation_id,
                group.leader_id,
                [(m.member_id, m.protocols, m.assignment) for m in group.members.values()],
                sorted(group.pending_join_members),
                dict(group.joining),
                dict(group.syncing),
                sorted(group.pending_sync_members),
            )
            for group_id, group in shard.state.groups.items()
        }
        return groups, dict(shard.state.timers.deadlines), len(self.desk.log)

    # -- what must be true --------------------------------------------------------------------------

    @invariant()
    def nobody_is_dropped(self) -> None:
        groups = self.desk.shard.state.groups.values()
        waiting = [each for group in groups for each in (group.joining, group.syncing)]
        tickets = [ticket for each in waiting for ticket in each.values()]
        assert sorted(tickets) == sorted(self.desk.open_tickets())

    @invariant()
    def the_log_says_it_all(self) -> None:
        self.desk.check_replay()

    @invariant()
    def generations_grow(self) -> None:
        group = self.desk.shard.state.groups.get(GROUP)
        if group is None:
            self.generation = 0  # nothing was left of it
        else:
            assert group.generation_id >= self.generation
            self.generation = group.generation_id

    @invariant()
    def an_accepted_commit_is_told(self) -> None:
        assert self.desk.fetch(("t", 0)) == {("t", 0): self.offset}

    @invariant()
    def a_group_makes_sense(self) -> None:
        for group in self.desk.shard.state.groups.values():
            assert set(group.joining) <= set(group.members)
            assert set(group.syncing) <= set(group.members)
            assert not group.pending_join_members & set(group.members)
            assert set(group.static_ids.values()) == {
                m.member_id for m in group.members.values() if m.is_static
            }
            assert (group.leader_id in group.members) == bool(group.members)
            match group.state.value:
                case "Empty":
                    assert not group.members and not group.joining and not group.syncing
                case "PreparingRebalance":
                    assert not group.syncing
                case "CompletingRebalance":
                    assert group.members and not group.joining
                    assert group.leader_id not in group.syncing
                case "Stable":
                    assert group.members and not group.joining and not group.syncing
                    stored = self.desk.shard.state.metadata[group.group_id]
                    assert stored.generation == group.generation_id
                    assert {m.member_id: m.assignment for m in stored.members} == {
                        m.member_id: m.assignment for m in group.members.values()
                    }

    def teardown(self) -> None:
        """In the end all who are left come to an agreement."""
        if not hasattr(self, "desk"):
            return
        self.desk.append_error = None
        live = self.clients = [client for client in self.clients if not client.is_fenced]
        for client in live:
            client.is_asleep = False
        if live:
            self.all_go_on(200, 1_000)
        else:
            self.desk.pass_time(300_000)
        fenced = [client for client in live if client.is_fenced]
        # Kafka's own: a static member's id is written with its assignment. If the coordinator restarts before, it
        # knows the former id, and takes the present one for that of an impostor.
        assert self.has_restarted or not fenced
        live = [client for client in live if client not in fenced]
        group = self.desk.shard.state.groups.get(GROUP)
        if live:
            assert group is not None and group.state.value == "Stable"
            assert set(group.members) == {client.member_id for client in live}
            assert {client.generation_id for client in live} == {group.generation_id}
            for client in live:
                assert client.assignment == group.members[client.member_id].assignment
        elif group is not None:
            assert not group.members
        self.desk.check_replay()


Groups.TestCase.settings = settings(
    max_examples=examples(100), stateful_step_count=40, deadline=None
)
test_a_group_under_every_circumstance = Groups.TestCase

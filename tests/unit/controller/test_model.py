"""Brokers that start, stop, crash and lose disks under one controller: the invariants after every step.

The model compares the controller's state with what the replicas really hold: where each log ends, and how far records
were committed (the high watermark of a live leader, over its ISR, if that has min.insync.replicas). So:
- Every replica in the ISR or the ELR holds all committed records; so does every leader that was elected cleanly.
- A leader is in the ISR, active, and its directory works. A partition that could have one cleanly has one.
- ISR and ELR are disjoint and among the replicas; there is no ELR beside an ISR that lets the high watermark move.
- Every change of a partition has the next partition epoch, every change of its leader the next leader epoch.
- Replaying the log gives the same state, event by event and from a snapshot.
"""

from __future__ import annotations

from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.controller.brokers import DirectoryAssignment
from broker.controller.controller import NewTopic
from broker.controller.draft import MIN_INSYNC_REPLICAS, UNCLEAN_LEADER_ELECTION_ENABLE
from broker.controller.elections import ElectionType
from broker.controller.isr import AlterPartition
from broker.controller.topics import MorePartitions
from broker.metadata.events import (
    NO_LEADER,
    RECOVERED,
    RECOVERING,
    PartitionRegistration,
    from_json,
    to_json,
)
from broker.metadata.features import ELR_FEATURE
from broker.metadata.image import MetadataImage
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.topic.metadata_table import MetadataPosition
from tests.model_runs import examples
from tests.unit.controller.controller_desk import SESSION_TIMEOUT_MS, ClusterDesk

# A record: the leader epoch in which it was written, and its number.
Record = tuple[int, int]


class Replica:
    """One log, and under which leader it was last told to look like this."""

    def __init__(self) -> None:
        self.log: list[Record] = []
        self.fetched_epoch = -1


class PartitionFate:
    """What became of the records of one partition."""

    def __init__(self) -> None:
        self.replicas: dict[int, Replica] = {}
        self.committed: list[Record] = []
        self.written = 0

    def replica(self, broker: int) -> Replica:
        return self.replicas.setdefault(broker, Replica())

    def append(self, leader: int, leader_epoch: int) -> None:
        self.written += 1
        self.replica(leader).log.append((leader_epoch, self.written))

    def holds_all(self, broker: int) -> bool:
        """Whether this replica has every record that was committed."""
        return self.replica(broker).log[: len(self.committed)] == self.committed

    def forget(self, leader: int) -> None:
        """A leader that was elected uncleanly: what it does not hold is lost."""
        while not self.holds_all(leader):
            self.committed.pop()

    def commit(self, leader: int, end: int) -> None:
        if end > len(self.committed):
            self.committed = self.replica(leader).log[:end]


class ModelProcess:
    """A broker's process, and what lies on its disks when it does not run."""

    def __init__(self) -> None:
        self.runs = False
        self.epoch = -1
        self.stopped_cleanly = False
        self.wants_to_stop = False
        self.directories: list[bytes] = []


def described(image: MetadataImage) -> Any:
    return (
        image.controller_epoch, image.last_broker_epoch, image.features, image.brokers, image.broker_configs,
        {n: (t.topic_id, t.partitions, t.configs) for n, t in image.topics.items()},
    )  # fmt: skip


BROKERS = (1, 2, 3, 4)
TOPICS = ("a", "b")
PARTITIONS_MAX = 3
brokers = st.sampled_from(BROKERS)
names = st.sampled_from(TOPICS)
indexes = st.integers(0, PARTITIONS_MAX - 1)


class ControllerModel(RuleBasedStateMachine):
    """Any order of what happens to a cluster."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = ClusterDesk()
        self.processes = {broker: ModelProcess() for broker in BROKERS}
        self.truth: dict[tuple[bytes, int], PartitionFate] = {}
        self.seen: dict[tuple[bytes, int], PartitionRegistration] = {}
        self.had_no_elr = False

    # -- helpers ------------------------------------------------------------------------------

    @property
    def image(self) -> MetadataImage:
        return self.desk.image

    def found(self, name: str, index: int) -> tuple[PartitionRegistration, PartitionFate] | None:
        topic = self.image.topics.get(name)
        if topic is None or index not in topic.partitions:
            return None
        return topic.partitions[index], self.truth.setdefault(
            (topic.topic_id, index), PartitionFate()
        )

    def serves(self, broker: int, registration: PartitionRegistration) -> bool:
        """Whether this broker runs, as the incarnation that the cluster knows, with the replica's disk."""
        process, known = self.processes[broker], self.image.brokers.get(broker)
        if not process.runs or known is None or known.broker_epoch != process.epoch:
            return False
        return known.has_directory(registration.directory_of(broker))

    def acceptable(self, broker: int, registration: PartitionRegistration) -> bool:
        known = self.image.brokers.get(broker)
        return (
            known is not None
            and known.is_active
            and known.has_directory(registration.directory_of(broker))
        )

    def needed(self, name: str, registration: PartitionRegistration) -> int:
        least = int(self.image.topics[name].configs.get(MIN_INSYNC_REPLICAS, "1"))
        return min(least, len(registration.replicas))

    # -- brokers ------------------------------------------------------------------------------

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.desk.racks = {broker: "ab"[broker % 2] for broker in BROKERS}
        self.desk.take(self.desk.controller.claim(1))
        self.desk.controller.begin_sessions(self.desk.now_ms)
        for broker in BROKERS[:3]:
            self.start(broker, data.draw(st.integers(1, 2)), 0, at_once=data.draw(st.booleans()))
            self.desk.beat(broker)
        self.create(
            "a", 2, data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)), unclean=False
        )

    @rule(broker=brokers, disks=st.integers(0, 2), kept=st.integers(0, 3), at_once=st.booleans())
    def start(self, broker: int, disks: int, kept: int, at_once: bool) -> None:
        """`disks`: this many new ones instead of all old ones, 0: the old ones; after a crash `kept` of each log."""
        process = self.processes[broker]
        if process.runs:
            return
        directories = process.directories
        if disks or not directories:
            directories = [self.desk.new_uuid() for _ in range(max(disks, 1))]
        # The file that tells of a clean stop lies on the disks.
        is_clean = process.stopped_cleanly and directories == process.directories
        previous = process.epoch if is_clean else -1
        try:
            self.desk.register(broker, previous, log_dirs=directories, fenced=not at_once)
        except KafkaError as refusal:
            assert refusal.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
            return
        if directories != process.directories:
            kept = 0
        if not is_clean:
            for partition in self.truth.values():
                replica = partition.replica(broker)
                replica.log, replica.fetched_epoch = replica.log[:kept], -1
        process.runs, process.wants_to_stop, process.stopped_cleanly = True, False, False
        process.directories, process.epoch = directories, self.desk.epoch(broker)

    @rule(broker=brokers, caught_up=st.integers(0, 9), fence=st.integers(0, 9))
    def beat(self, broker: int, caught_up: int, fence: int) -> None:
        process = self.processes[broker]
        if not process.runs:
            return
        version = self.image.version if caught_up else 0
        try:
            reply = self.desk.beat(
                broker,
                broker_epoch=process.epoch,
                metadata_version=version,
                want_fence=not fence,
                want_shut_down=process.wants_to_stop,
            )
        except (KafkaError, KeyError):
            # Unregistered, which it takes for the end.
            process.runs = False
            return
        if reply.should_shut_down:
            process.runs, process.stopped_cleanly = False, True
            self.processes[broker].wants_to_stop = False

    @rule(broker=brokers)
    def stop(self, broker: int) -> None:
        self.processes[broker].wants_to_stop = True

    @rule(broker=brokers)
    def crash(self, broker: int) -> None:
        self.processes[broker].runs = False

    @rule(part=st.sampled_from([1, 2, 4]))
    def wait(self, part: int) -> None:
        self.desk.now_ms += SESSION_TIMEOUT_MS // part
        self.desk.expire()

    @rule(broker=brokers)
    def unregister(self, broker: int) -> None:
        if not self.processes[broker].runs and broker in self.image.brokers:
            self.desk.take(self.desk.controller.unregister_broker(broker))

    @rule()
    def another_controller(self) -> None:
        self.desk.controller = self.desk.new_controller()
        self.desk.take(self.desk.controller.claim(2))
        self.desk.controller.begin_sessions(self.desk.now_ms)

    @rule(broker=brokers, which=st.integers(0, 1))
    def lose_disk(self, broker: int, which: int) -> None:
        process = self.processes[broker]
        known = self.image.brokers.get(broker)
        if process.runs and known and known.broker_epoch == process.epoch and known.log_dirs:
            lost = known.log_dirs[which % len(known.log_dirs)]
            self.desk.beat(broker, offline_log_dirs=[lost])

    @rule(broker=brokers, which=st.integers(0, 1), name=names, index=indexes)
    def assign_directory(self, broker: int, which: int, name: str, index: int) -> None:
        """A broker reports its replica's directory; if the old one is lost, the replica was recreated elsewhere."""
        found = self.found(name, index)
        process, known = self.processes[broker], self.image.brokers.get(broker)
        if found is None or not process.runs or known is None or not known.log_dirs:
            return
        registration, partition = found
        if known.broker_epoch != process.epoch or broker not in registration.replicas:
            return
        directory = known.log_dirs[which % len(known.log_dirs)]
        if not known.has_directory(registration.directory_of(broker)):
            partition.replica(broker).log = []
            partition.replica(broker).fetched_epoch = -1
        wanted = DirectoryAssignment(
            directory=directory, topic_id=self.image.topics[name].topic_id, partition=index
        )
        decision = self.desk.controller.assign_directories(broker, process.epoch, [wanted])
        assert self.desk.take(decision) == {wanted: ErrorCode.NONE}

    # -- topics -------------------------------------------------------------------------------

    @rule(
        name=names,
        count=st.integers(1, 2),
        factor=st.integers(1, 3),
        least=st.integers(1, 3),
        unclean=st.booleans(),
    )
    def create(self, name: str, count: int, factor: int, least: int, unclean: bool) -> None:
        configs = (
            (MIN_INSYNC_REPLICAS, str(least)),
            (UNCLEAN_LEADER_ELECTION_ENABLE, str(unclean).lower()),
        )
        topic = NewTopic(
            name=name, num_partitions=count, replication_factor=factor, configs=configs
        )
        self.desk.take(self.desk.controller.create_topics([topic]))

    @rule(name=names)
    def delete(self, name: str) -> None:
        topic = self.image.topics.get(name)
        if topic is not None and len(self.image.topics) > 1:
            self.desk.take(self.desk.controller.delete_topics([(name, bytes(16))]))

    @rule(name=names, count=st.integers(1, PARTITIONS_MAX))
    def grow(self, name: str, count: int) -> None:
        self.desk.take(
            self.desk.controller.create_partitions([MorePartitions(name=name, count=count)])
        )

    @rule(name=names, least=st.sampled_from(["1", "2", "3", None]))
    def set_min_isr(self, name: str, least: str | None) -> None:
        if name in self.image.topics:
            self.desk.set_config(MIN_INSYNC_REPLICAS, least, name)

    @rule(name=names, unclean=st.booleans())
    def set_unclean(self, name: str, unclean: bool) -> None:
        if name in self.image.topics:
            self.desk.set_config(UNCLEAN_LEADER_ELECTION_ENABLE, str(unclean).lower(), name)

    @precondition(lambda self: len(self.desk.log) > 30)
    @rule(level=st.integers(0, 1))
    def set_elr(self, level: int) -> None:
        self.had_no_elr |= level == 0
        self.desk.set_elr(level)

    # -- records ------------------------------------------------------------------------------

    @rule(name=names, index=indexes)
    def append(self, name: str, index: int) -> None:
        found = self.found(name, index)
        if found is not None and found[0].leader != NO_LEADER:
            registration, partition = found
            if self.serves(registration.leader, registration):
                partition.append(registration.leader, registration.leader_epoch)

    @rule(name=names, index=indexes, broker=brokers)
    def fetch(self, name: str, index: int, broker: int) -> None:
        found = self.found(name, index)
        if found is None or found[0].leader in (NO_LEADER, broker):
            return
        registration, partition = found
        leader = registration.leader
        if broker not in registration.replicas or not self.serves(leader, registration):
            return
        if self.serves(broker, registration):
            replica = partition.replica(broker)
            replica.log = list(partition.replica(leader).log)
            replica.fetched_epoch = registration.leader_epoch

    @rule(name=names, index=indexes, dropped=st.sets(brokers), wrong=st.integers(0, 9))
    def propose_isr(self, name: str, index: int, dropped: set[int], wrong: int) -> None:
        """The leader proposes an ISR of the replicas that have caught up; sometimes based on an old state."""
        found = self.found(name, index)
        if found is None or found[0].leader == NO_LEADER:
            return
        registration, partition = found
        leader = registration.leader
        if not self.serves(leader, registration):
            return
        isr = [leader]
        if registration.leader_recovery_state == RECOVERED:
            isr += [
                broker
                for broker in registration.replicas
                if broker != leader
                and broker not in dropped
                and (
                    broker in registration.isr
                    or self.has_caught_up(broker, registration, partition)
                )
            ]
        epochs = tuple((b, self.processes[b].epoch - (wrong == 1 and b != leader)) for b in isr)
        wanted = AlterPartition(
            topic_id=self.image.topics[name].topic_id,
            partition=index,
            new_isr=epochs,
            leader_epoch=registration.leader_epoch - (wrong == 2),
            partition_epoch=registration.partition_epoch - (wrong == 3),
            leader_recovery_state=RECOVERED,
        )
        decision = self.desk.controller.alter_partitions(
            leader, self.processes[leader].epoch, [wanted]
        )
        (result,) = decision.result
        if wrong in (2, 3) or (wrong == 1 and len(isr) > 1):
            assert result.error != ErrorCode.NONE
            assert not decision.events
        self.desk.take(decision)
        if result.error == ErrorCode.NONE:
            assert result.registration == self.image.topics[name].partitions[index]
            assert result.registration.leader == leader

    def has_caught_up(
        self, broker: int, registration: PartitionRegistration, partition: PartitionFate
    ) -> bool:
        replica = partition.replica(broker)
        return (
            self.serves(broker, registration)
            and replica.fetched_epoch == registration.leader_epoch
            and len(replica.log) >= len(partition.committed)
        )

    # -- leaders and replicas -----------------------------------------------------------------

    @rule(kind=st.sampled_from(ElectionType), everything=st.booleans(), name=names, index=indexes)
    def elect(self, kind: ElectionType, everything: bool, name: str, index: int) -> None:
        wanted = None if everything else [(name, index)]
        self.desk.take(self.desk.controller.elect_leaders(kind, wanted))

    @rule()
    def balance(self) -> None:
        self.desk.take(self.desk.controller.balance_leaders())

    @rule(name=names, wanted=st.lists(brokers, unique=True, max_size=3))
    def reassign(self, name: str, wanted: list[int]) -> None:
        self.desk.reassign(*wanted, name=name)

    @rule(broker=brokers)
    def lose_a_decision(self, broker: int) -> None:
        """A commit that certainly did not happen: its decisions are dropped."""
        process, known = self.processes[broker], self.image.brokers.get(broker)
        if process.runs and known is not None and known.broker_epoch == process.epoch:
            self.desk.controller.heartbeat(
                broker, process.epoch, metadata_version=self.image.version, want_fence=False,
                want_shut_down=False, now_ms=self.desk.now_ms,
            )  # fmt: skip
        self.desk.controller.expire_sessions(self.desk.now_ms)

    # -- what must be true --------------------------------------------------------------------

    @invariant()
    def records_are_committed(self) -> None:
        """Live leaders advance their high watermarks; after an unclean election the leader's log is what counts."""
        for name, topic in self.image.topics.items():
            for index, registration in topic.partitions.items():
                partition = self.truth.setdefault((topic.topic_id, index), PartitionFate())
                leader = registration.leader
                if leader == NO_LEADER:
                    continue
                if registration.leader_recovery_state == RECOVERING:
                    partition.forget(leader)
                if not self.serves(leader, registration):
                    continue
                if len(registration.isr) < self.needed(name, registration):
                    continue
                ends = [
                    len(partition.replica(b).log)
                    if b == leader
                    or partition.replica(b).fetched_epoch == registration.leader_epoch
                    else 0
                    for b in registration.isr
                ]
                partition.commit(leader, min(ends))

    @invariant()
    def what_is_eligible_holds_all(self) -> None:
        for topic in self.image.topics.values():
            for index, registration in topic.partitions.items():
                if registration.leader_recovery_state == RECOVERING:
                    continue
                partition = self.truth[topic.topic_id, index]
                for broker in (*registration.isr, *registration.elr):
                    if self.is_intact(broker, registration):
                        assert partition.holds_all(broker), (index, broker, registration)

    def is_intact(self, broker: int, registration: PartitionRegistration) -> bool:
        """A crashed broker is judged when it is back, and its disks when they are."""
        known = self.image.brokers.get(broker)
        return known is not None and known.has_directory(registration.directory_of(broker))

    @invariant()
    def registrations_make_sense(self) -> None:
        for name, topic in self.image.topics.items():
            for index, now in topic.partitions.items():
                isr, elr, replicas = set(now.isr), set(now.elr), set(now.replicas)
                assert replicas and len(replicas) == len(now.replicas)
                assert len(isr) == len(now.isr) and len(elr) == len(now.elr)
                assert isr | elr | set(now.last_known_elr) <= replicas
                assert not isr & elr
                assert set(now.adding_replicas) | set(now.removing_replicas) <= replicas
                assert len(now.directories) in (0, len(now.replicas))
                if len(isr) >= self.needed(name, now) or not self.image.features.get(
                    ELR_FEATURE, 1
                ):
                    assert not elr, (name, index, now)
                self.check_leader(name, now)
                self.check_move(now)

    def check_leader(self, name: str, now: PartitionRegistration) -> None:
        if now.leader != NO_LEADER:
            assert now.leader in now.isr
            assert self.acceptable(now.leader, now), now
            assert not now.last_known_elr
            if not self.had_no_elr:
                assert all(self.image.brokers[b].is_active for b in now.isr), now
            return
        eligible = now.isr or now.elr or now.last_known_elr
        assert eligible, now
        assert not any(self.acceptable(broker, now) for broker in eligible), now
        if self.image.topics[name].configs.get(UNCLEAN_LEADER_ELECTION_ENABLE) == "true":
            assert not any(self.acceptable(broker, now) for broker in now.replicas), now

    def check_move(self, now: PartitionRegistration) -> None:
        if now.adding_replicas or now.removing_replicas:
            isr = set(now.isr) - set(now.removing_replicas)
            assert not isr or not set(now.adding_replicas) - set(now.removing_replicas) <= isr

    @invariant()
    def epochs_grow(self) -> None:
        present = {}
        for topic in self.image.topics.values():
            for index, now in topic.partitions.items():
                key = topic.topic_id, index
                present[key] = now
                before = self.seen.get(key)
                if before is None or before == now:
                    continue
                assert now.partition_epoch == before.partition_epoch + 1
                changes_leader = now.leader != before.leader
                loses_replica = not set(before.replicas) <= set(now.replicas)
                came = set(before.adding_replicas) - set(before.removing_replicas)
                if came <= set(now.replicas) and not now.adding_replicas:
                    assert came <= set(now.isr), (before, now)
                step = now.leader_epoch - before.leader_epoch
                assert step in ((1,) if changes_leader or loses_replica else (0, 1)), (before, now)
        self.seen = present
        epochs = [each.broker_epoch for each in self.image.brokers.values()]
        assert len(set(epochs)) == len(epochs)
        assert self.image.last_broker_epoch >= max(epochs, default=-1)

    @invariant()
    def the_log_says_it_all(self) -> None:
        if len(self.desk.log) % 8 == 0:
            self.check_log()

    def check_log(self) -> None:
        assert described(self.desk.replayed()) == described(self.image)
        again = MetadataImage()
        again.replay(from_json(to_json(self.image.snapshot())), MetadataPosition(9, 0))
        assert described(again) == described(self.image)

    def teardown(self) -> None:
        self.check_log()


ControllerModel.TestCase.settings = settings(
    max_examples=examples(30),
    stateful_step_count=50,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)
TestCluster = ControllerModel.TestCase

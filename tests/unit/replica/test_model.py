"""A leader, its followers and the controller in any order: every electable replica holds all committed records.

The controller's commits, its answers and the metadata are delivered independently: each may be late, an answer may be
lost, and a registration may be skipped if a later one has arrived. The leader knows of its followers only what their
fetches say.
"""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from broker.metadata.events import PartitionRegistration
from broker.replica.leader.effects import AdvanceHighWatermark, CountIsrChange, Effects, ProposeIsr
from broker.replica.leader.isr import AlterPartitionAnswer, CommittedIsr, Proposal
from broker.replica.leader.state import LeaderState
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from tests.model_runs import examples
from tests.unit.replica.leaders import LAG_MS, T0, LeadingBroker

FOLLOWERS = (2, 3)


class ReplicationModel(RuleBasedStateMachine):
    @initialize(
        end=st.integers(4, 8),
        committed=st.integers(4, 8),
        high=st.sampled_from([0, 0, 3, 8]),
        in_sync=st.sets(st.sampled_from(FOLLOWERS)),
        ends=st.tuples(st.integers(0, 8), st.integers(0, 8)),
        min_isr=st.integers(1, 3),
    )
    def begin(
        self,
        end: int,
        committed: int,
        high: int,
        in_sync: set[int],
        ends: tuple[int, int],
        min_isr: int,
    ) -> None:
        self.now_ms = T0
        self.log_end = end
        # What leaders before this one have called committed: it may know less of it.
        self.committed = min(committed, end)
        self.follower_ends = {
            follower: min(max(told, self.committed if follower in in_sync else 0), end)
            for follower, told in zip(FOLLOWERS, ends, strict=True)
        }
        self.truth = PartitionRegistration(
            replicas=(1, 2, 3), isr=(1, *sorted(in_sync)), leader=1, leader_epoch=4
        )
        self.brokers_truth = {i: LeadingBroker(100 + i) for i in (1, 2, 3)}
        self.brokers_known = dict(self.brokers_truth)
        self.metadata: list[PartitionRegistration] = []
        self.asked: list[Proposal] = []
        self.answers: list[tuple[Proposal, AlterPartitionAnswer]] = []
        self.leader = LeaderState(
            self.truth,
            node_id=1,
            log_end_offset=end,
            high_watermark=min(high, self.committed),
            min_insync_replicas=min_isr,
            lag_ms_max=LAG_MS,
            brokers=self.brokers_known,
        )
        self.high_watermark = self.leader.high_watermark
        self.perform(self.leader.elected(end, self.now_ms))

    def perform(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case AdvanceHighWatermark(offset):
                    assert offset > self.high_watermark, "the high watermark moves forward only"
                    assert not self.leader.is_under_min_isr
                    for member in self.leader.state.maximal_isr - {1}:
                        follower = self.leader.follower(member)
                        assert follower is not None
                        assert follower.log_end_offset >= offset
                    self.high_watermark = offset
                case ProposeIsr(proposal):
                    self.asked.append(proposal)
                case CountIsrChange():
                    pass

    # -- the log and its followers ------------------------------------------------------------

    @rule(count=st.integers(1, 3))
    def append(self, count: int) -> None:
        self.log_end += count
        self.perform(self.leader.appended(self.log_end, self.now_ms))

    @rule(count=st.integers(1, 3))
    def append_before_it_is_durable(self, count: int) -> None:
        self.log_end += count

    @rule()
    def flush(self) -> None:
        self.perform(self.leader.appended(self.log_end, self.now_ms))

    @rule(follower=st.sampled_from(FOLLOWERS), says_epoch=st.sampled_from([True, True, False]))
    def fetch(self, follower: int, says_epoch: bool) -> None:
        epoch = self.brokers_truth[follower].broker_epoch if says_epoch else -1
        effects = self.leader.fetched(
            follower,
            fetch_offset=self.follower_ends[follower],
            log_start_offset=0,
            leader_log_end_offset=self.log_end,
            now_ms=self.now_ms,
            broker_epoch=epoch,
        )
        self.perform(effects)

    @rule(follower=st.sampled_from(FOLLOWERS), count=st.integers(1, 20))
    def receive(self, follower: int, count: int) -> None:
        """An answer to an earlier fetch arrives."""
        self.follower_ends[follower] = min(self.follower_ends[follower] + count, self.log_end)

    @rule(follower=st.sampled_from(FOLLOWERS), lost=st.integers(0, 5))
    def restart_uncleanly(self, follower: int, lost: int) -> None:
        """A follower's machine stops, which costs it records; the controller takes it out (KIP-966)."""
        if set(self.truth.isr) == {follower}:
            return
        before = self.brokers_truth[follower]
        self.follower_ends[follower] = max(self.follower_ends[follower] - lost, 0)
        self.brokers_truth[follower] = LeadingBroker(before.broker_epoch + 100)
        self.commit(isr=tuple(each for each in self.truth.isr if each != follower))
        # A fetch of before that arrives now says what is true no more.
        self.brokers_known.update(self.brokers_truth)
        try:
            self.perform(
                self.leader.fetched(
                    follower,
                    fetch_offset=self.log_end,
                    log_start_offset=0,
                    leader_log_end_offset=self.log_end,
                    now_ms=self.now_ms,
                    broker_epoch=before.broker_epoch,
                )
            )
        except KafkaError as error:
            assert error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            raise AssertionError("a fetch of a former life was believed")

    @rule(passed_ms=st.sampled_from([1, LAG_MS // 2, LAG_MS + 1]))
    def pass_time(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.perform(self.leader.tick(self.now_ms))

    # -- the controller -----------------------------------------------------------------------

    def commit(self, **changes: object) -> None:
        epoch = self.truth.partition_epoch + 1
        self.truth = replace(self.truth, partition_epoch=epoch, **changes)  # type: ignore[arg-type]
        self.metadata.append(self.truth)

    @precondition(lambda self: self.asked)
    @rule(is_lost=st.sampled_from([False, False, True]))
    def decide(self, is_lost: bool) -> None:
        proposal = self.asked.pop(0)
        answer = self.decided(proposal)
        if is_lost:
            answer = AlterPartitionAnswer(error=ErrorCode.REQUEST_TIMED_OUT)
        self.answers.append((proposal, answer))

    def decided(self, proposal: Proposal) -> AlterPartitionAnswer:
        if proposal.leader_epoch != self.truth.leader_epoch:
            return AlterPartitionAnswer(error=ErrorCode.FENCED_LEADER_EPOCH)
        if proposal.partition_epoch != self.truth.partition_epoch:
            return AlterPartitionAnswer(error=ErrorCode.INVALID_UPDATE_VERSION)
        for member, epoch in proposal.isr:
            if epoch not in (-1, self.brokers_truth[member].broker_epoch):
                return AlterPartitionAnswer(error=ErrorCode.INELIGIBLE_REPLICA)
        self.commit(isr=tuple(member for member, _ in proposal.isr))
        return AlterPartitionAnswer(
            error=ErrorCode.NONE,
            isr=self.truth.isr,
            leader_epoch=self.truth.leader_epoch,
            partition_epoch=self.truth.partition_epoch,
        )

    @precondition(lambda self: self.answers)
    @rule()
    def answer(self) -> None:
        proposal, answer = self.answers.pop(0)
        effects = self.leader.alter_partition_answered(proposal, answer, self.now_ms)
        self.perform(effects)

    @rule(follower=st.sampled_from(FOLLOWERS))
    def fence(self, follower: int) -> None:
        if follower in self.truth.isr:
            self.commit(isr=tuple(each for each in self.truth.isr if each != follower))

    @rule()
    def elect_again(self) -> None:
        self.commit(leader_epoch=self.truth.leader_epoch + 1)

    @precondition(lambda self: self.metadata)
    @rule(all_at_once=st.booleans())
    def hear_metadata(self, all_at_once: bool) -> None:
        newest = self.metadata[-1] if all_at_once else self.metadata[0]
        del self.metadata[: len(self.metadata) if all_at_once else 1]
        leader_epoch = self.leader.leader_epoch
        self.perform(self.leader.registration_changed(newest, self.now_ms))
        if self.leader.leader_epoch != leader_epoch:
            self.perform(self.leader.elected(self.log_end, self.now_ms))

    # -- what holds at any time -----------------------------------------------------------------

    @invariant()
    def what_is_committed_is_with_all_who_may_be_elected(self) -> None:
        committed = max(self.committed, self.leader.high_watermark)
        for member in self.truth.isr:
            end = self.log_end if member == 1 else self.follower_ends[member]
            assert end >= committed, f"{member} may be elected with {end} of {committed}"

    @invariant()
    def the_high_watermark_is_that_of_the_effects(self) -> None:
        assert self.leader.high_watermark == self.high_watermark <= self.leader.effective_end_offset

    @invariant()
    def one_proposal_at_a_time(self) -> None:
        state = self.leader.state
        under_way = [*self.asked, *(proposal for proposal, _ in self.answers)]
        if isinstance(state, CommittedIsr):
            return
        assert under_way.count(state.proposal) <= 1


ReplicationModel.TestCase.settings = settings(
    max_examples=examples(120), stateful_step_count=40, deadline=None
)
test_replication = ReplicationModel.TestCase

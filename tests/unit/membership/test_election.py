"""Who claims to be the controller, and when: the machine by itself, and several of them over one log."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.membership.election import (
    NO_CONTROLLER,
    AskPeers,
    Claim,
    ControllerElection,
    ElectionState,
    Wait,
)
from broker.membership.lease import Lease, decode_lease

SESSION_MS = 9_000
LEASE_MS = 2_000
LEASE = Lease(controller_id=2, controller_epoch=5, sequence=7, host="h", port=9092)


def election(
    node_id: int = 1, *, controller_id: int = 2, controller_epoch: int = 5, now_ms: int = 0
) -> ControllerElection:
    return ControllerElection(
        node_id,
        controller_id=controller_id,
        controller_epoch=controller_epoch,
        session_timeout_ms=SESSION_MS,
        lease_interval_ms=LEASE_MS,
        now_ms=now_ms,
    )


# -- at the start ---------------------------------------------------------------------------------


def test_a_lease_is_what_was_written() -> None:
    assert decode_lease(LEASE.encode()) == LEASE
    later, last = replace(LEASE, sequence=8), replace(LEASE, controller_epoch=6, sequence=1)
    assert later.follows(LEASE) and last.follows(later)
    assert not LEASE.follows(later) and not later.follows(last) and not LEASE.follows(LEASE)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b"7", LEASE.encode()[:-1],
                                  LEASE.encode().replace(b"9092", b'"9092"'),
                                  LEASE.encode().replace(b"false", b"0")])  # fmt: skip
def test_bytes_that_are_no_lease_are_none(data: bytes) -> None:
    assert decode_lease(data) is None


def test_nobody_claims_before_the_lease_was_read() -> None:
    machine = election(controller_id=NO_CONTROLLER, controller_epoch=0)
    assert isinstance(machine.next(0), Wait)
    machine.sees_lease(None, 0)
    assert isinstance(machine.next(0), Claim)


@pytest.mark.parametrize(
    ("controller_id", "lease"),
    [
        (NO_CONTROLLER, None),
        (2, None),
        (1, LEASE),
        (1, replace(LEASE, controller_id=1)),
        (2, replace(LEASE, released=True)),
    ],
)
def test_a_claim_that_deposes_nobody_comes_at_once(controller_id: int, lease: Lease | None) -> None:
    machine = election(controller_id=controller_id)
    machine.sees_lease(lease, 0)
    action = machine.next(0)
    assert isinstance(action, Claim)
    assert not action.is_dead


@pytest.mark.parametrize(
    "lease",
    [
        LEASE,
        replace(LEASE, controller_epoch=6),
        # Released by one that was deposed: it says nothing of the one who deposed it.
        None,
    ],
)
def test_a_controller_that_may_live_is_given_a_session(lease: Lease | None) -> None:
    machine = election()
    if lease is None:
        machine.knows(3, 6, 0)
        machine.sees_lease(replace(LEASE, released=True), 0)
    else:
        machine.sees_lease(lease, 0)
    action = machine.next(0)
    assert action == Wait(until_ms=SESSION_MS)


# -- signs of life --------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", ["wire", "epoch"])
def test_each_sign_of_life_counts_from_when_it_was_seen(sign: str) -> None:
    machine = election()
    machine.sees_lease(LEASE, 0)
    if sign == "wire":
        machine.hears(5, 5_000)
    else:
        machine.knows(3, 6, 5_000)
    assert machine.next(SESSION_MS) == Wait(until_ms=SESSION_MS + 5_000)
    assert isinstance(machine.next(SESSION_MS + 5_000), AskPeers)


def test_who_hears_nothing_while_the_lease_moves_asks_and_waits_where_few_are_silent() -> None:
    machine = election()
    machine.sees_lease(LEASE, 0)
    machine.sees_lease(replace(LEASE, sequence=8), 5_000)
    assert isinstance(machine.next(SESSION_MS), AskPeers)
    machine.peers_answered([-1], SESSION_MS, brokers=4, chance=0.0)
    assert machine.next(SESSION_MS) == Wait(until_ms=SESSION_MS + 5_000)
    assert isinstance(machine.next(SESSION_MS + 5_000), AskPeers)
    machine.peers_answered([-1], SESSION_MS + 5_000, brokers=4, chance=0.0)
    assert isinstance(machine.next(SESSION_MS + 5_000), Claim)


@pytest.mark.parametrize(("brokers", "silent"), [(3, 2), (4, 3), (5, 3)])
def test_a_controller_that_no_majority_hears_is_deposed_though_its_lease_moves(
    brokers: int, silent: int
) -> None:
    machine = election()
    machine.sees_lease(LEASE, 0)
    machine.sees_lease(replace(LEASE, sequence=8), SESSION_MS - 1)
    assert isinstance(machine.next(SESSION_MS), AskPeers)
    machine.sees_lease(replace(LEASE, sequence=9), SESSION_MS)
    machine.peers_answered([-1] * (silent - 1), SESSION_MS, brokers=brokers, chance=0.5)
    hesitation = machine.next(SESSION_MS)
    assert isinstance(hesitation, Wait)
    machine.sees_lease(replace(LEASE, sequence=10), SESSION_MS + 1)
    action = machine.next(hesitation.until_ms)
    assert isinstance(action, Claim)
    assert action.is_dead


def looked(
    machine: ControllerElection, *, until_ms: int, from_ms: int = 0, lease: Lease = LEASE
) -> None:
    """Look at a lease that stands still, and hear the controller all along."""
    for now_ms in range(from_ms, until_ms + 1, LEASE_MS):
        machine.sees_lease(lease, now_ms)
        machine.hears(5, now_ms)
        assert isinstance(machine.next(now_ms), Wait)


def test_a_controller_that_is_heard_and_does_not_reach_the_store_is_replaced_but_not_fenced() -> (
    None
):
    machine = election()
    looked(machine, until_ms=16_000)
    machine.sees_lease(LEASE, 18_000)
    machine.hears(5, 18_000)
    action = machine.next(18_000)
    assert isinstance(action, Claim)
    assert (action.controller_id, action.controller_epoch, action.is_dead) == (2, 5, False)
    machine.claim_failed(18_000)
    assert isinstance(machine.next(18_000 + LEASE_MS), Wait)


@pytest.mark.parametrize("broken_by", ["a look that failed", "a pause", "a lease", "an epoch"])
def test_a_lease_stands_still_only_while_each_look_finds_it_so(broken_by: str) -> None:
    machine = election()
    looked(machine, until_ms=16_000)
    match broken_by:
        case "a look that failed":
            machine.misses_lease()
        case "a pause":
            machine.paused(17_000)
        case "a lease":
            machine.sees_lease(replace(LEASE, sequence=8), 17_000)
        case _:
            machine.knows(3, 6, 17_000)
    later = LEASE if broken_by != "a lease" else replace(LEASE, sequence=8)
    machine.sees_lease(later, 18_000)
    machine.hears(6, 18_000)
    assert isinstance(machine.next(18_000), Wait)


def test_the_one_of_two_that_hears_nothing_leaves_a_controller_alone_whose_lease_moves() -> None:
    machine = election()
    for second in range(60):
        machine.sees_lease(replace(LEASE, sequence=8 + second), 1_000 * second)
        action = machine.next(1_000 * second)
        if isinstance(action, AskPeers):
            machine.peers_answered([], 1_000 * second, brokers=2, chance=0.0)
            action = machine.next(1_000 * second)
        assert isinstance(action, Wait)


def test_a_lease_that_stands_still_or_is_an_older_ones_is_no_sign() -> None:
    machine = election()
    machine.sees_lease(LEASE, 0)
    machine.sees_lease(LEASE, 8_000)
    machine.sees_lease(replace(LEASE, sequence=6), 8_100)
    machine.sees_lease(replace(LEASE, controller_epoch=4, sequence=99), 8_200)
    machine.hears(4, 8_300)
    assert isinstance(machine.next(SESSION_MS), AskPeers)


def test_of_brokers_that_claim_one_epoch_the_one_that_won_is_seen_to_live_and_to_stop() -> None:
    machine = election()
    machine.sees_lease(LEASE, 0)
    # Both write a lease before they claim. The one that lost has written many in its life.
    lost = replace(LEASE, controller_id=3, controller_epoch=6, sequence=900)
    machine.sees_lease(lost, 100)
    machine.knows(4, 6, 200)
    won = replace(LEASE, controller_id=4, controller_epoch=6, sequence=3)
    machine.sees_lease(won, 300)
    machine.sees_lease(replace(lost, sequence=901, released=True), 400)
    assert machine.next(400) == Wait(until_ms=200 + SESSION_MS)
    machine.sees_lease(replace(won, sequence=4, released=True), 500)
    action = machine.next(500)
    assert isinstance(action, Claim)
    assert (action.controller_id, action.controller_epoch, action.is_dead) == (4, 6, False)


def test_a_claim_that_came_to_nothing_does_not_hide_the_leases_of_the_one_who_decides() -> None:
    machine = election()
    machine.sees_lease(LEASE, 0)
    # Written before a claim, which the store refused, or which its author was not to make.
    machine.sees_lease(replace(LEASE, controller_id=3, controller_epoch=6, sequence=1), 100)
    machine.sees_lease(replace(LEASE, sequence=8), 5_000)
    assert isinstance(machine.next(SESSION_MS), AskPeers)
    machine.peers_answered([-1], SESSION_MS, brokers=4, chance=0.0)
    assert machine.next(SESSION_MS) == Wait(until_ms=SESSION_MS + 5_000)
    machine.sees_lease(replace(LEASE, sequence=9, released=True), SESSION_MS + 5_000)
    action = machine.next(SESSION_MS + 5_000)
    assert isinstance(action, Claim)
    assert (action.controller_id, action.controller_epoch, action.is_dead) == (2, 5, False)


def test_a_lease_of_one_who_was_deposed_hides_its_successor_but_says_nothing_against_it() -> None:
    """The last one of a controller that was deposed between its look into the log and this writing."""
    machine = election(controller_id=3, controller_epoch=6)
    machine.sees_lease(LEASE, 0)
    assert machine.next(0) == Wait(until_ms=SESSION_MS)
    machine.sees_lease(None, 2_000)
    assert machine.next(2_000) == Wait(until_ms=SESSION_MS)


def test_a_controller_that_answers_others_is_left_alone_until_it_is_silent_to_them_too() -> None:
    machine = election()
    machine.sees_lease(LEASE, 0)
    assert machine.next(SESSION_MS) == AskPeers(controller_epoch=5)
    machine.peers_answered([-1, 8_900, 400], SESSION_MS, brokers=4, chance=0.5)
    assert machine.next(SESSION_MS) == Wait(until_ms=2 * SESSION_MS - 400)
    assert machine.next(2 * SESSION_MS - 400) == AskPeers(controller_epoch=5)


def test_who_hears_nothing_from_anybody_hesitates_and_claims() -> None:
    machine = election()
    machine.sees_lease(LEASE, 0)
    machine.next(SESSION_MS)
    machine.peers_answered([-1, SESSION_MS], SESSION_MS, brokers=4, chance=0.5)
    hesitation = machine.next(SESSION_MS)
    assert isinstance(hesitation, Wait)
    assert SESSION_MS < hesitation.until_ms <= SESSION_MS + 500
    action = machine.next(hesitation.until_ms)
    assert isinstance(action, Claim)
    assert action.is_dead


@pytest.mark.parametrize("stance", [ElectionState.ASKING, ElectionState.HESITATING])
def test_a_sign_of_life_at_the_last_moment_counts(stance: ElectionState) -> None:
    machine = election()
    machine.sees_lease(LEASE, 0)
    machine.next(SESSION_MS)
    if stance is ElectionState.HESITATING:
        machine.peers_answered([], SESSION_MS, brokers=4, chance=0.9)
    assert machine.stance is stance
    machine.hears(5, SESSION_MS + 1)
    machine.peers_answered([], SESSION_MS + 2, brokers=4, chance=0.0)
    assert machine.next(SESSION_MS + 10) == Wait(until_ms=2 * SESSION_MS + 1)


def test_who_was_paused_has_not_listened() -> None:
    machine = election()
    machine.sees_lease(LEASE, 0)
    machine.paused(60_000)
    assert machine.next(60_000) == Wait(until_ms=60_000 + 2 * LEASE_MS)


def test_who_lost_looks_again_before_the_next_claim() -> None:
    machine = election(controller_id=NO_CONTROLLER, controller_epoch=0)
    machine.sees_lease(None, 0)
    machine.next(0)
    machine.claim_failed(10)
    assert machine.next(10) == Wait(until_ms=10 + LEASE_MS)
    machine.knows(2, 1, 20)
    assert machine.next(10 + LEASE_MS) == Wait(until_ms=20 + SESSION_MS)


def test_what_is_told_of_a_controller() -> None:
    machine = election()
    assert machine.last_heard_ms(2, 5, 100) == -1
    machine.hears(5, 100)
    assert machine.last_heard_ms(2, 5, 350) == 250
    assert machine.last_heard_ms(3, 5, 350) == machine.last_heard_ms(2, 4, 350) == -1
    machine.knows(3, 6, 400)
    assert machine.last_heard_ms(3, 6, 400) == -1
    machine.claim_won(7)
    assert machine.last_heard_ms(1, 7, 500) == 0


# -- several over one log -------------------------------------------------------------------------


@dataclass
class Candidate:
    """A machine, what its broker has read of the log, and whether it runs."""

    machine: ControllerElection
    read: int
    node_id: int
    is_running: bool = True
    is_active: bool = False
    sequence: int = 0
    decided: list[int] = field(default_factory=list)


class ElectionModel:
    """Brokers over a log that one of them wins a version of at a time; some sleep, some hear nothing."""

    def __init__(self, count: int) -> None:
        self.log: list[tuple[int, int]] = []  # controller id and epoch of each version
        self.lease: Lease | None = None
        self.now_ms = 0
        self.deaf: set[int] = set()
        self.claims = 0
        self.brokers = {
            node_id: Candidate(
                election(node_id, controller_id=NO_CONTROLLER, controller_epoch=0), 0, node_id
            )
            for node_id in range(1, count + 1)
        }

    def epoch(self) -> int:
        return self.log[-1][1] if self.log else 0

    def catch_up(self, broker: Candidate) -> None:
        if broker.read < len(self.log):
            broker.read = len(self.log)
            if broker.is_active and self.log[-1][0] != broker.node_id:
                broker.is_active = False
                broker.machine.resigned(self.now_ms)
            broker.machine.knows(*self.log[-1], self.now_ms)

    def append(self, broker: Candidate, epoch: int) -> bool:
        """Put-if-absent on what the broker has read: whoever has not read everything loses."""
        if broker.read != len(self.log):
            return False
        self.log.append((broker.node_id, epoch))
        broker.read = len(self.log)
        return True

    def step(self, broker: Candidate, chance: float) -> None:
        """What a running broker does when it is its turn."""
        machine = broker.machine
        if broker.is_active:
            self.decide(broker)
            if broker.is_active:
                broker.sequence += 1
                self.lease = Lease(
                    controller_id=broker.node_id,
                    controller_epoch=self.log[broker.read - 1][1],
                    sequence=broker.sequence,
                    host="h",
                    port=1,
                )
            return
        machine.sees_lease(self.lease, self.now_ms)
        if broker.node_id not in self.deaf:
            self.catch_up(broker)
            self.listen(broker)
        action = machine.next(self.now_ms)
        if isinstance(action, AskPeers):
            peers = [
                other.machine.last_heard_ms(*self.log[broker.read - 1], self.now_ms)
                for other in self.brokers.values()
                if other is not broker and other.is_running and not other.is_active
            ]
            machine.peers_answered(peers, self.now_ms, brokers=len(self.brokers), chance=chance)
            action = machine.next(self.now_ms)
        if isinstance(action, Claim):
            self.claim(broker)

    def listen(self, broker: Candidate) -> None:
        for other in self.brokers.values():
            if other.is_active and other.is_running and other.read == len(self.log):
                broker.machine.hears(self.epoch(), self.now_ms)

    def claim(self, broker: Candidate) -> None:
        known = self.log[broker.read - 1][1] if broker.read else 0
        current = self.epoch()
        if known != current or not self.append(broker, current + 1):
            self.catch_up(broker)
            broker.machine.claim_failed(self.now_ms)
            return
        self.claims += 1
        broker.machine.claim_won(current + 1)
        broker.is_active = True

    def decide(self, broker: Candidate) -> None:
        """The controller writes to the log: with what it knows, or not at all."""
        epoch = self.log[broker.read - 1][1]
        if self.append(broker, epoch):
            broker.decided.append(epoch)
        else:
            self.catch_up(broker)


turns = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.sampled_from(["run", "run", "run", "pause", "resume", "deafen", "hear"]),
        st.integers(0, 4_000),
        st.floats(0, 1, exclude_max=True),
    ),
    max_size=120,
)


@settings(max_examples=150, deadline=None)
@given(turns)
def test_an_epoch_has_one_controller_and_its_decisions_are_one_run(
    schedule: list[tuple[int, str, int, float]],
) -> None:
    cluster = ElectionModel(4)
    for node_id, what, passed_ms, chance in schedule:
        cluster.now_ms += passed_ms
        broker = cluster.brokers[node_id]
        if what == "pause":
            broker.is_running = False
        elif what == "deafen":
            cluster.deaf.add(node_id)
        elif what == "hear":
            cluster.deaf.discard(node_id)
        elif what == "resume" and not broker.is_running:
            broker.is_running = True
            broker.machine.paused(cluster.now_ms)
        elif broker.is_running:
            cluster.step(broker, chance)
    by_epoch: dict[int, set[int]] = {}
    for controller_id, epoch in cluster.log:
        by_epoch.setdefault(epoch, set()).add(controller_id)
    assert all(len(controllers) == 1 for controllers in by_epoch.values())
    epochs = [epoch for _, epoch in cluster.log]
    assert epochs == sorted(epochs)
    for broker in cluster.brokers.values():
        if broker.is_active and broker.read == len(cluster.log):
            assert cluster.log[-1] == (broker.node_id, cluster.epoch())


@settings(max_examples=60, deadline=None)
@given(turns, st.integers(1, 4))
def test_whatever_happened_somebody_decides_soon_and_then_stays(
    schedule: list[tuple[int, str, int, float]], survivor: int
) -> None:
    """After any past, with one broker or more that run and hear, there is a controller within two sessions."""
    cluster = ElectionModel(4)
    for node_id, what, passed_ms, chance in schedule:
        cluster.now_ms += passed_ms
        broker = cluster.brokers[node_id]
        if what == "pause":
            broker.is_running = False
        elif what == "resume":
            broker.is_running = True
        elif broker.is_running:
            cluster.step(broker, chance)
    cluster.deaf.clear()
    cluster.brokers[survivor].is_running = True
    running = [each for each in cluster.brokers.values() if each.is_running]

    def live(duration_ms: int) -> None:
        end_ms = cluster.now_ms + duration_ms
        while cluster.now_ms < end_ms:
            cluster.now_ms += 100
            for broker in running:
                cluster.step(broker, 0.5)

    live(2 * SESSION_MS + LEASE_MS)
    assert [each.is_active for each in running].count(True) == 1
    claims = cluster.claims
    live(5 * SESSION_MS)
    assert cluster.claims == claims

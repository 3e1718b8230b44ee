"""The sink's exactly-once protocol: crashes between all steps, sleepers that come back, what a mutation costs."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from kafka_ds.errors import (
    CheckpointRolledBack,
    CommitsLost,
    PrefixConflict,
    PrefixInUse,
    RunSuperseded,
)
from kafka_ds.sink import protocol
from kafka_ds.sink.protocol import BatchAttempt, BatchCommit, Job, LastCommit, Span
from tests.model_runs import examples

QUERY = "query"
PARTITIONS = 2
Row = tuple[int, int]  # the batch, and which of its rows


class ProducerFenced(Exception):
    """A producer of an old epoch."""


@dataclass
class Transaction:
    epoch: int = -1
    state: str = "Empty"


@dataclass
class LogEntry:
    """A record of a partition's log and its owner; ``owner`` None: it belongs to a transaction that has committed."""

    owner: tuple[str, int] | None
    row: Row


@dataclass
class SinkWorld:
    """What the brokers know. One method an effect; a mutation overrides one."""

    transactions: dict[str, Transaction] = field(default_factory=dict)
    logs: list[list[LogEntry]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    ended: dict[tuple[str, int], str] = field(default_factory=dict)
    decisions: list[BatchCommit] = field(default_factory=list)
    # The batch of the last note under the key; and of all notes that there ever were.
    finished: int | None = None
    noted: set[int] = field(default_factory=set)
    # A decision whose commit was asked for by who died: it can be read when the next holder has the lock.
    hidden: BatchCommit | None = None
    lock_epoch: int = 0
    runs: int = 0

    # -- what tasks do --------------------------------------------------------------------------

    def begin(self, transactional_id: str) -> int:
        transaction = self.transactions.setdefault(transactional_id, Transaction())
        self._abort(transactional_id)
        transaction.epoch += 1
        transaction.state = "Empty"
        return transaction.epoch

    def append(self, transactional_id: str, epoch: int, partition: int, row: Row) -> int:
        transaction = self.transactions[transactional_id]
        if transaction.epoch != epoch or transaction.state not in ("Empty", "Ongoing"):
            raise ProducerFenced
        transaction.state = "Ongoing"
        self.logs[partition].append(LogEntry((transactional_id, epoch), row))
        return len(self.logs[partition]) - 1

    def time_out(self, transactional_id: str) -> None:
        """As a coordinator does: aborted, and the epoch raised."""
        if self.transactions[transactional_id].state == "Ongoing":
            self.begin(transactional_id)

    def _abort(self, transactional_id: str) -> None:
        transaction = self.transactions[transactional_id]
        if transaction.state == "Ongoing":
            transaction.state = "CompleteAbort"
            self.ended[transactional_id, transaction.epoch] = "aborted"

    # -- effects --------------------------------------------------------------------------------

    def perform(self, effect: protocol.Effect, holder: int) -> Any:
        """``holder`` is the lock's epoch that the asking driver has, or -1."""
        name = type(effect).__name__.lower()
        locked = protocol.WriteCommit | protocol.Rewrite | protocol.Finish
        if isinstance(effect, locked) and holder != self.lock_epoch:
            raise ProducerFenced
        method = getattr(self, f"on_{name}")
        return method(effect)

    def on_lock(self, effect: protocol.Lock) -> int:
        if self.hidden is not None:
            self.decisions.append(self.hidden)
            self.hidden = None
        self.lock_epoch += 1
        return self.lock_epoch

    def on_readlastcommit(self, effect: protocol.ReadLastCommit) -> LastCommit:
        last = self.decisions[-1] if self.decisions else None
        finished = last is not None and last.batch == self.finished
        assert finished or last is None or last.batch not in self.noted, "a late note hides it"
        return LastCommit(batch_commit=last, finished=finished, settled=self.hidden is None)

    def on_writecommit(self, effect: protocol.WriteCommit) -> None:
        assert self.hidden is None
        self.decisions.append(effect.batch_commit)

    def on_commitattempt(self, effect: protocol.CommitAttempt) -> bool:
        attempt = effect.attempt
        transaction = self.transactions[attempt.transactional_id]
        if transaction.epoch != attempt.epoch:
            return False
        if transaction.state == "Ongoing":
            transaction.state = "CompleteCommit"
            self.ended[attempt.transactional_id, attempt.epoch] = "committed"
        return transaction.state == "CompleteCommit"

    def on_abortattempt(self, effect: protocol.AbortAttempt) -> None:
        attempt = effect.attempt
        if self.transactions[attempt.transactional_id].epoch == attempt.epoch:
            self._abort(attempt.transactional_id)

    def on_transactionaborted(self, effect: protocol.TransactionAborted) -> bool:
        return self.ended[effect.attempt.transactional_id, effect.attempt.epoch] == "aborted"

    def on_rewrite(self, effect: protocol.Rewrite) -> None:
        for attempt in effect.lost:
            owner = (attempt.transactional_id, attempt.epoch)
            for span in attempt.spans:
                log = self.logs[span.partition]
                found = [
                    e for e in log[span.first_offset : span.last_offset + 1] if e.owner == owner
                ]
                assert len(found) == span.record_count
                log.extend(LogEntry(None, entry.row) for entry in found)
        self._note(effect.batch_commit)

    def on_finish(self, effect: protocol.Finish) -> None:
        self._note(effect.batch_commit)

    def _note(self, batch_commit: BatchCommit) -> None:
        self.finished = batch_commit.batch
        self.noted.add(batch_commit.batch)

    def on_listopen(self, effect: protocol.ListOpen) -> list[str]:
        return self.open_ids()

    def on_fence(self, effect: protocol.Fence) -> None:
        self.begin(effect.transactional_id)

    # -- what readers see -----------------------------------------------------------------------

    def open_ids(self) -> list[str]:
        return [name for name, of in self.transactions.items() if of.state == "Ongoing"]

    def rows(self) -> list[Row]:
        """As read_committed sees them."""
        return sorted(
            entry.row
            for log in self.logs
            for entry in log
            if entry.owner is None or self.ended.get(entry.owner) == "committed"
        )


# -- lives ------------------------------------------------------------------------------------------


def task(
    world: SinkWorld, name: str, rows: list[Row], random: Random, messages: list[BatchAttempt]
) -> Iterator[None]:
    """One attempt, a step at a time."""
    yield
    epoch = world.begin(name)
    written: dict[int, list[int]] = {}
    for row in rows:
        yield
        partition = random.randrange(PARTITIONS)
        try:
            written.setdefault(partition, []).append(world.append(name, epoch, partition, row))
        except ProducerFenced:
            return
    spans = tuple(
        Span(topic="t", partition=p, first_offset=at[0], last_offset=at[-1], record_count=len(at))
        for p, at in written.items()
    )
    if spans:
        messages.append(
            BatchAttempt(transactional_id=name, producer_id=0, epoch=epoch, spans=spans)
        )


@dataclass
class Checkpoint:
    """Spark's log of finished batches."""

    done: int = 0


Loose = list[Iterator[None]]
# What a step is about to do, for who decides what happens to it; sent back: None, or "hide" (a decision).
Step = Generator[str, str | None, None]


def life(
    world: SinkWorld,
    checkpoint: Checkpoint,
    batches: int,
    row_count: int,
    random: Random,
    loose: Loose,
) -> Step:
    """A driver from its start: what it yields are the places at which it can die or fall asleep.

    Attempts that it gives up on go to ``loose``: they run on without it.
    """
    world.runs += 1
    run = f"run {world.runs}"
    while checkpoint.done < batches:
        batch = checkpoint.done
        job = Job(query=QUERY, batch=batch, run=run)
        yield from _drive(world, protocol.recover())
        rows = [(batch, n) for n in range(row_count)]
        random.shuffle(rows)
        task_count = random.randint(1, 3)
        winners: list[BatchAttempt] = []
        for n in range(task_count):
            yield from _run_task(world, n, rows[n::task_count], random, loose, winners)
        try:
            yield from _drive(world, protocol.commit(job, winners))
        except (ProducerFenced, protocol.PrefixConflict):
            # Spark calls `abort` after an error of `commit`, too.
            yield from _drive(world, protocol.abort(winners, job))
            raise
        yield "checkpoint"
        checkpoint.done = max(checkpoint.done, batch + 1)


def _run_task(
    world: SinkWorld,
    n: int,
    rows: list[Row],
    random: Random,
    loose: Loose,
    winners: list[BatchAttempt],
) -> Step:
    """One that succeeds, among others that are slower or die: speculation and retries."""
    number = 0
    while True:
        messages: list[BatchAttempt] = []
        running = task(world, f"{n}-{number}", rows, random, messages)
        number += 1
        steps = random.randrange(len(rows) + 2) if random.random() < 0.3 else None
        if steps is not None:
            for _ in range(steps):
                yield "task"
                next(running, None)
            loose.append(running)
            continue
        for _ in running:
            yield "task"
        if messages or not rows:
            winners += messages
            return
        if number > 20:
            # Fenced again and again: the job fails, the query ends, and is started anew by somebody.
            raise ProducerFenced


def _drive(world: SinkWorld, steps: protocol.CommitEffects) -> Step:
    holder = -1
    answer: Any = None
    try:
        while True:
            effect = steps.send(answer)
            fate = yield type(effect).__name__
            if (
                fate == "hide"
                and isinstance(effect, protocol.WriteCommit)
                and holder == world.lock_epoch
            ):
                world.hidden = effect.batch_commit
                raise ProducerFenced
            answer = world.perform(effect, holder)
            if isinstance(effect, protocol.Lock):
                holder = answer
            yield f"{type(effect).__name__} done"
    except StopIteration:
        pass


ROWS = 4
# How a driver's life ends by itself: done, fenced, or behind what others have done meanwhile.
DEAD = (StopIteration, ProducerFenced, PrefixConflict)


def wanted(batches: int) -> list[tuple[int, int]]:
    return [(batch, n) for batch in range(batches) for n in range(ROWS)]


def walk(steps: Step, count: int | None = None, fate: str | None = None) -> int:
    """Take this many steps (default: all) and return how many were taken; a fenced driver dies."""
    gone = 0
    try:
        next(steps)
        while count is None or gone < count:
            gone += 1
            steps.send(fate if gone == count else None)
    except DEAD:
        pass
    return gone


# -- each place once --------------------------------------------------------------------------------


def test_a_driver_that_dies_at_any_two_places_leaves_each_row_once() -> None:
    """Places are those before and after each step of the protocol, each step of a task, and Spark's own checkpoint."""
    first = 0
    while True:
        second = 0
        while True:
            world, checkpoint, loose = SinkWorld(), Checkpoint(), Loose()
            lengths = []
            for number, count in enumerate((first, second, None)):
                # Each life spreads the rows over other tasks and partitions.
                random = Random(first * 1_000 + second * 10 + number)
                lengths.append(walk(life(world, checkpoint, 2, ROWS, random, loose), count))
            assert checkpoint.done == 2
            assert world.rows() == wanted(2)
            assert not world.open_ids()
            if lengths[1] < second:
                break
            second += 7 if first % 7 else 1
        if lengths[0] < first:
            break
        first += 1


@pytest.mark.parametrize("seed", range(4))
def test_a_decision_that_cannot_be_read_yet_is_found(seed: int) -> None:
    """Its author asked for its commit and died: the next holder of the lock waits for it, and reads it then."""
    for count in range(200):
        world, checkpoint = SinkWorld(), Checkpoint()
        if walk(life(world, checkpoint, 1, ROWS, Random(seed), []), count, "hide") < count:
            break
        walk(life(world, checkpoint, 1, ROWS, Random(seed + 1), []))
        assert world.rows() == wanted(1)
    assert count > 5


# -- chance -----------------------------------------------------------------------------------------


def play(world: SinkWorld, seed: int, batches: int = 6) -> None:
    """Drivers that die or fall asleep and wake up among their successors, attempts that nobody waits for, time-outs."""
    random = Random(seed)
    checkpoint = Checkpoint()
    loose: Loose = []
    sleeping: list[Step] = []
    for _ in range(20 * batches):
        if checkpoint.done >= batches:
            break
        driver = life(world, checkpoint, batches, ROWS, random, loose)
        try:
            next(driver)
            for _ in range(random.randrange(150)):
                driver.send("hide" if random.random() < 0.02 else None)
                _others(world, random, loose, sleeping)
        except DEAD:
            continue
        if random.random() < 0.5:
            sleeping.append(driver)
    # Whoever is still there wakes up no more: a last driver ends the work, and then one batch more.
    loose.clear()
    walk(life(world, checkpoint, batches, ROWS, random, []))
    walk(life(world, checkpoint, batches + 1, ROWS, Random(seed), []))
    assert checkpoint.done == batches + 1


def _others(world: SinkWorld, random: Random, loose: Loose, sleeping: list[Step]) -> None:
    if loose and random.random() < 0.3:
        next(random.choice(loose), None)
    if sleeping and random.random() < 0.1:
        driver = random.choice(sleeping)
        try:
            for _ in range(random.randrange(12)):
                driver.send(None)
        except DEAD:
            sleeping.remove(driver)
    if random.random() < 0.01 and world.open_ids():
        world.time_out(random.choice(world.open_ids()))


def judge(world: SinkWorld, seed: int) -> None:
    play(world, seed)
    assert world.rows() == wanted(7)
    assert not world.open_ids()


@pytest.mark.parametrize("block", range(4))
def test_whatever_happens_each_row_is_there_once(block: int) -> None:
    rewritten = 0
    for n in range(examples(60)):
        world = Counting()
        judge(world, block * 100_003 + n)
        rewritten += world.rewritten
    # Else the way back from an aborted attempt was never gone.
    assert rewritten


class Counting(SinkWorld):
    rewritten = 0

    def on_rewrite(self, effect: protocol.Rewrite) -> None:
        self.rewritten += len(effect.lost)
        super().on_rewrite(effect)


class NoLock(SinkWorld):
    """A lock that fences nobody."""

    def on_lock(self, effect: protocol.Lock) -> int:
        super().on_lock(effect)
        self.lock_epoch = 1
        return 1


class Forgotten(SinkWorld):
    """A decision that is not durable."""

    def on_writecommit(self, effect: protocol.WriteCommit) -> None:
        self._lately = effect.batch_commit

    def on_readlastcommit(self, effect: protocol.ReadLastCommit) -> LastCommit:
        return LastCommit(batch_commit=None, finished=False)


class Hopeful(SinkWorld):
    """An end that was refused is taken for a commit."""

    def on_transactionaborted(self, effect: protocol.TransactionAborted) -> bool:
        return False


class Anxious(SinkWorld):
    """An end that was refused is taken for an abort."""

    def on_transactionaborted(self, effect: protocol.TransactionAborted) -> bool:
        return True


class InPieces(SinkWorld):
    """What is written again is not of one transaction with the note that it was."""

    def on_rewrite(self, effect: protocol.Rewrite) -> None:
        before, noted = self.finished, set(self.noted)
        super().on_rewrite(effect)
        self.finished, self.noted = before, noted


class Early(SinkWorld):
    """The batch counts as finished when it is decided."""

    def on_writecommit(self, effect: protocol.WriteCommit) -> None:
        super().on_writecommit(effect)
        self._note(effect.batch_commit)


class Careless(SinkWorld):
    """Attempts that lost stay open."""

    def on_listopen(self, effect: protocol.ListOpen) -> list[str]:
        return []


class LateNote(SinkWorld):
    """Whoever comes late notes an earlier batch as finished."""

    def perform(self, effect: protocol.Effect, holder: int) -> Any:
        is_note = isinstance(effect, protocol.Finish)
        return super().perform(effect, self.lock_epoch if is_note else holder)


class Confused(SinkWorld):
    """A replay's own attempts are committed."""

    def on_abortattempt(self, effect: protocol.AbortAttempt) -> None:
        self.on_commitattempt(protocol.CommitAttempt(effect.attempt))


@pytest.mark.parametrize(
    "mutation",
    [NoLock, Forgotten, Hopeful, Anxious, InPieces, Early, Careless, LateNote, Confused],
)
def test_a_mutation_is_seen(mutation: type[SinkWorld]) -> None:
    for seed in range(400):
        try:
            judge(mutation(), seed)
        except AssertionError:
            return
    pytest.fail(f"no seed tells that {mutation.__doc__}")


# -- refusals ---------------------------------------------------------------------------------------

MINE = BatchAttempt(
    transactional_id="0-0",
    producer_id=1,
    epoch=0,
    spans=(Span(topic="t", partition=0, first_offset=0, last_offset=0, record_count=1),),
)


def effects(steps: protocol.CommitEffects, **answers: Any) -> list[protocol.Effect]:
    """What it does when it is answered like this, by the effect's name."""
    done: list[protocol.Effect] = []
    answer: Any = None
    try:
        while True:
            effect = steps.send(answer)
            done.append(effect)
            answer = answers.get(type(effect).__name__)
    except StopIteration:
        return done


def job(batch: int, run: str | None = None) -> Job:
    return Job(query=QUERY, batch=batch, run=run)


def last(
    batch: int, *attempts: BatchAttempt, query: str = QUERY, finished: bool = False
) -> LastCommit:
    batch_commit = BatchCommit(query=query, batch=batch, attempts=attempts)
    return LastCommit(batch_commit=batch_commit, finished=finished)


def test_a_prefix_belongs_to_one_query() -> None:
    with pytest.raises(PrefixInUse, match="in use by query another, which has written batch 4"):
        effects(
            protocol.commit(job(5), [MINE]), ReadLastCommit=last(4, query="another", finished=True)
        )


def test_a_checkpoint_that_was_set_back_writes_nothing() -> None:
    with pytest.raises(
        CheckpointRolledBack, match="batch 4 of query query is written; batch 3 comes before"
    ):
        effects(protocol.commit(job(3), [MINE]), ReadLastCommit=last(4, finished=True))


def test_of_two_copies_of_a_checkpoint_the_one_that_went_on_first_is_refused() -> None:
    """Each would take the other's micro-batches for its own, and drop its rows, as long as they are at one batch."""
    world, one, other = SinkWorld(), Checkpoint(), Checkpoint()
    mine = life(world, one, 3, ROWS, Random(1), [])
    while one.done < 1:
        next(mine)
    # The copy replays what the original has decided, as a restart would.
    copy = life(world, other, 3, ROWS, Random(2), [])
    while other.done < 1:
        next(copy)
    with pytest.raises(RunSuperseded, match="another run has written batch 0"):
        while True:
            next(mine)
    walk(copy)
    assert world.rows() == wanted(3)


def test_a_run_that_is_restarted_takes_its_batch_over() -> None:
    decided = BatchCommit(query=QUERY, batch=5, attempts=(), run="b", earlier=("a",))
    last_ = LastCommit(batch_commit=decided, finished=True)
    for run, takes_over in (("b", False), ("c", True), (None, False)):
        done = effects(protocol.commit(job(5, run), [MINE]), ReadLastCommit=last_, ListOpen=[])
        decisions = [e.batch_commit for e in done if isinstance(e, protocol.WriteCommit)]
        assert decisions == [replace(decided, run="c", earlier=("a", "b"))] * takes_over
    later = effects(protocol.commit(job(6, "c"), []), ReadLastCommit=last_, ListOpen=[])
    assert (
        protocol.WriteCommit(
            BatchCommit(query=QUERY, batch=6, attempts=(), run="c", earlier=("a", "b"))
        )
        in later
    )
    with pytest.raises(RunSuperseded, match="run a of query query"):
        effects(protocol.commit(job(6, "a"), [MINE]), ReadLastCommit=last_)


def test_only_some_earlier_runs_are_remembered() -> None:
    runs = tuple(map(str, range(40)))
    last_ = LastCommit(
        batch_commit=BatchCommit(query=QUERY, batch=5, attempts=(), run="b", earlier=runs),
        finished=True,
    )
    done = effects(protocol.commit(job(6, "c"), []), ReadLastCommit=last_, ListOpen=[])
    (decided,) = (e.batch_commit for e in done if isinstance(e, protocol.WriteCommit))
    assert decided.earlier == (*runs[-15:], "b")


def test_what_is_decided_is_decided_before_the_first_end() -> None:
    nothing = LastCommit(batch_commit=None, finished=False)
    steps = protocol.commit(job(0), [MINE])
    done = effects(steps, ReadLastCommit=nothing, CommitAttempt=True, ListOpen=["0-1"])
    batch_commit = BatchCommit(query=QUERY, batch=0, attempts=(MINE,))
    assert done == [
        protocol.Lock(),
        protocol.ReadLastCommit(),
        protocol.WriteCommit(batch_commit),
        protocol.CommitAttempt(MINE),
        protocol.Finish(batch_commit),
        protocol.ListOpen(),
        protocol.Fence("0-1"),
    ]


def test_abort_leaves_alone_what_was_decided() -> None:
    done = effects(protocol.abort([MINE]), ReadLastCommit=last(3, MINE), ListOpen=["0-0", "1-0"])
    assert protocol.AbortAttempt(MINE) not in done
    assert [e for e in done if isinstance(e, protocol.Fence)] == [protocol.Fence("1-0")]
    done = effects(protocol.abort([MINE]), ReadLastCommit=last(2, finished=True), ListOpen=["0-0"])
    assert protocol.AbortAttempt(MINE) in done
    assert protocol.Fence("0-0") in done


@pytest.mark.parametrize(
    ("decided", "mine"),
    [
        (BatchCommit(query=QUERY, batch=5, attempts=(), run="b", earlier=("a",)), job(6, "a")),
        (BatchCommit(query=QUERY, batch=5, attempts=(), run="b"), job(4, "b")),
        (BatchCommit(query="another", batch=5, attempts=()), job(5)),
    ],
)
def test_who_is_refused_fences_nobody(decided: BatchCommit, mine: Job) -> None:
    """What is open under the prefix is the rightful run's, which is about to decide it."""
    rightful = LastCommit(batch_commit=decided, finished=True)
    answers = {"ReadLastCommit": rightful, "ListOpen": ["1-0"]}
    with pytest.raises(PrefixConflict):
        effects(protocol.commit(mine, [MINE]), **answers)
    assert effects(protocol.abort([MINE], mine), **answers) == [
        protocol.ReadLastCommit(),
        protocol.AbortAttempt(MINE),
    ]
    # A decision that cannot be read yet may be this job's own: the lock's next holder reads it.
    unclear = LastCommit(batch_commit=decided, finished=True, settled=False)
    done = effects(protocol.abort([MINE], mine), ReadLastCommit=unclear, ListOpen=["1-0"])
    assert protocol.Lock() in done


def test_a_gap_in_the_decisions_writes_nothing() -> None:
    """Restored disks lack the last ones: whether this batch was written before is not known."""
    with pytest.raises(CommitsLost, match=r"batch 4 of query query is the last one.*batch 6"):
        effects(protocol.commit(job(6), [MINE]), ReadLastCommit=last(4, finished=True))
    effects(protocol.commit(job(5), []), ReadLastCommit=last(4, finished=True), ListOpen=[])


def test_nothing_is_asked_twice_where_nothing_is_left_to_do() -> None:
    assert effects(protocol.recover(), ReadLastCommit=last(3, MINE, finished=True)) == [
        protocol.ReadLastCommit()
    ]

"""Transactions, tasks and drivers in memory, for the sink's protocol: who dies and who sleeps is the test's choice."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from kafka_ds.sink import protocol
from kafka_ds.sink.protocol import BatchAttempt, BatchCommit, Job, LastCommit, Span

QUERY = "query"
PARTITIONS = 2
Row = tuple[int, int]  # the batch, and which of its rows


class Fenced(Exception):
    """A producer of an old epoch."""


@dataclass
class Transaction:
    epoch: int = -1
    state: str = "Empty"


@dataclass
class Entry:
    """A record of a partition's log and its owner; ``owner`` None: it belongs to a transaction that has committed."""

    owner: tuple[str, int] | None
    row: Row


@dataclass
class World:
    """What the brokers know. One method an effect; a mutation overrides one."""

    transactions: dict[str, Transaction] = field(default_factory=dict)
    logs: list[list[Entry]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
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
            raise Fenced
        transaction.state = "Ongoing"
        self.logs[partition].append(Entry((transactional_id, epoch), row))
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
            raise Fenced
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
                log.extend(Entry(None, entry.row) for entry in found)
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
    world: World, name: str, rows: list[Row], random: Random, messages: list[BatchAttempt]
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
        except Fenced:
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
    world: World, checkpoint: Checkpoint, batches: int, row_count: int, random: Random, loose: Loose
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
        except (Fenced, protocol.PrefixConflict):
            # Spark calls `abort` after an error of `commit`, too.
            yield from _drive(world, protocol.abort(winners, job))
            raise
        yield "checkpoint"
        checkpoint.done = max(checkpoint.done, batch + 1)


def _run_task(
    world: World, n: int, rows: list[Row], random: Random, loose: Loose, winners: list[BatchAttempt]
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
            raise Fenced


def _drive(world: World, steps: protocol.Steps) -> Step:
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
                raise Fenced
            answer = world.perform(effect, holder)
            if isinstance(effect, protocol.Lock):
                holder = answer
            yield f"{type(effect).__name__} done"
    except StopIteration:
        pass

"""Pure: how a micro-batch of a stream is written exactly once: the effects of its protocol, in their order.

Each task attempt writes into a transaction of its own. Only the driver knows the batch's number: it takes the lock,
reads the last commit record, writes its own (the linearisation point), and only then commits the attempts. Between the
fence of the lock and the record no other driver can have written one. A batch that has a record is always finished, by
whichever driver; a replay aborts its own attempts. A step may fail or never return, and the steps may end there.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from kafka_ds.errors import (
    CheckpointRolledBack,
    CommitsLost,
    KafkaDsError,
    PrefixConflict,
    PrefixInUse,
    RunSuperseded,
)
from kafka_ds.protocol.topic_partition import TopicPartition

__all__ = [
    "NO_ATTEMPTS", "AbortAttempt", "BatchAttempt", "BatchCommit", "CheckpointRolledBack", "CommitAttempt",
    "CommitsLost", "Effect", "Fence", "Finish", "Job", "LastCommit", "ListOpen", "Lock", "PrefixConflict",
    "PrefixInUse", "ReadLastCommit", "Rewrite", "RunSuperseded", "Span", "CommitEffects", "TransactionAborted",
    "WriteCommit", "abort", "commit", "recover",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Where an attempt's records lie in a partition: others' may lie between them."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    record_count: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAttempt:
    """A task attempt's open transaction, and what it wrote: all that is needed to end it, or to write it again."""

    transactional_id: str
    producer_id: int
    epoch: int
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCommit:
    """Which attempts make up this batch; ``run`` is the query's start that wrote last, after those of ``earlier``."""

    query: str
    batch: int
    attempts: tuple[BatchAttempt, ...]
    run: str | None = None
    earlier: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A micro-batch as Spark runs it: of which query, and in which run (start) of that."""

    query: str
    batch: int
    run: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCommit:
    """The last decision. ``settled`` is false while a later decision may exist that cannot be read yet."""

    batch_commit: BatchCommit | None
    finished: bool
    settled: bool = True


@dataclass(frozen=True, slots=True)
class Lock:
    """Fence the holder of the lock; returns when none of its transactions is open any more."""


@dataclass(frozen=True, slots=True)
class ReadLastCommit:
    """Answer: `LastCommit`."""


@dataclass(frozen=True, slots=True)
class WriteCommit:
    """Durable when it answers. Refused (an exception) when the lock was lost."""

    batch_commit: BatchCommit


@dataclass(frozen=True, slots=True)
class CommitAttempt:
    """Commit. Answer: whether it is committed; False where the coordinator refuses."""

    attempt: BatchAttempt


@dataclass(frozen=True, slots=True)
class AbortAttempt:
    """Abort, if it is still open and its own; nothing else happens."""

    attempt: BatchAttempt


@dataclass(frozen=True, slots=True)
class TransactionAborted:
    """Answer: whether the log says that it was aborted."""

    attempt: BatchAttempt


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Write the records of these attempts again and record the batch as finished, in one transaction of the lock's."""

    batch_commit: BatchCommit
    lost: tuple[BatchAttempt, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """Record that this decision is carried out. Refused when the lock was lost: a late record would replace a newer
    one.
    """

    batch_commit: BatchCommit


@dataclass(frozen=True, slots=True)
class ListOpen:
    """Answer: the transactional ids of attempts under this prefix whose transaction is open."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Abort any open transaction of this id."""

    transactional_id: str


Effect = (
    Lock | ReadLastCommit | WriteCommit | CommitAttempt | AbortAttempt | TransactionAborted | Rewrite | Finish
    | ListOpen | Fence
)  # fmt: skip
CommitEffects = Generator[Effect, Any, None]
NO_ATTEMPTS: Final[tuple[BatchAttempt, ...]] = ()
# How many runs are recognised. Copies that run side by side supersede each other at once.
EARLIER_MAX: Final = 16


def recover() -> CommitEffects:
    """Before a batch's tasks begin: finish what was decided, since they will use its transactional ids again."""
    last: LastCommit = yield ReadLastCommit()
    if last.settled and (last.batch_commit is None or last.finished):
        return
    yield Lock()
    last = yield ReadLastCommit()
    yield from _finish(last)


def commit(job: Job, attempts: Sequence[BatchAttempt]) -> CommitEffects:
    """All tasks have written: make their rows, or those of an earlier try that was decided, the batch.

    Raises:
        PrefixConflict, CommitsLost: nothing was decided.
    """
    yield Lock()
    last: LastCommit = yield ReadLastCommit()
    decided = last.batch_commit
    refusal = _refusal(job, decided)
    if refusal is not None:
        raise refusal
    yield from _finish(last)
    earlier = _before(job.run, decided)
    if decided is not None and decided.batch == job.batch:
        for attempt in _others(attempts, decided):
            yield AbortAttempt(attempt)
        if job.run is not None and earlier != decided.earlier:
            yield WriteCommit(replace(decided, run=job.run, earlier=earlier))
    else:
        decided = BatchCommit(
            query=job.query,
            batch=job.batch,
            attempts=tuple(attempts),
            run=job.run,
            earlier=earlier,
        )
        yield WriteCommit(decided)
        yield from _finish(LastCommit(batch_commit=decided, finished=False))
    yield from _fence_all_but(())


def abort(attempts: Sequence[BatchAttempt], job: Job | None = None) -> CommitEffects:
    """End a failed job (in a task or in `commit`): no transaction of it stays open, except those decided already.

    If the prefix is another query's by now, attempts that are open under it are that query's, and so is the lock.
    """
    if job is not None:
        seen: LastCommit = yield ReadLastCommit()
        if seen.settled and isinstance(_refusal(job, seen.batch_commit), PrefixConflict):
            for attempt in _others(attempts, seen.batch_commit):
                yield AbortAttempt(attempt)
            return
    yield Lock()
    last: LastCommit = yield ReadLastCommit()
    kept = None if last.finished else last.batch_commit
    for attempt in _others(attempts, kept):
        yield AbortAttempt(attempt)
    yield from _fence_all_but(() if kept is None else [a.transactional_id for a in kept.attempts])


def _refusal(job: Job, decided: BatchCommit | None) -> KafkaDsError | None:
    """Why this job must not be decided, if so."""
    if decided is None:
        return None
    if decided.query != job.query:
        return PrefixInUse(
            f"it is in use by query {decided.query}, which has written batch {decided.batch}; "
            f"this is query {job.query}"
        )
    if decided.batch > job.batch:
        return CheckpointRolledBack(
            f"batch {decided.batch} of query {job.query} is written; batch {job.batch} comes before it"
        )
    if job.run in decided.earlier:
        return RunSuperseded(
            f"run {job.run} of query {job.query} cannot write batch {job.batch}: another run has written batch "
            f"{decided.batch} since. Is a copy of the checkpoint in use? Then give one of the two a checkpoint and a "
            "prefix of its own"
        )
    if decided.batch < job.batch - 1:
        return CommitsLost(
            f"batch {decided.batch} of query {job.query} is the last one with a commit record, and this is batch "
            f"{job.batch}, which may have been written before: the commit records between were lost, as in a restore, "
            "or the query wrote without them for a time. With a new 'transactionalIdPrefix' the query continues, and "
            "writes this batch (again)"
        )
    return None


def _before(run: str | None, decided: BatchCommit | None) -> tuple[str, ...]:
    """The runs before this one."""
    if decided is None:
        return ()
    if run is None or decided.run in (None, run):
        return decided.earlier
    return (*decided.earlier, decided.run)[-EARLIER_MAX:]


def _others(
    attempts: Sequence[BatchAttempt], batch_commit: BatchCommit | None
) -> list[BatchAttempt]:
    decided = NO_ATTEMPTS if batch_commit is None else batch_commit.attempts
    return [attempt for attempt in attempts if attempt not in decided]


def _finish(last: LastCommit) -> CommitEffects:
    batch_commit = last.batch_commit
    if batch_commit is None or last.finished:
        return
    lost: list[BatchAttempt] = []
    for attempt in batch_commit.attempts:
        committed: bool = yield CommitAttempt(attempt)
        if committed:
            continue
        aborted: bool = yield TransactionAborted(attempt)
        if aborted:
            lost.append(attempt)
    if lost:
        yield Rewrite(batch_commit, tuple(lost))
    else:
        yield Finish(batch_commit)


def _fence_all_but(kept: Collection[str]) -> CommitEffects:
    found: Collection[str] = yield ListOpen()
    for transactional_id in sorted(found):
        if transactional_id not in kept:
            yield Fence(transactional_id)

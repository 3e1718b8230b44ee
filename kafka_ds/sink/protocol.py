"""Pure: how a micro-batch of a stream is written exactly once: the steps of its protocol, in their order.

Each task attempt of a micro-batch writes into a transaction of its own. The driver alone knows the batch's number: it
decides which attempts count, and decides before it commits the first one:

    Lock       fence the driver that decided for this prefix before (InitProducerId of the driver's transactional id)
    ReadLast   read the last decision, after that fence
    Decide     one record in a transaction of the lock's: the batch and its attempts (the linearisation point)
    End        commit each attempt; committing one again changes nothing
    Finish     note that nothing of this batch is left to do
    Fence      abort what is still open under this prefix: attempts that lost, failed or were forgotten

Rules of this file:
- A decision is always finished, by whichever driver: a replay of the batch aborts its own attempts and finishes the
  decided ones, however differently its rows were spread over tasks.
- Only the lock's holder decides. Between its fence and its decision nobody else can have decided: their lock is fenced,
  and a fenced transaction does not commit. So of two drivers one decides each batch.
- A decided attempt can still be aborted: it timed out while there was no driver, or a task that was believed dead used
  its id. Its records are in the log, aborted. They are written again from there, in one of the lock's transactions,
  together with the note that the batch is finished: all of that happens once or not at all.
- An attempt whose end is refused has already ended; the log says how (`WasAborted`).
- Each start of a query is a run of its own. One that writes, if only a batch again, has taken over from all before it.
  So a run that goes on after that is of a copy of the checkpoint: batches of either would be taken for replays of the
  other's, and their rows dropped.
- Only the fence at the end aborts foreign attempts. So a driver that is cut off can abort attempts of its successor;
  this costs a rewrite or a retry, but no row.
- The machine knows no sockets and no clock. A step may fail or never come back, and the steps may be left there.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

__all__ = [
    "NO_ATTEMPTS", "Abort", "Attempt", "Decide", "Decision", "DecisionsLost", "Effect", "End", "Fence", "Finish", "Job",
    "Last", "ListOpen", "Lock", "NotYours", "OtherQuery", "ReadLast", "Rewrite", "SetBack", "Span", "Steps",
    "Superseded", "WasAborted", "abort", "commit", "recover",
]  # fmt: skip


class NotYours(RuntimeError):
    """Somebody else writes under this prefix."""


class OtherQuery(NotYours):
    """The prefix is in use by another query (or by this one with a new checkpoint)."""


class SetBack(NotYours):
    """A batch before the last one decided: the checkpoint was set back."""


class Superseded(NotYours):
    """Another run of the query has written since: of a copy of its checkpoint, or as this one was taken for dead."""


class DecisionsLost(RuntimeError):
    """Batches between the last one decided and this one: their decisions were not restored with the topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Where an attempt's records lie in a partition: others' may lie between them."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    record_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A task attempt's open transaction, and what it wrote: all that is needed to end it, or to write it again."""

    transactional_id: str
    producer_id: int
    epoch: int
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Which attempts are this batch; ``run`` is which start of the query wrote last, after those of ``earlier``."""

    query: str
    batch: int
    attempts: tuple[Attempt, ...]
    run: str | None = None
    earlier: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A micro-batch as Spark runs it: of which query, and in which run (start) of that."""

    query: str
    batch: int
    run: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Last:
    """The last decision. ``settled`` is false while a later decision may exist that cannot be read yet."""

    decision: Decision | None
    finished: bool
    settled: bool = True


@dataclass(frozen=True, slots=True)
class Lock:
    """Fence the holder of the lock; returns when none of its transactions is open any more."""


@dataclass(frozen=True, slots=True)
class ReadLast:
    """Answer: `Last`."""


@dataclass(frozen=True, slots=True)
class Decide:
    """Durable when it answers. Refused (an exception) when the lock was lost."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class End:
    """Commit. Answer: whether it is committed; False where the coordinator refuses."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Abort:
    """Abort, if it is still open and its own; nothing else happens."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class WasAborted:
    """Answer: whether the log says that it was aborted."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Write the records of these attempts again and note the batch as finished, in one transaction of the lock's."""

    decision: Decision
    lost: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """Note that this decision is carried out. Refused when the lock was lost: a late note would replace a newer one."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class ListOpen:
    """Answer: the transactional ids of attempts under this prefix whose transaction is open."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Abort any open transaction of this id."""

    transactional_id: str


Effect = (
    Lock | ReadLast | Decide | End | Abort | WasAborted | Rewrite | Finish | ListOpen | Fence
)  # fmt: skip
Steps = Generator[Effect, Any, None]
NO_ATTEMPTS: Final[tuple[Attempt, ...]] = ()
# How many runs are known again. Copies that run side by side supersede each other at once.
EARLIER_MAX: Final = 16


def recover() -> Steps:
    """Before a batch's tasks begin: finish what was decided, since they will use its transactional ids again."""
    last: Last = yield ReadLast()
    if last.settled and (last.decision is None or last.finished):
        return
    yield Lock()
    last = yield ReadLast()
    yield from _finish(last)


def commit(job: Job, attempts: Sequence[Attempt]) -> Steps:
    """All tasks have written: make their rows, or those of an earlier try that was decided, the batch.

    Raises:
        NotYours, DecisionsLost: nothing was decided.
    """
    yield Lock()
    last: Last = yield ReadLast()
    decided = last.decision
    refusal = _refusal(job, decided)
    if refusal is not None:
        raise refusal
    yield from _finish(last)
    earlier = _before(job.run, decided)
    if decided is not None and decided.batch == job.batch:
        for attempt in _others(attempts, decided):
            yield Abort(attempt)
        if job.run is not None and earlier != decided.earlier:
            yield Decide(replace(decided, run=job.run, earlier=earlier))
    else:
        decided = Decision(
            query=job.query,
            batch=job.batch,
            attempts=tuple(attempts),
            run=job.run,
            earlier=earlier,
        )
        yield Decide(decided)
        yield from _finish(Last(decision=decided, finished=False))
    yield from _fence_all_but(())


def abort(attempts: Sequence[Attempt], job: Job | None = None) -> Steps:
    """End a failed job (in a task or in `commit`): no transaction of it stays open, except those decided already.

    Where the prefix is somebody else's by now, attempts that are open under it are theirs, and so is the lock.
    """
    if job is not None:
        seen: Last = yield ReadLast()
        if seen.settled and isinstance(_refusal(job, seen.decision), NotYours):
            for attempt in _others(attempts, seen.decision):
                yield Abort(attempt)
            return
    yield Lock()
    last: Last = yield ReadLast()
    kept = None if last.finished else last.decision
    for attempt in _others(attempts, kept):
        yield Abort(attempt)
    yield from _fence_all_but(() if kept is None else [a.transactional_id for a in kept.attempts])


def _refusal(job: Job, decided: Decision | None) -> RuntimeError | None:
    """Why this job must not be decided, if so."""
    if decided is None:
        return None
    if decided.query != job.query:
        return OtherQuery(
            f"it is in use by query {decided.query}, which has written batch {decided.batch}; "
            f"this is query {job.query}"
        )
    if decided.batch > job.batch:
        return SetBack(
            f"batch {decided.batch} of query {job.query} is written; batch {job.batch} comes before it"
        )
    if job.run in decided.earlier:
        return Superseded(
            f"run {job.run} of query {job.query} cannot write batch {job.batch}: another run has written batch "
            f"{decided.batch} since. Is a copy of the checkpoint in use? Then give one of the two a checkpoint and a "
            "prefix of its own"
        )
    if decided.batch < job.batch - 1:
        return DecisionsLost(
            f"batch {decided.batch} of query {job.query} is the last one whose decision is known, and this is batch "
            f"{job.batch}, which may have been written before: the decisions between were lost, as in a restore, or "
            "the query wrote without them for a time. A new 'transactionalIdPrefix' goes on, and writes this batch "
            "(again)"
        )
    return None


def _before(run: str | None, decided: Decision | None) -> tuple[str, ...]:
    """The runs before this one."""
    if decided is None:
        return ()
    if run is None or decided.run in (None, run):
        return decided.earlier
    return (*decided.earlier, decided.run)[-EARLIER_MAX:]


def _others(attempts: Sequence[Attempt], decision: Decision | None) -> list[Attempt]:
    decided = NO_ATTEMPTS if decision is None else decision.attempts
    return [attempt for attempt in attempts if attempt not in decided]


def _finish(last: Last) -> Steps:
    decision = last.decision
    if decision is None or last.finished:
        return
    lost: list[Attempt] = []
    for attempt in decision.attempts:
        committed: bool = yield End(attempt)
        if committed:
            continue
        aborted: bool = yield WasAborted(attempt)
        if aborted:
            lost.append(attempt)
    if lost:
        yield Rewrite(decision, tuple(lost))
    else:
        yield Finish(decision)


def _fence_all_but(kept: Collection[str]) -> Steps:
    found: Collection[str] = yield ListOpen()
    for transactional_id in sorted(found):
        if transactional_id not in kept:
            yield Fence(transactional_id)

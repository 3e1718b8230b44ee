"""The controller on the lake is safe in every interleaving, and each of its rules is needed for that."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest

CLAIM, DECISION, OTHER = "claim", "decision", "other"


class ModelCommit(NamedTuple):
    """A commit: who made it, under which epoch, what it is."""

    kind: str
    broker: int
    epoch: int
    number: int


class Attempt(NamedTuple):
    """A commit that is being made: at which version, and whether its fate is unknown."""

    entry: ModelCommit
    version: int
    is_unknown: bool = False
    # Whether a clean-up of the log may have passed it by since the version was known to be free.
    is_late: bool = False


class ModelBroker(NamedTuple):
    """One broker: how far it has read, the highest epoch it has seen, the epoch it decides with (0: it does not)."""

    known: int = -1
    # The newest version that its reader of the log has seen, whether or not what it read there was taken in.
    listed: int = -1
    # Whether what it knows is so old that the log may have been cleaned up since.
    is_stale: bool = False
    seen_epoch: int = 0
    epoch: int = 0
    attempt: Attempt | None = None
    made: int = 0
    # Decisions answered as done, and as not done.
    done: frozenset[ModelCommit] = frozenset()
    refused: frozenset[ModelCommit] = frozenset()


class State(NamedTuple):
    """The world. `log` maps versions to commits; versions below `cleaned` were deleted after a checkpoint."""

    log: tuple[tuple[int, ModelCommit], ...] = ()
    # All that ever was, for the checks: the history that readers have seen.
    history: tuple[ModelCommit, ...] = ()
    cleaned: int = 0
    brokers: tuple[ModelBroker, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules; each can be switched off."""

    put_if_absent: bool = True
    reads_back: bool = True
    unknown_is_retried: bool = True
    ends_at_events: bool = True
    lists_when_late: bool = True
    claims_count_up: bool = True
    commits_on_what_it_decided_on: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBounds:
    """How large the model is."""

    brokers: int = 2
    versions: int = 4
    commits_each: int = 3
    others: int = 1
    # Whether what was read may be dropped.
    drops: bool = True


class Violation(AssertionError):
    """A state that must not be, and the way to it."""


class StateSpace:
    """All states within the bounds, under the rules."""

    def __init__(self, rules: Rules, bounds: ModelBounds) -> None:
        self._rules = rules
        self._bounds = bounds

    def explore(self) -> int:
        """Visit every state; their number. Raises Violation with the shortest way to a wrong one."""
        start = State(brokers=(ModelBroker(),) * self._bounds.brokers)
        came_from: dict[State, tuple[State, str] | None] = {start: None}
        queue = deque([start])
        while queue:
            state = queue.popleft()
            wrong = _wrong(state)
            if wrong:
                raise Violation(f"{wrong}\n" + "\n".join(_way(came_from, state)))
            for step, following in self._steps(state):
                if following not in came_from:
                    came_from[following] = (state, step)
                    queue.append(following)
        return len(came_from)

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        for number, broker in enumerate(state.brokers):
            for step, following in self._steps_of(state, number, broker):
                yield f"broker {number}: {step}", following
        yield from self._steps_of_the_world(state)

    # -- what a broker does ------------------------------------------------------------------------

    def _steps_of(
        self, state: State, number: int, broker: ModelBroker
    ) -> Iterator[tuple[str, State]]:
        if broker.attempt is not None:
            yield from self._puts(state, number, broker, broker.attempt)
            return
        if len(state.history) > broker.known + 1 or broker.is_stale:
            yield "reads", _with(state, number, _read(state, broker, self._rules))
            if self._bounds.drops and broker.made < self._bounds.commits_each:
                looked = broker._replace(listed=len(state.history) - 1, is_stale=False)
                yield "reads, and what it read is dropped", _with(state, number, looked)
        if broker.is_stale and self._rules.lists_when_late:
            return
        if broker.made >= self._bounds.commits_each:
            return
        place = ModelCommit(CLAIM, number, 0, broker.made)
        if not broker.epoch:
            epoch = broker.seen_epoch + 1 if self._rules.claims_count_up else 1
            claim = place._replace(epoch=epoch)
            yield "claims", _trying(state, number, broker, claim, self._rules)
        else:
            decision = place._replace(kind=DECISION, epoch=broker.epoch)
            yield "decides", _trying(state, number, broker, decision, self._rules)

    def _puts(
        self, state: State, number: int, broker: ModelBroker, attempt: Attempt
    ) -> Iterator[tuple[str, State]]:
        """The PUT, with every possible outcome."""
        if attempt.version > self._bounds.versions:
            return
        found = dict(state.log).get(attempt.version)
        if found is None and attempt.version <= broker.listed and not attempt.is_unknown:
            # There was one, as later ones were listed: it was cleaned up, and nobody knows any more what it held.
            yield "finds it cleaned up", _with(state, number, _lost(broker, attempt))
            return
        if found is None or not self._rules.put_if_absent:
            written = _written(state, attempt)
            yield "puts, and is told so", self._won(written, number, broker, attempt)
            yield "puts, and the answer is lost", self._unknown(written, number, broker, attempt)
        else:
            yield "finds it taken", self._taken(state, number, broker, attempt, found)
        yield "puts, and the request is lost", self._unknown(state, number, broker, attempt)

    def _won(self, state: State, number: int, broker: ModelBroker, attempt: Attempt) -> State:
        if attempt.is_late and self._rules.lists_when_late and state.cleaned > attempt.version:
            # A checkpoint at or above the version: it was somebody's long ago. Our own's, perhaps, where an answer
            # was lost before: then nobody is told that it was not done, and a new start reads what is true.
            return _with(state, number, _lost(broker, attempt))
        entry = attempt.entry
        mine = entry.epoch if entry.kind == CLAIM else broker.epoch
        return _with(
            state,
            number,
            broker._replace(
                attempt=None,
                known=attempt.version,
                listed=max(broker.listed, attempt.version),
                is_stale=attempt.is_late,
                epoch=mine,
                seen_epoch=max(broker.seen_epoch, entry.epoch),
                done=broker.done | {entry},
            ),
        )

    def _unknown(self, state: State, number: int, broker: ModelBroker, attempt: Attempt) -> State:
        if not self._rules.unknown_is_retried:
            return _with(state, number, _lost(broker, attempt))
        return _with(state, number, broker._replace(attempt=attempt._replace(is_unknown=True)))

    def _taken(
        self, state: State, number: int, broker: ModelBroker, attempt: Attempt, found: ModelCommit
    ) -> State:
        if found == attempt.entry and self._rules.reads_back:
            return self._won(state, number, broker, attempt)
        if found.kind == OTHER or not self._rules.ends_at_events:
            rebased = attempt._replace(version=attempt.version + 1, is_unknown=False)
            return _with(state, number, broker._replace(attempt=rebased))
        return _with(state, number, _lost(broker, attempt))

    # -- what the world does -----------------------------------------------------------------------

    def _steps_of_the_world(self, state: State) -> Iterator[tuple[str, State]]:
        others = sum(entry.kind == OTHER for entry in state.history)
        version = len(state.history)
        if others < self._bounds.others and version <= self._bounds.versions:
            entry = ModelCommit(OTHER, -1, 0, others)
            yield "somebody vacuums", _written(state, Attempt(entry, version))
        if version and state.cleaned < version:
            # Days have passed: who was about to put something has been asleep all the while.
            brokers = tuple(map(_aged, state.brokers))
            yield (
                "the log is cleaned up",
                state._replace(log=(), cleaned=version, brokers=brokers),
            )


def _aged(broker: ModelBroker) -> ModelBroker:
    attempt = broker.attempt
    late = attempt._replace(is_late=True) if attempt is not None else None
    # What was listed so long ago is worth nothing: it is listed again before it is asked.
    return broker._replace(is_stale=True, listed=broker.known, attempt=late)


def _trying(
    state: State, number: int, broker: ModelBroker, entry: ModelCommit, rules: Rules
) -> State:
    before = broker.known if rules.commits_on_what_it_decided_on else broker.listed
    attempt = Attempt(entry, before + 1)
    return _with(state, number, broker._replace(attempt=attempt, made=broker.made + 1))


def _written(state: State, attempt: Attempt) -> State:
    """The object is there. Readers see it unless a checkpoint has passed it by."""
    log = dict(state.log)
    log[attempt.version] = attempt.entry
    history = state.history
    if attempt.version >= state.cleaned:
        history = (*history[: attempt.version], attempt.entry, *history[attempt.version + 1 :])
    return state._replace(log=tuple(sorted(log.items())), history=history)


def _read(state: State, broker: ModelBroker, rules: Rules) -> ModelBroker:
    """Read on to the end; a controller that reads a higher claim than its own resigns."""
    seen = broker.seen_epoch
    for entry in state.history[broker.known + 1 :]:
        seen = max(seen, entry.epoch)
    deposed = seen > broker.epoch and rules.ends_at_events
    return broker._replace(
        known=len(state.history) - 1,
        listed=len(state.history) - 1,
        is_stale=False,
        seen_epoch=seen,
        epoch=0 if deposed else broker.epoch,
    )


def _lost(broker: ModelBroker, attempt: Attempt) -> ModelBroker:
    """The commit is not in the log: its client is told so, and its author resigns."""
    known = frozenset() if attempt.is_unknown and attempt.is_late else frozenset({attempt.entry})
    return broker._replace(attempt=None, epoch=0, refused=broker.refused | known)


def _with(state: State, number: int, broker: ModelBroker) -> State:
    brokers = (*state.brokers[:number], broker, *state.brokers[number + 1 :])
    return state._replace(brokers=brokers)


def _wrong(state: State) -> str | None:
    """What must not be in this state."""
    epoch, holder = 0, -1
    claims: set[int] = set()
    for version, entry in enumerate(state.history):
        if entry.kind == CLAIM:
            if entry.epoch in claims:
                return f"epoch {entry.epoch} is claimed twice"
            claims.add(entry.epoch)
            if entry.epoch <= epoch:
                return f"version {version}: epoch {entry.epoch} after {epoch}"
            epoch, holder = entry.epoch, entry.broker
        elif entry.kind == DECISION and (entry.epoch, entry.broker) != (epoch, holder):
            return f"version {version}: a decision of epoch {entry.epoch} under epoch {epoch}"
    there = set(state.history)
    for number, broker in enumerate(state.brokers):
        if missing := broker.done - there:
            return f"broker {number} answered {missing} as done, and it is nowhere"
        if ghosts := broker.refused & there:
            return f"broker {number} answered {ghosts} as not done, and it is in the log"
    if len(there) != len(state.history):
        return "one commit is in the log twice"
    return None


def _way(came_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    way: list[str] = []
    while (before := came_from[state]) is not None:
        state, step = before
        way.append(f"  {step}")
    return way[::-1]


RULES = Rules()


SMALL = ModelBounds(versions=2, commits_each=2)


def test_no_interleaving_breaks_a_promise() -> None:
    assert StateSpace(RULES, SMALL).explore() > 150_000


@pytest.mark.slow
def test_no_longer_interleaving_does() -> None:
    """About 4 million states, 7 minutes; with dropped answers three commits each would be too many states."""
    assert StateSpace(RULES, ModelBounds(drops=False)).explore() > 1_000_000
    assert StateSpace(RULES, ModelBounds(commits_each=2)).explore() > 150_000


@pytest.mark.parametrize(
    "rules",
    [
        replace(RULES, put_if_absent=False),
        replace(RULES, reads_back=False),
        replace(RULES, unknown_is_retried=False),
        replace(RULES, ends_at_events=False),
        replace(RULES, lists_when_late=False),
        replace(RULES, claims_count_up=False),
        replace(RULES, commits_on_what_it_decided_on=False),
    ],
    ids=lambda rules: next(n for n in Rules.__slots__ if not getattr(rules, n)),
)
def test_without_a_rule_a_promise_breaks(rules: Rules) -> None:
    with pytest.raises(Violation):
        StateSpace(rules, SMALL).explore()

"""Records a history while clients work, in one thread or in several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count

from tests.checker.history import Fate, Operation, Poll, Send


class Recorder:
    """The history of a run, of which every client records its operations."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds since the run's beginning."""
        self._clock = clock
        # Taking the next number and appending are single steps of the interpreter, so threads need no lock.
        self._order = count()
        self._entries: list[Entry] = []

    def begin(self, process: str, function: str, *, is_committed: bool = True) -> Entry:
        """Record that an operation begins."""
        entry = Entry(self, process, function, is_committed=is_committed)
        self._entries.append(entry)
        return entry

    def assign(self, process: str) -> None:
        """Record that this process reads on at positions of its choice."""
        self.begin(process, "assign").end(Fate.OK)

    def now(self) -> tuple[int, float]:
        """The next number of the order, and the time."""
        return next(self._order), self._clock()

    def history(self) -> list[Operation]:
        """All operations that say something; what has not ended has an unknown outcome."""
        found = (each.operation() for each in self._entries)
        said = [each for each in found if each.steps or each.function == "assign"]
        return sorted(said, key=lambda each: each.began)


class Entry:
    """One operation, from its beginning on."""

    def __init__(
        self, recorder: Recorder, process: str, function: str, *, is_committed: bool
    ) -> None:
        self._recorder = recorder
        self._process, self._function, self._is_committed = process, function, is_committed
        self._began = recorder.now()
        self._ended: tuple[int, float] | None = None
        self._decided: int | None = None
        self._is_reassigned = False
        # What is known until the operation ends.
        self.outcome = Fate.UNKNOWN
        self._steps: list[Send | Poll] = []
        self._places: dict[str, int] = {}

    def sending(self, key: str, values: Iterable[str]) -> None:
        """Record what is being sent, before it is."""
        for value in values:
            self._places[value] = len(self._steps)
            self._steps.append(Send(key=key, value=value))

    def acknowledged(self, value: str, offset: int | None) -> None:
        """Record an acknowledgement; some do not say the offset."""
        place = self._places[value]
        sent = self._steps[place]
        self._steps[place] = Send(
            key=sent.key, value=value, is_acknowledged=True, offset=None if offset == -1 else offset
        )

    def polled(self, key: str, records: Sequence[tuple[int, str]]) -> None:
        """Record what a poll returned."""
        if records:
            self._steps.append(Poll(key=key, records=tuple(records)))

    def reassigned(self) -> None:
        """Record that a group has given the process other partitions meanwhile."""
        self._is_reassigned = True

    def deciding(self) -> None:
        """Record that the client asks for the commit."""
        self._decided = self._recorder.now()[0]

    def end(self, outcome: Fate) -> None:
        """Record the operation's end."""
        self.outcome = outcome
        self._ended = self._recorder.now()

    def operation(self) -> Operation:
        """As it is known now."""
        ended = self._ended or self._recorder.now()
        return Operation(
            process=self._process,
            function=self._function,
            began=self._began[0],
            ended=ended[0],
            outcome=self.outcome,
            steps=tuple(self._steps),
            decided=self._decided,
            is_committed=self._is_committed,
            is_reassigned=self._is_reassigned,
            began_s=self._began[1],
            ended_s=ended[1],
        )

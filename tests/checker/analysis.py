"""What is wrong with a history: the questions of Jepsen's Kafka workload, asked in a program of our own.

Sources: the documentation of `jepsen.tests.kafka`, and Jepsen's reports on Redpanda 21.10.1 and on Bufstream 0.1.0.

A record is *certain* if it was acknowledged outside of a transaction, or if its transaction was: by the answer to
the commit, or by any of its records that a read_committed consumer has read. The log of a key is put together from
the offsets of certain records and of all records that were polled.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.checker.cycles import components, in_time, shortest
from tests.checker.history import Fate, Operation, Send

Place = tuple[str, str]
NEVER = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that Kafka's promises exclude."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(slots=True)
class Judgement:
    """What a history shows."""

    findings: list[Finding]
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def kinds(self) -> Counter[str]:
        """How many findings there are of each kind."""
        return Counter(each.kind for each in self.findings)


class _Index:
    """A history by values and offsets."""

    def __init__(self, history: Sequence[Operation]) -> None:
        self.history = history
        self.writers: dict[Place, int] = {}
        self.sends: dict[Place, Send] = {}
        # By isolation: read_committed is True.
        self.readers: dict[bool, dict[Place, list[int]]] = {
            True: defaultdict(list),
            False: defaultdict(list),
        }
        for number, operation in enumerate(history):
            for send in operation.sends:
                place = send.key, send.value
                if place in self.writers:
                    raise ValueError(f"{operation} sends {send.value} again: values must be unique")
                self.writers[place], self.sends[place] = number, send
            for poll in operation.polls:
                readers = self.readers[operation.is_committed]
                for _, value in poll.records:
                    readers[poll.key, value].append(number)
        self.proven = {self.writers[place] for place in self.readers[True] if place in self.writers}
        self.logs: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.read_up_to: dict[bool, dict[str, int]] = {True: {}, False: {}}
        self._collect()

    def _collect(self) -> None:
        for operation in self.history:
            read_up_to = self.read_up_to[operation.is_committed]
            for poll in operation.polls:
                log = self.logs[poll.key]
                for offset, value in poll.records:
                    log[offset].add(value)
                last = max(offset for offset, _ in poll.records)
                read_up_to[poll.key] = max(read_up_to.get(poll.key, -1), last)
        for (key, value), send in self.sends.items():
            if send.offset is not None and self.is_certain((key, value)):
                self.logs[key][send.offset].add(value)

    def operation(self, place: Place) -> Operation:
        """The operation that sent this."""
        return self.history[self.writers[place]]

    def is_certain(self, place: Place) -> bool:
        """Whether this record is in the log for ever."""
        number = self.writers[place]
        operation = self.history[number]
        if operation.function != "txn":
            return self.sends[place].is_acknowledged
        return operation.outcome is Fate.OK or number in self.proven

    def is_visible(self, place: Place) -> bool:
        """Whether every read_committed consumer that passes it must read it."""
        return place in self.readers[True] or (place in self.writers and self.is_certain(place))

    def is_read(self, place: Place) -> bool:
        """Whether anybody has polled it."""
        return place in self.readers[True] or place in self.readers[False]


Check = Callable[[_Index], Iterator[Finding]]
_CHECKS: list[Check] = []


def _check(function: Check) -> Check:
    _CHECKS.append(function)
    return function


def judge(history: Sequence[Operation]) -> Judgement:
    """Everything that is wrong with a history, and figures about it."""
    index = _Index(history)
    findings = [finding for check in _CHECKS for finding in check(index)]
    return Judgement(findings, _figures(index))


# -- one record --------------------------------------------------------------------------------------


@_check
def _inconsistent_offsets(index: _Index) -> Iterator[Finding]:
    for key, log in index.logs.items():
        for offset, values in log.items():
            if len(values) > 1:
                yield Finding(kind="inconsistent-offset", text=f"{key} at {offset}: {values}")


@_check
def _duplicates(index: _Index) -> Iterator[Finding]:
    for key, log in index.logs.items():
        places: dict[str, list[int]] = defaultdict(list)
        for offset, values in log.items():
            for value in values:
                places[value].append(offset)
        for value, offsets in places.items():
            if len(offsets) > 1:
                yield Finding(kind="duplicate", text=f"{key}: {value} at {sorted(offsets)}")


@_check
def _lost_writes(index: _Index) -> Iterator[Finding]:
    """A certain record below what consumers of that isolation level have read, and which none of them has read."""
    for place, send in index.sends.items():
        if send.offset is None or not index.is_certain(place):
            continue
        for is_committed, readers in index.readers.items():
            last = index.read_up_to[is_committed].get(place[0], -1)
            if send.offset <= last and place not in readers:
                yield Finding(
                    kind="lost-write",
                    text=f"{place} at {send.offset} by {index.operation(place)}, read up to {last} "
                    f"with {'read_committed' if is_committed else 'read_uncommitted'}",
                )


@_check
def _unseen(index: _Index) -> Iterator[Finding]:
    """A certain record that nobody has read at the end, when every log has been read to its end."""
    for place, send in index.sends.items():
        if index.is_certain(place) and not index.is_read(place):
            text = f"{place} at {send.offset} by {index.operation(place)}"
            yield Finding(kind="unseen", text=text)


@_check
def _aborted_reads(index: _Index) -> Iterator[Finding]:
    for is_committed, readers in index.readers.items():
        for place, numbers in readers.items():
            if place not in index.writers:
                text = f"{place} by {index.history[numbers[0]]}"
                yield Finding(kind="read-of-nothing", text=text)
                continue
            writer = index.operation(place)
            is_transaction = writer.function == "txn"
            if writer.outcome is Fate.FAILED and (is_committed or not is_transaction):
                text = f"{place} of {writer} by {index.history[numbers[0]]}"
                yield Finding(kind="aborted-read", text=text)


@_check
def _early_reads(index: _Index) -> Iterator[Finding]:
    """A record that was polled before it was sent, or before its transaction was to be committed."""
    for is_committed, readers in index.readers.items():
        for place, numbers in readers.items():
            if place not in index.writers:
                continue
            writer = index.operation(place)
            is_dirty = is_committed and writer.function == "txn" and writer.decided is not None
            earliest = writer.decided if is_dirty and writer.decided is not None else writer.began
            for number in numbers:
                reader = index.history[number]
                if is_committed and reader is writer:
                    yield Finding(kind="precommitted-read", text=f"{place} of itself by {reader}")
                elif reader.ended < earliest:
                    text = f"{place} of {writer} by {reader}"
                    yield Finding(kind="early-read", text=text)


@_check
def _torn_transactions(index: _Index) -> Iterator[Finding]:
    """A transaction of which read_committed consumers have read a part, and passed or never reached another."""
    readers, read_up_to = index.readers[True], index.read_up_to[True]
    for number in sorted(index.proven):
        operation = index.history[number]
        if operation.function != "txn":
            continue
        missing = [
            send
            for send in operation.sends
            if (send.key, send.value) not in readers
            and (send.offset is None or send.offset <= read_up_to.get(send.key, -1))
        ]
        if missing:
            text = f"{operation}: read, but not {[(each.key, each.value) for each in missing]}"
            yield Finding(kind="torn-transaction", text=text)


# -- the order in one key ----------------------------------------------------------------------------


@_check
def _polls_in_order(index: _Index) -> Iterator[Finding]:
    """A process reads each key's records in the log's order, and leaves none out."""
    orders = {
        True: {key: _visible(index, key) for key in index.logs},
        False: {key: sorted(log) for key, log in index.logs.items()},
    }
    positions: dict[tuple[str, str], int] = {}
    for operation in index.history:
        if operation.function == "assign" or operation.is_reassigned:
            for place in [each for each in positions if each[0] == operation.process]:
                del positions[place]
        for poll in () if operation.is_reassigned else operation.polls:
            order = orders[operation.is_committed][poll.key]
            place = operation.process, poll.key
            for offset, value in poll.records:
                before = positions.get(place)
                positions[place] = offset
                if before is None:
                    continue
                if offset <= before:
                    text = f"{poll.key}: {value} at {offset} after {before} by {operation}"
                    yield Finding(kind="nonmonotonic-poll", text=text)
                elif skipped := order[bisect_right(order, before) : bisect_left(order, offset)]:
                    text = f"{poll.key}: {skipped[:5]} between {before} and {offset} by {operation}"
                    yield Finding(kind="poll-skip", text=text)


def _visible(index: _Index, key: str) -> list[int]:
    """The offsets at which read_committed consumers must read something."""
    return sorted(
        offset
        for offset, values in index.logs[key].items()
        if any(index.is_visible((key, value)) for value in values)
    )


@_check
def _sends_in_order(index: _Index) -> Iterator[Finding]:
    """A process's records have rising offsets."""
    last: dict[tuple[str, str], tuple[int, str]] = {}
    for operation in index.history:
        for send in operation.sends:
            if send.offset is None:
                continue
            before, value = last.get((operation.process, send.key), (-1, ""))
            last[operation.process, send.key] = send.offset, send.value
            if send.offset <= before:
                text = f"{send.key}: {send.value} at {send.offset} after {value} at {before}"
                yield Finding(kind="nonmonotonic-send", text=text)


@_check
def _sends_in_real_time(index: _Index) -> Iterator[Finding]:
    """What was acknowledged before another operation began has the lower offset."""
    sent: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for place, send in index.sends.items():
        if send.offset is not None and index.is_certain(place):
            sent[place[0]].append((send.offset, index.writers[place]))
    for key, places in sent.items():
        earliest, first = NEVER, -1
        for offset, number in sorted(places, reverse=True):
            operation = index.history[number]
            if earliest < operation.began:
                text = f"{key}: {operation} got {offset}, below {index.history[first]}"
                yield Finding(kind="late-send", text=text)
            if operation.outcome is Fate.OK and operation.ended < earliest:
                earliest, first = operation.ended, number


# -- between operations ------------------------------------------------------------------------------


def _dependencies(index: _Index, kinds: Sequence[str]) -> dict[int, dict[int, str]]:
    """The graph of these kinds of dependencies, of operations that have happened."""
    happened = [
        each.outcome is Fate.OK or number in index.proven
        for number, each in enumerate(index.history)
    ]
    graph: dict[int, dict[int, str]] = {
        number: {} for number, is_in in enumerate(happened) if is_in
    }

    def link(before: int | None, after: int | None, kind: str) -> None:
        if before is None or after is None or before == after or kind not in kinds:
            return
        if happened[before] and happened[after]:
            graph[before].setdefault(after, kind)

    for place, numbers in index.readers[True].items():
        for number in numbers:
            link(index.writers.get(place), number, "wr")
    for key in index.logs:
        order = _visible(index, key)
        writers = [
            min(index.writers.get((key, value), -1) for value in index.logs[key][offset])
            for offset in order
        ]
        for before, after in zip(writers, writers[1:], strict=False):
            if min(before, after) >= 0:
                link(before, after, "ww")
        if "rw" not in kinds:
            continue
        for number, operation in enumerate(index.history):
            ends = [poll.records[-1][0] for poll in operation.polls if poll.key == key]
            place = bisect_right(order, ends[-1]) if ends and operation.is_committed else len(order)
            if place < len(order):
                link(number, writers[place], "rw")
    return graph


@_check
def _cycles(index: _Index) -> Iterator[Finding]:
    """G1c by polls and real time: somebody has read what depends on what he did later."""
    spans = [
        (each.began, each.ended if each.outcome is Fate.OK else NEVER) for each in index.history
    ]
    graph = in_time(spans)
    for before, following in _dependencies(index, ("wr",)).items():
        graph[before] |= following
    for component in components(graph):
        said = "; ".join(
            f"{index.history[node]} -{kind}->"
            for node, kind in shortest(graph, component)
            if node >= 0
        )
        yield Finding(kind="G1c", text=said)


def _figures(index: _Index) -> dict[str, float]:
    history = index.history
    lags = [0.0]
    for place in index.sends:
        readers = index.readers[True].get(place)
        if readers and index.operation(place).outcome is Fate.OK:
            first = min(history[number].began_s for number in readers)
            lags.append(first - index.operation(place).ended_s)
    counts = Counter(f"{each.function} {each.outcome.value}" for each in history)
    figures: dict[str, float] = {
        "seconds": max((each.ended_s for each in history), default=0.0),
        "operations": len(history),
        "records sent": len(index.sends),
        "records certain": sum(map(index.is_certain, index.sends)),
        "records read": sum(len(poll.records) for each in history for poll in each.polls),
        "longest until read, s": max(lags),
        **dict(sorted(counts.items())),
    }
    for name, kinds in (("G0", ("ww",)), ("G1c with ww", ("ww", "wr")), ("G2", ("ww", "wr", "rw"))):
        cyclic = sum(map(len, components(_dependencies(index, kinds))))
        figures[f"{name}, permitted: operations"] = cyclic
    return figures

"""Faults that are planted into a history: each edit makes one thing that a cluster must not do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tests.checker.history import Fate, Operation, Poll, Send

History = list[Operation]
Edit = Callable[[Sequence[Operation]], History]

# By the kind of finding that each must bring.
PLANTS: dict[str, Edit] = {}


def _plants(kind: str) -> Callable[[Edit], Edit]:
    def register(edit: Edit) -> Edit:
        PLANTS[kind] = edit
        return edit

    return register


Records = tuple[tuple[int, str], ...]


def _polls_changed(operation: Operation, change: Callable[[str, Records], Records]) -> Operation:
    """The operation with other records in its polls; polls that become empty are gone."""
    steps: list[Send | Poll] = []
    for step in operation.steps:
        if isinstance(step, Send):
            steps.append(step)
        elif records := change(step.key, step.records):
            steps.append(replace(step, records=records))
    return replace(operation, steps=tuple(steps))


def _without(values: set[str], *, from_committed: bool = False) -> Callable[[Operation], Operation]:
    def change(operation: Operation) -> Operation:
        if from_committed and not operation.is_committed:
            return operation
        return _polls_changed(
            operation, lambda _, records: tuple(each for each in records if each[1] not in values)
        )

    return change


def _alone(history: Sequence[Operation], change: Callable[[Operation], Operation]) -> History:
    """The history with this change in the first operation that it changes."""
    found = list(history)
    for number, operation in enumerate(found):
        if (changed := change(operation)) != operation:
            found[number] = changed
            return found
    raise AssertionError("nothing to plant it in")


def _operations(history: Sequence[Operation], function: str, outcome: Fate) -> Iterator[Operation]:
    return (each for each in history if (each.function, each.outcome) == (function, outcome))


def _read(history: Sequence[Operation]) -> set[str]:
    return {value for each in history for poll in each.polls for _, value in poll.records}


def _after(history: Sequence[Operation], number: int, **named: object) -> Operation:
    """An operation after the history's end, `number` counts of the order later."""
    end = max(each.ended for each in history) + number
    made = Operation(process="plant", function="", began=end, ended=end + 1, outcome=Fate.OK)
    return replace(made, **named)  # type: ignore[arg-type]


@_plants("lost-write")
def _lose_an_acknowledged_record(history: Sequence[Operation]) -> History:
    sent = next(_operations(history, "send", Fate.OK))
    lost = _without({next(iter(sent.sends)).value})
    return [lost(each) for each in history]


@_plants("unseen")
def _acknowledge_what_is_nowhere(history: Sequence[Operation]) -> History:
    sent = Send(key="orders-0", value="nowhere", is_acknowledged=True)
    return [*history, _after(history, 1, function="send", steps=(sent,))]


@_plants("duplicate")
def _append_a_record_twice(history: Sequence[Operation]) -> History:
    def twice(_: str, records: Records) -> Records:
        return (*records, (10_000, records[0][1]))

    return [*history[:-1], _polls_changed(history[-1], twice)]


@_plants("inconsistent-offset")
def _let_one_reader_see_another_record(history: Sequence[Operation]) -> History:
    def other(_: str, records: Records) -> Records:
        if len(records) < 3:
            return records
        return (records[0], (records[1][0], records[2][1]), *records[2:])

    return _alone(history, lambda each: _polls_changed(each, other))


@_plants("read-of-nothing")
def _let_one_reader_see_what_nobody_sent(history: Sequence[Operation]) -> History:
    def other(_: str, records: Records) -> Records:
        return (*records[:-1], (records[-1][0], "damaged"))

    return _alone(history, lambda each: _polls_changed(each, other))


@_plants("aborted-read")
def _show_an_aborted_record(history: Sequence[Operation]) -> History:
    read = _read(history)
    shown = next(
        send
        for each in _operations(history, "txn", Fate.FAILED)
        for send in each.sends
        if send.offset is not None and send.value in read
    )

    def show(operation: Operation) -> Operation:
        if not operation.is_committed or not operation.process.startswith("last"):
            return operation
        return _polls_changed(
            operation,
            lambda key, records: (
                tuple(sorted((*records, (shown.offset or 0, shown.value))))
                if key == shown.key
                else records
            ),
        )

    return _alone(history, show)


@_plants("early-read")
def _read_what_is_sent_later(history: Sequence[Operation]) -> History:
    reader = next(
        each for each in history if each.function == "poll" and each.is_committed and each.steps
    )
    values = {value for poll in reader.polls for _, value in poll.records}
    writer = next(
        each for each in history if each.sends and values & {send.value for send in each.sends}
    )
    # Recorded as if the poll had ended before that operation began.
    moved = replace(reader, began=writer.began - 2, ended=writer.began - 1)
    return [moved if each is reader else each for each in history]


@_plants("precommitted-read")
def _read_ones_own_open_transaction(history: Sequence[Operation]) -> History:
    sent = Send(key="own", value="own-1", is_acknowledged=True, offset=0)
    seen = Poll(key="own", records=((0, "own-1"),))
    return [*history, _after(history, 1, function="txn", steps=(sent, seen))]


@_plants("torn-transaction")
def _show_a_part_of_a_transaction(history: Sequence[Operation]) -> History:
    torn = next(
        each
        for each in _operations(history, "txn", Fate.OK)
        if len({send.key for send in each.sends}) > 1
    )
    first = next(iter(torn.sends)).key
    hide = _without({send.value for send in torn.sends if send.key == first}, from_committed=True)
    return [hide(each) for each in history]


@_plants("nonmonotonic-poll")
def _go_back(history: Sequence[Operation]) -> History:
    def back(_: str, records: Records) -> Records:
        return (*records, records[-2]) if len(records) > 1 else records

    return _alone(history, lambda each: _polls_changed(each, back))


@_plants("poll-skip")
def _leave_one_out(history: Sequence[Operation]) -> History:
    def skip(_: str, records: Records) -> Records:
        return (records[0], *records[2:]) if len(records) > 2 else records

    return _alone(history, lambda each: _polls_changed(each, skip))


def _exchanged(history: Sequence[Operation], one: Send, other: Send) -> History:
    """The history as if these two records had each other's offset."""
    offsets = {one.value: other.offset, other.value: one.offset}

    def change(step: Send | Poll) -> Send | Poll:
        if isinstance(step, Send):
            return replace(step, offset=offsets.get(step.value, step.offset))
        moved = ((offsets.get(value, offset) or 0, value) for offset, value in step.records)
        return replace(step, records=tuple(sorted(moved)))

    return [replace(each, steps=tuple(map(change, each.steps))) for each in history]


@_plants("nonmonotonic-send")
def _exchange_two_records_of_a_batch(history: Sequence[Operation]) -> History:
    for each in _operations(history, "send", Fate.OK):
        sends = [send for send in each.sends if send.offset is not None]
        for one, other in zip(sends, sends[1:], strict=False):
            if one.key == other.key:
                return _exchanged(history, one, other)
    raise AssertionError("nothing to plant it in")


@_plants("late-send")
def _append_before_what_was_acknowledged(history: Sequence[Operation]) -> History:
    sent = [
        (each, send)
        for each in _operations(history, "send", Fate.OK)
        for send in each.sends
        if send.offset is not None
    ]
    one, other = next(
        (first, second)
        for before, first in sent
        for after, second in sent
        if before.ended < after.began
        and before.process != after.process
        and first.key == second.key
    )
    return _exchanged(history, one, other)


@_plants("G1c")
def _read_from_one_another(history: Sequence[Operation]) -> History:
    """Two transactions at the same time, each of which has read what the other committed."""
    made = []
    for number, (mine, others) in enumerate((("a", "b"), ("b", "a"))):
        steps = (
            Poll(key=others, records=((0, f"{others}-1"),)),
            Send(key=mine, value=f"{mine}-1", is_acknowledged=True, offset=0),
        )
        operation = _after(history, 1 + number, process=mine, function="txn", steps=steps)
        made.append(replace(operation, decided=operation.began, ended=operation.ended + 10))
    return [*history, *made]

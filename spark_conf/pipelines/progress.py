"""Shell: which step a typed table takes next, and what its topic has lost before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kafka_ds.errors import DataLoss, KafkaDsError
from kafka_ds.topic.typed_steps import TableStep

# Of JSON each value of the first step is looked at; the next ones have columns to read by.
OFFSETS_OF_FIRST_STEP: Final = 10_000
# Spark caches the records of a step in memory, and on disk beyond that, while they are decoded.
BYTES_PER_STEP: Final = 1 << 30
_GROWTH: Final = 100
_SHRINKAGE: Final = 10


class StepLimit:
    """How many offsets the next step of a topic may have: by the bytes that the last one had in Spark's cache.

    The size of records is unknown before they are read, so the first step is small. One that failed is tried with fewer
    offsets: Spark's disk may have been too small for it.
    """

    def __init__(self) -> None:
        self.offsets = OFFSETS_OF_FIRST_STEP

    def written(self, offsets: int, size: int) -> None:
        """After a step of so many offsets, which had `size` bytes in the cache."""
        if offsets == 0:
            return
        fitting = offsets * BYTES_PER_STEP // max(size, 1)
        self.offsets = max(1, min(fitting, max(self.offsets, _GROWTH * offsets)))

    def failed(self, offsets: int) -> None:
        """After a step of so many offsets that could not be written."""
        if offsets:
            self.offsets = max(1, min(self.offsets, offsets) // _SHRINKAGE)


def reset_step(
    done: TableStep | None, begun: TableStep | None, *, topic_id: str, mode: str
) -> TableStep | None:
    """The step that empties the tables after the topic was recreated; None if the topic is the same."""
    known = [each for each in (done, begun) if each is not None]
    if all(each.topic_id in ("", topic_id) for each in known):
        return None
    return emptying_step(*known, topic_id=topic_id, mode=mode if done is None else done.mode)


def emptying_step(*known: TableStep, topic_id: str, mode: str) -> TableStep:
    """A step without offsets after the last ones of both tables: Delta skips a `txn` version that it has."""
    number = max(each.number for each in known) + 1
    return TableStep(number=number, topic_id=topic_id, mode=mode, start={}, end={})


def check_committed(step: TableStep, last: TableStep | None) -> None:
    """Raises KafkaDsError if the table ends before this step: Delta skips one without a word if it had its number.

    Where another driver took that step first, the next one goes on from there.
    """
    if last is None or last.number < step.number:
        found = "none" if last is None else last.number
        raise KafkaDsError(f"step {step.number} was not committed, the last one is {found}")


def lost_offsets(
    done: TableStep | None, starts: Mapping[int, int], ends: Mapping[int, int]
) -> Iterator[str]:
    """A line for each partition from which offsets are lost, or were replaced, after `done`.

    `starts` and `ends` are what the topic has: a step that was begun starts where `done` ends.
    """
    for partition, end in sorted({} if done is None else done.end.items()):
        start = starts.get(partition, end)
        if start > end:
            yield f"{partition}: offsets {end} to {start - 1} were deleted before the table had them"
        elif ends.get(partition, end) < end:
            yield (
                f"{partition}: ends at offset {ends[partition]}, but the table has offsets up to {end - 1}: records "
                f"that replace lost ones below offset {end} will not be in the table"
            )


def first_missing(
    start: Mapping[int, int],
    end: Mapping[int, int],
    missing: Mapping[int, Sequence[tuple[int, int]]],
) -> dict[int, tuple[int, int]]:
    """By partition the first range between these offsets that is `missing`, both ends inclusive."""
    found: dict[int, tuple[int, int]] = {}
    for partition, ranges in missing.items():
        low, high = start.get(partition, 0), end.get(partition, 0) - 1
        met = [(max(a, low), min(b, high)) for a, b in ranges if max(a, low) <= min(b, high)]
        if met:
            found[partition] = min(met)
    return found


def missing_error(found: Mapping[int, tuple[int, int]]) -> DataLoss:
    """The error of a table that waits for missing offsets."""
    places = ", ".join(f"{a} to {b} of partition {p}" for p, (a, b) in sorted(found.items()))
    return DataLoss(
        f"a RESTORE removed offsets {places} from the topic's table: add them back, or give them up "
        "(docs/how-to/repair-the-lake.md)"
    )


def next_step(
    done: TableStep | None,
    begun: TableStep | None,
    *,
    topic_id: str,
    mode: str,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    limit: int,
) -> TableStep | None:
    """The step after `done`, towards `ends`; if one was `begun`, it starts as that one, and does not go beyond it. None
    if nothing is left.

    `starts` are the log start offsets: records below them were deleted. A step has about `limit` offsets at most.
    """
    number = 1 if done is None else done.number + 1
    start: Mapping[int, int]
    if begun is not None and (begun.number, begun.topic_id) == (number, topic_id) and begun.end:
        start, ends = begun.start, {p: min(end, ends.get(p, 0)) for p, end in begun.end.items()}
    else:
        done_to = {} if done is None else done.end
        start = {p: max(done_to.get(p, 0), starts.get(p, 0)) for p in {*done_to, *ends}}
    behind = [p for p, end in ends.items() if end > start[p]]
    # Retention took all that was left: a step without offsets tells so who waits for the table, as `kafka-ds erase`.
    is_passed_over = done is not None and any(at > done.end.get(p, at) for p, at in start.items())
    if not behind and not is_passed_over:
        return None
    most = max(1, limit // max(len(behind), 1))
    end = {p: min(max(ends.get(p, 0), at), at + most) for p, at in start.items()}
    return TableStep(number=number, topic_id=topic_id, mode=mode, start=start, end=end)

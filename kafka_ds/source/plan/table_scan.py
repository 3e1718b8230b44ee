"""Pure: how a scan is split: which rows Spark itself reads from a table, and which come through the source.

The boundary is the plan's (`scan_plan`): what the pinned version of a table holds is cold, the rest is hot, and each
wanted offset is in one of the two. A condition is added only if a file holds rows that must be left out: without
conditions Spark need not read offsets, nor compute anything, to count.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.source.filters.intervals import ALL, HIGHEST, LOWEST, NONE, Intervals
from kafka_ds.source.filters.predicate import Predicate
from kafka_ds.source.plan.scan_plan import LostRange, PartitionView, missing_within
from kafka_ds.source.schema import MILLISECONDS_MAX
from kafka_ds.source.stream_offset import Position, StreamOffset

# A time of rows whose own is no date, as `schema.timestamps` has it.
UNDATED: Final = (
    f"CASE WHEN timestamp_ms BETWEEN -{MILLISECONDS_MAX} AND {MILLISECONDS_MAX} "
    "THEN timestamp_millis(timestamp_ms) END"
)


# What the pinned ranges say instead.
_PINNED: Final = (
    "subscribe",
    "subscribepattern",
    "assign",
    "startingoffsets",
    "endingoffsets",
    "startingoffsetsbytimestamp",
    "endingoffsetsbytimestamp",
    "startingtimestamp",
    "endingtimestamp",
    "startingoffsetsbytimestampstrategy",
    "asofleaderepoch",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion:
    """One version of a topic's table, as Spark is to read it.

    ``held`` is from the least to one above the greatest offset by partition, of those that have records;
    ``quarantined`` are the files (partition, name) whose rows are no records; ``undated`` says whether rows may have no
    timestamp.
    """

    uri: str
    version: int
    held: Mapping[int, tuple[int, int]]
    quarantined: tuple[tuple[int, str], ...] = ()
    undated: bool = False


def cold(view: PartitionView, predicate: Predicate) -> Intervals:
    """The wanted offsets that the pinned version of the table holds."""
    if view.lake is None:
        return NONE
    return _wanted(view, predicate).clip(view.lake.start, view.lake.end)


def hot(view: PartitionView, predicate: Predicate) -> Intervals:
    """The wanted offsets that it does not hold."""
    wanted = _wanted(view, predicate)
    lake = NONE if view.lake is None else Intervals.of((view.lake.start, view.lake.end))
    return wanted.minus(lake)


def lost(views: Sequence[PartitionView], predicate: Predicate) -> list[LostRange]:
    """The wanted offsets that a RESTORE removed from the tables."""
    return [
        LostRange(topic=view.topic, partition=view.partition, start=start, end=end)
        for view in views
        for start, end in missing_within(view, _wanted(view, predicate))
    ]


def _wanted(view: PartitionView, predicate: Predicate) -> Intervals:
    if not predicate.selects_partition(view.topic, view.partition):
        return NONE
    return predicate.offsets().clip(view.start, view.end)


def hot_reads(
    views: Sequence[PartitionView], predicate: Predicate
) -> list[Mapping[TopicPartition, tuple[int, int]]]:
    """The hot ranges, laid out so that each read has one range a partition, as the source's options can say it."""
    reads: list[dict[TopicPartition, tuple[int, int]]] = []
    for view in views:
        for number, span in enumerate(hot(view, predicate)):
            if number == len(reads):
                reads.append({})
            reads[number][view.topic_partition] = span
    return list(reads)


def as_offsets(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """As the options startingOffsets and endingOffsets spell them."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for (topic, partition), offset in sorted(offsets.items()):
        found[topic][str(partition)] = offset
    return dict(found)


def as_pinned(
    views: Sequence[PartitionView], ranges: Mapping[TopicPartition, tuple[int, int]]
) -> StreamOffset:
    """What must still hold when these ranges are read: the topic, and the leader epoch of their ends."""
    return StreamOffset(
        topic_ids={view.topic: view.topic_id for view in views},
        positions={
            view.topic_partition: Position(
                offset=ranges[view.topic_partition][1], epoch=view.leader_epoch
            )
            for view in views
        },
    )


def hot_options(
    given: Mapping[str, str],
    ranges: Mapping[TopicPartition, tuple[int, int]],
    held: StreamOffset,
) -> dict[str, str]:
    """The options by which the source reads these ranges, out of those of the scan."""
    assigned: dict[str, list[int]] = {}
    for topic, partition in sorted(ranges):
        assigned.setdefault(topic, []).append(partition)
    starts = as_offsets({tp: start for tp, (start, _) in ranges.items()})
    ends = as_offsets({tp: end for tp, (_, end) in ranges.items()})
    return {name: value for name, value in given.items() if name.lower() not in _PINNED} | {
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "pinnedTo": json.dumps(held.document()),
    }


def as_option(name: str, value: object) -> str:
    """As ``DataFrameReader.options`` has it, and several as the option spells them: by commas, or as JSON."""
    if name.lower() in ("columns", "subscribe") and isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, dict | list | tuple):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


# -- the table's part, as SQL -------------------------------------------------------------------


def conditions(
    views: Sequence[PartitionView],
    table: TableVersion,
    predicate: Predicate,
) -> list[str] | None:
    """The condition on the rows of one topic's table, AND joined; None if none of them is wanted.

    Those on times are `times`'.
    """
    ranges = {view.partition: cold(view, predicate) for view in views}
    held = table.held
    wanted = {n: span for n, span in ranges.items() if n in held and span.overlaps(*held[n])}
    if not wanted:
        return None
    whole = sorted(n for n, span in wanted.items() if span.covers(*held[n]))
    found: list[str] = []
    # Others' files may lie in partitions that hold no record, NULL's (-1) among them.
    if set(whole) != set(held) or any(n not in wanted for n, _ in table.quarantined):
        parts = [_in("partition", whole)] if whole else []
        parts += [
            f"(partition = {n} AND {within('offset', wanted[n])})"
            for n in sorted(set(wanted) - set(whole))
        ]
        found.append(" OR ".join(parts))
    found += [
        f"NOT (partition = {n} AND _metadata.file_name = {text(name)})"
        for n, name in table.quarantined
        if n in wanted
    ]
    if predicate.leader_epoch is not None:
        found.append(within("leader_epoch", predicate.leader_epoch))
    if predicate.keys is not None:
        keys = ", ".join(f"X'{key.hex()}'" for key in sorted(predicate.keys))
        found.append(f"key IN ({keys})" if keys else "false")
    return found


def times(predicate: Predicate, column: str) -> list[str]:
    """The condition on a row's time."""
    if predicate.timestamp is None:
        return []
    return [within(column, predicate.timestamp, "timestamp_micros({})")]


def column(name: str, topic: str, *, timestamp: str) -> str:
    """A column of the source out of those of the table; ``timestamp`` is what its time is made of."""
    made = {"topic": text(topic), "timestamp": timestamp, "timestamptype": "timestamp_type"}
    return f"{made.get(name.lower(), name)} AS `{name}`"


def within(column: str, wanted: Intervals, literal: str = "{}") -> str:
    """SQL for membership; a null is no member."""
    if wanted == ALL:
        return f"{column} IS NOT NULL"
    spans = [_between(column, start, end, literal) for start, end in wanted]
    return f"({' OR '.join(spans)})" if spans else "false"


def _between(column: str, start: int, end: int, literal: str) -> str:
    if end == start + 1:
        return f"{column} = {_number(start, literal)}"
    low = f"{column} >= {_number(start, literal)}" if start > LOWEST else ""
    high = f"{column} < {_number(end, literal)}" if end < HIGHEST else ""
    return f"({' AND '.join(filter(None, (low, high)))})"


def _number(value: int, literal: str) -> str:
    # The lowest number has no literal of its own: its sign is an operator.
    return literal.format(f"{value}L" if value > LOWEST else f"({LOWEST + 1}L - 1L)")


def _in(column: str, values: Iterable[int]) -> str:
    return f"{column} IN ({', '.join(map(str, values))})"


def text(value: str) -> str:
    """A text as a literal of Spark's SQL, whatever its settings for escapes."""
    return f"decode(unhex('{value.encode().hex()}'), 'UTF-8')" if _is_odd(value) else f"'{value}'"


def _is_odd(value: str) -> bool:
    return "'" in value or "\\" in value

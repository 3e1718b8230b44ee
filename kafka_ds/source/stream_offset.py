"""Pure: a stream's offsets, the size of a micro-batch, and what changed since the last one.

Beside each position an offset has topic id and leader epoch, so that a recreated topic or a truncated log is noticed
and not read on. Checkpoints hold offsets, so a version comes first and fields are only ever added. A position is an
offset, never a count of rows. For a source in Python Spark stores the end of a micro-batch, but not the beginning of a
stream: the first end therefore carries it, and a replayed first micro-batch is the planned one, whatever
`startingOffsets` would be by then. A checkpoint of Spark's own Kafka source is read, too: it has only offsets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, floor
from typing import Any, Final

from kafka_ds.errors import BadOffset
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import NO_UUID, same_topic, uuid_from_text, uuid_text

FORMAT: Final = 1
UNKNOWN_EPOCH: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The next offset of a partition, under the leader epoch that was the newest when it was pinned."""

    offset: int
    epoch: int = UNKNOWN_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """A position in every partition, and the id of every topic.

    `is_initial`: where a stream begins, as the options say it now. `began`: where it did begin; of the end of the
    micro-batch alone that began there.
    """

    topic_ids: Mapping[str, bytes] = field(hash=False)
    positions: Mapping[TopicPartition, Position] = field(hash=False)
    is_initial: bool = False
    began: StreamOffset | None = field(default=None, hash=False)

    def after(self, begin: StreamOffset) -> StreamOffset:
        """This offset as the end of what begins there."""
        return replace(self, began=replace(begin, is_initial=False) if begin.is_initial else None)

    def beginning(self, start: StreamOffset) -> StreamOffset:
        """Where a micro-batch begins that ends here: at `start`, unless that is what the options say by now."""
        return self.began if start.is_initial and self.began is not None else start

    def document(self) -> dict[str, Any]:
        """The offset as Spark stores it: text and whole numbers in dictionaries."""
        topics: dict[str, Any] = {}
        for (topic, partition), position in sorted(self.positions.items()):
            entry = topics.setdefault(
                topic, {"id": uuid_text(self.topic_ids[topic]), "partitions": {}}
            )
            entry["partitions"][str(partition)] = {
                "offset": position.offset,
                "epoch": position.epoch,
            }
        document: dict[str, Any] = {"version": FORMAT, "topics": topics}
        if self.is_initial:
            document["initial"] = True
        if self.began is not None:
            document["began"] = self.began.document()
        return document

    @staticmethod
    def parse(document: Mapping[str, Any]) -> StreamOffset:
        """The offset out of what ``document`` gave.

        Raises:
            BadOffset: another source's offset, or one of a newer format than is known here.
        """
        if _is_sparks(document):
            return _of_spark(document)
        if document.get("version") != FORMAT:
            raise BadOffset(
                f"the checkpoint holds an offset of format {document.get('version')!r}; "
                f"this kafka_ds reads format {FORMAT}"
            )
        ids: dict[str, bytes] = {}
        positions: dict[TopicPartition, Position] = {}
        try:
            for topic, entry in document["topics"].items():
                ids[topic] = uuid_from_text(entry["id"])
                for partition, position in entry["partitions"].items():
                    positions[TopicPartition(topic, int(partition))] = Position(
                        offset=int(position["offset"]), epoch=int(position["epoch"])
                    )
        except (AttributeError, KeyError, TypeError, ValueError) as problem:
            raise BadOffset(f"the checkpoint's offset cannot be read: {problem!r}") from None
        began = document.get("began")
        return StreamOffset(
            topic_ids=ids,
            positions=positions,
            is_initial=document.get("initial") is True,
            began=None if began is None else StreamOffset.parse(began),
        )


def _is_sparks(document: Mapping[str, Any]) -> bool:
    """Whether Spark's Kafka source wrote it: ``{"topic": {"0": 5}}``."""
    return bool(document) and all(
        isinstance(partitions, Mapping)
        and all(number.isdecimal() and type(n) is int for number, n in partitions.items())
        for partitions in document.values()
    )


def _of_spark(document: Mapping[str, Any]) -> StreamOffset:
    return StreamOffset(
        topic_ids=dict.fromkeys(document, NO_UUID),
        positions={
            TopicPartition(topic, int(number)): Position(offset=offset)
            for topic, partitions in document.items()
            for number, offset in partitions.items()
        },
    )


def waiting(
    start: StreamOffset, latest: StreamOffset, earliest: Mapping[TopicPartition, int]
) -> dict[TopicPartition, tuple[int, int]]:
    """What lies between the two, by partition: from the next offset to the end, or to itself where there is nothing.

    ``earliest`` is where partitions begin that ``start`` does not know, or knows of another topic of that name.
    """
    found: dict[TopicPartition, tuple[int, int]] = {}
    for tp, end in latest.positions.items():
        begun = start.positions[tp].offset if tp in start.positions else 0
        first = earliest.get(tp, begun)
        found[tp] = (first, max(first, end.offset))
    return found


def limited(
    start: StreamOffset, latest: StreamOffset, rows_max: int, earliest: Mapping[TopicPartition, int]
) -> StreamOffset:
    """As far towards ``latest`` as ``rows_max`` offsets go, in proportion to what each partition has waiting.

    A partition that has anything gets at least one, so that small ones do not starve; ``earliest`` as for `waiting`.
    """
    spans = waiting(start, latest, earliest)
    total = sum(end - first for first, end in spans.values())
    if total <= rows_max:
        return latest
    positions: dict[TopicPartition, Position] = {}
    for tp, end in latest.positions.items():
        first, last = spans[tp]
        share = rows_max * (last - first) / total
        step = ceil(share) if share < 1 else floor(share)
        positions[tp] = end if first == last else replace(end, offset=min(end.offset, first + step))
    return replace(latest, positions=positions)


def waiting_offsets(start: StreamOffset, latest: StreamOffset) -> int:
    """How many offsets lie between the two; a new partition counts from 0."""
    return sum(
        max(0, end.offset - (start.positions[tp].offset if tp in start.positions else 0))
        for tp, end in latest.positions.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchRange:
    """What a micro-batch reads, and the problems that it found."""

    ranges: Mapping[TopicPartition, tuple[int, int]] = field(hash=False)
    # Where the leader's log must still hold the epoch of the start: (epoch, offset) of each.
    fences: Mapping[TopicPartition, Position] = field(hash=False)
    problems: tuple[str, ...] = ()


def missing_topics(start: StreamOffset, end: StreamOffset) -> list[str]:
    """What ``start`` has and ``end`` does not, in words: whole topics by their names."""
    missing: dict[str, list[int]] = {}
    for topic, partition in sorted(set(start.positions) - set(end.positions)):
        missing.setdefault(topic, []).append(partition)
    there = {topic for topic, _ in end.positions}
    return [
        f"{', '.join(f'{TopicPartition(topic, partition)}' for partition in partitions)} are gone"
        if topic in there
        else f"topic {topic} is gone, or the options do not name it any more"
        for topic, partitions in missing.items()
    ]


def micro_batch_range(
    start: StreamOffset, end: StreamOffset, earliest: Mapping[TopicPartition, int]
) -> MicroBatchRange:
    """The ranges between two offsets. ``earliest`` has where new partitions begin."""
    ranges: dict[TopicPartition, tuple[int, int]] = {}
    fences: dict[TopicPartition, Position] = {}
    problems = list(missing_topics(start, end))
    for tp, until in sorted(end.positions.items()):
        begin = start.positions.get(tp)
        if begin is not None and not same_topic(start.topic_ids[tp[0]], end.topic_ids[tp[0]]):
            problems.append(f"topic {tp[0]} was deleted and created again")
            begin = None
        if begin is None:
            first = earliest.get(tp, 0)
            if first > 0:
                problems.append(f"new partition {tp} begins at {first} and not at 0")
            ranges[tp] = (first, max(first, until.offset))
        elif until.offset < begin.offset:
            problems.append(f"{tp} went back from {begin.offset} to {until.offset}")
        else:
            ranges[tp] = (begin.offset, until.offset)
            fences[tp] = begin
    return MicroBatchRange(ranges=ranges, fences=fences, problems=tuple(dict.fromkeys(problems)))


def offsets_behind_latest(source: Mapping[str, Any]) -> dict[str, float]:
    """How far a stream lags, in offsets, under the names of Spark's Kafka source.

    Spark's Python API has no place for a source's metrics, but reports ``endOffset`` and ``latestOffset``.

    Parameters
    ----------
    source
        One of ``sources`` in a query's progress, as ``json.loads(query.lastProgress.json)["sources"][0]`` gives it.

    Returns
    -------
    dict of str to float
        ``minOffsetsBehindLatest``, ``maxOffsetsBehindLatest`` and ``avgOffsetsBehindLatest`` over all partitions, and
        their sum as ``offsetsBehindLatest``; 0 where nothing is known yet.

    Examples
    --------
    >>> end = {"version": 1, "topics": {"t": {"id": "A" * 22, "partitions": {"0": {"offset": 3, "epoch": 0}}}}}
    >>> latest = {"version": 1, "topics": {"t": {"id": "A" * 22, "partitions": {"0": {"offset": 5, "epoch": 0}}}}}
    >>> offsets_behind_latest({"endOffset": end, "latestOffset": latest})["maxOffsetsBehindLatest"]
    2.0
    """
    lags = [0.0]
    if source.get("endOffset") and source.get("latestOffset"):
        end, latest = (
            StreamOffset.parse(json.loads(each) if isinstance(each, str) else each)
            for each in (source["endOffset"], source["latestOffset"])
        )
        lags = [
            float(max(0, until.offset - (end.positions[tp].offset if tp in end.positions else 0)))
            for tp, until in latest.positions.items()
        ] or lags
    return {
        "minOffsetsBehindLatest": min(lags),
        "maxOffsetsBehindLatest": max(lags),
        "avgOffsetsBehindLatest": sum(lags) / len(lags),
        "offsetsBehindLatest": sum(lags),
    }

"""Pure: where reading starts and ends according to the options, before any broker was asked.

The precedence is Spark's: one timestamp for all, then timestamps per partition, then offsets. -1 and -2 are Kafka's
words for latest and earliest. Every error names the option it came from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from kafka_ds.errors import OptionError
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import MAX_I64

# As Spark's Kafka source writes them in options; the messages, which have the same, take a planner 25 ms to import.
LATEST: Final = -1
EARLIEST: Final = -2


@dataclass(frozen=True, slots=True, kw_only=True)
class AtEarliestOrLatest:
    """The same for every partition: `LATEST` or `EARLIEST`."""

    option: str
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOffsets:
    """An offset for each partition; -1 and -2 as in Kafka."""

    option: str
    offsets: Mapping[TopicPartition, int] = field(hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTimestamp:
    """The first record that is not older than a time in milliseconds, one time for every partition."""

    option: str
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTimestamps:
    """The first record that is not older than a time in milliseconds, a time for each partition."""

    option: str
    timestamps_ms: Mapping[TopicPartition, int] = field(hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtLeaderEpoch:
    """Where the records of a leader epoch end: one epoch for every partition, or one for each."""

    option: str
    epoch: int = -1
    epochs: Mapping[TopicPartition, int] | None = field(default=None, hash=False)


OffsetLimit = AtEarliestOrLatest | AtOffsets | AtTimestamp | AtTimestamps | AtLeaderEpoch
AS_OF_LEADER_EPOCH: Final = "asOfLeaderEpoch"
_ENDS: Final = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")


def parse_limit(
    options: Mapping[str, str], side: Literal["starting", "ending"], default: int
) -> OffsetLimit:
    """The start or the end that the options ask for.

    Raises:
        OptionError: a value that is none of the forms of its option.
    """
    if side == "ending" and AS_OF_LEADER_EPOCH.lower() in options:
        return _leader_epoch(options)
    if f"{side}timestamp" in options:
        return _one_time(f"{side}Timestamp", options[f"{side}timestamp"])
    if f"{side}offsetsbytimestamp" in options:
        option = f"{side}OffsetsByTimestamp"
        found = parse_partition_numbers(option, options[f"{side}offsetsbytimestamp"])
        wrong = {tp: n for tp, n in found.items() if not 0 <= n <= MAX_I64}
        if wrong:
            raise OptionError(
                f"option '{option}' holds a time below 0, or beyond 64 bits: {names(wrong)}"
            )
        return AtTimestamps(option=option, timestamps_ms=found)
    option = f"{side}Offsets"
    if option.lower() not in options:
        return AtEarliestOrLatest(option=option, offset=default)
    text = options[option.lower()].strip()
    match text.lower():
        case "latest":
            return AtEarliestOrLatest(option=option, offset=LATEST)
        case "earliest":
            return AtEarliestOrLatest(option=option, offset=EARLIEST)
    found = parse_partition_numbers(option, text, or_words="earliest, latest or ")
    below = {tp: n for tp, n in found.items() if n < EARLIEST}
    if below:
        raise OptionError(f"option '{option}' holds an offset below {EARLIEST}: {names(below)}")
    return AtOffsets(option=option, offsets=found)


def _one_time(option: str, text: str) -> AtTimestamp:
    try:
        timestamp_ms = int(text.strip())
    except ValueError:
        timestamp_ms = -1
    # Brokers take negative times for words: -1 for the end, -2 for the beginning.
    if not 0 <= timestamp_ms <= MAX_I64:
        raise OptionError(
            f"option '{option}' is {text[:100]!r}; it is a time in milliseconds, not below 0"
        )
    return AtTimestamp(option=option, timestamp_ms=timestamp_ms)


def _leader_epoch(options: Mapping[str, str]) -> AtLeaderEpoch:
    option = AS_OF_LEADER_EPOCH
    for other in _ENDS:
        if other.lower() in options:
            raise OptionError(f"options '{option}' and '{other}' exclude each other: both are ends")
    text = options[option.lower()].strip()
    if text.isdecimal() and len(text) <= len(str(2**31)):
        return AtLeaderEpoch(option=option, epoch=int(text))
    if not text.startswith("{"):
        raise OptionError(
            f'option \'{option}\' is {text!r}; it is a leader epoch, or JSON such as {{"topic":{{"0":5}}}}'
        )
    found = parse_partition_numbers(option, text)
    negative = {tp: n for tp, n in found.items() if n < 0}
    if negative:
        raise OptionError(f"option '{option}' holds an epoch below 0: {names(negative)}")
    return AtLeaderEpoch(option=option, epochs=found)


def parse_partition_numbers(
    option: str, text: str, *, or_words: str = ""
) -> dict[TopicPartition, int]:
    """``{"orders": {"0": 23, "1": -2}}`` as numbers by topic and partition; `or_words` could have stood there."""
    shape = (
        f"option '{option}' is {text[:100]!r}; "
        f'it is {or_words}JSON such as {{"topic":{{"0":23,"1":-2}}}}'
    )
    try:
        document = json.loads(text)
    except ValueError:
        raise OptionError(shape) from None
    found: dict[TopicPartition, int] = {}
    if not isinstance(document, dict):
        raise OptionError(shape)
    for topic, partitions in document.items():
        if not isinstance(partitions, dict):
            raise OptionError(shape)
        for partition, number in partitions.items():
            whole = isinstance(number, int) and not isinstance(number, bool)
            if not partition.isdecimal() or not whole:
                raise OptionError(shape)
            found[TopicPartition(topic, int(partition))] = number
    return found


def check_batch(starting: OffsetLimit, ending: OffsetLimit) -> None:
    """Refuse what a batch cannot mean: a start at the end, an end at the start, a start beyond its end.

    Raises:
        OptionError: naming the option and the partition.
    """
    if isinstance(starting, AtEarliestOrLatest) and starting.offset == LATEST:
        raise OptionError("option 'startingOffsets' cannot be latest for a batch query")
    if isinstance(ending, AtEarliestOrLatest) and ending.offset == EARLIEST:
        raise OptionError("option 'endingOffsets' cannot be earliest for a batch query")
    if isinstance(starting, AtOffsets):
        _refuse(starting, LATEST, "latest")
    if isinstance(ending, AtOffsets):
        _refuse(ending, EARLIEST, "earliest")
    if isinstance(starting, AtOffsets) and isinstance(ending, AtOffsets):
        _compare(starting.option, starting.offsets, ending.option, ending.offsets)
    if isinstance(starting, AtTimestamps) and isinstance(ending, AtTimestamps):
        _compare(starting.option, starting.timestamps_ms, ending.option, ending.timestamps_ms)


def _refuse(limit: AtOffsets, offset: int, word: str) -> None:
    refused = {tp: n for tp, n in limit.offsets.items() if n == offset}
    if refused:
        raise OptionError(
            f"option '{limit.option}' cannot be {word} ({offset}) for a batch query: {names(refused)}"
        )


def _compare(
    left: str,
    starts: Mapping[TopicPartition, int],
    right: str,
    ends: Mapping[TopicPartition, int],
) -> None:
    if set(starts) != set(ends):
        raise OptionError(
            f"options '{left}' and '{right}' name different partitions: {names(starts)} and {names(ends)}"
        )
    behind = {tp: n for tp, n in starts.items() if n > ends[tp] >= 0}
    if behind:
        raise OptionError(f"option '{left}' lies beyond '{right}' in {names(behind)}")


def names(partitions: Mapping[TopicPartition, object] | set[TopicPartition]) -> str:
    """``orders-0, orders-1``, sorted."""
    return (
        ", ".join(str(TopicPartition(topic, partition)) for topic, partition in sorted(partitions))
        or "none"
    )

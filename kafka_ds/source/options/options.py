"""Pure: every option of the source in one value; the only place that knows their names, types and defaults.

- Names are case-insensitive, since Spark hands them over in lower case; errors spell them as the documentation does.
- An unknown option is an error: a misspelt one would silently read other rows.
- Spark's own options keep Spark's meaning and default, except that `isolation` is read_committed.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Literal, TypeVar

from kafka_ds.client.settings import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ClientSettings,
    parse_settings,
)
from kafka_ds.errors import BadOffset, OptionError
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import MAX_I64
from kafka_ds.source.filters.predicate import Predicate
from kafka_ds.source.filters.pushdown import microseconds
from kafka_ds.source.filters.where import parse_where
from kafka_ds.source.options.limits import (
    AS_OF_LEADER_EPOCH,
    EARLIEST,
    LATEST,
    AtTimestamp,
    AtTimestamps,
    OffsetLimit,
    check_batch,
    parse_limit,
)
from kafka_ds.source.schema import ColumnError, parse_columns
from kafka_ds.source.stream_offset import StreamOffset

__all__ = ["OPTIONS", "AsOf", "OptionError", "Options", "Subscription", "parse_options"]

# Every option as it is spelt, with what it does: errors and the documentation are made from this table.
OPTIONS: Final = {
    "subscribe": "topics, separated by commas",
    "subscribePattern": "a regular expression, found in any part of a topic's name (anchor it with ^ and $)",
    "assign": 'topic partitions as JSON: {"topicA":[0,1],"topicB":[2]}',
    "startingOffsets": 'earliest (batch), latest (stream), or JSON {"topic":{"0":23,"1":-2}}: -2 earliest, -1 latest',
    "endingOffsets": "latest, or JSON as for startingOffsets; batch only",
    "startingOffsetsByTimestamp": 'JSON {"topic":{"0":1700000000000}}: begin at the first record of this time or later',
    "endingOffsetsByTimestamp": "JSON as above: end before the first record of this time or later; batch only",
    "startingTimestamp": "one time in milliseconds for all partitions: begin at the first record of it or later",
    "endingTimestamp": "one time for all partitions: end before the first record of it or later; batch only",
    "startingOffsetsByTimestampStrategy": "error or latest: what to do if no record is as late as the time given",
    "failOnDataLoss": "true: missing rows are an error; false: they are counted in a warning and left out",
    "minPartitions": "about the least number of Spark partitions",
    "maxRecordsPerPartition": "the most offsets in one Spark partition",
    "maxOffsetsPerTrigger": "the most offsets in one micro-batch, over all partitions",
    "maxBytesPerTrigger": "about the most bytes in one micro-batch, as stored in files and logs; also `64m`, `1g`",
    "minOffsetsPerTrigger": "a micro-batch waits for so many new offsets, but no longer than maxTriggerDelay",
    "maxTriggerDelay": "how long minOffsetsPerTrigger may hold a micro-batch back",
    "includeHeaders": "true: add the column headers",
    "groupCommit": "a consumer group that gets each finished micro-batch's offsets, for tools that show lag",
    "groupIdPrefix": "accepted; the source joins no consumer group",
    "kafkaConsumer.pollTimeoutMs": "how long a task waits for a leader without a byte of progress, in ms",
    "fetchOffset.numRetries": "how often a request for offsets is retried",
    "fetchOffset.retryIntervalMs": "the pause between these retries, in ms",
    "lake": "where the tables are: a folder, a bucket or any fsspec address; without it the broker is asked (lake.uri)",
    "fsspec.*": "options of the file system behind an fsspec address, as fsspec names them (`fsspec.token`)",
    "tiers": "remote (only the table), local (only the brokers' logs) or both",
    "asOfVersion": "read what this version of the topic's table held, without the brokers' logs; batch only",
    "asOfTimestamp": "the same by time, in milliseconds or as '2013-01-01T00:00:00Z': the newest version at that time",
    "asOfLeaderEpoch": 'a leader epoch, or JSON {"topic":{"0":5}}: read the log as that leader left it; batch only',
    "pinnedTo": "set by `kafka_ds.scan()` itself: topic ids and leader epochs that must still hold",
    "columns": "the columns to read, separated by commas; leader_epoch is possible, too",
    "where": "a predicate on partition, offset, timestamp, leader_epoch, topic and key, pushed down in streams too",
    "isolation": "read_committed or read_uncommitted",
}  # fmt: skip
_SPELLINGS: Final = {name.lower(): name for name in OPTIONS}
_STREAM_ONLY: Final = (
    "groupCommit",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
)
_DURATION: Final = re.compile(r"(\d{1,19})\s*(us|ms|s|m|min|h|d)?")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
# Sizes as Spark spells them.
_SIZE: Final = re.compile(r"(\d{1,19})\s*(?:([kmgtp])b?|b)?")
# Before the options of the file system behind option `lake`.
_FSSPEC: Final = "fsspec."
_UNIT_POWERS: Final = {"k": 10, "m": 20, "g": 30, "t": 40, "p": 50}

Tiers = Literal["remote", "local", "both"]
_Word = TypeVar("_Word", bound=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Which topics, by name, by pattern, or partition by partition: exactly one of the three is given."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOf:
    """Which version of a topic's table: its number, or the newest one at a time."""

    option: str
    version: int | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a query."""

    client: ClientSettings
    subscription: Subscription
    starting: OffsetLimit
    ending: OffsetLimit
    no_match: Literal["error", "latest"] = "error"
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    group_commit: str | None = None
    include_headers: bool = False
    poll_timeout_ms: int = 120_000
    fetch_offset_retries: int = 3
    fetch_offset_retry_interval_ms: int = 1_000
    lake: str | None = None
    fsspec: str = ""
    """Options of the file system through which the lake is read, as JSON."""
    tiers: Tiers = "both"
    as_of: AsOf | None = None
    pinned_to: StreamOffset | None = None
    columns: tuple[str, ...] | None = None
    where: Predicate = field(default_factory=Predicate)
    # Options that were given but have no effect in this kind of query; a reader warns of them.
    ignored: tuple[str, ...] = ()


def parse_options(given: Mapping[str, str], *, stream: bool | None = None) -> Options:
    """The options of a batch or a stream, or (``None``) of a query whose kind is not known yet.

    Raises:
        OptionError: naming the option.
    """
    options = {name.lower(): value for name, value in given.items()}
    _refuse_unknown(given)
    if stream:
        _refuse_in_streams(options)
    starting = parse_limit(options, "starting", LATEST if stream else EARLIEST)
    ending = parse_limit(options, "ending", LATEST)
    if stream is False:
        check_batch(starting, ending)
    parsed = Options(
        client=_client(options),
        subscription=_subscription(options),
        starting=starting,
        ending=ending,
        no_match=_one_of(
            options, "startingOffsetsByTimestampStrategy", ("error", "latest"), "error"
        ),
        fail_on_data_loss=_boolean(options, "failOnDataLoss", default=True),
        min_partitions=_whole(options, "minPartitions", 1),
        max_records_per_partition=_whole(options, "maxRecordsPerPartition", 1),
        max_offsets_per_trigger=_whole(options, "maxOffsetsPerTrigger", 1),
        max_bytes_per_trigger=_size_bytes(options, "maxBytesPerTrigger"),
        min_offsets_per_trigger=_whole(options, "minOffsetsPerTrigger", 1),
        max_trigger_delay_ms=_duration_ms(options, "maxTriggerDelay", 900_000),
        group_commit=options.get("groupcommit", "").strip() or None,
        include_headers=_boolean(options, "includeHeaders", default=False),
        poll_timeout_ms=_whole(options, "kafkaConsumer.pollTimeoutMs", 1) or 120_000,
        lake=options.get("lake", "").strip() or None,
        fsspec=_fsspec(options),
        tiers=_one_of(
            options, "tiers", ("remote", "local", "both"), "remote" if _as_of(options) else "both"
        ),
        as_of=_as_of(options),
        pinned_to=_pinned_to(options),
        columns=_columns(options),
        where=_where(options),
        ignored=tuple(n for n in _STREAM_ONLY if stream is False and n.lower() in options),
    )
    return _with_retries(parsed, options)


def _with_retries(parsed: Options, options: Mapping[str, str]) -> Options:
    retries = _whole(options, "fetchOffset.numRetries", 0)
    interval = _whole(options, "fetchOffset.retryIntervalMs", 0)
    if parsed.as_of is not None and parsed.tiers != "remote":
        raise OptionError(
            f"option '{parsed.as_of.option}' is of the table alone: 'tiers' can only be remote"
        )
    least, most = parsed.min_offsets_per_trigger, parsed.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise OptionError(
            f"option 'minOffsetsPerTrigger' ({least}) is above 'maxOffsetsPerTrigger' ({most})"
        )
    if parsed.tiers == "remote" and not parsed.client.read_committed:
        raise OptionError(
            "option 'isolation' is read_uncommitted, which the table alone ('tiers' = remote) cannot serve"
        )
    for limit in (parsed.starting, parsed.ending):
        if isinstance(limit, AtTimestamp | AtTimestamps) and parsed.tiers == "remote":
            raise OptionError(
                f"option '{limit.option}' asks the brokers, which 'tiers' = remote does not"
            )
    return replace(
        parsed,
        fetch_offset_retries=3 if retries is None else retries,
        fetch_offset_retry_interval_ms=1_000 if interval is None else interval,
    )


def _refuse_unknown(options: Mapping[str, str]) -> None:
    for name in options:
        if name.lower() in _SPELLINGS or name.lower().startswith(("kafka.", _FSSPEC)):
            continue
        if name.lower() == "path":
            raise OptionError(
                "option 'path': load(path) is not supported, topics are named by option 'subscribe'"
            )
        if name.lower() == "topic":
            raise OptionError("option 'topic' is a write's: to read a topic, use 'subscribe'")
        if name.lower() == "provider":
            raise OptionError(
                "option 'provider' is Spark's for CREATE TABLE … USING kafka_ds, which it does not have for sources in "
                "Python: CREATE TEMPORARY VIEW … USING kafka_ds OPTIONS (…), or take the catalog of spark_conf.catalog"
            )
        close = difflib.get_close_matches(name.lower(), _SPELLINGS, 1)
        meant = _SPELLINGS[close[0]] if close else f"kafka.{name}" if "." in name else None
        hint = f"; did you mean '{meant}'?" if meant else ""
        raise OptionError(f"option '{name}' is unknown{hint}")


def _refuse_in_streams(options: Mapping[str, str]) -> None:
    for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
        if name.lower() in options:
            raise OptionError(f"option '{name}' is not valid in a stream: it has no end")
    for name in ("asOfVersion", "asOfTimestamp", AS_OF_LEADER_EPOCH, "pinnedTo"):
        if name.lower() in options:
            raise OptionError(
                f"option '{name}' is not valid in a stream: it reads on, and not back"
            )


def _fsspec(options: Mapping[str, str]) -> str:
    found = {n.removeprefix(_FSSPEC): v for n, v in options.items() if n.startswith(_FSSPEC)}
    return json.dumps(found) if found else ""


def _client(options: Mapping[str, str]) -> ClientSettings:
    settings = parse_settings(options)
    levels = (READ_COMMITTED, READ_UNCOMMITTED)
    wanted = _one_of(options, "isolation", levels, settings.isolation_level)
    if "kafka.isolation.level" in options and wanted != settings.isolation_level:
        raise OptionError(
            f"option 'isolation' is {wanted} and 'kafka.isolation.level' is {settings.isolation_level}"
        )
    return replace(settings, isolation_level=wanted)


def _subscription(options: Mapping[str, str]) -> Subscription:
    given = [n for n in ("subscribe", "subscribePattern", "assign") if n.lower() in options]
    if len(given) != 1:
        found = f"; given are {' and '.join(given)}" if given else ""
        raise OptionError(
            f"exactly one of the options 'subscribe', 'subscribePattern', 'assign' is needed{found}"
        )
    option, text = given[0], options[given[0].lower()].strip()
    match option:
        case "subscribe":
            topics = tuple(dict.fromkeys(t for t in map(str.strip, text.split(",")) if t))
            if not topics:
                raise OptionError(f"option 'subscribe' is {text!r}; it names no topic")
            return Subscription(topics=topics)
        case "subscribePattern":
            if re.search(r"\[(?:\\.|[^\]\\])*(?:&&|\[)", text):
                # An intersection, or a class in a class, in Java; Python would silently match other topics.
                raise OptionError(
                    f"option 'subscribePattern' is {text!r}: no && within [], and no ["
                )
            try:
                re.compile(text)
            except re.error as problem:
                raise OptionError(f"option 'subscribePattern' is {text!r}: {problem}") from None
            if not text:
                raise OptionError("option 'subscribePattern' is empty")
            return Subscription(pattern=text)
    return Subscription(assigned=_assigned(text))


def _assigned(text: str) -> frozenset[TopicPartition]:
    shape = f"option 'assign' is {text[:100]!r}; it is JSON such as {{\"topicA\":[0,1]}}"
    try:
        document = json.loads(text)
    except ValueError:
        raise OptionError(shape) from None
    found: set[TopicPartition] = set()
    if not isinstance(document, dict):
        raise OptionError(shape)
    for topic, partitions in document.items():
        if not isinstance(partitions, list) or not all(
            isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in partitions
        ):
            raise OptionError(shape)
        found.update(TopicPartition(topic, n) for n in partitions)
    if not found:
        raise OptionError(shape)
    return frozenset(found)


def _columns(options: Mapping[str, str]) -> tuple[str, ...] | None:
    if "columns" not in options:
        return None
    try:
        return parse_columns(options["columns"])
    except ColumnError as problem:
        raise OptionError(f"option 'columns': {problem}") from None


def _where(options: Mapping[str, str]) -> Predicate:
    return parse_where(options["where"]) if "where" in options else Predicate()


def _as_of(options: Mapping[str, str]) -> AsOf | None:
    version = _whole(options, "asOfVersion", 0)
    if "asoftimestamp" not in options:
        return None if version is None else AsOf(option="asOfVersion", version=version)
    if version is not None:
        raise OptionError("options 'asOfVersion' and 'asOfTimestamp' exclude each other")
    text = options["asoftimestamp"].strip()
    if re.fullmatch(r"\d{1,18}", text):
        return AsOf(option="asOfTimestamp", timestamp_ms=int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise OptionError(
            f"option 'asOfTimestamp' is {text!r}; it is a number of milliseconds, or a time with its zone "
            "such as 2013-01-01T00:00:00Z"
        )
    return AsOf(option="asOfTimestamp", timestamp_ms=microseconds(moment) // 1_000)


def _pinned_to(options: Mapping[str, str]) -> StreamOffset | None:
    if "pinnedto" not in options:
        return None
    try:
        return StreamOffset.parse(json.loads(options["pinnedto"]))
    except (BadOffset, ValueError) as problem:
        raise OptionError(f"option 'pinnedTo' is not of kafka_ds.scan(): {problem}") from None


def _one_of(
    options: Mapping[str, str], name: str, allowed: tuple[_Word, ...], default: _Word
) -> _Word:
    text = options.get(name.lower(), default).strip().lower()
    for word in allowed:
        if text == word:
            return word
    raise OptionError(f"option '{name}' is {text!r}; it is {' or '.join(allowed)}")


def _boolean(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise OptionError(f"option '{name}' is {text!r}; it is true or false")
    return text == "true"


def _whole(options: Mapping[str, str], name: str, low: int) -> int | None:
    if name.lower() not in options:
        return None
    text = options[name.lower()].strip()
    if not re.fullmatch(r"[+-]?\d{1,19}", text) or not low <= int(text) <= MAX_I64:
        raise OptionError(f"option '{name}' is {text!r}; it is a whole number of at least {low}")
    return int(text)


def _size_bytes(options: Mapping[str, str], name: str) -> int | None:
    if name.lower() not in options:
        return None
    text = options[name.lower()].strip().lower()
    match = _SIZE.fullmatch(text)
    size_bytes = int(match[1]) << _UNIT_POWERS.get(match[2], 0) if match is not None else 0
    if not 0 < size_bytes <= MAX_I64:
        raise OptionError(
            f"option '{name}' is {text!r}; it is a number of bytes above 0, or such as 64m or 1g"
        )
    return size_bytes


def _duration_ms(options: Mapping[str, str], name: str, default: int) -> int:
    if name.lower() not in options:
        return default
    text = options[name.lower()].strip().lower()
    match = _DURATION.fullmatch(text)
    if match is None:
        raise OptionError(f"option '{name}' is {text!r}; it is a time such as 15m, 30s or 500ms")
    number, unit = int(match[1]), match[2] or "ms"
    return number // 1_000 if unit == "us" else number * _UNIT_MS[unit]

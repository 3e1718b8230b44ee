"""Pure: every option of the sink in one value; the only place that knows their names and defaults.

Those of the source's options: names are case-insensitive, an unknown one is an error, and `kafka.*` settings are a
producer's. Options that Spark itself adds to a stream are accepted. An option without a meaning for this kind of write
(batch or stream) is an error, too.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kafka_ds.client.producer_settings import ProducerSettings, parse_producer_settings
from kafka_ds.errors import OptionError

__all__ = ["SINK_OPTIONS", "OptionError", "SinkOptions", "parse_sink_options"]

EXACTLY_ONCE: Final = "exactly_once"
AT_LEAST_ONCE: Final = "at_least_once"
DECISIONS_TOPIC: Final = "__kafka_ds_decisions"

# Every option as it is spelt, with what it does: errors and the documentation are made from this table.
SINK_OPTIONS: Final = {
    "topic": "the topic of all rows, whatever the column `topic` says",
    "deliveryGuarantee": (
        "exactly_once (only streams) or at_least_once (batches always, streams if asked)"
    ),
    "transactionalIdPrefix": "what the stream's transactional ids begin with; else made from `checkpointLocation`",
    "load": (
        "lake: make a new topic of the rows, whose files the tasks write to the lake themselves; only batches, with "
        "option 'topic'"
    ),
    "lake": "of a load: where the tables are; without it the broker is asked (lake.uri)",
    "partitions": "of a load: how many partitions the topic gets; without it num.partitions of the brokers",
    "replicationFactor": "of a load: how many replicas; without it default.replication.factor of the brokers",
    "topic.*": "of a load: settings of the topic, as topic.retention.ms",
    "decisionsTopic": "the topic with the commit records of exactly-once streams; created if it does not exist",
}
_SPELLINGS: Final = {name.lower(): name for name in SINK_OPTIONS}
# Spark hands these of a stream over with the others.
_SPARKS: Final = frozenset({"checkpointlocation", "queryname"})
# Options without effect in a write without transactions.
_OF_TRANSACTIONS: Final = (
    "transactionalIdPrefix",
    "decisionsTopic",
    "kafka.transaction.timeout.ms",
)
# An empty one is a mistake: a stream would look for its decisions in another place than before.
_NAMES: Final = ("topic", "transactionalIdPrefix", "decisionsTopic")
# A folder of this machine by its URI, which Hadoop takes for the path alone.
_LOCAL: Final = re.compile(r"(?i:file):(?://(?:localhost)?)?(/(?!/).*)")
PREFIX_CHARACTERS_MAX: Final = 200
_TOPIC: Final = "topic."
# What says nothing without a load.
LOAD_OPTIONS: Final = ("lake", "partitions", "replicationFactor", "topic.*")
BY_BROKER: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """The topic that a bulk load makes."""

    lake: str | None
    partitions: int
    replication_factor: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of a write. ``prefix`` is None without transactions, ``load`` unless the write is one."""

    producer: ProducerSettings
    topic: str | None = None
    prefix: str | None = None
    decisions_topic: str = DECISIONS_TOPIC
    load: LoadOptions | None = None


def parse_sink_options(given: Mapping[str, str], *, stream: bool) -> SinkOptions:
    """The options of a batch's or a stream's write.

    Raises:
        OptionError: naming the option.
    """
    options = {name.lower(): value for name, value in given.items()}
    _refuse_unknown(options, stream=stream)
    producer = parse_producer_settings(options)
    topic = options.get("topic")
    for name in _NAMES:
        if not options.get(name.lower(), name).strip():
            raise OptionError(f"option '{name}' is empty")
    in_transactions = _in_transactions(options, stream=stream)
    for name in () if in_transactions else _OF_TRANSACTIONS:
        if name.lower() in options:
            kind = "an at_least_once stream" if stream else "a batch"
            raise OptionError(
                f"option '{name}' applies only to exactly-once streams; this is {kind}"
            )
    return SinkOptions(
        producer=producer,
        topic=topic and topic.strip(),
        prefix=_prefix(options, producer) if in_transactions else None,
        decisions_topic=options.get("decisionstopic", DECISIONS_TOPIC).strip(),
        load=_load(options, stream=stream),
    )


def _load(options: Mapping[str, str], *, stream: bool) -> LoadOptions | None:
    if "load" not in options:
        for name in options:
            spelling = "topic.*" if name.startswith(_TOPIC) else _SPELLINGS.get(name)
            if spelling in LOAD_OPTIONS:
                raise OptionError(f"option '{spelling}' applies only to loads (option 'load')")
        return None
    wanted = options["load"].strip().lower()
    if wanted != "lake":
        raise OptionError(f"option 'load' is {options['load']!r}; it is lake")
    if stream:
        raise OptionError("option 'load' is for batches: a load makes a new topic")
    if "topic" not in options:
        raise OptionError("option 'topic' must be given, for a load makes one topic")
    return LoadOptions(
        lake=options.get("lake", "").strip() or None,
        partitions=_count(options, "partitions"),
        replication_factor=_count(options, "replicationFactor"),
        settings={
            name.removeprefix(_TOPIC): value
            for name, value in options.items()
            if name.startswith(_TOPIC)
        },
    )


def _count(options: Mapping[str, str], name: str) -> int:
    """A number of at least 1; -1, by which the brokers decide, where it is not given."""
    text = options.get(name.lower(), "").strip()
    if not text:
        return BY_BROKER
    if not text.isdecimal() or not int(text):
        raise OptionError(f"option '{name}' is {text!r}; it is a whole number of at least 1")
    return int(text)


def _refuse_unknown(options: Mapping[str, str], *, stream: bool) -> None:
    known = _SPELLINGS.keys() | (_SPARKS if stream else frozenset())
    for name in options:
        if name == "path":
            raise OptionError(
                "option 'path': save(path) and start(path) are not supported, name the topic by option 'topic' or by "
                "a column of that name"
            )
        if name not in known and not name.startswith(("kafka.", _TOPIC)):
            close = difflib.get_close_matches(name, _SPELLINGS, 1)
            hint = f"; did you mean '{_SPELLINGS[close[0]]}'?" if close else ""
            raise OptionError(f"option '{name}' is not an option of a write{hint}")


def _in_transactions(options: Mapping[str, str], *, stream: bool) -> bool:
    default = EXACTLY_ONCE if stream else AT_LEAST_ONCE
    wanted = options.get("deliveryguarantee", default).strip().lower()
    if wanted not in (EXACTLY_ONCE, AT_LEAST_ONCE):
        raise OptionError(
            f"option 'deliveryGuarantee' is {wanted!r}; it is {EXACTLY_ONCE} or {AT_LEAST_ONCE}"
        )
    if wanted == EXACTLY_ONCE and not stream:
        raise OptionError(
            "option 'deliveryGuarantee' is exactly_once, which is for streams: a batch that is run again is another one"
        )
    return wanted == EXACTLY_ONCE


def _prefix(options: Mapping[str, str], producer: ProducerSettings) -> str:
    if not producer.enable_idempotence:
        raise OptionError(
            "option 'deliveryGuarantee' is exactly_once, which the settings 'kafka.enable.idempotence', 'kafka.acks', "
            "'kafka.retries' and 'kafka.max.in.flight.requests.per.connection' exclude"
        )
    given = options.get("transactionalidprefix", "").strip()
    checkpoint = _one_spelling(options.get("checkpointlocation", "").strip())
    if len(given) > PREFIX_CHARACTERS_MAX:
        raise OptionError(
            f"option 'transactionalIdPrefix' has more than {PREFIX_CHARACTERS_MAX} characters"
        )
    if not given and not checkpoint:
        raise OptionError(
            "option 'transactionalIdPrefix' must be given, or the checkpoint as 'checkpointLocation', of which it "
            "is made: transactions are found by it after a restart ('deliveryGuarantee' = at_least_once has none)"
        )
    return given or f"kafka-ds-{hashlib.sha256(checkpoint.encode()).hexdigest()[:16]}"


def _one_spelling(address: str) -> str:
    """What Hadoop takes for one folder, spelt one way: ``file:///a/`` is ``/a``; a plain path stays what it is."""
    local = _LOCAL.fullmatch(address)
    scheme, separator, path = (local[1] if local else address).rpartition("://")
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    root = "/" if path.startswith("/") else ""
    return f"{scheme}{separator}{root}{'/'.join(parts)}"

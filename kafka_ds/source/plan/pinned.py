"""Shell: what a batch reads, pinned to one moment: options in, one view per partition out.

`offset_reader` fixes the order of the questions. If the brokers are unavailable and the option `lake` names the tables,
that is no error: what the tables hold is read, and a warning reports up to which offsets. A host name that does not
exist is an error all the same, since it is a mistake. Starts and ends by time, and offsets beyond the tables, need the
brokers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kafka_ds.errors import BrokerTimeout, BrokerUnreachable, NoSuchHost, OptionError
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.source.filters.predicate import Predicate
from kafka_ds.source.options.limits import (
    AtEarliestOrLatest,
    AtLeaderEpoch,
    AtOffsets,
    OffsetLimit,
    names,
)
from kafka_ds.source.options.options import Options
from kafka_ds.source.plan.leader_epochs import Bounds, held_to
from kafka_ds.source.plan.offset_reader import OffsetReader
from kafka_ds.source.plan.scan_plan import PartitionView
from kafka_ds.source.plan.table_scan import TableVersion

LOGGER = logging.getLogger("kafka_ds.source")


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedViews:
    """Views of all partitions that the predicate selects, and the versions of their topics' tables."""

    views: tuple[PartitionView, ...]
    tables: dict[str, TableVersion]
    ends: dict[TopicPartition, int]
    """Where each partition ends for the tiers that are read."""
    hot_offset_bytes: float = 0.0
    """About how large the brokers' records are at most, on average of a partition; 0 if that was not asked."""


def pin(
    options: Options, predicate: Predicate, *, with_tables: bool = False, with_sizes: bool = False
) -> PinnedViews:
    """Look up topics, tables and offsets once; `with_tables`, for Spark to read them, also the sizes of records.

    Raises:
        OptionError: an option, topic or partition that is wrong. ClientError: brokers are unavailable, and the tables
            cannot replace them.
    """
    try:
        return _pin(options, predicate, with_tables=with_tables, with_sizes=with_sizes)
    except (BrokerUnreachable, BrokerTimeout) as problem:
        if not _can_do_without(options):
            raise
        if isinstance(problem, NoSuchHost):
            # With a wrong name fewer rows would come each time, and running brokers would never be asked.
            hint = "is a name in it wrong? To read the lake alone, set option 'tiers' to remote (tiers=remote)"
            raise NoSuchHost(f"{problem}; {hint}") from problem
        away = problem
    try:
        alone = replace(options, tiers="remote")
        found = _pin(
            alone, predicate, with_tables=with_tables, with_sizes=with_sizes, stands_in=True
        )
    except OptionError as problem:
        raise OptionError(f"{problem}; the brokers are away: {away}") from away
    LOGGER.warning("the brokers are away, so the lake alone is read, %s: %s", _upto(found), away)
    return found


def _pin(
    options: Options,
    predicate: Predicate,
    *,
    with_tables: bool,
    with_sizes: bool,
    stands_in: bool = False,
) -> PinnedViews:
    reader = OffsetReader(options)
    try:
        topics = reader.topics()
        reader.open_tables(topics)
        bounds = _held(reader, reader.bounds(topics, reader.partitions(topics)))
        starts = reader.resolve(options.starting, bounds, starting=True)
        ends = reader.resolve(options.ending, bounds, starting=False)
        if stands_in:
            _refuse_beyond(options.starting, starts, bounds)
            _refuse_beyond(options.ending, ends, bounds)
        behind = {tp for tp, start in starts.items() if start > ends[tp]}
        # An epoch that ended before the log begins has left nothing; that is no contradiction.
        asked_wrongly = options.tiers == "both" or stands_in
        if behind and asked_wrongly and not isinstance(options.ending, AtLeaderEpoch):
            raise OptionError(
                f"option '{options.starting.option}' lies beyond the end in {names(behind)}"
            )
        ranges = {tp: (start, ends[tp]) for tp, start in starts.items()}
        sizes = reader.stored(ranges, bounds).values() if with_sizes else ()
        return PinnedViews(
            views=tuple(reader.views(ranges, bounds, predicate)),
            tables=reader.table_versions() if with_tables else {},
            ends={tp: each.end for tp, each in bounds.items()},
            hot_offset_bytes=max((each.hot_offset_bytes for each in sizes), default=0.0),
        )
    finally:
        reader.close()


def _held(
    reader: OffsetReader, bounds: dict[TopicPartition, Bounds]
) -> dict[TopicPartition, Bounds]:
    """What a scan was pinned to, if it was: other rows at the same offsets are not its own."""
    options = reader.options
    if options.pinned_to is None:
        return bounds
    held = held_to(reader.brokers, bounds, options.pinned_to)
    for problem in held.problems.values():
        if options.fail_on_data_loss:
            raise problem
        LOGGER.warning("kafka_ds: %s; its rows are left out", problem)
    return held.bounds


def _refuse_beyond(
    limit: OffsetLimit,
    wanted: Mapping[TopicPartition, int],
    bounds: Mapping[TopicPartition, Bounds],
) -> None:
    """Rows of named offsets would be silently missing."""
    beyond = {tp for tp, offset in wanted.items() if offset > bounds[tp].end}
    if beyond:
        raise OptionError(
            f"option '{limit.option}' lies beyond what the lake holds of {names(beyond)}"
        )


def _can_do_without(options: Options) -> bool:
    """Whether the tables alone are enough."""
    limits = (options.starting, options.ending)
    return (
        options.lake is not None
        and options.tiers == "both"
        and options.client.read_committed
        and all(
            isinstance(limit, AtEarliestOrLatest | AtOffsets | AtLeaderEpoch) for limit in limits
        )
    )


def _upto(found: PinnedViews) -> str:
    ends = (f"{tp} up to offset {end}" for tp, end in sorted(found.ends.items()))
    return ", ".join(ends) or "which holds none of these topics"

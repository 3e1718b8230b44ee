"""Shell: asks brokers and lake what a plan needs to know, in one round trip for each kind of question.

The tables are read first, one version of each, which the plan names; then the ends are pinned (high watermark, or last
stable offset for read_committed), and the starts last. So rows that retention removes meanwhile are below a known
start, and tiering that goes on meanwhile only means that some rows which are cold by now are read as hot ones. A
mistake in the options is an error that names the option.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from kafka_ds.client.cluster import OffsetAnswer, Topic
from kafka_ds.client.samples import Samples
from kafka_ds.errors import (
    KafkaDsError,
    OptionError,
    TopicGone,
    UnsupportedByBroker,
)
from kafka_ds.process.settings import suggestion
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.protocol.messages.offsets import EARLIEST, EARLIEST_LOCAL, LATEST
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import same_topic
from kafka_ds.source.filters.intervals import ALL, HIGHEST, LOWEST
from kafka_ds.source.filters.predicate import Predicate
from kafka_ds.source.options.limits import (
    AtEarliestOrLatest,
    AtLeaderEpoch,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    OffsetLimit,
    names,
)
from kafka_ds.source.options.options import Options
from kafka_ds.source.plan.brokers import Brokers
from kafka_ds.source.plan.lake_tables import LakeTables
from kafka_ds.source.plan.leader_epochs import UNKNOWN_EPOCH, Bounds, ends_as_of, offsets_of_epochs
from kafka_ds.source.plan.scan_plan import LakeView, PartitionView
from kafka_ds.source.plan.sizes import OffsetSizes
from kafka_ds.source.plan.table_scan import TableVersion

LOGGER = logging.getLogger("kafka_ds.source")
LAKE_SETTING = "lake.uri"
T = TypeVar("T")


class OffsetReader:
    """The state of topics, offsets and tables; kept by a stream, read again for each batch query."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.brokers = Brokers(options)
        self._tables: LakeTables | None = None
        self._lakes: dict[str, Mapping[int, LakeView]] = {}
        self._samples = Samples()

    def close(self) -> None:
        """End the connections."""
        self.brokers.close()

    @property
    def offline(self) -> bool:
        """Whether only the table is read: then no broker need be up."""
        return self.options.tiers == "remote" and self.options.lake is not None

    # -- topics ---------------------------------------------------------------------------------

    def topics(self) -> dict[str, Topic]:
        """The topics subscribed to, as the brokers (or, without them, the tables) know them.

        Raises:
            OptionError: a topic that was named and does not exist, unless ``failOnDataLoss`` is false.
        """
        subscription = self.options.subscription
        wanted: set[str] | None = set(subscription.topics) | {t for t, _ in subscription.assigned}
        if subscription.pattern is not None:
            wanted = None
        topics = self.tables().topics if self.offline else self.brokers.cluster.topics
        found = self.brokers.retried(lambda: topics(wanted))
        if subscription.pattern is not None:
            pattern = re.compile(subscription.pattern)
            return {
                name: topic
                for name, topic in sorted(found.items())
                if pattern.search(name) and not topic.internal
            }
        missing = sorted((wanted or set()) - set(found))
        if missing:
            option = "assign" if subscription.assigned else "subscribe"
            # Brokers may have them all the same: the address is wrong, or none of them is tiered.
            lacking = f"have no tables in {self.options.lake}" if self.offline else "do not exist"
            near = self._near(missing) if self.options.fail_on_data_loss else ""
            self._missing(f"option '{option}' names topics that {lacking}: {missing}{near}")
        return found

    def _near(self, missing: Collection[str]) -> str:
        """What the error about missing topics ends with; a failure of this look-up must not hide that error."""
        with suppress(KafkaDsError, KafkaError, OSError):
            cluster = None if self.offline else self.brokers.cluster
            names = set(self.tables().names() if cluster is None else cluster.topics(None))
            return suggestion(next(iter(missing)), names.difference(missing))
        return ""

    def _missing(self, problem: str) -> None:
        """A named topic or partition does not exist: with ``failOnDataLoss`` = false its rows count as lost."""
        if self.options.fail_on_data_loss:
            raise OptionError(problem)
        LOGGER.warning("kafka_ds: %s; reading without them ('failOnDataLoss' is false)", problem)

    def partitions(self, topics: Mapping[str, Topic]) -> list[TopicPartition]:
        """The topic partitions subscribed to, sorted."""
        there = {TopicPartition(t, n) for t, topic in topics.items() for n in topic.partitions}
        assigned = self.options.subscription.assigned
        if not assigned:
            return sorted(there)
        missing = {tp for tp in assigned - there if tp.topic in topics}
        if missing:
            self._missing(f"option 'assign' names partitions that do not exist: {names(missing)}")
        return sorted(assigned & there)

    # -- offsets --------------------------------------------------------------------------------

    def bounds(
        self, topics: Mapping[str, Topic], partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Bounds]:
        """Where each partition begins and (pinned) ends for the tiers that are read.

        Topics deleted since they were looked up are left out.
        """
        if self.options.tiers == "remote":
            return self._bounds_of_tables(topics, partitions)
        committed = self.options.client.read_committed
        first = EARLIEST_LOCAL if self.options.tiers == "local" else EARLIEST
        left = set(partitions)

        def read() -> tuple[dict[TopicPartition, OffsetAnswer], dict[TopicPartition, OffsetAnswer]]:
            while True:
                try:
                    found = (
                        self.brokers.cluster.offsets(
                            dict.fromkeys(left, LATEST), read_committed=committed
                        ),
                        self.brokers.cluster.offsets(
                            dict.fromkeys(left, first), read_committed=False
                        ),
                    )
                    self._check_ids(topics, {topic for topic, _ in left})
                    return found
                except TopicGone:
                    # Also with no retries at all: a deleted topic is no failure of the brokers.
                    still = left & self._still_there(topics)
                    if still == left:
                        raise
                    left.intersection_update(still)

        ends, starts = self.brokers.retried(read)
        return {
            tp: Bounds(
                topic_id=topics[tp.topic].topic_id,
                start=starts[tp].offset,
                end=max(ends[tp].offset, starts[tp].offset),
                leader_epoch=_epoch_of_end(
                    ends[tp], topics[tp.topic].partitions[tp.partition].epoch
                ),
            )
            for tp in sorted(left)
        }

    def _check_ids(self, topics: Mapping[str, Topic], wanted: Collection[str]) -> None:
        """Offsets are asked for by name: if the client had to look again, they may be another topic's.

        Raises:
            TopicGone: they are.
        """
        for name in wanted:
            old, new = topics[name], self.brokers.cluster.topic(name)
            if _differ(old, new):
                raise TopicGone(f"topic {name}: {old.topic_id.hex()} is now {new.topic_id.hex()}")

    def _still_there(self, topics: Mapping[str, Topic]) -> set[TopicPartition]:
        """Which partitions subscribed to these topics still have: another topic of the same name is none of them."""
        found = self.topics()
        recreated = {
            name for name in topics.keys() & found.keys() if _differ(topics[name], found[name])
        }
        if recreated and self.options.subscription.pattern is None:
            self._missing(f"topics were deleted and created again just now: {sorted(recreated)}")
        return {tp for tp in self.partitions(found) if tp[0] not in recreated}

    def open_tables(self, topics: Mapping[str, Topic]) -> None:
        """Pin one version of each topic's table; to be called before the bounds are asked for."""
        self._lakes = {}
        # Aborted records are not in the table: uncommitted reads go through the brokers.
        committed = self.options.client.read_committed
        if self.options.tiers != "local" and committed and self.tables().present:
            as_of = self.options.as_of
            if as_of is not None and as_of.version is not None and len(topics) > 1:
                raise OptionError(
                    f"option '{as_of.option}' is a version of one table; topics are {sorted(topics)}"
                )
            self._lakes = {
                name: self.tables().views(name, topic.topic_id) for name, topic in topics.items()
            }

    def table_versions(self) -> dict[str, TableVersion]:
        """The versions that `open_tables` pinned, by topic."""
        return {name: self.tables().version(name) for name, views in self._lakes.items() if views}

    def ends_of_tables(self) -> dict[TopicPartition, int]:
        """Up to where the tables that `open_tables` pinned hold each partition."""
        return {tp: view.end for tp, view in self.lakes.items()}

    @property
    def lakes(self) -> dict[TopicPartition, LakeView]:
        """What the tables that `open_tables` pinned hold of each partition."""
        return {
            TopicPartition(name, n): view
            for name, views in self._lakes.items()
            for n, view in views.items()
        }

    def _bounds_of_tables(
        self, topics: Mapping[str, Topic], partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Bounds]:
        found: dict[TopicPartition, Bounds] = {}
        for name, topic in topics.items():
            views = self._lakes.get(name, {})
            for tp in (each for each in partitions if each.topic == name):
                view = views.get(tp.partition, LakeView(version=-1, start=0, end=0))
                found[tp] = Bounds(
                    topic_id=topic.topic_id,
                    start=view.start,
                    end=view.end,
                    leader_epoch=UNKNOWN_EPOCH,
                )
        return found

    def stored(
        self,
        spans: Mapping[TopicPartition, tuple[int, int]],
        bounds: Mapping[TopicPartition, Bounds],
    ) -> dict[TopicPartition, OffsetSizes]:
        """Where these offsets lie, by the tables that `open_tables` pinned, and how large hot ones are, about."""
        lakes = self.lakes
        places: dict[TopicPartition, int] = {}
        for tp, (start, end) in spans.items():
            cold_end = lakes[tp].end if tp in lakes else 0
            # Lost offsets are read from nowhere, and without brokers there is no log.
            if self.options.tiers == "remote" or tp not in bounds:
                continue
            place = max(start, cold_end, bounds[tp].start)
            if place < end:
                places[tp] = place
        known = (
            self.brokers.retried(lambda: self._samples.look(self.brokers.cluster, places))
            if places
            else {}
        )
        return {
            tp: OffsetSizes(
                lake=lakes.get(tp), hot_offset_bytes=known[tp].offset_bytes, hole=known[tp].hole
            )
            if tp in known
            else OffsetSizes(lake=lakes.get(tp))
            for tp in spans
        }

    # -- limits ---------------------------------------------------------------------------------

    def resolve(
        self, limit: OffsetLimit, bounds: Mapping[TopicPartition, Bounds], *, starting: bool
    ) -> dict[TopicPartition, int]:
        """The limit as an offset for each partition.

        Raises:
            OptionError: other partitions than there are, or no record at or after the time.
        """
        if isinstance(limit, AtTimestamp | AtTimestamps):
            return self._resolve_times(limit, bounds, starting=starting)
        if isinstance(limit, AtLeaderEpoch):
            return ends_as_of(self.brokers, limit, bounds, self.lakes, fsspec=self.options.fsspec)
        if isinstance(limit, AtEarliestOrLatest):
            wanted: Mapping[TopicPartition, int] = dict.fromkeys(bounds, limit.offset)
        else:
            wanted = self._named(limit, limit.offsets, bounds)
        special = {LATEST: "end", EARLIEST: "start"}
        return {
            tp: getattr(bounds[tp], special[offset]) if offset in special else offset
            for tp, offset in wanted.items()
        }

    def _named(
        self,
        limit: AtOffsets | AtTimestamps,
        given: Mapping[TopicPartition, int],
        bounds: Mapping[TopicPartition, Bounds],
    ) -> dict[TopicPartition, int]:
        """A limit for each partition; lost partitions may have one, too."""
        if not self.options.fail_on_data_loss:
            topics = {name for name, _ in bounds}
            pinned = self.options.pinned_to is not None
            given = {
                tp: number
                for tp, number in given.items()
                if tp in bounds or (tp[0] in topics and not pinned)
            }
        _same_partitions(limit, given, bounds)
        return dict(given)

    def _resolve_times(
        self,
        limit: AtTimestamp | AtTimestamps,
        bounds: Mapping[TopicPartition, Bounds],
        *,
        starting: bool,
    ) -> dict[TopicPartition, int]:
        if isinstance(limit, AtTimestamps):
            times = self._named(limit, limit.timestamps_ms, bounds)
        else:
            times = dict.fromkeys(bounds, limit.timestamp_ms)
        found = self.brokers.offsets(times, committed=self.options.client.read_committed)
        young = {tp: times[tp] for tp, offset in found.items() if offset < 0}
        if young and starting and self.options.no_match == "error":
            raise OptionError(
                f"option '{limit.option}': no record at or after the requested timestamp in {names(young)}; "
                "option 'startingOffsetsByTimestampStrategy' = latest would begin at their ends"
            )
        return {
            tp: bounds[tp].end if offset < 0 else min(offset, bounds[tp].end)
            for tp, offset in found.items()
        }

    # -- views for a plan -----------------------------------------------------------------------

    def views(
        self,
        ranges: Mapping[TopicPartition, tuple[int, int]],
        bounds: Mapping[TopicPartition, Bounds],
        predicate: Predicate,
    ) -> list[PartitionView]:
        """Everything that the plan of these ranges needs, for the partitions that the predicate selects."""
        chosen = {
            tp: span
            for tp, span in ranges.items()
            if span[0] < span[1] and predicate.selects_partition(*tp)
        }
        found: list[PartitionView] = []
        for tp in sorted(chosen):
            lake = self._lakes.get(tp[0], {}).get(tp[1])
            found.append(self._view(tp, chosen[tp], bounds[tp], lake))
        return self._narrowed(found, predicate)

    def _view(
        self, tp: TopicPartition, span: tuple[int, int], bounds: Bounds, lake: LakeView | None
    ) -> PartitionView:
        brokers = self.options.tiers != "remote"
        if lake is not None:
            # Rows below the log's start may linger in the table until their file goes as a whole.
            start = max(lake.start, bounds.start) if brokers else lake.start
            lake = replace(lake, start=start) if start < lake.end else None
        start, end = span
        if self.options.tiers != "both":
            # With one tier chosen, offsets of the other are not lost.
            start, end = max(start, bounds.start), min(end, bounds.end)
        return PartitionView(
            topic=tp[0],
            partition=tp[1],
            topic_id=bounds.topic_id,
            start=start,
            end=end,
            log_start=bounds.start if brokers else 0,
            log_end=bounds.end if brokers else 0,
            leader_epoch=bounds.leader_epoch,
            lake=lake,
            reads_table=tp[0] in self._lakes,
            epoch_max=bounds.leader_epoch if self.options.pinned_to is not None else None,
        )

    def _narrowed(self, views: list[PartitionView], predicate: Predicate) -> list[PartitionView]:
        """With what the brokers know about times and epochs, where rows would come from them."""
        if self.options.tiers == "remote":
            return views
        hot = [view for view in views if view.lake is None or view.lake.end < view.end]
        keys = [view.topic_partition for view in hot]
        floors: dict[TopicPartition, int] = {}
        if predicate.timestamp is not None and predicate.timestamp and hot:
            # The first record that is young enough: no earlier one can be, whatever comes after it.
            first_ms = -(-predicate.timestamp.start // 1_000)
            if predicate.timestamp.start > LOWEST and first_ms >= 0:
                answers = self.brokers.offsets(dict.fromkeys(keys, first_ms), committed=False)
                floors = {tp: HIGHEST if at < 0 else at for tp, at in answers.items()}
        epochs = offsets_of_epochs(self.brokers, hot, predicate.leader_epoch)
        return [
            replace(
                view,
                floor=floors.get(view.topic_partition, 0),
                epochs=epochs.get(view.topic_partition, ALL),
            )
            for view in views
        ]

    # -- tables ---------------------------------------------------------------------------------

    def tables(self) -> LakeTables:
        """The lake's tables; without a lake, an empty set of them.

        Raises:
            OptionError: a lake was named, or needed, and is not there.
        """
        if self._tables is None:
            self._tables = self._find_tables()
        return self._tables

    def _find_tables(self) -> LakeTables:
        if self.options.lake is not None:
            tables = LakeTables(self.options.lake, self.options.as_of, fsspec=self.options.fsspec)
            if not tables.present:
                raise OptionError(f"option 'lake': there is no folder {self.options.lake}")
            return tables
        try:
            uri = self.brokers.cluster.broker_setting(LAKE_SETTING)
        except (UnsupportedByBroker, KafkaError) as problem:
            LOGGER.warning("the brokers do not say whether there is a lake: %s", problem)
            uri = None
        tables = LakeTables(uri, self.options.as_of, fsspec=self.options.fsspec)
        if uri is not None and not tables.present:
            LOGGER.warning(
                "the brokers' lake %s cannot be seen from here: all is read through them", uri
            )
        if self.options.tiers == "remote" and not tables.present:
            as_of = self.options.as_of
            meant = f"'{as_of.option}' is of the table" if as_of else "'tiers' is remote"
            raise OptionError(
                f"option {meant}, but no lake is known; name its folder with option 'lake'"
            )
        return tables


def _differ(old: Topic, new: Topic) -> bool:
    """Whether a topic was deleted and created again, by the brokers' topic ids (KIP-516)."""
    return not same_topic(old.topic_id, new.topic_id)


def _epoch_of_end(answer: OffsetAnswer, known: int) -> int:
    """The leader epoch of a reported end: the metadata may be older than the leader that reported it."""
    return answer.leader_epoch if answer.leader_epoch >= 0 else known


def _same_partitions(
    limit: AtOffsets | AtTimestamps,
    given: Mapping[TopicPartition, int],
    there: Collection[TopicPartition],
) -> None:
    if set(given) != set(there):
        raise OptionError(
            f"option '{limit.option}' must name every partition, with -1 for latest and -2 for earliest "
            f"offsets; named are {names(given)}, there are {names(set(there))}"
        )

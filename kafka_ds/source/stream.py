"""Shell: the stream reader: offsets for each micro-batch in Spark's driver-side worker, rows on the executors.

`read` is stateless and the reader is pickled for the executors: connections live in an `OffsetReader`, which is left
out of the pickle. An end is pinned when it is named (high watermark or last stable offset): as often as Spark replays
the batch, it reads the same rows. Spark's `ReadAllAvailable` overrides the options' limits. A batch without rows of the
tables that is planned right after its end was named asks nothing again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from kafka_ds.client.admin import Admin
from kafka_ds.client.cluster import Cluster, Topic
from kafka_ds.errors import DataLoss, KafkaDsError, OptionError
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import same_topic
from kafka_ds.source.batch import read_config, slots_for
from kafka_ds.source.options.options import Options
from kafka_ds.source.plan.input_partitions import ScanTaskGroup, task_groups
from kafka_ds.source.plan.leader_epochs import Bounds
from kafka_ds.source.plan.offset_reader import OffsetReader
from kafka_ds.source.plan.scan_plan import LostRange, plan_scan
from kafka_ds.source.plan.sizes import limited_by_bytes
from kafka_ds.source.read.partition_reader import LOGGER, ReadConfig, read_tasks, report_loss
from kafka_ds.source.read_limits import (
    HAS_LIMITS,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from kafka_ds.source.stream_offset import (
    Position,
    StreamOffset,
    limited,
    micro_batch_range,
    missing_topics,
    waiting,
    waiting_offsets,
)
from kafka_ds.spark_process import acknowledge

# How long a commit for option groupCommit may take, and how soon it is tried again if it was refused.
GROUP_COMMIT_MS: Final = 3_000
GROUP_COMMIT_PAUSE_S: Final = 30.0

if TYPE_CHECKING:
    import pyarrow as pa


def check_limits(options: Options, *, has_limits: bool = HAS_LIMITS) -> None:
    """Refuse limits of micro-batches where Spark does not say where one begins.

    Raises:
        OptionError: naming the option.
    """
    limits = {
        "maxOffsetsPerTrigger": options.max_offsets_per_trigger,
        "maxBytesPerTrigger": options.max_bytes_per_trigger,
        "minOffsetsPerTrigger": options.min_offsets_per_trigger,
    }
    for name, limit in limits.items():
        if limit is not None and not has_limits:
            raise OptionError(f"option '{name}' needs PySpark 4.2 or newer")


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what is appended, micro-batch by micro-batch, beginning where the options say."""

    def __init__(
        self,
        options: Options,
        schema: pa.Schema,
        *,
        slots: int | None = None,
    ) -> None:
        self._options = options
        self.slots = slots_for(options, slots)
        self._schema = schema
        self._reader = OffsetReader(options)
        self._topics: Mapping[str, Topic] = {}
        self._bounds: dict[TopicPartition, Bounds] = {}
        self._initial: dict[str, Any] | None = None
        # Why the stream has no beginning: a mistake in the options.
        self._unclear: OptionError | None = None
        self._latest: StreamOffset | None = None
        self._target: StreamOffset | None = None
        self._available_now = False
        # Whether the tables were opened since, or right before, the brokers were looked at last.
        self._opened = False
        # The last named end, with the state it was named by: usually planned next.
        self._named: dict[str, Any] | None = None
        # The end that option groupCommit committed last, and from when on it retries after a refusal.
        self._committed: dict[str, Any] | None = None
        self._commits_again = 0.0
        self._of_group: Cluster | None = None
        # None before the first micro-batch, which waits for nothing.
        self._last_trigger: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options, "schema": self._schema}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        # In a task: Spark sends the task's input only after the reader was acknowledged.
        acknowledge()
        self.__init__(state["options"], state["schema"])  # type: ignore[misc]

    # -- offsets --------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Where a stream without a checkpoint begins.

        Spark asks before it asks for the first end, and again to plan what lies between: records come meanwhile.
        """
        if self._initial is None:
            self._initial = self._begin().document()
        return self._initial

    def _begin(self) -> StreamOffset:
        # With AvailableNow the end is pinned first: what comes after it is not between this stream's two ends.
        ends = self._target if self._target is not None else self._look()
        try:
            starts = self._reader.resolve(self._options.starting, self._bounds, starting=True)
        except OptionError as problem:
            # A replayed first micro-batch has its own beginning: partitions may have been added since.
            self._unclear, starts = problem, {}
        positions = {
            tp: Position(offset=starts[tp], epoch=ends.positions[tp].epoch) for tp in starts
        }
        return StreamOffset(topic_ids=ends.topic_ids, positions=positions, is_initial=True)

    def _known(self, begin: StreamOffset) -> StreamOffset:
        if begin.is_initial and self._unclear is not None:
            raise self._unclear
        return begin

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Where the next micro-batch ends; ``start`` itself when there is nothing to do, or too little.

        PySpark 4.1 gives neither: a micro-batch begins where the last one ended, as far as this process knows, and has
        no limit.
        """
        begin = start or self._named or self._initial
        # Spark asks after the micro-batch that ended there is done.
        done = start or self._named
        if done is not None and not StreamOffset.parse(done).is_initial:
            self._commit_for_group(done)
        end = (
            # A query that continues from its checkpoint: only Spark knows where that is.
            self._look().document()
            if begin is None
            else self._end_of_next(begin, limit or ReadAllAvailable())
        )
        self._named = None if self._available_now else end
        return end

    def _end_of_next(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = self._known(StreamOffset.parse(start))
        if self._available_now:
            if self._target is None:
                self._target = self._look()
            latest = self._target
        else:
            latest = self._look()
        # Spark stores this end. If it lacked topics the options would have to be corrected, and the checkpoint, too.
        self._refuse(missing_topics(begin, latest))
        self._latest = latest
        if isinstance(limit, ReadAllAvailable):
            return self._next(begin, latest)
        least = (
            limit.min_rows
            if isinstance(limit, ReadMinRows)
            else self._options.min_offsets_per_trigger
        )
        if least is not None and not self._available_now and self._held_back(begin, latest, least):
            return start
        most = (
            limit.max_rows
            if isinstance(limit, ReadMaxRows)
            else self._options.max_offsets_per_trigger
        )
        if most is not None:
            latest = limited(begin, latest, most, self._earliest(begin, latest))
        bytes_max = (
            limit.max_bytes
            if isinstance(limit, ReadMaxBytes)
            else self._options.max_bytes_per_trigger
        )
        if bytes_max is not None:
            latest = self._within_bytes(begin, latest, bytes_max)
        return self._next(begin, latest)

    def _within_bytes(
        self, begin: StreamOffset, latest: StreamOffset, bytes_max: int
    ) -> StreamOffset:
        earliest = self._earliest(begin, latest)
        spans = waiting(begin, latest, earliest)
        if all(start == end for start, end in spans.values()):
            return latest
        self._open_tables()
        stored = self._reader.stored(spans, self._bounds)
        return limited_by_bytes(begin, latest, bytes_max, earliest, stored)

    def _next(self, begin: StreamOffset, latest: StreamOffset) -> dict[str, Any]:
        """``latest``, unless it differs from ``begin`` by epochs alone: that is no reason for a micro-batch.

        Spark writes a first micro-batch down in any case, so the first end bears its beginning, also of an empty one.
        """
        moved = (
            begin.topic_ids.keys() != latest.topic_ids.keys()
            or any(not same_topic(n, latest.topic_ids[t]) for t, n in begin.topic_ids.items())
        ) or {tp: p.offset for tp, p in begin.positions.items()} != {
            tp: p.offset for tp, p in latest.positions.items()
        }
        if not moved and not begin.is_initial:
            return begin.document()  # Spark compares the text, so the beginning stays in it.
        return (latest if moved else replace(begin, is_initial=False)).after(begin).document()

    def _held_back(self, begin: StreamOffset, latest: StreamOffset, least: int) -> bool:
        """Whether there is too little for a micro-batch, and ``maxTriggerDelay`` has not passed."""
        now = time.monotonic()
        delay_ms = self._options.max_trigger_delay_ms
        late = self._last_trigger is None or (now - self._last_trigger) * 1_000 >= delay_ms
        if not late and waiting_offsets(begin, latest) < least:
            return True
        self._last_trigger = now
        return False

    def getDefaultReadLimit(self) -> ReadLimit:
        """A limit of the options; several at once are applied by ``latestOffset``."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The end of everything, for the progress report's lag."""
        return None if self._latest is None else self._latest.document()

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on nothing that comes later is read."""
        self._available_now = True
        self._target = self._look()

    def _look(self, *, tables: bool = False) -> StreamOffset:
        """The end of every partition subscribed to, pinned."""
        topics = self._topics = self._reader.topics()
        self._opened = False
        # Without brokers only the tables have an end.
        if tables or self._options.tiers == "remote":
            self._open_tables()
        self._bounds = self._reader.bounds(topics, self._reader.partitions(topics))
        return StreamOffset(
            topic_ids={name: topic.topic_id for name, topic in topics.items()},
            positions={
                tp: Position(offset=bounds.end, epoch=bounds.leader_epoch)
                for tp, bounds in self._bounds.items()
            },
        )

    def _open_tables(self) -> None:
        if not self._opened:
            self._reader.open_tables(self._topics)
            self._opened = True

    def _earliest(self, start: StreamOffset, end: StreamOffset) -> dict[TopicPartition, int]:
        """Where the partitions begin that ``start`` lacks."""
        return {
            tp: self._bounds[tp].start
            for tp in end.positions
            if tp in self._bounds
            and (
                tp not in start.positions
                or not same_topic(start.topic_ids[tp[0]], end.topic_ids[tp[0]])
            )
        }

    # -- micro-batches --------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of one micro-batch."""
        return [InputPartition(group) for group in self._task_groups(start, end)]

    def _task_groups(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[ScanTaskGroup]:
        until = StreamOffset.parse(end)
        begin = self._known(until.beginning(StreamOffset.parse(start)))
        if begin.positions == until.positions and begin.topic_ids == until.topic_ids:
            return []
        if end != self._named or self._meets_tables(begin):
            self._look(tables=True)
        planned = micro_batch_range(begin, until, self._earliest(begin, until))
        strange = self._strange(until)
        ranges = {tp: span for tp, span in planned.ranges.items() if tp not in strange}
        fences = {tp: begun for tp, begun in planned.fences.items() if tp not in strange}
        problems = list(
            dict.fromkeys((*planned.problems, *strange.values(), *self._diverged(fences, until)))
        )
        self._refuse(problems)
        for problem in problems:
            LOGGER.warning(
                "kafka_ds: the micro-batch lacks rows ('failOnDataLoss' is false): %s", problem
            )
        left_out = [
            LostRange(topic=tp[0], partition=tp[1], start=start, end=end)
            for tp, (start, end) in planned.ranges.items()
            if tp in strange and start < end
        ]
        options = self._options
        views = self._reader.views(ranges, self._bounds, options.where)
        plan = plan_scan(
            views,
            options.where,
            min_partitions=options.min_partitions,
            max_records_per_partition=options.max_records_per_partition,
        )
        report_loss([*left_out, *plan.lost], fail=options.fail_on_data_loss)
        return task_groups(plan, self.slots)

    def _refuse(self, problems: Sequence[str]) -> None:
        if problems and self._options.fail_on_data_loss:
            raise DataLoss(
                f"{'; '.join(problems)}. Some rows may be lost; option 'failOnDataLoss' = false goes on"
            )

    def _meets_tables(self, begin: StreamOffset) -> bool:
        """Whether tables hold rows behind the beginning: leaders that are asked afterwards have to confirm those."""
        self._open_tables()
        ends = self._reader.ends_of_tables()
        return any(
            tp in self._bounds and (tp not in begin.positions or begin.positions[tp].offset < end)
            for tp, end in ends.items()
        )

    def _strange(self, until: StreamOffset) -> dict[TopicPartition, str]:
        """Partitions that were deleted, or belong to another topic of the same name by now.

        A batch that was planned before a restart is read again as it was planned: rows of the later topic are not its
        own, and would come once more with the batch that goes over to that topic.
        """
        found: dict[TopicPartition, str] = {}
        for tp in until.positions:
            bounds = self._bounds.get(tp)
            if bounds is None:
                found[tp] = f"{tp} is gone"
            elif not same_topic(bounds.topic_id, until.topic_ids[tp.topic]):
                found[tp] = f"topic {tp.topic} was deleted and created again"
        return found

    def _diverged(
        self, fences: Mapping[TopicPartition, Position], until: StreamOffset
    ) -> list[str]:
        """Partitions whose log was truncated below what the stream has read or pinned (an unclean election).

        The stream's position is checked separately if its epoch differs from the end's: a log that was truncated, and
        has grown beyond the old position since, reports its end under the new epoch, which is whole.
        """
        ends = {tp: until.positions[tp] for tp in fences}
        starts = {tp: begun for tp, begun in fences.items() if begun.epoch != ends[tp].epoch}
        return [*self._cut_below(ends), *self._cut_below(starts)]

    def _cut_below(self, positions: Mapping[TopicPartition, Position]) -> list[str]:
        """Which of these positions lie beyond where their leader epochs end now."""
        asked = {
            tp: position.epoch
            for tp, position in positions.items()
            if tp in self._bounds and 0 <= position.epoch < self._bounds[tp].leader_epoch
        }
        if not asked:
            return []
        ends = self._reader.brokers.cluster.epoch_ends(asked)
        return [
            f"{tp}: the records of leader epoch {asked[tp]} now end at {end.end_offset}, below "
            f"{positions[tp].offset}"
            for tp, end in ends.items()
            if 0 <= end.end_offset < positions[tp].offset
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of some tasks, as Arrow batches."""
        return read_tasks(partition.value, self._config())

    def _config(self) -> ReadConfig:
        return read_config(self._options, self._schema, self._options.where)

    def commit(self, end: dict[str, Any]) -> None:
        """A micro-batch that ended there is done; for the last one Spark calls this when there is a next."""
        self._commit_for_group(end)

    def _commit_for_group(self, end: dict[str, Any]) -> None:
        """Commit to the group of option groupCommit, for lag tools; the stream's position is only in Spark's
        checkpoint.

        A refusal does not stop or delay the stream: it is retried some time later.
        """
        group, now = self._options.group_commit, time.monotonic()
        if group is None or end == self._committed or now < self._commits_again:
            return
        positions = StreamOffset.parse(end).positions
        offsets = {partition: each.offset for partition, each in positions.items()}
        if self._of_group is None:
            client = replace(self._options.client, default_api_timeout_ms=GROUP_COMMIT_MS)
            self._of_group = Cluster(client)
        try:
            Admin(self._of_group).commit_offsets(group, offsets)
        except KafkaDsError as problem:
            self._commits_again = now + GROUP_COMMIT_PAUSE_S
            LOGGER.warning("option 'groupCommit': offsets are not committed: %s", problem)
        else:
            self._committed = end

    def stop(self) -> None:
        """End the connections."""
        self._reader.close()
        if self._of_group is not None:
            self._of_group.close()


class RefusedStream(DataSourceStreamReader):
    """The reader of a stream whose options are wrong: raises `problem`, whatever Spark asks for.

    PySpark loses what `streamReader` raises: it stops the reader that it did not get, and the user's last line is about
    a local variable.
    """

    def __init__(self, problem: OptionError) -> None:
        self._problem = problem

    def _refuse(self) -> NoReturn:
        raise self._problem.with_traceback(None)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Raise."""
        self._refuse()

    def initialOffset(self) -> dict[str, Any]:
        """Raise."""
        self._refuse()

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Raise."""
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raise."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Raise."""
        self._refuse()

"""Shell: maintains the typed tables of all topics with `lake.table.value.format`, step by step.

A step reads committed records from the table's end up to an end offset that was fetched before, and is one commit of
the table. If a step fails, it is logged and retried; other topics are not affected.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.storagelevel import StorageLevel

from kafka_ds.client.admin import Admin
from kafka_ds.client.cluster import Cluster
from kafka_ds.client.settings import parse_settings
from kafka_ds.delta.store.store import Store
from kafka_ds.delta.store.uri import open_store
from kafka_ds.errors import DataLoss, KafkaDsError, OptionError
from kafka_ds.process.amounts import counted
from kafka_ds.protocol.messages.offsets import EARLIEST, LATEST
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.topic.names import ERRORS
from kafka_ds.topic.typed_columns import OF_CURRENT, OWN, declared_columns
from kafka_ds.topic.typed_steps import TableStep
from spark_conf.pipelines import decoder, history, registry_decoder
from spark_conf.pipelines.avro import AvroReader
from spark_conf.pipelines.decoder import REASON, TOMBSTONE, DecodedRows
from spark_conf.pipelines.deleted_topics import DeletedTopics
from spark_conf.pipelines.deletions import Deletions
from spark_conf.pipelines.failure_log import FailureLog
from spark_conf.pipelines.history import CompactedHistory, HistoryPolicy, policy_of
from spark_conf.pipelines.kinds import ObjectOf, declared_kind
from spark_conf.pipelines.partitions import PARTITION_COLUMNS, with_partitions
from spark_conf.pipelines.progress import (
    StepLimit,
    check_committed,
    first_missing,
    lost_offsets,
    missing_error,
    next_step,
    reset_step,
)
from spark_conf.pipelines.protobuf import ProtobufReader
from spark_conf.pipelines.registry import SchemaRegistry, registry_of
from spark_conf.pipelines.schema_columns import with_fields_of
from spark_conf.pipelines.schema_evolution import kind_at, with_declared
from spark_conf.pipelines.schema_names import UNEXPECTED, ExpectedNames, SchemaReader
from spark_conf.pipelines.typed_table import (
    APPEND,
    CURRENT,
    VACUUM_MS,
    TypedTable,
    newest_by_key,
    with_newer,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOGGER = logging.getLogger("kafka_ds.pipelines")
VALUE_FORMAT: Final = "lake.table.value.format"
KEY_FORMAT: Final = "lake.table.key.format"
CLUSTER_COLUMNS: Final = "lake.table.cluster.columns"
COLUMNS: Final = "lake.table.columns"
MODE: Final = "lake.table.mode"
ENVELOPE: Final = "lake.table.envelope"
RETENTION: Final = "lake.table.retention.enable"
SETTINGS: Final = (
    VALUE_FORMAT,
    KEY_FORMAT,
    MODE,
    PARTITION_COLUMNS,
    CLUSTER_COLUMNS,
    COLUMNS,
    RETENTION,
    ENVELOPE,
    *history.SETTINGS,
)
NONE: Final = "none"
BYTES: Final = t.BinaryType()
# The offsets of one step at most.
OFFSETS_PER_STEP: Final = 1_000_000
# How old the settings of topics may be in a round, in seconds: their brokers would be asked for all of them each time.
SETTINGS_S: Final = 3.0
# How long a table that has all records is not looked at, in seconds, unless records come: others may have changed it.
SETTLED_S: Final = 60.0
# A step of so many is logged when it begins, too: it may take a minute.
OFFSETS_ANNOUNCED: Final = 100_000


class SparkEnded(RuntimeError):
    """The session's JVM or SparkContext has ended, so no table can be updated any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A topic with a typed table, and the settings of the table."""

    topic: str
    topic_id: str
    partitions: tuple[int, ...]
    value_format: str
    key_format: str
    mode: str
    envelope: str
    partition_columns: tuple[str, ...]
    cluster_columns: tuple[str, ...]
    columns: tuple[str, ...]
    """Paths of JSON fields with the types of their columns."""
    expires: bool
    """Whether the topic's retention applies to the table."""
    history: HistoryPolicy | None
    """When overtaken rows leave the topic's own table; None if they stay."""


class Pipelines:
    """All pipelines of a cluster and its lake; `options` are the data source's (`kafka.…`).

    A registry without a URL is the one that the brokers name.
    """

    def __init__(
        self,
        spark: SparkSession,
        options: Mapping[str, str],
        lake: str,
        registry: SchemaRegistry | None = None,
    ) -> None:
        self._spark = spark
        self._registry = registry if registry is not None else SchemaRegistry()
        # Whether the brokers say where it is.
        self._asks_for_registry = not self._registry
        self._options = dict(options)
        self._lake = absolute(lake)
        self._store: Store = open_store(lake)
        self._deletions: dict[str, Deletions] = {}
        self._deleted = DeletedTopics(spark, self._store, self._lake)
        self._announced: list[str] | None = None
        # The topics of which a step was written, and those of which one was in the last round.
        self._written: set[str] = set()
        self._busy: set[str] = set()
        self._limits: defaultdict[str, StepLimit] = defaultdict(StepLimit)
        # The end offsets that a table has, and since when that is known: meanwhile the store is not asked again.
        self._settled: dict[str, tuple[Pipeline, Mapping[int, int], float]] = {}
        # The topic ids and settings that the brokers told last, and when.
        self._told: tuple[dict[str, str], dict[str, dict[str, str | None]], float] | None = None
        self._histories: dict[str, CompactedHistory] = {}
        # The offsets that a table waits for, by topic and partition, as of its last step.
        self._missing: dict[str, Mapping[int, tuple[int, int]]] = {}
        self._failures = FailureLog()
        # Topics and paths whose declared column is not as declared.
        self._ignored: set[tuple[str, str]] = set()
        # The partition columns that tables have.
        self._partitioned: dict[str, tuple[str, ...]] = {}
        # When this process looked last whether VACUUM is due.
        self._vacuumed: dict[str, float] = {}
        # By topic id and the formats of keys and values.
        self._expected: dict[tuple[str, str, str], ExpectedNames] = {}
        self._cluster = Cluster(parse_settings(self._options))
        self._admin = Admin(self._cluster)

    def close(self) -> None:
        """Close the connections to the brokers."""
        self._cluster.close()

    def wanted(self, settings_s: float = 0.0) -> list[Pipeline]:
        """The topics that are configured to have a typed table; their settings may be `settings_s` seconds old."""
        topics = {
            name: topic
            for name, topic in self._admin.describe_topics().items()
            if not topic.is_internal
        }
        found: list[Pipeline] = []
        ids = {name: topic.topic_id for name, topic in topics.items()}
        for name, settings in self._settings(ids, settings_s).items():
            value_format = settings.get(VALUE_FORMAT) or NONE
            if value_format == NONE:
                continue
            if name.endswith(ERRORS):
                LOGGER.warning(
                    "%s: no table is made of a topic whose name ends with %s", name, ERRORS
                )
                continue
            found.append(
                Pipeline(
                    topic=name,
                    topic_id=topics[name].topic_id,
                    partitions=tuple(each.partition for each in topics[name].partitions),
                    value_format=value_format,
                    key_format=settings.get(KEY_FORMAT) or NONE,
                    mode=settings.get(MODE) or APPEND,
                    envelope=settings.get(ENVELOPE) or NONE,
                    partition_columns=_listed(settings.get(PARTITION_COLUMNS)),
                    cluster_columns=_listed(settings.get(CLUSTER_COLUMNS)),
                    columns=_listed(settings.get(COLUMNS)),
                    expires=settings.get(RETENTION) != "false",
                    history=policy_of(settings) if settings.get(MODE) == CURRENT else None,
                )
            )
        return sorted(found, key=lambda each: each.topic)

    def _settings(
        self, ids: dict[str, str], age_s: float
    ) -> Mapping[str, Mapping[str, str | None]]:
        """The settings of these topics, asked for again if a topic is new or the last answer is too old."""
        now = time.monotonic()
        if self._told is None or self._told[0] != ids or now - self._told[2] >= age_s:
            self._told = ids, self._admin.topic_settings(list(ids), SETTINGS), now
            if self._asks_for_registry:
                self._registry.move_to(registry_of(self._cluster))
        return self._told[1]

    def run_once(
        self, is_ended: Callable[[], bool] = lambda: False, *, by_turns: bool = False
    ) -> list[str]:
        """Update every table to the present end of its topic; the topics for which that failed.

        `by_turns`: by one step each at most. What a step may have is shared by the topics that were behind in the last
        round, so that none of them waits long for the others. Raises SparkEnded.
        """
        failed: list[str] = []
        self._check_spark()
        if self._announced is None:
            LOGGER.info("reading the settings of all topics")
        wanted = self.wanted(SETTINGS_S if by_turns else 0.0)
        self._announce([each.topic for each in wanted])
        share = 1 / max(len(self._busy), 1) if by_turns else None
        self._busy = set()
        for pipeline in wanted:
            if is_ended():
                break
            if not self._is_done(
                f"the typed table of {pipeline.topic}",
                partial(self.keep, pipeline, is_ended, share),
            ):
                failed.append(pipeline.topic)
        for topic in () if is_ended() else self._deleted.tables([each.topic for each in wanted]):
            if not self._is_done(
                f"the typed table of {topic}", partial(self._deleted.empty, topic)
            ):
                failed.append(topic)
        return failed

    def _is_done(self, what: str, update: Callable[[], object]) -> bool:
        """Whether an update succeeded."""
        try:
            update()
        except Exception as problem:
            # Any class: PySpark has none for most errors from Java. Other topics are still updated.
            self._check_spark()
            self._failures.failed(what, problem)
            LOGGER.debug("%s cannot be updated", what, exc_info=problem)
            return False
        self._failures.succeeded(what)
        return True

    def _check_spark(self) -> None:
        """Raises SparkEnded if the JVM does not answer, or its SparkContext has stopped."""
        from py4j.protocol import Py4JError

        context = self._spark.sparkContext._jsc
        try:
            # A JVM that is killed, or short of memory, ends without a word to Python.
            has_ended = context is None or context.sc().isStopped()
        except (Py4JError, OSError) as problem:
            raise SparkEnded(f"its JVM does not answer: {problem}") from problem
        if has_ended:
            raise SparkEnded("its SparkContext has stopped")

    def _announce(self, topics: list[str]) -> None:
        """Log which topics have typed tables, when that changes: the first step may take a minute."""
        if topics != self._announced:
            self._announced = topics
            none = "no topic: none has the setting lake.table.value.format"
            LOGGER.info("maintaining typed tables of %s", ", ".join(topics) or none)

    def run(self, interval_s: float, is_ended: Callable[[], bool]) -> None:
        """Update the tables in rounds until `is_ended`; changed settings take effect in the next round.

        Raises SparkEnded.
        """
        while not is_ended():
            began = time.monotonic()
            try:
                self.run_once(is_ended, by_turns=True)
            except KafkaDsError as problem:
                LOGGER.error("this round of updates failed, and is tried again: %s", problem)
            left = began + interval_s - time.monotonic()
            while left > 0 and not is_ended():
                time.sleep(min(left, 0.2))
                left = began + interval_s - time.monotonic()

    def keep(
        self,
        pipeline: Pipeline,
        is_ended: Callable[[], bool] = lambda: False,
        share: float | None = None,
    ) -> None:
        """Update a table to the present end of its topic, or until `is_ended`.

        With `share` by one step at most, which has that part of the usual limits. Raises DataLoss at the end if the
        table has to wait for offsets that a RESTORE removed from the topic's table.
        """
        ends = self._offsets(pipeline, LATEST)
        was_settled = self._is_settled(pipeline, ends)
        is_behind, has_advanced = not was_settled, False
        while is_behind and not (is_ended() or (has_advanced and share)):
            is_behind = self._advance(pipeline, ends, share or 1.0)
            has_advanced |= is_behind
        if has_advanced:
            self._busy.add(pipeline.topic)
        if not (is_behind or was_settled):
            self._settled[pipeline.topic] = pipeline, ends, time.monotonic()
        if not is_ended() and pipeline.history is not None:
            self._expire(pipeline, pipeline.history, is_ended)
        if not is_ended():
            self._delete(pipeline)
        if not is_ended():
            self._vacuum(pipeline)
        if missing := self._missing.get(pipeline.topic):
            raise missing_error(missing)

    def _is_settled(self, pipeline: Pipeline, ends: Mapping[int, int]) -> bool:
        known = self._settled.get(pipeline.topic)
        if known is None or known[:2] != (pipeline, ends):
            return False
        return time.monotonic() - known[2] < SETTLED_S

    def _vacuum(self, pipeline: Pipeline) -> None:
        """Run VACUUM on the tables, if it is due, in each process and then once a day."""
        now = time.monotonic()
        looked = self._vacuumed.get(pipeline.topic)
        if looked is None or now - looked >= VACUUM_MS / 1e3:
            table = TypedTable(self._spark, self._store, self._lake, pipeline.topic)
            table.vacuum(pipeline.topic_id)
            self._vacuumed[pipeline.topic] = now

    def _expire(
        self, pipeline: Pipeline, policy: HistoryPolicy, is_ended: Callable[[], bool]
    ) -> None:
        """Delete from the topic's own table what newer records of their keys have overtaken."""
        topic = pipeline.topic
        if topic not in self._histories:
            self._histories[topic] = CompactedHistory(self._spark, self._store, self._lake, topic)
        overtaken = self._histories[topic]
        if not overtaken.is_due():
            return
        table = TypedTable(self._spark, self._store, self._lake, topic)
        done = table.last_step()
        if done is not None and (done.topic_id, done.mode) == (pipeline.topic_id, CURRENT):
            overtaken.expire(table, done, policy, is_ended)

    def _delete(self, pipeline: Pipeline) -> None:
        """Delete from the table what was deleted from the topic."""
        deletions = self._deletions_of(pipeline.topic)
        if not deletions.are_due():
            return
        table = TypedTable(self._spark, self._store, self._lake, pipeline.topic)
        done = table.last_step()
        if done is not None and done.topic_id in ("", pipeline.topic_id):
            starts = self._offsets(pipeline, EARLIEST) if pipeline.expires else {}
            deletions.carry_out(table, pipeline.topic_id, starts)

    def _deletions_of(self, topic: str) -> Deletions:
        if topic not in self._deletions:
            self._deletions[topic] = Deletions(self._spark, self._store, self._lake, topic)
        return self._deletions[topic]

    def _check_missing(self, pipeline: Pipeline, step: TableStep) -> None:
        """Raises DataLoss if a RESTORE removed some of these offsets from the topic's table."""
        missing = self._deletions_of(pipeline.topic).missing(pipeline.topic_id)
        if found := first_missing(step.start, step.end, missing):
            raise missing_error(found)

    def replay(self, topic: str) -> int:
        """Decode the records with rescued data again, with the present settings; how many fit now."""
        pipeline = self._of(topic)
        table = TypedTable(self._spark, self._store, self._lake, topic)
        done = table.last_step()
        rescued = table.rescued()
        extent = (f.min("_offset"), f.max("_offset"), f.min(f.unix_millis("_timestamp")))
        bounds = rescued.groupBy("_partition").agg(*extent).collect()
        if done is None or not bounds:
            return 0
        pipeline = replace(pipeline, mode=done.mode or pipeline.mode)
        start = {row[0]: row[1] for row in bounds}
        again = replace(done, start=start, end={row[0]: row[2] + 1 for row in bounds})
        records = self._records(pipeline, again)
        is_rescued = (f.col("partition") == f.col("_partition")) & (
            f.col("offset") == f.col("_offset")
        )
        wanted = records.join(f.broadcast(rescued), is_rescued, "left_semi")
        newest = None
        if pipeline.mode == CURRENT:
            newest = self._newest(pipeline, done, start, min(row[3] for row in bounds))
        with self._decoded(pipeline, table, wanted) as decoded:
            return table.rewrite(decoded, newest)

    def _newest(
        self, pipeline: Pipeline, done: TableStep, start: Mapping[int, int], since_ms: int
    ) -> DataFrame:
        """The newest record of each key, by its bytes, of those from the offsets `start`, or of that time, on."""
        of_time = self._offsets(pipeline, since_ms)
        first: dict[int, int] = {}
        for partition, end in done.end.items():
            # -1: there is no record of that time or later.
            at = of_time.get(partition, -1)
            first[partition] = min(end if at < 0 else at, start.get(partition, end), end)
        since = replace(done, start=first)
        self._check_missing(pipeline, since)
        records = self._records(pipeline, since)
        return newest_by_key(decoder.with_metadata(records, NONE).select(*decoder.METADATA))

    def _advance(self, pipeline: Pipeline, ends: Mapping[int, int], share: float) -> bool:
        """Take one step towards these ends; False if there is nothing to do."""
        table = TypedTable(self._spark, self._store, self._lake, pipeline.topic)
        done, begun = table.last_step(), table.begun_step()
        reset = reset_step(done, begun, topic_id=pipeline.topic_id, mode=pipeline.mode)
        if reset is not None:
            LOGGER.warning(
                "%s: the topic was deleted and created again: emptying its table", pipeline.topic
            )
            table.reset(reset)
            done, begun = reset, None
        if done is not None and done.mode not in ("", pipeline.mode):
            raise _made_otherwise(table, f"{MODE}={pipeline.mode}", done.mode)
        there = self._deletions_of(pipeline.topic).missing(pipeline.topic_id)
        missing = first_missing({} if done is None else done.end, ends, there)
        self._missing[pipeline.topic] = missing
        limit = min(OFFSETS_PER_STEP, self._limits[pipeline.topic].offsets)
        starts = self._offsets(pipeline, EARLIEST)
        step = next_step(
            done,
            begun,
            topic_id=pipeline.topic_id,
            mode=pipeline.mode,
            starts=starts,
            ends={**ends, **{partition: first for partition, (first, _) in missing.items()}},
            limit=max(int(limit * share), 1),
        )
        if step is None:
            return False
        for line in lost_offsets(done, starts, ends):
            LOGGER.error("the typed table lacks records of %s-%s", pipeline.topic, line)
        self._write_step(pipeline, table, step)
        check_committed(step, table.last_step())
        table.optimize(step)
        return True

    def _write_step(self, pipeline: Pipeline, table: TypedTable, step: TableStep) -> None:
        began = time.monotonic()
        offsets = counted(step.offsets, "offset")
        # Spark's first query starts its workers, which takes a while on a busy machine.
        if pipeline.topic not in self._written or step.offsets >= OFFSETS_ANNOUNCED:
            LOGGER.info("%s: step %d begins, %s", pipeline.topic, step.number, offsets)
        limit = self._limits[pipeline.topic]
        try:
            with self._decoded(pipeline, table, self._records(pipeline, step)) as decoded:
                table.write_step(
                    step,
                    decoded,
                    pipeline.partition_columns,
                    pipeline.cluster_columns,
                    # A RESTORE after the step was chosen: Spark may have read without what it removed.
                    check=partial(self._check_missing, pipeline, step),
                )
                limit.written(step.offsets, self._cached_bytes())
        except (OptionError, DataLoss):
            raise  # Of fewer offsets it would be the same.
        except Exception:
            limit.failed(step.offsets)
            raise
        self._written.add(pipeline.topic)
        seconds = time.monotonic() - began
        LOGGER.info("%s: step %d, %s in %.1f s", pipeline.topic, step.number, offsets, seconds)

    def _cached_bytes(self) -> int:
        """What Spark keeps of cached rows, in memory and on disk."""
        stored = self._spark.sparkContext._jsc.sc().getRDDStorageInfo()
        return sum(each.memSize() + each.diskSize() for each in stored)

    @contextmanager
    def _decoded(
        self, pipeline: Pipeline, table: TypedTable, records: DataFrame
    ) -> Iterator[DecodedRows]:
        """The rows of records, cached: they are read once, and used for types, for errors and for the write."""
        all_cached: list[DataFrame] = []
        # It is read once or twice: to compress it takes more CPU time than that (2 s a million, 2026-11-29).
        self._spark.conf.set("spark.sql.inMemoryColumnarStorage.compressed", "false")

        def cached(rows: DataFrame) -> DataFrame:
            all_cached.append(rows.persist(StorageLevel.MEMORY_AND_DISK))
            return all_cached[-1]

        formats = (pipeline.topic_id, pipeline.key_format, pipeline.value_format)
        expected = self._expected.pop(formats, ExpectedNames())
        is_guess = bool(expected.of_column)
        try:
            decoded = self._decode(pipeline, table, records, expected, cached)
            if is_guess and (decoded.clashes or has_unexpected(decoded)):
                expected = ExpectedNames()
                decoded = self._decode(pipeline, table, records, expected, cached)
            yield decoded
            self._expected[formats] = expected
        finally:
            for each in all_cached:
                each.unpersist()

    def _decode(
        self,
        pipeline: Pipeline,
        table: TypedTable,
        records: DataFrame,
        expected: ExpectedNames,
        cached: Callable[[DataFrame], DataFrame] = lambda rows: rows,
    ) -> DecodedRows:
        schema, has_bytes = table.schema(), pipeline.key_format == NONE
        if decoder.KEY in schema.names and has_bytes != (schema[decoder.KEY].dataType == BYTES):
            made = "text" if has_bytes else "bytes"
            raise _made_otherwise(table, f"{KEY_FORMAT}={pipeline.key_format}", f"keys as {made}")
        reserved = OWN | (OF_CURRENT if pipeline.mode == CURRENT else frozenset())
        # Records are read twice if their schemas are looked for.
        read_twice = (lambda rows: rows) if expected.of_column else cached
        rows = decoder.with_metadata(records, pipeline.key_format)
        envelope = pipeline.envelope
        if envelope == decoder.DEBEZIUM and pipeline.key_format == "json":
            rows = decoder.without_schema(rows)
        if pipeline.key_format in decoder.REGISTERED:
            reader = self._reader(pipeline.key_format)
            rows = registry_decoder.with_keys(read_twice(rows), reader, expected)
        match pipeline.value_format:
            case "json":
                decoded = decoder.decode_json(
                    rows,
                    self._with_declared(pipeline, decoder.columns_of(schema)),
                    self._registry,
                    reserved=reserved,
                    envelope=envelope,
                    declared=expected.declared,
                    cached=cached,
                )
            case "avro" | "protobuf":
                reader = self._reader(pipeline.value_format)
                decoded = registry_decoder.decode_values(
                    read_twice(rows), schema, reader, expected, envelope, reserved
                )
                # Otherwise Spark decodes again for each condition on a decoded column.
                decoded = replace(decoded, rows=cached(decoded.rows))
            case _:
                decoded = decoder.decode_string(cached(rows), decoder.columns_of(schema))
        if schema.names and pipeline.topic not in self._partitioned:
            self._partitioned[pipeline.topic] = table.partition_columns()
        columns = self._partitioned.get(pipeline.topic, pipeline.partition_columns)
        return with_partitions(decoded, columns, schema)

    def _with_declared(self, pipeline: Pipeline, columns: ObjectOf) -> ObjectOf:
        """The table's columns and those that the topic declares; what cannot be as declared is logged once."""
        try:
            declared = {
                path: declared_kind(text)
                for path, text in declared_columns(pipeline.columns).items()
            }
        except ValueError as problem:
            raise OptionError(f"{COLUMNS}: {problem}") from None
        found = with_declared(columns, declared)
        for path, kind in declared.items():
            ignored = (pipeline.topic, ".".join(path))
            if kind_at(found, path) != kind and ignored not in self._ignored:
                self._ignored.add(ignored)
                LOGGER.warning(
                    "%s: %s does not hold for %s: its column has another type",
                    ignored[0],
                    COLUMNS,
                    ignored[1],
                )
        return found

    def _reader(self, data_format: str) -> SchemaReader:
        if data_format == "avro":
            return AvroReader(self._registry)
        return ProtobufReader(self._registry)

    def view(self, topic: str) -> DataFrame:
        """The typed table and the committed records that it does not have yet. Raises OptionError or DataLoss."""
        pipeline = self._of(topic)
        table = TypedTable(self._spark, self._store, self._lake, topic)
        version = table.version()
        done = table.last_step(version) if version >= 0 else None
        if done is None or done.topic_id not in ("", pipeline.topic_id):
            raise OptionError(
                f"topic {topic} has no typed table yet: `kafka-ds pipelines run` creates it"
            )
        pipeline = replace(pipeline, mode=done.mode or pipeline.mode)
        ends = self._offsets(pipeline, LATEST)
        start = {p: done.end.get(p, 0) for p in ends}
        end = {p: max(at, start[p]) for p, at in ends.items()}
        tail = replace(done, start=start, end=end)
        if not tail.offsets:
            return table.rows_at(version)
        self._check_missing(pipeline, tail)
        decoded = self._decode(pipeline, table, self._records(pipeline, tail), ExpectedNames())
        rows = decoded.rows.drop(REASON)
        # A union adds no fields within lists and maps.
        present = with_fields_of(table.rows_at(version), rows.schema)
        if pipeline.mode == CURRENT:
            return with_newer(present, newest_by_key(rows))
        return present.unionByName(rows.drop(TOMBSTONE), allowMissingColumns=True)

    def _of(self, topic: str) -> Pipeline:
        found = next((each for each in self.wanted() if each.topic == topic), None)
        if found is None:
            raise OptionError(f"topic {topic} has no {VALUE_FORMAT}: it has no typed table")
        return found

    def _records(self, pipeline: Pipeline, step: TableStep) -> DataFrame:
        moved = [p for p, end in step.end.items() if end > step.start[p]]
        moved = moved or [min(step.end)]  # The source wants a partition, also to read nothing.
        return (
            self._spark.read.format("kafka_ds")
            .options(**self._options)
            .option("lake", self._lake)
            .option("assign", json.dumps({pipeline.topic: moved}))
            .option("startingOffsets", _of_topic(pipeline.topic, step.start, moved))
            .option("endingOffsets", _of_topic(pipeline.topic, step.end, moved))
            .option("includeHeaders", "true")
            # Retention may delete records before they are read: the reader logs a warning with the offsets. What a
            # RESTORE removed is looked for apart (`_check_missing`).
            .option("failOnDataLoss", "false")
            .load()
        )

    def _offsets(self, pipeline: Pipeline, question: int) -> dict[int, int]:
        asked = {TopicPartition(pipeline.topic, p): question for p in pipeline.partitions}
        answers = self._cluster.offsets(asked, read_committed=True)
        return {tp.partition: answer.offset for tp, answer in answers.items()}


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(filter(None, (text or "").split(",")))


def _made_otherwise(table: TypedTable, setting: str, created: str) -> OptionError:
    return OptionError(
        f"{setting}, but the table was created with {created}: set it back, or remove {table.path} and "
        f"{table.errors_path} to have it created again"
    )


def has_unexpected(decoded: DecodedRows) -> bool:
    """Whether a record has a schema whose name was not expected."""
    return decoded.rows.where(f.contains(REASON, f.lit(UNEXPECTED))).count() > 0


def absolute(lake: str) -> str:
    """The lake's address with an absolute path, which Spark's writers need."""
    return lake.rstrip("/") if "://" in lake else os.path.abspath(lake)


def _of_topic(topic: str, offsets: Mapping[int, int], partitions: list[int]) -> str:
    return json.dumps({topic: {str(p): offsets[p] for p in partitions}})

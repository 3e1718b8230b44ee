"""Shell: the writer of a bulk load: tasks write files to the lake, the driver lists them and has the topic made.

The topic is made last. Its setting `lake.load` names the list, and its leaders commit what is listed before they lead
(docs/decisions/0028-bulk-load.md). Until then nothing that the load wrote is anybody's, and a load that fails leaves
nothing but files that no table names. The list decides: while it is there, the topic may be there too, or come.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from kafka_ds.client.admin import Admin
from kafka_ds.client.cluster import Cluster
from kafka_ds.delta.store.store import Store, UnsupportedStore
from kafka_ds.delta.store.uri import open_store
from kafka_ds.errors import (
    BrokerTimeout,
    ClientError,
    LoadUnfinished,
    OptionError,
    TopicGone,
    UnsupportedByBroker,
)
from kafka_ds.process.system import new_uuid
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.offsets import LATEST
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import uuid_text
from kafka_ds.sink.columns import SinkColumns, describe_rows
from kafka_ds.sink.load_plan import LoadPlan, limits
from kafka_ds.sink.options import LoadOptions, SinkOptions
from kafka_ds.spark_process import acknowledge, answer_at_once, settle
from kafka_ds.topic.lake import cluster_of
from kafka_ds.topic.load import LoadedFile, decode_load, encode_load, forget_load, load_file
from kafka_ds.topic.names import CLUSTER_MARK, topic_table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LoadMessage", "LoadSink", "load_sink"]

LOG: Final = logging.getLogger("kafka_ds.sink")
LOAD_SETTING: Final = "lake.load"
LAKE_SETTING: Final = "lake.uri"
# Leaders look for each file twice: of many files that takes longer than one request may.
LEADERS_ASKED_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class LoadMessage(WriterCommitMessage):
    """The files that a task has written."""

    files: tuple[LoadedFile, ...]


def load_sink(options: SinkOptions, wanted: LoadOptions, columns: SinkColumns) -> LoadSink:
    """The writer of a load, if the topic can be made.

    Raises OptionError, UnsupportedByBroker, KafkaError, OSError.
    """
    assert options.topic is not None
    load, topic = uuid_text(new_uuid()), options.topic
    with Cluster(options.producer.client) as cluster:
        lake = wanted.lake or cluster.broker_setting(LAKE_SETTING)
        if not lake:
            raise UnsupportedByBroker("option 'load': this cluster has no lake")
        try:
            new = Admin(cluster).create_topic(
                topic,
                partitions=wanted.partitions,
                replication_factor=wanted.replication_factor,
                configs={**wanted.settings, LOAD_SETTING: load},
                validate_only=True,
            )
        except KafkaError as error:
            raise _refusal(topic, error) from None
        try:
            # The last step needs it, when everything is written.
            Admin(cluster).describe_topics([topic])
        except KafkaError as error:
            raise OptionError(
                f"option 'load': the user may not ask for the offsets of topic {topic} (DESCRIBE): {error}"
            ) from None
        asked = Admin(cluster).describe_cluster().cluster_id
    there = cluster_of(_open(lake))
    if there not in (None, asked):
        raise OptionError(
            f"option 'lake': {lake} belongs to cluster {there}, the brokers to cluster {asked}"
        )
    if new.partition_count < 0:
        raise OptionError(
            f"option 'load': the user may not know the settings of topic {topic} (DESCRIBE_CONFIGS)"
        )
    plan = LoadPlan(
        load=load,
        topic=topic,
        lake=lake,
        partition_count=new.partition_count,
        keys_decide=options.producer.keys_decide,
        batch_bytes=options.producer.batch_size,
        **limits(new.settings, time.time_ns() // 1_000_000),
    )
    return LoadSink(options, wanted, columns, plan)


class LoadSink(DataSourceArrowWriter):
    """Makes a topic of a DataFrame."""

    def __init__(
        self, options: SinkOptions, wanted: LoadOptions, columns: SinkColumns, plan: LoadPlan
    ) -> None:
        self._options = options
        self._wanted = wanted
        self._columns = columns
        self.plan = plan

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        # In a task: Spark holds back the rows until the writer has been acknowledged.
        acknowledge()
        self.__dict__.update(state)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> LoadMessage:
        """A task's rows, all of them in files."""
        from kafka_ds.sink.load_files import LoadWriter

        answer_at_once()
        context = TaskContext.get()
        spark_partition = 0 if context is None else context.partitionId()
        writer = LoadWriter(
            _open(self.plan.lake),
            self.plan,
            self._columns,
            describe=partial(describe_rows, spark_partition=spark_partition),
        )
        for rows in iterator:
            writer.add(rows)
        files = tuple(writer.finish())
        settle()
        return LoadMessage(files)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Have the topic made, and wait until its leaders have what was loaded.

        Raises OptionError where it cannot be made (any more), LoadUnfinished where that is unknown.
        """
        answer_at_once()
        files = [file for each in messages if isinstance(each, LoadMessage) for file in each.files]
        store, load = _open(self.plan.lake), self.plan.load
        self._check_retention(files)
        self._check_files(store, files)
        listed = encode_load(self.plan.topic, self.plan.partition_count, files)
        decode_load(
            listed, self.plan.topic
        )  # What leaders could not take is better known before there is a topic.
        store.put_durable(load_file(load), listed)
        with Cluster(self._options.producer.client) as cluster:
            self.create_topic(cluster, store, has_rows=bool(files))
            self.wait_for_rows(cluster, files)
        self._clean_up(store, {file.path(load) for file in files})
        settle()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what was written, unless the topic may be there or come."""
        store = _open(self.plan.lake)
        if store.size(load_file(self.plan.load)) is not None:
            LOG.warning("kafka_ds: the files of load %s stay in the lake", self.plan.load)
            return
        self._clean_up(store, set())
        settle()

    def _check_retention(self, files: Sequence[LoadedFile]) -> None:
        """Refuse what the leaders would begin to delete at once."""
        kept, sizes = self.plan.retention_bytes, Counter[int]()
        for file in files:
            sizes[file.partition] += file.log_bytes
        largest = max(sizes.values(), default=0)
        if 0 <= kept < largest:
            raise OptionError(
                f"option 'load': a partition of topic {self.plan.topic} would have about {largest} bytes, more than "
                f"its retention.bytes={kept}; set it by option 'topic.retention.bytes'"
            )

    def _check_files(self, store: Store, files: Sequence[LoadedFile]) -> None:
        """See what the tasks wrote: a path of one machine is another folder on each."""
        table, load = topic_table(self.plan.topic), self.plan.load
        for _, mine in groupby(sorted(files, key=_partition), _partition):
            wanted = {f"{table}/{file.path(load)}": file.size for file in mine}
            listed = store.list(next(iter(wanted)).rpartition("/")[0])
            there = {each.path: each.size for each in listed}
            for path, size in wanted.items():
                if there.get(path) != size:
                    raise OptionError(
                        f"option 'lake': {self.plan.lake} is not one place for the driver and all executors: a task "
                        f"wrote {path}, and the driver does not find it there"
                    )

    def create_topic(self, cluster: Cluster, store: Store, *, has_rows: bool) -> None:
        """Create the topic that names the load. Raises LoadUnfinished if it may have been created."""
        plan, wanted = self.plan, self._wanted
        # Without rows there is nothing that leaders would have to find.
        load = {LOAD_SETTING: plan.load} if has_rows else {}
        try:
            Admin(cluster).create_topic(
                plan.topic,
                partitions=plan.partition_count,
                replication_factor=wanted.replication_factor,
                configs={**wanted.settings, **load},
            )
        except KafkaError as error:
            if error.code == ErrorCode.UNKNOWN_SERVER_ERROR:
                raise self._unknown(error) from error
            # The answer to the first try may have been lost.
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS or not self._is_ours(cluster):
                store.delete(load_file(plan.load))
                raise _refusal(plan.topic, error) from None
        except ClientError as error:
            raise self._unknown(error) from error

    def _is_ours(self, cluster: Cluster) -> bool:
        try:
            return cluster.topic_setting(self.plan.topic, LOAD_SETTING) == self.plan.load
        except (ClientError, KafkaError) as error:
            raise self._unknown(error) from error

    def _unknown(self, error: Exception) -> LoadUnfinished:
        return LoadUnfinished(
            f"whether topic {self.plan.topic} was created is unknown: {error}. If it is there, it has the rows or gets "
            f"them; if not, the files of load {self.plan.load} in the lake are of no use"
        )

    def wait_for_rows(self, cluster: Cluster, files: list[LoadedFile]) -> None:
        """Wait until each partition ends where its last file does, or behind that."""
        topic = self.plan.topic
        asked = [TopicPartition(topic, each) for each in range(self.plan.partition_count)]
        for tries_left in reversed(range(LEADERS_ASKED_MAX)):
            try:
                cluster.partition_count(topic)  # Not each broker knows at once that it is there.
                answers = cluster.offsets(dict.fromkeys(asked, LATEST), read_committed=False)
                break
            except (ClientError, KafkaError) as error:
                if not tries_left or not isinstance(error, BrokerTimeout | TopicGone):
                    raise LoadUnfinished(
                        f"topic {topic} was created, and its leaders have yet to commit its rows: {error}. Their logs "
                        "say what they wait for; nothing is to be loaded again"
                    ) from error
        short = {
            file.partition
            for file in files
            if answers[TopicPartition(topic, file.partition)].offset <= file.max_offset
        }
        if short:
            raise LoadUnfinished(
                f"partitions {sorted(short)} of topic {topic} lack rows of the load"
            )

    def _clean_up(self, store: Store, kept: set[str]) -> None:
        """Remove what attempts of tasks have left, and the list, which nobody needs any more."""
        table, load = topic_table(self.plan.topic), self.plan.load
        with contextlib.suppress(OSError):
            for partition in range(self.plan.partition_count):
                folder = f"{table}/partition={partition}"
                for entry in store.list(folder):
                    if load in entry.path and entry.path.removeprefix(f"{table}/") not in kept:
                        store.delete(entry.path)
            forget_load(store, load)


def _partition(file: LoadedFile) -> int:
    return file.partition


def _open(lake: str) -> Store:
    """The lake, written to as brokers do."""
    try:
        store = open_store(lake, mark=CLUSTER_MARK)
        store.folders(CLUSTER_MARK)
    except UnsupportedStore as error:
        raise OptionError(f"option 'lake': {error}") from None
    return store


def _refusal(topic: str, error: KafkaError) -> Exception:
    if error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
        return OptionError(f"option 'load': topic {topic} exists; a load makes a new topic")
    if error.code == ErrorCode.INVALID_CONFIG and "Unknown topic config" in str(error):
        return UnsupportedByBroker(f"option 'load': this cluster cannot load: {error}")
    return OptionError(f"option 'load': topic {topic} cannot be created: {error}")

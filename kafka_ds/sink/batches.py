"""Shell: a task's rows, turned into sealed batches for the producer, some megabytes at a time.

Rows are collected until there are enough for full batches; then they get their partitions, are sorted by them, and are
encoded. No step handles single rows in Python. A batch holds rows of one partition in the order in which they came. A
record larger than `max.request.size` is an error that names its row, as in the Java client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_ds.client.cluster import Cluster
from kafka_ds.client.producer import OutgoingBatch, Producer
from kafka_ds.client.producer_settings import ProducerSettings
from kafka_ds.client.transactions import Identity
from kafka_ds.errors import RowError
from kafka_ds.records import encoder, kernel, partitioner
from kafka_ds.records.arrays import fixed, read_only
from kafka_ds.records.batch import (
    LOG_OVERHEAD_BYTES,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)
from kafka_ds.records.partitioner import STICKY, STICKY_FIELDS
from kafka_ds.records.sequences import sequence_after
from kafka_ds.sink.columns import SinkColumns
from kafka_ds.sink.rows import TopicRows, rows_by_topic
from kafka_ds.topic.batches.arrow import columns_of
from kafka_ds.topic.batches.rebuild import KernelBatch, sealed

__all__ = ["NO_IDENTITY", "BatchWriter", "TopicTarget", "by_partition"]

CHUNK_BYTES: Final = 8 * 1024 * 1024
NO_IDENTITY: Final = Identity(producer_id=NO_PRODUCER_ID, epoch=NO_PRODUCER_EPOCH)


@dataclass(slots=True, kw_only=True)
class TopicTarget:
    """A topic, where its next row without a key goes, and the number of each partition's next record."""

    name: str
    partition_count: int
    sticky: NDArray[np.int64]
    sequences: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, topic: str, partition_count: int) -> Self:
        """Which partition begins is no secret: tasks shall not all begin with the same."""
        sticky = np.zeros(STICKY_FIELDS, np.int64)
        sticky[STICKY] = Random().randrange(partition_count)  # noqa: S311
        return cls(name=topic, partition_count=partition_count, sticky=sticky)


class BatchWriter:
    """The rows of one task to their topics.

    Parameters
    ----------
    describe
        Names rows of the task, by their places in it.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerSettings,
        producer: Producer,
        columns: SinkColumns,
        *,
        identity: Identity = NO_IDENTITY,
        is_transactional: bool = False,
        describe: Callable[[Iterable[int]], str],
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._producer = producer
        self._columns = columns
        self._identity = identity
        self._attributes = settings.compression | (TRANSACTIONAL_FLAG if is_transactional else 0)
        self._describe = describe
        self._batch_bytes_max = min(settings.batch_size, settings.max_request_size)
        self._targets: dict[str, TopicTarget] = {}
        self._collected: list[pa.RecordBatch] = []
        self._collected_bytes = 0
        self.row_count = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows; they are on their way when enough have come, or with `flush`."""
        self._collected.append(rows)
        self._collected_bytes += rows.nbytes
        if self._collected_bytes >= CHUNK_BYTES:
            self._write()

    def flush(self) -> None:
        """Wait until every row was acknowledged."""
        self._write()
        self._producer.flush()

    def _write(self) -> None:
        if not self._collected:
            return
        together = pa.Table.from_batches(self._collected).combine_chunks()
        self._collected, self._collected_bytes = [], 0
        for part in together.to_batches():
            if not part.num_rows:
                continue
            now_ms = time.time_ns() // 1_000_000
            for of_topic in rows_by_topic(
                part,
                self._columns,
                first_row=self.row_count,
                now_ms=now_ms,
                describe=self._describe,
            ):
                self._write_topic(of_topic)
            self.row_count += part.num_rows
        self._producer.push()

    def _write_topic(self, of_topic: TopicRows) -> None:
        target = self._target(of_topic.topic)
        for partition, within, numbers in by_partition(
            of_topic,
            target,
            keys_decide=self._settings.keys_decide,
            batch_bytes=self._batch_bytes_max,
            describe=self._describe,
        ):
            self._write_partition(target, partition, within, numbers)

    def _write_partition(
        self, target: TopicTarget, partition: int, records: pa.RecordBatch, rows: NDArray[np.int64]
    ) -> None:
        columns = columns_of(_numbered(records))
        bytes_max = self._producer.batch_bytes_max(target.name) or self._batch_bytes_max
        out, batches = kernel.encode(
            columns, first_offset=0, bytes_max=min(bytes_max, self._batch_bytes_max)
        )
        for row in batches.tolist():
            first, end = row[encoder.FIRST_ROW], row[encoder.END_ROW]
            size = row[encoder.END] - row[encoder.START]
            if size > self._settings.max_request_size:
                raise RowError(
                    f"{self._describe([int(rows[first])])}: {size} bytes are more than "
                    f"kafka.max.request.size={self._settings.max_request_size}"
                )
            header = BatchHeader(
                base_offset=0,
                batch_length=size - LOG_OVERHEAD_BYTES,
                leader_epoch=NO_LEADER_EPOCH,
                magic=MAGIC,
                crc=0,
                attributes=self._attributes,
                last_offset_delta=end - first - 1,
                base_timestamp=int(columns.timestamp[first]),
                max_timestamp=row[encoder.MAX_TIMESTAMP],
                producer_id=self._identity.producer_id,
                producer_epoch=self._identity.epoch,
                base_sequence=self._sequence(target, partition, end - first),
                record_count=end - first,
            )
            batch = KernelBatch(out, row[encoder.START], row[encoder.END], header)
            self._producer.send(
                OutgoingBatch(
                    topic=target.name,
                    partition=partition,
                    data=sealed(batch, self._settings.compression_level),
                    record_count=end - first,
                    describe=_places(self._describe, rows[first:end]),
                )
            )

    def _sequence(self, target: TopicTarget, partition: int, count: int) -> int:
        if self._identity.producer_id == NO_PRODUCER_ID:
            return NO_SEQUENCE
        sequence = target.sequences.get(partition, 0)
        target.sequences[partition] = sequence_after(sequence, count)
        return sequence

    def _target(self, topic: str) -> TopicTarget:
        target = self._targets.get(topic)
        if target is None:
            target = self._targets[topic] = TopicTarget.of(
                topic, self._cluster.partition_count(topic)
            )
        return target


def by_partition(
    of_topic: TopicRows,
    target: TopicTarget,
    *,
    keys_decide: bool,
    batch_bytes: int,
    describe: Callable[[Iterable[int]], str],
) -> Iterator[tuple[int, pa.RecordBatch, NDArray[np.int64]]]:
    """Each partition's rows in their order, and which rows of the task they are.

    A row without a partition or key goes where the last one went, until that are `batch_bytes`. Raises RowError.
    """
    beyond = np.flatnonzero(of_topic.wanted >= target.partition_count)
    if len(beyond):
        row = int(beyond[0])
        raise RowError(
            f"{describe([int(of_topic.rows[row])])}: column 'partition' is {of_topic.wanted[row]}; "
            f"topic {target.name} has partitions 0 to {target.partition_count - 1}. Of rows that were read from "
            "another topic select what is to be copied, as by select('key', 'value', 'headers')"
        )
    records, rows = of_topic.records, of_topic.rows
    columns = columns_of(_numbered(records))
    partitions = np.empty(records.num_rows, np.int32)
    loops().assign(
        fixed(of_topic.wanted),
        columns.key,
        columns.value,
        keys_decide,
        batch_bytes,
        target.partition_count,
        target.sticky,
        partitions,
    )
    ends = np.zeros(target.partition_count, np.int64)
    order = np.empty(records.num_rows, np.int64)
    loops().order(fixed(partitions), ends, order)
    if (np.diff(partitions) < 0).any():
        records, rows = records.take(pa.array(order)), rows[order]
    start = 0
    for partition, end in enumerate(ends.tolist()):
        if end > start:
            yield partition, records.slice(start, end - start), rows[start:end]
        start = end


class PartitionerLoops(NamedTuple):
    """`kafka_ds.records.partitioner`, compiled."""

    assign: Callable[..., None]
    order: Callable[..., None]


@lru_cache(maxsize=1)
def loops() -> PartitionerLoops:
    """Compile them (a second), or load what was compiled before."""
    ints, numbers = read_only(None, np.int32), np.zeros(2, np.int64)
    out = np.empty(0, np.int32)
    with kernel.cache_folder() as folder:
        return PartitionerLoops(
            assign=kernel.compiled(
                folder,
                partitioner.assign,
                (ints, encoder.NO_BINARY, encoder.NO_BINARY, True, 0, 1, numbers, out),
            ),
            order=kernel.compiled(folder, partitioner.order, (ints, numbers, numbers)),
        )


def _numbered(records: pa.RecordBatch) -> pa.RecordBatch:
    """With the additional columns of the kernel: offsets from 0 on, no leader epoch, created then."""
    count = records.num_rows
    zeros = pa.array(np.zeros(count, np.int32))
    return pa.RecordBatch.from_arrays(
        [*records.columns, pa.array(np.arange(count, dtype=np.int64)), zeros, zeros],
        names=[*records.schema.names, "offset", "leader_epoch", "timestamp_type"],
    )


def _places(
    describe: Callable[[Iterable[int]], str], rows: NDArray[np.int64]
) -> Callable[[Iterable[int]], str]:
    return lambda places: describe([int(rows[place]) for place in places])

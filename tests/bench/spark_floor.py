"""The parts of a cold scan: pyarrow alone, the source's tasks without Spark, and Spark with ready-made batches.

The last is the floor of any Python source: what it costs to send Arrow batches from a Python worker to the JVM and to
make rows of them. Each reads all columns of the source, with two threads where it has them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from kafka_ds.source.batch import read_config
from kafka_ds.source.datasource import declared, schema_of
from kafka_ds.source.filters.predicate import Predicate
from kafka_ds.source.options.options import parse_options
from kafka_ds.source.plan.pinned import pin
from kafka_ds.source.plan.scan_plan import plan_scan
from kafka_ds.source.read.partition_reader import BATCH_ROWS, read_task
from kafka_ds.source.schema import KAFKA_COLUMNS, lake_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

THREADS = 2


class Floor:
    """The files of one topic's table, read by others."""

    def __init__(self, lake: Path, topic: str) -> None:
        self._lake, self._topic = lake, topic
        self._given = {
            "kafka.bootstrap.servers": "nobody:1",
            "subscribe": topic,
            "lake": str(lake),
            "tiers": "remote",
        }
        options = parse_options(self._given, stream=False)
        self._options = options
        self._tasks = plan_scan(pin(options, Predicate()).views, Predicate()).tasks
        self._files = [
            file.path for task in self._tasks for piece in task.ranges for file in piece.files  # type: ignore[union-attr]
        ]  # fmt: skip

    def pyarrow_alone(self) -> None:
        """Every column that the source reads, decoded by pyarrow, a thread a core over the files."""
        columns = [n for n in lake_columns(KAFKA_COLUMNS) if n != "timestamp_ms"]

        def read(path: str) -> int:
            with pq.ParquetFile(path, memory_map=True) as file:
                batches = file.iter_batches(BATCH_ROWS, columns=columns, use_threads=False)
                return sum(batch.num_rows for batch in batches)

        with ThreadPoolExecutor(THREADS) as pool:
            sum(pool.map(read, dict.fromkeys(self._files)))

    def readers_alone(self) -> None:
        """The source's own tasks; their batches are dropped."""
        config = read_config(self._options, declared(schema_of(KAFKA_COLUMNS)), Predicate())

        def read(task: Any) -> int:
            return sum(batch.num_rows for batch in read_task(task, config))

        with ThreadPoolExecutor(THREADS) as pool:
            sum(pool.map(read, self._tasks))

    def given_batches(self, spark: SparkSession, count: int) -> DataFrame:
        """A frame of so many rows: one batch of the topic again and again, which a worker reads once."""
        path = self._lake.parent / f"sample-{self._topic}.arrow"
        if not path.exists():
            config = read_config(self._options, declared(schema_of(KAFKA_COLUMNS)), Predicate())
            batch = next(iter(read_task(self._tasks[0], config)))
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as out:
                out.write_batch(batch)
        spark.dataSource.register(Given)
        reader = spark.read.format("given").option("path", str(path)).option("rows", count)
        return reader.load()


class Given(DataSource):
    """A source that has its rows already: those of a file, or in a stream some of a topic that nobody asks for."""

    @classmethod
    def name(cls) -> str:
        return "given"

    def schema(self) -> StructType:
        return schema_of(KAFKA_COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        return GivenReader(self.options["path"], int(self.options["rows"]), os.cpu_count() or 1)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return GivenStreamReader(int(self.options["rows"]), declared(schema))


class GivenReader(DataSourceReader):
    def __init__(self, path: str, rows: int, tasks: int) -> None:
        self._path, self._rows, self._tasks = path, rows, tasks

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(self._rows // self._tasks) for _ in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        with pa.memory_map(self._path) as source:
            batch = pa.ipc.open_file(source).get_batch(0)
            left = partition.value
            while left > 0:
                yield batch.slice(0, min(left, batch.num_rows))
                left -= batch.num_rows


class GivenStreamReader(DataSourceStreamReader):
    """A fixed number of rows per micro-batch, without a broker: the cost of a micro-batch of any Python source."""

    def __init__(self, rows: int, schema: pa.Schema) -> None:
        self._rows, self._schema, self._end = rows, schema, 0

    def initialOffset(self) -> dict[str, int]:
        return {"end": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
        self._end += self._rows
        return {"end": self._end}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(end["end"] - start["end"])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        columns = [pa.nulls(partition.value, field.type) for field in self._schema]
        yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

"""The sockets between Spark and the Python processes of a source: TCP_NODELAY is set when a source runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType


def source() -> type[DataSource]:
    """A source whose batch has a row per process: how many sockets were set there, and whether all are."""

    def found() -> tuple[int, bool]:
        import socket
        import stat
        from os import fstat, listdir

        from kafka_ds.spark_process import set_without_delay

        count = set_without_delay()
        flags = []
        for name in listdir("/dev/fd"):
            try:
                is_socket = stat.S_ISSOCK(fstat(int(name)).st_mode)
            except OSError:
                continue
            if is_socket:
                each = socket.socket(fileno=int(name))
                flags.append(bool(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
                each.detach()
        return count, all(flags)

    class FakeBatch(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(("plan", *found()))]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            yield partition.value
            yield ("task", *found())

    class FakeStream(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"at": 0}

        def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
            return {"at": 1}

        def partitions(self, start: Any, end: Any) -> list[InputPartition]:
            return [InputPartition(("plan of a stream", *found()))]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            yield partition.value

    class Sockets(DataSource):
        def schema(self) -> str:
            return "process string, sockets int, allSet boolean"

        def reader(self, schema: StructType) -> DataSourceReader:
            return FakeBatch()

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return FakeStream()

    return Sockets


def test_every_process_finds_its_socket(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(source())
    rows = spark.read.format("Sockets").load().collect()
    query = (
        spark.readStream.format("Sockets")
        .load()
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "rows"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(240)
    rows += spark.read.parquet(str(tmp_path / "rows")).collect()
    assert [row["process"] for row in rows] == ["plan", "task", "plan of a stream"]
    assert all(row["sockets"] >= 1 and row["allSet"] for row in rows), rows

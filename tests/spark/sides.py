"""Spark's own Kafka source on Apache Kafka, and ours on a broker of ours: both are done and asked the same."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

LIMIT_S = 120
QUERY_LIMIT_S = 240
STARTS = 20
# What Spark's own source refuses when it looks at partitions it tries three times more, a second apart.
QUICKLY_AGAIN = {"fetchOffset.retryIntervalMs": "10"}
Row = tuple[str, str | None]
# A source of a query: its options, of which values that are no text are JSON.
Given = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSide:
    """A format of Spark's, and the brokers that it is asked about."""

    format: str
    bootstrap: str

    def options(self, given: Given) -> dict[str, str]:
        spelt = {k: v if isinstance(v, str) else json.dumps(v) for k, v in given.items()}
        return {"kafka.bootstrap.servers": self.bootstrap, **QUICKLY_AGAIN, **spelt}

    def read(self, spark: SparkSession, given: Given) -> DataFrame:
        return spark.read.format(self.format).options(**self.options(given)).load()

    def stream(self, spark: SparkSession, given: Given) -> DataFrame:
        return spark.readStream.format(self.format).options(**self.options(given)).load()

    # -- what is done ---------------------------------------------------------------------------

    def _admin(self) -> AdminClient:
        """To be kept until what it was asked for has come."""
        return AdminClient({"bootstrap.servers": self.bootstrap})

    def create(self, topic: str, partitions: int) -> None:
        """Records may be of any time: none is too old to be kept, or too young to be taken."""
        settings = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
        new = NewTopic(topic, partitions, 1, config=settings)
        admin = self._admin()
        admin.create_topics([new])[topic].result(LIMIT_S)

    def delete(self, topic: str) -> None:
        admin = self._admin()
        admin.delete_topics([topic])[topic].result(LIMIT_S)

    def grow(self, topic: str, partitions: int) -> None:
        admin = self._admin()
        admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(LIMIT_S)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        admin = self._admin()
        for done in admin.delete_records([TopicPartition(topic, partition, before)]).values():
            done.result(LIMIT_S)

    def send(
        self,
        topic: str,
        partition: int,
        values: Iterable[object],
        *,
        timestamp_ms: int = 0,
        headers: list[tuple[str, bytes]] | None = None,
        producer: Producer | None = None,
    ) -> None:
        """Each value as text, acknowledged before this returns."""
        made = producer or Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0})
        failed: list[str] = []
        for value in values:
            made.produce(
                topic,
                value=str(value).encode(),
                partition=partition,
                timestamp=timestamp_ms,
                headers=headers,
                on_delivery=lambda error, _: failed.append(str(error)) if error else None,
            )
        assert made.flush(LIMIT_S) == 0
        assert not failed, failed[:3]

    def transactional(self, name: str) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": name,
                # As long as brokers let one be open: queries run meanwhile.
                "transaction.timeout.ms": 900_000,
                "linger.ms": 0,
            }
        )
        producer.init_transactions(LIMIT_S)
        return producer


def named(
    spark: SparkSession,
    sources: Mapping[str, Given],
    read: Callable[[SparkSession, Given], DataFrame],
) -> DataFrame:
    """All sources in one frame, each row with the name of its source: one query for many."""
    frames = [
        read(spark, given).selectExpr(f"'{name}' AS source", "CAST(value AS STRING) AS value")
        for name, given in sources.items()
    ]
    return reduce(DataFrame.unionAll, frames)


def rows(frame: DataFrame) -> Counter[Row]:
    return Counter((row["source"], row["value"]) for row in frame.collect())


def expected(wanted: Mapping[str, Sequence[object]]) -> Counter[Row]:
    return Counter((name, str(value)) for name, values in wanted.items() for value in values)


def offsets(document: Any) -> dict[str, dict[str, int]]:
    """A stream's offset as Spark's own source spells it, whoever wrote it."""
    found = json.loads(document) if isinstance(document, str) else document
    if "version" not in found:
        return dict(found)
    return {
        topic: {number: position["offset"] for number, position in entry["partitions"].items()}
        for topic, entry in found["topics"].items()
    }


class JoinedJob:
    """A query over several sources into a folder of Parquet, stopped and started again at will."""

    def __init__(
        self,
        spark: SparkSession,
        side: SparkSide,
        folder: Path,
        sources: Mapping[str, Given],
        *,
        twice: bool = False,
    ) -> None:
        """With ``twice`` the query has all of its sources twice, and Spark has them once."""
        self._spark, self._side, self.folder, self._sources = spark, side, folder, sources
        self._twice = twice
        self.progress: list[Any] = []

    def run(self, **trigger: bool) -> None:
        for left in reversed(range(STARTS)):
            try:
                return self._run(trigger or {"availableNow": True})
            except StreamingQueryException as problem:
                # Spark gives a source's process 10 s to start, which a busy machine exceeds: nothing has been read.
                if "failed to connect back" not in str(problem) or not left:
                    raise

    def _run(self, trigger: dict[str, bool]) -> None:
        frame = named(self._spark, self._sources, self._side.stream)
        if self._twice:
            frame = frame.unionAll(frame)
            if self._side.format == "kafka":
                # Two tasks that read one partition of Spark's own source at once may share a consumer, which fails:
                # "KafkaConsumer is not safe for multi-threaded access". One task has both here.
                frame = frame.coalesce(1)
        query = (
            frame.writeStream.format("parquet")
            .option("path", str(self.folder / "rows"))
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(**trigger)  # type: ignore[arg-type]
            .start()
        )
        assert query.awaitTermination(QUERY_LIMIT_S)
        self.progress = [json.loads(p.json) for p in query.recentProgress]

    def rows(self) -> Any:
        return self._spark.read.parquet(str(self.folder / "rows"))

    def ends(self) -> list[list[dict[str, dict[str, int]]]]:
        """Where each micro-batch ended in each source."""
        return [[offsets(s["endOffset"]) for s in p["sources"]] for p in self.progress]

"""Typed tables against what one writes by hand: Spark's source on Apache Kafka, `from_json` or `from_avro`, Delta.

A fifth of a million records of ten fields a run; ``KAFKA_DS_BENCH_SCALE=1`` takes a million. Both tables grow from run
to run, and both sides write place, time and key beside the fields. Besides: CPU seconds of everything, brokers too.
"""

from __future__ import annotations

import io
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
from confluent_kafka import Producer

import kafka_ds
from spark_conf import jars
from tests.bench import machine
from tests.bench.report import Figure, Report
from tests.bench.sides import ApacheSide, OurSide, create_topic, ready
from tests.spark.schema_registry import Sender, running_registry
from tests.spark.topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from spark_conf.pipelines.pipelines import Pipelines

COUNT = int(1_000_000 * float(os.environ.get("KAFKA_DS_BENCH_SCALE", "0.2")))
PARTITIONS = 4
# Records that wait for their rows one after the other, at the trigger that users have.
LATENCIES, INTERVAL_S = 20, 1.0
FIELDS = {
    "order": "long", "customer": "string", "total": "double", "is_paid": "boolean", "city": "string",
    "count": "long", "discount": "double", "note": "string", "state": "string", "weight": "double",
}  # fmt: skip
AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": name, "type": kind} for name, kind in FIELDS.items()],
    }
)


SCHEMA = fastavro.parse_schema(json.loads(AVRO))


def value(n: int) -> dict[str, Any]:
    return {
        "order": n,
        "customer": f"customer {n % 10_007}",
        "total": n * 0.25,
        "is_paid": n % 3 == 0,
        "city": f"city {n % 97}",
        "count": n % 7,
        "discount": 0.5,
        "note": "by the door, please",
        "state": "open",
        "weight": n % 1000 + 0.125,
    }


def in_avro(frame: bytes, n: int) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, SCHEMA, value(n))
    return frame + written.getvalue()


class TypedBench:
    def __init__(
        self, spark: SparkSession, report: Report, runs: int, ours: OurSide, theirs: ApacheSide
    ) -> None:
        self.spark, self.report, self.runs = spark, report, runs
        self.ours, self.theirs = ours, theirs
        self.read: dict[str, dict[str, int]] = {}

    def send(self, topic: str, values: list[bytes]) -> None:
        for side in (self.ours, self.theirs):
            producer = Producer({"bootstrap.servers": side.bootstrap, "linger.ms": 20})
            for n, each in enumerate(values):
                while True:
                    try:
                        producer.produce(topic, each, partition=n % PARTITIONS)
                        break
                    except BufferError:
                        producer.poll(0.1)
            assert producer.flush(120) == 0

    def their_table(self, topic: str, path: Path, decoded: Column) -> None:
        """What has come since the last run, appended."""
        start = self.read.get(topic, {str(p): 0 for p in range(PARTITIONS)})
        end = {p: offset + COUNT // PARTITIONS for p, offset in start.items()}
        records = (
            self.spark.read.format("kafka")
            .option("kafka.bootstrap.servers", self.theirs.bootstrap)
            .option("assign", json.dumps({topic: list(range(PARTITIONS))}))
            .option("startingOffsets", json.dumps({topic: start}))
            .option("endingOffsets", json.dumps({topic: end}))
            .option("kafka.fetch.max.wait.ms", "10")
            .option("includeHeaders", "true")
            .load()
        )
        rows = records.select(
            "partition", "offset", "timestamp", "key", "headers", decoded.alias("value")
        )
        flat = rows.select("partition", "offset", "timestamp", "key", "headers", "value.*")
        flat.write.format("delta").mode("append").save(str(path))
        self.read[topic] = end


def typed(folder: Path, report: Report, runs: int) -> None:
    from pyspark.sql import functions as f
    from pyspark.sql.avro.functions import from_avro

    from spark_conf.session import session

    names = {"long": "BIGINT"}
    ddl = ", ".join(f"`{name}` {names.get(kind, kind)}" for name, kind in FIELDS.items())
    ours, theirs = OurSide(folder / "ours"), ApacheSide(folder / "apache")
    sets = ("spark-kafka", "spark-avro")
    extra = ",".join(str(path) for name in sets for path in sorted(jars.fetch(name).glob("*.jar")))
    with tempfile.TemporaryDirectory() as scratch, running_registry(Path(scratch)) as registry:
        try:
            for side in (ours, theirs):
                side.launch()
                ready(side)
            spark = session("kafka-ds bench", master="local[2]", extra_jars=extra)
            bench = TypedBench(spark, report, runs, ours, theirs)
            frame = Sender(Topic(ours, "orders-avro"), registry)
            of_json = f.from_json(f.col("value").cast("string"), ddl)
            of_avro = from_avro(f.expr("substring(value, 6)"), AVRO)
            for name, made, decoded in (
                ("json", lambda n: json.dumps(value(n)).encode(), of_json),
                ("avro", partial(in_avro, frame.framed(AVRO, value(0))[:5]), of_avro),
            ):
                values = [made(n) for n in range(COUNT)]
                _end_to_end(bench, folder, name, values, decoded, registry)
            _queries(bench, of_json)
            _latency(bench, registry)
            spark.stop()
        finally:
            ours.stop()
            theirs.stop()


def _pipelines(bench: TypedBench, registry: str) -> Pipelines:
    from spark_conf.pipelines.pipelines import Pipelines
    from spark_conf.pipelines.registry import SchemaRegistry

    options = {"kafka.bootstrap.servers": bench.ours.bootstrap}
    lake = str(bench.ours.lake)
    return Pipelines(bench.spark, options, lake, SchemaRegistry(registry))


def _end_to_end(
    bench: TypedBench,
    folder: Path,
    name: str,
    values: list[bytes],
    decoded: Column,
    registry: str,
) -> None:
    topic = f"orders-{name}"
    create_topic(bench.ours, topic, PARTITIONS, lake_table_value_format=name)
    create_topic(bench.theirs, topic, PARTITIONS)
    pipelines = _pipelines(bench, registry)
    (pipeline,) = (each for each in pipelines.wanted() if each.topic == topic)
    sides: dict[str, Callable[[], None]] = {
        "ours": pipeline.update,
        "theirs": lambda: bench.their_table(topic, folder / f"their-{name}", decoded),
    }
    walls: dict[str, list[float]] = {side: [] for side in sides}
    cpus: dict[str, list[float]] = {side: [] for side in sides}
    background = []
    for run in range(bench.runs + 1):
        bench.send(topic, values)
        for side, step in sides.items():
            with machine.watching(machine.children(os.getpid())) as use:
                step()
            if run:
                walls[side].append(COUNT / use.wall_s)
                cpus[side].append(use.cpu_s / COUNT * 1e6)
                background.append(use.background_load)
    pipelines.close()
    for unit, found, wanted in (("1/s", walls, {"at_least": 2.0}), ("s/M", cpus, {})):
        figure = Figure(
            name=f"typed {name}, topic to Delta ({unit})",
            unit=unit,
            ours=found["ours"],
            theirs=found["theirs"],
            background_load=statistics.median(background),
            **wanted,
        )
        bench.report.add(figure)


def _queries(bench: TypedBench, decoded: Column) -> None:
    """A sum by city: on the typed table, and on the topic decoded in the query."""
    from pyspark.sql import functions as f

    def answer(rows: DataFrame) -> float:
        began = time.perf_counter()
        rows.groupBy("city").agg(f.sum("total")).collect()
        return 1 / (time.perf_counter() - began)

    options = {"kafka.bootstrap.servers": bench.ours.bootstrap}
    lake = bench.ours.lake
    ours, theirs = [], []
    for run in range(bench.runs + 1):
        table = bench.spark.read.format("delta").load(f"{lake}/tables/orders-json")
        records = kafka_ds.scan(bench.spark, "orders-json", **options)
        found = answer(table), answer(records.select(decoded.alias("v")).select("v.*"))
        if run:
            ours.append(found[0])
            theirs.append(found[1])
    name = "typed json, a sum by city / from_json (1/s)"
    bench.report.add(Figure(name=name, unit="1/s", ours=ours, theirs=theirs, at_least=20.0))


def _latency(bench: TypedBench, registry: str) -> None:
    """From a record's acknowledgement to the commit of its row, one record after the other."""
    from spark_conf.pipelines.typed_table import TypedTable

    topic = "orders-late"
    create_topic(bench.ours, topic, 1, lake_table_value_format="json")
    pipelines, over = _pipelines(bench, registry), threading.Event()
    thread = threading.Thread(target=pipelines.run, args=(INTERVAL_S, over.is_set))
    thread.start()
    from kafka_ds.delta.store.local import LocalStore

    lake = str(bench.ours.lake)
    table = TypedTable(bench.spark, LocalStore(lake), lake, topic)
    producer = Producer({"bootstrap.servers": bench.ours.bootstrap})
    times = []
    try:
        for n in range(LATENCIES + 2):
            producer.produce(topic, json.dumps(value(n)))
            assert producer.flush(30) == 0
            began = time.perf_counter()
            while (done := table.last_step()) is None or done.end.get(0, 0) <= n:
                time.sleep(0.02)
            if n > 1:
                times.append(time.perf_counter() - began)
            time.sleep(n % 10 / 10)
    finally:
        over.set()
        thread.join()
        pipelines.close()
    name = "typed json, acknowledgement to row, p50 (s)"
    figure = Figure(name=name, unit="s", ours=[statistics.median(times)], at_most=5.0)
    bench.report.add(figure)

"""A table of current state with many keys: what a step that changes few of them reads, writes and takes.

Ten million keys; ``KAFKA_DS_BENCH_SCALE=0.1`` takes a million. The bytes a step adds to the table, divided by those of
the rows that it changed as the first load wrote them, are its write amplification.
"""

from __future__ import annotations

import json
import os
import random
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from kafka_ds.delta.actions import Action, commit_info
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.topic.names import TYPED_TABLES
from tests.bench import machine
from tests.bench.report import Figure, Report
from tests.bench.sides import OurSide, create_topic, ready

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_conf.pipelines.pipelines import Pipelines

KEYS = int(10_000_000 * float(os.environ.get("KAFKA_DS_BENCH_SCALE", "1")))
CHANGES = 100_000
PARTITIONS = 4
TOPIC = "accounts"


def current(folder: Path, report: Report, runs: int) -> None:
    from spark_conf.pipelines.pipelines import Pipelines
    from spark_conf.session import session

    side = OurSide(folder / "ours")
    side.launch()
    try:
        ready(side)
        spark = session("kafka-ds bench", master="local[2]")
        create_topic(
            side, TOPIC, PARTITIONS, lake_table_value_format="json", lake_table_mode="current"
        )
        pipelines = Pipelines(spark, {"kafka.bootstrap.servers": side.bootstrap}, str(side.lake))
        _measure(spark, pipelines, side, report, runs)
        pipelines.close()
        spark.stop()
    finally:
        side.stop()


def _measure(
    spark: SparkSession, pipelines: Pipelines, side: OurSide, report: Report, runs: int
) -> None:
    path = f"{side.lake}/tables/{TOPIC}"
    log = DeltaLog(LocalStore(str(side.lake)), f"{TYPED_TABLES}/{TOPIC}")
    (pipeline,) = pipelines.wanted()
    _send(side, range(KEYS), 0)
    with machine.watching(machine.children(os.getpid())) as load:
        pipeline.update()
    size = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first()
    assert size is not None
    row_bytes = size["sizeInBytes"] / KEYS
    changes = random.Random(20)
    walls, cpus, amplification, background = [], [], [], []
    for run in range(runs):
        _send(side, changes.sample(range(KEYS), CHANGES), run + 1)
        with machine.watching(machine.children(os.getpid())) as use:
            pipeline.update()
        walls.append(use.wall_s)
        cpus.append(use.cpu_s)
        background.append(use.background_load)
        amplification.append(_bytes_added(log) / (CHANGES * row_bytes))
    assert spark.read.format("delta").load(path).count() == KEYS
    busy = statistics.median(background)
    report.add(Figure(name="current, load, keys/s", unit="1/s", ours=[KEYS / load.wall_s]))
    for name, unit, found in (
        (f"current, {CHANGES:,} changes of {KEYS:,} keys", "s", walls),
        ("the same, CPU", "s", cpus),
    ):
        report.add(Figure(name=name, unit=unit, ours=found, background_load=busy))
    report.add(
        Figure(name="current, write amplification", unit="x", ours=amplification, at_most=10)
    )


def _send(side: OurSide, keys: Iterable[int], change: int) -> None:
    producer = Producer({"bootstrap.servers": side.bootstrap, "linger.ms": 20})
    for key in keys:
        value = json.dumps(
            {"balance": key * 7 % 100_003, "owner": f"owner {key}", "change": change}
        )
        while True:
            try:
                producer.produce(TOPIC, value, f"account-{key}")
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def _bytes_added(log: DeltaLog) -> int:
    """What the newest MERGE of the table wrote: rows, their change data, and deletion vectors.

    Delta's own metric `numTargetBytesAdded` has the rows alone.
    """
    for version in range(log.latest_version(), -1, -1):
        actions = log.read_version(version) or []
        if commit_info(actions).get("operation") == "MERGE":
            return sum(_written(actions))
    raise LookupError("the table has no MERGE")


def _written(actions: Sequence[Action]) -> Iterator[int]:
    before = {each["remove"]["path"] for each in actions if "remove" in each}
    for each in actions:
        if "cdc" in each:
            yield each["cdc"]["size"]
        elif "add" in each and each["add"]["path"] in before:
            # The file stays; it got a deletion vector.
            yield (each["add"].get("deletionVector") or {"sizeInBytes": 0})["sizeInBytes"]
        elif "add" in each:
            yield each["add"]["size"]

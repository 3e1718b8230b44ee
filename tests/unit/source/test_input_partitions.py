"""Which tasks one Spark partition reads, and how many a session can run at once."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import LongType, StructField, StructType

from kafka_ds.source.batch import KafkaBatchReader, PushingKafkaBatchReader
from kafka_ds.source.datasource import KafkaDataSource, PushingKafkaDataSource, of_session
from kafka_ds.source.filters.predicate import Predicate
from kafka_ds.source.options.options import parse_options
from kafka_ds.source.plan.input_partitions import OPEN_BYTES, task_groups
from kafka_ds.source.plan.scan_plan import (
    HOT_RECORD_BYTES,
    TASK_LAKE_BYTES,
    HotRange,
    LakeFile,
    LakeView,
    PartitionView,
    Plan,
    ScanTask,
    plan_scan,
)
from kafka_ds.source.session.slots import slots_of
from kafka_ds.source.stream import KafkaStreamReader
from tests.fakes.scripted_broker import TOPIC_ID

MIB = 1 << 20
SMALL, LARGE = 1000, TASK_LAKE_BYTES


def plan(*weights: int) -> Plan:
    piece = HotRange(start=0, end=1, leader_epoch=0)
    tasks = (
        ScanTask(topic="t", partition=n, topic_id=TOPIC_ID, ranges=(piece,))
        for n in range(len(weights))
    )
    return Plan(tasks=tuple(tasks), lost=(), weights=weights)


def sizes(weights: list[int], slots: int | None) -> list[int]:
    """How many tasks each group has."""
    return [len(group) for group in task_groups(plan(*weights), slots)]


@pytest.mark.parametrize(
    ("weights", "slots", "expected"),
    [
        ([], 2, []),
        ([SMALL] * 3, None, [1, 1, 1]),
        ([SMALL] * 2, 2, [1, 1]),
        ([SMALL] * 8, 1, [8]),
        ([SMALL] * 8, 2, [4, 4]),
        ([SMALL] * 8, 3, [3, 2, 3]),
        ([SMALL] * 5, 2, [2, 3]),
        ([SMALL] * 4, 3, [1, 2, 1]),
        ([SMALL] * 8, 8, [1] * 8),
        # Of the smallest a group has no more than sixteen.
        ([0] * 100, 2, [14, 15, 14, 14, 14, 15, 14]),
        ([LARGE] * 4, 2, [1, 1, 1, 1]),
        ([LARGE * 3 // 4] * 8, 2, [1] * 8),
        ([LARGE, SMALL, SMALL, LARGE, SMALL], 2, [1, 2, 1, 1]),
        # What one weighs is a guess: no slot waits for it while others read in a row.
        ([50 * MIB, 0, 0, 0, 0], 4, [1, 2, 1, 1]),
    ],
)
def test_small_tasks_share_the_slots(weights: list[int], slots: int, expected: list[int]) -> None:
    assert sizes(weights, slots) == expected


@given(
    st.lists(st.integers(0, 3 * TASK_LAKE_BYTES) | st.integers(0, MIB), max_size=60),
    st.none() | st.integers(1, 70),
)
def test_packs_hold_each_task_once_in_order_and_leave_no_slot_idle(
    weights: list[int], slots: int | None
) -> None:
    laid = plan(*weights)
    groups = task_groups(laid, slots)
    assert [task for group in groups for task in group] == list(laid.tasks)
    if slots is not None:
        assert len(groups) >= min(slots, len(weights))
    by_task = dict(zip(laid.tasks, weights, strict=True))
    for group in groups:
        heavy = sum(OPEN_BYTES + by_task[task] for task in group)
        assert len(group) == 1 or heavy <= TASK_LAKE_BYTES


def test_a_plan_knows_what_its_tasks_weigh() -> None:
    file = LakeFile(path="f", size_bytes=10_000, first_offset=0, last_offset=99)
    lake = LakeView(version=1, start=0, end=100, files=(file,))
    known = PartitionView(
        topic="t", partition=0, topic_id=TOPIC_ID, start=50, end=120, log_start=0, log_end=120, lake=lake,
    )  # fmt: skip
    assert plan_scan([known], Predicate()).weights == (5_000 + 20 * HOT_RECORD_BYTES,)
    halves = plan_scan([known], Predicate(), max_records_per_partition=35)
    assert halves.weights == (3_500, 1_500 + 20 * HOT_RECORD_BYTES)


@pytest.mark.parametrize("option", ["minPartitions", "maxRecordsPerPartition"])
def test_who_says_how_a_query_is_cut_has_it_cut_so(option: str) -> None:
    given = {"kafka.bootstrap.servers": "nobody:1", "subscribe": "t"}
    cut = parse_options({**given, option: "1"}, stream=False)
    assert KafkaBatchReader(cut, pa.schema([]), slots=2).slots is None
    assert KafkaBatchReader(parse_options(given, stream=False), pa.schema([]), slots=2).slots == 2


@pytest.mark.parametrize("source", [KafkaDataSource, PushingKafkaDataSource])
def test_the_number_of_slots_goes_to_the_processes_that_plan(source: type[KafkaDataSource]) -> None:
    there = pickle.loads(CloudPickleSerializer().dumps(of_session(source, 3)))
    made = there({"kafka.bootstrap.servers": "nobody:1", "subscribe": "t"})
    columns = StructType([StructField("offset", LongType())])
    batch, stream = made.reader(columns), made.streamReader(columns)
    assert isinstance(batch, KafkaBatchReader) and isinstance(stream, KafkaStreamReader)
    assert (batch.slots, stream.slots) == (3, 3)
    assert isinstance(batch, PushingKafkaBatchReader) == (source is PushingKafkaDataSource)
    # An executor needs nothing of it.
    assert pickle.loads(pickle.dumps(stream)).slots is None


class Settings(dict[str, str]):
    """Spark's, as `SparkConf.get` has them."""


@pytest.mark.parametrize(
    ("master", "registered", "settings", "expected"),
    [
        ("local", 1, {}, 1),
        ("local[2]", 2, {}, 2),
        # spark.default.parallelism is set.
        ("local[4]", 1, {}, 4),
        ("local[4, 3]", 1, {}, 4),
        ("local[2]", 8, {}, 8),
        ("local[*]", 1, {}, 6),
        ("local-cluster[2,1,1024]", 2, {}, None),
        ("yarn", 2, {}, None),
        ("yarn", 2, {"spark.executor.instances": "10"}, None),
        ("k8s://x", 2, {"spark.executor.instances": "10", "spark.executor.cores": "4"}, 40),
        ("k8s://x", 200, {"spark.executor.instances": "10", "spark.executor.cores": "4"}, 200),
        (
            "yarn",
            2,
            {
                "spark.dynamicAllocation.enabled": "true",
                "spark.executor.instances": "1",
                "spark.executor.cores": "4",
            },
            None,
        ),
        (
            "yarn",
            2,
            {
                "spark.dynamicAllocation.enabled": "TRUE",
                "spark.dynamicAllocation.maxExecutors": "5",
                "spark.executor.cores": "4",
            },
            20,
        ),
    ],
)
def test_slots_are_known_where_executors_have_a_bound(
    master: str, registered: int, settings: dict[str, str], expected: int | None
) -> None:
    context = SimpleNamespace(
        master=master, defaultParallelism=registered, getConf=lambda: Settings(settings)
    )
    runtime = SimpleNamespace(availableProcessors=lambda: 6)
    runtimes = SimpleNamespace(getRuntime=lambda: runtime)
    jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(Runtime=runtimes)))
    spark: Any = SimpleNamespace(_jvm=jvm, sparkContext=context)
    assert slots_of(spark) == expected


def test_a_spark_connect_client_knows_of_no_slots() -> None:
    spark: Any = SimpleNamespace()
    assert slots_of(spark) is None

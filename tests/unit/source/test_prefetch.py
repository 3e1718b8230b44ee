"""Rows that go along with the plan of a small micro-batch, as PySpark itself takes them from a reader."""

from __future__ import annotations

import io
import json
import pickle
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.serializers import read_int, write_with_length
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming import python_streaming_source_runner as runner
from pyspark.sql.types import LongType, StructField, StructType

from kafka_ds.client.settings import ClientSettings
from kafka_ds.errors import BrokerTimeout, CorruptBatch
from kafka_ds.source.datasource import KafkaDataSource
from kafka_ds.source.plan.input_partitions import ScanTaskGroup
from kafka_ds.source.plan.scan_plan import ColdRange, HotRange, ScanTask
from kafka_ds.source.read import prefetch as along
from kafka_ds.source.read.partition_reader import ReadConfig
from kafka_ds.source.read.prefetch import BYTES_MAX, OFFSETS_MAX, PrefetchesRows
from kafka_ds.source.stream import KafkaStreamReader
from tests.unit.source.source_broker import TOPIC_ID

SPARKS = StructType([StructField("offset", LongType())])
SCHEMA = pa.schema([pa.field("offset", pa.int64())])
BATCH = pa.record_batch([pa.array([3, 4, 5], pa.int64())], schema=SCHEMA)
CONFIG = ReadConfig(client=ClientSettings(bootstrap_servers=(("nobody", 1),)), schema=SCHEMA)
HOT = HotRange(start=3, end=6, leader_epoch=0)
TASK = ScanTask(topic="t", partition=0, topic_id=TOPIC_ID, ranges=(HOT,))


class Reader(PrefetchesRows, DataSourceStreamReader):
    """Plans what it is given."""

    def __init__(self, *groups: ScanTaskGroup) -> None:
        self.groups = groups

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._prefetched = None
        self._prefetch(self.groups, CONFIG)
        return [InputPartition(group) for group in self.groups]

    def read(self, partition: InputPartition) -> Any:
        raise AssertionError("a task's, in another process")


def planned(reader: DataSourceStreamReader) -> tuple[int, int, list[int]]:
    """How many partitions PySpark sends to the JVM, what it says of rows, and these."""
    asked, told = io.BytesIO(), io.BytesIO()
    for place in ({"at": 3}, {"at": 6}):
        write_with_length(json.dumps(place).encode(), asked)
    asked.seek(0)
    runner.partitions_func(reader, KafkaDataSource({}), SPARKS, 100, asked, told)
    told.seek(0)
    count = read_int(told)
    for _ in range(count):
        told.read(read_int(told))
    status = read_int(told)
    rows: list[int] = []
    if status == runner.NON_EMPTY_PYARROW_RECORD_BATCHES:
        read_int(told)
        rows = pa.ipc.open_stream(told).read_all()["offset"].to_pylist()
    return count, status, rows


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[pa.RecordBatch | Exception]:
    """What reading a task gives."""
    given: list[pa.RecordBatch | Exception] = [BATCH]

    def read_tasks(group: ScanTaskGroup, config: ReadConfig) -> Any:
        client = config.client
        assert config.poll_timeout_ms == along.PATIENCE_MS
        assert client.default_api_timeout_ms == along.PATIENCE_MS
        assert client.request_timeout_ms == along.PATIENCE_MS
        assert client.socket_connection_setup_timeout_ms == along.PATIENCE_MS
        for each in given:
            if isinstance(each, Exception):
                raise each
            yield each

    monkeypatch.setattr(along, "read_tasks", read_tasks)
    return given


def test_pyspark_takes_the_rows_of_a_small_task(reads: list[Any]) -> None:
    reader = Reader((TASK,))
    assert planned(reader) == (1, runner.NON_EMPTY_PYARROW_RECORD_BATCHES, [3, 4, 5])
    # They are given once, and at other questions it is no simple reader: those have no lag to report.
    assert not isinstance(reader, _SimpleStreamReaderWrapper)
    assert reader.prefetched is None


def test_pyspark_takes_the_rows_of_small_tasks_that_are_put_together(reads: list[Any]) -> None:
    assert planned(Reader((TASK, OTHER)))[:2] == (1, runner.NON_EMPTY_PYARROW_RECORD_BATCHES)


def test_a_task_without_rows_sends_none(reads: list[Any]) -> None:
    reads.clear()
    assert planned(Reader((TASK,))) == (1, runner.EMPTY_PYARROW_RECORD_BATCHES, [])


COLD = ColdRange(version=1, files=())
LARGE = replace(HOT, end=HOT.start + OFFSETS_MAX + 1)
LARGE_BESIDE = replace(HOT, end=HOT.start + OFFSETS_MAX - 2)
OTHER = replace(TASK, partition=1)


@pytest.mark.parametrize(
    "groups",
    [
        (),
        ((TASK,), (OTHER,)),
        ((replace(TASK, ranges=(COLD, HOT)),),),
        ((TASK, replace(OTHER, ranges=(COLD,))),),
        ((replace(TASK, ranges=(LARGE,)),),),
        ((TASK, replace(OTHER, ranges=(LARGE_BESIDE,))),),
    ],
    ids=["none", "two", "files", "files of another", "many offsets", "many offsets together"],
)
def test_the_rest_is_left_to_the_tasks(reads: list[Any], groups: tuple[ScanTaskGroup, ...]) -> None:
    assert planned(Reader(*groups)) == (len(groups), runner.PREFETCHED_RECORDS_NOT_FOUND, [])


def test_what_cannot_be_read_now_is_left_to_the_task(reads: list[Any]) -> None:
    reads.append(CorruptBatch("t-0: the batch of offsets 4 to 9 cannot be decoded"))
    reader = Reader((TASK,))
    assert planned(reader) == (1, runner.PREFETCHED_RECORDS_NOT_FOUND, [])
    reads.pop()
    assert planned(reader)[2] == [3, 4, 5]


def test_what_fails_again_and_again_is_tried_less_and_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind a quota each attempt waits for a second, and the task reads the rows all the same."""
    tried: list[int] = []
    over: list[int] = []

    def read_tasks(group: ScanTaskGroup, config: ReadConfig) -> Any:
        tried.append(len(over))
        if len(over) < 31:
            raise BrokerTimeout("no record came")
        yield BATCH

    monkeypatch.setattr(along, "read_tasks", read_tasks)
    reader = Reader((TASK,))
    for number in range(35):
        planned(reader)
        over.append(number)
    assert tried == [0, 1, 3, 7, 15, 31, 32, 33, 34]


def test_many_bytes_are_not_read_twice_again_and_again(reads: list[Any]) -> None:
    many = pa.record_batch([pa.array(range(BYTES_MAX // 8), pa.int64())], schema=SCHEMA)
    reads.append(many)
    reader = Reader((TASK,))
    assert planned(reader) == (1, runner.PREFETCHED_RECORDS_NOT_FOUND, [])
    reads.pop()
    # Three offsets were too many; one may be few enough.
    assert planned(reader)[1] == runner.PREFETCHED_RECORDS_NOT_FOUND
    reader.groups = ((replace(TASK, ranges=(replace(HOT, end=4),)),),)
    assert planned(reader)[1] == runner.NON_EMPTY_PYARROW_RECORD_BATCHES


@pytest.mark.parametrize("kept", [False, True])
def test_where_spark_keeps_the_log_of_workers_tasks_read(
    monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """They tell it what they read (`kafka_ds.scan_report`): Spark does not keep the log of the process that plans."""
    if kept:
        monkeypatch.setenv("PYSPARK_SPARK_SESSION_UUID", "a session")
    source = KafkaDataSource({"kafka.bootstrap.servers": "nobody:1", "subscribe": "t"})
    monkeypatch.delenv("PYSPARK_SPARK_SESSION_UUID", raising=False)
    there = pickle.loads(pickle.dumps(source))
    reader = there.streamReader(StructType([StructField("offset", LongType())]))
    assert isinstance(reader, KafkaStreamReader)
    assert reader.prefetches is not kept

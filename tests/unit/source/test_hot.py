"""Hot reads: what a task makes of the batches that a leader sends, without Spark."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from kafka_ds import spark_process
from kafka_ds.client import cluster_pool as kept
from kafka_ds.client.cluster import Topic
from kafka_ds.client.cluster_pool import pooled_cluster
from kafka_ds.client.settings import ClientSettings
from kafka_ds.errors import CorruptBatch, PlanGone, TopicGone
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    ApiVersionsRequest,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from kafka_ds.protocol.messages.data import FetchPartitionData
from kafka_ds.protocol.messages.offsets import (
    EARLIEST_LOCAL,
    LATEST_TIERED,
    ListOffsetsPartitionResponse,
)
from kafka_ds.records.batch import Codec, ControlType, Record, build_batch, end_transaction_marker
from kafka_ds.records.crc import crc32c
from kafka_ds.source.filters.predicate import Predicate
from kafka_ds.source.options.options import parse_options
from kafka_ds.source.plan.leader_epochs import Bounds
from kafka_ds.source.plan.offset_reader import OffsetReader
from kafka_ds.source.plan.scan_plan import HotRange, LakeView, ScanTask, plan_scan
from kafka_ds.source.read import partition_reader as reading
from kafka_ds.source.read.partition_reader import ReadConfig, read_task
from kafka_ds.topic.batches import convert
from kafka_ds.topic.batches.convert import decode_hot
from tests.fakes.scripted_broker import TOPIC_ID, scripted
from tests.requests import build

# Where a batch of format v2 has its checksum, and its first record.
CRC_AT, RECORDS_AT = 17, 61
SCHEMA = pa.schema([pa.field("value", pa.binary()), pa.field("offset", pa.int64())])


def batch(first: int, count: int) -> bytearray:
    records = [Record(first + n, 1000 + n, None, b"v%d" % (first + n)) for n in range(count)]
    return bytearray(build_batch(records, base_offset=first, leader_epoch=0))


def read(records: bytes, end: int) -> list[int]:
    """The offsets of a task that reads [0, end) of a leader with these records."""

    def script(request: Any) -> Any:
        return _fetched(records, end) if isinstance(request, FetchRequest) else None

    with scripted(script) as broker:
        rows = pa.Table.from_batches(_task_rows(broker.port, end), SCHEMA)
    assert rows["value"].to_pylist() == [b"v%d" % n for n in rows["offset"].to_pylist()]
    offsets: list[int] = rows["offset"].to_pylist()
    return offsets


def _fetched(records: bytes, end: int, code: ErrorCode = ErrorCode.NONE) -> FetchResponse:
    partition = FetchPartitionData(
        partition_index=0, error_code=code, high_watermark=end, records=records
    )
    return build(FetchResponse, topic="t", topic_id=TOPIC_ID, partitions=[partition])


def _settings(port: int, **more: str) -> ClientSettings:
    given = {
        "kafka.bootstrap.servers": f"127.0.0.1:{port}",
        "subscribe": "t",
        "kafka.retry.backoff.ms": "1",
        **more,
    }
    return parse_options(given).client


def _task_rows(
    port: int, end: int, *, is_beside_table: bool = False, **more: Any
) -> Iterator[pa.RecordBatch]:
    """The rows of a task that reads [0, end)."""
    piece = HotRange(start=0, end=end, leader_epoch=0, is_beside_table=is_beside_table)
    task = ScanTask(topic="t", partition=0, topic_id=TOPIC_ID, ranges=(piece,))
    return read_task(task, ReadConfig(client=_settings(port), schema=SCHEMA, **more))


def test_batches_become_rows_up_to_the_end_of_the_plan() -> None:
    assert read(bytes(batch(0, 4) + batch(4, 6)), 8) == list(range(8))


def test_what_unpacks_to_far_more_is_unpacked_some_batches_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fetch of a few megabytes can be gigabytes of rows: 120 MiB here, in 20 KiB."""
    sizes: list[int] = []

    def decoded(*given: Any, **more: Any) -> list[pa.RecordBatch]:
        tables = decode_hot(*given, **more)
        sizes.append(sum(each.nbytes for each in tables))
        return tables

    monkeypatch.setattr(convert, "decode_hot", decoded)
    large = (Record(n, 1000, None, bytes(1 << 20)) for n in range(120))
    records = b"".join(
        build_batch([each], base_offset=each.offset, leader_epoch=0, codec=Codec.ZSTD)
        for each in large
    )

    def script(request: Any) -> Any:
        return _fetched(records, 120) if isinstance(request, FetchRequest) else None

    with scripted(script) as broker:
        offsets = [n for rows in _task_rows(broker.port, 118) for n in rows["offset"].to_pylist()]
    assert offsets == list(range(118))
    assert max(sizes) < 1.5 * reading.BATCH_BYTES


@pytest.mark.parametrize("checksum_fits", [False, True])
def test_a_broken_batch_is_an_error_that_names_its_offsets(checksum_fits: bool) -> None:
    broken = batch(4, 6)
    broken[RECORDS_AT] ^= 0xFF
    if checksum_fits:
        broken[CRC_AT : CRC_AT + 4] = crc32c(broken[CRC_AT + 4 :]).to_bytes(4, "big")
    with pytest.raises(CorruptBatch, match="t-0: the batch of offsets 4 to 9 cannot be decoded"):
        read(bytes(batch(0, 4) + broken), 10)


def test_the_tasks_of_a_worker_speak_on_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Micro-batches are many and small; a client that failed, or that nobody took for long, is not used again."""
    records = [bytes(batch(0, 8))]

    def script(request: Any) -> Any:
        return _fetched(records[0], 8) if isinstance(request, FetchRequest) else None

    with scripted(script) as broker:

        def rows() -> int:
            return sum(each.num_rows for each in _task_rows(broker.port, 8))

        def connections() -> int:
            return sum(isinstance(each, ApiVersionsRequest) for each in broker.seen)

        assert [rows(), rows(), connections()] == [8, 8, 1]
        broken = batch(0, 8)
        broken[RECORDS_AT] ^= 0xFF
        records[0] = bytes(broken)
        with pytest.raises(CorruptBatch):
            rows()
        assert connections() == 1
        records[0] = bytes(batch(0, 8))
        assert [rows(), rows(), connections()] == [8, 8, 2]
        # Two at once have one each, of which one stays.
        with (
            pooled_cluster(_settings(broker.port)) as one,
            pooled_cluster(_settings(broker.port)) as two,
        ):
            assert one is not two
        assert [rows(), connections()] == [8, 2]
        monkeypatch.setattr(kept, "IDLE_MAX_S", 0.0)
        assert [rows(), connections()] == [8, 3]


def test_what_a_task_leaves_is_put_aside_when_it_is_much_and_only_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spark_process.settle, "times", 0)
    monkeypatch.setattr(spark_process, "SETTLED_TIMES_MAX", 2)
    loaded: list[list[list[int]]] = [[[]] for _ in range(spark_process.UNSETTLED_MAX)]
    records = bytes(batch(0, 8))

    def script(request: Any) -> Any:
        return _fetched(records, 8) if isinstance(request, FetchRequest) else None

    frozen = gc.get_freeze_count()
    with scripted(script) as broker:

        def task() -> tuple[int, bool]:
            assert sum(each.num_rows for each in _task_rows(broker.port, 8)) == 8
            walked = len(gc.get_objects()) > spark_process.UNSETTLED_MAX
            return spark_process.settle.times, walked

        try:
            assert [task(), task()] == [(1, False), (1, False)]
            loaded += [[[]] for _ in range(spark_process.UNSETTLED_MAX)]
            assert task() == (2, False)
            loaded += [[[]] for _ in range(spark_process.UNSETTLED_MAX)]
            assert task() == (2, True)
        finally:
            if not frozen:
                gc.unfreeze()


class LeavingTopic:
    """A leader of ten records, whose topic is not there any more when the first four have been fetched."""

    def __init__(self, *, anew: bool, returns_after: int) -> None:
        self.anew = anew
        self.left = returns_after
        self.gone = False
        self.broker: Any = None

    def __call__(self, request: Any) -> Any:
        if isinstance(request, FetchRequest):
            first = request.topics[0].partitions[0].fetch_offset
            if first == 0:
                self.gone = self.left > 0
                return _fetched(bytes(batch(0, 4)), 10)
            if self.gone:
                return _fetched(b"", 10, ErrorCode.UNKNOWN_TOPIC_ID)
            return _fetched(bytes(batch(4, 6)), 10)
        if not self.gone:
            return None
        self.left -= 1
        self.gone = self.left > 0
        if self.anew:
            return self.broker.metadata(topic_id=bytes(range(2, 18)))
        return self.broker.metadata(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, partitions=[])

    def rows(self, *, fail: bool) -> list[int]:
        with scripted(self) as broker:
            self.broker = broker
            offsets: list[int] = []
            for rows in _task_rows(broker.port, 10, fail_on_data_loss=fail):
                offsets += rows["offset"].to_pylist()
        return offsets


@pytest.mark.parametrize("anew", [True, False])
def test_a_topic_that_goes_while_it_is_read_ends_no_query_that_takes_losses(
    anew: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As the plan leaves it out that notices; Spark's own source goes on, too."""
    with pytest.raises(TopicGone, match="created again" if anew else "no topic t"):
        LeavingTopic(anew=anew, returns_after=99).rows(fail=True)
    with caplog.at_level(logging.WARNING, "kafka_ds.source"):
        assert LeavingTopic(anew=anew, returns_after=99).rows(fail=False) == [0, 1, 2, 3]
    assert "6 offsets are not there: t-0 [4, 10)" in caplog.text


@pytest.mark.parametrize("anew", [True, False])
def test_a_broker_that_does_not_know_a_topic_yet_is_asked_again(anew: bool) -> None:
    """Brokers apply a commit one after the other; what is lost must be lost for all."""
    assert LeavingTopic(anew=anew, returns_after=3).rows(fail=False) == list(range(10))


def test_a_few_offsets_are_not_megabytes_of_the_log() -> None:
    """Of `offset IN (…)` each is fetched by itself; ranges of large records ask for more and more."""
    wanted: list[int] = []

    def script(request: Any) -> Any:
        if not isinstance(request, FetchRequest):
            return None
        asked = request.topics[0].partitions[0]
        wanted.append(asked.partition_max_bytes)
        return _fetched(bytes(batch(asked.fetch_offset, 1)), 1_000)

    with scripted(script) as broker:
        assert sum(rows.num_rows for rows in _task_rows(broker.port, 1)) == 1
        assert wanted == [16_384]
        wanted.clear()
        assert sum(rows.num_rows for rows in _task_rows(broker.port, 12)) == 12
        assert wanted[:3] == [12 * 16_384, 11 * 32_768, 10 * 65_536]
        assert max(wanted) == _settings(broker.port).max_partition_fetch_bytes


def test_no_fetch_waits_for_more_than_it_asks_for() -> None:
    """A broker waits for `fetch.min.bytes` until `fetch.max.wait.ms` is over, where an answer has no room for them."""
    asked: list[tuple[int, int]] = []

    def script(request: Any) -> Any:
        if not isinstance(request, FetchRequest):
            return None
        wanted = request.topics[0].partitions[0]
        asked.append((request.min_bytes, wanted.partition_max_bytes))
        return _fetched(bytes(batch(wanted.fetch_offset, 1)), 1_000)

    with scripted(script) as broker:
        settings = _settings(broker.port, **{"kafka.fetch.min.bytes": "1000000"})
        piece = HotRange(start=0, end=12, leader_epoch=0)
        task = ScanTask(topic="t", partition=0, topic_id=TOPIC_ID, ranges=(piece,))
        rows = read_task(task, ReadConfig(client=settings, schema=SCHEMA))
        assert sum(each.num_rows for each in rows) == 12
    assert asked[0] == (12 * 16_384, 12 * 16_384)
    assert max(asked) == (1_000_000, settings.max_partition_fetch_bytes)


def test_a_batch_that_begins_below_what_has_come_brings_no_row_twice() -> None:
    """Out of the lake batches have other bounds than in the log: where a leader goes over, they overlap."""

    def script(request: Any) -> Any:
        if not isinstance(request, FetchRequest):
            return None
        first = request.topics[0].partitions[0].fetch_offset
        return _fetched(bytes(batch(0, 4) if first == 0 else batch(2, 5) + batch(7, 3)), 10)

    with scripted(script) as broker:
        found = [n for rows in _task_rows(broker.port, 10) for n in rows["offset"].to_pylist()]
    assert found == list(range(10))


# By the first offset that compaction has thinned out or taken, of ten.
THINNED = bytes(
    build_batch(
        [Record(n, 1000, None, b"v%d" % n) for n in (3, 5, 9)], base_offset=3, leader_epoch=0
    )
)
COMPACTED = {
    0: bytes(batch(2, 8)),
    3: bytes(batch(0, 3)) + THINNED,
    4: bytes(batch(0, 4) + batch(6, 4)),
}


@pytest.mark.parametrize("gap", COMPACTED)
@pytest.mark.parametrize(
    ("highest_offset_in_remote_storage", "local_start", "is_beside_table", "is_gone"),
    [
        (9, 0, True, True),
        (-1, 0, True, False),  # It was compacted before it became a table.
        (9, 5, True, False),  # It is the lake that these batches come from.
        (9, 0, False, False),  # The log alone is wanted.
    ],
)
def test_what_compaction_takes_from_a_plan_is_no_smaller_answer(
    gap: int,
    highest_offset_in_remote_storage: int,
    local_start: int,
    is_beside_table: bool,
    is_gone: bool,
) -> None:
    """The table that was planned with did not have it yet; the log does not have it any more."""

    def script(request: Any) -> Any:
        if isinstance(request, FetchRequest):
            return _fetched(COMPACTED[gap], 10)
        if not isinstance(request, ListOffsetsRequest):
            return None
        asked = request.topics[0].partitions[0].timestamp
        found = ListOffsetsPartitionResponse(
            partition_index=0,
            offset={EARLIEST_LOCAL: local_start, LATEST_TIERED: highest_offset_in_remote_storage}[
                asked
            ],
        )
        return build(ListOffsetsResponse, topics=[{"name": "t", "partitions": [found]}])

    with scripted(script) as broker:

        def offsets() -> list[int]:
            rows = _task_rows(broker.port, 10, is_beside_table=is_beside_table)
            return [n for each in rows for n in each["offset"].to_pylist()]

        if is_gone:
            with pytest.raises(PlanGone, match=f"from offset {gap} on the log was compacted since"):
                offsets()
        else:
            assert offsets()[-1] == 9


def test_who_lacks_nothing_is_asked_for_nothing_more() -> None:
    """Markers of transactions are no gaps; nor is what lies behind the end of the plan."""
    marker = end_transaction_marker(
        ControlType.COMMIT,
        offset=10,
        timestamp=1000,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        leader_epoch=0,
    )
    records = bytes(batch(0, 4) + batch(4, 6)) + marker + bytes(batch(11, 1) + batch(14, 1))

    def script(request: Any) -> Any:
        assert not isinstance(request, ListOffsetsRequest)
        return _fetched(records, 15) if isinstance(request, FetchRequest) else None

    with scripted(script) as broker:
        rows = _task_rows(broker.port, 12, is_beside_table=True)
        assert sum(each.num_rows for each in rows) == 11


@pytest.mark.parametrize("lakes", [{}, {"t": {}}])
def test_a_plan_says_whether_it_reads_the_table_too(
    lakes: dict[str, dict[int, LakeView]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the table has nothing of the partition yet."""
    reader = OffsetReader(parse_options({"kafka.bootstrap.servers": "none:1", "subscribe": "t"}))
    tables = SimpleNamespace(present=True, views=lambda name, topic_id: lakes[name])
    monkeypatch.setattr(reader, "tables", lambda: tables)
    topic = Topic(name="t", topic_id=TOPIC_ID, internal=False, partitions={})
    reader.open_tables(dict.fromkeys(lakes, topic))
    bounds = Bounds(topic_id=TOPIC_ID, start=0, end=10, leader_epoch=0)
    views = reader.views({("t", 0): (0, 10)}, {("t", 0): bounds}, Predicate())
    (task,) = plan_scan(views, Predicate()).tasks
    (piece,) = task.ranges
    assert isinstance(piece, HotRange)
    assert piece.is_beside_table is bool(lakes)

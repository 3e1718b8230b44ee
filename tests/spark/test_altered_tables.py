"""Topics' tables that somebody has altered by Spark's SQL: the source and `kafka_ds.scan` read what SQL reads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import kafka_ds
from broker.worker.delta.storage import RemoteStorageManager
from kafka_ds.delta.maintenance import write_checkpoint
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.topic.recovery import add_back, give_up
from tests.fakes.settings import tier_settings
from tests.integration.tier_segments import (
    all_records,
    cold_reads,
)
from tests.spark.scan_source import NOBODY, source
from tests.unit.source.source_lake import LakeRow, SourceLake, record_batch

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def lake(tmp_path: Path) -> SourceLake:
    """Ten rows in each of versions 1 to 4."""
    made = SourceLake(tmp_path)
    for start in range(0, 40, 10):
        made.add(0, [record_batch([LakeRow(offset=n) for n in range(start, start + 10)])])
    return made


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row[0] for row in frame.select("offset").collect())


def name(lake: SourceLake) -> str:
    return f"delta.`{lake.uri}/topics/t`"


def readers(spark: SparkSession, lake: SourceLake, **more: object) -> list[list[int]]:
    """By the source and by the scan."""
    given: dict[str, object] = {**NOBODY, "lake": lake.uri, **more}
    if "endingOffsets" in given:
        given["endingOffsets"] = json.dumps(given["endingOffsets"])
    return [
        offsets(source(spark, subscribe="t", **given)),
        offsets(kafka_ds.scan(spark, "t", **given)),
    ]


def by_sql(spark: SparkSession, lake: SourceLake) -> list[int]:
    return offsets(spark.sql(f"SELECT offset FROM {name(lake)}"))


def test_a_restore_and_the_way_back(spark: SparkSession, lake: SourceLake) -> None:
    spark.sql(f"DELETE FROM {name(lake)} WHERE offset BETWEEN 5 AND 24")
    spark.sql(f"RESTORE TABLE {name(lake)} TO VERSION AS OF 4")
    assert by_sql(spark, lake) == list(range(40))
    assert readers(spark, lake) == [list(range(40))] * 2
    spark.sql(f"RESTORE TABLE {name(lake)} TO VERSION AS OF 2")
    for each in (source, kafka_ds.scan):
        with pytest.raises(Exception, match=r"20 offsets are not there: t-0 \[20, 40\).*RESTORE"):
            offsets(each(spark, subscribe="t", **NOBODY, lake=lake.uri))
    assert readers(spark, lake, failOnDataLoss=False) == [list(range(20))] * 2
    assert readers(spark, lake, endingOffsets={"t": {"0": 20}}) == [list(range(20))] * 2
    assert add_back(lake.uri, "t").rows == {0: 20}
    assert readers(spark, lake) == [by_sql(spark, lake)] * 2 == [list(range(40))] * 2
    spark.sql(f"RESTORE TABLE {name(lake)} TO VERSION AS OF 3")
    assert give_up(lake.uri, "t") == {0: [(30, 39)]}
    assert readers(spark, lake) == [by_sql(spark, lake)] * 2 == [list(range(30))] * 2


@pytest.mark.parametrize("change", ["RENAME COLUMN value TO val", "DROP COLUMN value"])
def test_a_column_that_was_renamed_or_dropped_is_told(
    spark: SparkSession, lake: SourceLake, change: str
) -> None:
    spark.sql(
        f"ALTER TABLE {name(lake)} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name', "
        "'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5')"
    )
    assert readers(spark, lake) == [list(range(40))] * 2
    spark.sql(f"ALTER TABLE {name(lake)} {change}")
    given = {**NOBODY, "lake": lake.uri}
    with pytest.raises(ValueError, match="table of t has no column value any more.*RENAME COLUMN"):
        kafka_ds.scan(spark, "t", **given)
    values = source(spark, subscribe="t", **given).select("value").distinct().collect()
    assert [bytes(row[0]) for row in values] == [b"v"]
    if change.startswith("RENAME"):
        spark.sql(f"ALTER TABLE {name(lake)} RENAME COLUMN val TO value")
        assert readers(spark, lake) == [list(range(40))] * 2


def consumed(storage: RemoteStorageManager, lake: SourceLake) -> list[int]:
    """By a consumer of old offsets."""
    reads = cold_reads(storage, partition=TopicIdPartition(lake.topic_id, "t", 0), max_bytes=500)
    return [each.offset for chunks in reads for each in all_records(chunks)]


def test_deletion_vectors_are_honoured_by_all_readers_and_stop_no_copy(
    spark: SparkSession, lake: SourceLake
) -> None:
    settings = tier_settings(lake_uri=lake.uri, node_id=1, lake_maintenance_min_files=2)
    storage = RemoteStorageManager(lake.store, settings, CrashPoints())
    size = 3000
    lake.add(0, [record_batch([LakeRow(offset=n) for n in range(40, size)])], row_group_bytes=4096)

    def check(wanted: Iterable[int]) -> None:
        expected = list(wanted)
        assert by_sql(spark, lake) == expected
        assert readers(spark, lake) == [expected] * 2
        storage.states("t", lake.topic_id, [0])  # Follows the table at once.
        assert consumed(storage, lake) == expected
        frame = source(spark, subscribe="t", **NOBODY, lake=lake.uri)
        assert frame.count() == len(expected)
        some = frame.where("offset > 7 AND offset < 1500")
        assert offsets(some) == [each for each in expected if 7 < each < 1500]

    spark.sql(
        f"ALTER TABLE {name(lake)} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    spark.sql(f"DELETE FROM {name(lake)} WHERE offset IN (3, 17) OR offset BETWEEN 1000 AND 1999")
    left = [n for n in range(size) if n not in (3, 17) and not 1000 <= n < 2000]
    assert list(Path(lake.uri, "topics", "t").glob("**/deletion_vector_*.bin"))
    check(left)
    lake.add(0, [record_batch([LakeRow(offset=n) for n in range(size, size + 5)])])
    spark.sql(f"DELETE FROM {name(lake)} WHERE offset % 7 = 0")
    left = [n for n in (*left, *range(size, size + 5)) if n % 7]
    check(left)
    write_checkpoint(lake.table.log)
    done = storage.optimizer.optimize(TopicIdPartition(lake.topic_id, "t", 0), leader_epoch=0)
    assert done.rows and done.files_before > done.files_after
    check(left)
    spark.sql(f"DELETE FROM {name(lake)} WHERE offset = 5")
    left.remove(5)
    check(left)
    spark.sql(f"REORG TABLE {name(lake)} APPLY (PURGE)")
    check(left)
    spark.sql(f"RESTORE TABLE {name(lake)} TO VERSION AS OF 5")
    assert lake.table.read().missing(0) == [(size, size + 4)]
    assert add_back(lake.uri, "t").rows == {0: 4}, "what was deleted of it stays so"
    check([*range(size), *(n for n in range(size, size + 5) if n % 7)])

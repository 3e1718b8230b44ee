"""Spark with delta-spark at a topic's table: it reads our rows, and we read what it leaves."""

import datetime as dt
import json
import os
from pathlib import Path

import pytest

from broker.metadata.log import MetadataLog
from broker.worker.delta.storage import RemoteStorageManager
from broker.worker.delta.tiered_extent import removals
from kafka_ds.delta.commit import PlainChange
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.maintenance import write_checkpoint
from kafka_ds.delta.names import LOG_FOLDER, commit_file
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.topic.commit_rules import PartitionIntent, TableChanged
from kafka_ds.topic.names import CLUSTER_METADATA
from kafka_ds.topic.schemas import CHECKPOINT_INTERVAL
from kafka_ds.topic.snapshot import TopicSnapshot
from kafka_ds.topic.table import TopicTable
from tests.fakes.lake_rows import TOPIC_ID, commit, copy_of
from tests.fakes.settings import tier_settings
from tests.lake.foreign_rows import offsets
from tests.lake.odd_rows import ROWS, comparable, copy_rows

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def table(tmp_path):
    table = TopicTable(LocalStore(str(tmp_path)), "orders")
    table.open(TOPIC_ID)
    return table


def fill(table, count=4):
    for number in range(count):
        start = number * 200
        commit(table, *(copy_of(table, each, start, start + 199) for each in (0, 1)))


def uri(table):
    return table.log.store.uri(table.folder)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_spark_reads_our_rows(spark, table, checkpoint):
    copy_rows(table, 0, ROWS[:5], attempt="first")
    if checkpoint:
        write_checkpoint(table.log)
    copy_rows(table, 0, ROWS[5:])
    micros = "CASE WHEN timestamp IS NOT NULL THEN unix_micros(timestamp) END AS timestamp"
    names = [each for each in ROWS[0] if each != "timestamp"]
    frame = spark.read.format("delta").load(uri(table))
    found = frame.selectExpr("partition", micros, *names).collect()
    expected = [
        {
            **row,
            "partition": 0,
            "timestamp": row["timestamp"]
            and (row["timestamp"] - EPOCH) // dt.timedelta(microseconds=1),
        }
        for row in ROWS
    ]
    assert comparable(row.asDict(recursive=True) for row in found) == comparable(expected)


def test_spark_works_on_the_table_while_we_do(spark, table):
    fill(table)
    name = f"delta.`{uri(table)}`"
    assert spark.sql(f"SELECT count(*) FROM {name} WHERE offset >= 790").first()[0] == 20
    spark.sql(f"DELETE FROM {name} WHERE offset BETWEEN 100 AND 109")
    commit(table, copy_of(table, 0, 800, 809, attempt="later"))
    expected = [each for each in range(810) if not 100 <= each <= 109]
    assert offsets(table) == expected
    spark.sql(f"OPTIMIZE {name} ZORDER BY (key)")
    assert offsets(table, max_bytes=1000) == expected
    spark.sql(f"ALTER TABLE {name} ADD COLUMNS (note STRING)")
    commit(table, copy_of(table, 0, 810, 819, attempt="later"))
    expected += range(810, 820)
    assert offsets(table) == expected
    spark.sql(f"DELETE FROM {name} WHERE key = CAST('key-7' AS BINARY)")
    expected.remove(7)
    assert offsets(table) == expected
    spark.sql(f"VACUUM {name}")
    assert [each.complaint for each in table.snapshot.foreign_commits] == [None, None, None]
    assert sum(each.erased_rows for each in table.snapshot.foreign_commits) == 22
    rows = spark.sql(f"SELECT offset FROM {name} WHERE partition = 0 ORDER BY offset").collect()
    assert [row[0] for row in rows] == expected
    fresh = TopicSnapshot.load(table.log.store, "orders")
    assert (
        offsets(table, snapshot=fresh) == expected
        and fresh.highest_offset_in_remote_storage(0) == 819
    )


def test_sparks_own_checkpoints_are_read(spark, table):
    fill(table)
    name = f"delta.`{uri(table)}`"
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    spark.sql(f"DELETE FROM {name} WHERE offset < 10")
    assert table.log.last_checkpoint() == 6
    for version in range(6):
        table.log.store.delete(table.log.path(f"_delta_log/{version:020d}.json"))
    fresh = TopicSnapshot.load(table.log.store, "orders")
    assert fresh.topic_id == TOPIC_ID and fresh.highest_offset_in_remote_storage(1) == 799
    assert offsets(table, snapshot=fresh) == list(range(10, 800))


def test_spark_cleans_up_none_of_the_clusters_decisions(spark, tmp_path):
    """A broker starts from the commits since the last snapshot, which in a quiet cluster are older than a week."""
    store = LocalStore(str(tmp_path))
    cluster = MetadataLog(store)
    cluster.load()
    cluster.found("quiet")
    log = DeltaLog(store, CLUSTER_METADATA)
    while (version := log.latest_version()) < CHECKPOINT_INTERVAL - 1:
        log.commit(log.begin(PlainChange("NOTHING")), read_version=version)
    for entry in store.list(f"{CLUSTER_METADATA}/{LOG_FOLDER}"):
        os.utime(tmp_path / entry.path, (0, 0))
    name = f"delta.`{store.uri(CLUSTER_METADATA)}`"
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('note' = 'Spark makes a checkpoint of this')")
    assert log.last_checkpoint() == CHECKPOINT_INTERVAL
    assert MetadataLog(store).load().cluster_id == "quiet"


def lay_anew(table, *, data_change=False):
    """All of partition 0 in one file, as the broker merges small ones."""
    settings = tier_settings(lake_maintenance_min_files=2)
    storage = RemoteStorageManager(table.log.store, settings, CrashPoints())
    done = storage.optimizer.optimize(TopicIdPartition(TOPIC_ID, "orders", 0), leader_epoch=0)
    assert (done.reasons, done.files_after) == ({"small": 1}, 1)
    if data_change:
        # What would be seen if it were said to be a change.
        path = Path(table.log.store.root, table.folder, commit_file(table.log.latest_version()))
        path.write_text(path.read_text().replace('"dataChange":false', '"dataChange":true'))
    table.read()


@pytest.mark.parametrize("data_change", [False, True])
def test_a_stream_of_sparks_does_not_see_rows_again_that_were_laid_anew(
    spark, table, tmp_path, data_change
):
    """Neither a stream that runs during the merge nor one that reads every commit and is told to skip none."""
    fill(table, 3)
    assert streamed(spark, table, tmp_path).count() == 1200
    lay_anew(table, data_change=data_change)
    commit(table, copy_of(table, 0, 600, 609, attempt="later"))
    if data_change:
        with pytest.raises(Exception, match="DELTA_SOURCE_TABLE_IGNORE_CHANGES"):
            streamed(spark, table, tmp_path)
        return
    rows = streamed(spark, table, tmp_path)
    assert rows.count() == rows.distinct().count() == 1210


def streamed(spark, table, tmp_path, **options):
    """All that a stream with these options has written up to now."""
    query = (
        spark.readStream.format("delta")
        .options(**options)
        .load(uri(table))
        .select("partition", "offset")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    assert query.awaitTermination(300)
    return spark.read.parquet(str(tmp_path / "out"))


def test_a_stream_of_sparks_follows_the_table(spark, table, tmp_path):
    fill(table, 2)

    def run():
        return streamed(spark, table, tmp_path, skipChangeCommits="true")

    assert run().count() == 800
    write_checkpoint(table.log)
    commit(table, copy_of(table, 0, 400, 409, attempt="later"))
    rows = run()
    assert rows.count() == rows.distinct().count() == 810


SET = "ALTER TABLE {} SET TBLPROPERTIES ({})"
UNSET = "ALTER TABLE {} UNSET TBLPROPERTIES ({})"
MAPPED = "'delta.columnMapping.mode' = 'name'"
DROP = "ALTER TABLE {} DROP FEATURE {}"


@pytest.mark.parametrize(
    ("do", "why", "undo"),
    [
        pytest.param(
            [(SET, "'delta.appendOnly' = 'true'")],
            "delta.appendOnly",
            [(UNSET, "'delta.appendOnly'")],
            id="append-only",
        ),
        pytest.param(
            [(SET, "'delta.enableChangeDataFeed' = 'true'")],
            "delta.enableChangeDataFeed",
            [(UNSET, "'delta.enableChangeDataFeed'")],
            id="change-data-feed",
        ),
        pytest.param(
            [("ALTER TABLE {} ADD CONSTRAINT small CHECK ({})", "offset < 100000")],
            "CHECK constraint small",
            [("ALTER TABLE {} DROP CONSTRAINT {}", "small")],
            id="constraint",
        ),
        pytest.param(
            [(SET, "'delta.enableInCommitTimestamps' = 'true'")],
            "delta.enableInCommitTimestamps",
            [(UNSET, "'delta.enableInCommitTimestamps'")],
            id="in-commit-timestamps",
        ),
        pytest.param(
            [(SET, "'delta.enableRowTracking' = 'true'")],
            "rowTracking",
            [(UNSET, "'delta.enableRowTracking'"), (DROP, "rowTracking")],
            id="row-tracking",
        ),
        pytest.param(
            [(SET, "'delta.enableRowTracking' = 'true'")],
            "rowTracking",
            [
                (
                    SET,
                    "'delta.enableRowTracking' = 'false', 'delta.rowTrackingSuspended' = 'true'",
                )
            ],
            id="row-tracking-suspended",
        ),
        pytest.param(
            [(SET, MAPPED)],
            "delta.columnMapping.mode",
            [(SET, "'delta.columnMapping.mode' = 'none'")],
            id="column-mapping",
        ),
        pytest.param(
            [(SET, MAPPED), ("ALTER TABLE {} RENAME COLUMN key TO {}", "renamed")],
            "delta.columnMapping.mode",
            [
                ("ALTER TABLE {} RENAME COLUMN renamed TO {}", "key"),
                (SET, "'delta.columnMapping.mode' = 'none'"),
            ],
            id="renamed",
        ),
        pytest.param(
            [(SET, MAPPED)],
            "delta.columnMapping.mode",
            [(DROP, "columnMapping")],
            id="column-mapping-dropped",
        ),
        pytest.param(
            [(SET, "'delta.checkpointPolicy' = 'v2'")],
            "delta.checkpointPolicy",
            [(UNSET, "'delta.checkpointPolicy'")],
            id="v2-checkpoints",
        ),
        pytest.param(
            [
                (SET, "'delta.enableTypeWidening' = 'true'"),
                ("ALTER TABLE {} ADD COLUMNS ({})", "note INT"),
                ("ALTER TABLE {} ALTER COLUMN note TYPE {}", "BIGINT"),
            ],
            "column note was given a wider type",
            [(DROP, "typeWidening")],
            id="type-widening",
        ),
        pytest.param(
            [
                (SET, "'delta.feature.allowColumnDefaults' = 'supported'"),
                ("ALTER TABLE {} ADD COLUMNS ({})", "note STRING"),
                ("ALTER TABLE {} ALTER COLUMN note SET DEFAULT {}", "'x'"),
            ],
            "column note has a default",
            [("ALTER TABLE {} ALTER COLUMN {} DROP DEFAULT", "note")],
            id="default",
        ),
        pytest.param(
            [(SET, f"'delta.enableIcebergCompatV2' = 'true', {MAPPED}")],
            "delta.",
            [
                (UNSET, "'delta.enableIcebergCompatV2'"),
                (SET, "'delta.columnMapping.mode' = 'none'"),
            ],
            id="iceberg",
        ),
    ],
)
def test_what_stops_tiering_is_undone_by_sql(spark, table, do, why, undo):
    """docs/concepts/table.md says which; a feature that stays listed stops nothing."""
    fill(table, 2)
    name = f"delta.`{uri(table)}`"
    for statement, what in do:
        spark.sql(statement.format(name, what))
    part = copy_of(table, 0, 400, 409, attempt="later")
    with pytest.raises(TableChanged, match=why):
        commit(table, part)
    for statement, what in undo:
        spark.sql(statement.format(name, what))
    commit(table, part)
    write_checkpoint(table.log)
    commit(table, copy_of(table, 0, 410, 419, attempt="latest"))
    fresh = TopicSnapshot.load(table.log.store, "orders")
    assert offsets(table, snapshot=fresh) == list(range(420))
    assert [each.complaint for each in table.snapshot.foreign_commits if each.complaint] == []
    assert spark.sql(f"SELECT count(*) FROM {name} WHERE partition = 0").first()[0] == 420


def test_deletion_vectors_stop_nothing_and_can_be_taken_out(spark, table):
    fill(table, 2)
    name = f"delta.`{uri(table)}`"
    spark.sql(SET.format(name, "'delta.enableDeletionVectors' = 'true'"))
    spark.sql(f"DELETE FROM {name} WHERE offset < 5")
    commit(table, copy_of(table, 0, 400, 409, attempt="later"))
    assert table.snapshot.vectors() and offsets(table) == list(range(5, 410))
    spark.sql(UNSET.format(name, "'delta.enableDeletionVectors'"))
    spark.sql(f"REORG TABLE {name} APPLY (PURGE)")
    spark.sql(DROP.format(name, "deletionVectors"))
    commit(table, copy_of(table, 0, 410, 419, attempt="later"))
    write_checkpoint(table.log)
    for snapshot in (table.read(), TopicSnapshot.load(table.log.store, "orders")):
        assert offsets(table, snapshot=snapshot) == list(range(5, 420))
        assert not snapshot.vectors()


def test_a_column_of_ours_that_was_dropped_comes_back_with_a_restore(spark, table):
    fill(table, 2)
    name = f"delta.`{uri(table)}`"
    before = table.log.latest_version()
    spark.sql(SET.format(name, MAPPED))
    spark.sql(f"ALTER TABLE {name} DROP COLUMN headers_raw")
    part = copy_of(table, 0, 400, 409, attempt="later")
    with pytest.raises(TableChanged):
        commit(table, part)
    spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF {before}")
    commit(table, part)
    assert offsets(table) == list(range(410))


def test_sparks_history_shows_what_we_did(spark, table):
    fill(table, 1)
    (entry,) = table.read().index.files(0)
    removes = removals(table.snapshot, TOPIC_ID, 0, 200, now_ms=1)
    commit(
        table,
        PartitionIntent(partition=0, leader_epoch=0, log_start_offset=200, removes=removes),
        operation="DELETE",
    )
    history = spark.sql(f"DESCRIBE HISTORY delta.`{uri(table)}`").collect()
    expired, copied, created = (row.asDict() for row in history)
    assert copied["operationMetrics"]["numFiles"] == "2"
    assert copied["operationMetrics"]["numOutputRows"] == "400"
    assert int(copied["operationMetrics"]["numOutputBytes"]) > entry.size
    assert (copied["readVersion"], copied["isBlindAppend"]) == (0, True)
    assert copied["isolationLevel"] == "Serializable"
    assert copied["engineInfo"].startswith("kafka-ds/")
    assert expired["operationMetrics"] == {
        "numAddedFiles": "0",
        "numAddedBytes": "0",
        "numRemovedFiles": "1",
        "numRemovedBytes": str(entry.size),
        "numDeletedRows": "200",
        "numCopiedRows": "0",
    }
    assert (expired["readVersion"], expired["isBlindAppend"]) == (1, False)
    assert (created["readVersion"], created["operationMetrics"]) == (None, None)


def test_a_column_that_may_not_be_null_is_undone_by_sql(spark, table):
    fill(table, 1)
    schema = json.loads(table.read().metadata["schemaString"])
    next(each for each in schema["fields"] if each["name"] == "key")["nullable"] = False
    metadata = {**table.snapshot.metadata, "schemaString": json.dumps(schema)}
    change = PlainChange("CHANGE COLUMN", actions=[{"metaData": metadata}])
    table.log.commit(table.log.begin(change), read_version=table.snapshot.version)
    part = copy_of(table, 0, 200, 209, attempt="later")
    with pytest.raises(TableChanged, match="ALTER COLUMN key DROP NOT NULL"):
        commit(table, part)
    spark.sql(f"ALTER TABLE delta.`{uri(table)}` ALTER COLUMN key DROP NOT NULL")
    commit(table, part)
    assert offsets(table) == list(range(210))

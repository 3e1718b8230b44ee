"""Several processes at one table: each version has one winner, each offset one row."""

import random
import time
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from kafka_ds.delta.actions import commit_info, kafka_ds_info
from kafka_ds.topic.snapshot import TopicSnapshot
from kafka_ds.topic.table import TopicTable
from tests.fakes.lake_rows import TOPIC_ID
from tests.fakes.store import new_log
from tests.lake.racer import PARTITIONS
from tests.lake.races import outputs, racers


@pytest.mark.parametrize(
    "store",
    ["folder", "s3", *(pytest.param(each, marks=pytest.mark.slow) for each in ("gcs", "azure"))],
    indirect=True,
)
def test_each_version_is_won_once_beside_a_racing_delta_rs(store):
    log = new_log(store)
    # On S3 a commit takes ten times as long.
    count, appends = (80, 15) if store.local_path("") else (25, 5)
    entries = [("plain", "one", count), ("plain", "two", count), ("deltalake", "rs", appends)]
    with racers(store, *entries) as running:
        one, two, appended = outputs(running)
    won = [int(each) for each in (*one, *two)]
    assert len(won) == len(set(won)) == 2 * count and len(appended) == appends
    versions = dict(log.versions_after(0))
    assert list(versions) == list(range(1, 2 * count + appends + 1))
    ours = {version for version, actions in versions.items() if kafka_ds_info(actions)}
    assert ours == set(won)
    assert {
        (kafka_ds_info(versions[each])["who"], kafka_ds_info(versions[each])["number"])
        for each in ours
    } == {(who, number) for who in ("one", "two") for number in range(count)}
    theirs = [commit_info(versions[each])["operation"] for each in versions if each not in ours]
    assert theirs == ["WRITE"] * appends
    table = DeltaTable(store.uri("table"), storage_options=store.delta_options)
    assert table.version() == 2 * count + appends and len(table.file_uris()) == appends


def assert_each_offset_once(store, goal):
    """By our snapshot, and again by delta-rs alone."""
    snapshot = TopicSnapshot.load(store, "orders")
    table = DeltaTable(store.uri("topics/orders"), storage_options=store.delta_options)
    for partition in range(PARTITIONS):
        rows = []
        for uri in (each for each in table.file_uris() if f"/partition={partition}/" in each):
            file = pq.read_table(pa.BufferReader(store.read(uri)), columns=["offset"])
            rows.extend(file.column("offset").to_pylist())
        end = snapshot.highest_offset_in_remote_storage(partition)
        if end is None:
            assert rows == [] and goal < 0
            continue
        assert Counter(rows) == Counter(range(end + 1))
        assert end >= goal
        spans = [(each.min_offset, each.max_offset) for each in snapshot.index.files(partition)]
        assert spans[0][0] == 0
        assert all(
            after[0] == before[1] + 1 for before, after in zip(spans, spans[1:], strict=False)
        )


def test_tiers_that_copy_the_same_ranges(store):
    TopicTable(store, "orders").open(TOPIC_ID)
    with racers(store, *(("tier", name, 150) for name in ("one", "two", "three"))) as running:
        won = [each for output in outputs(running) for each in output]
    versions = [int(each.split()[1]) for each in won]
    assert len(versions) == len(set(versions))
    assert_each_offset_once(store, 150)


@pytest.mark.parametrize(
    "store", ["folder", pytest.param("s3", marks=pytest.mark.slow)], indirect=True
)
def test_tiers_that_are_killed_at_any_moment(store):
    """The table is whole after each kill, and the next process goes on where it stands."""
    lots = random.Random(4)
    table = TopicTable(store, "orders")
    table.open(TOPIC_ID)
    for round_number in range(3):
        store.delete("go")
        names = [f"{round_number}{each}" for each in ("one", "two")]
        with racers(store, *(("tier", name, 100_000) for name in names)) as running:
            for _ in range(lots.randint(1, 6)):
                assert running[0].stdout.readline().startswith("won")
            time.sleep(lots.uniform(0, 0.03))
        assert_each_offset_once(store, -1)
    goal = 20 + max(
        table.read().highest_offset_in_remote_storage(each) or 0 for each in range(PARTITIONS)
    )
    store.delete("go")
    with racers(store, ("tier", "last", goal)) as running:
        outputs(running)
    assert_each_offset_once(store, goal)

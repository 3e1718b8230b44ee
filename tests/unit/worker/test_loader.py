"""Bulk loads, as the worker of a leader commits them: what is there already, what is lost, and whose it is."""

from pathlib import Path

import pyarrow as pa
import pytest

from broker.worker.copier import Copier
from broker.worker.delta.segments import WrittenFiles
from broker.worker.delta.storage import RemoteStorageManager
from broker.worker.errors import StorageError
from broker.worker.loader import Loader
from broker.worker.metadata.remote_log import RemoteLogMetadataManager
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.process.system import new_uuid
from kafka_ds.sink.columns import check_columns
from kafka_ds.sink.load_files import LoadWriter
from kafka_ds.topic.lake import open_lake
from kafka_ds.topic.load import encode_load, load_file
from kafka_ds.topic.names import topic_table
from kafka_ds.topic.remote_log_segment import RemoteLogSegment
from tests.fakes.settings import load_plan, tier_settings
from tests.fakes.store import begin_lake

TOPIC, TOPIC_ID, OTHER_ID = "t", bytes(range(16)), bytes(range(1, 17))
LOAD = "A" * 21 + "w"
PARTITIONS = 3
PLAN = load_plan(LOAD, partition_count=PARTITIONS)


class LoadingWorker:
    """What a leader's worker loads with."""

    def __init__(self, lake: Path) -> None:
        begin_lake(lake)
        self.store = open_lake(str(lake), is_there=True)
        settings = tier_settings(lake_uri=str(lake))
        self.storage = RemoteStorageManager(self.store, settings, CrashPoints())
        metadata = RemoteLogMetadataManager(self.store, settings, CrashPoints())
        copier = Copier(
            self.storage, metadata, node_id=1, crash_points=CrashPoints(), new_id=new_uuid
        )
        self.now_s = 0.0
        self.loader = Loader(self.store, self.storage, copier, monotonic=lambda: self.now_s)

    def lead(self, *partitions: int, topic_id: bytes = TOPIC_ID) -> list[int]:
        """Begin to lead, as the service does; returns where those partitions end then."""
        self.now_s += 3_600
        epochs = dict.fromkeys(partitions, 0)
        count = self.loader.load(TOPIC, topic_id, epochs, LOAD)
        self.storage.fence(TOPIC, topic_id, epochs, loaded_count=count)
        return [
            each.highest_offset_in_remote_storage + 1
            for each in self.storage.states(TOPIC, topic_id, list(partitions))
        ]


def write(worker: LoadingWorker, *partitions: int) -> None:
    """A load with ten rows in each of these partitions, up to its list."""
    writer = LoadWriter(
        worker.store,
        PLAN,
        check_columns({"value": "string", "partition": "int"}, TOPIC),
        describe=str,
    )
    for each in partitions:
        writer.add(
            pa.record_batch({"value": ["x"] * 10, "partition": pa.array([each] * 10, pa.int32())})
        )
    worker.store.put_durable(load_file(LOAD), encode_load(TOPIC, PARTITIONS, writer.finish()))


@pytest.fixture
def worker(tmp_path: Path) -> LoadingWorker:
    return LoadingWorker(tmp_path / "lake")


# -- the list is lost -----------------------------------------------------------------------------


def test_one_leaders_commit_says_nothing_of_anothers_partitions(worker: LoadingWorker) -> None:
    write(worker, 0, 1)
    assert worker.lead(0) == [10]
    worker.store.delete(load_file(LOAD))
    assert worker.lead(0) == [10]
    for mine in ((1,), (2,), (0, 1)):
        with pytest.raises(StorageError, match="is not in the lake"):
            worker.lead(*mine)


def test_what_was_loaded_needs_no_list(worker: LoadingWorker) -> None:
    """Nor does a partition without rows, nor one that was added later."""
    write(worker, 0)
    assert worker.lead(0, 1, 2) == [10, 0, 0]
    worker.store.delete(load_file(LOAD))
    assert worker.lead(0, 1, 2) == [10, 0, 0]
    assert worker.lead(PARTITIONS, PARTITIONS + 1) == [0, 0]
    with pytest.raises(StorageError, match="is not in the lake"):
        worker.lead(0, topic_id=OTHER_ID)


def test_a_partition_that_drops_out_of_the_commit_is_not_marked(worker: LoadingWorker) -> None:
    write(worker, 0, 1)
    worker.storage.fence(TOPIC, TOPIC_ID, {1: 9})
    with pytest.raises(StorageError, match="leader epoch 9"):
        worker.lead(0, 1)
    assert worker.storage.not_loaded(TOPIC, TOPIC_ID, [0, 1]) == [1]


# -- a broker that knows no loads -------------------------------------------------------------------


def test_records_in_place_of_the_load_are_an_error(worker: LoadingWorker) -> None:
    write(worker, 0, 1)
    worker.storage.fence(TOPIC, TOPIC_ID, {0: 0})
    segment = RemoteLogSegment(
        topic=TOPIC,
        topic_id=TOPIC_ID,
        partition=0,
        start_offset=0,
        end_offset=4,
        leader_epochs=((0, 0),),
        leader_epoch=0,
        size_bytes=9,
        lake_bytes=9,
        row_count=5,
        max_timestamp_ms=1,
    )
    worker.storage.commit(
        TOPIC, TOPIC_ID, [WrittenFiles(segments=(segment,), files=(), begun_ms=0)]
    )
    with pytest.raises(StorageError, match="up to 4 of partition 0 .* not from its bulk load"):
        worker.lead(0)
    assert worker.lead(1) == [10]


# -- files ----------------------------------------------------------------------------------------


def test_a_file_that_is_lost_is_named(worker: LoadingWorker) -> None:
    write(worker, 0)
    (entry,) = worker.store.list(f"{topic_table(TOPIC)}/partition=0")
    worker.store.delete(entry.path)
    with pytest.raises(StorageError, match="of its bulk load is not in the lake"):
        worker.lead(0)


def test_what_is_missing_is_looked_for_less_and_less_often(worker: LoadingWorker) -> None:
    write(worker, 0)
    (entry,) = worker.store.list(f"{topic_table(TOPIC)}/partition=0")
    data = worker.store.read(entry.path)
    worker.store.delete(entry.path)
    looked: list[float] = []
    read = worker.store.read

    def counted(path: str) -> bytes:
        if path == load_file(LOAD):
            looked.append(worker.now_s)
        return read(path)

    worker.store.read = counted  # type: ignore[method-assign]
    for _ in range(100):
        with pytest.raises(StorageError, match="of its bulk load is not in the lake"):
            worker.loader.load(TOPIC, TOPIC_ID, {0: 0}, LOAD)
        worker.now_s += 1
    assert looked == [0, 1, 3, 7, 15, 31, 63, 95]
    worker.store.put_durable(entry.path, data)
    assert worker.lead(0) == [10]


# -- whose it is ------------------------------------------------------------------------------------


def test_a_copied_setting_is_an_error(worker: LoadingWorker) -> None:
    write(worker, 0)
    assert worker.lead(0) == [10]
    with pytest.raises(StorageError, match=r"lake\.load was copied; delete the topic"):
        worker.lead(0, topic_id=OTHER_ID)
    assert worker.lead(0) == [10]


@pytest.mark.parametrize("is_read_before", [False, True])
def test_what_was_deleted_does_not_come_back(worker: LoadingWorker, is_read_before: bool) -> None:
    write(worker, 0)
    assert worker.lead(0) == [10]
    data = worker.store.read(load_file(LOAD))
    worker.storage.delete_topic(TOPIC, TOPIC_ID)
    assert not worker.store.list("_loads")
    read = worker.store.read
    worker.store.read = lambda path: (  # type: ignore[method-assign]
        data if is_read_before and path == load_file(LOAD) else read(path)
    )
    with pytest.raises(StorageError, match="is not in the lake"):
        worker.lead(0, topic_id=OTHER_ID)
    assert not worker.store.list("_loads")


def test_another_load_stays_when_a_topic_goes(worker: LoadingWorker) -> None:
    write(worker, 0)
    worker.storage.delete_topic("u", OTHER_ID)
    assert worker.lead(0) == [10]

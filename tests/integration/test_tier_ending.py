"""How a partition stood where a range ends, as the lake tells it, against the log that it came from; fences."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.log.log import Log
from broker.worker.copier import Copier
from broker.worker.delta.storage import RemoteStorageManager
from broker.worker.errors import OffsetOutOfRange, StorageError
from broker.worker.metadata.remote_log import RemoteLogMetadataManager
from broker.worker.rpc import CONFLICT, FAILED, FINISHED, LogSegmentData
from kafka_ds.delta.actions import remove_action
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.process.system import new_uuid
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.records.batch import ControlType, Record, build_batch, end_transaction_marker
from kafka_ds.segments.producers import AppendOrigin
from kafka_ds.topic.commit_rules import Intent, PartitionIntent
from kafka_ds.topic.table import TopicTable
from tests.fakes.memory_disk import MemoryDisk
from tests.fakes.settings import tier_settings
from tests.fakes.store import MemoryStore
from tests.integration.tier_segments import (
    PARTITION,
    TOPIC,
    TOPIC_ID,
    changed,
    copy_range,
    copy_request,
    segment,
)
from tests.integration.worker_bench import WorkerBench
from tests.model_runs import examples
from tests.unit.replica.followed_logs import NOW_MS, content, open_log

IDEMPOTENT = (1, 2)
TRANSACTIONAL = (11, 12, 13)


class ProducerHistory:
    """A log that producers have written to, and the producers' state after each batch."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.log: Log = open_log(MemoryDisk())
        self.snapshots: dict[int, bytes] = {}
        self._sequences: dict[int, int] = {}
        self._open: set[int] = set()
        self.epoch = 0

    def go_on(self, count: int) -> None:
        for _ in range(count):
            if self.random.random() < 0.05:
                self.epoch += self.random.randint(1, 3)
                self.log.assign_leader_epoch(self.epoch, self.log.log_end_offset)
            if self._open and self.random.random() < 0.3:
                self._end(self.random.choice(sorted(self._open)))
            else:
                self._write(self.random.choice((-1, *IDEMPOTENT, *TRANSACTIONAL)))
        for producer_id in sorted(self._open):
            self._end(producer_id)

    def _write(self, producer_id: int) -> None:
        count = self.random.randint(1, 4)
        sequence = self._sequences.get(producer_id, 0)
        batch = build_batch(
            [Record(i, NOW_MS + i, b"k", b"v" * self.random.randint(0, 40)) for i in range(count)],
            producer_id=producer_id,
            producer_epoch=-1 if producer_id < 0 else 0,
            base_sequence=-1 if producer_id < 0 else sequence,
            is_transactional=producer_id in TRANSACTIONAL,
        )
        self._append(batch, AppendOrigin.CLIENT)
        self._sequences[producer_id] = sequence + count
        if producer_id in TRANSACTIONAL:
            self._open.add(producer_id)

    def _end(self, producer_id: int) -> None:
        self._open.remove(producer_id)
        marker = end_transaction_marker(
            self.random.choice((ControlType.ABORT, ControlType.COMMIT)),
            timestamp=NOW_MS,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=3,
        )
        self._append(marker, AppendOrigin.COORDINATOR)

    def _append(self, batch: bytes, origin: AppendOrigin) -> None:
        log = self.log
        log.append(
            memoryview(bytearray(batch)), leader_epoch=self.epoch, now_ms=NOW_MS, origin=origin
        )
        self.snapshots[log.log_end_offset - 1] = log.producers.encode_snapshot()

    def ranges(self, folder: Path, count: int) -> list[LogSegmentData]:
        """The whole log, cut at random between batches; few ranges carry their producers."""
        ends = sorted(self.random.sample(sorted(self.snapshots)[:-1], count - 1))
        ends.append(self.log.log_end_offset - 1)
        found, start = [], 0
        for end in ends:
            path = folder / f"{start}.log"
            path.write_bytes(content(self.log, end + 1)[len(content(self.log, start)) :])
            found.append(
                replace(
                    changed(
                        copy_range(path, start, end, epoch=self.epoch),
                        leader_epochs=self.log.leader_epochs.between(start, end + 1),
                    ),
                    lineage=self.log.leader_epochs.between(0, end + 1),
                    aborted=tuple(e[:3] for e in self.log.aborted_transactions(start, end + 1)),
                    producer_snapshot=self.snapshots[end] if self.random.random() < 0.3 else b"",
                )
            )
            start = end + 1
        return found


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.mark.parametrize("seed", range(examples(12)))
def test_the_lake_knows_producers_and_epochs_behind_each_range(
    store: MemoryStore, tmp_path: Path, seed: int
) -> None:
    history = ProducerHistory(seed)
    history.go_on(60)
    worker = WorkerBench(store)
    ranges = history.ranges(tmp_path, 8)
    for each in ranges:
        (outcome,) = worker.copy(each)
        assert outcome.outcome == FINISHED
    for source in ranges:
        each = source.segment
        offset = history.random.randint(each.start_offset, each.end_offset)
        found = worker.storage.aux_state.at(TopicIdPartition(TOPIC_ID, TOPIC, 0), offset)
        assert found.end_offset == each.end_offset
        assert found.leader_epochs == source.lineage
        assert found.producer_snapshot == history.snapshots[each.end_offset]


def test_what_is_not_in_the_lake_has_no_ending(store: MemoryStore, tmp_path: Path) -> None:
    worker = WorkerBench(store)
    worker.copy(copy_range(segment(tmp_path / "0.log", 0, 10), 0, 9))
    for offset in (-1, 10):
        with pytest.raises(OffsetOutOfRange):
            worker.storage.aux_state.at(TopicIdPartition(TOPIC_ID, TOPIC, 0), offset)


def copied(worker: WorkerBench, tmp_path: Path, start: int, epoch: int) -> Any:
    path = segment(tmp_path / f"{start}-{epoch}.log", start, 10, epoch=epoch)
    (outcome,) = worker.copy(copy_range(path, start, start + 9, epoch=epoch))
    return outcome


def test_behind_a_fence_no_earlier_leader_commits(store: MemoryStore, tmp_path: Path) -> None:
    former, worker = WorkerBench(store), WorkerBench(store)
    assert copied(former, tmp_path, 0, 3).outcome == FINISHED
    worker.storage.fence(TOPIC, TOPIC_ID, {0: 5})
    assert copied(former, tmp_path, 10, 4).outcome in (CONFLICT, FAILED)
    assert worker.storage.state(PARTITION).highest_offset_in_remote_storage == 9
    assert copied(worker, tmp_path, 10, 5).outcome == FINISHED
    with pytest.raises(StorageError, match="leader epoch 5"):
        former.storage.fence(TOPIC, TOPIC_ID, {0: 4})


def test_a_fence_comes_before_a_table_that_an_earlier_leader_is_about_to_make(
    store: MemoryStore, tmp_path: Path
) -> None:
    worker = WorkerBench(store)
    worker.storage.fence(TOPIC, TOPIC_ID, {0: 5, 1: 2})
    assert copied(WorkerBench(store), tmp_path, 0, 4).outcome in (CONFLICT, FAILED)
    assert worker.storage.state(PARTITION).highest_offset_in_remote_storage == -1


def test_a_fence_is_committed_once(store: MemoryStore) -> None:
    worker = WorkerBench(store)
    worker.storage.fence(TOPIC, TOPIC_ID, {0: 5})
    before = set(store.objects)
    WorkerBench(store).storage.fence(TOPIC, TOPIC_ID, {0: 5})
    assert set(store.objects) == before


def lose_residue(store: MemoryStore, start: int) -> None:
    (path,) = (each for each in store.objects if f"/_residue/partition=0/{start:020d}-" in each)
    store.delete(path)


def test_rows_know_the_epochs_where_residue_is_lost(store: MemoryStore, tmp_path: Path) -> None:
    """A divergence after an unclean election was not noticed: the log's epoch was compared with nothing."""
    worker = WorkerBench(store)
    for start, epoch in ((0, 2), (10, 3)):
        assert copied(worker, tmp_path, start, epoch).outcome == FINISHED
    known = worker.storage.aux_state.at(TopicIdPartition(TOPIC_ID, TOPIC, 0), 19)
    assert (known.leader_epochs[-1][0], known.epochs_known_to) == (3, None)
    lose_residue(store, 10)
    found = WorkerBench(store).storage.aux_state.at(TopicIdPartition(TOPIC_ID, TOPIC, 0), 19)
    assert (found.end_offset, found.leader_epochs, found.epochs_known_to) == (19, ((3, 10),), 19)


def test_epochs_are_known_up_to_the_last_row(store: MemoryStore, tmp_path: Path) -> None:
    """Files overlap, and the last rows were erased."""
    worker = WorkerBench(store)
    for start, epoch in ((0, 2), (10, 3), (20, 4)):
        assert copied(worker, tmp_path, start, epoch).outcome == FINISHED
    lose_residue(store, 20)
    found = WorkerBench(store)
    table = TopicTable(store, TOPIC, clock=store.clock)
    table.read()
    (last,) = table.snapshot.index.find(0, 20, 29)
    gone = remove_action(path=last.action_path, partition_values={}, size=1, deleted_ms=1)

    def ending_behind(**change: Any) -> tuple[object, int | None]:
        part = PartitionIntent(partition=0, leader_epoch=4, **change)
        intent = Intent(operation="TEST", topic_id=TOPIC_ID, partitions=(part,))
        table.commit(intent, begun_ms=table.begin_ms())
        ending = found.storage.aux_state.at(TopicIdPartition(TOPIC_ID, TOPIC, 0), 29)
        return ending.leader_epochs, ending.epochs_known_to

    assert ending_behind(removes=(gone,)) == (((3, 10),), 19)
    assert ending_behind(log_start_offset=20) == ((), -1), "nobody can say"
    assert ending_behind(log_start_offset=30) == ((), None), "nothing is left"


class GivesUpAt(CrashPoints):
    """The leadership of partition 1 is lost at this step."""

    def __init__(self, point: str) -> None:
        super().__init__()
        self._point = point
        self.copier: Copier | None = None

    def at(self, point: str) -> None:
        if point == self._point and self.copier is not None:
            self.copier.give_up(TOPIC_ID, 1, 3)


@pytest.mark.parametrize("point", ["after_started", "after_parquet", "after_residue"])
def test_a_copy_of_what_is_led_elsewhere_by_now_goes_no_further(
    store: MemoryStore, tmp_path: Path, point: str
) -> None:
    settings = tier_settings(node_id=1)
    points = GivesUpAt(point)
    copier = Copier(
        RemoteStorageManager(store, settings, points, clock=store.clock),
        RemoteLogMetadataManager(store, settings, points, clock=store.clock),
        node_id=1,
        crash_points=points,
        new_id=new_uuid,
    )
    points.copier = copier
    source = segment(tmp_path / "0.log", 0, 10)
    both = [copy_range(source, 0, 9, partition=number) for number in (0, 1)]
    outcomes = {each.partition: each for each in copier.copy(copy_request(both)).partitions}
    assert outcomes[0].outcome == FINISHED
    assert (outcomes[1].outcome, outcomes[1].highest_offset_in_remote_storage) == (FAILED, -1)
    assert (
        WorkerBench(store)
        .storage.state(TopicIdPartition(TOPIC_ID, TOPIC, 1))
        .highest_offset_in_remote_storage
        == -1
    )
    # Elected again, it begins anew; what was said of its former epoch does not concern this one.
    again = copier.copy(copy_request([copy_range(source, 0, 9, partition=1, epoch=4)])).partitions
    assert [each.outcome for each in again] == [FINISHED]

"""What a worker does beside its copies: the upkeep of tables, and the publication of offsets."""

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from broker.worker import service as worker_service
from broker.worker.rpc import FINISHED, CopyRequest, PartitionOffsets, PublishOffsets
from broker.worker.service import Service
from kafka_ds.delta import maintenance
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.maintenance import BadCheckpoint
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.ipc.channel import BlockingChannel
from kafka_ds.ipc.worker import Operations, Worker
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.topic.names import REMOTE_LOG_METADATA, topic_table
from kafka_ds.topic.offsets import OffsetsTable
from tests.fakes.settings import tier_settings
from tests.fakes.store import ALWAYS, FolderStore, begin_lake
from tests.integration.tier_segments import TOPIC, copy_range, copy_request, segment

RECORDS = 5
COPIES = 3


def test_one_table_without_a_checkpoint_keeps_no_other_from_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that cannot open one topic's table would leave the log of all events to grow for ever."""
    write = maintenance.write_checkpoint

    def write_most(log: DeltaLog) -> int:
        if log.table == topic_table(TOPIC):
            raise BadCheckpoint("what others wrote is not read alike")
        return write(log)

    monkeypatch.setattr(maintenance, "write_checkpoint", write_most)
    lake = tmp_path / "lake"
    begin_lake(lake)
    settings = tier_settings(
        lake_uri=str(lake), log_dirs=(), lake_copy_threads=1, lake_checkpoint_interval=2
    )
    service = Service(settings, CrashPoints())
    for number in range(COPIES):
        start = number * RECORDS
        source = segment(tmp_path / f"{number}.log", start, RECORDS)
        copied = copy_request([copy_range(source, start, start + RECORDS - 1)])
        answer: Any = service.writing()[CopyRequest](copied)
        assert [each.outcome for each in answer.partitions] == [FINISHED]
        service.afterwards()
    store = LocalStore(str(lake))
    assert DeltaLog(store, topic_table(TOPIC)).last_checkpoint() is None
    assert DeltaLog(store, REMOTE_LOG_METADATA).last_checkpoint() is not None


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderStore:
    """What services to come open as their lake."""
    begin_lake(tmp_path / "lake")
    store = FolderStore(tmp_path / "lake")
    monkeypatch.setattr(worker_service, "open_lake", lambda uri, **_: store)
    return store


def test_upkeep_in_the_middle_of_a_copy_is_not_all(tmp_path: Path, store: FolderStore) -> None:
    """The thread that publishes offsets asks for it whenever it is done."""
    settings = tier_settings(lake_uri="lake", log_dirs=(), lake_checkpoint_interval=1)
    service = Service(settings, CrashPoints())
    copy = service.writing()[CopyRequest]

    store.race(service.afterwards, path=f"{topic_table(TOPIC)}/*.json", times=ALWAYS)
    for number in range(COPIES):
        start = number * RECORDS
        source = segment(tmp_path / f"{number}.log", start, RECORDS)
        copied: Any = copy(copy_request([copy_range(source, start, start + RECORDS - 1)]))
        assert [each.outcome for each in copied.partitions] == [FINISHED]
    service.afterwards()
    log = DeltaLog(store, topic_table(TOPIC))
    assert log.last_checkpoint() == log.listing().latest


def test_offsets_are_published_while_a_copy_is_under_way(
    tmp_path: Path, store: FolderStore
) -> None:
    """A broker that stops does not wait for it."""
    copying = store.hold(path=f"{topic_table(TOPIC)}/*.json")
    service = Service(tier_settings(lake_uri="lake", node_id=1, log_dirs=()), CrashPoints())
    end, other = socket.socketpair()
    end.settimeout(60)
    broker = BlockingChannel(end)
    worker = Worker(
        BlockingChannel(other),
        Operations(
            writing=(service.writing(), service.publishing()),
            reading=service.reading(),
            afterwards=lambda: None,
        ),
        reader_threads=1,
        reader_niceness=0,
    )
    serving = threading.Thread(target=worker.run, daemon=True)
    serving.start()
    source = segment(tmp_path / "0.log", 0, RECORDS)
    broker.send((1, (), copy_request([copy_range(source, 0, RECORDS - 1)])))
    assert copying.reached.wait(60)
    # Where it did wait, it comes second.
    waited = threading.Timer(30, copying.goes_on.set)
    waited.start()
    partition = PartitionOffsets(
        topic=TOPIC,
        topic_id="id",
        partition=0,
        leader_epoch=3,
        log_start_offset=0,
        local_log_start_offset=0,
        last_stable_offset=5,
        high_watermark=5,
        log_end_offset=5,
        size_bytes=100,
    )
    broker.send((2, (), PublishOffsets(partitions=[partition], shards=[])))
    answered = [broker.receive()]
    waited.cancel()
    copying.goes_on.set()
    answered.append(broker.receive())
    assert [each[0][0] for each in answered if each is not None] == [2, 1]
    assert [row["log_end_offset"] for row in OffsetsTable(store).read()] == [5]
    end.close()
    serving.join(60)

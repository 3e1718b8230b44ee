"""A full disk takes its directory offline where another replica can lead, and refuses records where none can."""

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from broker.controller import brokers
from broker.controller.draft import ControllerResult
from broker.metadata.log import MetadataLog
from kafka_ds.process.system import SystemFile
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.topic_partition import TopicPartition
from tests.in_process import Cluster, InProcess, batch_of, in_process_cluster, values_of
from tests.integration.replicated_nodes import QUICK, create, leader, log_of
from tests.loops import in_loop

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FullFolders:
    """Folders of which no file can grow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all: set[Path] = set()
        write = SystemFile.write

        def refusing(file: SystemFile, data: bytes, position: int) -> int:
            if any(Path(file.path).is_relative_to(each) for each in self.all):
                raise FULL
            return write(file, data, position)

        monkeypatch.setattr(SystemFile, "write", refusing)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> FullFolders:
    return FullFolders(monkeypatch)


def offline(broker: InProcess) -> int:
    return sum(error is not None for error in broker.node.log_manager.failures.values())


def offline_replicas(broker: InProcess) -> float:
    name = "kafka_server_replicamanager_offlinereplicacount"
    (count,) = (value for metric, _, value in broker.owner.metrics.samples() if metric.name == name)
    assert isinstance(count, int)
    return count


async def produce(cluster: Cluster, node_id: int, value: bytes, topic: str = "t") -> int:
    answer = await cluster.nodes[node_id].produce(topic, batch_of([value]), acks=-1)
    code: int = answer.error_code
    return code


@in_loop
async def test_its_leaders_move_and_other_directories_stay(
    tmp_path: Path, full: FullFolders, caplog: pytest.LogCaptureFixture
) -> None:
    async with in_process_cluster(tmp_path, 2, **QUICK) as cluster:
        await cluster.stop(1)
        dirs = [tmp_path / "one", tmp_path / "two"]
        broker = await cluster.start(1, log_dirs=",".join(map(str, dirs)))
        await create(cluster, 1, 2)
        await create(cluster, 1, name="alone")
        assert await produce(cluster, 1, b"before") == ErrorCode.NONE
        assert offline_replicas(broker) == 0
        folder = Path(log_of(cluster, 1).directory).parent
        full.all.add(folder)
        assert await produce(cluster, 1, b"refused") == ErrorCode.KAFKA_STORAGE_ERROR
        await cluster.until("a directory that is offline", lambda: offline(broker) == 1)
        assert f"Error while appending records to t-0 in dir {folder}" in caplog.text
        assert f"Stopping serving 1 log in dir {folder}" in caplog.text
        await cluster.until("another leader", lambda: leader(cluster) is not None)
        moved = leader(cluster)
        assert moved is not None
        assert moved is cluster.nodes[2].node.replica_manager.find("t", 0)
        await cluster.until("another high watermark", lambda: moved.high_watermark == 1)
        assert await produce(cluster, 2, b"after") == ErrorCode.NONE
        answer = await cluster.nodes[2].fetch("t", 0)
        assert values_of(answer.records) == [b"before", b"after"]
        assert await produce(cluster, 1, b"in the other", "alone") == ErrorCode.NONE
        # Not led here any more, it still counts until the broker restarts.
        assert offline_replicas(broker) == 1
        assert offline_replicas(cluster.nodes[2]) == 0


@in_loop
async def test_of_those_that_are_full_at_once_the_last_in_sync_stays(
    tmp_path: Path, full: FullFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All report while the store is away, and none knows yet what is decided about the others."""
    async with in_process_cluster(tmp_path, 0, **QUICK) as cluster:
        for node_id in (1, 2):
            dirs = [tmp_path / f"{node_id}-{name}" for name in ("full", "empty")]
            paths = ",".join(map(str, dirs))
            await cluster.start(node_id, log_dirs=paths, cordoned_log_dirs=dirs[1])
        await cluster.until("cordoned directories", lambda: all_cordoned(cluster))
        await create(cluster, 1, 2)
        await create(cluster, 2, 1, name="u")
        heartbeat, commit = brokers.heartbeat, MetadataLog.commit
        reported, is_back = set[int](), threading.Event()

        def noted(draft: Any, sessions: Any, beat: Any, now_ms: int) -> Any:
            reported.update({beat.broker_id} if beat.offline_log_dirs else {})
            return heartbeat(draft, sessions, beat, now_ms)

        def held(log: Any, made: Any) -> Any:
            assert is_back.wait(60)
            return commit(log, made)

        monkeypatch.setattr(brokers, "heartbeat", noted)
        monkeypatch.setattr(MetadataLog, "commit", held)
        full.all = {tmp_path / "1-full", tmp_path / "2-full"}
        assert await produce(cluster, 1, b"refused") == ErrorCode.KAFKA_STORAGE_ERROR
        assert await produce(cluster, 2, b"refused", "u") == ErrorCode.KAFKA_STORAGE_ERROR
        await cluster.until("two reports", lambda: reported == {1, 2})
        driver = cluster.controller.node.metadata_driver
        is_back.set()
        await driver.decide(lambda _: ControllerResult(events=(), result=None))
        (stays,) = (each for each in driver.image.brokers.values() if len(each.log_dirs) == 2)
        leaders = {topic: driver.image.topics[topic].partitions[0].leader for topic in ("t", "u")}
        assert leaders == dict.fromkeys(("t", "u"), stays.broker_id)
        other = cluster.nodes[3 - stays.broker_id]
        await cluster.until("a directory that is offline", lambda: offline(other) == 1)
        assert offline(cluster.nodes[stays.broker_id]) == 0


def all_cordoned(cluster: Cluster) -> bool:
    image = cluster.controller.node.metadata_driver.image
    return all(len(each.cordoned_log_dirs) == 1 for each in image.brokers.values())


@in_loop
async def test_where_no_other_replica_is_in_sync_it_waits_for_room(
    tmp_path: Path, full: FullFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_process_cluster(tmp_path, 2, **QUICK) as cluster:
        await create(cluster, 1)
        assert await produce(cluster, 1, b"before") == ErrorCode.NONE
        broker = cluster.nodes[1]
        take, taken = broker.node.log_manager.take_refused, list[dict[TopicPartition, bytes]]()

        def noted() -> dict[TopicPartition, bytes]:
            taken.append(take())
            return taken[-1]

        monkeypatch.setattr(broker.node.log_manager, "take_refused", noted)
        full.all.add(Path(log_of(cluster, 1).directory).parent)
        assert await produce(cluster, 1, b"refused") == ErrorCode.KAFKA_STORAGE_ERROR
        await cluster.until("two more heartbeats", lambda: len(taken) > 2)
        assert TopicPartition("t", 0) in {key for each in taken for key in each}
        assert offline(broker) == 0
        assert values_of((await broker.fetch("t", 0)).records) == [b"before"]
        full.all.clear()
        assert await produce(cluster, 1, b"after") == ErrorCode.NONE

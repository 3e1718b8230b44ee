"""A broker whose log directories fail one after the other, as a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeLogDirsRequest,
)
from kafka_ds.protocol.messages.topics import CreatableTopic
from tests.in_process import batch_of, fetch_request, produce_request, values_of
from tests.integration.raw_client import RawClient
from tests.processes import BrokerDied, BrokerProcess, wait_until
from tests.requests import build

QUICK = {
    "replica.high.watermark.checkpoint.interval.ms": 200,
    "remote.log.storage.system.enable": "false",
}


def lose(folder: Path) -> None:
    """Make every operation in it fail: a file replaces the directory."""
    folder.rename(folder.with_name(folder.name + "-lost"))
    folder.write_bytes(b"")


def bring_back(folder: Path) -> None:
    folder.unlink()
    folder.with_name(folder.name + "-lost").rename(folder)


class BrokerWithTwoDirectories:
    """A broker with two directories, partitions 0 and 2 of "t" in the first, 1 and 3 in the other."""

    def __init__(self, folder: Path, metrics_port: int) -> None:
        self.first, self.second = folder / "first", folder / "second"
        overrides = {
            **QUICK,
            "log.dirs": f"{self.first},{self.second}",
            "metrics.port": metrics_port,
        }
        self.broker = BrokerProcess(folder, overrides)

    def create(self, name: str = "t") -> None:
        topic = build(CreatableTopic, name=name, num_partitions=4, replication_factor=1)
        with RawClient(self.broker.bootstrap) as client:
            answer = client.ask(CreateTopicsRequest(topics=[topic]), 7)
        assert answer.topics[0].error_code == ErrorCode.NONE

    def delete(self, name: str) -> None:
        with RawClient(self.broker.bootstrap) as client:
            answer = client.ask(DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000), 5)
        assert answer.responses[0].error_code == ErrorCode.NONE

    def produce(self, partition: int, value: bytes, topic: str = "t") -> int:
        with RawClient(self.broker.bootstrap) as client:
            answer = client.ask(produce_request(topic, batch_of([value]), partition), 9)
        code: int = answer.responses[0].partition_responses[0].error_code
        return code

    def fetch(self, partition: int, topic: str = "t") -> tuple[int, list[bytes | None]]:
        with RawClient(self.broker.bootstrap) as client:
            answer = client.ask(fetch_request(topic, 0, partition), 12)
        data = answer.responses[0].partitions[0]
        return data.error_code, values_of(data.records) if not data.error_code else []

    def directories(self) -> dict[str, tuple[int, int]]:
        """Error and number of partitions by name."""
        with RawClient(self.broker.bootstrap) as client:
            answer = client.ask(DescribeLogDirsRequest(topics=None), 4)
        return {
            Path(each.log_dir).name: (
                each.error_code,
                sum(len(topic.partitions) for topic in each.topics),
            )
            for each in answer.results
        }

    def offline_count(self) -> float:
        return self.broker.metric("kafka_log_logmanager_offlinelogdirectorycount")

    def said(self, what: str) -> bool:
        return what in self.broker.log_file.read_text()


def test_one_fails_and_then_the_other(tmp_path: Path, free_port: int) -> None:
    desk = BrokerWithTwoDirectories(tmp_path, free_port)
    desk.broker.start()
    try:
        desk.create()
        for partition in range(4):
            assert desk.produce(partition, b"before") == ErrorCode.NONE
        assert desk.directories() == {"first": (0, 2), "second": (0, 2)}

        lose(desk.second)
        desk.produce(1, b"who knows")
        wait_until("the failure is known", lambda: desk.offline_count() == 1)
        assert desk.said(f"Stopping serving 2 logs in dir {desk.second}")
        for partition in (1, 3):
            assert desk.produce(partition, b"refused") == ErrorCode.KAFKA_STORAGE_ERROR
            assert desk.fetch(partition)[0] == ErrorCode.KAFKA_STORAGE_ERROR
        for partition in (0, 2):
            assert desk.produce(partition, b"after") == ErrorCode.NONE
            assert desk.fetch(partition) == (ErrorCode.NONE, [b"before", b"after"])
        assert desk.directories() == {"first": (0, 2), "second": (ErrorCode.KAFKA_STORAGE_ERROR, 0)}
        assert desk.broker.stop() == 0

        desk.broker.start()  # The directory is still away.
        assert desk.offline_count() == 1
        assert desk.produce(1, b"refused") == ErrorCode.KAFKA_STORAGE_ERROR
        assert desk.produce(0, b"more") == ErrorCode.NONE
        assert desk.broker.stop() == 0

        bring_back(desk.second)
        desk.broker.start()
        assert desk.offline_count() == 0
        assert desk.fetch(1)[1][0] == b"before"
        assert desk.fetch(3) == (ErrorCode.NONE, [b"before"])
        assert desk.fetch(0) == (ErrorCode.NONE, [b"before", b"after", b"more"])

        lose(desk.first)
        lose(desk.second)
        for partition in range(4):
            desk.produce(partition, b"in vain")
        process = desk.broker.process
        assert process is not None
        assert process.wait(120) == 1, "no directory is left"
        assert desk.said("Shutdown broker because all log dirs have failed")
    finally:
        desk.broker.stop()


def test_topics_are_deleted_and_made_while_a_directory_is_away(
    tmp_path: Path, free_port: int
) -> None:
    desk = BrokerWithTwoDirectories(tmp_path, free_port)
    desk.broker.start()
    try:
        desk.create()
        for partition in range(4):
            assert desk.produce(partition, b"of the old topic") == ErrorCode.NONE
        lose(desk.second)
        desk.produce(1, b"who knows")
        wait_until("the failure is known", lambda: desk.offline_count() == 1)

        desk.delete("t")
        desk.create("u")
        desk.create("t")
        for partition in range(4):
            for topic in ("t", "u"):
                assert desk.produce(partition, b"new", topic) == ErrorCode.NONE
                assert desk.fetch(partition, topic) == (ErrorCode.NONE, [b"new"])
        desk.delete("u")
        assert desk.directories() == {"first": (0, 4), "second": (ErrorCode.KAFKA_STORAGE_ERROR, 0)}
        assert desk.broker.stop() == 0

        bring_back(desk.second)
        desk.broker.start()
        assert desk.offline_count() == 0
        assert desk.directories() == {"first": (0, 4), "second": (0, 0)}
        for partition in range(4):
            assert desk.fetch(partition) == (ErrorCode.NONE, [b"new"])
        left = [folder.name for folder in desk.second.iterdir() if folder.is_dir()]
        assert len(left) == 2, "the old topic's"
        assert all(name.endswith("-stray") for name in left)
    finally:
        desk.broker.stop()


def test_a_single_directory_that_cannot_be_read_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"")
    with pytest.raises(BrokerDied, match=r"log\.dirs=.*file exists"):
        BrokerProcess(tmp_path, QUICK).start()

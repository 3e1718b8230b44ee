"""What several tests use: Bench."""

from __future__ import annotations

from collections.abc import Callable

from broker.log.config import LogConfig
from broker.log.directories.log_manager import LogManager
from kafka_ds.protocol.topic_partition import TopicPartition
from tests.fakes.clock import ManualClock
from tests.fakes.logs import log_manager
from tests.fakes.memory_disk import ManualBackground, MemoryDisk
from tests.fakes.settings import log_settings
from tests.unit.log.log_model import client_batch

NOW_MS = 1_700_000_000_000


TOPIC_ID = bytes(range(16))


class LogsBench:
    """Managers one after the other on one disk."""

    def __init__(self, *log_dirs: str) -> None:
        self.disk = MemoryDisk()
        self.clock = ManualClock(NOW_MS)
        self.background = ManualBackground()
        self.log_dirs = log_dirs or ("/a",)
        self.config = log_settings(retention_ms=-1)
        self.failed: list[list[TopicPartition]] = []
        self.ends = 0
        self.manager = self.start()

    def start(
        self,
        *,
        node_id: int = 1,
        cluster_id: str | None = None,
        config_for: Callable[[str], LogConfig] | None = None,
        topic_id_for: Callable[[str], bytes | None] = lambda _: None,
        recovery_threads: int = 1,
    ) -> LogManager:
        self.background = ManualBackground()
        self.manager = log_manager(
            self.log_dirs,
            disk=self.disk,
            clock=self.clock,
            background=self.background,
            node_id=node_id,
            cluster_id=cluster_id,
            config=self.config,
            config_for=config_for,
            topic_id_for=topic_id_for,
            recovery_threads=recovery_threads,
            directory_failed=lambda keys: self.failed.append(sorted(keys)),
            all_failed=self._end,
        )
        self.manager.load()
        return self.manager

    def _end(self) -> None:
        self.ends += 1

    def stop(self, broker_epoch: int = 7) -> None:
        self.manager.close(broker_epoch)
        self.disk.kill()

    def append(self, topic: str, partition: int = 0, count: int = 1) -> None:
        log = self.manager.get(TopicPartition(topic, partition))
        assert log is not None
        for _ in range(count):
            batch = client_batch(1, timestamp_ms=NOW_MS)
            log.append(memoryview(batch), leader_epoch=0, now_ms=NOW_MS)

    def file(self, path: str) -> str:
        return self.disk.read_file(path).decode()

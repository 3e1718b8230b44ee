"""A broker's logs in two directories, and what moves them from one to the other, on a disk in memory."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from broker.log.config import LogConfig
from broker.log.log import Log
from broker.rates import ByteRate
from broker.replica.moves import LogMoves, LogMovesContext
from kafka_ds.process.settings import MAX_LONG
from kafka_ds.process.system import InlineBackground
from kafka_ds.protocol.topic_partition import TopicPartition
from tests.fakes.clock import ManualClock
from tests.fakes.logs import log_manager
from tests.fakes.memory_disk import MemoryDisk
from tests.fakes.settings import log_settings
from tests.unit.log.log_model import client_batch

NOW_MS = 1_700_000_000_000
TOPIC_ID = bytes(range(16))
SMALL = log_settings(segment_bytes=600, retention_ms=-1, file_delete_delay_ms=0)


class MovingBench:
    """Managers one after the other on one disk; partition 0 of "t" lies in /a."""

    def __init__(
        self, config: LogConfig = SMALL, *, log_dirs: tuple[str, ...] = ("/a", "/b")
    ) -> None:
        self.disk = MemoryDisk()
        self.clock = ManualClock(NOW_MS)
        self.config = config
        self.log_dirs = log_dirs
        self.rate = MAX_LONG
        self.told: bytes | None = None
        """Where the metadata say that the replica is."""
        self.on_wait: Callable[[], None] = lambda: None
        """What happens while a move waits for the metadata."""
        self.start()
        self.manager.preferred["t", 0] = "/a"
        self.manager.create(TopicPartition("t", 0), TOPIC_ID, is_new=True)
        self.told = self.manager.directory_id_of(TopicPartition("t", 0))

    def start(self) -> None:
        self.manager = log_manager(
            self.log_dirs,
            disk=self.disk,
            clock=self.clock,
            background=InlineBackground(),
            node_id=1,
            config=self.config,
            topic_id_for=lambda _: TOPIC_ID,
            home_for=lambda _: self.told,
        )
        self.manager.load()
        self.moves = LogMoves(self.manager, self._context())

    def _context(self) -> LogMovesContext:
        throttle = ByteRate(lambda: self.rate)
        image = SimpleNamespace(directory_of=lambda _key, _broker: self.told)
        driver: Any = SimpleNamespace(image=image, wait_for_change=self._changed)
        directories: Any = SimpleNamespace(look_at=lambda _: None)
        return LogMovesContext(
            clock=self.clock,
            throttle=throttle,
            at_once=1,
            backoff_ms=1,
            node_id=1,
            driver=driver,
            directories=directories,
        )

    async def _changed(self, _seconds: float) -> None:
        self.on_wait()
        self.told = self.manager.directory_id_of(TopicPartition("t", 0))

    @property
    def log(self) -> Log:
        log = self.manager.get(TopicPartition("t", 0))
        assert log is not None
        return log

    def append(self, count: int, *, epoch: int = 0, producer_id: int = -1) -> None:
        log = self.log
        for _ in range(count):
            batch = client_batch(1, timestamp_ms=NOW_MS)
            log.append(memoryview(batch), leader_epoch=epoch, now_ms=NOW_MS)

    def content(self) -> bytes:
        """All batches from the first that is there."""
        log = self.log
        data = b""
        for segment in log.segments.all:
            data += segment.file.read(segment.size_bytes, 0)
        return data

    def folders(self) -> set[str]:
        """The folders of partitions, ids taken out."""
        found = set()
        for path in self.log_dirs:
            for name in self.disk.list_names(path):
                if name.startswith("t-"):
                    first, _, last = name.partition(".")
                    found.add(f"{path}/{first}{'-' + last.rpartition('-')[2] if last else ''}")
        return found

    def clean_up(self) -> None:
        """Let deleted folders go."""
        self.clock.ms += 1
        self.manager.tick(self.clock.ms)

"""A log on a disk in memory that is cleaned within this process: what the child does is done at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from broker.cleaner.rpc import CleanerSettings
from broker.cleaner.service import CleaningService
from broker.cleaner.throttle import Throttle
from broker.compaction.log_cleaner import LogCleaner
from broker.log.config import LogConfig
from kafka_ds.ipc.child import WorkerFailed
from kafka_ds.ipc.request import ErrorAnswer
from kafka_ds.process.seams import Disk
from kafka_ds.process.system import InlineBackground
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import uuid_from_text
from kafka_ds.records.batch import (
    BatchHeader,
    ControlType,
    Record,
    build_batch,
    end_transaction_marker,
    iterate_headers,
    read_records,
)
from kafka_ds.segments.producers import AppendOrigin
from tests.fakes.clock import ManualClock
from tests.fakes.logs import log_manager
from tests.fakes.memory_disk import MemoryDisk
from tests.fakes.settings import cleaner_settings, log_settings

TOPIC_ID = uuid_from_text("AAAAAAAAAAAAAAAAAAAABA")
SECRET = (0x0706050403020100, 0x0F0E0D0C0B0A0908)
Keyed = tuple[bytes | None, bytes | None]


def compacted(**more: Any) -> LogConfig:
    """A compacted topic with small segments; every write is due for compaction at once."""
    settings: dict[str, Any] = {
        "cleanup_policy": ("compact",),
        "segment_bytes": 1000,
        "index_interval_bytes": 200,
        "segment_index_bytes": 4000,
        "min_cleanable_dirty_ratio": 0.0,
        "delete_retention_ms": 1000,
        "file_delete_delay_ms": 0,
        "retention_ms": -1,
    }
    return log_settings(**{**settings, **more})


class CleanerBench:
    """A broker's logs and its cleaner."""

    def __init__(
        self,
        config: LogConfig | None = None,
        *,
        disk: Disk | None = None,
        settings: CleanerSettings | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.config = config or compacted()
        self.disk = MemoryDisk() if disk is None else disk
        self.clock = clock or ManualClock()
        self.settings = settings or cleaner_settings(log_cleaner_io_buffer_size=600)
        self.meanwhile: dict[type, Callable[[], object]] = {}
        """What happens when a request of this kind was carried out, before its answer is heard."""
        self.open()

    def open(self) -> None:
        """Begin, or begin again."""
        self.manager = log_manager(
            ["/data"],
            disk=self.disk,
            clock=self.clock,
            background=InlineBackground(),
            node_id=1,
            config=self.config,
        )
        self.manager.load()
        self.log = self.manager.create(TopicPartition("orders", 0), TOPIC_ID)
        self.begin_child()
        self.cleaner = LogCleaner(
            self.settings,
            self.manager,
            clock=self.clock,
            disk=self.disk,
            send=lambda request: self.send(request),
        )

    def begin_child(self) -> None:
        """Begin what stands for the child, or begin it again."""
        self.service = CleaningService(self.disk, Throttle(self.clock), lambda: SECRET)

    async def send(self, request: Any) -> Any:
        """As the channel to the child would."""
        answer = self.service.operations()[type(request)](request)
        if isinstance(answer, ErrorAnswer):
            raise WorkerFailed(answer.kind, answer.message)
        self.meanwhile.get(type(request), int)()
        return answer

    def clean(self) -> bool:
        """One round of the cleaner."""
        return asyncio.run(self._clean())

    async def _clean(self) -> bool:
        done = await self.cleaner.clean_dirtiest()
        await asyncio.sleep(0)
        return done

    # -- writing ----------------------------------------------------------------------------------

    def append(self, records: Iterable[Keyed], **more: Any) -> int:
        """Append a batch; its base offset."""
        now_ms = self.clock.now_ms()
        listed = [Record(i, now_ms, key, value) for i, (key, value) in enumerate(records)]
        batch = build_batch(listed, **more)
        info = self.log.append(
            memoryview(bytearray(batch)),
            leader_epoch=0,
            now_ms=now_ms,
            origin=AppendOrigin.COORDINATOR,
        )
        return info.first_offset

    def end(self, producer_id: int, control: ControlType, epoch: int = 0) -> int:
        """Append a marker; its offset."""
        marker = end_transaction_marker(
            control,
            timestamp=self.clock.now_ms(),
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=0,
        )
        info = self.log.append(
            memoryview(bytearray(marker)),
            leader_epoch=0,
            now_ms=self.clock.now_ms(),
            origin=AppendOrigin.COORDINATOR,
        )
        return info.first_offset

    # -- reading ----------------------------------------------------------------------------------

    def batches(self) -> list[tuple[BatchHeader, list[Record]]]:
        """All batches of the log, in order."""
        found = []
        for segment in self.log.segments.all:
            data = segment.file.read(segment.size_bytes, 0)
            for position, header in iterate_headers(data):
                found.append((header, read_records(data, position, header)))
        return found

    def records(self) -> list[tuple[int, bytes | None, bytes | None]]:
        """All data records that are left, aborted ones as well."""
        return [
            (record.offset, record.key, record.value)
            for header, records in self.batches()
            if not header.is_control
            for record in records
        ]

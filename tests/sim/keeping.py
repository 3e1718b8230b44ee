"""Which records of a partition may be gone: deleted by an operator, by retention, or when the topic left the lake.

A reader may get "offset out of range" only below an offset that an operator asked to delete, or below the log start in
the topic's table, which moves before any record goes. Retention removes nothing too early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import DeleteRecordsRequest, IncrementalAlterConfigsRequest
from kafka_ds.protocol.messages.configs import (
    TOPIC_RESOURCE,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsResource,
)
from kafka_ds.protocol.messages.offsets import EARLIEST, LATEST
from kafka_ds.protocol.messages.topics import DeleteRecordsPartition, DeleteRecordsTopic
from kafka_ds.protocol.types import uuid_text
from kafka_ds.records.batch import BatchHeader, Record
from tests.sim.clients import EPOCH_MS, TROUBLE, Client, Partition
from tests.sim.model import HistoryModel
from tests.sim.readers import Consumer
from tests.sim.tier_lake import TableWatch
from tests.sim.world import World

NO_LIMIT = -1
SET, DELETE = 0, 1
DELETIONS_REST_SECONDS = 3.0


class Bounds:
    """The offsets below which records may be missing."""

    def __init__(self, world: World, tables: TableWatch, model: HistoryModel) -> None:
        self._world = world
        self._tables = tables
        self._model = model
        self._retention_ms = int(world.settings.get("log.retention.ms", NO_LIMIT))
        self._retention_bytes = int(world.settings.get("log.retention.bytes", NO_LIMIT))
        # Asked by DeleteRecords. As in Kafka, a follower has it in memory only until its next checkpoint.
        self.asked: dict[Partition, int] = {}
        # Answered to it. Of diskless partitions the tables have it then, and each later leader begins there.
        self.low_watermarks: dict[Partition, int] = {}
        # Where local logs began when their topics had left the lake (KIP-950).
        self._left: dict[Partition, int] = {}
        self.out_of_range = 0
        tables.on_start = self._moved

    def declared(self, partition: Partition) -> int:
        """The offset below which an operator has deleted records, or the log start in the lake; the greater one."""
        return max(self.asked.get(partition, 0), self._tables.start(*partition))

    def limit(self, partition: Partition) -> int:
        """The offset below which no record has to be there."""
        return max(self.declared(partition), self._left_at(partition))

    def _left_at(self, partition: Partition) -> int:
        """Where the local logs began when the topic last was out of the lake; 0 if it never was."""
        logs = [
            log
            for host in self._world.up()
            if host.node is not None and (log := host.node.log_manager.get(partition)) is not None
        ]
        if any(not each.config.remote_storage_enable for each in logs):
            # The leader gives up the records that its own disk does not have.
            starts = [each.local_log_start_offset for each in logs]
            self._left[partition] = max([self._left.get(partition, 0), *starts])
        return self._left.get(partition, 0)

    def gave_up(self, partition: Partition, offset: int) -> None:
        """A leader has heard that the topic has left the lake, perhaps together with its return."""
        self._left[partition] = max(self._left.get(partition, 0), offset)

    def deleted(self, partition: Partition, low_watermark: int) -> None:
        """DeleteRecords was answered."""
        known = self._tables.start(*partition)
        holds = self._world.truth.image().partition(*partition)
        assert holds is None or not holds.is_diskless or low_watermark <= known, (
            f"{partition} is said to begin at {low_watermark}, and its table says {known}"
        )
        known = self.low_watermarks.get(partition, 0)
        self.low_watermarks[partition] = max(known, low_watermark)

    def topic_id(self, topic: str) -> str:
        """The id of the topic that has this name now."""
        return uuid_text(self._world.truth.image().topics[topic].topic_id)

    def _moved(self, topic: str, index: int, before: int, now: int) -> None:
        """A table's log start moved: the records below were deleted by an operator, or too old, or too many."""
        partition, table = (topic, index), self._tables.tables[topic]
        before = max(before, self.asked.get(partition, 0))
        if now <= max(before, self._left_at(partition)):
            return
        now_ms = EPOCH_MS + int(self._world.loop.time() * 1000)
        horizon_ms = now_ms - self._retention_ms if self._retention_ms >= 0 else NO_LIMIT
        young = [
            offset
            for offset in range(before, now)
            if (row := table.ever.get((table.topic_id, index, offset))) is not None
            and row.content.timestamp_ms > horizon_ms
        ]
        if not young:
            return
        # Then they went by size: at least retention.bytes must be left.
        edge = now if self._retention_ms < 0 else max(young) + 1
        left = self._model.bytes_from((table.topic_id, index), edge)
        assert 0 <= self._retention_bytes <= left, (
            f"{topic}-{index} begins at {now}, and not at {before} any more: {len(young)} records are younger than "
            f"{self._retention_ms} ms, and {left} bytes are left of {self._retention_bytes}"
        )


class TierConsumer(Consumer):
    """A reader that compares its records with the model, and goes to the log start after "offset out of range"."""

    def __init__(self, *client: Any, bounds: Bounds, model: HistoryModel, **named: Any) -> None:
        super().__init__(*client, **named)
        self._bounds = bounds
        self._model = model
        self._topic_id = bounds.topic_id(self.partition[0])

    async def out_of_range(self) -> None:
        limit = self._bounds.limit(self.partition)
        assert self.position < limit, (
            f"{self.partition}: {self.position} is out of range, and nobody has given up more than {limit}"
        )
        offset = await self.offset_at(EARLIEST)
        limit = self._bounds.limit(self.partition)
        if offset is None:
            await self.pause()
            return
        assert offset <= limit, f"{self.partition}: begins at {offset}, and {limit} is given up"
        self._bounds.out_of_range += 1
        if offset <= self.position:
            await self.pause()
        self.position = max(self.position, offset)

    def seen(self, record: Record, header: BatchHeader) -> None:
        self._model.check_read((self._topic_id, self.partition[1], record.offset), record, header)


class Deleter(Consumer):
    """An operator that deletes the beginning of a partition (DeleteRecords)."""

    def __init__(
        self, *client: Any, bounds: Bounds, log: Callable[[str], None], partition: Partition
    ) -> None:
        super().__init__(*client, partition=partition, isolation_level=0)
        self._bounds = bounds
        self._log = log

    async def work(self, is_over: Callable[[], bool]) -> None:
        """Delete records now and then until `is_over`."""
        while not is_over():
            await asyncio.sleep(self.random.random() * DELETIONS_REST_SECONDS)
            try:
                async with asyncio.timeout(5):
                    await self._delete(self.partition)
            except TROUBLE:
                self.forget(self.partition)

    async def _delete(self, partition: Partition) -> None:
        end = await self.offset_at(LATEST)
        if end is None:
            return
        low = min(end, self._bounds.declared(partition))
        offset = self.random.randint(low, low + (end - low) // 2)
        asked = self._bounds.asked
        asked[partition] = max(asked.get(partition, 0), offset)
        place = DeleteRecordsPartition(partition_index=partition[1], offset=offset)
        topics = [DeleteRecordsTopic(name=partition[0], partitions=[place])]
        request = DeleteRecordsRequest(topics=topics, timeout_ms=2_000)
        answer = await self.ask(await self.leader(partition), request, 2)
        result = answer.topics[0].partitions[0]
        code = ErrorCode(result.error_code)
        self._log(f"deletion of {partition} below {offset}: {code.name}")
        if code is ErrorCode.NONE:
            self._bounds.deleted(partition, result.low_watermark)
        else:
            self.forget(partition)


async def alter_topic(
    client: Client, topic: str, changes: dict[str, str | None]
) -> ErrorCode | None:
    """Set a topic's settings, or remove them (None). The result is None if the outcome is unknown."""
    configs = [
        IncrementalAlterableConfig(
            name=name, config_operation=DELETE if value is None else SET, value=value
        )
        for name, value in changes.items()
    ]
    resource = IncrementalAlterConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=topic, configs=configs
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    try:
        answer = await client.ask_any(request, 1)
    except TROUBLE:
        return None
    return ErrorCode(answer.responses[0].error_code)

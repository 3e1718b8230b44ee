"""The seam between table and log: all readers agree while others produce, roll, tier, delete and change leaders.

Two brokers in one event loop with a real lake. After every few random steps a batch, a stream, both halves of a scan
and a consumer are read, by the source's own reader objects without Spark, and compared with the acknowledged records.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from deltalake import DeltaTable
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kafka_ds.errors import DataLoss
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import AlterPartitionReassignmentsRequest, DeleteRecordsRequest
from kafka_ds.protocol.messages.replicas import ReassignablePartition
from kafka_ds.protocol.messages.topics import DeleteRecordsTopic
from kafka_ds.source.batch import KafkaBatchReader
from kafka_ds.source.filters.predicate import Predicate
from kafka_ds.source.options.options import parse_options
from kafka_ds.source.plan.pinned import pin
from kafka_ds.source.plan.table_scan import as_pinned, cold, hot_options, hot_reads
from kafka_ds.source.stream import KafkaStreamReader
from tests.in_process import Cluster, in_process_cluster
from tests.integration.cluster_admin import create, elect, partition
from tests.integration.tiered_replicas import TIERED
from tests.loops import in_loop
from tests.model_runs import SEEDS, examples
from tests.requests import build
from tests.unit.source.made_plans import schema

PARTITIONS = 2
PLACES = range(PARTITIONS)
STEPS, LOOKS = (24, 4) if SEEDS in os.environ else (8, 1)
SETTINGS = {
    **TIERED,
    "lake_max_lag_ms": 300,
    # Leaders change when the test says so, however busy the machine is.
    "broker_session_timeout_ms": 60_000,
}
COLUMNS = ("partition", "offset", "value")
Row = tuple[int, int, bytes]


class SeamWorld:
    """The cluster, what it has acknowledged, and a stream that goes on all the time."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        self.cluster, self.chance = cluster, chance
        self.rows: dict[tuple[int, int], bytes] = {}
        self.starts = [0] * PARTITIONS
        self.stream: list[Row] = []
        self.position: dict[str, Any] | None = None
        self.producers = 0

    @property
    def bootstrap(self) -> str:
        nodes = self.cluster.nodes.values()
        brokers = next(iter(nodes)).node.metadata.brokers
        return ",".join(f"{b.endpoints[0].host}:{b.endpoints[0].port}" for b in brokers.values())

    def live(self) -> list[Row]:
        """The records that a reader must see now."""
        return sorted((p, n, v) for (p, n), v in self.rows.items() if n >= self.starts[p])

    # -- what happens ---------------------------------------------------------------------------

    async def produce(self) -> None:
        """Plain records, or a transaction that is committed or aborted; now and then so much that segments roll."""
        await asyncio.to_thread(self._produce)

    def _produce(self) -> None:
        chance = self.chance
        ending = chance.choice(["", "", "commit", "abort"])
        settings: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "compression.type": chance.choice(["none", "lz4", "zstd"]),
            "linger.ms": chance.choice([0, 5]),
        }
        if ending:
            self.producers += 1
            settings["transactional.id"] = f"tx-{self.producers}"
        producer = Producer(settings)
        if ending:
            producer.init_transactions(120)
            producer.begin_transaction()
        sent: dict[tuple[int, int], bytes] = {}

        def acknowledged(error: KafkaError | None, message: Any) -> None:
            assert error is None, error
            sent[message.partition(), message.offset()] = message.value()

        size = chance.choice([10, 100, 200_000])
        for number in range(chance.randrange(1, 8 if size > 1000 else 60)):
            value = b"%d-" % number + chance.randbytes(4) + b"x" * chance.randrange(size)
            place = chance.randrange(PARTITIONS)
            producer.produce("t", value, partition=place, on_delivery=acknowledged)
        assert producer.flush(120) == 0
        if ending == "abort":
            producer.abort_transaction(120)
            return
        if ending == "commit":
            producer.commit_transaction(120)
        self.rows |= sent

    async def delete(self) -> None:
        """Move the log start as retention does; the lake learns of it later."""
        index = self.chance.randrange(PARTITIONS)
        known = [n for p, n in self.rows if p == index]
        if not known:
            return
        offset = self.chance.randrange(self.starts[index], max(known) + 1)
        topic = build(DeleteRecordsTopic, name="t", partition_index=index, offset=offset)
        request = DeleteRecordsRequest(topics=[topic], timeout_ms=60_000)
        # A new leader may have yet to learn how far its predecessor has committed.
        async with asyncio.timeout(120):
            while True:
                answer = await self.leader(index).ask(request, 2)
                code = ErrorCode(answer.topics[0].partitions[0].error_code)
                if code == ErrorCode.NONE:
                    break
                assert code.retriable or code == ErrorCode.OFFSET_OUT_OF_RANGE, code
                await asyncio.sleep(0.05)
        self.starts[index] = max(self.starts[index], offset)

    async def lead(self) -> None:
        """The other replica leads from now on."""
        index, cluster = self.chance.randrange(PARTITIONS), self.cluster
        state = partition(cluster.controller, index)
        await cluster.until(
            "both in sync", lambda: len(partition(cluster.controller, index).isr) == 2
        )
        turned = [n for n in (1, 2) if n != state.leader] + [state.leader]
        wanted = ReassignablePartition(partition_index=index, replicas=turned)
        request = build(
            AlterPartitionReassignmentsRequest, topics=[{"name": "t", "partitions": [wanted]}]
        )
        answer = await cluster.controller.ask(request, 1)
        assert answer.error_code == ErrorCode.NONE
        await cluster.until(
            "the new order",
            lambda: list(partition(cluster.controller, index).replicas) == turned,
        )
        await elect(cluster.controller, 0, index)
        await cluster.until(
            "its lead",
            lambda: (
                all(partition(each, index).leader == turned[0] for each in cluster.nodes.values())
                and self.leader(index) is not None
            ),
        )

    def leader(self, index: int) -> Any:
        return self.cluster.nodes[partition(self.cluster.controller, index).leader]

    async def tier(self) -> None:
        """Until the lake has what it can have by now."""
        await self.cluster.until("the lake", lambda: all(map(self._is_tiered, PLACES)), 120)

    def _is_tiered(self, index: int) -> bool:
        node = self.leader(index).node
        replica = node.replica_manager.find("t", index)
        end = (
            None
            if replica is None
            else node.remote_log_manager.highest_offset_in_remote_storage(
                replica.log.topic_id, index
            )
        )
        return end is not None and end + 1 >= replica.log.log_end_offset

    async def settle(self) -> None:
        """Until all that was acknowledged is stable: markers come after a commit is told, and so do high watermarks."""
        await self.cluster.until("stability", lambda: all(map(self._is_stable, PLACES)), 120)

    def _is_stable(self, index: int) -> bool:
        replica = self.leader(index).node.replica_manager.find("t", index)
        return replica is not None and bool(
            replica.log.last_stable_offset(replica.high_watermark) >= replica.log.log_end_offset
        )

    # -- readers --------------------------------------------------------------------------------

    def given(self, **more: str) -> dict[str, str]:
        least = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": "t"}
        if (number := self.chance.choice([None, 1, 5])) is not None:
            least["minPartitions"] = str(number)
        return {**least, **more}

    def slots(self) -> int | None:
        """Of a session: with few of them small tasks are put together."""
        return self.chance.choice([None, 1, 2])

    def batch(self, given: dict[str, str]) -> list[Row]:
        options = parse_options(given, stream=False)
        reader = KafkaBatchReader(options, schema(COLUMNS), slots=self.slots())
        return _rows(reader, reader.partitions())

    def scan(self) -> tuple[list[Row], Callable[[], list[Row]]]:
        """Both halves of a scan: the table's, as Spark would read it, and the other's, to be read when asked for."""
        given = self.given()
        pinned = pin(parse_options(given, stream=False), Predicate(), with_tables=True)
        halves: list[Row] = []
        for table in pinned.tables.values():
            rows = DeltaTable(table.uri, version=table.version).to_pyarrow_table(
                columns=list(COLUMNS)
            )
            held = {view.partition: cold(view, Predicate()) for view in pinned.views}
            halves += [
                (p, n, v)
                for p, n, v in zip(*(rows[name].to_pylist() for name in COLUMNS), strict=True)
                if n in held[p]
            ]
        asked = [
            hot_options(
                given,
                ranges,
                as_pinned([v for v in pinned.views if (v.topic, v.partition) in ranges], ranges),
            )
            for ranges in hot_reads(pinned.views, Predicate())
        ]
        return halves, lambda: sorted(row for each in asked for row in self.batch(each))

    def follow(self) -> None:
        """One micro-batch of the stream, planned as by a restarted query."""
        options = self.given(startingOffsets="earliest", failOnDataLoss="false")
        limits: list[dict[str, str]] = [
            {},
            {"maxOffsetsPerTrigger": "40"},
            {"maxBytesPerTrigger": "2k"},
        ]
        limit = self.chance.choice(limits)
        reader = KafkaStreamReader(
            parse_options({**options, **limit}, stream=True),
            schema(COLUMNS),
            slots=self.slots(),
        )
        try:
            start = self.position if self.position is not None else reader.initialOffset()
            default = reader.getDefaultReadLimit()
            end = json.loads(json.dumps(reader.latestOffset(start, default)))
            self.stream += _rows(reader, reader.partitions(start, end))
            self.position = end
        finally:
            reader.stop()

    def least(self) -> list[Row]:
        """The first micro-batch under the smallest limit of bytes."""
        limit = {"startingOffsets": "earliest", "maxBytesPerTrigger": "1"}
        reader = KafkaStreamReader(parse_options(self.given(**limit), stream=True), schema(COLUMNS))
        try:
            start = reader.initialOffset()
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            return _rows(reader, reader.partitions(start, end))
        finally:
            reader.stop()

    def catch_up(self) -> None:
        options = self.given(startingOffsets="earliest", failOnDataLoss="false")
        reader = KafkaStreamReader(parse_options(options, stream=True), schema(COLUMNS))
        try:
            start = self.position if self.position is not None else reader.initialOffset()
            end = reader.latestOffset(start, ReadAllAvailable())
            self.stream += _rows(reader, reader.partitions(start, end))
            self.position = end
        finally:
            reader.stop()

    def consume(self) -> list[Row]:
        """A consumer of librdkafka, from the first record to the end."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "seam",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        found: list[Row] = []
        try:
            consumer.assign([TopicPartition("t", n, OFFSET_BEGINNING) for n in range(PARTITIONS)])
            ended: set[int] = set()
            while len(ended) < PARTITIONS:
                message = consumer.poll(120)
                assert message is not None, f"no end of {set(range(PARTITIONS)) - ended} came"
                error, index = message.error(), int(message.partition() or 0)
                if error is None:
                    ended.discard(index)
                    found.append((index, int(message.offset() or 0), message.value() or b""))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(index)
                else:
                    assert error.retriable(), error
        finally:
            consumer.close()
        return sorted(found)


def _rows(reader: Any, tasks: Iterable[InputPartition]) -> list[Row]:
    """The rows of tasks that were sent to an executor."""
    found: list[Row] = []
    for task in tasks:
        if task.value is None:
            continue
        sent = pickle.loads(pickle.dumps(task))
        found += _of(pickle.loads(pickle.dumps(reader)).read(sent))
    return sorted(found)


def _of(batches: Iterator[pa.RecordBatch]) -> list[Row]:
    rows = pa.Table.from_batches(batches, schema(COLUMNS))
    return list(zip(*(rows[name].to_pylist() for name in COLUMNS), strict=True))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(examples(1)))
@in_loop
async def test_all_readers_agree_with_what_was_acknowledged(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    async with in_process_cluster(tmp_path, 2, **SETTINGS) as cluster:
        await create(cluster, [1, 2], [2, 1])
        world = SeamWorld(cluster, chance)
        await world.produce()
        pinned: list[tuple[list[Row], list[int], list[Row], Callable[[], list[Row]]]] = []
        for step in range(STEPS):
            await chance.choice(
                [world.produce, world.produce, world.produce, world.tier, world.lead, world.delete]
            )()
            await world.settle()
            if chance.random() < 0.5:
                await asyncio.to_thread(world.follow)
            if chance.random() < 0.3:
                live, starts = world.live(), list(world.starts)
                pinned.append((live, starts, *await asyncio.to_thread(world.scan)))
            if (step + 1) % (STEPS // LOOKS) == 0:
                await look(world)
        await world.tier()
        await look(world)
        for live, starts, cold_rows, rest in pinned:
            try:
                assert sorted(cold_rows + await asyncio.to_thread(rest)) == live
            except DataLoss:
                assert world.starts != starts, "nothing was deleted since the scan was made"


async def look(world: SeamWorld) -> None:
    """Every reader, now that nothing goes on but tiering."""
    expected = world.live()
    assert await asyncio.to_thread(world.consume) == expected
    assert await asyncio.to_thread(world.batch, world.given()) == expected
    # One offset of each partition, and what takes no bytes.
    assert len(await asyncio.to_thread(world.least)) <= PARTITIONS
    halves, rest = await asyncio.to_thread(world.scan)
    assert sorted(halves + await asyncio.to_thread(rest)) == expected
    await asyncio.to_thread(world.catch_up)
    came = {(p, n): v for p, n, v in world.stream}
    assert len(came) == len(world.stream), "a row came twice"
    assert came.items() <= world.rows.items(), "a row came that was not acknowledged"
    assert {(p, n): v for p, n, v in expected}.items() <= came.items(), "a row did not come"

"""`__offsets`: what brokers write about their partitions and groups, and which rows are valid."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest

from broker.coordinator.offset_publisher import OffsetPublisher
from broker.kafka_broker import KafkaBroker
from broker.worker.metadata.offset_rows import checkpoint_of, rows_of
from kafka_ds.delta.actions import KIND_KEY, add_action, remove_action
from kafka_ds.delta.commit import FateUnknown, PlainChange
from kafka_ds.delta.log import ForeignTable
from kafka_ds.delta.schema import delta_schema_json
from kafka_ds.delta.snapshot import TableSnapshot
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.ipc.codec import decode, encode
from kafka_ds.protocol.messages import OffsetCommitRequest
from kafka_ds.protocol.messages.group_offsets import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kafka_ds.protocol.messages.share_state import StateBatch, WriteStatePartition
from kafka_ds.protocol.types import uuid_text
from kafka_ds.topic.names import OFFSETS
from kafka_ds.topic.offsets import OFFSETS_KIND, OffsetsTable, present
from kafka_ds.topic.schemas import OFFSETS_PARTITION_COLUMNS, OFFSETS_SCHEMA
from tests.fakes.network import Respondent
from tests.fakes.store import ALWAYS, MemoryStore
from tests.in_process import in_process
from tests.loops import in_loop
from tests.unit.share.share_members import GROUP, initialize


def partition_row(topic: str, index: int, epoch: int, *, end: int, at: int = 1) -> dict[str, Any]:
    return {
        "kind": "partition", "event_time": at, "topic": topic, "topic_id": f"id of {topic}", "partition": index,
        "leader_epoch": epoch, "log_end_offset": end,
    }  # fmt: skip


def offset_row(group: str, index: int, epoch: int, offset: int) -> dict[str, Any]:
    return {
        "kind": "offset", "event_time": 1, "coordinator_partition": index, "coordinator_epoch": epoch,
        "group_id": group, "topic": "orders", "partition": 0, "committed_offset": offset,
    }  # fmt: skip


def said(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(
        (row["broker_id"], row["kind"], row["topic"], row["group_id"] or "", row["partition"])
        for row in rows
    )


def test_a_note_replaces_the_brokers_own_and_no_other() -> None:
    store = MemoryStore()
    one, two = (OffsetsTable(store, clock=store.clock) for _ in range(2))
    one.replace(1, [partition_row("orders", 0, 0, end=1), partition_row("orders", 1, 0, end=1)])
    two.replace(12, [partition_row("orders", 2, 0, end=1)])
    one.replace(1, [partition_row("orders", 0, 0, end=5)])
    found = OffsetsTable(store, clock=store.clock).read()
    assert said(found) == [(1, "partition", "orders", "", 0), (12, "partition", "orders", "", 2)]
    assert [row["log_end_offset"] for row in found] == [5, 1]
    assert [row["event_time"] for row in found] == [1, 1]


def test_a_table_of_an_earlier_release_gets_the_columns_that_it_lacks() -> None:
    store = MemoryStore()
    table = OffsetsTable(store, clock=store.clock)
    columns = [each for each in OFFSETS_SCHEMA if each.name != "state_batches"]
    table.log.create(
        schema_json=delta_schema_json(pa.schema(columns)),
        partition_columns=OFFSETS_PARTITION_COLUMNS,
        configuration={KIND_KEY: OFFSETS_KIND},
    )
    for end in (1, 2):
        table.replace(1, [partition_row("orders", 0, 0, end=end)])
    snapshot = TableSnapshot(table.log)
    snapshot.read()
    assert snapshot.metadata["schemaString"] == delta_schema_json(OFFSETS_SCHEMA)
    assert snapshot.metadata["configuration"] == {KIND_KEY: OFFSETS_KIND}
    changes = [
        version
        for version in range(1, snapshot.version + 1)
        if any("metaData" in each for each in table.log.read_version(version) or ())
    ]
    assert changes == [1]


def test_share_groups_of_a_coordinator_stay_until_it_or_a_later_one_says_otherwise() -> None:
    store = MemoryStore()
    table = OffsetsTable(store, clock=store.clock)
    state = {
        "kind": "share_state", "event_time": 1, "coordinator_partition": 0, "coordinator_epoch": 3, "group_id": "s",
        "topic_id": "t", "partition": 0, "start_offset": 7, "state_batches": [
            {"first_offset": 8, "last_offset": 9, "delivery_state": 2, "delivery_count": 1}
        ],
    }  # fmt: skip
    # The coordinator of groups of the same number is another one.
    groups = [partition_row("__consumer_offsets", 0, 3, end=1), offset_row("a", 0, 3, 10)]
    table.replace(1, [partition_row("__share_group_state", 0, 3, end=1), state, *groups])
    table.replace(1, [partition_row("__consumer_offsets", 0, 4, end=1)])
    (found,) = (row for row in present(table.read()) if row["kind"] != "partition")
    assert (found["start_offset"], found["state_batches"]) == (7, state["state_batches"])
    table.replace(2, [partition_row("__share_group_state", 0, 4, end=1)])
    assert all(row["kind"] == "partition" for row in present(table.read()))


def test_what_is_not_known_yet_stays_as_it_was_noted() -> None:
    store = MemoryStore()
    table = OffsetsTable(store, clock=store.clock)
    rows = [
        partition_row("__consumer_offsets", 0, 3, end=1), offset_row("a", 0, 3, 10),
        partition_row("__consumer_offsets", 1, 3, end=1), offset_row("b", 1, 3, 20),
        partition_row("orders", 0, 3, end=1),
    ]  # fmt: skip
    table.replace(1, rows)
    table.replace(1, [partition_row("__consumer_offsets", 0, 4, end=1)])
    found = table.read()
    assert said(found) == [
        (1, "offset", "orders", "b", 0),
        (1, "partition", "__consumer_offsets", "", 0),
        (1, "partition", "__consumer_offsets", "", 1),
    ]


def test_what_a_publication_without_an_answer_wrote_is_known() -> None:
    store = MemoryStore()
    table = OffsetsTable(store, clock=store.clock)
    one = [partition_row("__consumer_offsets", 0, 3, end=1), offset_row("a", 0, 3, 10)]
    two = [partition_row("__consumer_offsets", 1, 3, end=1), offset_row("b", 1, 3, 20)]
    table.replace(1, one)
    store.refuse(times=ALWAYS)
    with pytest.raises(FateUnknown):
        table.replace(1, [*one, *two])
    store.mend()
    table.replace(1, one)
    assert [row["group_id"] for row in table.read() if row["kind"] == "offset"] == ["a", "b"]


@pytest.mark.parametrize("restarted", [False, True])
def test_the_groups_of_a_coordinator_that_moved_stay_until_the_next_has_noted_them(
    restarted: bool,
) -> None:
    store = MemoryStore()
    tables = [OffsetsTable(store, clock=store.clock) for _ in range(2)]

    def note(broker: int, *rows: dict[str, Any]) -> list[tuple[int, int]]:
        if restarted:
            tables[broker] = OffsetsTable(store, clock=store.clock)
        tables[broker].replace(broker, rows)
        return [
            (row["broker_id"], row["committed_offset"])
            for row in present(OffsetsTable(store, clock=store.clock).read())
            if row["kind"] == "offset"
        ]

    orders = partition_row("orders", 0, 0, end=1)
    shard = [partition_row("__consumer_offsets", 0, 3, end=1), offset_row("a", 0, 3, 10)]
    assert note(0, orders, *shard) == [(0, 10)]
    assert note(1, orders) == [(0, 10)]
    # It moves from 0 to 1, and 0 notes first: nobody else has noted the group.
    assert note(0, orders) == [(0, 10)]
    assert note(0, orders) == [(0, 10)]
    shard = [partition_row("__consumer_offsets", 0, 4, end=1), offset_row("a", 0, 4, 12)]
    assert note(1, orders, *shard) == [(1, 12)]
    assert note(0, orders) == [(1, 12)]
    assert {row["broker_id"] for row in tables[0].read() if row["kind"] == "offset"} == {1}
    # And back, where 1 notes first: the group is gone there, 0 says so.
    assert note(1, orders) == [(1, 12)]
    assert note(0, orders, partition_row("__consumer_offsets", 0, 5, end=1)) == []
    assert note(1, orders) == []
    assert {row["topic"] for row in tables[1].read() if row["broker_id"] == 1} == {"orders"}


def test_the_groups_of_a_topic_that_was_made_anew_elsewhere_do_not_come_back() -> None:
    store = MemoryStore()
    table = OffsetsTable(store, clock=store.clock)
    table.replace(1, [partition_row("__consumer_offsets", 0, 3, end=1), offset_row("a", 0, 3, 10)])
    anew = {**partition_row("__consumer_offsets", 0, 0, end=1, at=2), "topic_id": "another"}
    table.replace(2, [anew])
    table.replace(1, [partition_row("orders", 0, 0, end=1)])
    assert [row["kind"] for row in present(table.read())] == ["partition", "partition"]


def test_a_coordinator_of_before_has_no_say() -> None:
    rows = [
        {**row, "broker_id": broker}
        for broker, row in [
            (1, partition_row("__consumer_offsets", 0, 3, end=1)),
            (1, offset_row("a", 0, 3, 10)),
            (2, partition_row("__consumer_offsets", 0, 4, end=1)),
            (2, offset_row("a", 0, 4, 12)),
            (1, partition_row("orders", 0, 3, end=9, at=2)),
            (2, partition_row("orders", 0, 3, end=8, at=1)),
        ]
    ]
    found = present(rows)
    assert [row["committed_offset"] for row in found if row["kind"] == "offset"] == [12]
    assert [
        row["log_end_offset"]
        for row in found
        if row["topic"] == "orders" and row["kind"] == "partition"
    ] == [9]
    # The new one has no groups: then there are none.
    assert [row for row in present(rows[:3]) if row["kind"] == "offset"] == []


def test_a_note_is_made_anew_on_top_of_an_engine_that_rewrote_the_file() -> None:
    store = MemoryStore()
    table = OffsetsTable(store, clock=store.clock)
    table.replace(1, [partition_row("orders", 0, 0, end=1)])
    (before,) = (each for each in store.objects if each.endswith(".parquet"))
    store.objects[f"{OFFSETS}/broker_id=1/part-0.parquet"] = store.objects[before]
    values, name = {"broker_id": "1"}, before.removeprefix(f"{OFFSETS}/")

    def optimize() -> None:
        remove = remove_action(path=name, partition_values=values, size=1, deleted_ms=0)
        add = add_action(
            path="broker_id=1/part-0.parquet",
            partition_values=values,
            size=1,
            modified_ms=0,
            stats="{}",
        )
        log = OffsetsTable(store, clock=store.clock).log
        change = PlainChange("OPTIMIZE", actions=[remove, add])
        log.commit(log.begin(change), read_version=1)

    store.race(optimize, path=f"*{2:020d}.json")
    assert table.replace(1, [partition_row("orders", 0, 0, end=2)]) == 3
    assert [row["log_end_offset"] for row in table.read()] == [2]


def test_a_table_of_others_is_left_alone(tmp_path: Path) -> None:
    polars.DataFrame({"a": [1]}).write_delta(str(tmp_path / OFFSETS))
    table = OffsetsTable(LocalStore(str(tmp_path)))
    with pytest.raises(ForeignTable, match="__offsets"):
        table.replace(1, [])
    with pytest.raises(ForeignTable, match="__offsets"):
        table.read()


def test_no_table_has_no_rows() -> None:
    assert OffsetsTable(MemoryStore()).read() == []


@in_loop
async def test_a_broker_notes_what_has_moved_and_nothing_else(tmp_path: Path) -> None:
    async with in_process(tmp_path) as broker:
        node = broker.node
        asked: list[Any] = []
        worker = Respondent(lambda request: asked.append(decode(encode(request)[0])))
        publisher = publisher_of(node, worker.send, interval_ms=1)
        await publisher.publish()
        assert asked == [], "there is nothing to note"
        await broker.create("orders")
        await node.groups.runtime.ensure()
        node.groups.start()
        await publisher.publish()
        await publisher.publish()
        assert len(asked) == 1
        await broker.ask(_commit("billing", 7), 8)
        await publisher.publish()
        await publisher.publish()
        assert len(asked) == 2
        rows = list(rows_of(asked[1].partitions, asked[1].shards, 5))
        (offset,) = (row for row in rows if row["kind"] == "offset")
        assert (offset["group_id"], offset["topic"], offset["committed_offset"]) == (
            "billing",
            "orders",
            7,
        )
        (place,) = (row for row in rows if row["kind"] == "partition" and row["topic"] == "orders")
        assert (place["leader_epoch"], place["log_end_offset"]) == (0, 0)
        index = offset["coordinator_partition"]
        # A coordinator that cannot speak: what was noted of it before stays.
        context = node.groups.runtime.context(index)
        assert context is not None
        context.close()
        await publisher.publish()
        assert index not in [json.loads(each)[0] for each in asked[2].shards]
        assert ["__consumer_offsets", index] not in [
            [p.topic, p.partition] for p in asked[2].partitions
        ]


@in_loop
async def test_the_states_of_share_groups_are_published_with_their_coordinators(
    tmp_path: Path,
) -> None:
    async with in_process(tmp_path) as broker:
        node = broker.node
        asked: list[Any] = []

        async def send(request: Any) -> Any:
            asked.append(decode(encode(request)[0]))

        publisher = publisher_of(node, send, interval_ms=1)
        topic_id = await broker.create("orders")
        await initialize(broker, topic_id, start=5)
        await publisher.publish()
        wanted = WriteStatePartition(
            partition=0,
            state_epoch=0,
            leader_epoch=0,
            start_offset=6,
            delivery_complete_count=2,
            state_batches=[
                StateBatch(first_offset=8, last_offset=9, delivery_state=2, delivery_count=1)
            ],
        )
        await node.shares.persister.write_state(GROUP, {(topic_id, 0): wanted})
        await publisher.publish()
        await publisher.publish()
        assert len(asked) == 2
        rows = list(rows_of(asked[1].partitions, asked[1].shards, 5))
        (state,) = (row for row in rows if row["kind"] == "share_state")
        assert (state["group_id"], state["topic_id"]) == (GROUP, uuid_text(topic_id))
        assert (state["start_offset"], state["delivery_complete_count"]) == (6, 2)
        assert state["state_batches"] == [
            {"first_offset": 8, "last_offset": 9, "delivery_state": 2, "delivery_count": 1}
        ]
        (published,) = checkpoint_of(
            [{**each, "broker_id": 1} for each in rows if each is state]
        ).share_states
        assert published.state_batches == [(8, 9, 2, 1)]
        place = ("__share_group_state", state["coordinator_partition"])
        assert place in [(each.topic, each.partition) for each in asked[1].partitions]


@in_loop
async def test_a_stop_does_not_wait_for_a_store_that_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with in_process(tmp_path) as broker:
        node = broker.node
        await broker.create("orders")
        await node.groups.runtime.ensure()
        node.groups.start()
        worker = Respondent(lambda _: asyncio.Event().wait() if len(asked) == 1 else None)
        asked = worker.asked
        publisher = publisher_of(node, worker.send, interval_ms=1)
        assert not await publisher.publish_last(0.05)
        assert "Failed to publish" in caplog.text
        # Of coordinators without a group nothing is said by a broker that has never written.
        assert asked[0].shards == []
        await broker.ask(_commit("billing", 7), 8)
        assert await publisher.publish_last(60)
        assert len(asked[1].shards) == 1
        never = publisher_of(node, worker.send, interval_ms=-1)
        assert await never.publish_last(60)
        assert len(asked) == 2


@in_loop
async def test_a_broker_that_was_begun_by_mistake_leaves_the_groups_in_the_lake(
    tmp_path: Path,
) -> None:
    """A stop publishes twice: neither time is it said that there are no groups."""
    async with in_process(tmp_path) as broker:
        node, shards = broker.node, []
        worker = Respondent(lambda request: shards.extend(request.shards))
        publisher = publisher_of(node, worker.send, interval_ms=60_000)
        await broker.create("orders")
        await node.groups.runtime.ensure()
        node.groups.start()
        assert await publisher.publish_last(60)
        await broker.create("others")
        assert await publisher.publish_last(60)
        assert shards == []


def publisher_of(node: KafkaBroker, send: Any, *, interval_ms: int) -> OffsetPublisher:
    runtimes = node.groups.runtime, node.shares.runtime
    return OffsetPublisher(send, node.replica_manager, *runtimes, interval_ms)


def _commit(group: str, offset: int) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=None
    )
    topic = OffsetCommitRequestTopic(name="orders", partitions=[partition])
    return OffsetCommitRequest(group_id=group, member_id="", topics=[topic])

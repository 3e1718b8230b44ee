"""Groups out of the lake's notes: what comes back, and how far."""

from __future__ import annotations

from typing import Any

from broker.config.broker import BrokerConfig
from broker.coordinator.group.metadata_image import CoordinatorMetadataImage
from broker.coordinator.group.records import encode_record
from broker.coordinator.group.restored_groups import TruncatedOffset, restored_groups
from broker.coordinator.group.shard import GroupCoordinatorShard
from broker.coordinator.offset_publisher import ShardCheckpoint, group_rows
from broker.coordinator.share.restored_states import restored_states
from broker.coordinator.share.shard import ShareCoordinatorShard
from broker.metadata.image import MetadataImage
from broker.restore import record_batches
from broker.worker.metadata.offset_rows import checkpoint_of, rows_of
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages.persisted import OffsetCommitValue
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import uuid_text
from kafka_ds.records.batch import read_header
from tests.unit.coordinator.group.consumer_desk import NewConsumer, Topics
from tests.unit.coordinator.group.group_desk import GroupDesk
from tests.unit.coordinator.group.streams_desk import Streamer, new_desk

TOPIC_ID = b"t" * 16
NAMES = {TOPIC_ID: "orders"}
ENDS = {("orders", 0): 50, ("orders", 1): 10}


def group(name: str, coordinator: int = 3) -> dict[str, Any]:
    return {
        "kind": "group", "coordinator_partition": coordinator, "group_id": name, "topic": None, "partition": None,
        "group_type": "classic", "protocol_type": "consumer", "generation": 7, "event_time": 99,
    }  # fmt: skip


def offset(name: str, topic: str, index: int, at: int, coordinator: int = 3) -> dict[str, Any]:
    return {
        "kind": "offset", "coordinator_partition": coordinator, "group_id": name, "topic": topic, "partition": index,
        "topic_id": None, "committed_offset": at, "committed_leader_epoch": 2, "metadata": "m", "commit_time": 5,
        "expire_timestamp": None, "event_time": 100,
    }  # fmt: skip


ROWS = [
    group("billing"), offset("billing", "orders", 0, 50), offset("billing", "orders", 1, 11),
    offset("billing", "gone", 0, 5), offset("simple", "orders", 0, 1),
    group("elsewhere", 4), offset("elsewhere", "orders", 0, 1, 4),
]  # fmt: skip

PUBLISHED = checkpoint_of(ROWS)


def test_a_coordinator_reads_what_was_restored_as_if_it_had_written_it() -> None:
    found = restored_groups(
        PUBLISHED, 3, end_of=lambda *key: ENDS.get(key), name_of=NAMES.get, now_ms=1000
    )
    assert (found.groups, found.offsets, found.published_ms) == ({"billing", "simple"}, 3, 100)
    shard = GroupCoordinatorShard(
        BrokerConfig, lambda: "id", CoordinatorMetadataImage(MetadataImage())
    )
    for batch in record_batches([encode_record(each) for each in found.records], 1000):
        shard.replay_batch(batch, 0, read_header(batch))
    offsets = shard.state.offsets
    at_end = offsets.get("billing", "orders", 0)
    assert at_end is not None
    assert (at_end.offset, at_end.leader_epoch, at_end.metadata) == (50, 2, "m")
    assert (at_end.commit_timestamp_ms, at_end.expire_timestamp_ms) == (5, -1)
    assert offsets.get("billing", "gone", 0) is None
    assert offsets.group_ids() == {"billing", "simple"}
    kept = shard.state.metadata["billing"]
    assert (kept.generation, kept.protocol_type, kept.members) == (7, "consumer", [])


def test_offsets_of_the_consumer_protocol_do_not_age_while_nothing_runs() -> None:
    rows = [{**group("modern"), "group_type": "consumer"}, offset("modern", "orders", 0, 50)]
    found = restored_groups(
        checkpoint_of(rows), 3, end_of=lambda *key: ENDS.get(key), name_of=NAMES.get, now_ms=1000
    )
    (committed,) = (
        each.value for each in found.records if isinstance(each.value, OffsetCommitValue)
    )
    assert committed.commit_timestamp == 1000


def share_state(name: str, index: int, start: int, *batches: tuple[int, ...]) -> dict[str, Any]:
    columns = ("first_offset", "last_offset", "delivery_state", "delivery_count")
    return {
        "kind": "share_state", "coordinator_partition": 3, "group_id": name, "topic_id": uuid_text(TOPIC_ID),
        "partition": index, "leader_epoch": 4, "start_offset": start, "state_epoch": 1, "event_time": 100,
        "state_batches": [dict(zip(columns, each, strict=True)) for each in batches],
    }  # fmt: skip


def test_a_share_group_comes_back_with_its_partitions() -> None:
    rows = [{**group("workers"), "group_type": "share"}, share_state("workers", 1, 7)]
    published = checkpoint_of([*rows, share_state("others", 0, 7)])
    found = restored_groups(published, 3, end_of=lambda *_: None, name_of=NAMES.get, now_ms=1)
    shard = GroupCoordinatorShard(
        BrokerConfig, lambda: "id", CoordinatorMetadataImage(MetadataImage())
    )
    for batch in record_batches([encode_record(each) for each in found.records], 1000):
        shard.replay_batch(batch, 0, read_header(batch))
    restored = shard.state.shares["workers"]
    assert (restored.epoch, restored.members) == (7, {})
    assert restored.initialized == {TOPIC_ID: ("orders", frozenset({1}))}
    nothing = restored_groups(published, 3, end_of=lambda *_: None, name_of={}.get, now_ms=1)
    assert len(nothing.records) == 2, "the topic is gone, the group is not"


def lose_disks(desk: GroupDesk) -> None:
    """The coordinator starts again with what it has published of its groups."""
    place = ShardCheckpoint(TopicPartition("__consumer_offsets", 3), 0, len(desk.log))
    rows = list(rows_of([], [group_rows(place, desk.shard)], 1))
    found = restored_groups(
        checkpoint_of(rows), 3, end_of=lambda *_: None, name_of=NAMES.get, now_ms=1
    )
    desk.log = [(*encode_record(each), -1) for each in found.records]
    desk.restart()


def test_members_of_the_consumer_protocol_rejoin_a_group_that_came_back() -> None:
    topics = Topics(orders=2)
    desk = GroupDesk(topics)
    one = NewConsumer(desk, "1", "orders")
    one.beat()
    before, one.owned = one.epoch, frozenset()
    lose_disks(desk)
    assert one.refused() is ErrorCode.UNKNOWN_MEMBER_ID
    one.epoch = 0
    one.beat()
    assert one.epoch > before and one.owned == topics.all_of("orders")


def test_members_of_a_streams_group_that_came_back_rejoin() -> None:
    desk, _ = new_desk(lines=2, words=2, counts=2)
    one = Streamer(desk, "1")
    one.beat()
    before = one.epoch
    lose_disks(desk)
    assert one.refused() is ErrorCode.UNKNOWN_MEMBER_ID
    one.forget()
    one.beat()
    assert one.epoch > before and len(one.tasks.active) == 4


def test_states_of_share_groups_come_back_up_to_the_end() -> None:
    rows = [
        share_state("workers", 0, 7, (7, 8, 2, 1), (9, 9, 0, 3), (10, 20, 4, 5)),
        share_state("workers", 1, 30, (40, 41, 2, 1)),
        share_state("workers", 2, -1),
        share_state("workers", 9, 5),
    ]
    ends = {0: 15, 1: 12, 2: 5}
    found = restored_states(
        checkpoint_of(rows), 3, end_of=lambda _, partition: ends.get(partition), now_ms=1
    )
    shard = ShareCoordinatorShard(BrokerConfig(), MetadataImage())
    for batch in record_batches(found.records, 1000):
        shard.replay_batch(batch, 0, read_header(batch))
    states = {key.partition: state for key, state in shard}
    assert {
        partition: (state.start_offset, state.delivery_complete_count, state.state_epoch)
        for partition, state in states.items()
    } == {0: (7, 7, 1), 1: (12, 0, 1), 2: (-1, -1, 1)}
    assert [each.last_offset for each in states[0].batches] == [8, 9, 14]
    assert states[1].batches == ()
    assert [(each.partition, each.start_offset) for each in found.truncated] == [(1, 30)]


def test_no_group_goes_on_beyond_what_came_back() -> None:
    found = restored_groups(
        PUBLISHED, 3, end_of=lambda *key: ENDS.get(key), name_of=NAMES.get, now_ms=1000
    )
    assert found.truncated == [
        TruncatedOffset(
            group_id="billing", topic="orders", partition=1, committed_offset=11, end_offset=10
        )
    ]
    (record,) = (each for each in found.records if getattr(each.key, "partition", None) == 1)
    assert record.value is not None
    assert (record.value.offset, record.value.leader_epoch) == (10, -1)


def test_what_was_not_noted_is_not_made_up() -> None:
    found = restored_groups(
        PUBLISHED, 0, end_of=lambda *key: ENDS.get(key), name_of=NAMES.get, now_ms=1000
    )
    assert (found.records, found.groups, found.truncated) == ([], set(), [])

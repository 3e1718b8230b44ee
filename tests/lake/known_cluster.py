"""A lake with a known history, written by the product's own writers, and the expected rows of each view.

Broker 1 has the controller; broker 2 came later and fell silent. `orders` has an hour of retention;
`table` is compacted; `gone` was deleted; `plain` has the brokers' settings. Partition 2 of `orders` has no row in
`__offsets`, and its timestamps are invalid; partition 3 begins after the end of the lake. Commits are one second apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from broker.metadata.events import (
    ClusterCreated,
    ConfigChanged,
    ControllerChange,
    Endpoint,
    Event,
    FenceBroker,
    PartitionChanged,
    PartitionRegistration,
    RegisterBroker,
    TopicCreated,
    TopicDeleted,
    UnfenceBroker,
)
from broker.metadata.log import MetadataLog, replay_commit
from broker.share.dead_letters import DeadLetter, SourcePartition, batch_of
from broker.telemetry.otlp import MetricPoint
from broker.telemetry.rows import batches_of
from broker.worker.metadata.materialise import Materialiser
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.delta.store.store import Store
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.protocol.messages.configs import BROKER_RESOURCE, TOPIC_RESOURCE
from kafka_ds.protocol.types import uuid_text
from kafka_ds.records.batch import Record, read_records
from kafka_ds.topic.events import RemoteLogEvents
from kafka_ds.topic.names import CLIENT_METRICS, CLUSTER_METADATA, topic_table
from kafka_ds.topic.offsets import OffsetsTable
from kafka_ds.topic.remote_log_segment import RemoteLogSegment, RemoteLogSegmentState
from kafka_ds.topic.schemas import TOPIC_SCHEMA
from tests.fakes.clock import ManualClock
from tests.fakes.settings import tier_settings

S = RemoteLogSegmentState
T0 = 1_700_000_000_000
ORDERS, TABLE, GONE, OFFSETS_TOPIC, PLAIN, SHARE_TOPIC = (
    bytes([each]) * 16 for each in range(1, 7)
)
# Retention is counted from now: records of the year 2100 are young, those of 2023 are not.
YOUNG, OLD = 4_102_444_800_000, T0
# What a producer may have written and what says that none was given.
NO_DATE, NO_TIME = 2**63 - 1, -1


def _partition(topic: str, topic_id: bytes, index: int, **state: Any) -> PartitionChanged:
    return PartitionChanged(
        topic=topic,
        topic_id=topic_id,
        partition=index,
        registration=PartitionRegistration(**state),
    )


def _registered(broker_id: int, epoch: int, *, fenced: bool) -> RegisterBroker:
    return RegisterBroker(
        broker_id=broker_id,
        incarnation_id=bytes([broker_id]) * 16,
        endpoints=(Endpoint(listener="PLAINTEXT", host=f"host{broker_id}", port=9092),),
        rack="a" if broker_id == 1 else None,
        broker_epoch=epoch,
        fenced=fenced,
    )


def setting(topic: str, name: str, value: str | None) -> ConfigChanged:
    return ConfigChanged(resource_type=TOPIC_RESOURCE, resource_name=topic, name=name, value=value)


def _of_brokers(broker: str, name: str, value: str | None) -> ConfigChanged:
    return ConfigChanged(
        resource_type=BROKER_RESOURCE, resource_name=broker, name=name, value=value
    )


COMMITS: tuple[tuple[Event, ...], ...] = (
    (ClusterCreated(cluster_id="known"),),
    (ControllerChange(controller_id=1, controller_epoch=1), _registered(1, 11, fenced=False)),
    (_registered(2, 12, fenced=True),),
    (UnfenceBroker(broker_id=2, broker_epoch=12),),
    (
        TopicCreated(topic="orders", topic_id=ORDERS),
        _partition("orders", ORDERS, 0, replicas=(1, 2), isr=(1, 2), leader=1),
        _partition("orders", ORDERS, 1, replicas=(2, 1), isr=(2, 1), leader=2),
        setting("orders", "retention.ms", "1"),
    ),
    (
        TopicCreated(topic="gone", topic_id=GONE),
        _partition("gone", GONE, 0, replicas=(1,), isr=(1,), leader=1),
        setting("gone", "retention.ms", "5"),
        TopicCreated(topic="table", topic_id=TABLE),
        _partition("table", TABLE, 0, replicas=(1,), isr=(1,), leader=1),
        setting("table", "cleanup.policy", "compact"),
        setting("table", "segment.bytes", "1000"),
        TopicCreated(topic="__consumer_offsets", topic_id=OFFSETS_TOPIC),
        _partition("__consumer_offsets", OFFSETS_TOPIC, 0, replicas=(2, 1), isr=(2, 1), leader=2),
    ),
    (setting("orders", "retention.ms", "3600000"), setting("table", "segment.bytes", None)),
    (
        FenceBroker(broker_id=2, broker_epoch=12),
        _partition(
            "orders", ORDERS, 0, replicas=(1, 2), isr=(1,), leader=1, partition_epoch=1
        ),
        _partition(
            "orders", ORDERS, 1, replicas=(2, 1), isr=(1,), leader=1, leader_epoch=1, partition_epoch=1
        ),
        _partition(
            "__consumer_offsets", OFFSETS_TOPIC, 0,
            replicas=(2, 1), isr=(1,), leader=1, leader_epoch=1, partition_epoch=1,
        ),
    ),
    (TopicDeleted(topic="gone", topic_id=GONE),),
    (
        _partition("orders", ORDERS, 2, replicas=(1,), isr=(1,), leader=1),
        _partition("orders", ORDERS, 3, replicas=(1,), isr=(1,), leader=1),
        setting("orders", "retention.bytes", "-1"),
        TopicCreated(topic="plain", topic_id=PLAIN),
        _partition("plain", PLAIN, 0, replicas=(1,), isr=(1,), leader=1),
        _of_brokers("", "log.retention.ms", "-1"),
        _of_brokers("", "log.retention.bytes", "1000"),
        _of_brokers("1", "log.retention.bytes", "3000"),
        _of_brokers("2", "log.retention.ms", "5"),
    ),
    (
        _of_brokers("1", "log.retention.bytes", "2000"),
        _of_brokers("2", "log.retention.ms", None),
        _partition("plain", PLAIN, 0, replicas=(1,), isr=(1,), leader=1, leader_epoch=1, partition_epoch=1),
    ),
)  # fmt: skip


def _segment(
    number: int,
    state: RemoteLogSegmentState,
    start: int,
    end: int,
    *,
    partition: int = 0,
    topic: tuple[str, bytes] = ("orders", ORDERS),
    epochs: tuple[tuple[int, int], ...] = ((0, 0),),
    newest: int = YOUNG,
) -> RemoteLogSegment:
    return RemoteLogSegment(
        topic=topic[0],
        topic_id=topic[1],
        partition=partition,
        segment_id=bytes([number]) * 16,
        state=state,
        start_offset=start,
        end_offset=end,
        leader_epochs=epochs,
        max_timestamp_ms=newest,
        size_bytes=1000,
        lake_bytes=500,
        row_count=end - start + 1,
        broker_id=1,
        leader_epoch=epochs[-1][0],
        event_time_ms=T0 + number * 1000,
    )


def segment_id(number: int) -> str:
    return uuid_text(bytes([number]) * 16)


def _events() -> list[list[RemoteLogSegment]]:
    gone, plain = ("gone", GONE), ("plain", PLAIN)
    copied = [
        _segment(1, S.COPY_SEGMENT_FINISHED, 0, 9),
        _segment(2, S.COPY_SEGMENT_FINISHED, 10, 19, epochs=((0, 10),)),
        # 20 to 24 are nowhere, 28 and 29 twice.
        _segment(3, S.COPY_SEGMENT_FINISHED, 25, 29, epochs=((0, 25),)),
        _segment(4, S.COPY_SEGMENT_FINISHED, 28, 34, epochs=((0, 28),)),
        _segment(6, S.COPY_SEGMENT_FINISHED, 0, 4, partition=1, newest=OLD),
        _segment(7, S.COPY_SEGMENT_FINISHED, 5, 9, partition=1, epochs=((0, 5), (1, 8)), newest=OLD),
        _segment(8, S.COPY_SEGMENT_FINISHED, 0, 3, topic=gone),
        _segment(9, S.COPY_SEGMENT_FINISHED, 0, 4, partition=2, newest=NO_TIME),
        _segment(10, S.COPY_SEGMENT_FINISHED, 5, 9, partition=2, epochs=((0, 5),), newest=NO_DATE),
        _segment(11, S.COPY_SEGMENT_FINISHED, 0, 4, partition=3),
        _segment(12, S.COPY_SEGMENT_FINISHED, 0, 4, topic=plain, newest=OLD),
        _segment(13, S.COPY_SEGMENT_FINISHED, 5, 9, topic=plain, epochs=((0, 5),), newest=OLD),
        # 10 and 11 are nowhere.
        _segment(14, S.COPY_SEGMENT_FINISHED, 12, 14, topic=plain, epochs=((1, 12),), newest=OLD),
    ]  # fmt: skip
    begun = [
        _segment(each.segment_id[0], S.COPY_SEGMENT_STARTED, each.start_offset, each.end_offset,
                 partition=each.partition, topic=(each.topic, each.topic_id), epochs=each.leader_epochs)
        for each in copied
    ]  # fmt: skip
    unfinished = _segment(5, S.COPY_SEGMENT_STARTED, 35, 39, epochs=((0, 35),))
    going = _segment(6, S.DELETE_SEGMENT_STARTED, 0, 4, partition=1, newest=OLD)
    return [begun, copied, [unfinished], [going]]


def write(folder: Path) -> Store:
    """The lake in that folder."""
    clock = ManualClock()
    store = LocalStore(str(folder))
    write_cluster(store, clock, COMMITS)
    events = RemoteLogEvents(store, clock=clock)
    events.open()
    for each in _events():
        events.append(each)
    offsets = OffsetsTable(store, clock=clock)
    offsets.replace(
        2, _noted_by(2, 0, clock.ms, orders_end=7, committed={"old": [("orders", 0, 3)]})
    )
    offsets.replace(1, [{"kind": "group", "group_id": "of the note before", "event_time": 0}])
    clock.ms += 1000
    committed = {
        "billing": [("orders", 0, 30), ("orders", 1, 14), ("orders", 2, 3), ("gone", 0, 1)],
        "late": [("orders", 1, 2), ("orders", 3, 0)],
    }
    offsets.replace(1, _noted_by(1, 1, clock.ms, orders_end=12, committed=committed))
    _write_pushed(folder)
    _write_dead_letters(folder)
    return store


def _write_pushed(folder: Path) -> None:
    """The table of `__client_metrics`, with what one client has pushed."""
    name = "org.apache.kafka.producer.record.send.total"
    points = [
        MetricPoint(name, 7.5, True, T0, (("topic", "größe"),)),
        MetricPoint("x", 1, False, T0, ()),
    ]
    (batch,) = batches_of(points, ORDERS, {"client_id": "me"}, T0 + 1_000)
    rows = [
        {
            "partition": 0,
            "offset": each.offset,
            "timestamp": each.timestamp * 1_000,
            "value": each.value,
        }
        for each in read_records(batch)
    ]
    _write_topic(folder, CLIENT_METRICS, rows)


def _write_dead_letters(folder: Path) -> None:
    """The table of a dead-letter topic; one of its records is none."""
    letters = [DeadLetter(7, 1, True), DeadLetter(8, 5, False)]
    original = Record(7, 1, b"k", b"v", [(b"__dlq.errors.group", b"of before")])
    source = SourcePartition("workers", "orders", 1)
    batch, *_ = batch_of(letters, {7: original}, source, now_ms=T0, bytes_max=10_000)
    other = Record(2, T0, None, b"no letter", ())
    rows = [
        {
            "partition": 0,
            "offset": each.offset,
            "timestamp": each.timestamp * 1_000,
            "key": each.key,
            "value": each.value,
            "headers": [{"key": name.decode(), "value": text} for name, text in each.headers]
            or None,
        }
        for each in [*read_records(batch), other]
    ]
    _write_topic(folder, "dlq.orders", rows)


def _write_topic(folder: Path, topic: str, rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows, schema=TOPIC_SCHEMA)
    write_deltalake(folder / topic_table(topic), table, partition_by=["partition"])


def write_cluster(store: Store, clock: ManualClock, commits: Iterable[tuple[Event, ...]]) -> None:
    """The decisions of a controller, a second apart, as rows of the table."""
    log = MetadataLog(store, log=DeltaLog(store, CLUSTER_METADATA, clock=clock))
    image = log.load()
    for events in commits:
        clock.ms += 1000
        version = log.commit(log.begin(events, image))
        assert version is not None
        replay_commit(image, version, events)
    worker = Materialiser(store, tier_settings(), CrashPoints(), lambda topic, topic_id: None)
    worker.materialise(image.version)


def _noted_by(
    broker_id: int,
    epoch: int,
    now_ms: int,
    *,
    orders_end: int,
    committed: dict[str, list[tuple[str, int, int]]],
) -> list[dict[str, Any]]:
    def log(
        topic: str, topic_id: bytes, index: int, leader_epoch: int, end: int, *, start: int = 0
    ) -> dict[str, Any]:
        return {
            "kind": "partition", "event_time": now_ms, "topic": topic, "topic_id": uuid_text(topic_id),
            "partition": index, "leader_epoch": leader_epoch,
            "log_start_offset": start, "local_log_start_offset": start,
            "last_stable_offset": end, "high_watermark": end, "log_end_offset": end + 1, "size_bytes": 100,
        }  # fmt: skip

    rows = [
        log("__consumer_offsets", OFFSETS_TOPIC, 0, epoch, 5),
        log("orders", ORDERS, 1, epoch, orders_end, start=6),
    ]
    if broker_id == 1:
        rows += [log("orders", ORDERS, 0, 0, 40), log("orders", ORDERS, 3, 0, 45, start=40)]
    place = {"event_time": now_ms, "coordinator_partition": 0, "coordinator_epoch": epoch}
    if broker_id == 1:
        rows.append(log("__share_group_state", SHARE_TOPIC, 0, epoch, 5))
    rows += [
        {
            "kind": "share_state", **place, "group_id": "workers", "topic_id": uuid_text(topic_id), "partition": index,
            "leader_epoch": 1, "start_offset": start, "state_epoch": 0, "delivery_complete_count": len(done),
            "state_batches": [
                {"first_offset": each, "last_offset": each, "delivery_state": 2, "delivery_count": 1} for each in done
            ],
        }
        # Another broker is the coordinator now; and of a deleted topic nothing is shown.
        for topic_id, index, start, done in ((ORDERS, 1, 8, [9, 10]), (ORDERS, 2, -1, []), (GONE, 0, 5, []))
    ]  # fmt: skip
    for group_id, offsets in committed.items():
        rows.append(
            {
                "kind": "group",
                **place,
                "group_id": group_id,
                "protocol_type": "consumer",
                "generation": 4,
            }
        )
        rows += [
            {
                "kind": "offset", **place, "group_id": group_id, "topic": topic, "partition": index,
                "committed_offset": offset, "committed_leader_epoch": 0, "metadata": "", "commit_time": now_ms,
                "expire_timestamp": -1,
            }
            for topic, index, offset in offsets
        ]  # fmt: skip
    return rows


# What each view says: a query, and its rows in order.
EXPECTED: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "remote_segments": (
        "SELECT segment_id, state, start_offset, end_offset, unix_millis(max_timestamp), max_timestamp_ms "
        "FROM remote_segments WHERE topic = 'orders' ORDER BY partition, start_offset, end_offset",
        [
            (segment_id(1), "COPY_SEGMENT_FINISHED", 0, 9, YOUNG, YOUNG),
            (segment_id(2), "COPY_SEGMENT_FINISHED", 10, 19, YOUNG, YOUNG),
            (segment_id(3), "COPY_SEGMENT_FINISHED", 25, 29, YOUNG, YOUNG),
            (segment_id(4), "COPY_SEGMENT_FINISHED", 28, 34, YOUNG, YOUNG),
            (segment_id(5), "COPY_SEGMENT_STARTED", 35, 39, YOUNG, YOUNG),
            (segment_id(6), "DELETE_SEGMENT_STARTED", 0, 4, OLD, OLD),
            (segment_id(7), "COPY_SEGMENT_FINISHED", 5, 9, OLD, OLD),
            (segment_id(9), "COPY_SEGMENT_FINISHED", 0, 4, None, NO_TIME),
            (segment_id(10), "COPY_SEGMENT_FINISHED", 5, 9, None, NO_DATE),
            (segment_id(11), "COPY_SEGMENT_FINISHED", 0, 4, YOUNG, YOUNG),
        ],
    ),
    "segment_history": (
        "SELECT previous_state, state, row_count FROM segment_history "
        f"WHERE segment_id = '{segment_id(6)}' ORDER BY version, sequence",
        [
            (None, "COPY_SEGMENT_STARTED", 5),
            ("COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED", 5),
            ("COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED", 5),
        ],
    ),
    "remote_log_events": ("SELECT count(*) FROM remote_log_events", [(28,)]),
    "cluster_events": (
        "SELECT version, type FROM cluster_events WHERE broker_id = 2 ORDER BY version",
        [(3, "RegisterBroker"), (4, "UnfenceBroker"), (8, "FenceBroker")],
    ),
    "leader_epochs": (
        "SELECT partition, leader_epoch, leader, unix_millis(since), unix_millis(until), start_offset, end_offset "
        "FROM leader_epochs WHERE topic IN ('orders', 'plain', 'gone') "
        "ORDER BY topic DESC, partition, leader_epoch",
        [
            # Of the first leader's 10 and 11 the lake has nothing.
            (0, 0, 1, T0 + 10000, T0 + 11000, 0, 9),
            (0, 1, 1, T0 + 11000, None, 12, 14),
            (0, 0, 1, T0 + 5000, None, 0, 34),
            # 0 to 4 are being removed.
            (1, 0, 2, T0 + 5000, T0 + 8000, 5, 7),
            (1, 1, 1, T0 + 8000, None, 8, 9),
            (2, 0, 1, T0 + 10000, None, 0, 9),
            (3, 0, 1, T0 + 10000, None, 0, 4),
            (0, 0, 1, T0 + 6000, T0 + 9000, 0, 3),
        ],
    ),
    "tier_lag": (
        "SELECT topic, partition, highest_offset_in_remote_storage, last_stable_offset, lag"
            " FROM tier_lag ORDER BY topic, partition",
        [
            ("orders", 0, 34, 40, 5),
            ("orders", 1, 9, 12, 2),
            ("orders", 2, 9, None, None),
            # What lies below the log start is not to come.
            ("orders", 3, 4, 45, 5),
            ("plain", 0, 14, None, None),
        ],
    ),
    "retention_debt": (
        "SELECT segment_id, reason FROM retention_debt ORDER BY topic, partition, start_offset",
        [
            (segment_id(6), "deletion not finished"),
            (segment_id(7), "retention.ms"),
            # No record has a time: it counts from the copy.
            (segment_id(9), "retention.ms"),
            (segment_id(11), "below log start"),
            # The leader's own 2000 bytes, and for ever: what all brokers were told wins over what they began with.
            (segment_id(12), "retention.bytes"),
        ],
    ),
    "gaps_and_overlaps": (
        "SELECT topic, partition, kind, first_offset, last_offset, segment_id FROM gaps_and_overlaps "
        "ORDER BY first_offset",
        [
            ("plain", 0, "gap", 10, 11, segment_id(14)),
            ("orders", 0, "gap", 20, 24, segment_id(3)),
            ("orders", 0, "overlap", 28, 29, segment_id(4)),
        ],
    ),
    "orphans": (
        "SELECT segment_id, reason FROM orphans ORDER BY reason",
        [
            (segment_id(5), "copy not finished"),
            (segment_id(6), "deletion not finished"),
            (segment_id(8), "topic deleted"),
        ],
    ),
    "partitions": (
        "SELECT topic, partition, leader, leader_epoch, isr, under_replicated FROM partitions "
        "ORDER BY topic, partition",
        [
            ("__consumer_offsets", 0, 1, 1, [1], True),
            ("orders", 0, 1, 0, [1], True),
            ("orders", 1, 1, 1, [1], True),
            ("orders", 2, 1, 0, [1], False),
            ("orders", 3, 1, 0, [1], False),
            ("plain", 0, 1, 1, [1], False),
            ("table", 0, 1, 0, [1], False),
        ],
    ),
    "isr_history": (
        "SELECT isr, joined, departed, leader, unix_millis(since), unix_millis(until) FROM isr_history "
        "WHERE (topic = 'orders' AND partition = 1) OR topic = 'gone' ORDER BY topic DESC, since",
        [
            ([2, 1], [], [], 2, T0 + 5000, T0 + 8000),
            ([1], [], [2], 1, T0 + 8000, None),
            ([1], [], [], 1, T0 + 6000, T0 + 9000),
        ],
    ),
    "topic_configs": (
        "SELECT topic, name, value FROM topic_configs ORDER BY topic, name",
        [
            ("orders", "retention.bytes", "-1"),
            ("orders", "retention.ms", "3600000"),
            ("table", "cleanup.policy", "compact"),
        ],
    ),
    "broker_configs": (
        "SELECT broker_id, name, value, unix_millis(since) FROM broker_configs "
        "ORDER BY coalesce(broker_id, -1), name",
        [
            (None, "log.retention.bytes", "1000", T0 + 10000),
            (None, "log.retention.ms", "-1", T0 + 10000),
            (1, "log.retention.bytes", "2000", T0 + 11000),
        ],
    ),
    "brokers": (
        "SELECT broker_id, broker_epoch, host, port, rack, fenced, is_controller, partitions_led, "
        "unix_millis(registered_at), unix_millis(since) FROM brokers ORDER BY broker_id",
        [
            (1, 11, "host1", 9092, "a", False, True, 7, T0 + 2000, T0 + 2000),
            (2, 12, "host2", 9092, None, True, False, 0, T0 + 3000, T0 + 8000),
        ],
    ),
    "partition_offsets": (
        "SELECT topic, partition, broker_id, high_watermark FROM partition_offsets ORDER BY topic, partition",
        [
            ("__consumer_offsets", 0, 1, 5),
            ("__share_group_state", 0, 1, 5),
            ("orders", 0, 1, 40),
            ("orders", 1, 1, 12),
            ("orders", 3, 1, 45),
        ],
    ),
    "client_metrics": (
        "SELECT client_id, name, value, attributes, monotonic, pushed_at > measured_at FROM client_metrics "
        "ORDER BY name",
        [
            ("me", "org.apache.kafka.producer.record.send.total", 7.5, '{"topic":"größe"}', True, True),
            ("me", "x", 1.0, "{}", False, True),
        ],
    ),
    "dead_letters": (
        "SELECT group_id, topic, partition, delivery_count, message, octet_length(value), dead_letter_topic "
        "FROM dead_letters ORDER BY dead_letter_offset",
        [
            ("workers", "orders", 1, 1, "Offset rejected by client.", 1, "dlq.orders"),
            ("workers", "orders", 1, 5, "Offset delivery count exceeded the threshold.", None, "dlq.orders"),
        ],
    ),
    "share_group_state": (
        "SELECT group_id, topic, partition, start_offset, delivery_complete_count, array_size(state_batches), lag, "
        "broker_id FROM share_group_state ORDER BY partition",
        [
            ("workers", "orders", 1, 8, 2, 2, 2, 1),
            # The group has not begun there.
            ("workers", "orders", 2, -1, 0, 0, None, 1),
        ],
    ),
    "committed_offsets": (
        "SELECT group_id, topic, partition, committed_offset FROM committed_offsets "
        "ORDER BY group_id, topic, partition",
        [
            ("billing", "gone", 0, 1),
            ("billing", "orders", 0, 30),
            ("billing", "orders", 1, 14),
            ("billing", "orders", 2, 3),
            ("late", "orders", 1, 2),
            ("late", "orders", 3, 0),
        ],
    ),
    "group_lag": (
        "SELECT group_id, partition, committed_offset, high_watermark, lag, lag_in_lake, noted_at IS NULL "
        "FROM group_lag ORDER BY group_id, partition",
        [
            ("billing", 0, 30, 40, 10, 5, False),
            # What was committed beyond the end is no lag below zero.
            ("billing", 1, 14, 12, 0, 0, False),
            # Nobody noted where that log ends.
            ("billing", 2, 3, None, None, 7, True),
            # Of what is below the log start nothing can be read, wherever it is.
            ("late", 1, 2, 12, 10, 4, False),
            ("late", 3, 0, 45, 45, 0, False),
        ],
    ),
}  # fmt: skip

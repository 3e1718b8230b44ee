"""A compacted topic that is a Delta table, by a real broker: the table has every record, the log each key's last."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from kafka_ds.segments.checkpoint import decode_offsets
from tests import topics
from tests.integration.tier_broker import (
    QUICK,
    Acknowledged,
    Feeder,
    ProducedRow,
    alter_topic,
    assert_table_holds,
    broker_process,
    consume,
    create_topic,
    highest_offset_in_remote_storage,
    restore,
    table,
)
from tests.processes import BrokerProcess, cluster, wait_until

TOPIC = "accounts"
KEYS = 40
SETTINGS = {
    **QUICK,
    "lake.local.grace.ms": 0,
    "log.cleaner.backoff.ms": 50,
    "offsets.topic.num.partitions": 1,
}
COMPACTED = {
    "cleanup_policy": "compact",
    "remote_storage_enable": "true",
    "delete_retention_ms": 0,
    "min_cleanable_dirty_ratio": 0,
    # A log that moves to the lake would be gone by these.
    "local_retention_ms": 1,
    "segment_ms": 200,
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = broker_process(tmp_path, SETTINGS).start()
    yield process
    process.kill()


def changes(random: Random, count: int) -> list[ProducedRow]:
    """New values of a few keys; some of them tombstones."""
    return [
        ProducedRow(
            key=b"key-%d" % random.randrange(KEYS),
            value=random.randbytes(3000) if random.random() < 0.9 else None,
            timestamp_ms=1_700_000_000_000 + number,
        )
        for number in range(count)
    ]


def last_values(rows: dict[int, ProducedRow]) -> dict[bytes | None, bytes]:
    """What a reader of these makes of them: each key's last value, without those that were deleted."""
    state = {rows[offset].key: rows[offset].value for offset in sorted(rows)}
    return {key: value for key, value in state.items() if value is not None}


def cleaned_offset(broker: BrokerProcess) -> int:
    try:
        data = (broker.data / "cleaner-offset-checkpoint").read_bytes()
    except FileNotFoundError:
        return -1
    return decode_offsets(data).get((TOPIC, 0), -1)


def wait_until_clean(broker: BrokerProcess, acknowledged: Acknowledged) -> int:
    """Wait until all is in the lake and compacted; returns the log's end."""
    end = max(acknowledged.partition(0)) + 1
    wait_until(
        "all to be in the lake",
        lambda: highest_offset_in_remote_storage(broker.lake, TOPIC, 0) == end - 1,
    )
    wait_until("all to be clean", lambda: cleaned_offset(broker) >= end)
    return end


def flushed_and_clean(broker: BrokerProcess, feeder: Feeder) -> int:
    """Wait until all is compacted, of a topic without a table; returns the log's end."""
    feeder.flush()
    end = max(feeder.acknowledged.partition(0)) + 1
    wait_until("all to be clean", lambda: cleaned_offset(broker) >= end)
    return end


def bases(broker: BrokerProcess) -> list[int]:
    """Where the segments of the log begin."""
    return sorted(int(each.stem) for each in (broker.data / f"{TOPIC}-0").glob("*.log"))


def test_the_table_has_every_record_and_the_log_the_last_of_each_key(broker: BrokerProcess) -> None:
    """Killed again and again, wherever its copies and its cleaner are."""
    random = Random(13)
    create_topic(broker, TOPIC, **COMPACTED)
    feeder = Feeder(broker.bootstrap, TOPIC)
    for _ in range(3):
        feeder.send(changes(random, 700))
        feeder.flush()
        wait_until("a part to be clean", lambda: cleaned_offset(broker) > 0)
        # What is clean is in the lake.
        assert cleaned_offset(broker) <= highest_offset_in_remote_storage(broker.lake, TOPIC, 0) + 1
        broker.kill()
        broker.start()
    end = wait_until_clean(broker, feeder.acknowledged)
    assert_table_holds(broker.lake, TOPIC, feeder.acknowledged)
    assert highest_offset_in_remote_storage(broker.lake, TOPIC, 0) == end - 1
    found = consume(broker.bootstrap, TOPIC, 0, end=end)
    assert len(found) <= KEYS
    assert last_values(found) == last_values(feeder.acknowledged.partition(0))


def test_what_a_key_was_stays_deleted_when_all_disks_are_lost(broker: BrokerProcess) -> None:
    """Old offsets come from the table then, with all older values: the tombstones behind them have to stay."""
    random = Random(14)
    create_topic(broker, TOPIC, **COMPACTED)
    feeder = Feeder(broker.bootstrap, TOPIC)
    feeder.send(changes(random, 700))
    feeder.flush()
    wait_until_clean(broker, feeder.acknowledged)
    broker.stop()
    shutil.rmtree(broker.data)
    done = restore(broker)
    assert done.returncode == 0, done.stderr
    broker.start()
    feeder.send(ProducedRow(key=b"key-%d" % number, value=None) for number in range(KEYS // 2))
    feeder.flush()
    wait_until_clean(broker, feeder.acknowledged)
    feeder.send(changes(random, 400))
    feeder.flush()
    end = wait_until_clean(broker, feeder.acknowledged)
    found = consume(broker.bootstrap, TOPIC, 0, end=end)
    assert last_values(found) == last_values(feeder.acknowledged.partition(0))
    assert len(found) < len(feeder.acknowledged.rows)
    assert_table_holds(broker.lake, TOPIC, feeder.acknowledged)


def test_a_log_that_was_compacted_before_becomes_a_table(broker: BrokerProcess) -> None:
    """With what is left of it: where compaction took the ends of segments, copies go on behind the gap."""
    random = Random(15)
    create_topic(broker, TOPIC, **{**COMPACTED, "remote_storage_enable": "false"})
    # Records that are batches by themselves go as a whole.
    feeder = Feeder(broker.bootstrap, TOPIC, batch_num_messages=1)
    feeder.send(
        ProducedRow(key=b"key-%d" % number, value=random.randbytes(3000)) for number in range(700)
    )
    end = flushed_and_clean(broker, feeder)
    written = feeder.acknowledged.partition(0)
    last_of_segments = [written[base - 1].key for base in bases(broker) if 0 < base < end]
    feeder.send(ProducedRow(key=key, value=b"newer") for key in last_of_segments)
    end = flushed_and_clean(broker, feeder)
    left = consume(broker.bootstrap, TOPIC, 0, end=end)
    assert any(base - 1 not in left for base in bases(broker) if 0 < base < end)
    alter_topic(broker, TOPIC, remote_storage_enable="true")
    wait_until(
        "the lake to have it",
        lambda: highest_offset_in_remote_storage(broker.lake, TOPIC, 0) == max(left),
    )
    rows = table(broker.lake, TOPIC).select("offset", "key", "value").iter_rows()
    assert [*rows] == [(offset, row.key, row.value) for offset, row in sorted(left.items())]
    feeder.send(changes(random, 100))
    feeder.flush()
    end = wait_until_clean(broker, feeder.acknowledged)
    found = consume(broker.bootstrap, TOPIC, 0, end=end)
    assert last_values(found) == last_values(feeder.acknowledged.partition(0))


@pytest.mark.parametrize("operation", ["SET", "APPEND"])
def test_a_table_by_default_becomes_a_compacted_one_from_where_it_is(
    broker: BrokerProcess, operation: str
) -> None:
    """Part of it is in the lake alone, part in both, part not copied yet; the broker is killed meanwhile."""
    random = Random(16)
    create_topic(broker, TOPIC, segment_ms=200, local_retention_ms=1)
    feeder = Feeder(broker.bootstrap, TOPIC)
    feeder.send(changes(random, 1_400))
    feeder.flush()
    wait_until("a part that only the lake has", lambda: bases(broker)[0] > 0)
    feeder.send(changes(random, 700))
    policy = ConfigEntry(
        "cleanup.policy",
        "compact",
        incremental_operation=getattr(AlterConfigOpType, operation),
    )
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[policy])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(60)
    alter_topic(broker, TOPIC, min_cleanable_dirty_ratio=0, delete_retention_ms=0)
    feeder.flush()
    wait_until("a part to be clean", lambda: cleaned_offset(broker) > 0)
    assert cleaned_offset(broker) <= highest_offset_in_remote_storage(broker.lake, TOPIC, 0) + 1
    broker.kill()
    broker.start()
    feeder.send(ProducedRow(key=b"key-%d" % number, value=None) for number in range(KEYS // 2))
    feeder.send(changes(random, 300))
    feeder.flush()
    end = wait_until_clean(broker, feeder.acknowledged)
    assert_table_holds(broker.lake, TOPIC, feeder.acknowledged)
    found = consume(broker.bootstrap, TOPIC, 0, end=end)
    assert last_values(found) == last_values(feeder.acknowledged.partition(0))
    assert len(found) < len(feeder.acknowledged.rows)


def test_a_diskless_topic_is_compacted_whoever_leads_it(tmp_path: Path) -> None:
    """Each leader begins its log at the table's end and compacts that; what is before comes from the table."""
    random = Random(15)
    overrides = {**SETTINGS, "remote.log.storage.system.enable": "true"}
    with cluster(tmp_path, 2, overrides) as brokers:
        settings = {name.replace("_", "."): str(value) for name, value in COMPACTED.items()}
        topics.create_topic(brokers.bootstrap, TOPIC, {**settings, "lake.diskless": "true"})
        feeder = Feeder(brokers.bootstrap, TOPIC)
        client = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})

        def leader() -> int:
            found: int = client.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions[0].leader
            return found

        for _ in range(3):
            feeder.send(changes(random, 700))
            feeder.flush(120)
            led = leader()
            wait_until(
                "a part to be clean", lambda at=led: cleaned_offset(brokers[at]) > 0, timeout_s=60
            )
            acknowledged = feeder.acknowledged.partition(0)
            found = consume(brokers.bootstrap, TOPIC, 0, end=max(acknowledged) + 1)
            assert last_values(found) == last_values(acknowledged)
            brokers[led].kill()
            shutil.rmtree(brokers[led].data)
            wait_until("another leader", lambda at=led: leader() not in (-1, at), timeout_s=60)
            found = consume(brokers.bootstrap, TOPIC, 0, end=max(acknowledged) + 1)
            assert last_values(found) == last_values(acknowledged)
            brokers.start()

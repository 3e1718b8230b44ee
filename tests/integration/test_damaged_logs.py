"""One byte of a log's file is another one: after a kill, and after a clean stop; alone, with a lake, with replicas."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from broker.log.segment.scan import headers
from kafka_ds.records.batch import BatchHeader
from kafka_ds.segments import names
from tests import topics
from tests.integration.cluster_image import image_of
from tests.integration.tier_broker import (
    Feeder,
    assert_table_holds,
    broker_process,
    consume,
    create_topic,
    highest_offset_in_remote_storage,
    rows,
)
from tests.processes import BrokerProcess, cluster, wait_until

TOPIC = "orders"
# Behind a batch's header: its checksum tells.
BODY = 70
# The first byte of a batch's length: nobody can say where the next one begins.
LENGTH = 8


def batches(segment: Path) -> list[tuple[int, BatchHeader]]:
    data = segment.read_bytes()
    return list(headers(lambda size, position: data[position : position + size], 0, len(data)))


def flip(segment: Path, number: int, place: int) -> int:
    """Another byte at a place of a segment's batch of this number; returns the batch's base offset."""
    position, header = batches(segment)[number]
    with segment.open("r+b") as file:
        file.seek(position + place)
        (byte,) = file.read(1)
        file.seek(position + place)
        file.write(bytes([byte ^ 0x41]))
    return header.base_offset


def segments_of(broker: BrokerProcess, topic: str = TOPIC) -> list[Path]:
    data = Path(str(broker.overrides["log.dirs"]))
    return sorted((data / f"{topic}-0").glob("*.log"))


def produce(bootstrap: str, batches: int = 5, records: int = 100) -> dict[int, bytes]:
    """Batches with acks=all, one after the other; the acknowledged values by offset."""
    found: dict[int, bytes] = {}

    def delivered(error: object, message: object) -> None:
        assert error is None, error
        found[message.offset()] = message.value()  # type: ignore[attr-defined]

    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 200})
    for batch in range(batches):
        for number in range(records):
            value = b"%d-%d" % (batch, number)
            producer.produce(TOPIC, value, partition=0, on_delivery=delivered)
        assert producer.flush(120) == 0
    return found


def read(
    bootstrap: str, end: int, **settings: object
) -> tuple[dict[int, bytes], KafkaError | None]:
    """What a consumer gets up to an offset, or up to an error."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "auto.offset.reset": "error",
            "check.crcs": True,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: dict[int, bytes] = {}
    failed: list[KafkaError] = []

    def is_over() -> bool:
        for message in consumer.consume(1000, 0.2):
            error = message.error()
            if error is not None:
                failed.append(error)
            else:
                found[message.offset()] = message.value()
        return bool(failed) or len(found) >= end

    wait_until("the consumer to be through, or to fail", is_over)
    consumer.close()
    return found, failed[0] if failed else None


def said(broker: BrokerProcess, *words: str) -> list[str]:
    """The lines of a broker's log with all of these words."""
    lines = broker.log_file.read_text(errors="replace").splitlines()
    return [line for line in lines if all(each in line for each in words)]


def test_without_another_copy_what_is_dropped_is_said(tmp_path: Path, free_port: int) -> None:
    broker = broker_process(tmp_path, {"metrics.port": free_port}).start()
    create_topic(broker, TOPIC, remote_storage_enable="false")
    sent = produce(broker.bootstrap)
    broker.kill()
    (segment,) = segments_of(broker)
    end = flip(segment, 2, BODY)
    broker.start()
    try:
        (warning,) = said(broker, "WARNING", "Found invalid messages in log segment")
        assert f"{TOPIC}-0: " in warning and str(segment) in warning
        assert f"CRC mismatch in the batch at offset {end}. Truncating to offset {end}: " in warning
        assert f"with offsets {end} to {len(sent) - 1}" in warning
        (error,) = said(broker, "ERROR", f"{TOPIC}-0 ends at offset {end}, but had records up to ")
        assert f"offset {len(sent) - 1}: " in error and "there is no other replica" in error
        found, _ = read(broker.bootstrap, end)
        assert found == {offset: sent[offset] for offset in range(end)}
        lines = [each for each in broker.metrics().splitlines() if TOPIC in each]
        dropped = [float(each.split()[-1]) for each in lines if "recoverydropped" in each.lower()]
        assert len(dropped) == 2
        assert len(sent) - end in dropped
        assert min(dropped) > 0
    finally:
        broker.stop()


@pytest.mark.parametrize("place", [BODY, LENGTH])
def test_with_a_lake_what_is_in_it_is_served_and_no_offset_is_used_twice(
    tmp_path: Path, place: int
) -> None:
    """Of four segments and more the second is damaged; all but the active one are in the lake."""
    kept = {"log.local.retention.ms": -1, "log.retention.ms": -1}
    broker = broker_process(tmp_path, kept).start()
    create_topic(broker, TOPIC, local_retention_ms=-1, remote_storage_enable="true")
    feeder = Feeder(broker.bootstrap, TOPIC, batch_size=100_000)
    feeder.send(rows(4_500))
    feeder.flush()
    assert len(segments_of(broker)) >= 4
    active = int(segments_of(broker)[-1].stem)
    wait_until(
        "the closed segments in the lake",
        lambda: highest_offset_in_remote_storage(broker.lake, TOPIC, 0) >= active - 1,
    )
    broker.kill()
    (broker.data / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
    dropped_at = flip(segments_of(broker)[1], 2, place)
    broker.start()
    try:
        tiered = highest_offset_in_remote_storage(broker.lake, TOPIC, 0)
        assert said(broker, "WARNING", f"Truncating to offset {dropped_at}: ")
        (error,) = said(broker, "ERROR", f"{TOPIC}-0 ends at offset {dropped_at}, but had records")
        assert "the lake is asked before it leads" in error
        old = consume(broker.bootstrap, TOPIC, 0, end=tiered + 1)
        acknowledged = feeder.acknowledged.partition(0)
        assert old == {offset: acknowledged[offset] for offset in range(tiered + 1)}
        again = Feeder(broker.bootstrap, TOPIC)
        again.send(rows(2_500, start=10_000))
        again.flush()
        assert min(again.acknowledged.partition(0)) == tiered + 1, "what was behind is lost"
        whole = {**old, **again.acknowledged.partition(0)}
        assert consume(broker.bootstrap, TOPIC, 0, end=max(whole) + 1) == whole
        again.acknowledged.rows.update({(0, offset): row for offset, row in old.items()})
        newest = int(segments_of(broker)[-1].stem)
        wait_until(
            "new ones there",
            lambda: highest_offset_in_remote_storage(broker.lake, TOPIC, 0) >= newest - 1,
        )
        assert_table_holds(broker.lake, TOPIC, again.acknowledged)
    finally:
        broker.stop()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_log_whose_topic_id_is_lost_is_served_as_the_topics_of_its_name(
    tmp_path: Path, *, is_there: bool
) -> None:
    """A new one in its place would begin at offset 0, and use acknowledged offsets again."""
    broker = broker_process(tmp_path).start()
    create_topic(broker, TOPIC, remote_storage_enable="false")
    sent = produce(broker.bootstrap)
    broker.kill()
    metadata = broker.data / f"{TOPIC}-0" / names.PARTITION_METADATA
    whole = metadata.read_bytes()
    metadata.write_bytes(whole[:20]) if is_there else metadata.unlink()
    broker.start()
    try:
        found, failed = read(broker.bootstrap, len(sent))
        assert failed is None
        assert found == sent
        (warning,) = said(broker, "WARNING", f"{TOPIC}-0 has lost its topic id")
        assert "the topic of this name" in warning
        assert metadata.read_bytes() == whole
    finally:
        broker.stop()


def test_a_log_that_is_gone_is_said_where_nobody_else_has_it(tmp_path: Path) -> None:
    """Also before a checkpoint told how far it reached."""
    broker = broker_process(tmp_path).start()
    create_topic(broker, TOPIC, remote_storage_enable="false")
    produce(broker.bootstrap)
    broker.kill()
    shutil.rmtree(broker.data / f"{TOPIC}-0")
    for checkpoint in broker.data.glob("*-checkpoint"):
        checkpoint.unlink()
    broker.start()
    try:
        (warning,) = said(
            broker, "WARNING", f"{TOPIC}-0 is empty on this broker, though it was led before"
        )
        assert "there is no other replica, nor a lake" in warning
    finally:
        broker.stop()


def make_replicated(bootstrap: str) -> None:
    settings = {"min.insync.replicas": "2", "remote.storage.enable": "false"}
    topics.create_topic(bootstrap, TOPIC, settings, replicas=3)


@pytest.mark.parametrize("who", ["leader", "all"])
def test_a_damaged_replica_fetches_what_it_lost_before_it_leads(tmp_path: Path, who: str) -> None:
    """The leader is killed and damaged; or all are killed, and the damaged one comes back first."""
    with cluster(tmp_path) as brokers:
        make_replicated(brokers.bootstrap)
        sent = produce(brokers.bootstrap)
        leader = image_of(brokers).topics[TOPIC].partitions[0].leader
        others = [each for each in brokers.brokers if each != leader]
        for node_id in [leader, *(others if who == "all" else [])]:
            brokers[node_id].kill()
        end = flip(segments_of(brokers[leader])[0], 2, BODY)
        epoch = image_of(brokers).topics[TOPIC].partitions[0].leader_epoch
        brokers[leader].start()
        (error,) = said(
            brokers[leader], "ERROR", f"{TOPIC}-0 ends at offset {end}, but had records"
        )
        assert "what the other replicas (" in error
        brokers.start()

        def is_whole() -> bool:
            registration = image_of(brokers).topics[TOPIC].partitions[0]
            return set(registration.isr) == set(brokers.brokers)

        wait_until("all replicas in the ISR", is_whole)
        registration = image_of(brokers).topics[TOPIC].partitions[0]
        assert registration.leader_epoch > epoch
        assert registration.leader_recovery_state == 0, "no unclean election"
        found, failed = read(brokers.bootstrap, len(sent))
        assert failed is None
        assert found == sent
        contents = {segments_of(each)[0].read_bytes() for each in brokers.brokers.values()}
        assert len(contents) == 1, "as the others have it"


@pytest.mark.parametrize("place", [BODY, LENGTH])
def test_damage_below_a_clean_stop_is_an_error_of_who_reads_it(
    tmp_path: Path, place: int, free_port: int
) -> None:
    """Nothing is scanned then, as in Kafka."""
    broker = broker_process(tmp_path, {"metrics.port": free_port}).start()
    create_topic(broker, TOPIC, remote_storage_enable="false")
    sent = produce(broker.bootstrap)
    broker.stop()
    (segment,) = segments_of(broker)
    behind = segment.stat().st_size - batches(segment)[2][0]
    end = flip(segment, 2, place)
    broker.start()
    try:
        found, failed = read(broker.bootstrap, len(sent), fetch_message_max_bytes=1000)
        assert failed is not None
        assert found == {offset: sent[offset] for offset in range(end)}
        if place == LENGTH:
            assert said(broker, "ERROR", "Found invalid messages in log segment", str(segment))
        lines = [
            each for each in broker.metrics().splitlines() if "log_invalidmessagebytes{" in each
        ]
        assert [float(each.split()[-1]) for each in lines] == [behind] * (place == LENGTH)
    finally:
        broker.stop()

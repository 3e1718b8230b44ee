"""Taking over a data directory of Apache Kafka after a crash, with damage, or with old metadata."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from broker.metadata.events import QuotaComponent
from broker.metadata.security_image import in_order
from kafka_ds.process.settings import ConfigError
from kafka_ds.protocol.messages.persisted_metadata import (
    ClientQuotaRecord,
    ConfigRecord,
    PartitionChangeRecord,
)
from kafka_ds.records.batch import Record, build_batch, read_header
from kafka_ds.segments import names
from kafka_ds.segments.checkpoint import decode_offsets, encode_epochs
from kafka_ds.segments.producers import Producers
from tests.requests import build
from tests.unit.adoption.kafka_folders import (
    CLUSTER_ID,
    NOW_MS,
    KafkaFolder,
    broker_record,
    metadata_batch,
    topic_id,
    topic_records,
)
from tests.unit.adoption.taken_over import batch, image_of, take_over


def orders_folder(folder: Path) -> KafkaFolder:
    """One topic of this broker's, with one record."""
    kafka = KafkaFolder(folder / "log")
    kafka.metadata([broker_record(1, 11), *topic_records("orders", 1)])
    kafka.log("orders", 0, {0: batch(0)}, number=1, epochs=[(3, 0)])
    return kafka


# -- killed in the middle --------------------------------------------------------------------------


def test_a_first_segment_that_was_being_swapped_is_the_first(tmp_path: Path) -> None:
    """Kafka's cleaner was killed between taking the old segment away and putting the new one in its place."""
    kafka = KafkaFolder(tmp_path / "log")
    kafka.metadata([broker_record(1, 11), *topic_records("state", 1, cleanup_policy="compact")])
    folder = kafka.log("state", 0, {0: batch(0), 500: batch(500)}, number=1)
    log = folder / names.file_name(0, names.LOG)
    (folder / f"{log.name}{names.DELETED}").write_bytes(log.read_bytes())
    log.rename(folder / f"{log.name}{names.SWAP}")
    take_over(tmp_path)
    starts = decode_offsets((kafka.folder / names.LOG_START_OFFSET_CHECKPOINT).read_bytes())
    assert starts == {("state", 0): 0}


# -- behind another broker -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("since", "latest_epoch", "why"),
    [
        ([PartitionChangeRecord(partition_id=0, topic_id=topic_id(1), isr=[2])], 3, "orders-0"),
        (topic_records("late", 2, replicas=(2,), isr=(2,)), 3, "topic late"),
        (topic_records("orders", 1, 2, replicas=(2,), isr=(2,), leader_epoch=3), 3, "orders-1"),
        ([], 4, "orders-0"),
    ],
    ids=["changed", "made", "partitions", "log"],
)
def test_a_further_broker_that_knows_more_than_the_lake_is_refused(
    tmp_path: Path, since: list[object], latest_epoch: int, why: str
) -> None:
    """The first broker's metadata was stale: replicas in sync there may lack records acknowledged since."""
    known = [
        broker_record(1, 11),
        broker_record(2, 12),
        *topic_records("orders", 1, replicas=(1, 2), isr=(1, 2)),
    ]
    first = KafkaFolder(tmp_path / "log")
    first.metadata(known)
    first.log("orders", 0, {0: batch(0)}, number=1, epochs=[(3, 0)])
    take_over(tmp_path)
    version = image_of(tmp_path).version
    second = KafkaFolder(tmp_path / "log-2", node_id=2)
    folder = second.metadata([*known, *since])
    log = second.log("orders", 0, {0: batch(0)}, number=1, epochs=[(latest_epoch, 0)])
    before = second.contents()
    with pytest.raises(ConfigError, match=rf"{why}\b.*--metadata-log-dir"):
        take_over(tmp_path, second.folder, node_id=2)
    assert second.contents() == before
    # What is as far, or less far, does no harm.
    (log / names.LEADER_EPOCH_CHECKPOINT).write_bytes(encode_epochs([(3, 0)]))
    (folder / names.file_name(0, names.LOG)).write_bytes(metadata_batch(known))
    take_over(tmp_path, second.folder, node_id=2)
    assert image_of(tmp_path).version == version


# -- settings of brokers ---------------------------------------------------------------------------


def of_brokers(name: str, value: str, broker: str = "") -> ConfigRecord:
    return ConfigRecord(resource_type=4, resource_name=broker, name=name, value=value)


def test_what_brokers_were_given_while_they_ran_is_taken_over(tmp_path: Path) -> None:
    """A topic without settings of its own is kept as long as before; what we cannot have so is told by name."""
    kafka = KafkaFolder(tmp_path / "log")
    kafka.metadata(
        [
            broker_record(1, 11),
            *topic_records("orders", 1, remote_storage_enable="true"),
            of_brokers("log.retention.ms", "-1"),
            of_brokers("log.cleanup.policy", "compact"),
            of_brokers("num.io.threads", "9"),
            of_brokers("ssl.keystore.password", "hush"),
            of_brokers("message.max.bytes", "much"),
            of_brokers("leader.replication.throttled.rate", "1000", "1"),
            of_brokers("leader.replication.throttled.rate", "1000", "77"),
            of_brokers("min.insync.replicas", "2", "1"),
        ]
    )
    kafka.log("orders", 0, {0: batch(0)}, number=1)
    lines = take_over(tmp_path)
    assert image_of(tmp_path).broker_configs == {
        "": {"log.retention.ms": "-1", "log.cleanup.policy": "compact"},
        "1": {"leader.replication.throttled.rate": "1000"},
    }
    # With the default that was taken over it is compacted, and a table, since it says so.
    assert image_of(tmp_path).topics["orders"].configs == {"remote.storage.enable": "true"}
    again = {line.split(" in Kafka")[0] for line in lines if "set it again" in line}
    assert again == {
        "num.io.threads of all brokers",
        "ssl.keystore.password of all brokers",
        "message.max.bytes of all brokers",
        # With eligible leader replicas it holds for all brokers, or for none.
        "min.insync.replicas of broker 1",
    }
    assert "leader.replication.throttled.rate of broker 77 is not adopted: no such broker" in lines
    assert not [line for line in lines if "hush" in line]


def test_settings_that_are_right_together_are_taken_over_in_any_order(tmp_path: Path) -> None:
    """One by one the first would be refused: it contradicts the default of the second."""
    kafka = KafkaFolder(tmp_path / "log")
    together: dict[str, Any] = {"local_retention_ms": "900000000", "retention_ms": "1000000000"}
    kafka.metadata(
        [
            broker_record(1, 11),
            *topic_records("good", 1, **together),
            *topic_records("mixed", 2, **together, no_such_thing="x"),
        ]
    )
    kafka.log("good", 0, {0: batch(0)}, number=1)
    kafka.log("mixed", 0, {0: batch(0)}, number=2)
    lines = take_over(tmp_path)
    topics = image_of(tmp_path).topics
    kept = {name.replace("_", "."): value for name, value in together.items()}
    assert topics["good"].configs == topics["mixed"].configs == kept
    (said,) = [line for line in lines if "not adopted: " in line]
    assert said.startswith("mixed: no.such.thing=x is not adopted")


def test_what_decides_on_deletion_is_not_lost(tmp_path: Path) -> None:
    kafka = KafkaFolder(tmp_path / "log")
    kafka.metadata(
        [broker_record(1, 11), *topic_records("t", 1), of_brokers("log.retention.hours", "900")]
    )
    kafka.log("t", 0, {0: batch(0)}, number=1)
    with pytest.raises(
        ConfigError, match=r"log\.retention\.hours=900 of all brokers .* in the broker.s file"
    ):
        take_over(tmp_path)
    lines = take_over(tmp_path, settings={"log.retention.ms": str(900 * 3_600_000)})
    assert [
        line for line in lines if line.startswith("log.retention.hours of all brokers in Kafka")
    ]


# -- ids, and metadata logs that are not whole -----------------------------------------------------


def test_zookeeper_has_given_away_more_producer_ids_than_logs_tell(tmp_path: Path) -> None:
    kafka = KafkaFolder(tmp_path / "log", is_zookeepers=True)
    folder = kafka.log("t", 0, {0: batch(0)})
    producers = Producers()
    record = Record(0, NOW_MS, None, b"v")
    written = build_batch(
        [record], leader_epoch=0, producer_id=4_321, producer_epoch=0, base_sequence=0
    )
    producers.update(read_header(written))
    (folder / names.file_name(1, names.PRODUCER_SNAPSHOT)).write_bytes(producers.encode_snapshot())
    take_over(tmp_path, topic_configs=["*:cleanup.policy=delete"])
    assert image_of(tmp_path).next_producer_id == 1_004_322


def test_a_metadata_log_ends_in_its_last_segment(tmp_path: Path) -> None:
    """A torn last batch was never decided; before that, and in a snapshot, it is damage."""
    kafka = KafkaFolder(tmp_path / "log")
    snapshot = [broker_record(1, 11), *topic_records("orders", 1)]
    folder = kafka.metadata(
        [of_brokers("log.retention.ms", "5")] * 2, snapshot=[*snapshot, *topic_records("late", 2)]
    )
    for topic, number in (("orders", 1), ("late", 2)):
        kafka.log(topic, 0, {0: batch(0)}, number=number)
    (first,) = folder.glob("*.log")
    (checkpoint,) = folder.glob("*.checkpoint")
    base = int(first.stem)
    last = folder / names.file_name(base + 2, names.LOG)
    torn = metadata_batch([of_brokers("log.retention.ms", "6")], base + 2)[:-1]
    last.write_bytes(torn)
    take_over(tmp_path, dry_run=True)
    for damaged in (first, checkpoint):
        data = damaged.read_bytes()
        for rest in (data[:-1], data + b"more"):
            damaged.write_bytes(rest)
            with pytest.raises(ConfigError, match=rf"{damaged.name}: .* damaged"):
                take_over(tmp_path)
        damaged.write_bytes(data)
    # What a snapshot has replaced is not read.
    (folder / names.file_name(0, names.LOG)).write_bytes(b"whatever")
    take_over(tmp_path)
    assert image_of(tmp_path).broker_configs == {"": {"log.retention.ms": "5"}}


def test_a_quota_is_the_same_in_whatever_order_its_parts_are(tmp_path: Path) -> None:
    parts = {"user": "ann", "client-id": "app"}

    def record(*types: str, key: str = "producer_byte_rate", remove: bool = False) -> Any:
        return build(
            ClientQuotaRecord,
            entity=[{"entity_type": each, "entity_name": parts[each]} for each in types],
            key=key,
            value=1e6,
            remove=remove,
        )

    kafka = KafkaFolder(tmp_path / "log")
    kafka.metadata(
        [
            broker_record(1, 11),
            record("user", "client-id"),
            record("user", "client-id", key="consumer_byte_rate"),
            record("client-id", "user", key="consumer_byte_rate", remove=True),
        ]
    )
    take_over(tmp_path)
    quotas = image_of(tmp_path).security.quotas
    asked = in_order(QuotaComponent(entity_type=kind, entity_name=of) for kind, of in parts.items())
    assert quotas == {asked: {"producer_byte_rate": 1e6}}


def test_a_metadata_log_of_another_cluster_is_refused(tmp_path: Path) -> None:
    orders_folder(tmp_path)
    other = KafkaFolder(tmp_path / "other", node_id=7)
    other.metadata([broker_record(1, 11), *topic_records("orders", 1)])
    properties = other.folder / names.META_PROPERTIES
    text = properties.read_text()
    properties.write_text(text.replace(CLUSTER_ID, "x" * len(CLUSTER_ID)))
    with pytest.raises(
        ConfigError, match="--metadata-log-dir: .* belongs to cluster x+, but log.dirs"
    ):
        take_over(tmp_path, metadata_log_dir=str(other.folder))
    properties.write_text(text)
    take_over(tmp_path, metadata_log_dir=str(other.folder))


def test_two_metadata_logs_must_be_one(tmp_path: Path) -> None:
    kafka = orders_folder(tmp_path)
    other = KafkaFolder(tmp_path / "other")
    folder = other.metadata([broker_record(1, 11)])
    with pytest.raises(ConfigError, match="differ: name the .*--metadata-log-dir"):
        take_over(tmp_path, kafka.folder, other.folder)
    take_over(
        tmp_path, kafka.folder, other.folder, metadata_log_dir=str(kafka.folder), dry_run=True
    )
    shutil.rmtree(folder)
    shutil.copytree(kafka.folder / folder.name, folder)
    take_over(tmp_path, kafka.folder, other.folder)


# -- the lake --------------------------------------------------------------------------------------


def test_a_lake_with_tables_and_no_cluster_is_not_empty(tmp_path: Path) -> None:
    """An earlier attempt's rows, of topics with these same ids: readers would take them for these logs'."""
    orders_folder(tmp_path)
    (tmp_path / "lake" / "topics" / "orders").mkdir(parents=True)
    for dry_run in (True, False):
        with pytest.raises(ConfigError, match="contains tables .*orders.* but no cluster"):
            take_over(tmp_path, dry_run=dry_run)
    assert image_of(tmp_path).cluster_id is None
    (tmp_path / "lake" / "topics" / "orders").rmdir()
    take_over(tmp_path)


def test_a_dry_run_of_a_further_broker_is_one(tmp_path: Path) -> None:
    orders_folder(tmp_path)
    take_over(tmp_path)
    lines = take_over(tmp_path, dry_run=True)
    assert lines[0] == f"cluster {CLUSTER_ID} was adopted already: 1 log of this broker"

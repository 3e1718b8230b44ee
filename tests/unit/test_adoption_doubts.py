"""A data directory of Apache Kafka that is not as it should be: killed in the middle, damaged, or behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.config.settings import ConfigError
from broker.log import names
from broker.log.checkpoint import decode_offsets, encode_epochs
from kafka_ds.wire.messages.persisted_metadata import ConfigRecord, PartitionChangeRecord
from tests.unit.kafka_folders import (
    KafkaFolder,
    broker_record,
    metadata_batch,
    topic_id,
    topic_records,
)
from tests.unit.test_adoption import batch, image_of, take_over

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
    """The first broker's metadata were stale: who is in sync there may lack what was acknowledged since."""
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
        ]
    )
    kafka.log("orders", 0, {0: batch(0)}, number=1)
    lines = take_over(tmp_path)
    assert image_of(tmp_path).broker_configs == {
        "": {"log.retention.ms": "-1", "log.cleanup.policy": "compact"},
        "1": {"leader.replication.throttled.rate": "1000"},
    }
    # With the default that was taken over it is compacted, and no table.
    assert image_of(tmp_path).topics["orders"].configs == {}
    again = {line.split(" was set")[0] for line in lines if "set it again" in line}
    assert again == {
        "num.io.threads of all brokers",
        "ssl.keystore.password of all brokers",
        "message.max.bytes of all brokers",
        "leader.replication.throttled.rate of broker 77",
    }
    assert not [line for line in lines if "hush" in line]


def test_what_decides_on_deletion_is_not_lost(tmp_path: Path) -> None:
    kafka = KafkaFolder(tmp_path / "log")
    kafka.metadata(
        [broker_record(1, 11), *topic_records("t", 1), of_brokers("log.retention.hours", "900")]
    )
    kafka.log("t", 0, {0: batch(0)}, number=1)
    with pytest.raises(
        ConfigError, match=r"log\.retention\.hours=900 of all brokers .* in the file"
    ):
        take_over(tmp_path)
    lines = take_over(tmp_path, settings={"log.retention.ms": str(900 * 3_600_000)})
    assert [line for line in lines if line.startswith("log.retention.hours of all brokers was set")]

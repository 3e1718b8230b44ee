"""Taking over a data directory of Apache Kafka: the plan, and the start of a broker on it."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.__main__ import main
from broker.adoption.kafka_dirs import logged
from broker.adoption.mark import check_adopted
from broker.config.loader import from_given
from kafka_ds.process import log_lines
from kafka_ds.process.settings import ConfigError
from kafka_ds.process.system import SystemDisk
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import OffsetFetchRequest
from kafka_ds.protocol.messages.group_offsets import OffsetFetchRequestGroup
from kafka_ds.protocol.messages.persisted import (
    OffsetCommitKey,
    OffsetCommitValue,
    encode_key,
    encode_value,
)
from kafka_ds.protocol.messages.persisted_metadata import (
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    ClientQuotaRecord,
    ConfigRecord,
    EndTransactionRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from kafka_ds.records.batch import Record, build_batch
from kafka_ds.segments import names
from kafka_ds.segments.checkpoint import decode_offsets, decode_partition_metadata
from tests.in_process import InProcess, in_process, values_of
from tests.loops import in_loop
from tests.requests import build
from tests.unit.adoption.kafka_folders import (
    CLUSTER_ID,
    NOW_MS,
    KafkaFolder,
    broker_record,
    topic_id,
    topic_records,
)
from tests.unit.adoption.taken_over import batch, image_of, take_over
from tests.unit.records.old_sets import all_records, encode_all, some_entries

# -- what is decided -------------------------------------------------------------------------------


def kraft_folder(folder: Path) -> KafkaFolder:
    """Two topics of this broker's and a third one's other partition; a snapshot, and records since."""
    kafka = KafkaFolder(folder / "log")
    kafka.metadata(
        [
            ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value="77"),
            ConfigRecord(resource_type=2, resource_name="orders", name="segment.bytes", value=None),
            PartitionChangeRecord(partition_id=0, topic_id=topic_id(1), isr=[1, 2], leader=2),
            TopicRecord(name="gone", topic_id=topic_id(9)),
            RemoveTopicRecord(topic_id=topic_id(9)),
            BeginTransactionRecord(),
            *topic_records("late", 4),
            EndTransactionRecord(),
            BeginTransactionRecord(),
            *topic_records("never", 5),
            AbortTransactionRecord(),
            BeginTransactionRecord(),
            *topic_records("open", 6),
        ],
        snapshot=[
            b"\x01\x0c\x00" + b"what a feature's level is",
            broker_record(1, 11),
            broker_record(2, 12),
            *topic_records(
                "orders", 1, 2, replicas=(1, 2), segment_bytes="1000000", cleanup_policy="compact"
            ),
            *topic_records("state", 2, replicas=(2, 3), isr=(2,)),
            ProducerIdsRecord(broker_id=1, next_producer_id=4000),
            ConfigRecord(resource_type=4, resource_name="", name="log.retention.ms", value="9"),
            ConfigRecord(resource_type=2, resource_name="orders", name="no.such.thing", value="x"),
            AccessControlEntryRecord(
                id=topic_id(50),
                resource_type=2,
                resource_name="orders",
                pattern_type=3,
                principal="User:ann",
                host="*",
                operation=3,
                permission_type=3,
            ),
            build(
                ClientQuotaRecord,
                entity=[{"entity_type": "user", "entity_name": "ann"}],
                key="producer_byte_rate",
                value=1e6,
                remove=False,
            ),
            b"\x01\x0b\x00" + b"a credential",
        ],
    )
    kafka.log("orders", 0, {0: batch(0)}, number=1, epochs=[(0, 0), (7, 0)])
    kafka.log("orders", 1, {500: batch(500)}, number=1, epochs=[(3, 500)])
    kafka.log("late", 0, {0: b""}, number=4)
    kafka.stopped_cleanly()
    return kafka


def test_progress_is_logged_now_and_then(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kraft_folder(tmp_path)
    caplog.set_level("INFO", "broker.adoption")
    # Six seconds pass from one look at the clock to the next, of the ten between two lines.
    clock: Any = SimpleNamespace(monotonic_ms=count(0, 6_000).__next__)
    take_over(tmp_path, track=logged(clock))
    assert caplog.messages == ["reading: 1 of 3 partitions", "adopting: 1 of 3 partitions"]


def test_a_metadata_log_says_which_topics_there_are(tmp_path: Path) -> None:
    kafka = kraft_folder(tmp_path)
    kafka.log("gone", 0, {0: batch(0)}, number=9)
    before = kafka.contents()
    lines = take_over(tmp_path)
    image = image_of(tmp_path)
    assert image.cluster_id == CLUSTER_ID
    assert {topic.name: topic.topic_id for topic in image.topics.values()} == {
        "orders": topic_id(1),
        "state": topic_id(2),
        "late": topic_id(4),
    }
    assert image.topics["orders"].configs == {"cleanup.policy": "compact", "retention.ms": "77"}
    first, second = image.topics["orders"].partitions.values()
    # An epoch above what the metadata say (3, and a change) is in the log's own checkpoint.
    assert (first.replicas, first.isr, first.leader, first.leader_epoch) == ((1, 2), (1, 2), -1, 7)
    assert (second.isr, second.leader, second.leader_epoch) == ((1,), -1, 3)
    assert image.topics["state"].partitions[0].replicas == (2, 3)
    assert image.next_producer_id == 4000
    assert {b.broker_id: (b.broker_epoch, b.fenced) for b in image.brokers.values()} == {
        1: (11, True),
        2: (12, True),
    }
    (acl,) = image.security.acls.values()
    assert (acl.principal, acl.resource_name) == ("User:ann", "orders")
    assert list(image.security.quotas.values()) == [{"producer_byte_rate": 1e6}]
    said = "\n".join(lines)
    assert "gone-0 is ignored" in said
    assert (
        "orders: no.such.thing=x is not adopted: no.such.thing is not a setting of a topic" in said
    )
    assert "log.retention.ms of all brokers is adopted" in said
    assert image.broker_configs == {"": {"log.retention.ms": "9"}}
    assert "SCRAM credentials: not adopted (1 record)" in said
    assert "brokers 2, 3 have replicas, too" in said
    assert "3 topics, 3 logs of this broker" in said
    # All that was there is as it was; and where logs begin is noted, and that this was taken over.
    after = kafka.contents()
    assert after.pop(names.ADOPTED) == str(tmp_path / "lake").encode()
    starts = decode_offsets(after.pop(names.LOG_START_OFFSET_CHECKPOINT))
    assert starts == {("orders", 0): 0, ("orders", 1): 500, ("late", 0): 0}
    assert after == before


def test_a_dry_run_does_nothing(tmp_path: Path) -> None:
    kafka = kraft_folder(tmp_path)
    before = kafka.contents()
    lines = take_over(tmp_path, dry_run=True)
    assert lines[-1] == "nothing was changed: --dry-run"
    assert kafka.contents() == before
    assert not (tmp_path / "lake").exists()


def test_zookeepers_folders_are_all_that_is_known(tmp_path: Path) -> None:
    """No ids before 2.8, no settings, and the producers' ids out of their snapshots."""
    kafka = KafkaFolder(tmp_path / "log", is_zookeepers=True)
    kafka.log("orders", 0, {0: batch(0)})
    kafka.log("orders", 1, {0: batch(0)}, epochs=[(4, 0)])
    kafka.log("with-dash-7", 0, {20: batch(20)})
    kafka.log("state", 0, {0: batch(0)})
    kafka.log("__consumer_offsets", 0, {0: b""})
    (kafka.folder / "deleted-0.aaaa-delete").mkdir()
    (kafka.folder / "copied-0.aaaa-future").mkdir()
    (kafka.folder / "strange-0.aaaa-stray").mkdir()
    kafka.checkpoint(names.CLEANER_CHECKPOINT, {("state", 0): 1, ("__consumer_offsets", 0): 0})
    with pytest.raises(
        ConfigError, match=r"topic orders has its settings in ZooKeeper: .*\*:cleanup.policy=delete"
    ):
        take_over(tmp_path)
    given = ["*:cleanup.policy=delete", "orders:retention.ms=1000"]
    with pytest.raises(
        ConfigError, match=r"topic state was compacted .* --topic-config state:cleanup.policy"
    ):
        take_over(tmp_path, topic_configs=given)
    assert image_of(tmp_path).cluster_id is None
    lines = take_over(tmp_path, topic_configs=[*given, "state:cleanup.policy=compact"])
    image = image_of(tmp_path)
    assert {name: len(topic.partitions) for name, topic in image.topics.items()} == {
        "orders": 2,
        "with-dash-7": 1,
        "state": 1,
        "__consumer_offsets": 1,
    }
    assert len({topic.topic_id for topic in image.topics.values()} - {bytes(16)}) == 4
    assert image.topics["state"].configs == {"cleanup.policy": "compact"}
    assert image.topics["orders"].configs == {"cleanup.policy": "delete", "retention.ms": "1000"}
    for name in ("orders-0", "orders-1"):
        written = (kafka.folder / name / names.PARTITION_METADATA).read_bytes()
        assert decode_partition_metadata(written) == image.topics["orders"].topic_id
    assert image.topics["__consumer_offsets"].configs == {
        "cleanup.policy": "compact",
        "remote.storage.enable": "false",
    }
    state = image.topics["orders"].partitions[1]
    assert (state.replicas, state.isr, state.leader) == ((1,), (1,), -1)
    assert lines[0].startswith("no metadata log")


def test_a_further_broker_of_the_same_cluster_joins(tmp_path: Path) -> None:
    kraft_folder(tmp_path)
    take_over(tmp_path)
    second = KafkaFolder(tmp_path / "log-2", node_id=2)
    for topic, partition, number in (("orders", 0, 1), ("orders", 1, 1)):
        second.log(topic, partition, {0: batch(0), 300: batch(300)}, number=number)
    with pytest.raises(ConfigError, match="no folder of state-0, of which this broker has"):
        take_over(tmp_path, second.folder, node_id=2)
    second.log("state", 0, {40: batch(40)}, number=2)
    version = image_of(tmp_path).version
    lines = take_over(tmp_path, second.folder, node_id=2)
    assert f"cluster {CLUSTER_ID} was adopted already: 3 logs of this broker" in lines
    assert image_of(tmp_path).version == version
    starts = decode_offsets((second.folder / names.LOG_START_OFFSET_CHECKPOINT).read_bytes())
    assert starts == {("orders", 0): 0, ("orders", 1): 0, ("state", 0): 40}
    assert (second.folder / names.ADOPTED).read_text() == str(tmp_path / "lake")
    third = KafkaFolder(tmp_path / "log-3", node_id=3)
    with pytest.raises(ConfigError, match="node.id=3 is not one of its brokers"):
        take_over(tmp_path, third.folder, node_id=3)


@in_loop
async def test_a_further_broker_that_was_not_taken_over_does_not_start(tmp_path: Path) -> None:
    kraft_folder(tmp_path)
    take_over(tmp_path)
    second = KafkaFolder(tmp_path / "log-2", node_id=2)
    second.log("orders", 0, {40: batch(40)}, number=1)
    before = second.contents()
    with pytest.raises(ConfigError, match="log-2 has logs .* not adopted .* adopt"):
        async with in_process(tmp_path, node_id=2, log_dirs=second.folder):
            pass
    assert second.contents() == before
    image, config = (
        image_of(tmp_path),
        from_given(
            {
                "node.id": ("2", "t"),
                "log.dirs": (str(tmp_path / "new"), "t"),
                "lake.uri": (str(tmp_path / "lake"), "t"),
            }
        ),
    )
    check_adopted(SystemDisk(), image, config)  # A new disk has nothing to lose.
    (tmp_path / "new").mkdir()
    check_adopted(SystemDisk(), image, config)


# -- what is refused -------------------------------------------------------------------------------


def test_what_cannot_be_taken_over_is_named_and_left_alone(tmp_path: Path) -> None:
    def refused(why: str, *data: Path, **options: Any) -> None:
        before = kafka.contents()
        with pytest.raises(ConfigError, match=why):
            take_over(tmp_path, *data, **options)
        assert kafka.contents() == before

    kafka = kraft_folder(tmp_path)
    (tmp_path / "empty").mkdir()
    refused("empty has no meta.properties", tmp_path / "empty")
    refused("belongs to node.id=1, not 5", node_id=5)
    refused("there is no topic nowhere", topic_configs=["nowhere:retention.ms=1"])
    refused("not of the form topic:key=value", topic_configs=["orders"])
    refused("--topic-config orders: .*retention.ms", topic_configs=["orders:retention.ms=soon"])
    refused("--metadata-log-dir: .* does not exist", metadata_log_dir=str(tmp_path / "empty"))
    other = KafkaFolder(tmp_path / "other")
    other.log("orders", 0, {0: b""}, number=1)
    refused("are the same partition", kafka.folder, other.folder)
    shutil.rmtree(kafka.folder / "orders-1")
    refused("no folder of orders-1, of which this broker has")
    with pytest.raises(ConfigError, match="is in use by another broker"):
        release = AnotherProcess(kafka.folder).release
        try:
            take_over(tmp_path)
        finally:
            release()


class AnotherProcess:
    """A process of its own that holds the directory, as a Kafka would: the lock is the process's."""

    def __init__(self, folder: Path) -> None:
        program = (
            "import fcntl, sys\n"
            f"file = open({str(folder / names.LOCK)!r}, 'w')\n"
            "fcntl.lockf(file, fcntl.LOCK_EX)\n"
            "print('locked', flush=True)\n"
            "sys.stdin.read()\n"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "locked\n"

    def release(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def test_metadata_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    kafka = KafkaFolder(tmp_path / "log")
    folder = kafka.metadata([PartitionChangeRecord(partition_id=0, topic_id=topic_id(1))])
    with pytest.raises(
        ConfigError, match=r"0\.log: offset 0: the metadata log refers to an unknown topic"
    ):
        take_over(tmp_path)
    log = folder / names.file_name(0, names.LOG)
    log.rename(folder / names.file_name(8, names.LOG))
    with pytest.raises(ConfigError, match="starts at offset 8 and has no snapshot"):
        take_over(tmp_path)
    shutil.rmtree(folder)
    kafka.metadata([b"\x01\x02\x09rest"])
    with pytest.raises(ConfigError, match="offset 0: TopicRecord 9 is not known"):
        take_over(tmp_path)


def test_names_that_a_lake_cannot_tell_apart_are_refused(tmp_path: Path) -> None:
    kafka = KafkaFolder(tmp_path / "log")
    kafka.metadata([*topic_records("a.b", 1), *topic_records("A_b", 2)])
    with pytest.raises(
        ConfigError, match=r"topic a\.b cannot be adopted: it collides with A_b in the lake"
    ):
        take_over(tmp_path)


def test_a_partition_that_was_elsewhere_is_missed(tmp_path: Path) -> None:
    kafka = KafkaFolder(tmp_path / "log", is_zookeepers=True)
    kafka.log("orders", 2, {0: b""})
    with pytest.raises(ConfigError, match="topic orders has no folder of partition 0, 1"):
        take_over(tmp_path)


def test_the_command_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("set_up", "set_up_broker"):  # This process's log is pytest's.
        monkeypatch.setattr(log_lines, name, lambda *words: None)
    kraft_folder(tmp_path)
    words = ["--override", f"log.dirs={tmp_path}/log", "--override", f"lake.uri={tmp_path}/lake"]
    assert main(["adopt", *words, "--override", "node.id=4"]) == 1
    assert "node.id=1, not 4" in capsys.readouterr().err
    assert main(["adopt", *words, "--override", "node.id=1", "--dry-run"]) == 0
    assert "nothing was changed" in capsys.readouterr().out


# -- what a start makes of it ----------------------------------------------------------------------


def offsets_records() -> bytes:
    """What a group had committed, as Kafka keeps it."""
    value = OffsetCommitValue(offset=4, leader_epoch=-1, metadata="", commit_timestamp=NOW_MS)
    key = OffsetCommitKey(group="g", topic="orders", partition=0)
    record = Record(0, NOW_MS, encode_key(key), encode_value(value, 3))
    return build_batch([record], leader_epoch=2)


async def committed(broker: InProcess, group_id: str) -> list[tuple[str, int]]:
    """Topics and offsets, once the group's coordinator has read its log."""
    asked = OffsetFetchRequestGroup(group_id=group_id, topics=None)
    async with asyncio.timeout(120):
        while True:
            (group,) = (await broker.ask(OffsetFetchRequest(groups=[asked]), 8)).groups
            if group.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                assert group.error_code == ErrorCode.NONE
                return [(t.name, t.partitions[0].committed_offset) for t in group.topics]
            await asyncio.sleep(0.01)


@in_loop
async def test_a_broker_goes_on_with_zookeepers_folders(tmp_path: Path) -> None:
    """Logs without a topic id belong to this cluster and are not strays."""
    kafka = KafkaFolder(tmp_path / "log", is_zookeepers=True)
    old = some_entries()
    kafka.log("old", 0, {0: encode_all(old)})
    (kafka.folder / names.CLEAN_SHUTDOWN).write_bytes(b"")
    take_over(tmp_path, topic_configs=["*:cleanup.policy=delete"])
    async with in_process(tmp_path, node_id=1) as broker:
        values = values_of((await broker.fetch("old", 0, max_bytes=1 << 20)).records)
        assert values == [record.value for record in all_records(old)]
    assert not [path for path in kafka.folder.iterdir() if "stray" in path.name]


@in_loop
async def test_a_broker_goes_on_with_it(tmp_path: Path) -> None:
    """Old messages, batches, a group, ids: all is served, and written on; the same at the next start."""
    kafka = KafkaFolder(tmp_path / "log")
    kafka.metadata(
        [
            broker_record(1, 11),
            *topic_records("orders", 1),
            *topic_records("old", 2),
            *topic_records("__consumer_offsets", 3, cleanup_policy="compact"),
            ProducerIdsRecord(broker_id=1, next_producer_id=4000),
            ConfigRecord(resource_type=4, resource_name="", name="log.retention.ms", value="-1"),
        ]
    )
    data = b"".join(batch(offset, b"%d" % offset) for offset in range(500, 506))
    kafka.log("orders", 0, {500: data}, number=1, epochs=[(3, 500)])
    old = some_entries()
    kafka.log("old", 0, {0: encode_all(old)}, number=2)
    kafka.log("__consumer_offsets", 0, {0: offsets_records()}, number=3, epochs=[(2, 0)])
    kafka.stopped_cleanly(11)
    take_over(tmp_path)
    settings = {"node_id": 1, "remote_log_storage_system_enable": "true"}
    for produced in range(2):
        async with in_process(tmp_path, **settings) as broker:
            assert broker.node.config.topic.retention_ms == -1
            found = await broker.fetch("orders", 500)
            assert values_of(found.records)[:6] == [b"%d" % offset for offset in range(500, 506)]
            assert (found.log_start_offset, found.high_watermark) == (500, 506 + produced)
            early = await broker.fetch("orders", 3)
            assert early.error_code == ErrorCode.OFFSET_OUT_OF_RANGE  # and not: is it in the lake?
            values = values_of((await broker.fetch("old", 0, max_bytes=1 << 20)).records)
            assert values == [record.value for record in all_records(old)]
            assert await committed(broker, "g") == [("orders", 4)]
            state = broker.node.metadata.topics["orders"].partitions[0]
            assert (state.leader, state.leader_epoch) == (1, 4 + produced)
            answer = await broker.produce("orders", batch(0, b"new", epoch=0))
            assert answer.base_offset == 506 + produced
        assert image_of(tmp_path).topics["orders"].topic_id == topic_id(1)
    assert not [path for path in kafka.folder.iterdir() if "stray" in path.name]
    with pytest.raises(ConfigError, match="node.id=1 was started in it"):
        take_over(tmp_path)

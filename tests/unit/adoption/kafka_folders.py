"""Data directories of Apache Kafka, made by hand: of a cluster with a metadata log, and of one that ZooKeeper had."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kafka_ds.protocol.codec import encode
from kafka_ds.protocol.messages.persisted_metadata import (
    ConfigRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from kafka_ds.protocol.types import message_info
from kafka_ds.protocol.varint import unsigned_varint
from kafka_ds.records.batch import Record, build_batch
from kafka_ds.segments import names
from kafka_ds.segments.checkpoint import encode_epochs, encode_offsets, encode_partition_metadata
from tests.requests import build

CLUSTER_ID = "a2Fma2EtZHMtcGVlci0xMQ"
NOW_MS = 1_700_000_000_000


def topic_id(number: int) -> bytes:
    return bytes([number]) * 16


def framed(record: Any, version: int | None = None) -> bytes:
    info = message_info(type(record))
    version = info.versions.last if version is None else version
    assert info.key is not None
    return (
        unsigned_varint(1)
        + unsigned_varint(info.key)
        + unsigned_varint(version)
        + encode(record, version)
    )


def metadata_batch(records: Sequence[Any], base_offset: int = 0) -> bytes:
    values = [each if isinstance(each, bytes) else framed(each) for each in records]
    return build_batch(
        [Record(base_offset + i, NOW_MS, None, value) for i, value in enumerate(values)],
        leader_epoch=1,
    )


def topic_records(
    name: str,
    number: int,
    partitions: int = 1,
    *,
    replicas: Sequence[int] = (1,),
    isr: Sequence[int] = (1,),
    leader_epoch: int = 3,
    **configs: str,
) -> list[Any]:
    """A topic, its partitions, its settings (underscores for dots)."""
    return [
        TopicRecord(name=name, topic_id=topic_id(number)),
        *(
            build(
                PartitionRecord,
                partition_id=index,
                topic_id=topic_id(number),
                replicas=list(replicas),
                isr=list(isr),
                leader=isr[0],
                leader_epoch=leader_epoch,
                partition_epoch=5,
            )
            for index in range(partitions)
        ),
        *(
            ConfigRecord(
                resource_type=2, resource_name=name, name=key.replace("_", "."), value=value
            )
            for key, value in configs.items()
        ),
    ]


def broker_record(broker_id: int, epoch: int) -> RegisterBrokerRecord:
    return build(
        RegisterBrokerRecord,
        broker_id=broker_id,
        incarnation_id=topic_id(99),
        broker_epoch=epoch,
        rack=None,
    )


class KafkaFolder:
    """One of log.dirs."""

    def __init__(
        self,
        folder: Path,
        *,
        node_id: int = 1,
        is_zookeepers: bool = False,
        cluster_id: str | None = CLUSTER_ID,
    ) -> None:
        """`cluster_id`: None as before 2.4."""
        self.folder = folder
        folder.mkdir(parents=True)
        text = (
            f"version=0\nbroker.id={node_id}\n"
            if is_zookeepers
            else f"version=1\nnode.id={node_id}\n"
        )
        cluster = f"cluster.id={cluster_id}\n" if cluster_id else ""
        (folder / names.META_PROPERTIES).write_text(f"#\n#date\n{text}{cluster}")

    def log(
        self,
        topic: str,
        partition: int,
        segments: Mapping[int, bytes],
        *,
        number: int | None = None,
        epochs: Iterable[tuple[int, int]] = (),
    ) -> Path:
        """The folder of a partition; `number` of its topic's id, if Kafka had ids."""
        folder = self.folder / f"{topic}-{partition}"
        folder.mkdir()
        for base, data in segments.items():
            (folder / names.file_name(base, names.LOG)).write_bytes(data)
        (folder / names.LEADER_EPOCH_CHECKPOINT).write_bytes(encode_epochs(epochs))
        if number is not None:
            path = folder / names.PARTITION_METADATA
            path.write_bytes(encode_partition_metadata(topic_id(number)))
        return folder

    def metadata(self, records: Sequence[Any], *, snapshot: Sequence[Any] | None = None) -> Path:
        """The metadata log; with a snapshot it begins where that ends."""
        folder = self.folder / "__cluster_metadata-0"
        folder.mkdir()
        start = 0
        if snapshot is not None:
            start = len(snapshot) + 7
            (folder / f"{start:020d}-0000000001.checkpoint").write_bytes(metadata_batch(snapshot))
        data = metadata_batch(records, start) if records else b""
        (folder / names.file_name(start, names.LOG)).write_bytes(data)
        return folder

    def checkpoint(self, name: str, offsets: Mapping[tuple[str, int], int]) -> None:
        (self.folder / name).write_bytes(encode_offsets(offsets))

    def stopped_cleanly(self, epoch: int = 11) -> None:
        marker = f'{{"version":0,"brokerEpoch":{epoch}}}'
        (self.folder / names.CLEAN_SHUTDOWN).write_text(marker)

    def contents(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and path.name != names.LOCK
        }

"""What any client wrote, in any codec: read by Java and others from the log, from the lake, and compacted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from broker.log.checkpoint import decode_offsets
from tests.clients.adaptors import PRODUCERS, Message
from tests.clients.messages import CODECS, sendable, some_messages
from tests.clients.topics import create_topic
from tests.integration.tier_broker import broker_process, consume
from tests.peer.java_clients import java_produce, java_read
from tests.peer.jvm import Jvm
from tests.processes import BrokerProcess, wait_until

pytestmark = pytest.mark.jars

JAVA = "java"
WRITERS = [(client, codec) for client in (*PRODUCERS, JAVA) for codec in CODECS]
LAST = b"what closes the segment before it"
SETTINGS = {
    "log.cleaner.backoff.ms": 100,
    "log.cleaner.min.cleanable.ratio": 0,
    "transaction.state.log.num.partitions": 1,
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = broker_process(tmp_path, SETTINGS).start()
    yield process
    process.stop()
    assert "Traceback" not in process.log_file.read_text()


def write(
    broker: BrokerProcess, jvm: Jvm, topic: str, settings: Mapping[str, str]
) -> dict[tuple[int, int], Message]:
    """A partition for each client and codec; the records by partition and offset."""
    create_topic(broker.bootstrap, topic, settings, partitions=len(WRITERS))
    written = {}
    for partition, (client, codec) in enumerate(WRITERS):
        messages = [
            replace(sendable(client, each), partition=partition, key=each.key or b"none")
            for each in some_messages(30)
        ]
        if client == JAVA:
            # Java's transactions: each partition begins with an aborted one.
            offsets = java_produce(
                jvm,
                broker.bootstrap,
                topic,
                messages,
                codec,
                transactional_id=f"{topic}-{partition}",
            )
        else:
            idempotent = bool(partition % 2)
            produce = PRODUCERS[client]
            offsets = produce(broker.bootstrap, topic, messages, codec, idempotent=idempotent)
        written.update({(partition, at): m for at, m in zip(offsets, messages, strict=True)})
    return written


def ends_of(written: Mapping[tuple[int, int], Message]) -> dict[int, int]:
    ends: dict[int, int] = {}
    for partition, offset in written:
        ends[partition] = max(ends.get(partition, 0), offset + 1)
    return ends


def close_segments(broker: BrokerProcess, topic: str) -> None:
    """The next record of each partition begins a segment."""
    entry = ConfigEntry("segment.ms", "1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(120)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for partition in range(len(WRITERS)):
        producer.produce(topic, LAST, LAST, partition=partition)
    assert producer.flush(120) == 0


def files_of(broker: BrokerProcess, topic: str, kind: str) -> list[Path]:
    return sorted(broker.data.glob(f"{topic}-*/*.{kind}"))


def check_files(broker: BrokerProcess, jvm: Jvm, topic: str) -> None:
    """Kafka's own tool finds nothing wrong with the files of a topic."""
    text = jvm.dump(files_of(broker, topic, "log"), "--deep-iteration")
    assert "invalid bytes" not in text
    assert "isvalid: false" not in text
    indexes = [
        file
        for kind in ("index", "timeindex")
        for file in files_of(broker, topic, kind)
        if file.stat().st_size
    ]
    assert jvm.dump(indexes, "--index-sanity-check").count("passed sanity check") == len(indexes)


@pytest.mark.parametrize("times", ["CreateTime", "LogAppendTime"])
def test_from_the_log_and_from_the_lake(broker: BrokerProcess, jvm: Jvm, times: str) -> None:
    topic = f"t-{times}"
    written = write(broker, jvm, topic, {"message.timestamp.type": times})
    ends = ends_of(written)
    hot = java_read(jvm, broker.bootstrap, topic, ends)
    if times == "CreateTime":
        assert hot == written
    else:
        assert hot.keys() == written.keys()
        written = {
            key: replace(m, timestamp_ms=hot[key].timestamp_ms) for key, m in written.items()
        }
        assert hot == written
    check_files(broker, jvm, topic)
    close_segments(broker, topic)
    wait_until(
        "the records to be in the lake alone",
        lambda: all(
            int(file.stem) >= ends[int(file.parent.name.rpartition("-")[2])]
            for file in files_of(broker, topic, "log")
        ),
        timeout_s=120,
    )
    assert java_read(jvm, broker.bootstrap, topic, ends) == written
    for partition, end in ends.items():
        rows = consume(broker.bootstrap, topic, partition, end=end)
        assert {
            offset: (row.key, row.value, list(row.headers), row.timestamp_ms)
            for offset, row in rows.items()
        } == {
            offset: (m.key, m.value, m.headers, m.timestamp_ms)
            for (index, offset), m in written.items()
            if index == partition
        }


def test_compacted(broker: BrokerProcess, jvm: Jvm) -> None:
    topic = "t-compacted"
    settings = {"cleanup.policy": "compact", "remote.storage.enable": "false"}
    written = write(broker, jvm, topic, settings)
    again = [replace(each, value=b"again") for key, each in written.items() if key[1] % 3 == 0]
    for index in range(len(WRITERS)):
        some = [each for each in again if each.partition == index]
        offsets = PRODUCERS["librdkafka"](broker.bootstrap, topic, some, CODECS[index % 5])
        written.update({(index, at): each for at, each in zip(offsets, some, strict=True)})
    ends = ends_of(written)
    close_segments(broker, topic)
    checkpoint = broker.data / "cleaner-offset-checkpoint"

    def is_clean() -> bool:
        found = decode_offsets(checkpoint.read_bytes()) if checkpoint.exists() else {}
        return all(found.get((topic, index), 0) >= end for index, end in ends.items())

    wait_until("all partitions to be cleaned", is_clean, timeout_s=120)
    last = {(each.partition, each.key): place for place, each in sorted(written.items())}
    kept = {place: written[place] for place in last.values()}
    assert len(kept) < len(written)
    assert java_read(jvm, broker.bootstrap, topic, ends) == kept
    broker.stop()  # It would go on replacing files under the tool.
    check_files(broker, jvm, topic)

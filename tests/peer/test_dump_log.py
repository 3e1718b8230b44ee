"""Our files before Kafka's own tool and broker, and Kafka's files before us."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from broker.log.config import LOG_APPEND_TIME
from broker.log.directories.log_manager import LogManager
from broker.log.log import Log
from kafka_ds.process.system import SystemClock, new_uuid
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.records.batch import Codec, ControlType, Record, build_batch, end_transaction_marker
from kafka_ds.records.batch import iterate_headers as batch_headers
from kafka_ds.segments.producers import AppendOrigin
from tests.apache_kafka import ApacheKafka
from tests.fakes.logs import logs_on_disk
from tests.fakes.settings import log_settings
from tests.peer.jvm import Jvm
from tests.peer.log_writers import consume, produce, produce_transactions

pytestmark = pytest.mark.jars

NOW_MS = SystemClock().now_ms()
CONFIG = log_settings(segment_bytes=8000, index_interval_bytes=500, retention_ms=-1)


def records(count: int, *, timestamp_ms: int, value_bytes: int = 60) -> list[Record]:
    return [
        Record(
            offset,
            timestamp_ms + offset % 7,
            b"k%d" % offset if offset % 3 else None,
            b"v" * value_bytes if offset % 5 else None,
            ((b"h", b"1"), (b"h", None)),
        )
        for offset in range(count)
    ]


def fill(log: Log) -> None:
    """Two idempotent producers, one of them in transactions; every codec; three leader epochs."""
    sequences = {1: 0, 2: 0}
    for producer_id, producer in log.producers:
        if producer_id in sequences:
            sequences[producer_id] = producer.last_sequence + 1
    for index in range(120):
        producer_id = 1 + index % 2
        count = 1 + index % 9
        batch = build_batch(
            records(count, timestamp_ms=NOW_MS + index),
            codec=Codec(index % 5),
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequences[producer_id],
            is_transactional=producer_id == 2,
        )
        sequences[producer_id] += count
        log.append(memoryview(bytearray(batch)), leader_epoch=index // 50, now_ms=NOW_MS)
        if index % 10 == 9:
            control = ControlType.ABORT if index % 20 == 9 else ControlType.COMMIT
            marker = end_transaction_marker(
                control,
                timestamp=NOW_MS + index,
                producer_id=2,
                producer_epoch=0,
                coordinator_epoch=0,
            )
            log.append(
                memoryview(bytearray(marker)),
                leader_epoch=index // 50,
                now_ms=NOW_MS,
                origin=AppendOrigin.COORDINATOR,
            )


def files_of(log: Log, kind: str) -> list[Path]:
    return sorted(Path(log.directory).glob(f"*.{kind}"))


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[LogManager]:
    manager = logs_on_disk(tmp_path / "data", CONFIG)
    fill(manager.create(TopicPartition("orders", 0), new_uuid()))
    yield manager


def assert_content(jvm: Jvm, log: Log) -> None:
    """The tool walks each batch and record: offsets in a row, checksums good, nothing left over."""
    files = files_of(log, "log")
    assert len(files) > 2
    text = jvm.dump(files, "--deep-iteration")
    assert "invalid bytes" not in text
    assert "isvalid: false" not in text
    expected = log.local_log_start_offset
    for base, last, count in re.findall(r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+)", text):
        assert int(base) == expected
        assert int(last) - int(base) + 1 == int(count)
        expected = int(last) + 1
    assert expected == log.log_end_offset
    offsets = [int(offset) for offset in re.findall(r"^\| offset: (\d+) ", text, re.MULTILINE)]
    assert offsets == list(range(log.log_end_offset))


def assert_indexes(jvm: Jvm, log: Log) -> None:
    indexes = files_of(log, "index") + files_of(log, "timeindex")
    assert all(file.stat().st_size for file in indexes)
    passed = jvm.dump(indexes, "--index-sanity-check")
    assert passed.count("passed sanity check") == len(indexes)
    verified = jvm.dump(indexes, "--verify-index-only")
    # A line for each file, and nothing to say about any of them, but that a segment which does not
    # begin with offset 0 does not follow offset -1.
    said = [line for line in verified.splitlines() if not line.startswith("Dumping ")]
    bases = {str(int(file.stem)) for file in indexes}
    assert all(
        line.startswith("Non-consecutive offsets in")
        or re.fullmatch(r"\s*-1 is followed by (\d+)", line)
        and line.split()[-1] in bases
        for line in said
    ), verified


def test_every_file_of_ours_is_read_by_kafkas_tool(jvm: Jvm, manager: LogManager) -> None:
    log = manager.get(TopicPartition("orders", 0))
    assert log is not None
    aborted = log.aborted_transactions(0, log.log_end_offset)
    producers = {key: producer.last_sequence for key, producer in log.producers}
    manager.close()
    assert_content(jvm, log)
    assert_indexes(jvm, log)
    text = jvm.dump(files_of(log, "txnindex"))
    found = re.findall(
        r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)", text
    )
    assert [tuple(map(int, entry)) for entry in found] == [tuple(entry) for entry in aborted]
    assert len(found) > 3
    snapshots = files_of(log, "snapshot")
    assert len(snapshots) == len(files_of(log, "log"))
    last = jvm.dump(snapshots[-1:])
    for producer_id, sequence in producers.items():
        assert re.search(rf"producerId: {producer_id} .* lastSequence: {sequence} ", last)
    assert "corrupt" not in jvm.dump(snapshots).lower()


def told_of_producers(jvm: Jvm, snapshot: Path) -> list[str]:
    """A line each, without when it was heard of: that is not in the batches."""
    lines = [line for line in jvm.dump([snapshot]).splitlines() if "producerId: " in line]
    told = [re.subn(r"(lastTimestamp|timestamp): \d+", "", line) for line in lines]
    assert all(count == 2 for _, count in told), lines
    return sorted(line for line, _ in told)


def test_what_recovery_makes_anew_is_read_too(jvm: Jvm, manager: LogManager) -> None:
    log = manager.get(TopicPartition("orders", 0))
    assert log is not None
    folder = Path(log.directory)
    crashed = folder.parent.parent / "crashed"
    shutil.copytree(folder.parent, crashed)
    manager.close()
    for file in [*crashed.rglob("*.index"), *crashed.rglob("*.snapshot")]:
        file.unlink()
    with max(crashed.rglob("*.log")).open("ab") as torn:
        torn.write(b"\0" * 100)
    recovered = logs_on_disk(crashed, CONFIG)
    log = recovered.get(TopicPartition("orders", 0))
    assert log is not None
    recovered.close()
    assert_content(jvm, log)
    assert_indexes(jvm, log)
    for file in folder.iterdir():
        if file.suffix != ".snapshot":  # Only the last one is needed, and made.
            assert (crashed / "orders-0" / file.name).read_bytes() == file.read_bytes(), file.name
    last = max(folder.glob("*.snapshot"))
    made_anew = told_of_producers(jvm, crashed / "orders-0" / last.name)
    assert made_anew == told_of_producers(jvm, last)
    assert len(made_anew) == len(log.producers)


def test_times_set_by_the_broker(jvm: Jvm, tmp_path: Path) -> None:
    config = log_settings(
        segment_bytes=8000, index_interval_bytes=500, message_timestamp_type=LOG_APPEND_TIME
    )
    manager = logs_on_disk(tmp_path / "data", config)
    log = manager.create(TopicPartition("orders", 0), new_uuid())
    fill(log)
    manager.close()
    assert_content(jvm, log)
    assert_indexes(jvm, log)
    assert "LogAppendTime: " in jvm.dump(files_of(log, "log")[:1])


# -- Apache Kafka's own directory -------------------------------------------------------------------


@pytest.fixture
def peer(kafka_jars: Path, tmp_path: Path) -> Iterator[ApacheKafka]:
    peer = ApacheKafka(kafka_jars, tmp_path / "kafka")
    peer.start()
    admin = AdminClient({"bootstrap.servers": peer.bootstrap})
    settings = {"segment.bytes": str(1 << 20), "index.interval.bytes": "500"}
    topics = [NewTopic(name, 1, 1, config=settings) for name in ("plain", "pay")]
    for created in admin.create_topics(topics).values():
        created.result(120)
    produce(peer.bootstrap, "plain", range(1000))
    produce_transactions(peer.bootstrap, "pay")
    yield peer
    peer.stop()


@pytest.mark.slow
def test_a_directory_goes_from_kafka_to_us_and_back(peer: ApacheKafka) -> None:
    peer.stop()
    manager = logs_on_disk(peer.data, log_settings(index_interval_bytes=500))
    assert manager.was_clean
    plain, pay = manager.get(TopicPartition("plain", 0)), manager.get(TopicPartition("pay", 0))
    assert plain is not None
    assert pay is not None
    assert plain.log_end_offset == 1000
    assert [entry[1:3] for entry in pay.aborted_transactions(0, 99)] == [(0, 10)]
    assert pay.last_stable_offset(pay.log_end_offset) == pay.log_end_offset == 22
    ((producer_id, producer),) = plain.producers
    for value in range(1000, 1300):
        batch = build_batch(
            [Record(0, NOW_MS, b"key", b"%d" % value)],
            producer_id=producer_id,
            producer_epoch=producer.epoch,
            base_sequence=producer.last_sequence + 1,
        )
        info = plain.append(memoryview(bytearray(batch)), leader_epoch=1, now_ms=NOW_MS)
        assert info.first_offset == value
        if value % 100 == 50:
            plain.roll()
    assert len(plain.rolled_segments()) == 3
    manager.close(broker_epoch=manager.previous_broker_epoch)

    peer.start()
    assert consume(peer.bootstrap, "plain", 1300) == list(range(1300))
    produce(peer.bootstrap, "plain", range(1300, 1310))
    assert consume(peer.bootstrap, "plain", 1310) == list(range(1310))
    assert consume(peer.bootstrap, "pay", 22) == list(range(10))
    assert peer.complaints() == []


@pytest.mark.slow
def test_a_directory_that_kafka_left_in_a_crash_is_recovered_as_kafka_would(
    peer: ApacheKafka, jvm: Jvm
) -> None:
    ours = peer.folder / "ours"
    # The ends of transactions are written behind the answers to their producers.
    assert consume(peer.bootstrap, "pay", 22) == list(range(10))
    peer.kill()
    shutil.copytree(peer.data, ours)
    peer.start()
    consume(peer.bootstrap, "plain", 1000)
    peer.stop()
    manager = logs_on_disk(ours, log_settings(index_interval_bytes=500))
    assert not manager.was_clean
    plain = manager.get(TopicPartition("plain", 0))
    assert plain is not None
    found = plain.read(0, max_bytes=1 << 20, upper_bound_offset=1000, min_one_batch=True)
    data = b"".join(part.read() for part in found.slices)
    assert [header for _, header in batch_headers(data)][-1].next_offset == 1000
    manager.close()
    for name in ("plain-0", "pay-0"):
        for file in sorted((peer.data / name).iterdir()):
            recovered = ours / name / file.name
            if file.suffix in (".log", ".index", ".timeindex", ".txnindex"):
                assert recovered.read_bytes() == file.read_bytes(), file
            elif file.suffix == ".snapshot":
                assert told_of_producers(jvm, recovered) == told_of_producers(jvm, file)

"""Compaction compared with Apache Kafka: its tester on our broker, both cleaners on one log, its tool on our files."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from broker.cleaner.service import CleaningService
from broker.cleaner.throttle import Throttle
from broker.compaction.log_cleaner import LogCleaner
from broker.log.directories.log_manager import LogManager
from kafka_ds.ipc.request import ErrorAnswer
from kafka_ds.process.system import SystemClock, SystemDisk
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.records.batch import (
    DELETE_HORIZON_FLAG,
    iterate_headers,
    read_records,
)
from kafka_ds.segments.checkpoint import decode_offsets
from tests.apache_kafka import TOOL_OPTIONS, ApacheKafka, java
from tests.fakes.logs import logs_on_disk
from tests.fakes.settings import cleaner_settings, log_settings
from tests.peer.jvm import TOOLS, Jvm
from tests.processes import running_broker, wait_until
from tests.topics import create_topic

pytestmark = pytest.mark.jars

TOPIC = "accounts"
SEGMENT_BYTES = 1 << 20
CONFIG = log_settings(
    cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0, segment_bytes=SEGMENT_BYTES
)
DAY_MS = 86_400_000


@pytest.mark.timeout(400)
def test_kafkas_own_tester_finds_nothing_wrong(kafka_jars: Path, tmp_path: Path) -> None:
    settings = {
        "log.cleaner.min.cleanable.ratio": 0,
        "log.roll.ms": 500,
        "log.segment.bytes": SEGMENT_BYTES,
    }
    with running_broker(tmp_path / "broker", settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        backoff = ConfigEntry(
            "log.cleaner.backoff.ms", "100", incremental_operation=AlterConfigOpType.SET
        )
        own = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[backoff])
        admin.incremental_alter_configs([own])[own].result(60)
        words = ["--bootstrap-server", broker.bootstrap, "--messages", "20000", "--topics", "1"]
        words += ["--duplicates", "20", "--percent-deletes", "10", "--sleep", "5"]
        words += ["--compression-type", "lz4"]
        options = (*TOOL_OPTIONS, f"-Djava.io.tmpdir={tmp_path}")
        command = java(kafka_jars, options, f"{TOOLS}.LogCompactionTester", *words)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        assert ", 0 mismatches" in done.stdout
        # That alone it would say of a log that was never compacted.
        match = re.search(r"(\d+) rows of data produced, (\d+) rows of data consumed", done.stdout)
        assert match is not None
        produced, consumed = map(int, match.groups())
        assert produced == 20000
        assert consumed < 4000


def clean(manager: LogManager) -> None:
    """One round of our cleaner, in this process."""
    settings, disk, clock = cleaner_settings(), SystemDisk(), SystemClock()
    service = CleaningService(disk, Throttle(clock), lambda: (1, 2))

    async def send(request: Any) -> Any:
        answer = service.operations()[type(request)](request)
        assert not isinstance(answer, ErrorAnswer), answer
        return answer

    cleaner = LogCleaner(settings, manager, clock=clock, disk=disk, send=send)
    assert asyncio.run(cleaner.clean_dirtiest())


@pytest.fixture
def kafka(kafka_jars: Path, tmp_path: Path) -> Iterator[ApacheKafka]:
    """With a topic that is dirty and not cleaned before it is told to."""
    server = ApacheKafka(kafka_jars, tmp_path / "kafka", {"log.cleaner.backoff.ms": 100})
    server.start()
    try:
        config = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "1",
            "segment.bytes": str(SEGMENT_BYTES),
        }
        create_topic(server.bootstrap, TOPIC, config)
        fill(server.bootstrap)
        yield server
    finally:
        server.stop()


def fill(bootstrap: str) -> None:
    """Three segments and more: codecs, tombstones, idempotent and transactional producers, aborts."""
    random = Random(5)
    producers = [
        Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20})
        for codec in ("none", "zstd", "lz4")
    ]
    teller = Producer({"bootstrap.servers": bootstrap, "transactional.id": "teller"})
    idempotent = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    teller.init_transactions(30)
    for round_ in range(24):
        producer = producers[round_ % 3]
        for _ in range(700):
            value = None if random.random() < 0.1 else random.randbytes(200)
            producer.produce(TOPIC, value, b"%d" % random.randrange(900))
        assert producer.flush(120) == 0
        idempotent.produce(TOPIC, b"%d" % round_, b"i%d" % (round_ % 5))
        assert idempotent.flush(120) == 0
        teller.begin_transaction()
        for index in range(10):
            teller.produce(TOPIC, b"%d" % round_, b"t%d" % index)
        if round_ % 4 == 1:
            teller.abort_transaction(30)
        else:
            teller.commit_transaction(30)


def batches(path: Path) -> list[tuple[Any, ...]]:
    """The batches of a segment, without what depends on a codec's library or on the time of the cleaning."""
    found = []
    data = path.read_bytes()
    for position, header in iterate_headers(data):
        horizon = header.attributes & DELETE_HORIZON_FLAG
        plain = header.codec == 0 and not horizon
        raw = data[position : position + header.size_in_bytes] if plain else b""
        alike = header._replace(
            batch_length=0, crc=0, base_timestamp=0 if horizon else header.base_timestamp
        )
        found.append((alike, read_records(data, position, header), raw))
    return found


def test_both_cleaners_leave_the_same(jvm: Jvm, kafka: ApacheKafka, tmp_path: Path) -> None:
    theirs = kafka.data / f"{TOPIC}-0"
    ours = tmp_path / "ours" / f"{TOPIC}-0"
    shutil.copytree(theirs, ours)
    manager = logs_on_disk(tmp_path / "ours", CONFIG)
    log = manager.get(TopicPartition(TOPIC, 0))
    assert log is not None
    before = log.size_bytes
    end_offset = log.segments.active.base_offset
    clean(manager)
    assert log.size_bytes < before / 2
    assert log.compaction.cleaned_offset == end_offset
    entry = ConfigEntry(
        "min.cleanable.dirty.ratio", "0", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(120)
    checkpoint = kafka.data / "cleaner-offset-checkpoint"
    wait_until(
        "Apache Kafka to clean the log",
        lambda: (
            checkpoint.exists()
            and decode_offsets(checkpoint.read_bytes()).get((TOPIC, 0)) == end_offset
        ),
        timeout_s=120,
    )
    bases = [segment.base_offset for segment in log.segments.all[:-1]]
    kept = sorted(int(path.stem) for path in theirs.glob("*.log"))
    assert bases == kept[:-1]
    for base in bases:
        name = f"{base:020d}"
        assert batches(ours / f"{name}.log") == batches(theirs / f"{name}.log")
        aborted = [folder / f"{name}.txnindex" for folder in (ours, theirs)]
        texts = [path.read_bytes() if path.exists() else b"" for path in aborted]
        assert texts[0] == texts[1]
    manager.close()
    files = sorted(
        path for kind in ("log", "index", "timeindex") for path in ours.glob(f"*.{kind}")
    )
    text = jvm.dump([path for path in files if path.suffix == ".log"], "--deep-iteration")
    assert "isvalid: false" not in text
    assert "invalid bytes" not in text
    indexes = [path for path in files if path.suffix != ".log" and path.stat().st_size]
    said = jvm.dump(indexes, "--index-sanity-check")
    assert said.count("passed sanity check") == len(indexes)

"""A second region takes over while the first one runs: `kafka-ds promote`, `restore`, and on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, TopicPartition

from broker.diskless.wal_object import decode_header
from broker.metadata.log import MetadataLog
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.topic.offsets import OffsetsTable, present
from tests import topics
from tests.integration.crash_runs import crash_environment, crashed
from tests.integration.lake_copier import LakeCopier
from tests.integration.tier_broker import (
    QUICK,
    Feeder,
    broker_process,
    consume,
    create_topic,
    highest_offset_in_remote_storage,
    restore,
    rows,
    table,
)
from tests.processes import BrokerDied, BrokerProcess, cluster, wait_until

TOPIC, GROUP = "orders", "billing"
SETTINGS = {
    **QUICK,
    "lake.max.lag.ms": 200,
    "lake.offsets.interval.ms": 200,
    "offsets.topic.num.partitions": 2,
    "controller.lease.interval.ms": 300,
    "broker.session.timeout.ms": 3_000,
    "broker.heartbeat.interval.ms": 300,
}
PATIENCE_S = 120


@pytest.fixture
def first(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = broker_process(tmp_path / "first", SETTINGS)
    yield broker
    broker.kill()


@pytest.fixture
def second(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = broker_process(tmp_path / "second", {**SETTINGS, "lake.uri": tmp_path / "copy"})
    yield broker
    broker.kill()


def promote(
    *words: object, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "broker.cli", "promote", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, **(environment or {})},
    )


class Stream:
    """Produces in a thread until the broker takes nothing more."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.feeder = Feeder(broker.bootstrap, TOPIC, message_timeout_ms=3_000)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        start = 0
        while not self._stopping.is_set():
            self.feeder.send(rows(50, start=start))
            self.feeder.settle(1)
            start += 50

    @property
    def acknowledged(self) -> int:
        return len(self.feeder.acknowledged.rows)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self.feeder.settle(10)


def end_of(lake: Path) -> int:
    return highest_offset_in_remote_storage(lake, TOPIC, 0)


def begin(first: BrokerProcess) -> None:
    first.start()
    create_topic(first, TOPIC, retention_ms=-1)
    consumer = Consumer({"bootstrap.servers": first.bootstrap, "group.id": GROUP})
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, 120)], asynchronous=False)
    consumer.close()


@pytest.mark.timeout(900)
def test_the_second_region_goes_on_where_the_first_one_was_fenced(
    first: BrokerProcess, second: BrokerProcess, tmp_path: Path
) -> None:
    begin(first)
    stream = Stream(first)
    try:
        with LakeCopier(first.lake, tmp_path / "copy", Random(3)):
            wait_until(
                "records in the lake", lambda: end_of(first.lake) > 400, timeout_s=PATIENCE_S
            )
        # The replication is stopped, and the first region still produces.
        before = stream.acknowledged
        wait_until("more", lambda: stream.acknowledged > before + 200, timeout_s=PATIENCE_S)
        words = ("--lake", tmp_path / "copy", "--from", first.lake)
        # It dies at the worst places, and is run again.
        points = ("after_fence", "after_table_fences", "after_cut")
        environment = crash_environment(tmp_path, points)
        for _ in points:
            died = promote(*words, environment=environment)
            assert died.returncode == -9, died.stderr
        done = promote(*words, environment=environment)
        assert done.returncode == 0, done.stderr
        assert crashed(tmp_path) == set(points)
        assert f"promoted {tmp_path / 'copy'}" in done.stdout
        wait_until("its end", lambda: not first.running(), timeout_s=PATIENCE_S)
    finally:
        stream.stop()
    said = first.log_file.read_text()
    assert "this cluster was fenced by kafka-ds promote: it goes on in the lake" in said
    assert "Traceback" not in said
    with pytest.raises(BrokerDied, match="this cluster was fenced"):
        first.start()

    # All that was in the first lake when it was fenced, and not a record more of the first region.
    end = end_of(first.lake)
    assert end_of(tmp_path / "copy") == end > 400
    acknowledged = stream.feeder.acknowledged.partition(0)
    assert len(acknowledged) > 400
    done = restore(second)
    assert done.returncode == 0, done.stderr
    assert f"{TOPIC}-0: offsets 0 to {end}" in done.stdout
    second.start()
    read = consume(second.bootstrap, TOPIC, 0, end=end + 1)
    assert sorted(read) == list(range(end + 1))
    assert {n: read[n] for n in acknowledged if n <= end} == {
        n: row for n, row in acknowledged.items() if n <= end
    }

    # It goes on behind that, under a later epoch, and the table with it.
    feeder = Feeder(second.bootstrap, TOPIC)
    feeder.send(rows(300, start=1_000_000))
    feeder.flush()
    assert min(feeder.acknowledged.partition(0)) == end + 1
    wait_until("the rest", lambda: end_of(tmp_path / "copy") == end + 300, timeout_s=PATIENCE_S)
    found = table(tmp_path / "copy", TOPIC)
    assert found["offset"].is_unique().all()
    old = found.filter(found["offset"] <= end)["leader_epoch"].max()
    new = found.filter(found["offset"] > end)["leader_epoch"].min()
    assert isinstance(old, int) and isinstance(new, int) and old < new
    consumer = Consumer({"bootstrap.servers": second.bootstrap, "group.id": GROUP})
    (committed,) = consumer.committed([TopicPartition(TOPIC, 0)], timeout=PATIENCE_S)
    consumer.close()
    assert committed.offset == 120
    assert end_of(first.lake) == end


@pytest.mark.timeout(900)
def test_a_region_that_is_gone_is_replaced_by_what_has_arrived(
    first: BrokerProcess, second: BrokerProcess, tmp_path: Path
) -> None:
    begin(first)
    stream = Stream(first)
    try:
        with LakeCopier(first.lake, tmp_path / "copy", Random(4)):
            wait_until(
                "records in the lake", lambda: end_of(first.lake) > 400, timeout_s=PATIENCE_S
            )
            first.kill()
    finally:
        stream.stop()
    refused = promote("--lake", tmp_path / "copy")
    assert refused.returncode == 1
    assert "--from" in refused.stderr and "Traceback" not in refused.stderr
    done = promote("--lake", tmp_path / "copy", "--force")
    assert done.returncode == 0, done.stderr
    image = MetadataLog(LocalStore(str(tmp_path / "copy"))).load(begins=False)
    assert TOPIC in image.topics
    end = end_of(tmp_path / "copy")
    if end < max(stream.feeder.acknowledged.partition(0)):
        assert "offsets at least are lost" in done.stdout
    done = restore(second)
    assert done.returncode == 0, done.stderr
    second.start()
    acknowledged = stream.feeder.acknowledged.partition(0)
    read = consume(second.bootstrap, TOPIC, 0, end=end + 1) if end >= 0 else {}
    assert {n: read[n] for n in acknowledged if n <= end} == {
        n: row for n, row in acknowledged.items() if n <= end
    }
    feeder = Feeder(second.bootstrap, TOPIC)
    feeder.send(rows(100, start=1_000_000))
    feeder.flush()
    assert min(feeder.acknowledged.partition(0)) == end + 1


def published_end(broker: BrokerProcess) -> int:
    """Where the topic ends, as the lake's offsets say."""
    kept = present(OffsetsTable(LocalStore(str(broker.lake))).read())
    return max((e["log_end_offset"] or 0 for e in kept if e["topic"] == TOPIC), default=0)


@pytest.mark.timeout(600)
def test_a_diskless_topic_loses_nothing_that_was_acknowledged_before(
    first: BrokerProcess, second: BrokerProcess, tmp_path: Path
) -> None:
    """Its newest records are in the lake, though not in its table."""
    first.overrides |= {"lake.max.lag.ms": 600_000}
    first.start()
    create_topic(first, TOPIC, lake_diskless="true")
    feeder = Feeder(first.bootstrap, TOPIC)
    feeder.send(rows(300))
    feeder.flush()
    wait_until("its end to be published", lambda: published_end(first) == 300, timeout_s=PATIENCE_S)
    done = promote("--lake", tmp_path / "copy", "--from", first.lake)
    assert done.returncode == 0, done.stderr
    assert "lost" not in done.stdout
    wait_until("its end", lambda: not first.running(), timeout_s=PATIENCE_S)
    done = restore(second)
    assert done.returncode == 0, done.stderr
    assert f"{TOPIC}-0: offsets 0 to 299; nothing is known to be lost" in done.stdout
    second.start()
    assert consume(second.bootstrap, TOPIC, 0, end=300) == feeder.acknowledged.partition(0)
    again = Feeder(second.bootstrap, TOPIC)
    again.send(rows(10))
    again.flush()
    assert min(again.acknowledged.partition(0)) == 300


@pytest.mark.timeout(600)
def test_a_diskless_topic_goes_on_where_the_first_object_is_missing(
    first: BrokerProcess, second: BrokerProcess, tmp_path: Path
) -> None:
    """The first region is gone, and one object of its write-ahead log has not arrived: what is lost is said."""
    # No session may end: a leader of a later epoch puts all records again, and then a missing object loses none.
    first.overrides |= {"lake.max.lag.ms": 600_000, "broker.session.timeout.ms": 120_000}
    first.start()
    create_topic(first, TOPIC, lake_diskless="true")
    feeder = Feeder(first.bootstrap, TOPIC)
    for start in (0, 100, 200):
        feeder.send(rows(100, start=start))
        feeder.flush()  # Each time other objects.
    wait_until("its end to be published", lambda: published_end(first) == 300, timeout_s=PATIENCE_S)
    first.kill()
    shutil.copytree(first.lake, tmp_path / "copy")
    objects = sorted((tmp_path / "copy" / "wal").rglob("*.wal"))
    entries = {path: decode_header(path.read_bytes()).entries for path in objects}
    assert {each.leader_epoch for found in entries.values() for each in found} == {0}
    ends = {path: [each.last_offset for each in found] for path, found in entries.items()}
    missing = next(path for path in objects if ends[path] and min(ends[path]) >= 100)
    begin = 1 + max(end for path in objects for end in ends[path] if path < missing)
    missing.unlink()
    done = promote("--lake", tmp_path / "copy", "--force")
    assert done.returncode == 0, done.stderr
    assert f"diskless topics ({TOPIC}): records behind the first missing object" in done.stdout
    done = restore(second)
    assert done.returncode == 0, done.stderr
    end = f"{TOPIC}-0: offsets 0 to {begin - 1}; {300 - begin} offsets at least are lost"
    assert end in done.stdout
    assert f"to 299 were put behind a gap at {begin}, and are lost if the gap" in done.stderr
    second.start()
    there = {n: row for n, row in feeder.acknowledged.partition(0).items() if n < begin}
    assert consume(second.bootstrap, TOPIC, 0, end=begin) == there


@pytest.mark.timeout(600)
def test_each_broker_of_the_first_region_stops(tmp_path: Path) -> None:
    """Those that follow the controller, too, and one that is paused meanwhile."""
    with cluster(tmp_path / "first") as brokers:
        topics.create_topic(brokers.bootstrap, TOPIC, partitions=3, replicas=3)
        lake = Path(str(brokers[1].overrides["lake.uri"]))
        shutil.copytree(lake, tmp_path / "copy")
        paused = brokers[2]
        os.kill(paused.pid, signal.SIGSTOP)
        done = promote("--lake", tmp_path / "copy", "--from", lake)
        assert done.returncode == 0, done.stderr
        for number in (1, 3):
            wait_until("its end", lambda b=brokers[number]: not b.running(), timeout_s=PATIENCE_S)
            assert brokers[number].stop() == os.EX_CONFIG
        os.kill(paused.pid, signal.SIGCONT)
        wait_until("its end", lambda: not paused.running(), timeout_s=PATIENCE_S)
        for broker in brokers.brokers.values():
            assert "this cluster was fenced by kafka-ds promote" in broker.log_file.read_text()
        image = MetadataLog(LocalStore(str(lake))).load(begins=False)
        assert image.fenced_by == str(tmp_path / "copy")

"""The log on a real disk, in a process that is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from broker.log.failures import LogDirectoryError
from broker.log.log import Log
from kafka_ds.process.system import SystemClock, new_uuid
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.records.batch import iterate_headers, read_records
from tests.fakes.logs import logs_on_disk
from tests.fakes.settings import log_settings
from tests.unit.log.log_model import client_batch

CONFIG = log_settings(segment_bytes=30_000, index_interval_bytes=500, retention_ms=-1)

WRITER = """
import sys
from broker.log.log import Log
from tests.integration.test_log_process import CONFIG, append_next
from kafka_ds.protocol.topic_partition import TopicPartition
from tests.fakes.logs import logs_on_disk
manager = logs_on_disk(sys.argv[1], CONFIG)
log = manager.get(TopicPartition("t", 0)) or manager.create(TopicPartition("t", 0), bytes(range(16)))
print("ready", log.log_end_offset, flush=True)
while True:
    append_next(log)
    print(log.log_end_offset, flush=True)
"""


def append_next(log: Log) -> None:
    """A batch whose size and content follow from its offset."""
    offset = log.log_end_offset
    producer = log.producers.get(4)
    batch = client_batch(
        1 + offset % 7,
        value_bytes=offset % 300,
        timestamp_ms=SystemClock().now_ms(),
        producer_id=4,
        producer_epoch=0,
        base_sequence=producer.last_sequence + 1 if producer else 0,
        codec=offset % 5,
    )
    log.append(memoryview(batch), leader_epoch=0, now_ms=SystemClock().now_ms())


def check_content(log: Log) -> None:
    """Every record is there, in its place, as it was made."""
    offset = 0
    while offset < log.log_end_offset:
        found = log.read(
            offset, max_bytes=10_000, upper_bound_offset=log.log_end_offset, min_one_batch=True
        )
        for part in found.slices:
            data = part.read()
            for position, header in iterate_headers(data):
                assert header.base_offset == offset
                values = [record.value for record in read_records(data, position, header)]
                assert values == [b"v" * (offset % 300)] * (1 + offset % 7)
                offset = header.next_offset


def test_what_was_acknowledged_survives_sigkill(tmp_path: Path) -> None:
    acknowledged = 0
    for round_number in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            ready, end_offset = writer.stdout.readline().split()
            assert ready == "ready"
            assert int(end_offset) >= acknowledged
            for _ in range(400 + 37 * round_number):
                acknowledged = int(writer.stdout.readline())
            writer.kill()
        manager = logs_on_disk(tmp_path, CONFIG)
        assert not manager.was_clean
        log = manager.get(TopicPartition("t", 0))
        assert log is not None
        assert log.log_end_offset >= acknowledged
        check_content(log)
        acknowledged = log.log_end_offset
        if round_number == 1:
            manager.close()
        else:
            manager.directories.release()  # Left as it is: the next process finds no clean stop.


def test_two_processes_do_not_share_a_directory(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline().startswith("ready")
        with pytest.raises(
            LogDirectoryError, match=f"{tmp_path} is in use by another broker: stop it"
        ):
            logs_on_disk(tmp_path, CONFIG)
        writer.kill()
    logs_on_disk(tmp_path, CONFIG).close()


def test_a_slice_outlives_its_segment_on_a_real_disk(tmp_path: Path) -> None:
    manager = logs_on_disk(tmp_path, CONFIG)
    log = manager.create(TopicPartition("t", 0), new_uuid())
    for _ in range(300):
        append_next(log)
    found = log.read(0, max_bytes=5000, upper_bound_offset=100, min_one_batch=True)
    before = found.slices[0].read_now()
    assert before is not None
    log.advance_log_start_offset(log.log_end_offset)
    assert log.delete_local_segments(0)
    assert found.slices[0].read() == bytes(before)
    manager.delete(TopicPartition("t", 0))
    assert found.slices[0].read() == bytes(before)
    manager.tick(SystemClock().now_ms() + 60_001)
    assert [each.name for each in tmp_path.iterdir() if each.is_dir()] == []
    manager.close()

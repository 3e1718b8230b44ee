"""Which log stays where a start finds a partition in two directories."""

from __future__ import annotations

import pytest

from broker.log.failures import LogDirectoryError
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.protocol.topic_partition import TopicPartition
from tests.unit.log.log_manager_bench import TOPIC_ID, LogsBench

LOG_FILE = "t-0/00000000000000000000.log"


def found_twice(second: bytes | None) -> LogsBench:
    """A log in /a, and a folder of nobody in /b with these bytes; None: with those of the log."""
    bench = LogsBench("/a", "/b")
    bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    bench.append("t")
    bench.stop()
    bench.disk.make_directory("/b/t-0")
    data = bytes(bench.disk.contents(f"/a/{LOG_FILE}")) if second is None else second
    bench.disk.plant(f"/b/{LOG_FILE}", data)
    return bench


def test_a_log_in_two_directories_is_an_error() -> None:
    bench = found_twice(None)
    with pytest.raises(LogDirectoryError, match="Duplicate log directories found for t-0: /a, /b"):
        bench.start()


def test_a_log_that_was_being_made_when_the_disk_was_full_is_none() -> None:
    """It was made in the other directory then. The topic may have been deleted since: nobody knows whose they are."""
    bench = found_twice(b"")
    bench.start()
    (log,) = bench.manager.logs()
    assert (log.directory, log.log_end_offset) == ("/a/t-0", 1)


def test_what_full_disks_left_of_a_new_log_keeps_no_broker_from_starting() -> None:
    """Each directory was tried, and has the folder, but not whose it is."""
    bench = LogsBench("/a", "/b")
    bench.disk.capacity_bytes = 0
    with pytest.raises(KafkaError):
        bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    assert bench.disk.exists("/a/t-0") and bench.disk.exists("/b/t-0")
    bench.disk.capacity_bytes = None
    bench.stop()
    bench.start()
    log = bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    assert [each.directory for each in bench.manager.logs()] == [log.directory]
    bench.stop()
    bench.start()
    assert bench.manager.get(TopicPartition("t", 0)) is not None

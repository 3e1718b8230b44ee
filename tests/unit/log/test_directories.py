"""Several log directories: one that fails goes offline alone, and its logs are not recreated elsewhere (KIP-112)."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import Any

import pytest

from broker.log.directories.loader import PROGRESS_EVERY_MS
from broker.log.directories.metrics import (
    DIRECTORY_OFFLINE,
    OFFLINE_DIRECTORIES,
    REMAINING,
    log_samples,
)
from broker.log.failures import LogDirectoryError
from broker.log.log import Log
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import NO_UUID
from kafka_ds.records.batch import Record
from kafka_ds.segments import names
from tests.unit.log.log_manager_bench import NOW_MS, TOPIC_ID, LogsBench
from tests.unit.log.log_model import client_batch
from tests.unit.records.old_sets import Plain, encode, message

OTHER_ID = bytes(range(16, 32))


class TwoDisks(LogsBench):
    """Partitions 0 and 2 of "t" in /a, 1 and 3 in /b, and the failures that were reported."""

    def __init__(self) -> None:
        super().__init__("/a", "/b")
        for partition in range(4):
            self.manager.create(TopicPartition("t", partition), TOPIC_ID)
            self.append("t", partition, count=3)
        self.background.run()

    def log(self, partition: int) -> Log:
        log = self.manager.get(TopicPartition("t", partition))
        assert log is not None
        return log

    def restart(self) -> None:
        self.stop()
        self.start()

    def assert_b_is_offline(self) -> None:
        assert self.failed == [[("t", 1), ("t", 3)]]
        assert list(self.manager.directory_ids) == ["/a"]
        assert self.ends == 0
        assert sorted(log.partition for log in self.manager.logs()) == [0, 2]
        assert self.manager.is_offline(TopicPartition("t", 1))
        assert not self.manager.is_offline(TopicPartition("t", 0))
        self.append("t", 0)
        self.manager.tick(NOW_MS + 10**9)
        self.background.run()


def refusal(bench: TwoDisks, partition: int, topic_id: bytes = TOPIC_ID) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        bench.manager.create(TopicPartition("t", partition), topic_id)
    return raised.value.code


def append(bench: TwoDisks) -> None:
    with pytest.raises(KafkaError) as raised:
        bench.append("t", 1)
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def sync(bench: TwoDisks) -> None:
    bench.log(1).flush()
    bench.background.run()


def read(bench: TwoDisks) -> None:
    log = bench.log(3)
    found = log.read(0, max_bytes=999, upper_bound_offset=3, min_one_batch=True)
    with pytest.raises(OSError, match="broken") as raised:
        found.slices[0].read()
    log.failed_to_read(raised.value)


def checkpoint(bench: TwoDisks) -> None:
    bench.manager.checkpoint_high_watermarks({("t", 0): 3, ("t", 1): 3})
    bench.background.run()


def roll(bench: TwoDisks) -> None:
    with pytest.raises(KafkaError):
        bench.log(1).roll()


@pytest.mark.parametrize("touch", [append, sync, read, checkpoint, roll])
def test_any_error_of_a_disk_takes_its_directory_offline(
    touch: Callable[[TwoDisks], None], caplog: pytest.LogCaptureFixture
) -> None:
    bench = TwoDisks()
    bench.disk.broken = {"/b"}
    touch(bench)
    bench.assert_b_is_offline()
    (line,) = [r.getMessage() for r in caplog.records if "Stopping serving" in r.getMessage()]
    assert "Stopping serving 2 logs in dir /b" in line


def test_a_new_log_goes_where_it_can() -> None:
    bench = TwoDisks()
    bench.manager.create(TopicPartition("t", 4), TOPIC_ID)
    bench.disk.broken = {"/b"}
    bench.manager.create(TopicPartition("t", 5), TOPIC_ID)
    assert bench.log(5).directory == "/a/t-5"
    assert bench.failed[0] == [("t", 1), ("t", 3)]
    assert refusal(bench, 1) is ErrorCode.KAFKA_STORAGE_ERROR
    assert refusal(bench, 6) is ErrorCode.KAFKA_STORAGE_ERROR, "who knows whether it is new"
    bench.manager.create(TopicPartition("t", 6), TOPIC_ID, is_new=True)
    assert bench.log(6).directory == "/a/t-6"


def test_where_a_log_is() -> None:
    bench = TwoDisks()
    ids = bench.manager.directory_ids
    assert bench.manager.directory_id_of(TopicPartition("t", 1)) == ids["/b"]
    assert bench.manager.directory_id_of(TopicPartition("t", 9)) == ids["/a"], (
        "where it would be made"
    )
    bench.disk.broken = {"/b"}
    append(bench)
    assert bench.manager.directory_id_of(TopicPartition("t", 0)) == ids["/a"]
    assert bench.manager.directory_id_of(TopicPartition("t", 1)) is None, "not where it is not"
    assert bench.manager.directory_id_of(TopicPartition("t", 9)) is None


class FullDisks(TwoDisks):
    """The same without room for another byte."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = self.manager.directory_ids
        self.disk.capacity_bytes = sum(len(self.disk.contents(path)) for path in self.disk.paths())


def test_no_room_is_no_failure_while_nobody_else_leads(caplog: pytest.LogCaptureFixture) -> None:
    bench = FullDisks()
    append(bench)
    append(bench)
    assert bench.manager.take_refused() == {TopicPartition("t", 1): bench.ids["/b"]}
    assert bench.manager.take_refused() == {}, "nothing was refused since"
    bench.manager.keep_online(bench.ids.values())
    assert caplog.text.count("Error while appending records to t-1 in dir /b: ") == 1
    bench.disk.capacity_bytes = None
    bench.append("t", 1)
    assert not bench.failed


def test_a_full_disk_is_logged_again_after_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    bench = FullDisks()
    append(bench)
    bench.clock.ms += 60_000
    append(bench)
    assert caplog.text.count("Error while appending records to t-1 in dir /b: ") == 2


def test_a_full_directory_that_the_cluster_gives_up_goes_offline() -> None:
    bench = FullDisks()
    append(bench)
    bench.disk.capacity_bytes = None
    bench.manager.keep_online([bench.ids["/a"]])
    bench.assert_b_is_offline()
    assert bench.manager.failures["/b"] is not None
    bench.manager.keep_online([])
    assert list(bench.manager.directory_ids) == ["/a"], "it is not full"


def test_a_log_that_no_disk_has_room_for_was_refused_by_each() -> None:
    bench = FullDisks()
    with pytest.raises(KafkaError):
        bench.manager.create(TopicPartition("new", 0), TOPIC_ID)
    assert list(bench.manager.take_refused()) == [TopicPartition("new", 0)]
    bench.manager.keep_online([])
    assert bench.ends == 1


def test_a_reader_that_comes_too_late_breaks_nothing() -> None:
    bench = TwoDisks()
    log = bench.log(1)
    log.failed_to_read(FileNotFoundError(2, "gone", "/b/t-1/0.log"))
    log.failed_to_read(OSError(9, "closed"))
    assert not bench.failed


def test_when_all_have_failed_the_broker_ends() -> None:
    bench = TwoDisks()
    bench.disk.broken = {"/a", "/b"}
    append(bench)
    assert bench.ends == 0
    with pytest.raises(KafkaError):
        bench.append("t", 0)
    assert bench.ends == 1
    assert list(bench.manager.logs()) == []


def test_a_failed_directory_is_recovered_when_it_is_back() -> None:
    bench = TwoDisks()
    bench.disk.broken = {"/b"}
    append(bench)
    bench.stop()
    assert bench.disk.exists("/a/.kafka_cleanshutdown")
    bench.disk.broken = set()
    assert not bench.disk.exists("/b/.kafka_cleanshutdown")
    bench.start()
    assert not bench.manager.was_clean
    assert [bench.log(partition).log_end_offset for partition in range(4)] == [3] * 4


def test_one_that_another_run_left_cleanly(caplog: pytest.LogCaptureFixture) -> None:
    """Its logs may lack what was written without it: the broker must not be elected as if it had all."""
    bench = TwoDisks()
    bench.stop(broker_epoch=5)
    older = bench.file("/b/.kafka_cleanshutdown")
    bench.start()
    bench.stop(broker_epoch=7)
    bench.disk.contents("/b/.kafka_cleanshutdown")[:] = older.encode()
    bench.start()
    assert bench.manager.previous_broker_epoch == -1
    assert "with the different broker epochs [5, 7]" in caplog.text


@pytest.mark.parametrize("what", ["all", "a log"])
def test_one_that_cannot_be_read_at_the_start(what: str) -> None:
    bench = TwoDisks()
    bench.stop()
    bench.disk.broken = {"/b" if what == "all" else "/b/t-3"}
    bench.start()
    assert sorted(log.partition for log in bench.manager.logs()) == [0, 2]
    assert refusal(bench, 1) is ErrorCode.KAFKA_STORAGE_ERROR
    assert bench.manager.is_offline(TopicPartition("t", 1))
    assert not bench.manager.was_clean
    assert bench.manager.previous_broker_epoch == -1
    values = {(metric, labels): value for metric, labels, value in log_samples(bench.manager)}
    assert values[OFFLINE_DIRECTORIES, ()] == 1
    assert values[DIRECTORY_OFFLINE, ("/b",)] == 1
    assert values[DIRECTORY_OFFLINE, ("/a",)] == 0
    assert values[REMAINING, ("/a",)] == 0
    bench.stop()
    bench.disk.broken = set()
    bench.start()
    assert [bench.log(partition).log_end_offset for partition in range(4)] == [3] * 4


def test_without_any_that_can_be_read_there_is_no_start() -> None:
    bench = TwoDisks()
    bench.stop()
    bench.disk.broken = {"/a", "/b"}
    with pytest.raises(OSError, match="broken"):
        bench.start()
    bench.disk.broken = set()
    bench.start()
    assert len(list(bench.manager.logs())) == 4, "its locks are free"


def test_a_mistake_in_the_settings_is_no_failure_of_a_disk() -> None:
    bench = TwoDisks()
    bench.stop()
    bench.disk.plant("/b/meta.properties", b"version=1\nnode.id=4\n")
    with pytest.raises(LogDirectoryError, match="/b/meta.properties"):
        bench.start()


def test_of_two_logs_of_a_name_the_topics_own_stays() -> None:
    """Deleted and recreated in /a while /b was offline."""
    bench = TwoDisks()
    bench.disk.broken = {"/b"}
    append(bench)
    bench.manager.create(TopicPartition("t", 1), OTHER_ID, is_new=True)
    assert bench.log(1).directory == "/a/t-1"
    bench.append("t", 1)
    bench.stop()
    bench.disk.broken = set()
    with pytest.raises(LogDirectoryError, match="t-1: /a, /b"):
        bench.start()
    bench.start(topic_id_for=lambda _: OTHER_ID)
    assert bench.log(1).log_end_offset == 1
    strays = [path for path in bench.disk.paths() if names.STRAY_FOLDER in path]
    assert strays
    assert all(path.startswith("/b/t-1.") for path in strays)


def test_logs_are_opened_by_several_threads_and_it_is_told_how_far(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = TwoDisks()
    bench.disk.kill()
    clock = bench.clock
    monkeypatch.setattr(clock, "monotonic_ms", lambda: clock.now_ms() + count_of_logs())
    opened: list[str] = []
    open_log = Log.open

    def count_of_logs() -> int:
        return len(opened) * PROGRESS_EVERY_MS

    def opening(directory: str, *arguments: Any, **options: Any) -> Log:
        opened.append(directory)
        return open_log(directory, *arguments, **options)

    monkeypatch.setattr(Log, "open", opening)
    caplog.set_level(logging.INFO)
    bench.start(recovery_threads=2)
    assert sorted(opened) == ["/a/t-0", "/a/t-2", "/b/t-1", "/b/t-3"]
    said = [record.getMessage() for record in caplog.records]
    for directory in ("/a", "/b"):
        assert f"Loading 2 logs of {directory}, recovering them: it was not left cleanly" in said
        assert f"Loaded 2 logs of {directory}" in said
    assert any(line.startswith("Loading logs: ") and "of 4, remaining" in line for line in said)
    assert bench.manager.remaining_to_load == {"/a": 0, "/b": 0}
    assert [bench.log(partition).log_end_offset for partition in range(4)] == [3] * 4


def test_after_a_clean_stop_no_log_is_scanned_after_a_crash_what_is_past_the_recovery_point() -> (
    None
):
    bench = LogsBench("/a")
    for partition in range(20):
        log = bench.manager.create(TopicPartition("t", partition), TOPIC_ID)
        for _ in range(4):
            batch = client_batch(1, value_bytes=50_000, timestamp_ms=NOW_MS)
            log.append(memoryview(batch), leader_epoch=0, now_ms=NOW_MS)
        log.roll()
        bench.append("t", partition)
    bench.background.run()
    bench.manager.tick(NOW_MS + 10**6)  # The recovery points.
    bench.background.run()
    batch_bytes = len(client_batch(1, timestamp_ms=NOW_MS))
    for clean in (False, True):
        if clean:
            bench.stop()
        else:
            bench.disk.kill()
        bench.disk.bytes_read = 0
        bench.start()
        assert bench.manager.was_clean is clean
        assert bench.disk.bytes_read < 20 * 10 * batch_bytes, "of 4 MB"
        assert {log.log_end_offset for log in bench.manager.logs()} == {5}


def test_a_log_that_cannot_be_deleted_takes_its_directory_offline_and_no_other() -> None:
    bench = TwoDisks()
    bench.disk.broken = {"/b"}
    bench.manager.delete(TopicPartition("t", 1))
    assert bench.failed == [[("t", 3)]]
    bench.manager.create(TopicPartition("t", 1), OTHER_ID, is_new=True)
    assert bench.log(1).directory == "/a/t-1"
    assert bench.log(1).log_end_offset == 0
    bench.append("t", 0)
    assert bench.log(0).log_end_offset == 4


def test_a_topic_that_is_made_anew_has_nothing_of_one_that_could_not_be_deleted() -> None:
    bench = LogsBench()
    bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    bench.append("t", count=3)
    bench.disk.failing, bench.disk.failing_with = {"rename"}, errno.EMFILE
    bench.manager.delete(TopicPartition("t", 0))
    with pytest.raises(KafkaError) as raised:
        bench.manager.create(TopicPartition("t", 0), OTHER_ID, is_new=True)
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert bench.manager.get(TopicPartition("t", 0)) is None
    bench.disk.failing = set()
    log = bench.manager.create(TopicPartition("t", 0), OTHER_ID, is_new=True)
    assert (log.log_end_offset, log.topic_id) == (0, OTHER_ID)
    assert [name for name in bench.disk.list_names("/a") if name.endswith("-delete")]


def test_what_could_not_be_deleted_is_tried_again() -> None:
    bench = LogsBench()
    bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    bench.append("t")
    bench.disk.failing, bench.disk.failing_with = {"rename"}, errno.EMFILE
    bench.manager.delete(TopicPartition("t", 0))
    bench.manager.tick(NOW_MS)
    bench.disk.failing = set()
    bench.manager.tick(NOW_MS)
    assert not bench.disk.exists("/a/t-0")
    bench.manager.tick(NOW_MS + 10**9)
    bench.background.run()
    assert not [path for path in bench.disk.paths() if "/t-0." in path]


@pytest.mark.parametrize("theirs", [OTHER_ID, NO_UUID])
def test_a_folder_in_the_way_of_a_new_log_is_set_aside(theirs: bytes) -> None:
    bench = LogsBench()
    bench.manager.create(TopicPartition("t", 0), theirs)
    bench.append("t", count=3)
    bench.background.run()
    found = {
        path: bytes(bench.disk.contents(path)) for path in bench.disk.paths() if "t-0/" in path
    }
    bench.manager.delete(TopicPartition("t", 0))
    bench.disk.make_directory("/a/t-0")
    for path, content in found.items():
        bench.disk.plant(path, content)
    log = bench.manager.create(TopicPartition("t", 0), TOPIC_ID, is_new=True)
    assert log.log_end_offset == 0
    (aside,) = [name for name in bench.disk.list_names("/a") if name.endswith("-stray")]
    assert bench.disk.size(f"/a/{aside}/{names.file_name(0, names.LOG)}")


def test_a_log_that_is_damaged_where_nothing_may_be_cut_off_is_offline_alone() -> None:
    """Messages of an old Kafka, one of them damaged, below the recovery point."""
    bench = TwoDisks()
    bench.stop()
    old = encode(Plain(magic=1, record=Record(0, NOW_MS, b"k", b"v")))
    path = "/b/t-3/00000000000000000000.log"
    bench.disk.plant(path, old + old[:-1] + b"?")
    # Without a clean stop from then on: what is above the recovery point may be cut off, and that of t-3 is kept.
    bench.disk.plant("/b/t-3/00000000000000000003.log", b"")
    bench.disk.unlink("/b/.kafka_cleanshutdown")
    for _ in range(2):
        bench.start()
        assert sorted(log.partition for log in bench.manager.logs()) == [0, 1, 2]
        assert bench.manager.is_offline(TopicPartition("t", 3)) and not bench.manager.is_offline(
            TopicPartition("t", 1)
        )
        with pytest.raises(KafkaError, match="t-3.*damaged at byte") as raised:
            bench.manager.create(TopicPartition("t", 3), TOPIC_ID)
        assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert (
            bench.manager.directory_id_of(TopicPartition("t", 3))
            == bench.manager.directory_ids["/b"]
        )
        assert bench.manager.is_damaged(TopicPartition("t", 3), TOPIC_ID)
        assert not bench.manager.is_damaged(TopicPartition("t", 3), OTHER_ID)
        assert not bench.manager.is_damaged(TopicPartition("t", 1), TOPIC_ID)
        bench.append("t", 1)
        bench.manager.write_recovery_points()
        bench.disk.kill()
        assert bytes(bench.disk.contents(path)) == old + old[:-1] + b"?"
    bench.start()
    bench.manager.create(TopicPartition("t", 3), OTHER_ID)
    assert bench.log(3).log_end_offset == 0
    assert [each for each in bench.disk.paths() if names.STRAY_FOLDER in each]
    bench.stop()
    bench.start()
    assert len(list(bench.manager.logs())) == 4


def with_a_damaged_log() -> TwoDisks:
    """The broker was killed: t-3 is damaged below its recovery point, and torn above it."""
    bench = TwoDisks()
    bench.stop()
    bench.disk.plant("/b/t-3/00000000000000000000.log", old_messages(0, 3)[:-1] + b"?")
    bench.disk.plant("/b/t-3/00000000000000000003.log", old_messages(3, 5)[:-5])
    bench.disk.unlink("/b/.kafka_cleanshutdown")
    bench.start()
    assert bench.manager.is_offline(TopicPartition("t", 3))
    return bench


def old_messages(start: int, end: int) -> bytes:
    return b"".join(message(1, i, b"k", b"v", time=NOW_MS) for i in range(start, end))


def test_a_full_directory_keeps_no_recovery_point_of_another_one_from_being_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = TwoDisks()
    bench.log(0).flush(wait=True)
    rename = bench.disk.rename

    def refuse(source: str, target: str) -> None:
        if source.startswith("/b/"):
            raise OSError(errno.ENOSPC, "full", source)
        rename(source, target)

    monkeypatch.setattr(bench.disk, "rename", refuse)
    bench.manager.write_recovery_points(bench.log(0).directory)
    assert bench.file(f"/a/{names.RECOVERY_POINT_CHECKPOINT}") == "0\n2\nt 0 3\nt 2 0\n"
    with pytest.raises(OSError, match="full"):
        bench.manager.write_recovery_points(bench.log(1).directory)
    with pytest.raises(OSError, match="full"):
        bench.manager.write_recovery_points()


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_log_in_a_damaged_ones_place_does_not_begin_where_that_did(is_deleted: bool) -> None:
    bench = TwoDisks()
    bench.log(3).advance_log_start_offset(2)
    bench.stop()
    bench.disk.plant("/b/t-3/00000000000000000000.log", old_messages(0, 3)[:-1] + b"?")
    bench.start()
    if is_deleted:
        bench.manager.delete(TopicPartition("t", 3))
    bench.manager.create(TopicPartition("t", 3), OTHER_ID)
    bench.append("t", 3)
    bench.disk.kill()
    bench.start()
    assert (bench.log(3).log_start_offset, bench.log(3).log_end_offset) == (0, 1)


def test_a_clean_stop_does_not_vouch_for_a_damaged_log_that_was_never_recovered() -> None:
    bench = with_a_damaged_log()
    bench.stop()
    assert bench.disk.exists("/a/.kafka_cleanshutdown")
    assert not bench.disk.exists("/b/.kafka_cleanshutdown")
    bench.disk.plant("/b/t-3/00000000000000000000.log", old_messages(0, 3))
    bench.start()
    assert bench.log(3).log_end_offset == 4, "whole again, and cut where it was torn"
    bench.stop()
    assert bench.disk.exists("/b/.kafka_cleanshutdown")


def test_a_clean_stop_goes_on_vouching_for_a_damaged_log_that_was_left_cleanly() -> None:
    bench = TwoDisks()
    bench.stop()
    bench.disk.plant("/b/t-3/00000000000000000000.log", old_messages(0, 3)[:-1] + b"?")
    bench.start()
    assert bench.manager.is_offline(TopicPartition("t", 3))
    bench.stop()
    assert bench.disk.exists("/b/.kafka_cleanshutdown")


def test_of_two_topics_that_are_created_again_neither_takes_a_high_watermark_for_its_own() -> None:
    """What was last to be written is of the former topics until it is written anew."""
    bench = LogsBench()
    for topic in ("t", "u"):
        bench.manager.create(TopicPartition(topic, 0), TOPIC_ID)
        bench.append(topic, count=10)
    bench.manager.checkpoint_high_watermarks({("t", 0): 9, ("u", 0): 9})
    for topic in ("t", "u"):
        bench.manager.delete(TopicPartition(topic, 0))
        bench.manager.create(TopicPartition(topic, 0), OTHER_ID)
        bench.append(topic, count=3)
    bench.disk.kill()
    bench.start()
    assert bench.manager.high_watermark_checkpoints() == {}

"""The logs of a broker: owners of directories, creation, deletion, checkpoints."""

from __future__ import annotations

import asyncio
import errno

import pytest

from broker.log.directories.log_manager import GONE_MAX
from broker.log.failures import LogDirectoryError
from kafka_ds.process.system import new_uuid
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.segments import names
from kafka_ds.segments.names import RECOVERY_POINT_CHECKPOINT
from tests.fakes.memory_disk import MemoryDisk
from tests.fakes.settings import log_settings
from tests.loops import in_loop
from tests.unit.log.log_manager_bench import NOW_MS, TOPIC_ID, LogsBench
from tests.unit.log.log_model import client_batch


def test_a_directory_says_whose_it_is() -> None:
    bench = LogsBench("/a", "/b")
    ids = bench.manager.directory_ids
    assert len(set(ids.values())) == 2
    cluster_id = bench.manager.cluster_id
    assert len(cluster_id) == 22
    assert f"cluster.id={cluster_id}\n" in bench.file("/a/meta.properties")
    assert "#Tue Nov 14 22:13:20 UTC 2023\n" in bench.file("/a/meta.properties")
    bench.stop()
    bench.start()
    assert bench.manager.directory_ids == ids
    assert bench.manager.cluster_id == cluster_id


def test_another_brokers_directory_is_refused_by_name() -> None:
    bench = LogsBench()
    bench.stop()
    with pytest.raises(LogDirectoryError, match="/a/meta.properties belongs to node.id=1, not 2"):
        bench.start(node_id=2)
    with pytest.raises(LogDirectoryError, match="/a/meta.properties belongs to cluster"):
        bench.start(cluster_id="another")
    bench.start()
    with pytest.raises(LogDirectoryError, match="/a is in use"):
        bench.start()


def test_a_failed_start_releases_its_locks() -> None:
    bench = LogsBench("/a", "/b")
    bench.stop()
    bench.disk.plant("/b/meta.properties", b"version=1\nnode.id=4\n")
    with pytest.raises(LogDirectoryError, match="/b/meta.properties"):
        bench.start()
    bench.disk.unlink("/b/meta.properties")
    bench.start()


def test_a_topic_that_is_deleted_while_it_is_made_durable_is_no_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = LogsBench()
    bench.manager.create(TopicPartition("t", 0), TOPIC_ID)

    def sync_directory(path: str) -> None:
        if path == "/a/t-0":
            bench.manager.delete(TopicPartition("t", 0))
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)

    monkeypatch.setattr(bench.disk, "sync_directory", sync_directory)
    bench.background.run()
    assert bench.manager.get(TopicPartition("t", 0)) is None
    assert [record.getMessage() for record in caplog.records if record.levelno > 30] == []


def test_a_clean_stop_leaves_the_marker_and_the_next_start_takes_it() -> None:
    bench = LogsBench()
    bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    bench.append("t", count=5)
    bench.stop(broker_epoch=12)
    assert bench.file("/a/.kafka_cleanshutdown") == '{"version":0,"brokerEpoch":12}'
    assert bench.file("/a/recovery-point-offset-checkpoint") == "0\n1\nt 0 5\n"
    bench.start()
    assert bench.manager.was_clean
    assert bench.manager.previous_broker_epoch == 12
    assert not bench.disk.exists("/a/.kafka_cleanshutdown"), "a crash while running is a crash"
    log = bench.manager.get(TopicPartition("t", 0))
    assert log is not None
    assert (log.topic_id, log.log_end_offset, log.recovery_point) == (TOPIC_ID, 5, 5)


@pytest.mark.parametrize("loss", ["a byte", "its last batch", "all"])
def test_a_log_that_has_lost_records_after_a_clean_stop_makes_that_an_unclean_one(
    loss: str,
) -> None:
    """Its broker would be elected before one that has the records. Until it has registered that does not change."""
    bench = LogsBench()
    bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    bench.append("t", count=5)
    bench.manager.checkpoint_high_watermarks({("t", 0): 5})
    bench.background.run()
    bench.stop(broker_epoch=12)
    if loss == "all":
        for path in [each for each in bench.disk.paths() if each.startswith("/a/t-0/")]:
            bench.disk.unlink(path)
        bench.disk.remove_directory("/a/t-0")
    else:
        data = bench.disk.contents("/a/t-0/00000000000000000000.log")
        del data[-1 if loss == "a byte" else -len(data) // 5 :]
    for _ in range(2):
        bench.start()
        assert bench.manager.was_clean
        assert bench.manager.previous_broker_epoch == -1
        bench.stop(bench.manager.previous_broker_epoch)


def test_a_crash_is_seen() -> None:
    bench = LogsBench()
    bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    bench.append("t", count=5)
    bench.disk.kill()
    bench.start()
    assert not bench.manager.was_clean
    assert bench.manager.previous_broker_epoch == -1
    log = bench.manager.get(TopicPartition("t", 0))
    assert log is not None
    assert (log.log_end_offset, log.recovery_point) == (5, 0)


def test_one_log_that_fails_leaves_no_marker() -> None:
    bench = LogsBench()
    bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    bench.append("t")
    bench.disk.failing = {"sync"}
    bench.manager.close()
    assert not bench.disk.exists("/a/.kafka_cleanshutdown")


def test_logs_are_spread_over_the_directories() -> None:
    bench = LogsBench("/a", "/b")
    for partition in range(4):
        bench.manager.create(TopicPartition("t", partition), TOPIC_ID)
    folders = [log.directory for log in bench.manager.logs()]
    assert folders == ["/a/t-0", "/b/t-1", "/a/t-2", "/b/t-3"]
    bench.append("t", 1, 3)
    bench.stop()
    assert bench.file("/b/recovery-point-offset-checkpoint") == "0\n2\nt 1 3\nt 3 0\n"
    bench.start()
    assert len(list(bench.manager.logs())) == 4
    log = bench.manager.get(TopicPartition("t", 1))
    assert log is not None
    assert log.directory == "/b/t-1"


def test_creating_what_is_there_gives_it() -> None:
    bench = LogsBench()
    log = bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    assert (
        bench.manager.create(TopicPartition("t", 0), TOPIC_ID, log_settings(segment_bytes=5)) is log
    )
    assert log.config.segment_bytes == 5


def test_a_recreated_topic_gets_a_new_log_at_once() -> None:
    bench = LogsBench()
    old = bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    bench.append("t", count=3)
    found = old.read(0, max_bytes=999, upper_bound_offset=3, min_one_batch=True)
    new = bench.manager.create(TopicPartition("t", 0), new_uuid())
    assert (new.log_end_offset, new.directory) == (0, "/a/t-0")
    bench.append("t")
    assert found.slices[0].read_now(), "a reader of the old one goes on"
    (doomed,) = [name for name in bench.disk.list_names("/a") if name.endswith("-delete")]
    bench.clock.ms += 59_999
    bench.manager.tick(bench.clock.ms)
    bench.background.run()
    assert doomed in bench.disk.list_names("/a")
    bench.clock.ms += 1
    bench.manager.tick(bench.clock.ms)
    bench.background.run()
    assert doomed not in bench.disk.list_names("/a")
    assert bench.manager.get(TopicPartition("t", 0)) is new


def test_a_log_that_has_rolled_is_told_of_whatever_fails_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else its segment is not copied before the next one rolls."""
    bench = LogsBench()
    log = bench.manager.create(
        TopicPartition("t", 0), TOPIC_ID, log_settings(segment_ms=1_000, retention_ms=-1)
    )
    bench.append("t")
    bench.manager.tick(bench.clock.ms)
    bench.clock.ms += 10**9

    def fail(directory: object) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as failing:
        failing.setattr(bench.manager, "checkpoint_logs", fail)
        with pytest.raises(OSError, match="broken"):
            bench.manager.tick(bench.clock.ms)
    assert len(log.segments.all) == 2
    assert bench.manager.tick(bench.clock.ms) == [log]
    assert bench.manager.tick(bench.clock.ms) == []


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("is_tiered", [False, True])
def test_a_log_begins_where_it_does_and_not_where_an_earlier_one_of_its_name_did(
    is_tiered: bool, is_restarted: bool
) -> None:
    """The checkpoints that were written last name the log of the topic that was deleted."""
    bench = LogsBench()
    bench.config = log_settings(retention_ms=-1, remote_storage_enable=is_tiered)
    bench.stop()
    bench.start()
    old = bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    bench.append("t", count=10)
    old.advance_log_start_offset(8)
    bench.clock.ms += 60_000
    bench.manager.tick(bench.clock.ms)
    bench.manager.checkpoint_high_watermarks({("t", 0): 9})
    bench.background.run()
    bench.manager.delete(TopicPartition("t", 0))
    if is_restarted:
        bench.disk.kill()
        bench.start()
    bench.manager.create(TopicPartition("t", 0), new_uuid())
    bench.append("t", count=3)
    bench.disk.kill()
    bench.start()
    new = bench.manager.get(TopicPartition("t", 0))
    assert new is not None
    assert (new.log_start_offset, new.log_end_offset) == (0, 3)
    # It would count as committed what is not.
    assert bench.manager.high_watermark_checkpoints() == {}


def test_a_log_does_not_begin_where_a_stray_one_of_its_name_did() -> None:
    bench = LogsBench()
    old = bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    bench.append("t", count=10)
    old.advance_log_start_offset(8)
    bench.manager.checkpoint_logs(bench.manager.directories.all[0], wait=True)
    bench.manager.set_aside(TopicPartition("t", 0))
    bench.manager.create(TopicPartition("t", 0), new_uuid())
    bench.append("t", count=3)
    bench.disk.kill()
    bench.start()
    new = bench.manager.get(TopicPartition("t", 0))
    assert new is not None
    assert (new.log_start_offset, new.log_end_offset) == (0, 3)


def test_of_many_logs_that_are_gone_any_name_may_be_one() -> None:
    bench = LogsBench()
    for partition in range(GONE_MAX + 10):
        bench.manager.create(TopicPartition("t", partition), TOPIC_ID)
    bench.manager.create(TopicPartition("kept", 0), TOPIC_ID).append(
        memoryview(client_batch(3, timestamp_ms=NOW_MS)), leader_epoch=0, now_ms=NOW_MS
    )
    for partition in range(GONE_MAX + 10):
        bench.manager.delete(TopicPartition("t", partition))
    bench.clock.ms += 60_000
    points = f"/a/{RECOVERY_POINT_CHECKPOINT}"
    assert not bench.disk.exists(points)
    bench.manager.create(TopicPartition("t", GONE_MAX + 5), TOPIC_ID)
    assert bench.file(points) == "0\n1\nkept 0 0\n"


def test_a_delete_that_was_cut_short_is_completed() -> None:
    bench = LogsBench()
    bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    bench.append("t")
    bench.manager.delete(TopicPartition("t", 0))
    bench.disk.kill()
    bench.start()
    assert bench.manager.get(TopicPartition("t", 0)) is None
    bench.manager.tick(bench.clock.ms)
    bench.background.run()
    assert not [name for name in bench.disk.list_names("/a") if "delete" in name]


def test_a_stray_log_is_kept_under_another_name_and_left_alone_from_then_on() -> None:
    bench = LogsBench()
    bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    bench.append("t")
    name = bench.manager.set_aside(TopicPartition("t", 0))
    assert name.endswith("-stray") and bench.manager.get(TopicPartition("t", 0)) is None
    bench.stop()
    bench.start()
    bench.manager.tick(bench.clock.ms)
    bench.background.run()
    assert name in bench.disk.list_names("/a")
    assert bench.disk.contents(f"/a/{name}/{0:020d}.log")


def test_a_log_without_a_topic_id_takes_the_one_it_gets() -> None:
    bench = LogsBench()
    bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    bench.append("t")
    bench.stop()
    bench.disk.contents("/a/t-0/partition.metadata")[10:] = b""
    bench.start()
    log = bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    assert log.log_end_offset == 1
    assert "topic_id: AAECAwQFBgcICQoLDA0ODw" in bench.file("/a/t-0/partition.metadata")


def test_checkpoints_are_written_when_they_are_due() -> None:
    bench = LogsBench()
    bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    bench.append("t", count=3)
    log = bench.manager.get(TopicPartition("t", 0))
    assert log is not None
    log.flush()
    bench.background.run()
    bench.clock.ms += 60_000
    bench.manager.tick(bench.clock.ms)
    assert not bench.disk.exists("/a/recovery-point-offset-checkpoint")
    bench.background.run()
    assert bench.file("/a/recovery-point-offset-checkpoint") == "0\n1\nt 0 3\n"
    log.advance_log_start_offset(2)
    bench.clock.ms += 60_000
    bench.manager.tick(bench.clock.ms)
    bench.background.run()
    assert bench.file("/a/log-start-offset-checkpoint") == "0\n1\nt 0 2\n"
    bench.disk.kill()
    bench.start()
    log = bench.manager.get(TopicPartition("t", 0))
    assert log is not None
    assert log.log_start_offset == 2


def test_a_tiered_log_loses_no_segment_whose_deletion_a_crash_would_forget() -> None:
    """A follower hears of DeleteRecords from its leader; what the lake does not have yet is else taken for lost."""
    bench = LogsBench()
    bench.config = log_settings(retention_ms=-1, remote_storage_enable=True, segment_bytes=100)
    bench.stop()
    bench.start()
    log = bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    bench.append("t", count=4)
    log.advance_log_start_offset(2)
    bench.clock.ms += 300_000
    bench.manager.tick(bench.clock.ms)
    assert log.first_base_offset == 0
    bench.background.run()
    bench.manager.tick(bench.clock.ms)
    bench.manager.tick(bench.clock.ms + 300_000)
    assert log.first_base_offset == 2
    bench.disk.kill()
    bench.start()
    found = bench.manager.get(TopicPartition("t", 0))
    assert found is not None
    assert (found.log_start_offset, found.first_base_offset) == (2, 2)


def test_a_folder_is_listed_once_after_a_clean_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = LogsBench()
    for partition in range(3):
        bench.manager.create(TopicPartition("t", partition), TOPIC_ID)
    bench.append("t", 1)
    bench.stop()
    listed: list[str] = []
    original = MemoryDisk.list_names

    def list_names(disk: MemoryDisk, directory: str) -> list[str]:
        listed.append(directory)
        return original(disk, directory)

    monkeypatch.setattr(MemoryDisk, "list_names", list_names)
    manager = bench.start()
    assert sorted(listed) == ["/a", "/a/t-0", "/a/t-1", "/a/t-2"]
    assert sum(log.log_end_offset for log in manager.logs()) == 1


@pytest.mark.parametrize("is_known", [True, False])
def test_a_log_that_was_cut_below_its_start_does_not_begin_there_after_a_crash(
    *, is_known: bool
) -> None:
    """Else all that was appended since would be taken for what a crash has left below the start."""
    bench = LogsBench()
    log = bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    bench.append("t", count=10)
    log.advance_log_start_offset(8)
    bench.clock.ms += 60_000
    bench.manager.tick(bench.clock.ms)
    bench.background.run()
    if not is_known:
        bench.disk.kill()
        log = bench.start().create(TopicPartition("t", 0), TOPIC_ID)
    log.truncate_to(5)
    bench.manager.write_recovery_points(log.directory)
    bench.append("t")
    bench.disk.kill()
    log = bench.start().create(TopicPartition("t", 0), TOPIC_ID)
    assert (log.log_start_offset, log.log_end_offset) == (5, 6)


@pytest.mark.parametrize("is_crash", [False, True])
@pytest.mark.parametrize("is_recreated", [False, True])
def test_what_was_not_cleaned_does_not_count_as_clean_after_a_restart(
    *, is_recreated: bool, is_crash: bool
) -> None:
    """A tombstone there would go before what it deletes, which would be back."""
    bench = LogsBench()
    log = bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    bench.append("t", count=10)
    log.compaction.cleaned_to(8)
    bench.manager.checkpoint_cleaned()
    bench.background.run()
    if is_recreated:
        bench.manager.delete(TopicPartition("t", 0))
        bench.manager.create(TopicPartition("t", 0), new_uuid())
    else:
        log.truncate_to(5)
        bench.manager.write_recovery_points(log.directory)
    bench.append("t", count=6)
    if is_crash:
        bench.disk.kill()
    else:
        bench.stop()
    found = bench.start().get(TopicPartition("t", 0))
    assert found is not None and found.log_end_offset > 5
    assert found.compaction.cleaned_offset == (None if is_recreated else 5)


@in_loop
async def test_a_cleaned_part_that_was_truncated_is_written_in_the_background_too() -> None:
    bench = LogsBench()
    log = bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    bench.append("t", count=10)
    log.compaction.cleaned_to(8)
    bench.manager.checkpoint_cleaned()
    bench.background.run()
    log.truncate_to(5)
    writing = asyncio.ensure_future(bench.manager.checkpoint_recovery_points(log.directory))
    for _ in range(5):
        await asyncio.sleep(0)
        bench.background.run()
    await writing
    bench.append("t", count=6)
    bench.disk.kill()
    found = bench.start().get(TopicPartition("t", 0))
    assert found is not None and found.compaction.cleaned_offset == 5


@in_loop
async def test_a_lowered_start_is_written_also_if_an_earlier_write_ends_late() -> None:
    bench = LogsBench()
    log = bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    bench.append("t", count=10)
    for start in (2, 4):
        log.advance_log_start_offset(start)
        writing = asyncio.ensure_future(bench.manager.checkpoint_log_starts())
        await asyncio.sleep(0)
        if start == 4:
            log.advance_log_start_offset(8)
            bench.clock.ms += 60_000
            bench.manager.tick(bench.clock.ms)
        bench.background.run()
        await writing
    log.truncate_to(5)
    bench.manager.write_recovery_points(log.directory)
    bench.append("t")
    bench.disk.kill()
    log = bench.start().create(TopicPartition("t", 0), TOPIC_ID)
    assert (log.log_start_offset, log.log_end_offset) == (5, 6)


def test_the_checkpoint_that_was_asked_for_last_wins() -> None:
    bench = LogsBench()
    bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    bench.background.run()
    for offset in (1, 2):
        bench.manager.checkpoint_high_watermarks({("t", 0): offset})
    bench.background.waiting.reverse()
    bench.background.run()
    assert bench.file("/a/replication-offset-checkpoint") == "0\n1\nt 0 2\n"
    bench.stop()
    bench.start()
    assert bench.manager.high_watermark_checkpoints() == {("t", 0): 2}


def test_a_checkpoint_that_could_not_be_written_at_once_is_written_when_it_is_due() -> None:
    bench = LogsBench()
    bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    bench.disk.failing, bench.disk.failing_with = {"rename"}, errno.ENOSPC
    with pytest.raises(OSError, match="rename"):
        bench.manager.write_recovery_points()
    bench.disk.failing = set()
    bench.clock.ms += 60_000
    bench.manager.tick(bench.clock.ms)
    bench.background.run()
    assert bench.file("/a/recovery-point-offset-checkpoint") == "0\n1\nt 0 0\n"


def test_retention_runs_when_it_is_due() -> None:
    bench = LogsBench()
    config = log_settings(segment_bytes=200, retention_bytes=0, retention_ms=-1)
    log = bench.manager.create(TopicPartition("t", 0), TOPIC_ID, config)
    bench.append("t", count=10)
    bench.manager.tick(bench.clock.ms)
    assert log.log_start_offset == 0
    bench.clock.ms += 300_000
    bench.manager.tick(bench.clock.ms)
    assert log.log_start_offset == 10


def test_each_topic_has_its_own_settings() -> None:
    bench = LogsBench()
    for topic in ("x", "y"):
        bench.manager.create(TopicPartition(topic, 0), TOPIC_ID)
    bench.stop()
    sizes = {"x": 1000, "y": 2000}
    bench.start(config_for=lambda topic: log_settings(segment_bytes=sizes[topic]))
    assert {log.topic: log.config.segment_bytes for log in bench.manager.logs()} == sizes


def test_kafkas_own_metadata_log_is_not_a_topic() -> None:
    bench = LogsBench()
    bench.stop()
    bench.disk.make_directory("/a/__cluster_metadata-0")
    bench.disk.plant("/a/__cluster_metadata-0/00000000000000000000.log", b"x")
    bench.disk.make_directory("/a/somebody-elses-folder")
    bench.start()
    assert list(bench.manager.logs()) == []


def test_a_corrupt_checkpoint_means_more_to_scan() -> None:
    bench = LogsBench()
    bench.manager.create(TopicPartition("t", 0), TOPIC_ID)
    bench.append("t", count=3)
    bench.stop()
    bench.disk.unlink(f"/a/{names.CLEAN_SHUTDOWN}")
    bench.disk.contents(f"/a/{names.RECOVERY_POINT_CHECKPOINT}")[:] = b"0\n7\nt 0"
    bench.start()
    log = bench.manager.get(TopicPartition("t", 0))
    assert log is not None
    assert (log.log_end_offset, log.recovery_point) == (3, 0)


def test_a_log_whose_believed_part_cannot_be_read_is_not_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After a clean stop; its last producer snapshot is lost, and the one before lies behind the damage."""
    bench = LogsBench()
    for topic in ("t", "u"):
        bench.manager.create(TopicPartition(topic, 0), TOPIC_ID)
        bench.append(topic, count=200)
    bench.stop()
    log = "/a/t-0/" + names.file_name(0, names.LOG)
    last = "/a/t-0/" + names.file_name(200, names.PRODUCER_SNAPSHOT)
    bench.disk.plant(
        "/a/t-0/" + names.file_name(30, names.PRODUCER_SNAPSHOT), bench.disk.read_file(last)
    )
    bench.disk.unlink(last)
    batch_bytes = len(bench.disk.contents(log)) // 200
    bench.disk.contents(log)[20 * batch_bytes + 8] ^= 0x41
    bench.start()
    assert [each.topic for each in bench.manager.logs()] == ["u"]
    assert bench.manager.is_damaged(TopicPartition("t", 0), TOPIC_ID)
    assert f"t-0 is offline: t-0: CORRUPT_MESSAGE: {log}: no batch at byte" in caplog.text

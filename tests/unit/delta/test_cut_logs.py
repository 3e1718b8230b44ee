"""A log that others cut: Spark's DROP FEATURE … TRUNCATE HISTORY leaves a day of it, whatever the retention."""

import pytest

from kafka_ds.delta.commit import FateUnknown, PlainChange, VersionsGone
from kafka_ds.delta.log import SEEN_MS, DeltaLog
from kafka_ds.delta.maintenance import write_checkpoint
from kafka_ds.delta.names import commit_file
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.topic.snapshot import TopicSnapshot
from kafka_ds.topic.table import TopicTable
from tests.fakes.clock import ManualClock
from tests.fakes.lake_rows import TOPIC_ID, commit, copy_of

DAY_MS = 86_400_000


def go_on_and_cut(store, clock):
    """Others make versions 1 to 3; a day later they make another and leave what is at or above version 3."""
    other = DeltaLog(store, "table", clock=ManualClock())
    for version in range(3):
        other.commit(other.begin(PlainChange("OTHER")), read_version=version)
    store.put_durable(f"table/_delta_log/{3:020d}.checkpoint.parquet", b"stands for one")
    store.put_durable("table/_delta_log/_last_checkpoint", b'{"version":3}')
    for version in range(3):
        store.delete(f"table/{commit_file(version)}")
    clock.ms += DAY_MS


def test_a_reader_and_a_writer_that_slept_read_anew(tmp_path, clock):
    store = LocalStore(str(tmp_path))
    sleeper, awake = (TopicTable(store, "orders", clock=clock) for _ in range(2))
    for each in (sleeper, awake):
        each.open(TOPIC_ID)
    commit(sleeper, copy_of(sleeper, 0, 0, 9, attempt="0"))
    reader = TopicSnapshot.load(store, "orders", clock=clock)
    commit(awake, copy_of(awake, 0, 10, 19, attempt="1"))
    cut = write_checkpoint(DeltaLog(store, "topics/orders"))
    for each in range(cut + 1):
        store.delete(awake.log.path(commit_file(each)))
    clock.ms += DAY_MS
    assert reader.refresh()
    assert (reader.version, reader.highest_offset_in_remote_storage(0), len(reader.files)) == (
        cut,
        19,
        2,
    )
    done = commit(sleeper, copy_of(sleeper, 0, 20, 29, attempt="2"))
    assert done.version == cut + 1
    assert TopicSnapshot.load(store, "orders").highest_offset_in_remote_storage(0) == 29


def test_who_slept_before_its_commit_makes_no_version_in_the_hole(log, store, clock):
    """In an object store it would be there, and in nobody's table."""
    attempt = log.begin(PlainChange("TEST"))
    go_on_and_cut(store, clock)
    with pytest.raises(VersionsGone):
        log.commit(attempt, read_version=0)
    assert log.read_version(1) is None
    assert attempt.files_may_be_deleted
    assert log.commit(log.begin(PlainChange("TEST")), read_version=log.latest_version()) == 4


def test_an_open_fate_is_not_settled_in_the_hole(log, store, clock):
    attempt = log.begin(PlainChange("TEST"))
    store.refuse(times=20)
    with pytest.raises(FateUnknown):
        log.commit(attempt, read_version=0)
    store.mend()
    go_on_and_cut(store, clock)
    with pytest.raises(VersionsGone):
        log.commit(attempt, read_version=0)
    assert log.read_version(1) is None


def test_a_store_that_does_not_answer_has_lost_no_version(log, store, clock, monkeypatch):
    def away(path):
        if path.endswith(commit_file(0)):
            raise OSError("no answer")

    clock.ms += DAY_MS
    with monkeypatch.context() as failing, pytest.raises(OSError, match="no answer"):
        failing.setattr(store, "size", away)
        log.latest_version()
    listed = store.count("list")
    assert log.latest_version() == 0
    assert store.count("list") == listed
    go_on_and_cut(store, clock)
    assert log.latest_version() == 3


@pytest.mark.parametrize("is_there", [True, False])
def test_the_known_version_is_looked_at_once_a_minute(log, store, clock, monkeypatch, is_there):
    """Each look at an idle table is a request to the store as it is; one that begins at a checkpoint is none more."""
    go_on_and_cut(store, clock)
    if not is_there:
        store.delete(f"table/{commit_file(3)}")
    asked, size = [], store.size
    monkeypatch.setattr(store, "size", lambda path: asked.append(path) or size(path))
    listed = store.count("list")
    for _ in range(10 * SEEN_MS // 1_000):
        assert log.latest_version() == 3
        clock.ms += 1_000
    assert asked.count(f"table/{commit_file(4)}") >= 590
    assert asked.count(f"table/{commit_file(3)}") <= 11
    assert store.count("list") - listed <= 1 + (0 if is_there else 10)

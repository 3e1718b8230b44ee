"""Rewriting a table's files: every reader sees the same rows at every version, whatever happens meanwhile."""

import errno
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake.exceptions import CommitFailedError
from deltalake.schema import Field, PrimitiveType

from broker.worker.delta import optimizer
from broker.worker.delta.optimizer import OPERATION
from broker.worker.errors import StorageError
from broker.worker.sweeper import Sweeper
from kafka_ds.delta.names import commit_file
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.delta.store.store import Store
from kafka_ds.delta.store.uri import open_store
from kafka_ds.ipc.codec import decode, encode
from kafka_ds.process.crash_points import OPTIMIZE_POINTS
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.topic.files import rewrite
from kafka_ds.topic.files.parquet import FileReader, UnreadableFile, write_rows
from kafka_ds.topic.files.rewrite import is_optimized
from kafka_ds.topic.names import is_light_file
from kafka_ds.topic.snapshot import TopicSnapshot
from tests.fakes.deletion_vectors import inline
from tests.fakes.process_death import ProcessDied
from tests.fakes.settings import tier_settings
from tests.integration.filled_lake import fill, optimize, storage_of
from tests.integration.lake_bench import LakeBench, RaisingCrashPoints
from tests.integration.tier_segments import (
    PARTITION,
    TOPIC,
    TOPIC_ID,
    next_offset,
    records,
)

RANGES = 8
END = RANGES * 10


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[LakeBench]:
    """Eight files of ten offsets each, every other one compressed in haste."""
    made = LakeBench("delta", tmp_path)
    made.settings = tier_settings(
        lake_uri=str(tmp_path / "lake"), node_id=1, lake_maintenance_min_files=4
    )
    for start in range(0, END, 10):
        fill(made, start)
    yield made


def snapshot(lake: LakeBench, version: int | None = None) -> TopicSnapshot:
    return TopicSnapshot.load(open_store(str(lake.root / "lake")), TOPIC, version)


def table(lake: LakeBench, version: int | None = None) -> deltalake.DeltaTable:
    return deltalake.DeltaTable(lake.root / "lake" / "topics" / TOPIC, version=version)


def offsets(lake: LakeBench, version: int | None = None) -> list[int]:
    """As another engine reads it."""
    rows = table(lake, version).to_pyarrow_table(columns=["offset"])
    return sorted(rows["offset"].to_pylist())


def last_commit(lake: LakeBench) -> list[dict[str, Any]]:
    found = snapshot(lake)
    actions = found.log.read_version(found.version)
    assert actions is not None
    return actions


def scramble(lake: LakeBench) -> None:
    """Z-order by something that has nothing to do with offsets."""
    table(lake).optimize.z_order(["value"])


def compressions(lake: LakeBench) -> set[str]:
    """The compression of the table's files; asserts that exactly those without zstd are named as light."""
    found = snapshot(lake)
    reader = FileReader(found.log.store)
    codecs = {
        each.path: reader.footer(each.path).metadata.row_group(0).column(0).compression
        for each in found.index.files(0)
    }
    assert all(is_light_file(path) == (codec != "ZSTD") for path, codec in codecs.items())
    return set(codecs.values())


def lie_well(lake: LakeBench) -> bool:
    found = snapshot(lake)
    reader = FileReader(found.log.store)
    files = found.index.files(0)
    return all(is_optimized(reader, each) for each in files) and all(
        one.max_offset < other.min_offset for one, other in zip(files, files[1:], strict=False)
    )


@pytest.mark.parametrize(
    "pack", [lambda it: it.optimize.compact(), lambda it: it.optimize.z_order(["key"])]
)
def test_another_engine_s_packing_does_not_win_over_a_new_layout(
    lake: LakeBench, pack: Callable[[deltalake.DeltaTable], Any]
) -> None:
    """delta-rs overlooks a removal that changes no data: with both commits each row would be there twice."""
    slow = table(lake)
    optimize(storage_of(lake))
    with pytest.raises(CommitFailedError, match="Metadata changed"):
        pack(slow)
    assert offsets(lake) == list(range(END))
    pack(table(lake))
    assert offsets(lake) == list(range(END))


def test_properties_that_are_set_while_a_layout_is_written_stay(lake: LakeBench) -> None:
    storage = storage_of(lake)

    def and_set_a_property() -> bool:
        if not asked:
            asked.append(
                table(lake).alter.set_table_properties({"delta.dataSkippingNumIndexedCols": "3"})
            )
        return True

    asked: list[None] = []
    assert optimize(storage, goes_on=and_set_a_property).files_after == 1
    assert snapshot(lake).configuration["delta.dataSkippingNumIndexedCols"] == "3"


def test_small_files_become_one_and_nothing_else_changes(lake: LakeBench) -> None:
    before = table(lake).to_pyarrow_table().sort_by("offset")
    assert compressions(lake) == {"SNAPPY", "ZSTD"}
    state = storage_of(lake).state(PARTITION)
    done = optimize(storage_of(lake))
    assert (done.files_before, done.files_after, done.rows) == (RANGES, 1, END)
    assert (done.is_done, done.lost, done.reasons) == (True, 0, {"small": 1})
    # As the worker answers it: what cannot be sent would end its thread.
    assert decode(encode(done)[0]) == done
    assert table(lake).to_pyarrow_table().sort_by("offset") == before
    assert lake.records() == records(0, END)
    assert storage_of(lake).state(PARTITION) == state
    assert compressions(lake) == {"ZSTD"}
    (entry,) = snapshot(lake).index.files(0)
    assert (entry.rows, entry.min_offset, entry.max_offset) == (END, 0, END - 1)
    assert (entry.partition, entry.null_timestamps) == (0, 0)
    assert optimize(storage_of(lake)).files_before == 0, "once is enough"
    fill(lake, END)
    assert lake.records() == records(0, END + 10)


def test_the_commit_is_no_change_of_data(lake: LakeBench) -> None:
    """Streams, Delta's as ours, do not see a row again; older versions stay as they were."""
    version = snapshot(lake).version
    optimize(storage_of(lake))
    actions = last_commit(lake)
    moved = [each for action in actions for each in action.values() if "dataChange" in each]
    assert len(moved) == RANGES + 1 and not any(each["dataChange"] for each in moved)
    info = actions[0]["commitInfo"]
    assert (info["operation"], info["isBlindAppend"]) == (OPERATION, False)
    assert info["kafkaDs"]["partitions"][0]["leaderEpoch"] == 3
    (add,) = [each["add"] for each in actions if "add" in each]
    assert json.loads(add["stats"])["numRecords"] == END
    assert set(json.loads(add["stats"])["minValues"]) == {"offset", "timestamp"}
    assert offsets(lake, version) == offsets(lake) == list(range(END))


@pytest.mark.parametrize("point", OPTIMIZE_POINTS)
def test_killed_between_two_steps_each_record_is_there_once(lake: LakeBench, point: str) -> None:
    with pytest.raises(ProcessDied):
        optimize(storage_of(lake, point))
    assert offsets(lake) == list(range(END))
    assert lake.records() == records(0, END)
    done = optimize(storage_of(lake))
    assert done.files_after == (0 if point == "after_optimize_commit" else 1)
    assert offsets(lake) == list(range(END))
    assert lake.records() == records(0, END)


class Script:
    """Deletes, once, the files that are new, which no version names yet."""

    def __init__(self, lake: LakeBench, *, takes_old_ones: bool = False) -> None:
        self._folder = lake.root / "lake" / "topics" / TOPIC
        self._before = self._files()
        self._takes_old_ones = takes_old_ones
        self.taken: set[Path] = set()

    def _files(self) -> set[Path]:
        return {*self._folder.glob("partition=0/*.parquet")}

    def __call__(self) -> bool:
        """As `goes_on`, which is asked before a commit, too."""
        files = self._files()
        if not self.taken and files > self._before:
            self.taken = files if self._takes_old_ones else files - self._before
            for each in self.taken:
                each.unlink()
        return True


@pytest.mark.parametrize("old_ones_too", [False, True])
def test_files_that_are_deleted_before_their_commit_are_written_again(
    lake: LakeBench, caplog: pytest.LogCaptureFixture, old_ones_too: bool
) -> None:
    """A script deletes what no version names, and announces nothing."""
    script = Script(lake, takes_old_ones=old_ones_too)
    if old_ones_too:
        with pytest.raises(StorageError, match="cannot be rewritten"):
            optimize(storage_of(lake), goes_on=script)
        assert "is missing, and cannot be rewritten" in caplog.text
        return
    done = optimize(storage_of(lake), goes_on=script)
    assert (len(script.taken), done.files_before, done.files_after) == (1, RANGES, 1)
    assert offsets(lake) == list(range(END))
    assert lake.records() == records(0, END)
    assert f"{script.taken.pop().name} was rewritten from the old files" in caplog.text


@pytest.mark.parametrize(
    "point", ["after_optimize_commit", "after_repair_file", "after_repair_commit"]
)
@pytest.mark.parametrize("is_large", [False, True])
def test_killed_between_two_steps_a_lost_rewrite_is_written_again(
    lake: LakeBench, point: str, is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next worker looks for all files of a partition, once. It is killed, too."""
    if is_large:
        scramble(lake)
        monkeypatch.setattr(rewrite, "WINDOW_BYTES", 1000)
        lake.settings = tier_settings(
            lake_uri=lake.settings.lake_uri, lake_maintenance_file_bytes=2000
        )
    script = Script(lake)
    with pytest.raises(ProcessDied):
        optimize(storage_of(lake, point), goes_on=script)
    assert script.taken
    if point != "after_repair_commit":
        with pytest.raises(ProcessDied):
            optimize(storage_of(lake, "after_repair_commit"))
    worker = storage_of(lake)
    version = snapshot(lake).version
    assert optimize(worker).is_done
    assert offsets(lake) == list(range(END))
    assert lake.records() == records(0, END)
    assert is_large or snapshot(lake).version == version
    files = snapshot(lake).files
    assert (len(files) > 1) is is_large
    table(lake).vacuum(0, enforce_retention_duration=False, dry_run=False)
    assert offsets(lake) == list(range(END))


def test_a_rewrite_that_the_store_hid_after_its_commit_is_looked_for_again(
    lake: LakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, script, size = storage_of(lake), Script(lake), LocalStore.size
    failures = [OSError("the store is away")]

    def away_once(self: LocalStore, path: str) -> int | None:
        if script.taken and path.endswith(".parquet") and failures:
            raise failures.pop()
        return size(self, path)

    monkeypatch.setattr(LocalStore, "size", away_once)
    with pytest.raises(OSError, match="away"):
        optimize(worker, goes_on=script)
    assert script.taken
    assert optimize(worker).is_done
    assert offsets(lake) == list(range(END))


@pytest.mark.parametrize("is_erased", [False, True])
def test_what_no_rewrite_holds_is_an_error_once(
    lake: LakeBench, caplog: pytest.LogCaptureFixture, is_erased: bool
) -> None:
    """A file that a copy wrote, and one of whose rows some were erased since: they do not come back."""
    if is_erased:
        optimize(storage_of(lake))
        erase_by_vector(lake, range(3))
    lost = snapshot(lake).index.files(0)[0]
    path = lake.root / "lake" / lost.path
    kept = path.read_bytes()
    path.unlink()
    worker = storage_of(lake)
    for _ in range(2):
        done = optimize(worker)
        assert done.is_done
        assert done.lost_ranges == [(0, lost.max_offset)]
    assert lost.path in snapshot(lake).files, "it may be put back by hand"
    said = f"{TOPIC}-0: {lost.path} with offsets 0 to {lost.max_offset} is missing"
    assert caplog.text.count(said) == 1
    path.write_bytes(kept)
    assert not optimize(worker).lost_ranges


def test_a_rewrite_is_not_made_of_damaged_files(
    lake: LakeBench, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told of, and the rest of the partition is optimized."""
    before = [lake.root / "lake" / each for each in snapshot(lake).files]
    optimize(storage_of(lake))
    lost = snapshot(lake).index.files(0)[0]
    (lake.root / "lake" / lost.path).unlink()
    for each in before:
        each.write_bytes(each.read_bytes()[:-8] + bytes(8))
    worker = storage_of(lake)
    for _ in range(2):
        assert optimize(worker).is_done
    assert caplog.text.count("is missing, and what it was rewritten from is damaged") == 1


def erase_by_vector(lake: LakeBench, positions: range) -> None:
    """As an engine erases that writes deletion vectors."""
    found = snapshot(lake)
    version, log = found.version, found.log
    (add,) = [each["add"] for each in log.read_version(version) or () if "add" in each]
    protocol = {
        "minReaderVersion": 3, "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors", "appendOnly", "invariants"],
    }  # fmt: skip
    removal = next(iter(found.files.values())).removal(0)
    erased = {**add, "dataChange": True, "deletionVector": inline(positions)}
    actions = [
        {"commitInfo": {"operation": "DELETE"}},
        {"protocol": protocol},
        removal,
        {"add": erased},
    ]
    path = lake.root / "lake" / "topics" / TOPIC / commit_file(version + 1)
    path.write_text("\n".join(map(json.dumps, actions)))


def test_who_reads_meanwhile_reads_on(lake: LakeBench) -> None:
    reading, planned = storage_of(lake), snapshot(lake)
    first = reading.reader.read(PARTITION, 0, max_bytes=1, committed_only=True)
    optimize(storage_of(lake))
    following = reading.reader.read(
        PARTITION, next_offset(first.chunks), max_bytes=1 << 20, committed_only=True
    )
    assert following.chunks
    assert all(planned.log.store.size(path) for path in planned.files), "old files stay for plans"


@pytest.mark.parametrize("is_large", [False, True])
def test_what_others_have_scattered_is_put_in_order(
    lake: LakeBench, is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one go, or each file for itself and then all together, window by window."""
    scramble(lake)
    assert not lie_well(lake)
    if is_large:
        monkeypatch.setattr(rewrite, "WINDOW_BYTES", 1000)
        lake.settings = tier_settings(
            lake_uri=lake.settings.lake_uri, lake_maintenance_file_bytes=2000
        )
    done = optimize(storage_of(lake))
    assert done.reasons["unsorted"] >= 1 and done.is_done
    assert lie_well(lake)
    assert (len(snapshot(lake).index.files(0)) > 1) is is_large
    assert offsets(lake) == list(range(END))
    assert lake.records() == records(0, END)


def test_files_that_overlap_are_merged_in_order(lake: LakeBench) -> None:
    everything = table(lake).to_pyarrow_table().sort_by("offset")
    # Two files that interleave, each of them in order.
    rows = [everything.take(pa.array(range(at, END, 2))) for at in (0, 1)]
    lay_by_hand(lake, rows)
    assert len(snapshot(lake).index.find(0, 40, 41)) == 2
    done = optimize(storage_of(lake))
    assert (done.files_before, done.files_after) == (2, 1)
    assert lie_well(lake) and lake.records() == records(0, END)


def lay_by_hand(lake: LakeBench, tables: list[pa.Table], name: str = "by-hand") -> None:
    """As some engine might: these files for all that are there."""
    from kafka_ds.delta.actions import add_action, remove_action
    from kafka_ds.delta.commit import PlainChange

    found = snapshot(lake)
    actions: list[dict[str, Any]] = []
    for number, rows in enumerate(tables):
        path = lake.root / "lake" / "topics" / TOPIC / "partition=0" / f"{name}-{number}.parquet"
        pa.parquet.write_table(rows.drop_columns(["partition"]), path)
        actions.append(
            add_action(
                path=f"partition=0/{path.name}",
                partition_values={"partition": "0"},
                size=path.stat().st_size,
                modified_ms=1,
                stats=json.dumps({"numRecords": rows.num_rows}),
                data_change=False,
            )
        )
    for entry in found.files.values():
        actions.append(
            remove_action(
                path=entry.action_path,
                partition_values={"partition": "0"},
                size=entry.size,
                deleted_ms=1,
                data_change=False,
            )
        )
    found.log.commit(
        found.log.begin(PlainChange("BY HAND", actions=actions)), read_version=found.version
    )


def test_an_offset_that_is_there_twice_is_left_to_its_owner(
    lake: LakeBench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = table(lake).to_pyarrow_table().sort_by("offset")
    twice = [everything.slice(0, 50), everything.slice(49)]
    lay_by_hand(lake, twice)
    storage = storage_of(lake)
    before = snapshot(lake).version
    assert optimize(storage).files_before == 0
    assert "which cannot be rewritten: an offset of" in caplog.text
    assert optimize(storage).files_before == 0 and snapshot(lake).version == before
    assert not list((lake.root / "lake" / "topics" / TOPIC / "partition=0").glob("*.tmp"))
    monkeypatch.setattr(optimizer, "FILES_KNOWN_MAX", 2)
    lay_by_hand(lake, twice, "anew")
    assert optimize(storage).files_before == 0
    assert len(storage.optimizer.passed_over) == 2, "and not of all files that ever were"


def test_others_erase_a_row_meanwhile(lake: LakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their commit was first: ours is given up, and what they erased does not come again."""
    storage = storage_of(lake)
    rewrite_files = rewrite.rewrite_files

    def erase_first(*arguments: Any, **more: Any) -> rewrite.RewrittenFiles:
        made = rewrite_files(*arguments, **more)
        if len(snapshot(lake).files) == RANGES and 41 in offsets(lake):
            table(lake).delete('"offset" = 41')
        return made

    monkeypatch.setattr("broker.worker.delta.optimizer.rewrite_files", erase_first)
    done = optimize(storage)
    expected = [each for each in range(END) if each != 41]
    assert (done.lost, done.files_after) == (1, 1)
    assert offsets(lake) == expected
    found = snapshot(lake)
    assert [each.rows for each in found.files.values()] == [END - 1]
    assert found.complaints() == []
    names = {path.rpartition("/")[2] for path in found.files}
    folder = lake.root / "lake" / "topics" / TOPIC / "partition=0"
    ours = {each.name for each in folder.iterdir() if each.name.startswith("0" * 20)}
    assert len(ours - names) == 1, "of what was given up nothing is left, of the copies one is"


def test_what_a_disk_that_fails_has_taken_already_goes(
    lake: LakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No commit names these files, and each retry would leave as many again."""
    scramble(lake)
    monkeypatch.setattr(rewrite, "WINDOW_BYTES", 1000)
    lake.settings = tier_settings(lake_uri=lake.settings.lake_uri, lake_maintenance_file_bytes=2000)
    folder = lake.root / "lake" / "topics" / TOPIC / "partition=0"
    before, written = set(folder.iterdir()), []

    def fails_at_the_second(store: Store, path: str, *arguments: Any, **more: Any) -> Any:
        written.append(path)
        if len(written) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_rows(store, path, *arguments, **more)

    monkeypatch.setattr(rewrite, "write_rows", fails_at_the_second)
    with pytest.raises(OSError, match="No space"):
        optimize(storage_of(lake))
    assert len(written) == 2 and set(folder.iterdir()) == before
    assert optimize(storage_of(lake)).is_done


def test_a_damaged_file_of_others_is_named(lake: LakeBench) -> None:
    scramble(lake)
    (entry,) = snapshot(lake).index.files(0)
    path = lake.root / "lake" / entry.path
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(196)
    path.write_bytes(data)
    with pytest.raises(UnreadableFile, match=path.name):
        is_optimized(FileReader(open_store(str(lake.root / "lake"))), entry)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(196)
    path.write_bytes(data)


def test_one_damaged_file_keeps_no_other_as_it_lies(
    lake: LakeBench, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither one of others, which is looked into before, nor one of ours, which is found out while it is rewritten."""
    everything = table(lake).to_pyarrow_table().sort_by("offset")
    lay_by_hand(lake, [everything.slice(0, 10), everything.slice(10)])
    theirs, _ = snapshot(lake).index.files(0)
    damage(lake.root / "lake" / theirs.path)
    for start in range(END, 2 * END, 10):
        fill(lake, start)
    ours = snapshot(lake).index.files(0)[-2]
    damage(lake.root / "lake" / ours.path)
    storage = storage_of(lake)
    assert optimize(storage).reasons == {"small": 1}
    left = [each.path for each in snapshot(lake).index.files(0)]
    assert {theirs.path, ours.path} <= {*left}
    assert len(left) == 4, "both, what lay between, what lies behind"
    assert optimize(storage).reasons == {}
    said = [each.message for each in caplog.records if "which cannot be rewritten" in each.message]
    assert [sum(path in each for each in said) for path in (theirs.path, ours.path)] == [1, 1]
    folder = lake.root / "lake" / "topics" / TOPIC / "partition=0"
    assert len(list(folder.glob("0*.parquet"))) == 2 * RANGES + 1, "nothing of what was given up"


def test_a_store_that_is_away_is_asked_again(
    lake: LakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not taken for files that are damaged."""
    scramble(lake)
    storage = storage_of(lake)

    def away(*_: object, **__: object) -> Any:
        raise OSError("connection reset")

    with monkeypatch.context() as patch:
        patch.setattr("kafka_ds.delta.store.local.LocalStore.read_range", away)
        patch.setattr("kafka_ds.delta.store.local.LocalStore.local_path", lambda *_: None)
        with pytest.raises(StorageError, match="connection reset"):
            optimize(storage)
    assert optimize(storage).files_before == 1


def test_what_delta_rs_has_erased_is_laid_around_the_log_start(lake: LakeBench) -> None:
    """Its files have views (`binary_view`) for bytes, which Arrow cannot filter."""
    table(lake).alter.add_columns([Field("note", PrimitiveType("string"))])
    table(lake).optimize.compact()
    table(lake).update(predicate='"offset" < 60', updates={"note": "'x'"})
    table(lake).delete('"offset" = 41')
    storage = storage_of(lake)
    storage.set_log_start(PARTITION, leader_epoch=3, offset=50)
    for start in range(END, 2 * END, 10):
        fill(lake, start)
    assert optimize(storage).expired_rows == 49
    assert offsets(lake) == [*range(50, 2 * END)]
    notes = table(lake).to_pyarrow_table(columns=["offset", "note"]).sort_by("offset")
    assert notes["note"].to_pylist() == ["x"] * 10 + [None] * (2 * END - 60)


def test_a_column_of_others_goes_with_its_rows(lake: LakeBench) -> None:
    table(lake).alter.add_columns([Field("note", PrimitiveType("long"))])
    table(lake).update(predicate='"offset" < 20', new_values={"note": "7"})
    before = table(lake).to_pyarrow_table().sort_by("offset")
    assert before["note"].to_pylist().count(7) == 20
    assert optimize(storage_of(lake)).is_done and len(snapshot(lake).files) == 1
    assert table(lake).to_pyarrow_table().sort_by("offset") == before
    assert lake.records() == records(0, END)


def test_a_leader_that_was_deposed_lays_nothing(lake: LakeBench) -> None:
    storage_of(lake).fence(TOPIC, TOPIC_ID, {0: 5})
    before = snapshot(lake).version
    with pytest.raises(StorageError, match="leader epoch 5 wrote"):
        optimize(storage_of(lake), epoch=4)
    assert optimize(storage_of(lake), epoch=5, goes_on=lambda: False).files_before == 0
    assert snapshot(lake).version == before
    written = list((lake.root / "lake" / "topics" / TOPIC / "partition=0").iterdir())
    assert len(written) == RANGES, "what was written for nothing is gone"
    other = bytes(16 * [9])
    done = storage_of(lake).optimizer.optimize(TopicIdPartition(other, TOPIC, 0), leader_epoch=9)
    assert done.files_before == 0, "another incarnation's table is not touched"


def begin_at(lake: LakeBench, offset: int) -> None:
    storage_of(lake).set_log_start(PARTITION, leader_epoch=3, offset=offset)


def test_the_table_s_history_says_what_each_commit_did(lake: LakeBench) -> None:
    """As `DeltaTable.history` and DESCRIBE HISTORY show it, under Delta's names."""
    storage = storage_of(lake)
    storage.set_log_start(PARTITION, leader_epoch=3, offset=25)
    storage.remove_below(PARTITION, leader_epoch=3, offset=20)
    optimize(storage, rewrites_any_expired=True)
    history = table(lake).history()
    versions = range(table(lake).version(), -1, -1)
    assert [each.get("readVersion", -1) for each in history] == [each - 1 for each in versions]
    assert all(each["engineInfo"].startswith("kafka-ds/") for each in history)
    did = {each["operation"]: each for each in reversed(history)}
    sizes = {each.path.rpartition("/")[2]: each.size for each in snapshot(lake).index.files(0)}
    copied = did["TIER"]["operationMetrics"]
    assert (copied["numFiles"], copied["numOutputRows"]) == ("1", "10")
    assert int(copied["numOutputBytes"]) > 0
    assert (did["TIER"]["isBlindAppend"], did["TIER"]["isolationLevel"]) == (True, "Serializable")
    expired = did["DELETE"]["operationMetrics"]
    assert {name: expired[name] for name in expired if not name.endswith("Bytes")} == {
        "numAddedFiles": "0",
        "numRemovedFiles": "2",
        "numDeletedRows": "20",
        "numCopiedRows": "0",
    }
    assert (expired["numAddedBytes"], did["DELETE"]["isBlindAppend"]) == ("0", False)
    assert "operationMetrics" not in did["SET LOG START"], "nothing happened to a file"
    parameters = {name: did[name]["operationParameters"] for name in did if name != "FENCE"}
    assert parameters["SET LOG START"] == {"partition": "0", "offset": "25"}
    assert parameters["DELETE"] == {"partition": "0", "belowOffset": "20"}
    assert set(parameters["OPTIMIZE"]) == {"partition", "reason"}
    laid = [each["operationMetrics"] for each in history if each["operation"] == OPERATION]
    assert sum(int(each.get("numDeletedRows", "0")) for each in laid) == 5
    assert int(laid[0]["numAddedBytes"]) in sizes.values()


def test_expired_rows_go_before_their_file_does(lake: LakeBench) -> None:
    optimize(storage_of(lake))
    begin_at(lake, 30)
    assert optimize(storage_of(lake)).files_before == 0, "less than half"
    begin_at(lake, 45)
    done = optimize(storage_of(lake))
    assert (done.rows, done.expired_rows, dict(done.reasons)) == (35, 45, {"expired": 1})
    assert offsets(lake) == list(range(45, END))
    # A stream that follows takes it as a deletion, and brings no row again.
    actions = last_commit(lake)
    assert [each["add"]["dataChange"] for each in actions if "add" in each] == [False]
    assert [each["remove"]["dataChange"] for each in actions if "remove" in each] == [True]
    assert [each for each in lake.records(45) if each.offset >= 45] == records(45, 35)


def test_the_segments_of_expired_rows_can_be_said_to_be_gone(lake: LakeBench) -> None:
    """What straddled held their horizon back."""
    optimize(storage_of(lake))
    begin_at(lake, 50)
    copier, storage, metadata = lake.open()
    sweeper = Sweeper(storage, metadata, copier, RaisingCrashPoints())
    assert sweeper.sweep(PARTITION, 3).segments == 0
    optimize(storage_of(lake))
    assert sweeper.sweep(PARTITION, 3).segments == 5


def test_any_expired_row_goes_where_that_is_asked_for(lake: LakeBench) -> None:
    begin_at(lake, 11)
    assert optimize(storage_of(lake)).expired_rows == 0
    assert optimize(storage_of(lake), rewrites_any_expired=True).expired_rows == 1
    # The file that lies wholly below is retention's to take out.
    assert offsets(lake) == [*range(10), *range(11, END)]


@pytest.mark.parametrize("seed", range(3))
def test_at_every_version_each_offset_is_there_once(
    lake: LakeBench, seed: int, make_round: Callable[[LakeBench, random.Random, set[int]], None]
) -> None:
    lots, erased = random.Random(seed), set[int]()
    for _ in range(6):
        make_round(lake, lots, erased)
        optimize(storage_of(lake))
        end = storage_of(lake).state(PARTITION).highest_offset_in_remote_storage
        assert offsets(lake) == [each for each in range(end + 1) if each not in erased]
    for version in range(snapshot(lake).version + 1):
        found = offsets(lake, version)
        assert len(found) == len(set(found))
    assert {each.offset for each in lake.records()} == set(offsets(lake))


@pytest.fixture
def make_round() -> Callable[[LakeBench, random.Random, set[int]], None]:
    def go(lake: LakeBench, lots: random.Random, erased: set[int]) -> None:
        """What another engine, or a copy, does to the table."""
        match lots.choice(["copy", "copy", "compact", "z-order", "delete"]):
            case "copy":
                fill(
                    lake,
                    storage_of(lake).state(PARTITION).highest_offset_in_remote_storage + 1,
                )
            case "compact":
                table(lake).optimize.compact()
            case "z-order":
                scramble(lake)
            case "delete":
                offset = lots.randrange(END)
                erased.add(offset)
                table(lake).delete(f'"offset" = {offset}')

    return go

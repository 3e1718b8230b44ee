"""A copy of a lake whose objects come in any order: what is shown of it is whole, and in the end all of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from broker.metadata.events import ClusterCreated, ControllerChange, Event
from broker.metadata.image import MetadataImage
from broker.metadata.log import SNAPSHOT_INTERVAL, MetadataLog, begins_with_snapshot, replay_commit
from kafka_ds.delta.actions import add_action, remove_action
from kafka_ds.delta.arrivals import ArrivedCommit, NeededFile, commit_of, last_whole
from kafka_ds.delta.arrived_store import RELIST_MS, ArrivedStore
from kafka_ds.delta.commit import PlainChange
from kafka_ds.delta.log import SEEN_MS, DeltaLog
from kafka_ds.delta.maintenance import write_checkpoint
from kafka_ds.delta.names import commit_file
from kafka_ds.delta.schema import delta_schema_json
from kafka_ds.delta.snapshot import NoSuchTable, TableSnapshot
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.delta.table_writer import TableWriter
from kafka_ds.topic.schemas import OFFSETS_SCHEMA
from tests.fakes.log_clock import ManualLogClock
from tests.fakes.store import MemoryStore, new_log

TABLE = "t"
VERSIONS = 40


@dataclass
class Source:
    """A table that is written, checkpointed, vacuumed and cleaned up, and what was done for that, in order."""

    folder: Path
    random: Random

    def __post_init__(self) -> None:
        self.store = LocalStore(str(self.folder))
        self.clock = ManualLogClock()
        self.log = DeltaLog(self.store, TABLE, clock=self.clock)
        self.table = TableWriter(self.log)
        self.events: list[tuple[str, bytes | None]] = []
        self.states: dict[int, set[str]] = {}
        self.gone: set[str] = set()
        self._known: dict[str, bytes] = {}

    def note(self) -> None:
        """What has changed in the folder since, as the store replicates it."""
        now = {
            str(each.relative_to(self.folder)): each.read_bytes()
            for each in sorted(self.folder.rglob("*"))
            if each.is_file()
        }
        for path, body in now.items():
            if self._known.get(path) != body:
                self.events.append((path, body))
        for path in sorted(self._known.keys() - now.keys()):
            self.events.append((path, None))
        self._known = now

    def fill(self) -> None:
        self.log.create(
            schema_json=delta_schema_json(OFFSETS_SCHEMA),
            partition_columns=("broker_id",),
            configuration={},
        )
        live: list[str] = []
        self.states[0] = set()
        self.note()
        for number in range(1, VERSIONS + 1):
            actions = []
            for name in self.random.sample(live, min(len(live), self.random.randint(0, 2))):
                live.remove(name)
                self.gone.add(name)
                actions.append(
                    remove_action(
                        path=name, partition_values={"broker_id": "1"}, size=len(name), deleted_ms=1
                    )
                )
            for index in range(self.random.randint(0, 2)):
                name = f"broker_id=1/{number}-{index}.parquet"
                self.store.put_durable(f"{TABLE}/{name}", name.encode())
                live.append(name)
                actions.append(
                    add_action(
                        path=name,
                        partition_values={"broker_id": "1"},
                        size=len(name),
                        modified_ms=1,
                        stats='{"numRecords":1}',
                    )
                )
            change = PlainChange("WRITE", actions=actions, check=lambda *_: None)
            version = self.table.commit(self.table.begin(change), read_version=number - 1)
            assert version == number
            self.states[version] = {f"{TABLE}/{each}" for each in live}
            self.note()
            if number % 10 == 0:
                write_checkpoint(self.log)
                self.note()
            if number % 15 == 0 and self.gone:
                # A vacuum.
                for name in sorted(self.gone):
                    self.store.delete(f"{TABLE}/{name}")
                self.gone.clear()
                self.note()
            if number == 25:
                for version in range(12):
                    self.store.delete(f"{TABLE}/{commit_file(version)}")
                self.store.delete(f"{TABLE}/_delta_log/{10:020d}.checkpoint.parquet")
                self.note()


def begun_at(events: list[tuple[str, bytes | None]], begun: int) -> list[tuple[str, bytes | None]]:
    """What a copy gets that is begun after so many of these: what is there by then, and all that comes."""
    there: dict[str, bytes | None] = {}
    for path, body in events[:begun]:
        there[path] = body
    return [(path, body) for path, body in there.items() if body is not None] + events[begun:]


def replicated(
    events: list[tuple[str, bytes | None]], target: Path, random: Random
) -> Iterator[str]:
    """Carry these out in any order, but those of one object in theirs.

    Files are deleted days after a version has removed them: by then everything from before has come.
    """
    left = list(events)
    while left:
        at = min(len(left) - 1, int(random.expovariate(1 / 15)))
        path, body = left[at]
        if body is None or any(each == path for each, _ in left[:at]):
            at = 0
        path, body = left.pop(at)
        file = target / path
        if body is None:
            file.unlink(missing_ok=True)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(body)
        yield path


@pytest.mark.parametrize("seed", range(20))
def test_a_reader_sees_whole_versions_alone_and_in_the_end_the_last(
    seed: int, tmp_path: Path
) -> None:
    random = Random(seed)
    source = Source(tmp_path / "source", random)
    source.fill()
    target = tmp_path / "target"
    clock = ManualLogClock()
    store = ArrivedStore(LocalStore(str(target)), clock=clock)
    follower = TableSnapshot(DeltaLog(store, TABLE, clock=clock))
    last, seen = {"fresh": -1, "follower": -1}, set()
    events = begun_at(source.events, random.randint(0, len(source.events)))
    for _ in replicated(events, target, random):
        clock.advance(RELIST_MS)
        fresh = TableSnapshot(DeltaLog(store, TABLE, clock=clock))
        for who, snapshot in (("fresh", fresh), ("follower", follower)):
            try:
                snapshot.refresh()
            except NoSuchTable:
                assert last[who] < 0
                continue
            assert set(snapshot.files) == source.states[snapshot.version], snapshot.version
            # A reader that a leap has left behind looks for a later checkpoint after SEEN_MS alone.
            for path in snapshot.files if snapshot.version == fresh.version else ():
                assert (target / path).exists(), f"version {snapshot.version} needs {path}"
            assert snapshot.version >= last[who]
            last[who] = snapshot.version
            seen.add(snapshot.version)
    assert last["fresh"] == VERSIONS
    assert seen
    # After a leap over versions that never came whole it looks for a later checkpoint, as after any clean-up.
    clock.advance(SEEN_MS + 1)
    follower.refresh()
    assert follower.version == VERSIONS
    (arrival,) = store.arrivals()
    assert (arrival.version, arrival.newest, arrival.waits_for, arrival.since_ms) == (
        VERSIONS, VERSIONS, "", 0,
    )  # fmt: skip


def test_what_is_waited_for_is_said(tmp_path: Path) -> None:
    source = Source(tmp_path / "source", Random(1))
    source.fill()
    target = tmp_path / "target"
    shutil.copytree(tmp_path / "source", target)
    clock = ManualLogClock()
    store = ArrivedStore(LocalStore(str(target)), clock=clock)
    table = TableSnapshot(DeltaLog(store, TABLE, clock=clock))
    table.read()
    late = target / TABLE / commit_file(VERSIONS + 1)
    body = json.dumps({"commitInfo": {"timestamp": 77}}) + "\n"
    body += json.dumps(
        add_action(path="new.parquet", partition_values={}, size=3, modified_ms=1, stats="")
    )
    late.write_text(body)
    # Its size is another as long as it is being written.
    (target / TABLE / "new.parquet").write_bytes(b"ne")
    table.refresh()
    assert table.version == VERSIONS
    (arrival,) = store.arrivals()
    assert (arrival.version, arrival.newest) == (VERSIONS, VERSIONS + 1)
    assert (arrival.waits_for, arrival.since_ms) == (f"{TABLE}/new.parquet", 77)
    (target / TABLE / "new.parquet").write_bytes(b"new")
    table.refresh()
    assert table.version == VERSIONS + 1
    # A hole in the log.
    (target / TABLE / commit_file(VERSIONS + 3)).write_text(body)
    clock.advance(100 * RELIST_MS)
    table.refresh()
    (arrival,) = store.arrivals()
    assert (arrival.version, arrival.newest) == (VERSIONS + 1, VERSIONS + 3)
    assert arrival.waits_for == f"{TABLE}/{commit_file(VERSIONS + 2)}"


@pytest.mark.parametrize("seed", range(6))
def test_the_metadata_are_followed_without_a_gap(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    writer = MetadataLog(LocalStore(str(tmp_path / "source")))
    image = writer.load()
    events: list[Event] = [ClusterCreated(cluster_id="c")]
    states: dict[int, int] = {}
    for epoch in range(1, 2 * SNAPSHOT_INTERVAL + 30):
        events.append(ControllerChange(controller_id=1, controller_epoch=epoch))
        version = writer.commit(writer.begin(events, image))
        replay_commit(image, version, events)
        states[version], events = epoch, []
    source, target = tmp_path / "source", tmp_path / "target"
    objects: list[tuple[str, bytes | None]] = [
        (str(each.relative_to(source)), each.read_bytes())
        for each in sorted(source.rglob("*.json"))
    ]
    if seed % 2:
        # The first ones were cleaned up before they came.
        objects = objects[SNAPSHOT_INTERVAL + 5 :]
    clock = ManualLogClock()
    store = ArrivedStore(LocalStore(str(target)), is_beginning=begins_with_snapshot, clock=clock)
    reader = MetadataLog(store, log=DeltaLog(store, "__cluster_metadata", clock=clock))
    followed: MetadataImage | None = None
    last = -1
    for _ in replicated(objects, target, random):
        clock.advance(RELIST_MS if followed is None else 1)
        if followed is None:
            fresh = MetadataLog(store, log=DeltaLog(store, "__cluster_metadata", clock=clock))
            found = fresh.load(begins=False)
            if found.cluster_id is None:
                continue
            followed, reader = found, fresh
        for version, listed in reader.read_after(followed.version):
            replay_commit(followed, version, listed)
        if followed.version >= 0:
            assert followed.controller_epoch == states.get(followed.version, 0)
        assert followed.version >= last
        last = followed.version
    assert last == max(states)


def test_a_file_that_a_later_version_removes_is_not_waited_for() -> None:
    def commit(
        version: int, adds: tuple[str, ...] = (), removes: tuple[str, ...] = ()
    ) -> ArrivedCommit:
        return ArrivedCommit(
            version=version,
            timestamp_ms=0,
            removed=frozenset(removes),
            added={each: (NeededFile(each),) for each in adds},
        )

    commits = [commit(1, ("a",)), commit(2, ("b",)), commit(3, ("c",), ("b",)), commit(4, ("d",))]
    there = {"a", "c"}

    def is_there(file: NeededFile) -> bool:
        return file.path in there

    whole, lacks = last_whole(0, {}, commits, is_there)
    assert (whole, set(lacks)) == (3, {"d"})
    assert last_whole(0, {}, commits[:2], is_there)[0] == 1
    lost = {"x": (NeededFile("x"),)}
    assert last_whole(0, lost, commits, is_there)[0] is None
    assert last_whole(0, lost, [*commits, commit(5, (), ("x", "d"))], is_there)[0] == 5


def test_a_deletion_vector_is_needed_too() -> None:
    vector = {
        "storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4, "sizeInBytes": 40,
        "cardinality": 6,
    }  # fmt: skip
    actions = [
        {"remove": {"path": "a.parquet"}},
        {"add": {"path": "a.parquet", "size": 10, "deletionVector": vector}},
    ]
    commit = commit_of(TABLE, 3, actions)
    data, deleted = commit.added[f"{TABLE}/a.parquet"]
    assert data == NeededFile(f"{TABLE}/a.parquet", 10)
    assert deleted.path.startswith(f"{TABLE}/ab/deletion_vector_")
    assert commit.removed == {f"{TABLE}/a.parquet"}


def test_a_look_that_failed_is_made_again_at_once() -> None:
    """What has arrived would seem not to be there meanwhile."""
    copy, clock = MemoryStore(), ManualLogClock()
    store, first = ArrivedStore(copy, clock=clock), new_log(copy).path(commit_file(0))
    copy.refuse(calls="list", path="*")
    with pytest.raises(TimeoutError):
        store.size(first)
    assert store.size(first)

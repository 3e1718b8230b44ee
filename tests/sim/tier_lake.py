"""A lake in a folder, as workers reach it: calls take time, and each version of a topic's table is checked.

The folder is real, so that `deltalake` can write its checkpoints and read what we commit. The ages of files follow
virtual time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import compress
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from kafka_ds.delta.actions import OURS
from kafka_ds.protocol.types import uuid_text
from kafka_ds.topic.names import TOPIC_ID_KEY, AppIdKind, parse_app_id
from tests.fakes.store import ALWAYS, Call, FolderStore
from tests.sim.fibers import pause
from tests.sim.model import COLUMNS, HistoryModel, ModelRow, rows_of
from tests.sim.world import SimLake, World

# How long a call takes: usually, and now and then.
CALL_SECONDS = 0.003
SLOW_CALL_SECONDS = 1.5
SLOW_CALLS = 0.006
TOPICS = "topics/"
LOG = "/_delta_log/"
ADD_BACK = "ADD BACK"


class WorkerStore:
    """The lake as a worker's threads reach it: others may act between any two calls."""

    def __init__(self, world: World, lake: SimLake) -> None:
        self._lake = lake
        self._random = world.random

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._lake, name)

        def called(*arguments: Any, **named: Any) -> Any:
            self._pause()
            answer = call(*arguments, **named)
            self._pause()
            return answer

        return called

    def _pause(self) -> None:
        is_slow = self._random.random() < SLOW_CALLS
        pause(self._random.random() * (SLOW_CALL_SECONDS if is_slow else CALL_SECONDS))

    @contextmanager
    def create(self, path: str) -> Iterator[IO[bytes]]:
        self._pause()
        with self._lake.create(path) as file:
            yield file
            self._pause()
        self._pause()

    def local_path(self, path: str) -> str | None:
        return None

    def uri(self, path: str) -> str:
        return self._lake.uri(path)

    @property
    def delta_options(self) -> dict[str, str]:
        return {}


@dataclass(slots=True)
class _Table:
    """The contents of a topic's table at the newest version that was seen."""

    version: int = -1
    topic_id: str = ""
    vectors: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The deletion vectors of those files that have one."""
    metadata: dict[str, Any] = field(default_factory=dict)
    protocol: dict[str, Any] = field(default_factory=dict)
    files: dict[str, dict[tuple[int, int], ModelRow]] = field(default_factory=dict)
    absent: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Files that the store had lost when a commit named them: partition, first and last offset."""
    live: dict[tuple[int, int], str] = field(default_factory=dict)
    ever: dict[tuple[str, int, int], ModelRow] = field(default_factory=dict)
    """All rows that were ever in it, by topic id, partition and offset."""
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    starts: dict[tuple[str, int], int] = field(default_factory=dict)
    """The greatest log start of each partition so far."""
    taken: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """Rows that other engines have taken out, by the version that did: erased, or until a RESTORE brings them back."""

    def awaits_replaced_files(self) -> bool:
        """Whether a lost file held rows that were in the table before: an OPTIMIZE wrote it."""
        return any(
            (self.topic_id, partition, first) in self.ever
            for partition, first, _ in self.absent.values()
        )


class TableWatch:
    """Replays the topics' tables, each version as it is made, using nothing of the product except names of marks.

    At each version an offset is there once, with the record that logs had there, always the same. A commit adds offsets
    from the tiered end on, without a gap and none below, except for those of a file that the store has lost. It removes
    rows only with their topic, or below the log start that an earlier version has. Commits of other engines bring no
    row that was never there.
    """

    def __init__(self, store: FolderStore, model: HistoryModel) -> None:
        self._store = store
        self._model = model
        self.tables: dict[str, _Table] = {}
        self.ghosts: list[str] = []
        """Commit files that were made a second time, long after the first ones were cleaned up."""
        self.gone = 0
        """How many rows retention has removed."""
        self.won: set[str] = set()
        """The ids of the copy attempts that were committed."""
        self.on_start: Callable[[str, int, int, int], None] = lambda *_: None
        """Called when a log start moves: topic, partition, from, to."""
        self.on_version: Callable[[str, _Table], None] = lambda *_: None
        """Called when a version was made: topic, the table as of it."""
        store.script(self._put, path=f"*{LOG}*.json", times=ALWAYS)

    def _put(self, call: Call) -> bool:
        won: bool = call()
        if won:
            table, _, name = call.path.partition(LOG)
            self._seen(table, int(name.removesuffix(".json")), call.rest[0])
        return won

    def _seen(self, folder: str, version: int, data: bytes) -> None:
        if not folder.startswith(TOPICS):
            return
        topic = folder.removeprefix(TOPICS)
        table = self.tables.setdefault(topic, _Table())
        where = f"{folder} at version {version}"
        if version <= table.version:
            # The first one was cleaned up while a writer slept. That writer has to notice and remove its file again.
            self.ghosts.append(f"{folder}{LOG}{version:020d}.json")
            return
        assert version == table.version + 1, f"{where}: made after {table.version}"
        table.version = version
        actions = [json.loads(line) for line in data.splitlines()]
        for action in actions:
            ours = action.get("commitInfo", {}).get(OURS, {})
            for part in ours.get("partitions", ()):
                self.won |= {each["id"] for each in part.get("segments", ())}
            if "protocol" in action:
                table.protocol = action["protocol"]
            if "metaData" in action:
                table.metadata = action["metaData"]
                table.topic_id = _topic_id(action["metaData"])
        before, ends, starts = set(table.live), dict(table.ends), dict(table.starts)
        absent = dict(table.absent)
        is_ours = any(OURS in action.get("commitInfo", {}) for action in actions)
        for action in actions:
            if "remove" in action:
                table.vectors.pop(action["remove"]["path"], None)
                table.absent.pop(action["remove"]["path"], None)
                for place in table.files.pop(action["remove"]["path"], {}):
                    table.live.pop(place, None)
        for action in actions:
            if "add" in action:
                self._add(table, folder, action["add"], where, is_ours=is_ours)
        for action in actions:
            if "txn" in action:
                _note_mark(table, action["txn"], where)
        operations = {
            action["commitInfo"]["operation"] for action in actions if "commitInfo" in action
        }
        if is_ours and operations != {ADD_BACK}:
            repaired = [each for path, each in absent.items() if path not in table.absent]
            self._check_step(table, before, ends, starts, repaired, where)
        else:
            _note_others_step(table, before, where)
        for (topic_id, partition), start in table.starts.items():
            if topic_id == table.topic_id and start > starts.get((topic_id, partition), 0):
                self.on_start(topic, partition, starts.get((topic_id, partition), 0), start)
        self.on_version(topic, table)

    def _erased(self, folder: str, version: int) -> dict[str, list[bool]]:
        """Which rows of files with deletion vectors are kept, by the files' names."""
        table = DeltaTable(self._store.uri(folder), version=version)
        found = pa.table(table.deletion_vectors()).to_pylist()
        return {each["filepath"].rpartition("/")[2]: each["selection_vector"] for each in found}

    def catch_up(self, topic: str) -> None:
        """Take the versions that others have made, without this store."""
        folder = f"{TOPICS}{topic}"
        while True:
            version = self.tables[topic].version + 1 if topic in self.tables else 0
            path = f"{folder}{LOG}{version:020d}.json"
            if self._store.size(path) is None:
                return
            self._seen(folder, version, self._store.read(path))

    def _add(
        self, table: _Table, folder: str, add: dict[str, Any], where: str, *, is_ours: bool
    ) -> None:
        path = add["path"]
        partition = int(add["partitionValues"]["partition"])
        # Spark adds each file once more when it gives rows their ids: that replaces it.
        for place in table.files.get(path, ()):
            table.live.pop(place, None)
        held = table.files[path] = {}
        file = os.path.join(self._store.root, folder, path)
        if is_ours and not os.path.exists(file):
            stats = json.loads(add["stats"])
            span = stats["minValues"]["offset"], stats["maxValues"]["offset"]
            table.absent[path] = (partition, *span)
            return
        found = pq.read_table(file, columns=COLUMNS).to_pylist()
        if add.get("deletionVector"):
            table.vectors[path] = add["deletionVector"]
            kept = self._erased(folder, table.version)[path.rpartition("/")[2]]
            # What is behind the last row that was deleted is kept.
            found = [*compress(found, kept), *found[len(kept) :]]
        for offset, row in rows_of(found):
            place = (partition, offset)
            assert place not in table.live, f"{where}: {place} is there twice"
            table.live[place] = path
            held[place] = row
            assert is_ours or (table.topic_id, *place) in table.ever, f"{where}: {place} is new"
            known = table.ever.setdefault((table.topic_id, *place), row)
            assert known == row, f"{where}: {place} was {known!r} and is {row!r}"
            self._model.check((table.topic_id, *place), row, where)

    def _check_step(
        self,
        table: _Table,
        before: set[tuple[int, int]],
        ends: dict[tuple[str, int], int],
        starts: dict[tuple[str, int], int],
        repaired: list[tuple[int, int, int]],
        where: str,
    ) -> None:
        for partition, offset in table.live.keys() - before:
            if any(index == partition and low <= offset <= high for index, low, high in repaired):
                continue
            end = ends.get((table.topic_id, partition), -1)
            now = table.ends.get((table.topic_id, partition), -1)
            assert end < offset <= now, f"{where}: {offset} is not between {end} and {now}"
        gone = before - table.live.keys()
        if not table.topic_id:
            return
        live = [
            (partition, offset)
            for partition, offset in gone
            if offset >= starts.get((table.topic_id, partition), 0)
            and not any(
                index == partition and low <= offset <= high
                for index, low, high in table.absent.values()
            )
        ]
        assert not live, f"{where}: {sorted(live)[:5]} are gone, and logs begin at {starts}"
        self.gone += len(gone)

    def end(self, topic: str, partition: int) -> int:
        """The last offset in the table of the present topic."""
        table = self.tables.get(topic, _Table())
        return table.ends.get((table.topic_id, partition), -1)

    def start(self, topic: str, partition: int) -> int:
        """The partition's log start in the table."""
        table = self.tables.get(topic, _Table())
        return table.starts.get((table.topic_id, partition), 0)

    def taken(self, topic: str, partition: int) -> dict[int, ModelRow]:
        """The rows that other engines have taken out of the table, and not brought back."""
        table = self.tables.get(topic, _Table())
        return {
            offset: table.ever[topic_id, index, offset]
            for topic_id, index, offset in table.taken
            if (topic_id, index) == (table.topic_id, partition)
        }

    def rows(self, topic: str, partition: int) -> list[tuple[int, ModelRow]]:
        """The rows of a partition now, by offset; none where nothing was ever copied."""
        table = self.tables.get(topic, _Table())
        return sorted(
            (offset, table.ever[table.topic_id, index, offset])
            for index, offset in table.live
            if index == partition
        )

    def never_held(self, topic: str, partition: int) -> list[tuple[int, int]]:
        """First and last offset of copies that the store had lost before their commit: no other file had these rows."""
        table = self.tables.get(topic, _Table())
        return [
            (low, high)
            for index, low, high in table.absent.values()
            if index == partition
            and not any((table.topic_id, index, at) in table.ever for at in range(low, high + 1))
        ]

    def missing(self, topic: str, partition: int) -> list[tuple[int, int]]:
        """The first and last offset of each file of a partition that the table names and the store does not have."""
        table = self.tables.get(topic, _Table())
        absent = [each[1:] for each in table.absent.values() if each[0] == partition]
        return absent + [
            (min(held)[1], max(held)[1])
            for path, held in table.files.items()
            if held
            and all(index == partition for index, _ in held)
            and self._store.size(f"{TOPICS}{topic}/{path}") is None
        ]

    def spent(self, topic: str, partition: int) -> list[str]:
        """The files that lie wholly below the log start and are still there."""
        table, start = self.tables.get(topic, _Table()), self.start(topic, partition)
        absent = [
            path
            for path, (index, _, last) in table.absent.items()
            if index == partition and last < start
        ]
        return absent + [
            path
            for path, held in table.files.items()
            if held and all(index == partition and offset < start for index, offset in held)
        ]


def _topic_id(metadata: dict[str, Any]) -> str:
    found: str = metadata["configuration"].get(TOPIC_ID_KEY, "")
    return found


def _note_others_step(table: _Table, before: set[tuple[int, int]], where: str) -> None:
    """Another engine's commit, or an operator's who undoes it: what goes is noted, what comes back is not missing."""
    assert table.topic_id, f"{where}: the table is nobody's"
    for place in before - table.live.keys():
        table.taken[table.topic_id, *place] = table.version
    for place in table.live.keys() - before:
        table.taken.pop((table.topic_id, *place), None)


def _note_mark(table: _Table, txn: dict[str, Any], where: str) -> None:
    name = parse_app_id(txn["appId"])
    if name is None:
        return
    key, number = (uuid_text(name.topic_id), name.partition), txn["version"]
    if name.kind is AppIdKind.HIGHEST_OFFSET:
        assert number > table.ends.get(key, -1), f"{where}: the end of {key} moves back to {number}"
        table.ends[key] = number
    elif name.kind is AppIdKind.LOG_START:
        assert number > table.starts.get(key, -1), f"{where}: {key} begins at {number}, too"
        table.starts[key] = number

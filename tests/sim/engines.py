"""Other engines at the tables of a run: what `deltalake` may do to a topic's table while brokers write and read it.

An act happens at one moment of virtual time, so workers stand between any two of their calls to the store. At times
the engine has read the table some moments before, as an engine does whose query takes long. What the engine itself
refuses (a conflict, a table that may only grow) is no failure.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable, TableFeatures
from deltalake.exceptions import DeltaError
from deltalake.schema import Field, PrimitiveType

from kafka_ds.delta.actions import encode_actions
from kafka_ds.delta.commit import Conflict
from kafka_ds.topic.recovery import add_back, give_up
from tests.fakes.deletion_vectors import inline
from tests.fakes.store import FolderStore
from tests.sim.tier_lake import LOG, TOPICS, TableWatch

REST_SECONDS_MAX = 1.2
# How long an engine may have read the table before it writes to it.
STALE_SECONDS_MAX = 0.6
STALE = 0.3
# How long an engine or a script waits for the worst moment.
WORST_MOMENT_SECONDS_MAX = 3.0
GLANCE_SECONDS = 0.002
UNNAMED = "delete_unnamed_files"
PACKING = ("optimize", "z_order")
RESTORED_VERSIONS_MAX = 8
PARTITION = "partition"
# Retention in hours: none, an hour, a week; and whether files go that no version refers to.
VACUUMS = ((0, False), (0, True), (1, True), (168, True))
HARMLESS: dict[str, str] = {
    "delta.dataSkippingNumIndexedCols": "3",
    "delta.checkpointInterval": "7",
    "delta.deletedFileRetentionDuration": "interval 8 days",
}
OBSTACLES: dict[str, str] = {
    "delta.appendOnly": "true",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.setTransactionRetentionDuration": "interval 1 days",
    "delta.enableChangeDataFeed": "true",
    "delta.enableDeletionVectors": "true",
    "delta.enableInCommitTimestamps": "true",
    "delta.columnMapping.mode": "name",
    "delta.deletedFileRetentionDuration": "interval 10 minutes",
}
# What Rust raises where delta-rs finds a mistake of its own.
PANIC = "PanicException"
CONSTRAINT = "positive"
FEATURES = (
    TableFeatures.ChangeDataFeed,
    TableFeatures.DeletionVectors,
    TableFeatures.CheckConstraints,
    TableFeatures.GeneratedColumns,
    TableFeatures.RowTracking,
    TableFeatures.V2Checkpoint,
)
PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
VECTORS = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["deletionVectors"],
    "writerFeatures": ["deletionVectors", "appendOnly", "invariants"],
}


class Engine:
    """One table's other engine."""

    CHOICE: tuple[str, ...] = ()
    """The acts that it chooses from; all if there are none."""
    OBSTACLES = OBSTACLES
    """The properties that this engine sets, with which a topic is not copied."""
    TAKING: tuple[str, ...] = (
        "optimize",
        "z_order",
        "delete",
        "delete_by_vector",
        "restore",
        "restore_back",
    )
    """What takes files out of the table: not while the store lacks one, whose rows could not be accounted for."""
    CLEARING: tuple[str, ...] = ("vacuum", UNNAMED)
    """What deletes replaced files: not while a lost file is to be written again from them."""

    def __init__(
        self,
        lake: FolderStore,
        tables: TableWatch,
        random: Random,
        log: Callable[[str], None],
        *,
        topic: str,
    ) -> None:
        self._topic = topic
        self._lake = lake
        self._tables = tables
        self._random = random
        self._log = log
        self.done: Counter[str] = Counter()
        """How often each act was carried out."""
        self.columns = 0
        self._restored_from: int | None = None
        """The version before the last RESTORE that was not undone."""
        self.acts: dict[str, Callable[[DeltaTable], Any]] = {
            "optimize": lambda table: table.optimize.compact(),
            "z_order": self._z_order,
            "delete": self._delete,
            "delete_by_vector": self._delete_by_vector,
            "checkpoint": lambda table: table.create_checkpoint(),
            "clean_up": self._clean_up,
            "vacuum": self._vacuum,
            UNNAMED: self._delete_unnamed_files,
            "add_column": self._add_column,
            "set_harmless": self._set_harmless,
            "set_obstacle": self._set_obstacle,
            "add_constraint": self._add_constraint,
            "add_feature": self._add_feature,
            "restore": self._restore,
            "restore_back": self._restore_back,
            "add_back": lambda table: add_back(lake.root, topic),
            "give_up": lambda table: give_up(lake.root, topic),
            "take_obstacles_away": lambda table: self.take_obstacles_away(),
        }

    async def work(self, is_over: Callable[[], bool]) -> None:
        """Do something to the table now and then, until `is_over`; then whatever stops copies or consumers goes."""
        while not is_over():
            await asyncio.sleep(self._random.random() * REST_SECONDS_MAX)
            if self._topic not in self._tables.tables:
                continue
            name = self._random.choice(self.CHOICE or list(self.acts))
            table = DeltaTable(self._uri())
            if self._random.random() < STALE:
                if name in PACKING:
                    await self._a_file_is_replaced()
                else:
                    await asyncio.sleep(self._random.random() * STALE_SECONDS_MAX)
            if name == UNNAMED:
                await self._a_file_in_flight()
            there = self._tables.tables[self._topic]
            if (name in self.TAKING and there.absent) or (
                name in self.CLEARING and there.awaits_replaced_files()
            ):
                continue
            self.act(name, table)
        if self._topic in self._tables.tables:
            self.take_obstacles_away()
            self.decide()

    def act(self, name: str, table: DeltaTable) -> None:
        """One act on a table as the engine has read it."""
        try:
            told = self.acts[name](table)
        except (DeltaError, Conflict, OSError, ValueError) as error:
            self._log(f"engine: {name} is refused: {str(error)[:200]}")
        except BaseException as error:
            if type(error).__name__ != PANIC:
                raise
            self._log(f"engine: {name} fails: {str(error)[:200]}")
        else:
            self.done[name] += 1
            self._log(f"engine: {name}: {told}")
        self._tables.catch_up(self._topic)

    def _uri(self) -> str:
        return self._lake.uri(f"{TOPICS}{self._topic}")

    # -- files ---------------------------------------------------------------------------------------

    def _z_order(self, table: DeltaTable) -> Any:
        return table.optimize.z_order([self._random.choice(("key", "value", "timestamp"))])

    def _delete(self, table: DeltaTable) -> Any:
        """Erase a few offsets, as an erasure of a key does."""
        offsets = [offset for _, offset in self._tables.tables[self._topic].live] or [0]
        first = self._random.choice(offsets)
        predicate = self._random.choice(
            (
                f'"offset" = {first}',
                f'"offset" BETWEEN {first} AND {first + self._random.randint(1, 12)}',
                f'"offset" % 17 = {first % 17}',
            )
        )
        return predicate, table.delete(predicate)

    def _delete_by_vector(self, table: DeltaTable) -> Any:
        """As an engine erases that writes deletion vectors, which `deltalake` reads and does not write."""
        there = self._tables.tables[self._topic]
        held = {path: rows for path, rows in there.files.items() if len(rows) > 1}
        if not held or there.protocol not in (PROTOCOL, VECTORS):
            return "nothing to delete, or another protocol"
        path = self._random.choice(sorted(held))
        partition = next(iter(held[path]))[0]
        full = Path(self._lake.root) / f"{TOPICS}{self._topic}" / path
        # Opened by us: a path that names its partition would be a column more.
        with full.open("rb") as file:
            offsets = pq.read_table(file, columns=["offset"]).column("offset").to_pylist()
        kept = {offset for _, offset in held[path]}
        kept -= set(
            self._random.sample(sorted(kept), self._random.randint(1, min(4, len(kept) - 1)))
        )
        gone = [place for place, offset in enumerate(offsets) if offset not in kept]
        of_file = {
            "path": path,
            "partitionValues": {"partition": str(partition)},
            "size": full.stat().st_size,
            "dataChange": True,
        }
        add: dict[str, Any] = {**of_file, "modificationTime": self._lake.clock.wall_ms()}
        bounds = {"minValues": {"offset": min(offsets)}, "maxValues": {"offset": max(offsets)}}
        add["stats"] = json.dumps({"numRecords": len(offsets), "tightBounds": False, **bounds})
        add["deletionVector"] = inline(gone)
        remove: dict[str, Any] = {**of_file, "deletionTimestamp": self._lake.clock.wall_ms()}
        if path in there.vectors:
            remove["deletionVector"] = there.vectors[path]
        first = [] if there.protocol == VECTORS else [{"protocol": VECTORS}]
        self._commit("DELETE", [*first, {"remove": remove}, {"add": add}])
        return path, len(gone)

    async def _a_file_is_replaced(self) -> None:
        """Wait until the broker replaces a file that this engine has read."""
        files = self._tables.tables[self._topic].files
        before = set(files)
        await self._until(lambda: bool(before - files.keys()))

    async def _a_file_in_flight(self) -> None:
        """Wait for a file that no commit names yet: of a copy, or of an OPTIMIZE."""
        before = self._unnamed_files()
        if self._random.random() < 0.5:
            await self._until(lambda: bool(self._unnamed_files() - before))
        else:
            await self._until(lambda: any(map(self._is_rewritten, self._unnamed_files() - before)))

    async def _until(self, is_so: Callable[[], bool]) -> None:
        seconds = 0.0
        while not is_so() and seconds < WORST_MOMENT_SECONDS_MAX:
            await asyncio.sleep(GLANCE_SECONDS)
            seconds += GLANCE_SECONDS

    def _is_rewritten(self, path: Path) -> bool:
        """Whether a file begins with an offset that the table has, which a copy's does not."""
        if not path.name[:20].isdecimal():
            return False  # It is an engine's own.
        partition, offset = int(path.parent.name.partition("=")[2]), int(path.name[:20])
        return offset <= self._tables.end(self._topic, partition)

    def _unnamed_files(self) -> set[Path]:
        folder = Path(self._lake.root) / f"{TOPICS}{self._topic}"
        named = self._tables.tables[self._topic].files
        return {
            each
            for each in folder.glob("partition=*/*.parquet")
            if str(each.relative_to(folder)) not in named
        }

    def _delete_unnamed_files(self, table: DeltaTable) -> Any:
        """A script that deletes what the newest version does not name, and announces nothing."""
        gone = sorted(self._unnamed_files())
        for path in gone:
            path.unlink()
        return [path.name for path in gone]

    def _vacuum(self, table: DeltaTable) -> Any:
        hours, is_full = self._random.choice(VACUUMS)
        # One that has read the table before takes what was committed since for left over, if it is old enough.
        table.update_incremental()
        self._let_files_age()
        gone = table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=is_full)
        return hours, is_full, gone

    def _clean_up(self, table: DeltaTable) -> Any:
        self._let_files_age()
        return table.cleanup_metadata()

    def _let_files_age(self) -> None:
        """Give each file of the table the age that it has in virtual time."""
        now_ms = self._lake.clock.wall_ms()
        for entry in self._lake.list(f"{TOPICS}{self._topic}/"):
            at = time.time() - (now_ms - entry.modified_ms) / 1000
            os.utime(Path(self._lake.root) / entry.path, (at, at))

    # -- what the table is ---------------------------------------------------------------------------

    def _add_column(self, table: DeltaTable) -> Any:
        self.columns += 1
        table.alter.add_columns([Field(f"note{self.columns}", PrimitiveType("string"))])

    def _set(self, table: DeltaTable, properties: dict[str, str]) -> Any:
        name = self._random.choice(list(properties))
        table.alter.set_table_properties({name: properties[name]}, raise_if_not_exists=False)
        return name

    def _set_harmless(self, table: DeltaTable) -> Any:
        return self._set(table, HARMLESS)

    def _set_obstacle(self, table: DeltaTable) -> Any:
        return self._set(table, self.OBSTACLES)

    def _add_constraint(self, table: DeltaTable) -> Any:
        table.alter.add_constraint({CONSTRAINT: '"offset" >= 0'})

    def _add_feature(self, table: DeltaTable) -> Any:
        feature = self._random.choice(FEATURES)
        table.alter.add_feature(feature, allow_protocol_versions_increase=True)
        return feature

    def take_obstacles_away(self) -> list[str]:
        """As UNSET TBLPROPERTIES, DROP CONSTRAINT and DROP FEATURE … TRUNCATE HISTORY: one commit for all of them."""
        self._tables.catch_up(self._topic)
        there = self._tables.tables[self._topic]
        metadata = json.loads(json.dumps(there.metadata))
        configuration = metadata["configuration"]
        names = {*self.OBSTACLES, f"delta.constraints.{CONSTRAINT}"}
        found = sorted(names & configuration.keys())
        for name in found:
            del configuration[name]
        actions: list[dict[str, Any]] = [{"metaData": metadata}] if found else []
        protocol = VECTORS if there.vectors else PROTOCOL
        if there.protocol != protocol:
            found.append(str(there.protocol))
            actions.append({"protocol": protocol})
        if actions:
            self._commit("UNSET TBLPROPERTIES", actions)
        return found

    # -- versions ------------------------------------------------------------------------------------

    def _restore(self, table: DeltaTable) -> Any:
        newest = table.version()
        oldest = max(1, newest - RESTORED_VERSIONS_MAX, self._checkpointed())
        target = self._random.randint(min(oldest, newest), newest)
        told = table.restore(target, protocol_downgrade_allowed=True)
        if self._restored_from is None:
            self._restored_from = newest
        return target, told

    def _restore_back(self, table: DeltaTable) -> Any:
        """The last RESTORE was a mistake."""
        if self._restored_from is None:
            return "nothing to undo"
        target, self._restored_from = self._restored_from, None
        if target < self._checkpointed():
            return "too late"
        return target, table.restore(target, protocol_downgrade_allowed=True)

    def _checkpointed(self) -> int:
        """The newest checkpoint: what went before may be forgotten, as our times are long past to it."""
        folder = Path(self._lake.root) / f"{TOPICS}{self._topic}{LOG}"
        return max(
            (int(each.name[:20]) for each in folder.glob("*.checkpoint*.parquet")), default=0
        )

    def decide(self) -> None:
        """A person decides about what a RESTORE took out and nobody has brought back."""
        if self._random.random() < 0.5:
            self.act("add_back", DeltaTable(self._uri()))
        self.act("give_up", DeltaTable(self._uri()))

    def _commit(self, operation: str, actions: list[dict[str, Any]]) -> None:
        info = {"commitInfo": {"timestamp": self._lake.clock.wall_ms(), "operation": operation}}
        version = self._tables.tables[self._topic].version + 1
        path = f"{TOPICS}{self._topic}{LOG}{version:020d}.json"
        assert self._lake.put_if_absent(path, encode_actions([info, *actions]))


class PackingEngine(Engine):
    """Packs files as the broker does, and deletes those that no commit names."""

    CHOICE = (*PACKING, UNNAMED)

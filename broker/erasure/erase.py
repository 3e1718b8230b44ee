"""Shell: erases records from a topic: searches everywhere, removes what it finds, and searches again.

Each round acts only on what it has found, so another run can finish one that was killed. Logs are searched before the
table, as records move from log to table. Records leave a log by being tiered and deleted locally; the topic's settings
change for that time. The erasure is proven only if every place was searched.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from deltalake.exceptions import CommitFailedError, DeltaError

from broker.diskless.wal_reader import count_objects_of
from broker.erasure import erasure_state, removal
from broker.erasure.checks import ErasureRefused, check_spelling, check_topic_of, snapshot_of
from broker.erasure.search import (
    HIDDEN,
    LOGGED,
    OLD,
    RESIDUE_BATCHES,
    ROWS,
    SEGMENTS,
    TOPIC_TABLE,
    TYPED_TABLE,
    UNREADABLE,
    Finding,
    Search,
    SearchTimeout,
    TableKind,
)
from broker.erasure.wanted import WantedRecords, joined
from kafka_ds.client.admin import Admin, LogDirectoryDescription, TopicDescription
from kafka_ds.delta.log import DeltaLog
from kafka_ds.process.amounts import counted
from kafka_ds.protocol.messages.offsets import EARLIEST, EARLIEST_LOCAL, LATEST
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import uuid_from_text
from kafka_ds.segments.checkpoint import decode_meta_properties
from kafka_ds.segments.names import META_PROPERTIES, REMOTE_CACHE, TEMPORARY
from kafka_ds.topic.names import ERRORS, TYPED_TABLES, topic_table

if TYPE_CHECKING:
    from broker.erasure.condition import RecordCondition
    from kafka_ds.client.cluster import Cluster
    from kafka_ds.delta.store.store import Store

# The topic's settings during an erasure, so that records are soon rolled, copied and deleted locally.
TEMPORARY_SETTINGS: Final = {
    "segment.ms": "1000",
    "segment.jitter.ms": "0",
    "local.retention.ms": "1",
    "local.retention.bytes": "0",
    "remote.copy.lag.ms": "0",
    "remote.copy.lag.bytes": "0",
    "file.delete.delay.ms": "1000",
}
POLL_S: Final = 1.0
# A run ends after so many rounds that change nothing and wait for nothing.
IDLE_ROUNDS: Final = 3
# A file younger than this may belong to a commit in progress.
YOUNG_MS: Final = 5 * 60 * 1000
# Searches must find nothing for this time: a broker may still write records that it read from the table before the
# DELETE, or move a log to a directory that was searched already.
SETTLES_S: Final = 2.0
_VALUE_FORMAT: Final = "lake.table.value.format"  # `none` if the topic has no typed table.
_TIMED_OUT: Final = "timed out (--timeout)"
_UNSUPPORTED: Final = "Unsupported table features"
_OWN: Final = 1  # A setting's source: the topic itself.


@dataclass(slots=True, kw_only=True)
class ErasureReport:
    """The files in which an erasure has found records, and what remains of them."""

    found: dict[tuple[str, str], int] = field(default_factory=dict)
    """The most records found at once, by place and kind."""
    left: list[Finding] = field(default_factory=list)
    unsearched: list[str] = field(default_factory=list)
    """Places that could not be searched, and why."""
    files: int = 0
    expired_rows: int = 0
    """Rows of typed tables whose records have expired in the topic, so that their offsets are unknown."""

    @property
    def is_proven(self) -> bool:
        """Whether every place was searched and nothing was found."""
        return not self.left and not self.unsearched


class Erasure:
    """Erases the records of a topic with a key, or those that match a condition."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        topic: TopicDescription,
        *,
        key: bytes | None,
        condition: RecordCondition | None = None,
        is_compacted: bool,
        say: Callable[[str], object],
        advance: Callable[[int], object] = lambda files: None,
    ) -> None:
        """`advance` is called with the number of searched files."""
        self._cluster = cluster
        self._admin = Admin(cluster)
        self._store = store
        self._topic = topic
        self.is_compacted = is_compacted
        self._awaited: list[str] = []
        """Why the search proves nothing yet, if a step of the typed table may be in progress."""
        self._say = say
        self._topic_id = uuid_from_text(topic.topic_id)
        self._state = erasure_state.read(store, topic.name, topic.topic_id)
        self._wanted = WantedRecords(
            key, self._state.places, None if condition is None else condition.holds
        )
        self._search = Search(self._wanted, advance)
        self._has_condition = condition is not None
        asked = b"where:" + condition.text.encode() if condition else b"key:" + (key or b"")
        self._digest = hashlib.sha256(self._topic_id + asked).hexdigest()
        self._searched_here: list[str] = []
        self._removed: dict[str, removal.RemovedFiles] = {}
        self._for_spark: set[str] = set()
        """Tables that deltalake cannot write to."""
        self._ends: dict[TopicPartition, int] = {}
        self.account = ErasureReport()

    @property
    def has_begun(self) -> bool:
        """Whether an earlier run has left the topic's settings changed."""
        return bool(self._state.settings)

    # -- searching ------------------------------------------------------------------------------

    def search(self, timeout_s: float | None = None) -> list[Finding]:
        """Search everything, and once more if the first pass learned offsets that typed tables are searched by.

        Raises ErasureRefused.
        """
        if timeout_s is not None:
            self._search.stop_at(time.monotonic() + timeout_s)
        found: list[Finding] = []
        unsearched: list[str] = []
        taken: Mapping[int, int] = {}
        try:
            for _ in range(2):
                found, unsearched = [], []
                self._local(found, unsearched)
                tables, taken = self._tables()
                for folder, kind in tables:
                    found += self._search.table(self._store, folder, kind, self._topic_id)
                if not self._learn(found):
                    break
                self._search.places_changed()
        except SearchTimeout:
            unsearched.append(f"the remaining files: {_TIMED_OUT}")
            self._searched_here = []
        account = self.account
        account.expired_rows = sum(self._search.expired_rows.values())
        if account.expired_rows and self._has_condition:
            unsearched.append(
                f"{account.expired_rows} rows of typed tables whose records have expired in the topic"
            )
        if waiting := count_objects_of(self._store, self._topic_id):
            unsearched.append(
                f"{counted(waiting, 'object')} of write-ahead logs (wal/) with records of the topic: they go some "
                "minutes after the table has all records in them"
            )
        self._awaited = self._not_taken(taken)
        unsearched += self._awaited
        account.left, account.unsearched = found, unsearched
        account.files = len(self._search.files)
        sums: dict[tuple[str, str], int] = {}
        for each in found:
            where = each.place, each.kind
            sums[where] = sums.get(where, 0) + each.records
        for where, count in sums.items():
            account.found[where] = max(count, account.found.get(where, 0))
        return found

    def _learn(self, found: Sequence[Finding]) -> bool:
        return self._wanted.learn(joined(each.places for each in found if each.is_of_topic))

    def _not_taken(self, taken: Mapping[int, int]) -> list[str]:
        """One line if known offsets are in no committed step of the typed table: one in progress may have them."""
        ahead = self._wanted.beyond(taken)
        if not ahead or self._topic.name.endswith(ERRORS):
            return []
        if self._cluster.topic_setting(self._topic.name, _VALUE_FORMAT) in (None, "none"):
            return []
        places = ", ".join(f"offset {at} of partition {each}" for each, at in sorted(ahead.items()))
        steps = "steps of `kafka-ds pipelines run`, which may write what they have read: none has come past"
        return [f"{steps} {places}"]

    def _tables(self) -> tuple[list[tuple[str, TableKind]], Mapping[int, int]]:
        """The tables that are there, and the end offsets of the typed one's steps."""
        name = self._topic.name
        tables = [(topic_table(name), TOPIC_TABLE)]
        if not name.endswith(ERRORS):  # Such a name is another topic's errors table.
            tables += [(f"{TYPED_TABLES}/{name}{each}", TYPED_TABLE) for each in ("", ERRORS)]
        found = []
        taken: Mapping[int, int] = {}
        for folder, kind in tables:
            if folder.rpartition("/")[2] in self._store.folders(folder.rpartition("/")[0]):
                if kind is TYPED_TABLE:
                    step = check_topic_of(DeltaLog(self._store, folder), self._topic.topic_id)
                    if step is not None and not folder.endswith(ERRORS):
                        taken = step.end
                found.append((folder, kind))
        return found, taken

    def _local(self, found: list[Finding], unsearched: list[str]) -> None:
        """Search the log directories on this machine; those elsewhere are unsearched."""
        self._check_topic()
        if not self._search.knows_log_starts:
            starts = self._offsets(EARLIEST)
            self._search.update_log_starts(
                {place.partition: offset for place, offset in starts.items()}
            )
        cluster = self._admin.describe_cluster()
        directories = self._admin.log_directories()
        known = self._state.searched.get(self._digest, {})
        self._searched_here = []
        for each in directories:
            where = f"{each.path} of broker {each.broker}"
            if each.is_offline:
                unsearched.append(f"{where} is offline")
            elif is_of(each.path, each.broker, cluster.cluster_id):
                try:
                    found += self._search.directory(each.path, self._topic.name, self._topic_id)
                    self._searched_here.append(_name(each))
                except OSError as problem:
                    unsearched.append(f"{where}: {problem.strerror}")
            elif _name(each) not in known:
                unsearched.append(f"{where} is not on this machine: run the command there, too")
        told = {
            (size.broker, size.partition)
            for each in directories
            for size in each.sizes
            if size.topic == self._topic.name
        }
        answering = {each.broker for each in directories}
        replicas = {
            (broker, each.partition) for each in self._topic.partitions for broker in each.replicas
        }
        brokers = {each.node_id for each in cluster.brokers} | {broker for broker, _ in replicas}
        silent = brokers - answering
        unsearched += [f"broker {each} does not answer" for each in sorted(silent)]
        unsearched += [
            f"partition {partition}: broker {broker} reports no replica in its log directories"
            for broker, partition in sorted(replicas - told)
            if broker not in silent
        ]

    def _check_topic(self) -> None:
        """Check that the topic still exists; raises ErasureRefused."""
        if not self._is_there():
            name = self._topic.name
            raise ErasureRefused(f"topic {name} was deleted meanwhile: stopping")

    def _is_there(self) -> bool:
        """Whether the topic still exists with the same id; updates its replicas."""
        name = self._topic.name
        now = self._admin.describe_topics([name]).get(name)
        if now is None or now.topic_id != self._topic.topic_id:
            return False
        self._topic = now
        return True

    # -- erasing --------------------------------------------------------------------------------

    def erase(self, timeout_s: float, *, takes_over: bool = False) -> None:
        """Remove what is found until nothing is found, nothing more can be done, or the time is up.

        `takes_over` replaces a run that seems not to have ended. Raises ErasureRefused.
        """
        deadline = time.monotonic() + timeout_s
        self._search.stop_at(deadline)
        self._check_topic()
        self._state = erasure_state.claim(
            self._store, self._topic.name, self._topic.topic_id, takes_over=takes_over
        )
        self._wanted.learn(self._state.places)
        is_done = False
        try:
            self._ends = self._offsets(LATEST)
            idle = 0
            clean_since = math.inf
            told: list[str] = []
            while True:
                found = self.search()
                waits = self._waits(found)
                self._record_searched(is_clean=not waits and all(map(_stays, found)))
                now = time.monotonic()
                is_clean = not found and not waits
                if is_clean and self._awaited not in ([], told):
                    told = self._awaited
                    self._say(f"waiting for {told[0]}")
                is_settling = is_clean and not self._awaited
                clean_since = min(clean_since, now) if is_settling else math.inf
                is_done = now >= clean_since + SETTLES_S and self.account.is_proven
                if now >= min(deadline, clean_since + SETTLES_S):
                    return
                acted = self._act(found, waits=waits)
                waits = waits or is_clean or any(map(_is_young, found))
                idle = 0 if acted or waits else idle + 1
                if idle >= IDLE_ROUNDS:
                    return
                if not acted:
                    self._search.advance(0)
                    time.sleep(POLL_S)
        except SearchTimeout:
            self.account.unsearched.append(f"the result of the last deletion: {_TIMED_OUT}")
        finally:
            self._restore_settings(is_done=is_done)

    def _record_searched(self, *, is_clean: bool) -> None:
        """Record searched directories; after a finding none counts, as its records may move there."""
        searched = self._state.searched
        if not is_clean:
            searched.pop(self._digest, None)
        elif self._searched_here:
            now = dict.fromkeys(self._searched_here, int(time.time()))
            searched.setdefault(self._digest, {}).update(now)

    def _waits(self, found: Sequence[Finding]) -> bool:
        """Whether local logs contain records that will be tiered and deleted."""
        if self.is_compacted:
            return False
        if self.account.unsearched == self._awaited:
            return any(each.kind == SEGMENTS for each in found)
        starts = self._offsets(EARLIEST_LOCAL)
        return any(starts[place] < end for place, end in self._ends.items())

    def _offsets(self, question: int) -> dict[TopicPartition, int]:
        places = [
            TopicPartition(self._topic.name, each.partition) for each in self._topic.partitions
        ]
        answers = self._cluster.offsets(dict.fromkeys(places, question), read_committed=False)
        return {place: answer.offset for place, answer in answers.items()}

    def _act(self, found: Sequence[Finding], *, waits: bool) -> bool:
        """Act on each finding; returns whether anything changed."""
        self._state.places = self._wanted.places
        self._check_topic()
        acted = waits and self._shorten_local_retention()
        erasure_state.write(self._store, self._topic.name, self._state)
        for folder, kind in self._tables()[0]:
            of_table = [each for each in found if each.place == folder]
            try:
                acted |= _in_time(
                    partial(self._act_on_table, folder, kind, of_table), self._search.deadline
                )
            except CommitFailedError as problem:
                acted |= self._should_retry(folder, of_table, str(problem))
            except (DeltaError, OSError) as problem:
                self._say(f"{folder}: {problem}")
        for each in found:
            # A temporary file gets its name soon.
            if f"/{REMOTE_CACHE}/" in each.path and not each.path.endswith(TEMPORARY):
                with suppress(FileNotFoundError):
                    os.unlink(each.path)
                acted = True
        return acted

    def _should_retry(self, folder: str, found: Sequence[Finding], problem: str) -> bool:
        """Whether to retry a failed commit: usually another writer was first. Unsupported tables are left to Spark."""
        time.sleep(POLL_S)
        if _UNSUPPORTED not in problem:
            return True
        if folder not in self._for_spark:
            self._for_spark.add(folder)
            self._say(f"{folder}: {problem}: waiting for `kafka-ds pipelines run` to delete them")
        # Pipelines delete rows, but keep files with deletion vectors.
        return any(each.kind == ROWS for each in found)

    def _act_on_table(self, folder: str, kind: TableKind, found: Sequence[Finding]) -> bool:
        """Act on the findings of a table. Files that are removed now are old versions in the next round."""
        old = [each.path for each in found if each.kind == OLD]
        own_id = self._topic_id if kind is TOPIC_TABLE else None
        removed = self._removed.setdefault(
            folder, removal.RemovedFiles(self._store, folder, own_id)
        )
        acted = self._remove_old(folder, old, removed)
        for each in found:
            if each.kind == RESIDUE_BATCHES and removal.rewrite_residue(
                self._store, each.path, each.places
            ):
                self._say(f"{each.path}: rewritten without {counted(each.records, 'record')}")
                acted = True
        rows = joined(each.places for each in found if each.kind == ROWS)
        hidden = {each.path for each in found if each.kind == HIDDEN}
        if kind is TOPIC_TABLE and (rows or hidden):
            # Check again: the table may be another topic's by now.
            snapshot_of(self._store, folder, self._topic_id)
        if kind is TYPED_TABLE and rows:
            own = snapshot_of(self._store, topic_table(self._topic.name), self._topic_id)
            rows = check_spelling(own, self._wanted, rows)
        if any(map(len, rows.values())):
            count = removal.delete_rows(self._store, folder, kind, rows)
            self._say(f"{folder}: {counted(count, 'row')} deleted")
            return acted or count > 0
        if hidden and removal.purge(self._store, folder, kind, hidden):
            self._say(f"{folder}: files rewritten without deleted rows")
            return True
        return acted

    def _remove_old(self, folder: str, paths: Sequence[str], removed: removal.RemovedFiles) -> bool:
        if not paths:
            return False
        gone = removed.now().intersection(paths)
        for path in sorted(gone):
            self._store.delete(path)
        if gone:
            self._say(f"{folder}: deleted {counted(len(gone), 'file')} of older versions")
        return bool(gone)

    # -- settings -------------------------------------------------------------------------------

    def _shorten_local_retention(self) -> bool:
        """Change the topic's settings so that records leave the local logs; whether any had to change."""
        now = {each.name: each for each in self._admin.describe_topic_configs(self._topic.name)}
        changes = {
            name: text
            for name, text in TEMPORARY_SETTINGS.items()
            if name in now and now[name].value != text
        }
        if not changes:
            return False
        # Includes what a user has changed since an earlier run: the latest value is restored.
        former = {n: now[n].value if now[n].source == _OWN else None for n in changes}
        self._state.settings = {**(self._state.settings or {}), **former}
        erasure_state.write(self._store, self._topic.name, self._state)
        self._admin.alter_topic_configs(self._topic.name, changes)
        self._say(
            f"{self._topic.name}: waiting until its records are tiered and deleted from the local logs"
        )
        return True

    def _restore_settings(self, *, is_done: bool) -> None:
        former: Mapping[str, Any] | None = self._state.settings
        is_there = True
        if former:
            try:
                # A deleted topic has no settings.
                if is_there := self._is_there():
                    now = self._admin.describe_topic_configs(self._topic.name)
                    ours = {
                        each.name for each in now if each.value == TEMPORARY_SETTINGS.get(each.name)
                    }
                    back = {name: value for name, value in former.items() if name in ours}
                    if back:
                        self._admin.alter_topic_configs(self._topic.name, back)
            except BaseException:
                self._say(
                    f"cannot restore the settings of topic {self._topic.name} ({', '.join(former)}): run it again"
                )
                raise
        if is_done:
            self._state.searched.pop(self._digest, None)
        is_done = is_done or not is_there
        erasure_state.release(self._store, self._topic.name, self._state, is_done=is_done)
        self._state.settings = {}


def _in_time(act: Callable[[], bool], deadline: float) -> bool:
    """Run `act`. Raises SearchTimeout at the deadline; `act` may then go on until the process ends."""
    given: list[bool] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            given.append(act())
        except BaseException as problem:  # noqa: BLE001 - raised below
            failed.append(problem)

    thread = threading.Thread(target=run, daemon=True)
    if (left := deadline - time.monotonic()) > 0:
        thread.start()
        thread.join(left)
    if failed:
        raise failed[0]
    if not given:
        raise SearchTimeout
    return given[0]


def _name(directory: LogDirectoryDescription) -> str:
    return f"{directory.broker}:{directory.path}"


def _stays(finding: Finding) -> bool:
    """Whether the finding cannot move to another place."""
    return finding.kind == LOGGED


def _is_young(finding: Finding) -> bool:
    """Whether the file may belong to a commit in progress."""
    return finding.kind in (OLD, UNREADABLE) and finding.modified_ms > time.time() * 1000 - YOUNG_MS


def is_of(directory: str, broker: int, cluster_id: str) -> bool:
    """Whether a directory of this machine is that broker's; the path alone does not tell."""
    try:
        with open(f"{directory}/{META_PROPERTIES}", "rb") as file:
            said = decode_meta_properties(file.read())
    except OSError:
        return False
    node_id = said.get("node.id", said.get("broker.id"))
    return (node_id, said.get("cluster.id")) == (str(broker), cluster_id)

"""Shell: future logs: copies of logs on their way to other directories (KIP-113), as they are on disk.

Rules of this file:
- A copy is a log in a folder `<topic>-<partition>.<id>-future`. It begins where its log's oldest segment does, with the
  producers that are known there, so that at any offset it knows what its log knew.
- It takes its log's place in steps, and a crash between any two of them loses nothing:
  1. its folder gets the name of the log, durably. Both are whole, and the log is the newer one, or they are the same;
  2. in memory log and copy swap files (`exchange`): appends go to the new folder, which is the newer one from now on;
  3. the log's old folder becomes `-delete` when everything in it is durable in the new one.
  A start that finds both takes the newer one (`moving.is_newer`); if it finds a `-future` folder beside the log,
  copying continues.
- A copy without its log takes the log's place at a start if all directories can be read, or if the cluster knows that
  the replica is already there (KIP-858). Otherwise it waits for the directory of its log.
- A copy has no cleaning, retention or flush by time; its log is not cleaned meanwhile, as in Kafka.
- If a directory fails, the moves of the copies in it end. If a log fails, its copy stays on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from broker.log import names
from broker.log.checkpoint import encode_partition_metadata
from broker.log.directories.directories import Done, LogDirectories
from broker.log.directories.directory import LogDirectory
from broker.log.directories.moving import agreed_end
from broker.log.files import read_or_none, replace, sync_file, write_whole
from broker.log.log import Log
from broker.seams import Background, Clock, Disk
from broker.system import new_uuid
from kafka_ds.protocol.errors import ErrorCode, KafkaError

Key = tuple[str, int]

_LOGGER = logging.getLogger(__name__)


class Keeper(Protocol):
    """The owner of the logs."""

    def adopt(self, key: Key, log: Log, directory: LogDirectory, /) -> None:
        """Take this as the partition's log, in that directory."""

    def discard(self, home: LogDirectory, log: Log, /) -> None:
        """Rename a log's folder as deleted, and remove its files later."""


@dataclass(slots=True, kw_only=True, eq=False)
class FutureLog:
    """The copy of one log, its directory, and how far it has come in taking the log's place."""

    log: Log
    home: LogDirectory
    of: Log | None
    """The log that it is the copy of, if there is one."""
    is_announced: bool = False
    """The cluster is told, or about to be told, that the replica is here."""
    is_named: bool = False
    """Its folder has the log's name already."""


class FutureLogs:
    """All copies of a broker, by topic and partition."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        background: Background,
        directories: LogDirectories,
        logs: Mapping[Key, Log],
        homes: dict[Key, LogDirectory],
        keeper: Keeper,
        report: Callable[[str, OSError], None],
    ) -> None:
        """`logs` and `homes` are the keeper's; `report` hears of each disk error of a copy."""
        self._report = report
        self._disk = disk
        self._clock = clock
        self._background = background
        self._directories = directories
        self._logs = logs
        self._homes = homes
        self._keeper = keeper
        self._futures: dict[Key, FutureLog] = {}
        # What was a log, until the disk has all of it in its new place.
        self._leaving: dict[Key, tuple[LogDirectory, Log]] = {}

    def get(self, topic: str, partition: int) -> FutureLog | None:
        """The copy of a partition's log."""
        return self._futures.get((topic, partition))

    def __iter__(self) -> Iterator[FutureLog]:
        return iter(tuple(self._futures.values()))

    def __len__(self) -> int:
        return len(self._futures)

    # -- at a start -----------------------------------------------------------------------------

    def found(self, log: Log, home: LogDirectory) -> None:
        """A start found this copy. Of two (a move that was redirected before it was done) the longer stays."""
        key = log.topic, log.partition
        other = self._futures.get(key)
        if other is not None:
            if other.log.log_end_offset >= log.log_end_offset:
                self._keeper.discard(home, log)
                return
            self._keeper.discard(other.home, other.log)
        self._futures[key] = FutureLog(log=log, home=home, of=None)

    def abandoned(self) -> list[tuple[Key, FutureLog]]:
        """The copies whose log was not found."""
        return [(key, each) for key, each in self._futures.items() if each.of is None]

    def resume(self, log: Log) -> None:
        """Continue the copy of a log that was found, if there is one."""
        key = log.topic, log.partition
        future = self._futures.get(key)
        if future is None:
            return
        if future.log.topic_id != log.topic_id:
            self.drop(*key)
            return
        future.of = log
        log.compaction.pause()
        end_offset = agreed_end(log, future.log)
        if end_offset < future.log.first_base_offset:
            self.drop(*key)
        elif end_offset < future.log.log_end_offset:
            # A crash has taken more from the log than from its copy.
            try:
                future.log.truncate_to(end_offset)
            except OSError as error:  # No reason for the broker not to start.
                _LOGGER.error("%s does not move to %s any more: %s", log.name, future.home, error)
                self.drop(*key)

    def take_place(self, topic: str, partition: int) -> Log:
        """Make a copy without a log the log; the caller adopts it."""
        future = self._futures.pop((topic, partition))
        _LOGGER.warning(
            "%s: its log is not there, the copy in %s takes its place", future.log.name, future.home
        )
        self._rename(future, names.folder_name(topic, partition))
        self._disk.sync_directory(future.home.path)
        return future.log

    # -- copying --------------------------------------------------------------------------------

    def begin(self, log: Log, home: LogDirectory) -> FutureLog:
        """Create an empty copy of a log in another directory; raises KAFKA_STORAGE_ERROR if that fails."""
        key = log.topic, log.partition
        assert key not in self._futures
        try:
            copy = self._seed(log, home)
        except OSError as error:
            self._directories.note(home, home.path, error)
            problem = f"{home} does not take {log.name}: {error}"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, problem) from error
        log.compaction.pause()
        future = FutureLog(log=copy, home=home, of=log)
        self._futures[key] = future
        return future

    def _seed(self, log: Log, home: LogDirectory) -> Log:
        name = names.renamed_folder_name(log.topic, log.partition, new_uuid(), names.FUTURE_FOLDER)
        try:
            return self._write_seed(log, home.file(name))
        except OSError:
            # A refused move: the next start must not take what there is for one to go on with. These are a few bytes.
            with suppress(OSError):
                home.remove_tree(name)
            raise

    def _write_seed(self, log: Log, folder: str) -> Log:
        disk, base_offset = self._disk, log.first_base_offset
        disk.make_directory(folder)
        metadata = f"{folder}/{names.PARTITION_METADATA}"
        replace(disk, metadata, encode_partition_metadata(log.topic_id), durable=False)
        snapshot = names.file_name(base_offset, names.PRODUCER_SNAPSHOT)
        producers = read_or_none(disk, f"{log.directory}/{snapshot}")
        if producers is not None:
            write_whole(disk, f"{folder}/{snapshot}", producers)
        return Log.open(
            folder,
            log.config,
            disk,
            self._clock,
            topic=log.topic,
            partition=log.partition,
            topic_id=log.topic_id,
            log_start_offset=base_offset,
            background=self._background,
            report=self._report,
        )

    def follow_start(self, log: Log, future: FutureLog) -> None:
        """Give a copy its log's start and epochs; both have the same end."""
        future.log.log_start_offset = log.log_start_offset
        future.log.take_epochs_of(log)

    def drop(self, topic: str, partition: int) -> None:
        """Give up a copy: the move is cancelled."""
        future = self._futures.pop((topic, partition), None)
        if future is not None:
            _let_be(future)
            self._keeper.discard(future.home, future.log)

    # -- taking the log's place -----------------------------------------------------------------

    def take_name(self, future: FutureLog, done: Done) -> None:
        """Step 1: the copy's folder gets the log's name; `done` when that is durable. Raises OSError."""
        log = future.log
        if not future.is_named:
            self._rename(future, names.folder_name(log.topic, log.partition))
            future.is_named = True
        work = partial(self._sync_names, log.directory, future.home.path)
        self._directories.submit_and_tell(future.home, log.directory, work, done)

    def _sync_names(self, folder: str, parent: str) -> None:
        sync_file(self._disk, f"{folder}/{names.PARTITION_METADATA}")
        self._disk.sync_directory(folder)
        self._disk.sync_directory(parent)

    def _rename(self, future: FutureLog, name: str) -> None:
        path = future.home.file(name)
        self._disk.rename(future.log.directory, path)
        future.log.renamed(path)

    def exchange(self, topic: str, partition: int) -> None:
        """Step 2: the log continues in the copy's folder, which holds all of it."""
        key = topic, partition
        future, log = self._futures[key], self._logs[key]
        assert future.is_named
        assert future.of is log
        self.follow_start(log, future)
        log.exchange_files(future.log)
        del self._futures[key]
        self._leaving[key] = self._homes[key], future.log
        self._keeper.adopt(key, log, future.home)
        _let_be(future)

    def leave(self, topic: str, partition: int) -> None:
        """Step 3: the log's old folder goes."""
        left = self._leaving.pop((topic, partition), None)
        if left is not None:
            self._keeper.discard(*left)

    # -- ending ---------------------------------------------------------------------------------

    def directory_failed(self, directory: LogDirectory) -> None:
        """Stop reading and writing in this directory."""
        for key, future in tuple(self._futures.items()):
            if future.home is directory:
                _LOGGER.error("%s does not move: %s has failed", future.log.name, directory)
                del self._futures[key]
                _let_be(future)
                _give_up(future.log)
        for key, (home, log) in tuple(self._leaving.items()):
            if home is directory:
                del self._leaving[key]
                _give_up(log)

    def log_failed(self, topic: str, partition: int) -> None:
        """A log must no longer be read: what was copied of it stays on disk."""
        future = self._futures.pop((topic, partition), None)
        if future is not None:
            self._close(future)
        left = self._leaving.pop((topic, partition), None)
        if left is not None:
            _give_up(left[1])

    def _close(self, future: FutureLog) -> bool:
        """Close a copy, to continue at the next start; returns whether that succeeded."""
        try:
            if future.is_named:
                future.is_named = False
                topic, partition = future.log.topic, future.log.partition
                unique = new_uuid()
                self._rename(
                    future,
                    names.renamed_folder_name(topic, partition, unique, names.FUTURE_FOLDER),
                )
        except OSError:
            _give_up(future.log)
            return False
        return future.log.close()

    def close(self, closed: Container[Key]) -> list[str]:
        """Close the copies, and finish moves of logs that closed well; returns directories that failed."""
        for key in tuple(self._leaving):
            if key in closed:
                self.leave(*key)
            else:
                _give_up(self._leaving.pop(key)[1])
        return [each.home.path for each in self if not self._close(each)]


def _let_be(future: FutureLog) -> None:
    """Let the log be cleaned again: its move is over."""
    if future.of is not None:
        future.of.compaction.is_paused = False


def _give_up(log: Log) -> None:
    log.abandon()
    with suppress(OSError):
        log.close()

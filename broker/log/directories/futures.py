"""Shell: copies of logs on their way to other directories (KIP-113), as they lie on the disks.

Rules of this file:
- A copy is a log in a folder `<topic>-<partition>.<id>-future`. It begins where its log's oldest segment does, with the
  producers that are known there, so that what it knows at any offset is what its log knew.
- It takes its log's place in steps, and a crash between any two of them loses nothing:
  1. its folder gets the name of the log, durably. Both are whole, and the log is the newer one, or they are the same;
  2. in memory log and copy change places (`exchange`): appends go to the new folder, which now is the newer one;
  3. the log's old folder becomes `-delete` when all that was in it is durable in the new one.
  A start that finds both takes the newer one (`moving.is_newer`); one that finds a `-future` folder beside its log goes
  on copying.
- A copy whose log is not there takes its place at a start where all directories can be read, or where the cluster has
  been told that the replica is there already (KIP-858). Else it waits for the directory of its log.
- A copy is not cleaned, retained nor flushed by time; its log is not cleaned meanwhile, as in Kafka.
- A directory that fails takes its copies with it: these moves have ended. Of a log that fails the copy stays on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from broker.log import names
from broker.log.checkpoint import encode_partition_metadata
from broker.log.directories.directories import Done, LogDirectories
from broker.log.directories.directory import LogDirectory
from broker.log.directories.exchange import exchange_files, renamed, take_epochs
from broker.log.directories.moving import agreed_end
from broker.log.files import read_or_none, replace, sync_file, write_whole
from broker.log.log import Log
from broker.seams import Background, Clock, Disk
from broker.system import new_uuid
from kafka_ds.wire.errors import ErrorCode, KafkaError

Key = tuple[str, int]

_LOGGER = logging.getLogger(__name__)


class Keeper(Protocol):
    """Whoever has the logs."""

    def adopt(self, key: Key, log: Log, directory: LogDirectory, /) -> None:
        """This is the partition's log, and there it is."""

    def discard(self, home: LogDirectory, log: Log, /) -> None:
        """Take a log's folder out of sight, and its files from disk in time."""


@dataclass(slots=True, kw_only=True, eq=False)
class FutureLog:
    """The copy of one log, where it is, and how far it is on its way to be the log."""

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
    ) -> None:
        """`logs` and `homes` are those of the keeper."""
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
        """A start has found this copy. Of two of a partition, moved elsewhere before it was done, the longer stays."""
        key = log.topic, log.partition
        other = self._futures.get(key)
        if other is not None:
            if other.log.log_end_offset >= log.log_end_offset:
                self._keeper.discard(home, log)
                return
            self._keeper.discard(other.home, other.log)
        self._futures[key] = self._watched(FutureLog(log=log, home=home, of=None))

    def abandoned(self) -> list[tuple[Key, FutureLog]]:
        """The copies of which no log was found."""
        return [(key, each) for key, each in self._futures.items() if each.of is None]

    def resume(self, log: Log) -> None:
        """Go on with the copy of a log that was found, if there is one."""
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
            future.log.truncate_to(end_offset)

    def take_place(self, topic: str, partition: int) -> Log:
        """Let a copy that was left alone be the log; the caller adopts it."""
        future = self._futures.pop((topic, partition))
        _LOGGER.warning(
            "%s: its log is not there, the copy in %s takes its place", future.log.name, future.home
        )
        self._rename(future, names.folder_name(topic, partition))
        self._disk.sync_directory(future.home.path)
        future.log.flushes_in_append = True
        return future.log

    # -- copying --------------------------------------------------------------------------------

    def begin(self, log: Log, home: LogDirectory) -> FutureLog:
        """An empty copy of a log in another directory; raises KAFKA_STORAGE_ERROR where that cannot be."""
        key = log.topic, log.partition
        assert key not in self._futures
        try:
            copy = self._seed(log, home)
        except OSError as error:
            self._directories.note(home, home.path, error)
            problem = f"{home} does not take {log.name}: {error}"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, problem) from error
        log.compaction.pause()
        future = self._watched(FutureLog(log=copy, home=home, of=log))
        self._futures[key] = future
        return future

    def _watched(self, future: FutureLog) -> FutureLog:
        """Its disk's errors are its directory's, and it is flushed by whoever copies."""
        note, home, log = self._directories.note, future.home, future.log
        log.flushes_in_append = False
        log.report_errors_to(lambda error: note(home, log.directory, error))
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
        )

    def follow_start(self, log: Log, future: FutureLog) -> None:
        """Let a copy begin where its log does, and know the same epochs; both ends are the same."""
        future.log.log_start_offset = log.log_start_offset
        take_epochs(future.log, log)

    def drop(self, topic: str, partition: int) -> None:
        """Give a copy up: the move does not take place."""
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
        renamed(future.log, path)

    def exchange(self, topic: str, partition: int) -> None:
        """Step 2: the log goes on in the copy's folder, which holds all of it."""
        key = topic, partition
        future, log = self._futures[key], self._logs[key]
        assert future.is_named
        assert future.of is log
        self.follow_start(log, future)
        exchange_files(log, future.log)
        del self._futures[key]
        self._leaving[key] = self._homes[key], future.log
        self._keeper.adopt(key, log, future.home)
        future.log.report_errors_to(_ignore)
        _let_be(future)

    def leave(self, topic: str, partition: int) -> None:
        """Step 3: the log's old folder goes."""
        left = self._leaving.pop((topic, partition), None)
        if left is not None:
            self._keeper.discard(*left)

    # -- ending ---------------------------------------------------------------------------------

    def directory_failed(self, directory: LogDirectory) -> None:
        """Nothing in this directory is read or written any more."""
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
        """A log is not to be read any more: what is copied of it stays on disk."""
        future = self._futures.pop((topic, partition), None)
        if future is not None:
            self._close(future)
        left = self._leaving.pop((topic, partition), None)
        if left is not None:
            _give_up(left[1])

    def _close(self, future: FutureLog) -> bool:
        """Close a copy, to go on at the next start; whether that went well."""
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
        """Close the copies, and let go what has moved, of the logs that were closed well; directories of failures."""
        for key in tuple(self._leaving):
            if key in closed:
                self.leave(*key)
            else:
                _give_up(self._leaving.pop(key)[1])
        return [each.home.path for each in self if not self._close(each)]


def _let_be(future: FutureLog) -> None:
    """Nothing keeps a log as it is any more."""
    if future.of is not None:
        future.of.compaction.is_paused = False


def _ignore(_error: OSError) -> None:
    """What has moved is read no more but by readers that began before."""


def _give_up(log: Log) -> None:
    log.abandon()
    with suppress(OSError):
        log.close()

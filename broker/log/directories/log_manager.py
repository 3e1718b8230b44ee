"""Shell: all logs of a broker: its log directories, their checkpoints, copies on the move, retention and deletion.

Only the event loop's thread calls it; waiting for a disk goes to Background. A log that fails is logged and does not
stop the periodic work of the others; one that is damaged where nothing may be truncated is offline (`DamagedLogs`). A
directory that fails goes offline alone (KIP-112): its partitions are not served until the broker is restarted, and are
not created elsewhere meanwhile. `_settle` (two logs of a name) and `name_future` (a move) repair what a crash leaves.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from broker.log.config import LogConfig, LogManagerSettings
from broker.log.directories.comparison import agreed_end, is_newer
from broker.log.directories.damaged import DamagedLogs
from broker.log.directories.deletion import DeletedLogs
from broker.log.directories.directories import Done, LogDirectories, Soon, give_up
from broker.log.directories.directory import CheckpointOffsets, LogDirectory
from broker.log.directories.loader import DirectoryContents, LogLoader
from broker.log.directories.upkeep import Interval, LogUpkeep
from broker.log.durability import FLUSH_TIMES
from broker.log.failures import LogDirectoryError, is_full
from broker.log.log import Log
from broker.metrics.times import RecentTimes
from kafka_ds.process.amounts import counted
from kafka_ds.process.seams import Background, Clock, Disk
from kafka_ds.process.system import new_uuid
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import NO_UUID
from kafka_ds.segments import names
from kafka_ds.segments.checkpoint import encode_partition_metadata
from kafka_ds.segments.files import read_or_none, replace, sync_file, write_whole

CLOSE_THREADS = 8
CLOSE_IN_THREADS_FROM = 32
# Deleted logs of a directory that are remembered by name; beyond that, any name may be one of them.
GONE_MAX = 1_000
# How often a full disk is logged.
FULL_LOG_MS = 60_000
_ANY = TopicPartition("", -1)

_LOGGER = logging.getLogger(__name__)


def _unknown(_topic: str) -> bytes | None:
    return None


def _nowhere(_: TopicPartition) -> bytes | None:
    return None


def _ignored(_partitions: Sequence[TopicPartition]) -> None:
    """No broker serves these logs."""


def _at_the_end() -> None:
    """Nothing more is done."""


def _at_once(work: Callable[[], None]) -> None:
    work()


class _Checkpointed:
    """What the checkpoint files of the directories may say, as far as this process knows."""

    def __init__(self) -> None:
        # Deleted logs of a directory, while its files may name them.
        self.gone: dict[LogDirectory, set[TopicPartition]] = {}
        # The entries of replication-offset-checkpoint as last written, or found at the start; none of a newer log.
        self.high_watermarks: dict[TopicPartition, int] = {}
        # The largest log starts that the files may hold; unknown for those found at the start.
        self.starts: dict[LogDirectory, dict[TopicPartition, int]] = {}
        # The log starts that were last to be written, and how often others were: the file's content is known once the
        # last are written.
        self.starts_asked: dict[LogDirectory, CheckpointOffsets] = {}
        self.starts_writes: Counter[LogDirectory] = Counter()
        # The most that cleaner-offset-checkpoint holds; unknown for what was found at the start.
        self.cleaned: dict[LogDirectory, CheckpointOffsets] = {}


@dataclass(slots=True, kw_only=True, eq=False)
class FutureLog:
    """The copy of one log, its directory, and how far it has come in taking the log's place."""

    log: Log
    home: LogDirectory
    of: Log | None
    """The log that it is the copy of, if there is one."""
    is_announced: bool = False
    """The directory is reported to the controller, or about to be."""
    is_named: bool = False
    """Its folder has the log's name already."""

    def announce(self) -> None:
        """The controller is about to be told of the directory."""
        self.is_announced = True

    def copy_start(self) -> None:
        """Copy its log's start and epochs; both have the same end."""
        assert self.of is not None
        self.log.copy_start_of(self.of)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsInCluster:
    """What the cluster's metadata say of logs.

    Without `cluster_id` it is that of the disks, or a new one. `topic_id_for(topic)` decides which of two logs of a
    name is the topic's, `home_for(partition)` is the directory in the metadata. `producer_id_expiration_ms()` is
    the current setting.
    """

    config_for: Callable[[str], LogConfig]
    producer_id_expiration_ms: Callable[[], int]
    cluster_id: str | None = None
    topic_id_for: Callable[[str], bytes | None] = _unknown
    home_for: Callable[[TopicPartition], bytes | None] = _nowhere


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureHandling:
    """What follows when a directory fails.

    `soon` lets a failure take effect later, as it may be noticed in the middle of any work. `directory_failed` is
    called with the partitions of a directory that has failed, and `all_failed` when none is left, where Kafka halts.
    """

    soon: Soon = _at_once
    directory_failed: Callable[[Sequence[TopicPartition]], None] = _ignored
    all_failed: Callable[[], None] = _at_the_end


class LogManager:
    """The logs of a broker, by topic and partition."""

    def __init__(
        self,
        log_dirs: Sequence[str],
        settings: LogManagerSettings,
        *,
        node_id: int,
        disk: Disk,
        clock: Clock,
        background: Background,
        cluster: LogsInCluster,
        failures: FailureHandling,
    ) -> None:
        self._disk, self._clock, self._background = disk, clock, background
        self._node_id, self._cluster_id = node_id, cluster.cluster_id
        self._config_for = cluster.config_for
        self._producer_id_expiration_ms = cluster.producer_id_expiration_ms
        self._directories = LogDirectories(
            disk, log_dirs, background, soon=failures.soon, failed=self.fail
        )
        self._loader = LogLoader(
            disk,
            clock,
            background,
            config_of=cluster.config_for,
            report=self._storage_failed,
            threads_per_directory=settings.num_recovery_threads_per_data_dir,
        )
        self._topic_id_for, self._home_for = cluster.topic_id_for, cluster.home_for
        # What full disks have refused since the last `take_refused`; their last errors, and when one was logged.
        self._refused: dict[TopicPartition, LogDirectory] = {}
        self._full: dict[LogDirectory, OSError] = {}
        self._full_logged_ms: dict[LogDirectory, int] = {}
        # Partitions whose log is, or may be, in a directory that has failed.
        self._offline: set[TopicPartition] = set()
        self._directory_failed, self._all_failed = failures.directory_failed, failures.all_failed
        self._logs: dict[TopicPartition, Log] = {}
        self._homes: dict[TopicPartition, LogDirectory] = {}
        self._futures: dict[TopicPartition, FutureLog] = {}
        # The old log, until the disk has all of it in its new place.
        self._leaving: dict[TopicPartition, tuple[LogDirectory, Log]] = {}
        self.damaged = DamagedLogs(disk)
        self._deleted = DeletedLogs(disk, clock, self._directories)
        self._checkpointed = _Checkpointed()
        self._upkeep = LogUpkeep()
        self._rolled: list[Log] = []
        # The directories in which no logs are to be created (KIP-1066).
        self.cordoned_log_dirs: frozenset[str] = frozenset()
        self.update_cordoned_log_dirs(settings.cordoned_log_dirs)
        # Where logs are to be created that do not exist yet, by the path of a directory.
        self.preferred: dict[TopicPartition, str] = {}
        now_ms = clock.now_ms()
        self._checkpoints_due = Interval(settings.log_flush_offset_checkpoint_interval_ms, now_ms)
        self._retention_due = Interval(settings.log_retention_check_interval_ms, now_ms)
        self._expiration_due = Interval(settings.producer_id_expiration_check_interval_ms, now_ms)
        self.recovery_losses: dict[
            TopicPartition, tuple[int, int]
        ] = {}  # Bytes and offsets, of this start.
        self._is_closing = False
        self.was_clean, self.previous_broker_epoch = False, -1

    # -- start --------------------------------------------------------------------------------

    @property
    def cluster_id(self) -> str:
        assert self._cluster_id is not None, "load() has not been called"
        return self._cluster_id

    @property
    def directory_ids(self) -> dict[str, bytes]:
        """The ids of the directories that have not failed, by path."""
        return {each.path: each.directory_id for each in self._directories.online}

    @property
    def cordoned_directory_ids(self) -> list[bytes]:
        """The ids of those that are cordoned and have not failed."""
        return [id_ for path, id_ in self.directory_ids.items() if path in self.cordoned_log_dirs]

    def update_cordoned_log_dirs(self, paths: Collection[str]) -> None:
        """Create no logs in these directories from now on; `*` means all."""
        every = self._directories.failures
        self.cordoned_log_dirs = frozenset(every if "*" in paths else every.keys() & paths)

    @property
    def failures(self) -> Mapping[str, OSError | None]:
        """The error of each failed directory, by path."""
        return self._directories.failures

    @property
    def flush_times(self) -> RecentTimes:
        """How long flushes of logs took, in seconds."""
        return FLUSH_TIMES

    @property
    def remaining_to_load(self) -> Mapping[str, int]:
        """The number of logs of each directory that are still to be opened."""
        return dict(self._loader.remaining)

    def directory_id_of(self, key: TopicPartition) -> bytes | None:
        """The id of the directory that holds a partition's log, or would if it were created now.

        None if a failed directory may hold it.
        """
        home = self._homes.get(key) or self.damaged.home_of(key)
        future = self.future_log(key)
        if future is not None and future.is_announced:
            home = future.home
        if home is None:
            if self._directories.some_failed:
                return None
            home = self._in_turn(key)[0]
        return home.directory_id

    def _in_turn(self, key: TopicPartition) -> list[LogDirectory]:
        """Where a log would be created: in the requested directory, else in the one with the fewest logs.

        In a cordoned one only if all are: the controller did not know it yet.
        """
        counts, wanted = Counter(self._homes.values()), self.preferred.get(key)
        online, cordoned = self._directories.online, self.cordoned_log_dirs
        open_ones = [each for each in online if each.path not in cordoned or each.path == wanted]
        return sorted(open_ones or online, key=lambda each: (each.path != wanted, counts[each]))

    def load(self) -> None:
        """Lock the directories, open every log in them and recover where needed; may take long."""
        directories = self._directories
        try:
            self._cluster_id = directories.claim(
                node_id=self._node_id, cluster_id=self._cluster_id, now_ms=self._clock.now_ms()
            )
            found = self._loader.load(directories.online)
            for contents in found:
                self._add_loaded(contents)
            self._offline.update(key for key in self.damaged if key not in self._logs)
            some_failed = directories.some_failed or len(self.damaged) > 0
            self._recover_futures(some_failed=some_failed)
            self._checkpointed.high_watermarks = self._high_watermarks_of(found)
            directories.check()
        except BaseException:
            directories.release()
            raise
        self.was_clean = directories.were_clean
        lost = self._with_lost_records()
        if lost and self.was_clean:
            _LOGGER.error(
                "%s lost records after a clean stop: registering as after an unclean one, so that replicas that have "
                "them are elected",
                counted(len(lost), "log"),
            )  # fmt: skip
        else:
            self.previous_broker_epoch = directories.previous_broker_epoch

    def _with_lost_records(self) -> set[TopicPartition]:
        """The logs that hold less than they are known to have held, or are gone."""
        shorter = {key for key, (_, offsets) in self.recovery_losses.items() if offsets}
        filled = {key for key, offset in self._checkpointed.high_watermarks.items() if offset}
        return shorter | (filled - self._logs.keys() - set(self.damaged))

    def _add_loaded(self, contents: DirectoryContents) -> None:
        directory = contents.directory
        if contents.failure is not None:
            give_up(directory, contents.failure, len(contents.logs))
            return
        for key in contents.gone:
            self._gone(directory, key)
        self._deleted.found(directory, contents.deleted)
        self.damaged.found(directory, contents.damaged)
        for key, log in contents.logs.items():
            log.raise_known_end_offset(contents.high_watermarks.get(key, 0))
            size_bytes = 0 if log.dropped is None else log.dropped.size_bytes
            offsets = log.known_end_offset - log.log_end_offset
            if size_bytes or offsets:
                self.recovery_losses[key] = size_bytes, offsets
        for key, log in contents.logs.items():
            if key in self._logs and not self._settle(key, log, directory):
                continue
            self._adopt(key, log, directory)
            log.compaction.cleaned_to(contents.cleaned_offsets.get(key))
        for copy in contents.futures:
            self._found_future(copy, directory)

    def _settle(self, key: TopicPartition, log: Log, directory: LogDirectory) -> bool:
        """Decide which of two logs of a name stays; returns whether this one does.

        Of different topics the existing one's does: the other one's directory was offline when its topic was deleted.
        The other is set aside. If it is not known which topic exists, the start ends.
        """
        first, home = self._logs[key], self._homes[key]
        topic_id = self._topic_id_for(log.topic)
        if first.topic_id == log.topic_id != NO_UUID:
            return self._replaces(first, home, log, directory)
        # Without an owner and empty: the disk was full, or power was lost, while it was created, and it was created
        # elsewhere.
        if log.topic_id == NO_UUID and log.log_end_offset == 0:
            self._discard(directory, log)
            return False
        if first.topic_id == NO_UUID and first.log_end_offset == 0:
            self._discard(home, first)
            return True
        if first.topic_id == log.topic_id or topic_id not in (first.topic_id, log.topic_id):
            raise LogDirectoryError(
                f"Duplicate log directories found for {log.name}: {home}, {directory}"
            )
        if topic_id == log.topic_id:
            self._set_aside(first, home)
            return True
        self._set_aside(log, directory)
        return False

    def _replaces(self, first: Log, home: LogDirectory, log: Log, directory: LogDirectory) -> bool:
        """Of two logs of a topic, one had just taken the other's place: the newer stays (`replace_with_future`)."""
        start_offset = max(first.log_start_offset, log.log_start_offset)
        is_second = is_newer(log, first)
        newer, older, gone = (log, first, home) if is_second else (first, log, directory)
        _LOGGER.warning(
            "Duplicate log directories found for %s: %s, %s; keeping %s",
            log.name,
            home,
            directory,
            newer.directory,
        )
        if agreed_end(newer, older) < older.log_end_offset:
            # The newer one went on from a copy that was not complete: an operator may want the rest.
            self._set_aside(older, gone)
        else:
            self._discard(gone, older)
        if newer.log_start_offset < start_offset <= newer.log_end_offset:
            newer.advance_log_start_offset(start_offset)
        return is_second

    def _recover_futures(self, *, some_failed: bool) -> None:
        """Let copies continue, or take the places of logs that are gone."""
        for log in tuple(self._logs.values()):
            self._resume_future(log)
        for key, future in tuple(self._futures.items()):
            if future.of is not None:
                continue
            is_assigned = self._home_for(key) == future.home.directory_id
            if is_assigned or not some_failed:
                self._adopt(key, self._without_log(future), future.home)

    def _high_watermarks_of(self, found: Iterable[DirectoryContents]) -> dict[TopicPartition, int]:
        """Each log's high watermark in its directory's checkpoint; of a missing log the largest of any directory."""
        offsets: dict[TopicPartition, int] = {}
        for contents in found:
            for key, offset in contents.high_watermarks.items():
                home = self._homes.get(key)
                if home is contents.directory:
                    offsets[key] = offset
                elif home is None:
                    offsets[key] = max(offset, offsets.get(key, 0))
        return offsets

    def _set_aside(self, log: Log, directory: LogDirectory) -> str:
        """Close a log and rename its folder as stray; returns the new name."""
        log.close()
        name = names.renamed_folder_name(log.topic, log.partition, new_uuid(), names.STRAY_FOLDER)
        self._disk.rename(log.directory, directory.file(name))
        return name

    def _adopt(self, key: TopicPartition, log: Log, directory: LogDirectory) -> None:
        """Use this log for the partition from now on."""
        self._logs[key] = log
        self._homes[key] = directory
        self._upkeep.add(key, log)

    # -- logs -----------------------------------------------------------------------------------

    def get(self, key: TopicPartition) -> Log | None:
        return self._logs.get(key)

    def logs(self) -> Iterable[Log]:
        return self._logs.values()

    def is_offline(self, key: TopicPartition) -> bool:
        """Whether the partition's log is in a failed directory, as far as that can be known."""
        return key in self._offline

    def is_damaged(self, key: TopicPartition, topic_id: bytes) -> bool:
        """Whether the log of this topic's partition exists, and is offline because it is damaged."""
        return key not in self._logs and self.damaged.has(key, topic_id)

    def create(
        self,
        key: TopicPartition,
        topic_id: bytes,
        config: LogConfig | None = None,
        *,
        is_new: bool = False,
    ) -> Log:
        """The log of a partition, created if missing; a log of another topic id there is set aside.

        Raises KAFKA_STORAGE_ERROR if no directory can take it, if it exists and is damaged, or if it may be in an
        offline directory: then only a log that is known to be new is created.
        """
        known = self._logs.get(key)
        if known is not None and known.topic_id not in (topic_id, NO_UUID):
            self.delete(key)
            known = None
        if known is not None:
            if config is not None:
                known.update_config(config)
            if known.topic_id != topic_id:
                home = self._homes[key]
                try:
                    self._write_topic_id(known, topic_id, home)
                except OSError as error:
                    self._directories.note(home, home.path, error)
                    raise _unavailable(f"{key}: {error}") from error
                known.assign_topic_id(topic_id)
            return known
        if self._directories.some_failed and not is_new:
            self._offline.add(key)
            raise _unavailable(f"{key} may be in a log directory that is offline")
        self._pass_damaged(key, topic_id, is_new=is_new)
        self._offline.discard(key)
        in_turn = self._in_turn(key)
        self.preferred.pop(key, None)
        refusals: list[tuple[LogDirectory, OSError]] = []
        for directory in in_turn:
            try:
                return self._make(directory, key, topic_id, config, is_new=is_new)
            except OSError as error:
                self._directories.note(directory, directory.path, error)
                refusals.append((directory, error))
        for directory, refusal in refusals:
            self._note_full(directory, key, refusal)
        raise _unavailable(f"no log directory can take {key}")

    def _pass_damaged(self, key: TopicPartition, topic_id: bytes, *, is_new: bool) -> None:
        """Set a damaged log aside that another topic left; raises KAFKA_STORAGE_ERROR if it is this one's."""
        home = self.damaged.home_of(key)
        if home is None:
            return
        try:
            damage = self.damaged.why_not(key, topic_id, is_new=is_new)
        except OSError as error:
            damage = str(error)
        if damage is not None:
            self._offline.add(key)
            raise _unavailable(damage)
        self._gone(home, key)

    def _make(
        self,
        directory: LogDirectory,
        key: TopicPartition,
        topic_id: bytes,
        config: LogConfig | None,
        *,
        is_new: bool,
    ) -> Log:
        topic, partition = key
        name = names.folder_name(topic, partition)
        self._deleted.clear_way(directory, name, topic_id, is_new=is_new)
        self._forget_checkpoints(directory, key)
        log = Log.open(
            directory.file(name),
            config or self._config_for(topic),
            self._disk,
            self._clock,
            topic=topic,
            partition=partition,
            topic_id=topic_id,
            background=self._background,
            report=self._storage_failed,
        )
        self._write_topic_id(log, log.topic_id, directory)
        self._adopt(key, log, directory)
        return log

    def _write_topic_id(self, log: Log, topic_id: bytes, home: LogDirectory) -> None:
        path = f"{log.directory}/{names.PARTITION_METADATA}"
        replace(self._disk, path, encode_partition_metadata(topic_id), durable=False)

        def work() -> None:
            sync_file(self._disk, path)
            with suppress(FileNotFoundError):  # Deleted meanwhile.
                self._disk.sync_directory(log.directory)
            self._disk.sync_directory(home.path)

        self._directories.submit(home, f"writing {path}", work)

    def delete(self, key: TopicPartition) -> None:
        """Rename the log's folder at once, and remove its files after file.delete.delay.ms."""
        self.preferred.pop(key, None)
        self.drop_future_log(key)
        self.discard_replaced(key)
        log = self._logs.pop(key, None)
        self._upkeep.forget(key)
        if log is not None:
            self._discard(self._homes.pop(key), log)
        else:
            self.set_damaged_aside(key)

    def _discard(self, home: LogDirectory, log: Log) -> None:
        """Rename a log's folder as deleted, and remove its files later."""
        self._gone(home, log.topic_partition)
        self._deleted.discard(home, log)

    def set_aside(self, key: TopicPartition) -> str:
        """Close a log without an owner and rename its folder to `…-stray`; returns the new name.

        Nothing deletes such a folder: the log may be another cluster's, or this one's metadata may be the wrong ones.
        """
        self.drop_future_log(key)
        log = self._logs.pop(key)
        self._upkeep.forget(key)
        home = self._homes.pop(key)
        self._gone(home, key)
        return self._set_aside(log, home)

    def set_damaged_aside(self, key: TopicPartition) -> None:
        """The same for a damaged log, if there is one; if its disk refuses, the next start tries again."""
        home = self.damaged.home_of(key)
        if home is None:
            return
        try:
            self.damaged.set_aside(key)
            self._gone(home, key)
            self._offline.discard(key)
        except OSError as error:
            _LOGGER.error("%s is damaged, and cannot be set aside: %s", key, error)
            self._directories.note(home, home.path, error)

    # -- failed directories --------------------------------------------------------------------

    def _storage_failed(self, folder: str, error: OSError) -> None:
        """A write, sync or read of the log in this folder failed, or its disk was full."""
        home = next(
            each for each in self._directories.all if folder.rpartition("/")[0] == each.path
        )
        if self._is_closing:
            return
        self._directories.note(home, folder, error)
        name = names.parse_folder_name(folder.rpartition("/")[2])
        if name is not None and not name.suffix:
            self._note_full(home, TopicPartition(name.topic, name.partition), error)

    def _note_full(self, home: LogDirectory, key: TopicPartition, error: OSError) -> None:
        if not is_full(error):
            return
        now_ms, logged_ms = self._clock.monotonic_ms(), self._full_logged_ms.get(home)
        if logged_ms is None or now_ms - logged_ms >= FULL_LOG_MS:
            self._full_logged_ms[home] = now_ms
            _LOGGER.error("Error while appending records to %s in dir %s: %s", key, home, error)
        self._refused[key], self._full[home] = home, error

    def take_refused(self) -> dict[TopicPartition, bytes]:
        """The partitions whose log a full disk has refused to write since the last call, and their directories' ids."""
        refused = {key: home.directory_id for key, home in self._refused.items()}
        self._refused.clear()
        return refused

    def keep_online(self, directory_ids: Collection[bytes]) -> None:
        """Take offline each directory with a full disk that is not one of these."""
        for home, error in tuple(self._full.items()):
            if home.failure is None and home.directory_id not in directory_ids:
                self.fail(home, error)

    def fail(self, directory: LogDirectory, error: OSError) -> None:
        """Take a directory offline, with everything in it."""
        keys = [key for key, home in self._homes.items() if home is directory]
        give_up(directory, error, len(keys))
        gone = [self._logs.pop(key) for key in keys]
        for key, log in zip(keys, gone, strict=True):
            del self._homes[key]
            self._upkeep.forget(key)
            log.abandon()
        self._offline.update(keys)
        self._futures_failed(directory, keys)
        gone += self._deleted.directory_failed(directory)
        self._directory_failed(keys)
        for log in gone:
            with suppress(OSError):
                log.close()
        if not self._directories.online:
            _LOGGER.critical("Shutdown broker because all log dirs have failed")
            self._all_failed()

    # -- checkpoints ----------------------------------------------------------------------------
    #
    # Each directory's files name the logs in it, copies on the move included, and damaged logs by the entries that they
    # had before. They name a log that has gone until they are written again; before one of that name is made they are.
    # Else a crash would have the new log begin where the old one did, or count as committed, or clean, what is not.

    def high_watermark_checkpoints(self) -> dict[TopicPartition, int]:
        """The entries of the last replication-offset-checkpoint."""
        return dict(self._checkpointed.high_watermarks)

    def _gone(self, directory: LogDirectory, key: TopicPartition) -> None:
        """A directory has no log of this name any more, while its files may name it."""
        gone = self._checkpointed.gone.setdefault(directory, set())
        gone.add(key if len(gone) < GONE_MAX else _ANY)

    def _forget_checkpoints(self, directory: LogDirectory, key: TopicPartition) -> None:
        """Before a log is created: remove entries of an earlier one of its name. Waits for the disk; raises OSError."""
        self._checkpointed.high_watermarks.pop(key, None)
        gone = self._checkpointed.gone.get(directory, ())
        if key in gone or _ANY in gone:
            self.checkpoint_logs(directory, wait=True)
            known = self._own(directory, self._checkpointed.high_watermarks)
            self._write_checkpoint(directory, names.HIGH_WATERMARK_CHECKPOINT, known, wait=True)
            del self._checkpointed.gone[directory]

    def checkpoint_high_watermarks(self, high_watermarks: CheckpointOffsets) -> None:
        """Write replication-offset-checkpoint."""
        self._checkpointed.high_watermarks = dict(high_watermarks)
        is_alone = len(self._directories.all) == 1
        for directory in self._directories.online:
            own = high_watermarks if is_alone else self._own(directory, high_watermarks)
            self._write_checkpoint(directory, names.HIGH_WATERMARK_CHECKPOINT, own)

    def _own(self, directory: LogDirectory, offsets: CheckpointOffsets) -> CheckpointOffsets:
        """Those of the logs in a directory."""
        return {key: offsets[key] for key, _ in self._placed(directory) if key in offsets}

    async def checkpoint_recovery_points(self, *folders: str) -> None:
        """Write recovery-point-offset-checkpoint where these logs' folders are, or everywhere; raises OSError.

        In Background, also if another write may be in progress. Log starts and clean offsets that were lowered are
        written, too. A truncated log must not be appended to while its old entries would be trusted.
        """
        homes = self._homes_of(folders)
        await self._write_checkpoints(names.RECOVERY_POINT_CHECKPOINT, self._recovery_points, homes)
        unclean = [directory for directory in homes if self._is_cleaned_lowered(directory)]
        if unclean:
            await self._write_checkpoints(names.CLEANER_CHECKPOINT, self._record_cleaned, unclean)
        lowered = [directory for directory in homes if self._is_start_lowered(directory)]
        if lowered:
            await self._write_starts_now(lowered)

    def write_recovery_points(self, *folders: str) -> None:
        """The same for a log that is appended to at once: waits for the disk."""
        for directory in self._homes_of(folders):
            own = self._recovery_points(directory)
            self._write_checkpoint(directory, names.RECOVERY_POINT_CHECKPOINT, own, wait=True)
            if self._is_cleaned_lowered(directory):
                self._write_cleaned(directory, wait=True)
            if self._is_start_lowered(directory):
                self._write_starts(directory, wait=True)

    async def checkpoint_log_starts(self, *folders: str) -> None:
        """Write log-start-offset-checkpoint, as `checkpoint_recovery_points`; raises OSError."""
        await self._write_starts_now(self._homes_of(folders))

    async def _write_starts_now(self, homes: Iterable[LogDirectory]) -> None:
        written = {directory: dict(self._log_starts(directory)) for directory in homes}
        asked = {
            directory: self._starts_asked(directory, written[directory]) for directory in written
        }
        await self._write_checkpoints(
            names.LOG_START_OFFSET_CHECKPOINT, written.__getitem__, written
        )
        for directory, starts in written.items():
            self._starts_written(directory, starts, asked[directory])

    def _write_starts(self, directory: LogDirectory, *, wait: bool) -> None:
        own = dict(self._log_starts(directory))
        asked = self._starts_asked(directory, own)
        then = partial(self._starts_written, directory, own, asked)
        name = names.LOG_START_OFFSET_CHECKPOINT
        self._write_checkpoint(directory, name, own, wait=wait, then=then)

    def _starts_written(
        self, directory: LogDirectory, starts: CheckpointOffsets, asked: int
    ) -> None:
        """The file holds these, unless another write of it was requested since."""
        if asked != self._checkpointed.starts_writes[directory]:
            return
        self._checkpointed.starts[directory] = dict(starts)
        for key, log in self._placed(directory):
            log.log_start_offset_checkpointed(starts.get(key, 0))

    def _starts_asked(self, directory: LogDirectory, starts: CheckpointOffsets) -> int:
        """These log starts may be on disk from now on; returns the number of the write."""
        checkpointed = self._checkpointed
        if starts != checkpointed.starts_asked.get(directory):
            checkpointed.starts_asked[directory] = starts
            checkpointed.starts_writes[directory] += 1
        known = checkpointed.starts.get(directory)
        if known is not None:
            for key, start in starts.items():
                known[key] = max(known.get(key, start), start)
        return checkpointed.starts_writes[directory]

    def _is_start_lowered(self, directory: LogDirectory) -> bool:
        """Whether a log may begin below the file's entry, which a start would trust."""
        known = self._checkpointed.starts.get(directory)
        return known is None or any(
            log.log_start_offset < known.get(key, 0) for key, log in self._placed(directory)
        )

    def _homes_of(self, folders: Collection[str]) -> list[LogDirectory]:
        """The directories of logs that are in these folders; without any, all that are online."""
        homes = {folder.rpartition("/")[0] for folder in folders}
        return [each for each in self._directories.online if not homes or each.path in homes]

    async def _write_checkpoints(
        self,
        name: str,
        offsets: Callable[[LogDirectory], CheckpointOffsets],
        homes: Iterable[LogDirectory],
    ) -> None:
        """Write in Background, even if another write of the same may be in progress."""
        loop = asyncio.get_running_loop()
        waiting = []
        for directory in homes:
            written: asyncio.Future[None] = loop.create_future()
            self._directories.checkpoint_and_report(
                directory,
                name,
                self._with_kept(directory, name, offsets(directory)),
                partial(_settled, written),
            )
            waiting.append(written)
        await asyncio.gather(*waiting)

    def checkpoint_cleaned(self) -> None:
        """Write cleaner-offset-checkpoint."""
        for directory in self._directories.online:
            self._write_cleaned(directory, wait=False)

    def _write_cleaned(self, directory: LogDirectory, *, wait: bool) -> None:
        own = self._record_cleaned(directory)
        self._write_checkpoint(directory, names.CLEANER_CHECKPOINT, own, wait=wait)

    def _record_cleaned(self, directory: LogDirectory) -> CheckpointOffsets:
        self._checkpointed.cleaned[directory] = {
            key: offset
            for key, log in self._placed(directory)
            if (offset := log.compaction.cleaned_offset) is not None
        }
        return self._checkpointed.cleaned[directory]

    def _is_cleaned_lowered(self, directory: LogDirectory) -> bool:
        """Whether less of a log may be clean than the file's entry, which a start would trust."""
        known = self._checkpointed.cleaned.get(directory)
        return any(
            known is None or offset < known.get(key, -1)
            for key, log in self._placed(directory)
            if (offset := log.compaction.cleaned_offset) is not None
        )

    def checkpoint_logs(self, directory: LogDirectory, *, wait: bool = False) -> None:
        """Write recovery points, clean offsets and log starts of a directory; raises OSError if waiting."""
        points = self._recovery_points(directory)
        self._write_checkpoint(directory, names.RECOVERY_POINT_CHECKPOINT, points, wait=wait)
        self._write_cleaned(directory, wait=wait)
        self._write_starts(directory, wait=wait)

    def _write_checkpoint(
        self,
        directory: LogDirectory,
        name: str,
        own: CheckpointOffsets,
        *,
        wait: bool = False,
        then: Callable[[], None] = _at_the_end,
    ) -> None:
        own = self._with_kept(directory, name, own)
        self._directories.checkpoint(directory, name, own, wait=wait, then=then)

    def _with_kept(
        self, directory: LogDirectory, name: str, own: CheckpointOffsets
    ) -> CheckpointOffsets:
        return {**self.damaged.offsets(directory, name), **own}

    def _recovery_points(self, directory: LogDirectory) -> CheckpointOffsets:
        return {key: log.recovery_point for key, log in self._placed(directory)}

    def _log_starts(self, directory: LogDirectory) -> CheckpointOffsets:
        return {
            key: log.log_start_offset
            for key, log in self._placed(directory)
            if log.config.remote_storage_enable or log.log_start_offset > log.first_base_offset
        }

    def _placed(self, directory: LogDirectory) -> Iterator[tuple[TopicPartition, Log]]:
        """The logs in a directory, copies in progress included."""
        for key, log in self._logs.items():
            if self._homes[key] is directory:
                yield key, log
        for future in self.future_logs:
            if future.home is directory:
                yield future.log.topic_partition, future.log

    # -- copies on the move (KIP-113) -------------------------------------------------------------
    #
    # A copy is a log in a folder `<topic>-<partition>.<id>-future`. It begins where its log's oldest segment does, with
    # the producers that are known there. It is not cleaned, nor is its log meanwhile, as in Kafka. It takes its log's
    # place in steps (`name_future`, `replace_with_future`, `discard_replaced`); a crash between any two of them loses
    # nothing: both are whole, and a start takes the newer one, or goes on copying where it finds a `-future` folder.

    def future_log(self, key: TopicPartition) -> FutureLog | None:
        """The copy of a partition's log."""
        return self._futures.get(key)

    @property
    def future_logs(self) -> tuple[FutureLog, ...]:
        """All copies."""
        return tuple(self._futures.values())

    def _found_future(self, log: Log, home: LogDirectory) -> None:
        """A copy found at the start. Of two (a move that was redirected before it was done) the longer stays."""
        key = log.topic_partition
        other = self._futures.get(key)
        if other is not None:
            if other.log.log_end_offset >= log.log_end_offset:
                self._discard(home, log)
                return
            self._discard(other.home, other.log)
        self._futures[key] = FutureLog(log=log, home=home, of=None)

    def _resume_future(self, log: Log) -> None:
        """Continue the copy of a log that was found, if there is one."""
        key = log.topic_partition
        future = self._futures.get(key)
        if future is None:
            return
        if future.log.topic_id != log.topic_id:
            self.drop_future_log(key)
            return
        future.of = log
        log.compaction.pause()
        end_offset = agreed_end(log, future.log)
        if end_offset < future.log.first_base_offset:
            self.drop_future_log(key)
        elif end_offset < future.log.log_end_offset:
            # A crash has taken more from the log than from its copy.
            try:
                future.log.truncate_to(end_offset)
            except OSError as error:  # No reason to stop the broker's start.
                _LOGGER.error("%s: stopped moving to %s: %s", log.name, future.home, error)
                self.drop_future_log(key)

    def _without_log(self, future: FutureLog) -> Log:
        """Make a copy whose log is missing the log; the caller adopts it."""
        topic, partition = future.log.topic, future.log.partition
        del self._futures[future.log.topic_partition]
        _LOGGER.warning("%s has no log; using its copy in %s", future.log.name, future.home)
        self._rename_future(future, names.folder_name(topic, partition))
        self._disk.sync_directory(future.home.path)
        return future.log

    def create_future_log(self, log: Log, home: LogDirectory) -> FutureLog:
        """Create an empty copy of a log in another directory; raises KAFKA_STORAGE_ERROR if that fails."""
        key = log.topic_partition
        assert key not in self._futures
        try:
            copy = self._seed_future(log, home)
        except OSError as error:
            self._directories.note(home, home.path, error)
            problem = f"{home} does not take {log.name}: {error}"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, problem) from error
        log.compaction.pause()
        future = FutureLog(log=copy, home=home, of=log)
        self._futures[key] = future
        return future

    def _seed_future(self, log: Log, home: LogDirectory) -> Log:
        name = names.renamed_folder_name(log.topic, log.partition, new_uuid(), names.FUTURE_FOLDER)
        try:
            return self._write_future(log, home.file(name))
        except OSError:
            # A refused move: the next start must not continue it. The remains are a few bytes.
            with suppress(OSError):
                home.remove_tree(name)
            raise

    def _write_future(self, log: Log, folder: str) -> Log:
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
            report=self._storage_failed,
        )

    def drop_future_log(self, key: TopicPartition) -> None:
        """Delete a copy: the move is cancelled."""
        future = self._futures.pop(key, None)
        if future is not None:
            _let_be(future)
            self._discard(future.home, future.log)

    # -- taking the log's place -----------------------------------------------------------------

    def name_future(self, future: FutureLog, done: Done) -> None:
        """Step 1: the copy's folder gets the log's name; `done` when that is durable. Raises OSError."""
        log = future.log
        if not future.is_named:
            self._rename_future(future, names.folder_name(log.topic, log.partition))
            future.is_named = True
        work = partial(self._sync_names, log.directory, future.home.path)
        self._directories.submit_and_report(
            future.home, f"making {log.directory} durable", work, done
        )

    def _sync_names(self, folder: str, parent: str) -> None:
        sync_file(self._disk, f"{folder}/{names.PARTITION_METADATA}")
        self._disk.sync_directory(folder)
        self._disk.sync_directory(parent)

    def _rename_future(self, future: FutureLog, name: str) -> None:
        path = future.home.file(name)
        self._disk.rename(future.log.directory, path)
        future.log.renamed(path)

    def replace_with_future(self, key: TopicPartition) -> None:
        """Step 2: the log continues in the copy's folder, which holds all of it."""
        future, log = self._futures[key], self._logs[key]
        assert future.is_named
        assert future.of is log
        future.copy_start()
        log.exchange_files(future.log)
        del self._futures[key]
        self._leaving[key] = self._homes[key], future.log
        self._adopt(key, log, future.home)
        _let_be(future)

    def discard_replaced(self, key: TopicPartition) -> None:
        """Step 3: delete the log's old folder."""
        left = self._leaving.pop(key, None)
        if left is not None:
            self._discard(*left)

    def _futures_failed(self, directory: LogDirectory, keys: Iterable[TopicPartition]) -> None:
        """Stop reading and writing in this directory; copies of the logs in it stay on disk."""
        for key, future in tuple(self._futures.items()):
            if future.home is directory:
                _LOGGER.error(
                    "%s: stopped moving: log directory %s has failed", future.log.name, directory
                )
                del self._futures[key]
                _let_be(future)
                _give_up(future.log)
        for key, (home, log) in tuple(self._leaving.items()):
            if home is directory:
                del self._leaving[key]
                _give_up(log)
        for key in keys:
            copy = self._futures.pop(key, None)
            if copy is not None:
                self._close_future(copy)
            left = self._leaving.pop(key, None)
            if left is not None:
                _give_up(left[1])

    def _close_future(self, future: FutureLog) -> bool:
        """Close a copy, to continue at the next start; returns whether that succeeded."""
        try:
            if future.is_named:
                future.is_named = False
                topic, partition = future.log.topic, future.log.partition
                unique = new_uuid()
                self._rename_future(
                    future,
                    names.renamed_folder_name(topic, partition, unique, names.FUTURE_FOLDER),
                )
        except OSError:
            _give_up(future.log)
            return False
        return future.log.close()

    def _close_futures(self, closed: Collection[TopicPartition]) -> list[str]:
        """Close the copies, and finish moves of logs that closed well; returns directories that failed."""
        for key in tuple(self._leaving):
            if key in closed:
                self.discard_replaced(key)
            else:
                _give_up(self._leaving.pop(key)[1])
        return [each.home.path for each in self.future_logs if not self._close_future(each)]

    # -- where logs are -------------------------------------------------------------------------

    def home_of(self, key: TopicPartition) -> LogDirectory | None:
        """The directory that holds a partition's log."""
        return self._homes.get(key)

    @property
    def directories(self) -> LogDirectories:
        """All log directories."""
        return self._directories

    # -- periodic work -------------------------------------------------------------------------

    def tick(self, now_ms: int) -> list[Log]:
        """Do what is due: roll by time, flush by time, retention, checkpoints, deletes.

        Returns the logs that have rolled since it last returned.
        """
        retain = self._retention_due.is_over(now_ms)
        is_due = self._expiration_due.is_over(now_ms)
        expiration_ms = self._producer_id_expiration_ms() if is_due else None
        self._upkeep.run(
            self._logs, now_ms, self._rolled, retain=retain, expiration_ms=expiration_ms
        )
        if self._checkpoints_due.is_over(now_ms):
            for directory in self._directories.online:
                self.checkpoint_logs(directory)
        self._deleted.tick(now_ms)
        rolled, self._rolled = self._rolled, []
        return rolled

    # -- stop ----------------------------------------------------------------------------------

    def close(self, broker_epoch: int = -1) -> None:
        """Flush and close every log and leave the clean-shutdown marker."""
        unclean: set[TopicPartition] = set()
        self._is_closing = True  # A failure from now on leaves no marker, and nothing else.
        for (key, log), was_closed in zip(self._logs.items(), self._close_logs(), strict=True):
            if not was_closed:
                _LOGGER.error("%s was not closed cleanly: %s", log.name, log.storage_error)
                unclean.add(key)
        damaged = {self._homes[key].path for key in unclean}
        damaged.update(self._close_futures(self._logs.keys() - unclean))
        damaged.update(each.path for each in self.damaged.unrecovered())
        self._deleted.close()
        try:
            for directory in self._directories.online:
                try:
                    self.checkpoint_logs(directory, wait=True)
                    if directory.path not in damaged:
                        directory.mark_clean(broker_epoch)
                except OSError as error:
                    _LOGGER.error("cannot mark the clean shutdown of %s: %s", directory, error)
        finally:
            self._directories.release()

    def _close_logs(self) -> Iterable[bool]:
        """Close all logs, many at a time: syncs that wait together are done together."""
        if len(self._logs) < CLOSE_IN_THREADS_FROM:
            return [log.close() for log in self._logs.values()]
        with ThreadPoolExecutor(CLOSE_THREADS) as threads:
            return list(threads.map(Log.close, self._logs.values()))


def _unavailable(message: str) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)


def _let_be(future: FutureLog) -> None:
    """Allow cleaning of the log again: its move is over."""
    if future.of is not None:
        future.of.compaction.resume()


def _give_up(log: Log) -> None:
    log.abandon()
    with suppress(OSError):
        log.close()


def _settled(written: asyncio.Future[None], error: BaseException | None) -> None:
    if written.done():
        return  # No caller waits any more.
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)

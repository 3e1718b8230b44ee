"""Shell: all logs of a broker: its log directories, their checkpoints, retention and deletion.

Rules of this file:
- Only the event loop's thread calls it; waiting for a disk goes to Background.
- A deleted partition's folder is renamed at once, so that the topic may be created again; its files go when their last
  readers must be done.
- A log that fails is logged and does not keep the others from their upkeep.
- A log that is damaged where nothing may be truncated is not served (`broker.log.directories.damaged`).
- A directory that fails goes offline alone (KIP-112): its partitions are not served until the broker is restarted, and
  are not created elsewhere meanwhile. The broker stops when no directory is left.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from broker.log import names
from broker.log.checkpoint import encode_partition_metadata
from broker.log.config import LogConfig
from broker.log.directories.checkpoints import Checkpoints
from broker.log.directories.damaged import DamagedLogs
from broker.log.directories.deletion import DeletedLogs
from broker.log.directories.directories import LogDirectories, Soon, give_up
from broker.log.directories.directory import LogDirectory
from broker.log.directories.found import Found, set_aside
from broker.log.directories.futures import FutureLogs
from broker.log.directories.loading import Contents, Loader
from broker.log.directories.upkeep import Interval, Upkeep
from broker.log.files import replace, sync_file
from broker.log.log import Log
from broker.seams import Background, Clock, Disk
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.types import NO_UUID

Key = tuple[str, int]

PRODUCER_EXPIRATION_CHECK_MS = 600_000
CLOSE_THREADS = 8
CLOSE_IN_THREADS_FROM = 32

_LOGGER = logging.getLogger(__name__)


def _unknown(_topic: str) -> bytes | None:
    return None


def _nowhere(_topic: str, _partition: int) -> bytes | None:
    return None


def _at_once(work: Callable[[], None]) -> None:
    work()


class LogManager:
    """The logs of a broker, by topic and partition."""

    def __init__(
        self,
        log_dirs: Sequence[str],
        *,
        disk: Disk,
        clock: Clock,
        background: Background,
        node_id: int,
        cluster_id: str | None = None,
        config: LogConfig | None = None,
        config_for: Callable[[str], LogConfig] | None = None,
        flush_offset_checkpoint_interval_ms: int = 60_000,
        retention_check_interval_ms: int = 300_000,
        topic_id_for: Callable[[str], bytes | None] = _unknown,
        home_for: Callable[[str, int], bytes | None] = _nowhere,
        recovery_threads: int = 1,
        soon: Soon = _at_once,
    ) -> None:
        """`config_for(topic)` wins over `config`; without `cluster_id` it is that of the disks, or a new one.

        `topic_id_for(topic)` tells which of two logs of a name is the topic's, `home_for(topic, partition)` in which
        directory the cluster believes a log to be. `soon` lets a failure take effect later, as it may be noticed in
        the middle of any work.
        """
        self._disk, self._clock, self._background = disk, clock, background
        self._node_id, self._cluster_id = node_id, cluster_id
        self._config, self._config_for = config or LogConfig(), config_for
        self._directories = LogDirectories(disk, log_dirs, background, soon=soon, failed=self._fail)
        self._loader = Loader(
            disk,
            clock,
            background,
            config_of=self._config_of,
            report=self._storage_failed,
            threads_per_directory=recovery_threads,
        )
        # Partitions whose log is, or may be, in a directory that has failed.
        self._offline: set[Key] = set()
        # Set by the owner of the partitions: called with the id of a failed directory and the partitions in it.
        self.on_directory_failed: Callable[[bytes, Sequence[Key]], None] | None = None
        # What is to happen when no directory is left; Kafka halts.
        self.on_all_failed: Callable[[], None] | None = None
        self._logs: dict[Key, Log] = {}
        self._homes: dict[Key, LogDirectory] = {}
        self._deleted = DeletedLogs(disk, clock, self._directories)
        self.futures = FutureLogs(
            disk,
            clock,
            background,
            self._directories,
            self._logs,
            self._homes,
            self,
            self._storage_failed,
        )
        self._found = Found(
            disk, self._logs, self._homes, self.futures, self, topic_id_for, home_for
        )
        self.damaged = DamagedLogs(disk)
        self.checkpoints = Checkpoints(self._directories, self._placed, self.damaged.offsets)
        self._upkeep = Upkeep()
        # Where logs are to be made that are not there yet, by the path of a directory.
        self.preferred: dict[Key, str] = {}
        now_ms = clock.now_ms()
        self._checkpoints_due = Interval(flush_offset_checkpoint_interval_ms, now_ms)
        self._retention_due = Interval(retention_check_interval_ms, now_ms)
        self._expiration_due = Interval(PRODUCER_EXPIRATION_CHECK_MS, now_ms)
        self.recovery_losses: dict[Key, tuple[int, int]] = {}  # Bytes and offsets, of this start.
        self._is_closing = False
        self.was_clean, self.previous_broker_epoch = False, -1

    # -- beginning ------------------------------------------------------------------------------

    @property
    def cluster_id(self) -> str:
        assert self._cluster_id is not None, "load() has not been called"
        return self._cluster_id

    @property
    def directory_ids(self) -> dict[str, bytes]:
        """The ids of the directories that have not failed, by path."""
        return {each.path: each.directory_id for each in self._directories.online}

    @property
    def failures(self) -> Mapping[str, OSError | None]:
        """The error of each failed directory, by path."""
        return self._directories.failures

    @property
    def remaining_to_load(self) -> Mapping[str, int]:
        """The number of logs of each directory that are still to be opened."""
        return dict(self._loader.remaining)

    def directory_id_of(self, topic: str, partition: int) -> bytes | None:
        """The id of the directory that holds a partition's log, is about to, or would if it were made now.

        None if a failed directory may hold it.
        """
        key = topic, partition
        home = self._homes.get(key) or self.damaged.home_of(key)
        future = self.futures.get(topic, partition)
        if future is not None and future.is_announced:
            home = future.home
        if home is None:
            if self._directories.some_failed:
                return None
            home = self._in_turn(key)[0]
        return home.directory_id

    def _in_turn(self, key: Key) -> list[LogDirectory]:
        """Where a log would be created: in the wanted directory, else in the one with the fewest logs."""
        counts, wanted = Counter(self._homes.values()), self.preferred.get(key)
        online = self._directories.online
        return sorted(online, key=lambda each: (each.path != wanted, counts[each]))

    def load(self) -> None:
        """Lock the directories, open every log in them and recover where needed; may take long."""
        directories = self._directories
        try:
            self._cluster_id = directories.claim(
                node_id=self._node_id, cluster_id=self._cluster_id, now_ms=self._clock.now_ms()
            )
            found = self._loader.load(directories.online)
            for contents in found:
                self._take(contents)
            self._offline.update(key for key in self.damaged if key not in self._logs)
            some_failed = directories.some_failed or len(self.damaged) > 0
            self._found.take_futures(some_failed=some_failed)
            self.checkpoints.last_high_watermarks = self._found.watermarks(found)
            directories.check()
        except BaseException:
            directories.release()
            raise
        self.was_clean = directories.were_clean
        if self.was_clean and directories.all:
            self.previous_broker_epoch = directories.all[0].previous_broker_epoch

    def _take(self, contents: Contents) -> None:
        directory = contents.directory
        if contents.failure is not None:
            give_up(directory, contents.failure, len(contents.logs))
            return
        for key in contents.gone:
            self.checkpoints.gone(directory, key)
        self._deleted.found(directory, contents.deleted)
        self.damaged.found(directory, contents.damaged)
        for key, log in contents.logs.items():
            log.known_end_offset = max(log.known_end_offset, contents.high_watermarks.get(key, 0))
            size_bytes = 0 if log.dropped is None else log.dropped.size_bytes
            offsets = log.known_end_offset - log.log_end_offset
            if size_bytes or offsets:
                self.recovery_losses[key] = size_bytes, offsets
        self._found.take(contents)

    def adopt(self, key: Key, log: Log, directory: LogDirectory) -> None:
        """Take this as the partition's log from now on."""
        self._logs[key] = log
        self._homes[key] = directory
        self._upkeep.add(key, log)

    def _config_of(self, topic: str) -> LogConfig:
        return self._config if self._config_for is None else self._config_for(topic)

    # -- logs -----------------------------------------------------------------------------------

    def get(self, topic: str, partition: int) -> Log | None:
        return self._logs.get((topic, partition))

    def logs(self) -> Iterable[Log]:
        return self._logs.values()

    def is_offline(self, topic: str, partition: int) -> bool:
        """Whether the partition's log is in a failed directory, as far as that can be known."""
        return (topic, partition) in self._offline

    def is_damaged(self, topic: str, partition: int, topic_id: bytes) -> bool:
        """Whether the log of this topic's partition is there, and is not served because it is damaged."""
        key = topic, partition
        return key not in self._logs and self.damaged.has(key, topic_id)

    def create(
        self,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: LogConfig | None = None,
        *,
        is_new: bool = False,
    ) -> Log:
        """The log of a partition, created if missing; what another topic id left there goes.

        Raises KAFKA_STORAGE_ERROR if no directory takes it, if it is there and damaged, or if it may be in a
        directory that is offline: then only a log that is known to be new is created.
        """
        key = topic, partition
        known = self._logs.get(key)
        if known is not None and known.topic_id not in (topic_id, NO_UUID):
            self.delete(topic, partition)
            known = None
        if known is not None:
            if config is not None:
                known.update_config(config)
            if known.topic_id != topic_id:
                known.topic_id = topic_id
                self._write_topic_id(known, self._homes[key])
            return known
        if self._directories.some_failed and not is_new:
            self._offline.add(key)
            raise _unavailable(f"{topic}-{partition} may be in a log directory that is offline")
        self._pass_damaged(key, topic_id, is_new=is_new)
        self._offline.discard(key)
        in_turn = self._in_turn(key)
        self.preferred.pop(key, None)
        for directory in in_turn:
            try:
                return self._make(directory, key, topic_id, config, is_new=is_new)
            except OSError as error:
                self._directories.note(directory, directory.path, error)
        raise _unavailable(f"no log directory takes {topic}-{partition}")

    def _pass_damaged(self, key: Key, topic_id: bytes, *, is_new: bool) -> None:
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
        self.checkpoints.gone(home, key)

    def _make(
        self,
        directory: LogDirectory,
        key: Key,
        topic_id: bytes,
        config: LogConfig | None,
        *,
        is_new: bool,
    ) -> Log:
        topic, partition = key
        name = names.folder_name(topic, partition)
        self._deleted.clear_way(directory, name, topic_id, is_new=is_new)
        self.checkpoints.forget(directory, key)
        log = Log.open(
            directory.file(name),
            config or self._config_of(topic),
            self._disk,
            self._clock,
            topic=topic,
            partition=partition,
            topic_id=topic_id,
            background=self._background,
            report=self._storage_failed,
        )
        self._write_topic_id(log, directory)
        self.adopt(key, log, directory)
        return log

    def _write_topic_id(self, log: Log, home: LogDirectory) -> None:
        path = f"{log.directory}/{names.PARTITION_METADATA}"
        replace(self._disk, path, encode_partition_metadata(log.topic_id), durable=False)

        def work() -> None:
            sync_file(self._disk, path)
            with suppress(FileNotFoundError):  # deleted meanwhile
                self._disk.sync_directory(log.directory)
            self._disk.sync_directory(home.path)

        self._directories.submit(home, log.directory, work)

    def delete(self, topic: str, partition: int) -> None:
        """Rename the log's folder at once, and remove its files after file.delete.delay.ms."""
        self.preferred.pop((topic, partition), None)
        self.futures.drop(topic, partition)
        self.futures.leave(topic, partition)
        log = self._logs.pop((topic, partition), None)
        self._upkeep.forget((topic, partition))
        if log is not None:
            self.discard(self._homes.pop((topic, partition)), log)
        else:
            self.set_damaged_aside(topic, partition)

    def discard(self, home: LogDirectory, log: Log) -> None:
        """Rename a log's folder as deleted, and remove its files later."""
        self.checkpoints.gone(home, (log.topic, log.partition))
        self._deleted.discard(home, log)

    def set_aside(self, topic: str, partition: int) -> str:
        """Close a log without an owner and rename its folder to `…-stray`; returns the new name.

        Nothing deletes such a folder: the log may be another cluster's, or this one's metadata may be the wrong ones.
        """
        self.futures.drop(topic, partition)
        log = self._logs.pop((topic, partition))
        self._upkeep.forget((topic, partition))
        home = self._homes.pop((topic, partition))
        self.checkpoints.gone(home, (topic, partition))
        return set_aside(self._disk, log, home)

    def set_damaged_aside(self, topic: str, partition: int) -> None:
        """The same for a damaged log, if there is one; if its disk refuses, the next start tries again."""
        key = topic, partition
        home = self.damaged.home_of(key)
        if home is None:
            return
        try:
            self.damaged.set_aside(key)
            self.checkpoints.gone(home, key)
            self._offline.discard(key)
        except OSError as error:
            _LOGGER.error("%s-%d is damaged, and cannot be set aside: %s", topic, partition, error)
            self._directories.note(home, home.path, error)

    # -- directories that fail ------------------------------------------------------------------

    def _storage_failed(self, folder: str, error: OSError) -> None:
        """A write, sync or read of the log in this folder failed, or its disk was full."""
        home = next(
            each for each in self._directories.all if folder.rpartition("/")[0] == each.path
        )
        if not self._is_closing:
            self._directories.note(home, folder, error)

    def _fail(self, directory: LogDirectory, error: OSError) -> None:
        """Take a directory offline, with everything in it."""
        keys = [key for key, home in self._homes.items() if home is directory]
        give_up(directory, error, len(keys))
        gone = [self._logs.pop(key) for key in keys]
        for key, log in zip(keys, gone, strict=True):
            del self._homes[key]
            self._upkeep.forget(key)
            log.abandon()
        self._offline.update(keys)
        self.futures.directory_failed(directory)
        for key in keys:
            self.futures.log_failed(*key)
        gone += self._deleted.directory_failed(directory)
        if self.on_directory_failed is not None:
            self.on_directory_failed(directory.directory_id, keys)
        for log in gone:
            with suppress(OSError):
                log.close()
        if not self._directories.online:
            _LOGGER.critical("all log directories have failed")
            if self.on_all_failed is not None:
                self.on_all_failed()

    # -- checkpoints ----------------------------------------------------------------------------

    def high_watermark_checkpoints(self) -> dict[Key, int]:
        """The entries of the last replication-offset-checkpoint."""
        return dict(self.checkpoints.last_high_watermarks)

    def checkpoint_high_watermarks(self, high_watermarks: dict[Key, int]) -> None:
        """Write replication-offset-checkpoint."""
        self.checkpoints.high_watermarks(high_watermarks)

    async def checkpoint_recovery_points(self, *folders: str) -> None:
        """Write up to where logs are durable, in Background, also what another write may have under way; raises
        OSError. A log that was cut must not be appended to while its old recovery point would be believed.
        `folders`: of logs, if only their directories are meant: another one's disk may be full."""
        await self.checkpoints.recovery_points(*folders)

    def write_recovery_points(self, *folders: str) -> None:
        """The same for a log that is appended to at once: waits for the disk."""
        self.checkpoints.write_recovery_points(*folders)

    async def checkpoint_log_starts(self, *folders: str) -> None:
        """Write where logs begin, as `checkpoint_recovery_points`."""
        await self.checkpoints.log_starts(*folders)

    def checkpoint_cleaned(self) -> None:
        """Write cleaner-offset-checkpoint."""
        self.checkpoints.cleaned()

    def _placed(self, directory: LogDirectory) -> Iterator[tuple[Key, Log]]:
        """The logs in a directory, copies in progress included."""
        for key, log in self._logs.items():
            if self._homes[key] is directory:
                yield key, log
        for future in self.futures:
            if future.home is directory:
                yield (future.log.topic, future.log.partition), future.log

    # -- where logs are -------------------------------------------------------------------------

    def home_of(self, topic: str, partition: int) -> LogDirectory | None:
        """The directory that holds a partition's log."""
        return self._homes.get((topic, partition))

    @property
    def directories(self) -> LogDirectories:
        """All log directories."""
        return self._directories

    # -- upkeep ---------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Do what is due: roll by time, flush by time, retention, checkpoints, deletes."""
        retain = self._retention_due.is_over(now_ms)
        expire = self._expiration_due.is_over(now_ms)
        self._upkeep.run(self._logs, now_ms, retain=retain, expire=expire)
        if self._checkpoints_due.is_over(now_ms):
            for directory in self._directories.online:
                self.checkpoints.logs(directory)
        self._deleted.tick(now_ms)

    # -- ending ---------------------------------------------------------------------------------

    def close(self, broker_epoch: int = -1) -> None:
        """Flush and close every log and leave the clean-shutdown marker."""
        unclean: set[Key] = set()
        self._is_closing = True  # What fails now leaves no marker, and that is all.
        for (key, log), was_closed in zip(self._logs.items(), self._close_logs(), strict=True):
            if not was_closed:
                _LOGGER.error("%s was not closed cleanly: %s", log.name, log.storage_error)
                unclean.add(key)
        damaged = {self._homes[key].path for key in unclean}
        damaged.update(self.futures.close(self._logs.keys() - unclean))
        damaged.update(each.path for each in self.damaged.unrecovered())
        self._deleted.close()
        try:
            for directory in self._directories.online:
                try:
                    self.checkpoints.logs(directory, wait=True)
                    if directory.path not in damaged:
                        directory.mark_clean(broker_epoch)
                except OSError as error:
                    _LOGGER.error("%s was not left cleanly: %s", directory, error)
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

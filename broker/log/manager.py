"""Shell: all logs of a broker: its log directories, their checkpoints, retention and deletion.

Rules of this file:
- Only the event loop's thread calls it; what waits for a disk goes to Background.
- A deleted partition is out of sight at once (its folder gets another name), so that the topic may
  be created again; its files go when their last readers must be gone.
- One log that fails is logged and does not keep the others from their upkeep.
- One directory that fails goes offline alone (KIP-112): its partitions are not served until the broker is started
  anew, and are made nowhere else meanwhile. The broker ends when none is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from broker.log import names
from broker.log.checkpoint import encode_partition_metadata
from broker.log.config import LogConfig
from broker.log.deletion import DeletedLogs
from broker.log.directories import LogDirectories, Soon, give_up
from broker.log.directory import LogDirectory, LogDirectoryError, Offsets
from broker.log.files import replace, sync_file
from broker.log.loading import Contents, Loader
from broker.log.log import Log
from broker.seams import Background, Clock, Disk
from broker.system import new_uuid
from kafka_ds.wire.errors import ErrorCode, KafkaError
from kafka_ds.wire.types import NO_UUID

Key = tuple[str, int]

PRODUCER_EXPIRATION_CHECK_MS = 600_000
CLOSE_THREADS = 8
CLOSE_IN_THREADS_FROM = 32

_LOGGER = logging.getLogger(__name__)


def _unknown(_topic: str) -> bytes | None:
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
        recovery_threads: int = 1,
        soon: Soon = _at_once,
    ) -> None:
        """`config_for(topic)` wins over `config`; no `cluster_id`: the disks' own, or a new one.

        `topic_id_for(topic)` tells which of two logs of a name is the topic's. `soon` lets a failure take effect: it
        may be found out in the midst of anything.
        """
        self._disk = disk
        self._clock = clock
        self._background = background
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._config = config or LogConfig()
        self._config_for = config_for
        self._topic_id_for = topic_id_for
        self._directories = LogDirectories(disk, log_dirs, background, soon=soon, failed=self._fail)
        self._loader = Loader(
            disk,
            clock,
            background,
            config_of=self._config_of,
            threads_per_directory=recovery_threads,
        )
        # Partitions whose log is, or may be, in a directory that has failed.
        self._offline: set[Key] = set()
        # Set by whoever serves the partitions: is told the id of a directory that has failed, and what was in it.
        self.on_directory_failed: Callable[[bytes, Sequence[Key]], None] | None = None
        # What is to happen when no directory is left; Kafka halts.
        self.on_all_failed: Callable[[], None] | None = None
        self._logs: dict[Key, Log] = {}
        self._homes: dict[Key, LogDirectory] = {}
        self._high_watermarks: dict[Key, int] = {}
        self._deleted = DeletedLogs(disk, clock, self._directories)
        now_ms = clock.now_ms()
        self._checkpoint_every_ms = flush_offset_checkpoint_interval_ms
        self._checkpoint_due_ms = now_ms + flush_offset_checkpoint_interval_ms
        self._retention_every_ms = retention_check_interval_ms
        self._retention_due_ms = now_ms + retention_check_interval_ms
        self._expiration_due_ms = now_ms + PRODUCER_EXPIRATION_CHECK_MS
        self._is_closing = False
        self.was_clean = False
        self.previous_broker_epoch = -1

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
        """What is wrong with each directory, by path."""
        return self._directories.failures

    @property
    def remaining_to_load(self) -> Mapping[str, int]:
        """How many logs of each directory are still to be opened."""
        return dict(self._loader.remaining)

    def directory_id_of(self, topic: str, partition: int) -> bytes | None:
        """The id of the directory that holds a partition's log, or would if it were made now.

        None where one has failed that may hold it.
        """
        home = self._homes.get((topic, partition))
        if home is None:
            online = self._directories.online
            if len(online) < len(self._directories.all):
                return None
            counts = Counter(self._homes.values())
            home = min(online, key=lambda each: counts[each])
        return home.directory_id

    def load(self) -> None:
        """Lock the directories and open every log in them, recovering where needed; may take long."""
        directories = self._directories
        try:
            self._cluster_id = directories.claim(
                node_id=self._node_id, cluster_id=self._cluster_id, now_ms=self._clock.now_ms()
            )
            for contents in self._loader.load(directories.online):
                self._take(contents)
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
        self._deleted.found(directory, contents.deleted)
        for key, log in contents.logs.items():
            if key in self._logs and not self._is_second(key, log, directory):
                continue
            self._adopt(key, log, directory)
            log.compaction.cleaned_offset = contents.cleaned_offsets.get(key)
        self._high_watermarks |= contents.high_watermarks

    def _is_second(self, key: Key, log: Log, directory: LogDirectory) -> bool:
        """Settle which of two logs of a name stays: one was made while the other's directory was away."""
        first, topic_id = self._logs[key], self._topic_id_for(log.topic)
        if first.topic_id == log.topic_id or topic_id not in (first.topic_id, log.topic_id):
            raise LogDirectoryError(f"{log.name} is in {self._homes[key]} and in {directory}")
        if topic_id == log.topic_id:
            self.set_aside(*key)
            return True
        _set_aside(self._disk, log, directory)
        return False

    def _adopt(self, key: Key, log: Log, directory: LogDirectory) -> None:
        self._logs[key] = log
        self._homes[key] = directory
        log.report_errors_to(partial(self._log_failed, log))

    def _config_of(self, topic: str) -> LogConfig:
        return self._config if self._config_for is None else self._config_for(topic)

    # -- logs -----------------------------------------------------------------------------------

    def get(self, topic: str, partition: int) -> Log | None:
        return self._logs.get((topic, partition))

    def logs(self) -> Iterable[Log]:
        return self._logs.values()

    def is_offline(self, topic: str, partition: int) -> bool:
        """Whether the partition's log is in a directory that has failed, as far as that can be known."""
        return (topic, partition) in self._offline

    def create(
        self,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: LogConfig | None = None,
        *,
        is_new: bool = False,
    ) -> Log:
        """The log of a partition, made if it is not there; another topic id's leftover goes.

        One that is not known to be new is not made while a directory is offline, where it may well be: that is
        KAFKA_STORAGE_ERROR, as it is if no directory takes it.
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
        online = self._directories.online
        if len(online) < len(self._directories.all) and not is_new:
            self._offline.add(key)
            raise _unavailable(f"{topic}-{partition} may be in a log directory that is offline")
        self._offline.discard(key)
        counts = Counter(self._homes.values())
        for directory in sorted(online, key=lambda each: counts[each]):
            try:
                return self._make(directory, key, topic_id, config, is_new=is_new)
            except OSError as error:
                self._directories.note(directory, directory.path, error)
        raise _unavailable(f"no log directory takes {topic}-{partition}")

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
        log = Log.open(
            directory.file(name),
            config or self._config_of(topic),
            self._disk,
            self._clock,
            topic=topic,
            partition=partition,
            topic_id=topic_id,
            background=self._background,
        )
        self._write_topic_id(log, directory)
        self._adopt(key, log, directory)
        return log

    def _write_topic_id(self, log: Log, home: LogDirectory) -> None:
        path = f"{log.directory}/{names.PARTITION_METADATA}"
        replace(self._disk, path, encode_partition_metadata(log.topic_id), durable=False)

        def work() -> None:
            sync_file(self._disk, path)
            if self._disk.exists(log.directory):
                self._disk.sync_directory(log.directory)
            self._disk.sync_directory(home.path)

        self._directories.submit(home, log.directory, work)

    def delete(self, topic: str, partition: int) -> None:
        """Take the log out of sight at once, and its files from disk after file.delete.delay.ms."""
        log = self._logs.pop((topic, partition), None)
        if log is not None:
            self._deleted.discard(self._homes.pop((topic, partition)), log)

    def set_aside(self, topic: str, partition: int) -> str:
        """Close a log that is nobody's and rename its folder to `…-stray`; the new name.

        Nothing deletes such a folder: the log may be another cluster's, or this one's metadata may be the wrong ones.
        """
        log = self._logs.pop((topic, partition))
        return _set_aside(self._disk, log, self._homes.pop((topic, partition)))

    # -- directories that fail ------------------------------------------------------------------

    def _log_failed(self, log: Log, error: OSError) -> None:
        """A write, sync or read of a log has failed, or a log could not be written for want of room."""
        key = log.topic, log.partition
        if self._logs.get(key) is log and not self._is_closing:
            self._directories.note(self._homes[key], log.directory, error)

    def _fail(self, directory: LogDirectory, error: OSError) -> None:
        """Take a directory offline, with all that is in it."""
        keys = [key for key, home in self._homes.items() if home is directory]
        give_up(directory, error, len(keys))
        gone = [self._logs.pop(key) for key in keys]
        for key, log in zip(keys, gone, strict=True):
            del self._homes[key]
            log.abandon()
        self._offline.update(keys)
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
        """What the last replication-offset-checkpoint said, at load."""
        return dict(self._high_watermarks)

    def checkpoint_high_watermarks(self, high_watermarks: dict[Key, int]) -> None:
        """Write replication-offset-checkpoint."""
        for directory in self._directories.online:
            own = self._of_directory(directory, high_watermarks)
            self._directories.checkpoint(
                directory, names.HIGH_WATERMARK_CHECKPOINT, own, wait=False
            )

    async def checkpoint_recovery_points(self) -> None:
        """Write up to where logs are durable, as `checkpoint_log_starts`: a log that was cut must not be appended to
        while its old recovery point would be believed."""
        await self._checkpoint_now(names.RECOVERY_POINT_CHECKPOINT, self._recovery_points())

    def write_recovery_points(self) -> None:
        """The same for a log that is appended to at once: waits for the disk."""
        name, points = names.RECOVERY_POINT_CHECKPOINT, self._recovery_points()
        for directory in self._directories.online:
            own = self._of_directory(directory, points)
            self._directories.checkpoint(directory, name, own, wait=True)

    async def checkpoint_log_starts(self) -> None:
        """Write where logs begin, in Background, also what another write may have under way; raises OSError."""
        await self._checkpoint_now(names.LOG_START_OFFSET_CHECKPOINT, self._log_starts())

    async def _checkpoint_now(self, name: str, offsets: Offsets) -> None:
        loop = asyncio.get_running_loop()
        waiting = []
        for directory in self._directories.online:
            own = self._of_directory(directory, offsets)
            written: asyncio.Future[None] = loop.create_future()
            self._directories.checkpoint_and_tell(directory, name, own, partial(_settle, written))
            waiting.append(written)
        await asyncio.gather(*waiting)

    def checkpoint_cleaned(self) -> None:
        """Write cleaner-offset-checkpoint."""
        cleaned = ((key, log.compaction.cleaned_offset) for key, log in self._logs.items())
        offsets = {key: offset for key, offset in cleaned if offset is not None}
        for directory in self._directories.online:
            own = self._of_directory(directory, offsets)
            self._directories.checkpoint(directory, names.CLEANER_CHECKPOINT, own, wait=False)

    def _of_directory(self, directory: LogDirectory, offsets: Offsets) -> Offsets:
        return {key: offset for key, offset in offsets.items() if self._homes.get(key) is directory}

    def _recovery_points(self) -> Offsets:
        return {key: log.recovery_point for key, log in self._logs.items()}

    def _log_starts(self) -> Offsets:
        return {
            key: log.log_start_offset
            for key, log in self._logs.items()
            if log.config.remote_storage_enable or log.log_start_offset > log.first_base_offset
        }

    def _checkpoint_logs(self, directory: LogDirectory, *, wait: bool) -> None:
        for name, offsets in (
            (names.RECOVERY_POINT_CHECKPOINT, self._recovery_points()),
            (names.LOG_START_OFFSET_CHECKPOINT, self._log_starts()),
        ):
            own = self._of_directory(directory, offsets)
            self._directories.checkpoint(directory, name, own, wait=wait)

    # -- upkeep ---------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Do what is due: roll by time, flush by time, retention, checkpoints, deletes."""
        retain = now_ms >= self._retention_due_ms
        if retain:
            self._retention_due_ms = now_ms + self._retention_every_ms
        expire = now_ms >= self._expiration_due_ms
        if expire:
            self._expiration_due_ms = now_ms + PRODUCER_EXPIRATION_CHECK_MS
        for log in list(self._logs.values()):
            try:
                log.maybe_roll(now_ms)
                log.tick(now_ms)
                if retain and not log.compaction.is_running:
                    log.delete_local_segments(now_ms)
            except (OSError, KafkaError) as error:
                _LOGGER.error("%s: %s", log.name, error)
                if isinstance(error, OSError):
                    self._log_failed(log, error)
            if expire:
                log.producers.expire(now_ms, log.config.producer_id_expiration_ms)
        if now_ms >= self._checkpoint_due_ms:
            self._checkpoint_due_ms = now_ms + self._checkpoint_every_ms
            for directory in self._directories.online:
                self._checkpoint_logs(directory, wait=False)
        self._deleted.tick(now_ms)

    # -- ending ---------------------------------------------------------------------------------

    def close(self, broker_epoch: int = -1) -> None:
        """Flush and close every log and leave the clean-shutdown marker."""
        unclean = set()
        self._is_closing = True  # What fails now leaves no marker, and that is all.
        for (key, log), was_closed in zip(self._logs.items(), self._close_logs(), strict=True):
            if not was_closed:
                _LOGGER.error("%s was not closed cleanly: %s", log.name, log.storage_error)
                unclean.add(self._homes[key].path)
        self._deleted.close()
        try:
            for directory in self._directories.online:
                try:
                    self._checkpoint_logs(directory, wait=True)
                    if directory.path not in unclean:
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


def _set_aside(disk: Disk, log: Log, directory: LogDirectory) -> str:
    log.close()
    name = names.renamed_folder_name(log.topic, log.partition, new_uuid(), names.STRAY_FOLDER)
    disk.rename(log.directory, directory.file(name))
    return name


def _unavailable(message: str) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)


def _settle(written: asyncio.Future[None], error: BaseException | None) -> None:
    if written.done():
        return  # nobody waits any more
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)

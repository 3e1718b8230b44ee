"""Shell: all logs of a broker: its log directories, their checkpoints, retention and deletion.

Rules of this file:
- Only the event loop's thread calls it; what waits for a disk goes to Background.
- A deleted partition is out of sight at once (its folder gets another name), so that the topic may
  be created again; its files go when their last readers must be gone.
- One log that fails is logged and does not keep the others from their upkeep.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from broker.log import names
from broker.log.checkpoint import (
    CorruptCheckpoint,
    decode_partition_metadata,
    encode_partition_metadata,
)
from broker.log.config import LogConfig
from broker.log.directory import LogDirectory, LogDirectoryError, Offsets
from broker.log.files import read_or_none, replace, sync_file
from broker.log.log import Log
from broker.seams import Background, Clock, Disk
from broker.system import new_uuid
from kafka_ds.wire.errors import KafkaError
from kafka_ds.wire.types import NO_UUID

Key = tuple[str, int]

PRODUCER_EXPIRATION_CHECK_MS = 600_000
CLOSE_THREADS = 8
CLOSE_IN_THREADS_FROM = 32

_LOGGER = logging.getLogger(__name__)


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
    ) -> None:
        """`config_for(topic)` wins over `config`; no `cluster_id`: the disks' own, or a new one."""
        self._disk = disk
        self._clock = clock
        self._background = background
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._config = config or LogConfig()
        self._config_for = config_for
        self._directories = [LogDirectory(disk, path) for path in log_dirs]
        self._logs: dict[Key, Log] = {}
        self._homes: dict[Key, LogDirectory] = {}
        self._high_watermarks: dict[Key, int] = {}
        self._doomed: list[tuple[int, LogDirectory, str, Log | None]] = []
        now_ms = clock.now_ms()
        self._checkpoint_every_ms = flush_offset_checkpoint_interval_ms
        self._checkpoint_due_ms = now_ms + flush_offset_checkpoint_interval_ms
        self._checkpointed: dict[tuple[str, str], Offsets] = {}
        self._retention_every_ms = retention_check_interval_ms
        self._retention_due_ms = now_ms + retention_check_interval_ms
        self._expiration_due_ms = now_ms + PRODUCER_EXPIRATION_CHECK_MS
        self.was_clean = False
        self.previous_broker_epoch = -1

    # -- beginning ------------------------------------------------------------------------------

    @property
    def cluster_id(self) -> str:
        assert self._cluster_id is not None, "load() has not been called"
        return self._cluster_id

    @property
    def directory_ids(self) -> dict[str, bytes]:
        return {directory.path: directory.directory_id for directory in self._directories}

    def load(self) -> None:
        """Lock the directories and open every log in them, recovering where needed."""
        try:
            for directory in self._directories:
                directory.acquire()
                self._cluster_id = self._cluster_id or directory.cluster_id
            if self._cluster_id is None:
                self._cluster_id = urlsafe_b64encode(new_uuid()).decode().rstrip("=")
            for directory in self._directories:
                directory.claim(
                    node_id=self._node_id,
                    cluster_id=self._cluster_id,
                    now_ms=self._clock.now_ms(),
                )
                directory.take_clean_marker()
                self._load_directory(directory)
        except BaseException:
            self._release()
            raise
        self.was_clean = all(directory.was_clean for directory in self._directories)
        if self.was_clean and self._directories:
            self.previous_broker_epoch = self._directories[0].previous_broker_epoch

    def _load_directory(self, directory: LogDirectory) -> None:
        recovery_points = directory.read_checkpoint(names.RECOVERY_POINT_CHECKPOINT)
        start_offsets = directory.read_checkpoint(names.LOG_START_OFFSET_CHECKPOINT)
        cleaned_offsets = directory.read_checkpoint(names.CLEANER_CHECKPOINT)
        self._high_watermarks.update(directory.read_checkpoint(names.HIGH_WATERMARK_CHECKPOINT))
        for name, folder in directory.partition_folders():
            if folder.suffix == names.DELETE_FOLDER:
                self._doomed.append((self._clock.now_ms(), directory, name, None))
                continue
            if folder.suffix:
                _LOGGER.warning("%s is left alone: a stray log, or one on the move", name)
                continue
            key = folder.topic, folder.partition
            if key in self._logs:
                raise LogDirectoryError(f"{name} is in {self._homes[key]} and in {directory}")
            self._logs[key] = Log.open(
                directory.file(name),
                self._config_of(folder.topic),
                self._disk,
                self._clock,
                topic=folder.topic,
                partition=folder.partition,
                topic_id=self._read_topic_id(directory, name),
                clean_shutdown=directory.was_clean,
                recovery_point=recovery_points.get(key, 0),
                log_start_offset=start_offsets.get(key, 0),
                background=self._background,
            )
            self._logs[key].compaction.cleaned_offset = cleaned_offsets.get(key)
            self._homes[key] = directory

    def _config_of(self, topic: str) -> LogConfig:
        return self._config if self._config_for is None else self._config_for(topic)

    def _read_topic_id(self, directory: LogDirectory, folder: str) -> bytes:
        path = directory.file(f"{folder}/{names.PARTITION_METADATA}")
        data = read_or_none(self._disk, path)
        try:
            return decode_partition_metadata(data) if data else NO_UUID
        except CorruptCheckpoint as error:
            # Torn by a crash before its first sync, as then nothing of the log was durable either.
            _LOGGER.warning("%s is not used: %s", path, error)
            return NO_UUID

    # -- logs -----------------------------------------------------------------------------------

    def get(self, topic: str, partition: int) -> Log | None:
        return self._logs.get((topic, partition))

    def logs(self) -> Iterable[Log]:
        return self._logs.values()

    def create(
        self, topic: str, partition: int, topic_id: bytes, config: LogConfig | None = None
    ) -> Log:
        """The log of a partition, made if it is not there; another topic id's leftover goes."""
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
                self._write_topic_id(known)
            return known
        directory = min(self._directories, key=self._count_in)
        log = Log.open(
            directory.file(names.folder_name(topic, partition)),
            config or self._config_of(topic),
            self._disk,
            self._clock,
            topic=topic,
            partition=partition,
            topic_id=topic_id,
            background=self._background,
        )
        self._logs[key] = log
        self._homes[key] = directory
        self._write_topic_id(log)
        return log

    def _count_in(self, directory: LogDirectory) -> int:
        return sum(home is directory for home in self._homes.values())

    def _write_topic_id(self, log: Log) -> None:
        path = f"{log.directory}/{names.PARTITION_METADATA}"
        replace(self._disk, path, encode_partition_metadata(log.topic_id), durable=False)
        home = self._homes[log.topic, log.partition]

        def work() -> None:
            sync_file(self._disk, path)
            if self._disk.exists(log.directory):
                self._disk.sync_directory(log.directory)
            self._disk.sync_directory(home.path)

        self._background.submit(work, _report("a new log's folder"))

    def delete(self, topic: str, partition: int) -> None:
        """Take the log out of sight at once, and its files from disk after file.delete.delay.ms."""
        log = self._logs.pop((topic, partition), None)
        if log is None:
            return
        home = self._homes.pop((topic, partition))
        log.abandon()
        name = names.renamed_folder_name(topic, partition, new_uuid(), names.DELETE_FOLDER)
        self._disk.rename(log.directory, home.file(name))
        due_ms = self._clock.now_ms() + log.config.file_delete_delay_ms
        self._doomed.append((due_ms, home, name, log))

    def set_aside(self, topic: str, partition: int) -> str:
        """Close a log that is nobody's and rename its folder to `…-stray`; the new name.

        Nothing deletes such a folder: the log may be another cluster's, or this one's metadata may be the wrong ones.
        """
        log = self._logs.pop((topic, partition))
        home = self._homes.pop((topic, partition))
        log.close()
        name = names.renamed_folder_name(topic, partition, new_uuid(), names.STRAY_FOLDER)
        self._disk.rename(log.directory, home.file(name))
        return name

    # -- checkpoints ----------------------------------------------------------------------------

    def high_watermark_checkpoints(self) -> dict[Key, int]:
        """What the last replication-offset-checkpoint said, at load."""
        return dict(self._high_watermarks)

    def checkpoint_high_watermarks(self, high_watermarks: dict[Key, int]) -> None:
        """Write replication-offset-checkpoint."""
        self._checkpoint(names.HIGH_WATERMARK_CHECKPOINT, high_watermarks, wait=False)

    async def checkpoint_recovery_points(self) -> None:
        """Write up to where logs are durable, as `checkpoint_log_starts`: a log that was cut must not be appended to
        while its old recovery point would be believed."""
        await self._checkpoint_now(names.RECOVERY_POINT_CHECKPOINT, self._recovery_points())

    async def checkpoint_log_starts(self) -> None:
        """Write where logs begin, in Background, also what another write may have under way; raises OSError."""
        await self._checkpoint_now(names.LOG_START_OFFSET_CHECKPOINT, self._log_starts())

    async def _checkpoint_now(self, name: str, offsets: Offsets) -> None:
        loop = asyncio.get_running_loop()
        waiting = []
        for directory in self._directories:
            work = directory.checkpoint(name, self._of_directory(directory, offsets))
            written: asyncio.Future[None] = loop.create_future()
            self._background.submit(work, partial(_settle, written))
            waiting.append(written)
        await asyncio.gather(*waiting)

    def checkpoint_cleaned(self) -> None:
        """Write cleaner-offset-checkpoint."""
        cleaned = ((key, log.compaction.cleaned_offset) for key, log in self._logs.items())
        offsets = {key: offset for key, offset in cleaned if offset is not None}
        self._checkpoint(names.CLEANER_CHECKPOINT, offsets, wait=False)

    def _checkpoint(self, name: str, offsets: Offsets, *, wait: bool) -> None:
        """Write the part of each directory, where it has changed."""
        for directory in self._directories:
            own = self._of_directory(directory, offsets)
            if self._checkpointed.get((directory.path, name)) == own:
                continue
            work = directory.checkpoint(name, own)
            self._checkpointed[directory.path, name] = own
            if wait:
                work()
            else:
                # One that fails is written again when it has changed, which it does all the time.
                self._background.submit(work, _report(directory.file(name)))

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

    def _checkpoint_logs(self, *, wait: bool) -> None:
        self._checkpoint(names.RECOVERY_POINT_CHECKPOINT, self._recovery_points(), wait=wait)
        self._checkpoint(names.LOG_START_OFFSET_CHECKPOINT, self._log_starts(), wait=wait)

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
            if expire:
                log.producers.expire(now_ms, log.config.producer_id_expiration_ms)
        if now_ms >= self._checkpoint_due_ms:
            self._checkpoint_due_ms = now_ms + self._checkpoint_every_ms
            self._checkpoint_logs(wait=False)
        self._remove_doomed(now_ms)

    def _remove_doomed(self, now_ms: int) -> None:
        due = [entry for entry in self._doomed if entry[0] <= now_ms]
        if not due:
            return
        self._doomed = [entry for entry in self._doomed if entry[0] > now_ms]
        for _, directory, name, log in due:
            if log is not None:
                log.close()
            self._background.submit(
                partial(directory.remove_tree, name), _report(directory.file(name))
            )

    # -- ending ---------------------------------------------------------------------------------

    def close(self, broker_epoch: int = -1) -> None:
        """Flush and close every log and leave the clean-shutdown marker."""
        unclean = set()
        for (key, log), was_closed in zip(self._logs.items(), self._close_logs(), strict=True):
            if not was_closed:
                _LOGGER.error("%s was not closed cleanly: %s", log.name, log.storage_error)
                unclean.add(self._homes[key].path)
        for _, _, _, doomed in self._doomed:
            if doomed is not None:
                doomed.close()
        try:
            self._checkpoint_logs(wait=True)
            for directory in self._directories:
                if directory.path not in unclean:
                    directory.mark_clean(broker_epoch)
        finally:
            self._release()

    def _close_logs(self) -> Iterable[bool]:
        """Close all logs, many at a time: syncs that wait together are done together."""
        if len(self._logs) < CLOSE_IN_THREADS_FROM:
            return [log.close() for log in self._logs.values()]
        with ThreadPoolExecutor(CLOSE_THREADS) as threads:
            return list(threads.map(Log.close, self._logs.values()))

    def _release(self) -> None:
        for directory in self._directories:
            directory.release()


def _report(what: str) -> Callable[[BaseException | None], None]:
    def done(error: BaseException | None) -> None:
        if error is not None:
            _LOGGER.error("%s: %s", what, error)

    return done


def _settle(written: asyncio.Future[None], error: BaseException | None) -> None:
    if written.done():
        return  # nobody waits any more
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)

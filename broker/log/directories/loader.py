"""Shell: opening all logs of the log directories at a start, several at a time.

num.recovery.threads.per.data.dir threads work on each directory, on all directories at once: most of the time after a
crash goes into reading and checksums, which release the interpreter's lock. A log that cannot be read fails its
directory, not the start; a mistake in `log.dirs` ends the start. A log that can be read, but is damaged where nothing
may be truncated, fails alone. If it is a future log, its directory fails: the copy may be all that there is. Progress
is logged, and shown by `remaining`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from broker.log.config import LogConfig
from broker.log.directories.directory import LogDirectory
from broker.log.failures import DamagedLogError
from broker.log.log import Log
from kafka_ds.process.amounts import counted
from kafka_ds.process.seams import Background, Clock, Disk
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.segments import names

PROGRESS_EVERY_MS = 1_000

_LOGGER = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class DirectoryContents:
    """What is in a directory. If `failure` is set, not all of it could be read, and the rest must not be used."""

    directory: LogDirectory
    logs: dict[TopicPartition, Log] = field(default_factory=dict)
    futures: list[Log] = field(default_factory=list)
    high_watermarks: dict[TopicPartition, int] = field(default_factory=dict)
    cleaned_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    gone: set[TopicPartition] = field(default_factory=set)
    """Checkpoint entries of logs that do not exist."""
    damaged: dict[TopicPartition, OSError] = field(default_factory=dict)
    failure: OSError | None = None


# What is being opened, of which directory.
Opening = dict[Future[Log], tuple[DirectoryContents, names.PartitionFolder]]


class LogLoader:
    """Opens logs; made for one start."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        background: Background,
        *,
        config_of: Callable[[str], LogConfig],
        report: Callable[[str, OSError], None],
        threads_per_directory: int = 1,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._background = background
        self._config_of = config_of
        self._report = report
        self._threads_per_directory = threads_per_directory
        # Logs that are still to be opened, by directory. Written by the loading thread, read by the metrics.
        self.remaining: dict[str, int] = {}

    def load(self, directories: Sequence[LogDirectory]) -> list[DirectoryContents]:
        """Open the logs of all these directories."""
        found = [DirectoryContents(directory=directory) for directory in directories]
        futures: Opening = {}
        began_ms = self._clock.monotonic_ms()
        with ExitStack() as stack:
            for contents in found:
                futures |= self._begin(contents, stack.enter_context(self._pool(len(found))))
            self._finish(futures, began_ms)
        for contents in found:
            if contents.logs and contents.failure is None:
                _LOGGER.info(
                    "Loaded %s of %s", counted(len(contents.logs), "log"), contents.directory
                )
        return found

    def _pool(self, directories: int) -> Executor:
        if directories * self._threads_per_directory == 1:
            return _Inline()
        return ThreadPoolExecutor(self._threads_per_directory, thread_name_prefix="recovery")

    def _begin(self, contents: DirectoryContents, pool: Executor) -> Opening:
        directory = contents.directory
        folders: dict[str, names.PartitionFolder] = {}
        try:
            recovery_points = directory.read_checkpoint(names.RECOVERY_POINT_CHECKPOINT)
            start_offsets = directory.read_checkpoint(names.LOG_START_OFFSET_CHECKPOINT)
            watermarks = directory.read_checkpoint(names.HIGH_WATERMARK_CHECKPOINT)
            contents.cleaned_offsets.update(directory.read_checkpoint(names.CLEANER_CHECKPOINT))
            contents.high_watermarks.update(watermarks)
            for name, folder in directory.partition_folders():
                if folder.suffix == names.DELETE_FOLDER:
                    contents.deleted.append(name)
                elif folder.suffix == names.STRAY_FOLDER:
                    _LOGGER.warning("ignoring stray log %s", name)
                else:
                    folders[name] = folder
        except OSError as error:
            contents.failure = error
            return {}
        there = {(folder.topic, folder.partition) for folder in folders.values()}
        contents.gone.update((recovery_points.keys() | start_offsets.keys()) - there)
        self.remaining[directory.path] = len(folders)
        if folders:
            why = "" if directory.was_clean else ", recovering them: it was not left cleanly"
            _LOGGER.info("Loading %s of %s%s", counted(len(folders), "log"), directory, why)
        opening: Opening = {}
        for name, folder in folders.items():
            key = TopicPartition(folder.topic, folder.partition)
            points = recovery_points.get(key, 0), start_offsets.get(key, 0)
            opened = pool.submit(self._open, directory, name, key, *points)
            opening[opened] = contents, folder
        return opening

    def _open(
        self,
        directory: LogDirectory,
        name: str,
        key: TopicPartition,
        recovery_point: int,
        start_offset: int,
    ) -> Log:
        topic, partition = key
        try:
            return Log.open(
                directory.file(name),
                self._config_of(topic),
                self._disk,
                self._clock,
                topic=topic,
                partition=partition,
                topic_id=directory.topic_id_of(name),
                clean_shutdown=directory.was_clean,
                recovery_point=recovery_point,
                log_start_offset=start_offset,
                background=self._background,
                report=self._report,
            )
        except KafkaError as error:  # Trusted batches that are not batches.
            raise DamagedLogError(f"{name}: {error}") from error

    def _finish(self, futures: Opening, logged_ms: int) -> None:
        for done, future in enumerate(as_completed(futures), start=1):
            contents, folder = futures[future]
            try:
                if folder.suffix:
                    contents.futures.append(future.result())
                else:
                    contents.logs[TopicPartition(folder.topic, folder.partition)] = future.result()
            except OSError as error:
                if isinstance(error, DamagedLogError) and not folder.suffix:
                    contents.damaged[TopicPartition(folder.topic, folder.partition)] = error
                else:
                    contents.failure = contents.failure or error
            self.remaining[contents.directory.path] -= 1
            now_ms = self._clock.monotonic_ms()
            if now_ms - logged_ms >= PROGRESS_EVERY_MS and done < len(futures):
                logged_ms = now_ms
                left = len(futures) - done
                _LOGGER.info("Loading logs: %d of %d, remaining %d", done, len(futures), left)


class _Inline(Executor):
    """Runs in the calling thread, if one thread is enough."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments, **options))
        except OSError as error:
            future.set_exception(error)
        return future

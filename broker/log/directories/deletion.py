"""Shell: deleted logs: renamed at once, removed from their disks a little later.

- The folder of a deleted log gets another name, so that the topic may be created again. Its files are deleted after
  file.delete.delay.ms, when their last readers must be done.
- If a disk does not rename a folder, renaming is retried until it works or the directory has failed, and no log is
  created there meanwhile. A new topic of that name must never get the old one's records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial

from broker.log.directories.directories import LogDirectories
from broker.log.directories.directory import LogDirectory
from broker.log.log import Log
from kafka_ds.process.seams import Clock, Disk
from kafka_ds.process.system import new_uuid
from kafka_ds.protocol.types import NO_UUID
from kafka_ds.segments import names

_LOGGER = logging.getLogger(__name__)


class DeletedLogs:
    """The deleted logs of a broker whose files are still there."""

    def __init__(self, disk: Disk, clock: Clock, directories: LogDirectories) -> None:
        self._disk = disk
        self._clock = clock
        self._directories = directories
        self._in_the_way: dict[str, tuple[LogDirectory, Log]] = {}
        self._doomed: list[tuple[int, LogDirectory, str, Log | None]] = []
        self._ticked_ms = clock.now_ms()

    def found(self, directory: LogDirectory, folders: Iterable[str]) -> None:
        """Take over folders of deleted logs that were there at the start."""
        now_ms = self._clock.now_ms()
        self._doomed += [(now_ms, directory, name, None) for name in folders]

    def discard(self, home: LogDirectory, log: Log) -> None:
        """Rename a log's folder, and remove its files after file.delete.delay.ms."""
        log.abandon()
        try:
            self._rename(home, log)
        except OSError as error:
            _LOGGER.error("cannot delete %s yet: %s", log.directory, error)
            self._in_the_way[log.directory] = home, log
            self._directories.note(home, home.path, error)

    def _rename(self, home: LogDirectory, log: Log) -> None:
        name = names.renamed_folder_name(log.topic, log.partition, new_uuid(), names.DELETE_FOLDER)
        self._disk.rename(log.directory, home.file(name))
        due_ms = self._clock.now_ms() + log.config.file_delete_delay_ms
        self._doomed.append((due_ms, home, name, log))

    def clear_way(
        self, directory: LogDirectory, name: str, topic_id: bytes, *, is_new: bool
    ) -> None:
        """Prepare a folder for a new log: set aside what another topic left there. Raises OSError."""
        folder = directory.file(name)
        if folder in self._in_the_way:
            self._rename(*self._in_the_way[folder])
            del self._in_the_way[folder]
        if not self._disk.exists(folder):
            return
        is_own = directory.topic_id_of(name) in (topic_id, NO_UUID)
        if not is_own or (is_new and self._has_records(folder)):
            parsed = names.parse_folder_name(name)
            assert parsed is not None
            aside = names.renamed_folder_name(
                parsed.topic, parsed.partition, new_uuid(), names.STRAY_FOLDER
            )
            _LOGGER.error("%s belongs to another topic id; renamed its folder to %s", folder, aside)
            self._disk.rename(folder, directory.file(aside))

    def _has_records(self, folder: str) -> bool:
        logs = [name for name in self._disk.list_names(folder) if name.endswith(names.LOG)]
        return any(self._disk.size(f"{folder}/{name}") for name in logs)

    def tick(self, now_ms: int) -> None:
        """Remove files that are due, and retry renames that failed."""
        back_ms, self._ticked_ms = self._ticked_ms - now_ms, now_ms
        if back_ms > 0:  # The clock was set back: that delays nothing.
            self._doomed = [(each[0] - back_ms, *each[1:]) for each in self._doomed]
        for folder, (home, log) in tuple(self._in_the_way.items()):
            try:
                self._rename(home, log)
            except OSError as error:
                self._directories.note(home, home.path, error)
            else:
                del self._in_the_way[folder]
        due = [entry for entry in self._doomed if entry[0] <= now_ms]
        self._doomed = [entry for entry in self._doomed if entry[0] > now_ms]
        for _, directory, name, doomed in due:
            if doomed is not None:
                doomed.close()
            work = partial(directory.remove_tree, name)
            self._directories.submit(directory, f"deleting dir {directory.file(name)}", work)

    def directory_failed(self, directory: LogDirectory) -> list[Log]:
        """Forget its logs; returns those that are still to be closed."""
        gone = [log for _, home, _, log in self._doomed if home is directory and log is not None]
        gone += [log for home, log in self._in_the_way.values() if home is directory]
        self._doomed = [entry for entry in self._doomed if entry[1] is not directory]
        self._in_the_way = {
            folder: entry for folder, entry in self._in_the_way.items() if entry[0] is not directory
        }
        return gone

    def close(self) -> None:
        """Leave them as they are; the next start continues."""
        for _, _, _, log in self._doomed:
            if log is not None:
                log.close()
        for _, log in self._in_the_way.values():
            log.close()

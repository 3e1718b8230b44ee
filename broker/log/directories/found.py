"""Shell: what a start found in all directories, combined: one log per partition, and its copy if it is moving.

Rules of this file:
- Of two logs of the same name but of different topics, the existing topic's stays: the other one's directory was
  offline when its topic was deleted. The other is set aside. If it is not known which topic exists, the start ends.
- Of two logs that do not say whose they are an empty one goes: a full disk took its folder and no more, and the log was
  tried elsewhere.
- Of two logs of the same topic, one had just taken the other's place (`broker.log.directories.futures`): the newer one
  stays. The other is deleted if all that is in it is in the newer one, else it is set aside.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from broker.log import names
from broker.log.directories.directory import LogDirectory
from broker.log.directories.futures import FutureLogs, Keeper
from broker.log.directories.loading import Contents, Key
from broker.log.directories.moving import agreed_end, is_newer
from broker.log.failures import LogDirectoryError
from broker.log.log import Log
from broker.seams import Disk
from broker.system import new_uuid
from kafka_ds.protocol.types import NO_UUID

_LOGGER = logging.getLogger(__name__)


class Found:
    """The logs of one start."""

    def __init__(
        self,
        disk: Disk,
        logs: dict[Key, Log],
        homes: dict[Key, LogDirectory],
        futures: FutureLogs,
        keeper: Keeper,
        topic_id_for: Callable[[str], bytes | None],
        home_for: Callable[[str, int], bytes | None],
    ) -> None:
        """`logs` and `homes` are those of the keeper."""
        self._disk = disk
        self._logs = logs
        self._homes = homes
        self._futures = futures
        self._keeper = keeper
        self._topic_id_for = topic_id_for
        self._home_for = home_for

    def take(self, contents: Contents) -> None:
        """Take the logs of one directory."""
        directory = contents.directory
        for key, log in contents.logs.items():
            if key in self._logs and not self._is_second(key, log, directory):
                continue
            self._keeper.adopt(key, log, directory)
            log.compaction.cleaned_offset = contents.cleaned_offsets.get(key)
        for copy in contents.futures:
            self._futures.found(copy, directory)

    def _is_second(self, key: Key, log: Log, directory: LogDirectory) -> bool:
        """Settle which of two logs of a name stays; returns whether this one does."""
        first, home = self._logs[key], self._homes[key]
        topic_id = self._topic_id_for(log.topic)
        if first.topic_id == log.topic_id != NO_UUID:
            return self._replaces(first, home, log, directory)
        # Nobody's and empty: it was being made when there was no more room, or power, and then was made elsewhere.
        if log.topic_id == NO_UUID and log.log_end_offset == 0:
            self._keeper.discard(directory, log)
            return False
        if first.topic_id == NO_UUID and first.log_end_offset == 0:
            self._keeper.discard(home, first)
            return True
        if first.topic_id == log.topic_id or topic_id not in (first.topic_id, log.topic_id):
            raise LogDirectoryError(f"{log.name} is in {home} and in {directory}")
        if topic_id == log.topic_id:
            set_aside(self._disk, first, home)
            return True
        set_aside(self._disk, log, directory)
        return False

    def _replaces(self, first: Log, home: LogDirectory, log: Log, directory: LogDirectory) -> bool:
        start_offset = max(first.log_start_offset, log.log_start_offset)
        is_second = is_newer(log, first)
        newer, older, gone = (log, first, home) if is_second else (first, log, directory)
        _LOGGER.warning(
            "%s is in %s and in %s: %s stays", log.name, home, directory, newer.directory
        )
        if agreed_end(newer, older) < older.log_end_offset:
            # The newer one went on from a copy that was not complete: somebody may want the rest.
            set_aside(self._disk, older, gone)
        else:
            self._keeper.discard(gone, older)
        if newer.log_start_offset < start_offset <= newer.log_end_offset:
            newer.advance_log_start_offset(start_offset)
        return is_second

    def take_futures(self, *, some_failed: bool) -> None:
        """Let copies continue, or take the places of logs that are gone."""
        for log in tuple(self._logs.values()):
            self._futures.resume(log)
        for key, future in self._futures.abandoned():
            is_told = self._home_for(*key) == future.home.directory_id
            if is_told or not some_failed:
                self._keeper.adopt(key, self._futures.take_place(*key), future.home)

    def watermarks(self, found: Iterable[Contents]) -> dict[Key, int]:
        """Each log's high watermark in its directory's checkpoint; of a missing log the largest of any directory."""
        offsets: dict[Key, int] = {}
        for contents in found:
            for key, offset in contents.high_watermarks.items():
                home = self._homes.get(key)
                if home is contents.directory:
                    offsets[key] = offset
                elif home is None:
                    offsets[key] = max(offset, offsets.get(key, 0))
        return offsets


def set_aside(disk: Disk, log: Log, directory: LogDirectory) -> str:
    """Close a log and rename its folder as stray; returns the new name."""
    log.close()
    name = names.renamed_folder_name(log.topic, log.partition, new_uuid(), names.STRAY_FOLDER)
    disk.rename(log.directory, directory.file(name))
    return name

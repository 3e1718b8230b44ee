"""Shell: the checkpoints of the log directories: recovery points, log starts, high watermarks, clean offsets.

Rules of this file: each directory's files name the logs in it, including future logs (copies on the move), so that a
copy that takes its log's place is as well known as the log was. Damaged logs keep the entries that they had before.
Files name a log that has gone until they are written again. Before a log of that name is made they are: else a crash
would have the new log begin where the old one did, and cut off what is in it, or count as committed what is not. For
the same reason a log that was truncated below its start, or below where it is clean, has that written down with its
recovery point before anything is appended.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import partial

from broker.log import names
from broker.log.directories.directories import LogDirectories
from broker.log.directories.directory import LogDirectory, Offsets
from broker.log.log import Log

Key = tuple[str, int]

# Logs that have gone from a directory and are remembered by their names; beyond that, any name may be one of them.
GONE_MAX = 1_000
_ANY: Key = ("", -1)

# What lies in a directory, by topic and partition.
Placed = Callable[[LogDirectory], Iterable[tuple[Key, Log]]]
# What a checkpoint of a directory says of logs that are not open, by its name.
Kept = Callable[[LogDirectory, str], Offsets]


class Checkpoints:
    """The checkpoints of all logs."""

    def __init__(self, directories: LogDirectories, placed: Placed, kept: Kept) -> None:
        self._directories = directories
        self._placed = placed
        self._kept = kept
        self._gone: dict[LogDirectory, set[Key]] = {}
        # Those of replication-offset-checkpoint as it was last to be written, or was found at the start; none of a log
        # that was made since.
        self.last_high_watermarks: dict[Key, int] = {}
        # The largest log starts that the files may hold; nothing is known of those that a start has found.
        self._starts: dict[LogDirectory, dict[Key, int]] = {}
        # How often log starts were to be written: after the last time alone it is known what the file holds.
        self._starts_writes: Counter[LogDirectory] = Counter()
        # What cleaner-offset-checkpoint holds at most; nothing is known of what a start has found.
        self._cleaned: dict[LogDirectory, Offsets] = {}

    def gone(self, directory: LogDirectory, key: Key) -> None:
        """A directory has no log of this name any more, while its files may name it."""
        gone = self._gone.setdefault(directory, set())
        gone.add(key if len(gone) < GONE_MAX else _ANY)

    def forget(self, directory: LogDirectory, key: Key) -> None:
        """Before a log is made: let the files name no earlier one of its name. Waits for the disk; raises OSError."""
        self.last_high_watermarks.pop(key, None)
        gone = self._gone.get(directory, ())
        if key in gone or _ANY in gone:
            self.logs(directory, wait=True)
            known = self._own(directory, self.last_high_watermarks)
            self._write(directory, names.HIGH_WATERMARK_CHECKPOINT, known, wait=True)
            del self._gone[directory]

    def high_watermarks(self, high_watermarks: Offsets) -> None:
        """Write replication-offset-checkpoint."""
        self.last_high_watermarks = dict(high_watermarks)
        is_alone = len(self._directories.all) == 1
        for directory in self._directories.online:
            own = high_watermarks if is_alone else self._own(directory, high_watermarks)
            self._write(directory, names.HIGH_WATERMARK_CHECKPOINT, own)

    def _own(self, directory: LogDirectory, offsets: Offsets) -> Offsets:
        """Those of the logs in a directory."""
        return {key: offsets[key] for key, _ in self._placed(directory) if key in offsets}

    async def recovery_points(self, *folders: str) -> None:
        """Write recovery-point-offset-checkpoint where these logs' folders are, or everywhere; raises OSError.

        There log starts and clean offsets that were lowered are written, too.
        """
        homes = self._homes_of(folders)
        await self._write_now(names.RECOVERY_POINT_CHECKPOINT, self._recovery_points, homes)
        unclean = [directory for directory in homes if self._is_cleaned_lowered(directory)]
        if unclean:
            await self._write_now(names.CLEANER_CHECKPOINT, self._take_cleaned, unclean)
        lowered = [directory for directory in homes if self._is_start_lowered(directory)]
        if lowered:
            await self._write_starts_now(lowered)

    def write_recovery_points(self, *folders: str) -> None:
        """The same, waiting for the disk."""
        for directory in self._homes_of(folders):
            own = self._recovery_points(directory)
            self._write(directory, names.RECOVERY_POINT_CHECKPOINT, own, wait=True)
            if self._is_cleaned_lowered(directory):
                self._write_cleaned(directory, wait=True)
            if self._is_start_lowered(directory):
                self._write_starts(directory, wait=True)

    async def log_starts(self, *folders: str) -> None:
        """Write log-start-offset-checkpoint, as `recovery_points`; raises OSError."""
        await self._write_starts_now(self._homes_of(folders))

    async def _write_starts_now(self, homes: Iterable[LogDirectory]) -> None:
        written = {directory: dict(self._log_starts(directory)) for directory in homes}
        asked = {directory: self._starts_asked(directory) for directory in written}
        await self._write_now(names.LOG_START_OFFSET_CHECKPOINT, written.__getitem__, written)
        for directory, starts in written.items():
            if asked[directory] == self._starts_writes[directory]:
                self._starts[directory] = starts

    def _write_starts(self, directory: LogDirectory, *, wait: bool) -> None:
        own = self._log_starts(directory)
        self._starts_asked(directory)
        self._write(directory, names.LOG_START_OFFSET_CHECKPOINT, own, wait=wait)
        if wait:
            self._starts[directory] = dict(own)

    def _starts_asked(self, directory: LogDirectory) -> int:
        """The present log starts may be on disk from now on; the how manieth writing that is."""
        self._starts_writes[directory] += 1
        known = self._starts.get(directory)
        if known is not None:
            for key, start in self._log_starts(directory).items():
                known[key] = max(known.get(key, start), start)
        return self._starts_writes[directory]

    def _is_start_lowered(self, directory: LogDirectory) -> bool:
        """Whether a log may begin below what the file says, which a start would believe."""
        known = self._starts.get(directory)
        return known is None or any(
            log.log_start_offset < known.get(key, 0) for key, log in self._placed(directory)
        )

    def _homes_of(self, folders: Collection[str]) -> list[LogDirectory]:
        """The directories of logs that are in these folders; without any, all that are online."""
        homes = {folder.rpartition("/")[0] for folder in folders}
        return [each for each in self._directories.online if not homes or each.path in homes]

    async def _write_now(
        self,
        name: str,
        offsets: Callable[[LogDirectory], Offsets],
        homes: Iterable[LogDirectory],
    ) -> None:
        """Write in Background, even if another write of the same may be in progress."""
        loop = asyncio.get_running_loop()
        waiting = []
        for directory in homes:
            written: asyncio.Future[None] = loop.create_future()
            self._directories.checkpoint_and_tell(
                directory,
                name,
                self._with_kept(directory, name, offsets(directory)),
                partial(_settle, written),
            )
            waiting.append(written)
        await asyncio.gather(*waiting)

    def cleaned(self) -> None:
        """Write cleaner-offset-checkpoint."""
        for directory in self._directories.online:
            self._write_cleaned(directory, wait=False)

    def _write_cleaned(self, directory: LogDirectory, *, wait: bool) -> None:
        own = self._take_cleaned(directory)
        self._write(directory, names.CLEANER_CHECKPOINT, own, wait=wait)

    def _take_cleaned(self, directory: LogDirectory) -> Offsets:
        self._cleaned[directory] = {
            key: offset
            for key, log in self._placed(directory)
            if (offset := log.compaction.cleaned_offset) is not None
        }
        return self._cleaned[directory]

    def _is_cleaned_lowered(self, directory: LogDirectory) -> bool:
        """Whether less of a log may be clean than the file says, which a start would believe."""
        known = self._cleaned.get(directory)
        return any(
            known is None or offset < known.get(key, -1)
            for key, log in self._placed(directory)
            if (offset := log.compaction.cleaned_offset) is not None
        )

    def logs(self, directory: LogDirectory, *, wait: bool = False) -> None:
        """Write recovery points, clean offsets and log starts of a directory; raises OSError if waiting."""
        points = self._recovery_points(directory)
        self._write(directory, names.RECOVERY_POINT_CHECKPOINT, points, wait=wait)
        self._write_cleaned(directory, wait=wait)
        self._write_starts(directory, wait=wait)

    def _write(
        self, directory: LogDirectory, name: str, own: Offsets, *, wait: bool = False
    ) -> None:
        own = self._with_kept(directory, name, own)
        self._directories.checkpoint(directory, name, own, wait=wait)

    def _with_kept(self, directory: LogDirectory, name: str, own: Offsets) -> Offsets:
        return {**self._kept(directory, name), **own}

    def _recovery_points(self, directory: LogDirectory) -> Offsets:
        return {key: log.recovery_point for key, log in self._placed(directory)}

    def _log_starts(self, directory: LogDirectory) -> Offsets:
        return {
            key: log.log_start_offset
            for key, log in self._placed(directory)
            if log.config.remote_storage_enable or log.log_start_offset > log.first_base_offset
        }


def _settle(written: asyncio.Future[None], error: BaseException | None) -> None:
    if written.done():
        return  # nobody waits any more
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)

"""Shell: the log directories of one broker: locked at the start, and taken offline one by one as they fail.

- A directory that fails goes offline alone (KIP-112), until the next start. During a start any disk error is such a
  failure; later `broker.log.failures` decides. A mistake in `log.dirs` ends the start.
- An error may be noticed in the middle of any work, so it takes effect a little later (`soon`).
"""

from __future__ import annotations

import logging
import os
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from broker.log.directories.directory import CheckpointOffsets, LogDirectory
from broker.log.failures import LogDirectoryError, is_failure
from kafka_ds.process.amounts import counted
from kafka_ds.process.seams import Background, Disk
from kafka_ds.process.system import new_uuid
from kafka_ds.segments import names
from kafka_ds.segments.files import unlink_if_there

Done = Callable[[BaseException | None], None]
Soon = Callable[[Callable[[], None]], object]

_LOGGER = logging.getLogger(__name__)


class LogDirectories:
    """The folders of log.dirs, in order."""

    def __init__(
        self,
        disk: Disk,
        paths: Sequence[str],
        background: Background,
        *,
        soon: Soon,
        failed: Callable[[LogDirectory, OSError], None],
    ) -> None:
        """`failed` is called once for each directory that goes offline after the start."""
        self.all = tuple(LogDirectory(disk, path) for path in paths)
        self._disk = disk
        self._background = background
        self._soon = soon
        self._failed = failed
        self._checkpointed: dict[tuple[str, str], CheckpointOffsets] = {}

    @property
    def online(self) -> list[LogDirectory]:
        """Those that have not failed."""
        return [directory for directory in self.all if directory.failure is None]

    @property
    def some_failed(self) -> bool:
        """Whether there may be logs in a directory that has failed."""
        return any(directory.failure is not None for directory in self.all)

    def at(self, path: str) -> LogDirectory | None:
        """The directory at an absolute path."""
        return next((each for each in self.all if os.path.abspath(each.path) == path), None)

    @property
    def failures(self) -> Mapping[str, OSError | None]:
        """The error of each directory, by path."""
        return {directory.path: directory.failure for directory in self.all}

    @property
    def were_clean(self) -> bool:
        """Whether all were shut down cleanly, and can be read."""
        return all(each.was_clean and each.failure is None for each in self.all)

    @property
    def previous_broker_epoch(self) -> int:
        """The broker epoch with which all were shut down cleanly; -1 if not all were, or not by one run (KIP-966)."""
        epochs = {each.previous_broker_epoch for each in self.all}
        if not self.were_clean or not epochs:
            return -1
        if len(epochs) > 1:
            _LOGGER.warning(
                "log.dirs were shut down cleanly with the different broker epochs %s: registering as after an "
                "unclean shutdown",
                sorted(epochs),
            )
            return -1
        return epochs.pop()

    def claim(self, *, node_id: int, cluster_id: str | None, now_ms: int) -> str:
        """Lock them and check their owner; returns the cluster's id, a new one if none is known."""
        for directory in self.all:
            with _failing_alone(directory):
                directory.acquire()
                cluster_id = cluster_id or directory.cluster_id
        cluster_id = cluster_id or urlsafe_b64encode(new_uuid()).decode().rstrip("=")
        for directory in self.online:
            with _failing_alone(directory):
                directory.claim(node_id=node_id, cluster_id=cluster_id, now_ms=now_ms)
                directory.consume_clean_marker()
        return cluster_id

    def check(self) -> None:
        """If no directory is left, raise the error of one of them."""
        if not self.online:
            raise next(error for error in self.failures.values() if error is not None)

    # -- failures -------------------------------------------------------------------------------

    def note(self, directory: LogDirectory, folder: str, error: OSError) -> None:
        """Record an error in this folder of a directory."""
        if is_failure(error, folder_is_there=self._disk.exists(folder)):
            self._soon(partial(self._fail, directory, error))

    def _fail(self, directory: LogDirectory, error: OSError) -> None:
        if directory.failure is None:
            self._failed(directory, error)
            assert directory.failure is not None, "`failed` gives it up"

    def submit(self, directory: LogDirectory, what: str, work: Callable[[], object]) -> None:
        """Work on a directory in Background; `what` it is, for the log."""
        self._background.submit(work, self._watch(directory, what))

    def _watch(self, directory: LogDirectory, what: str) -> Done:
        def done(error: BaseException | None) -> None:
            if error is not None:
                _LOGGER.error("Error while %s: %s", what, error)
            if isinstance(error, OSError):
                self.note(directory, directory.path, error)

        return done

    # -- checkpoints ----------------------------------------------------------------------------

    def checkpoint(
        self,
        directory: LogDirectory,
        name: str,
        offsets: CheckpointOffsets,
        *,
        wait: bool,
        then: Callable[[], None],
    ) -> None:
        """Write a directory's checkpoint if it changed; if waiting, in any case, and OSError is raised.

        `then` is called once it is written; never, if nothing has changed.
        """
        if not wait and self._checkpointed.get((directory.path, name)) == offsets:
            return
        work = directory.checkpoint(name, offsets)
        if wait:
            work()  # A waiting caller relies on it; an earlier background write may have failed.
        self._checkpointed[directory.path, name] = offsets
        if wait:
            then()
        else:
            written = partial(self._written, directory, name, then)
            self.submit_and_report(directory, f"writing {directory.file(name)}", work, written)

    def _written(
        self,
        directory: LogDirectory,
        name: str,
        then: Callable[[], None],
        error: BaseException | None,
    ) -> None:
        if error is None:
            then()
        else:  # It is written the next time, changed or not.
            self._checkpointed.pop((directory.path, name), None)

    def checkpoint_and_report(
        self, directory: LogDirectory, name: str, offsets: CheckpointOffsets, report: Done
    ) -> None:
        """Write a directory's checkpoint in Background, changed or not, and report the outcome."""
        self._checkpointed.pop((directory.path, name), None)
        work = directory.checkpoint(name, offsets)
        self.submit_and_report(directory, f"writing {directory.file(name)}", work, report)

    def submit_and_report(
        self, directory: LogDirectory, what: str, work: Callable[[], object], report: Done
    ) -> None:
        """Work on a directory in Background, and report the outcome."""
        watch = self._watch(directory, what)

        def done(error: BaseException | None) -> None:
            watch(error)
            report(error)

        self._background.submit(work, done)

    def release(self) -> None:
        """Release the locks."""
        for directory in self.all:
            directory.release()


def are_empty(disk: Disk, paths: Sequence[str]) -> bool:
    """Whether all of these folders are empty, as far as they can be read."""
    try:
        return not any(disk.exists(path) and disk.list_names(path) for path in paths)
    except OSError:
        return False  # Opening the logs will report errors.


def unowned(disk: Disk, paths: Sequence[str]) -> list[str]:
    """Those of these folders that have no owner yet."""
    return [path for path in paths if not disk.exists(f"{path}/{names.META_PROPERTIES}")]


def disown(disk: Disk, paths: Sequence[str]) -> None:
    """Remove the owner of these folders, which has made nothing in them: they may get another node id."""
    for path in paths:
        with suppress(OSError):
            if not any(map(names.parse_folder_name, disk.list_names(path))):
                unlink_if_there(disk, f"{path}/{names.META_PROPERTIES}")


@contextmanager
def _failing_alone(directory: LogDirectory) -> Iterator[None]:
    try:
        yield
    except LogDirectoryError:
        raise
    except OSError as error:
        give_up(directory, error)


def give_up(directory: LogDirectory, error: OSError, partitions: int = 0) -> None:
    """Take a directory offline, and log that."""
    directory.fail(error)
    _LOGGER.error("Stopping serving %s in dir %s: %s", counted(partitions, "log"), directory, error)

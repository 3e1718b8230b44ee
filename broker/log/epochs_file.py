"""Shell: the leader epochs of a log as its file leader-epoch-checkpoint holds them.

Rules of this file:
- The file is written with what makes the log durable (a flush, its end), by the thread that waits for the disk, and not
  when an epoch begins: behind the recovery point recovery takes the epochs from the batches, whatever the file says. So
  an election of hundreds of partitions, which gives each a new epoch on each replica, touches no file. Kafka writes it
  at once, of which the truncations became too dear as well (KAFKA-15046) and are left to a thread (KAFKA-16541).
- What no batch tells, as the log begins anew behind what is in the lake or is a copy of another, is written at once.
- Of two writings the one that was asked for later stays. A log that is deleted writes nothing more: the folder of its
  name may be another's by then.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Lock

from broker.log import names
from broker.log.checkpoint import encode_epochs
from broker.log.durability import NotWritten
from broker.log.epochs import LeaderEpochs
from broker.log.files import replace
from broker.seams import Disk


class EpochsFile:
    """One leader-epoch-checkpoint."""

    def __init__(self, disk: Disk, directory: str, epochs: LeaderEpochs, *, is_dirty: bool) -> None:
        self._disk = disk
        self.renamed(directory)
        self._epochs = epochs
        self._changes = 1 if is_dirty else 0
        self._written = 0
        self._is_closed = False
        # Around the file: threads write it, and a thread may be late.
        self._turn = Lock()

    def renamed(self, directory: str) -> None:
        """It lies in this folder."""
        self._path = f"{directory}/{names.LEADER_EPOCH_CHECKPOINT}"

    def changed(self) -> None:
        """The epochs are not those of the file any more."""
        self._changes += 1

    def writing(self) -> Callable[[], None]:
        """What brings the file up to what is in memory now; for any thread. That raises NotWritten."""
        changes = self._changes
        if changes == self._written:
            return _nothing
        data = encode_epochs(self._epochs.entries)

        def work() -> None:
            with self._turn:
                if self._is_closed or self._written >= changes:
                    return
                try:
                    replace(self._disk, self._path, data, durable=False)
                except OSError as error:
                    raise NotWritten(*error.args) from error
                self._written = changes

        return work

    def write_now(self) -> None:
        """Bring the file up to what is in memory; what a full disk refuses is written with the next flush."""
        with suppress(NotWritten):
            self.writing()()

    def close(self) -> None:
        """Write nothing more; one that is under way is waited for."""
        with self._turn:
            self._is_closed = True


def _nothing() -> None:
    """The file is what it should be."""

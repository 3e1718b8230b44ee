"""Shell: the leader epochs of a log as its file leader-epoch-checkpoint holds them.

The file is written with whatever makes the log durable (a flush, closing), by the thread that waits for the disk, not
when an epoch begins: above the recovery point recovery takes the epochs from the batches. So an election of hundreds of
partitions touches no file (in Kafka truncations leave it to a thread, too: KAFKA-15046, KAFKA-16541). Epochs that are
in no batch, because the log begins above what is in the lake or is a copy, are written at once. Of two writes the later
request wins. A deleted log writes nothing more: the folder of its name may belong to another log by then.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Lock

from broker.log.durability import NotFlushed
from broker.log.epochs import LeaderEpochs
from kafka_ds.process.seams import Disk
from kafka_ds.segments import names
from kafka_ds.segments.checkpoint import encode_epochs
from kafka_ds.segments.files import replace


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
        """The file is in this folder now."""
        self._path = f"{directory}/{names.LEADER_EPOCH_CHECKPOINT}"

    def mark_dirty(self) -> None:
        """The epochs in memory differ from the file."""
        self._changes += 1

    def writing(self) -> Callable[[], None]:
        """A function that writes the present epochs, for any thread; it raises NotWritten."""
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
                    raise NotFlushed(*error.args) from error
                self._written = changes

        return work

    def write_now(self) -> None:
        """Write the present epochs; if the disk is full they are written with the next flush."""
        with suppress(NotFlushed):
            self.writing()()

    def close(self) -> None:
        """Write nothing more, after waiting for a write in progress."""
        with self._turn:
            self._is_closed = True


def _nothing() -> None:
    """Do nothing: the file is up to date."""

"""Shell: the leader epochs of a log as its file leader-epoch-checkpoint holds them.

Rules of this file: a change is written when it happens, and not durably; what a full disk refuses then is written
before anything counts as durable. Recovery makes the file anew from the batches.
"""

from __future__ import annotations

from contextlib import suppress

from broker.log import names
from broker.log.checkpoint import encode_epochs
from broker.log.epochs import LeaderEpochs
from broker.log.files import replace
from broker.seams import Disk


class EpochsFile:
    """One leader-epoch-checkpoint."""

    def __init__(self, disk: Disk, directory: str, epochs: LeaderEpochs, *, is_dirty: bool) -> None:
        self._disk = disk
        self.renamed(directory)
        self._epochs = epochs
        self._is_dirty = is_dirty

    def renamed(self, directory: str) -> None:
        """It lies in this folder."""
        self._path = f"{directory}/{names.LEADER_EPOCH_CHECKPOINT}"

    def changed(self) -> None:
        """The epochs are not those of the file any more."""
        self._is_dirty = True
        with suppress(OSError):
            self.write_if_dirty()

    def write_if_dirty(self) -> None:
        """Bring the file up to what is in memory."""
        if self._is_dirty:
            replace(self._disk, self._path, encode_epochs(self._epochs.entries), durable=False)
            self._is_dirty = False

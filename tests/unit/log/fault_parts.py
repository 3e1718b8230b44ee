"""What a disk refuses at random, and what a log must hold all the same."""

from __future__ import annotations

import errno
from copy import deepcopy
from random import Random

from kafka_ds.records.batch import ControlType
from tests.fakes.memory_disk import MemoryDisk
from tests.unit.log.log_model import LogModel, ModelBatch, ModelProducer

NO_ROOM = (errno.ENOSPC, errno.EMFILE)


class Refusals:
    """What a disk is to do at its next operations: nothing, one error, errors until it is over, or a kill."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        self._check = disk.check
        self._left, self._is_lasting = -1, False
        self.have_come = False
        disk.check = self.check  # type: ignore[method-assign]

    def begin(self, random: Random) -> None:
        self.have_come = False
        kind = random.choice(["none"] * 3 + ["one", "one", "lasting", "kill"])
        if kind == "kill":
            self._disk.crash_after = random.randint(0, 20)
        elif kind != "none":
            self._left, self._is_lasting = random.randint(0, 25), kind == "lasting"
            self._disk.failing_with = random.choice(NO_ROOM)

    def end(self) -> None:
        self._left, self._disk.crash_after = -1, None

    def check(self, operation: str) -> None:
        self._check(operation)
        if self._left < 0:
            return
        if self._left == 0:
            if not self._is_lasting:
                self._left = -1
            self.have_come = True
            raise OSError(self._disk.failing_with, f"{operation} fails")
        self._left -= 1


class Model(LogModel):
    """All batches since the log began anew last, those that retention has taken included."""

    def __init__(self) -> None:
        super().__init__()
        self.begins_with: dict[int, ModelProducer] = {}
        self.first_base = self.end = 0

    def replay(self) -> tuple[dict[int, ModelProducer], list[tuple[int, int, int]]]:  # type: ignore[override]
        known, self.batches = self.batches, []
        producers = deepcopy(self.begins_with)
        aborted = []
        for batch in known:
            header = batch.header
            if header.producer_id < 0:
                continue
            producer = producers.setdefault(header.producer_id, ModelProducer())
            if producer.epoch != header.producer_epoch:
                producer.epoch, producer.last_sequence = header.producer_epoch, -1
                producer.last_offset = -1
            if batch.marker is None:
                producer.last_sequence, producer.last_offset = (
                    header.last_sequence,
                    header.last_offset,
                )
                if header.is_transactional and producer.transaction_start < 0:
                    producer.transaction_start = header.base_offset
                continue
            producer.coordinator_epoch = 0
            start, producer.transaction_start = producer.transaction_start, -1
            if start >= 0 and batch.marker is ControlType.ABORT:
                aborted.append((header.producer_id, start, header.base_offset))
        self.batches = known
        return producers, aborted

    @property
    def local(self) -> list[ModelBatch]:
        return [each for each in self.batches if each.header.base_offset >= self.first_base]

    def cut_to(self, end: int) -> None:
        self.cut(end)
        self.end = end

    def begin_anew(self, offset: int, producers: dict[int, ModelProducer]) -> None:
        self.batches, self.first_base, self.end = [], offset, offset
        self.begins_with = producers

"""What a log must hold, kept in the simplest way: the list of its batches."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field

from kafka_ds.records.batch import (
    BatchHeader,
    ControlType,
    Record,
    build_batch,
    end_transaction_marker,
    read_header,
    read_records,
)
from kafka_ds.segments.index import AbortedTxn


@dataclass
class ModelBatch:
    """A batch as it lies in the log."""

    data: bytes
    marker: ControlType | None = None

    @property
    def header(self) -> BatchHeader:
        return read_header(self.data)

    @property
    def records(self) -> list[Record]:
        return read_records(self.data)


@dataclass
class ModelProducer:
    """A producer as replaying all batches leaves it."""

    epoch: int = -1
    last_sequence: int = -1
    last_offset: int = -1
    coordinator_epoch: int = -1
    transaction_start: int = -1


@dataclass
class LogModel:
    """All batches that were appended and not cut off since."""

    batches: list[ModelBatch] = field(default_factory=list)
    begins_with: dict[int, ModelProducer] = field(default_factory=dict)
    """The producers before the first batch."""

    @property
    def end_offset(self) -> int:
        return self.batches[-1].header.next_offset if self.batches else 0

    @property
    def bytes(self) -> bytes:
        return b"".join(batch.data for batch in self.batches)

    def cut(self, offset: int) -> None:
        self.batches = [batch for batch in self.batches if batch.header.next_offset <= offset]

    def boundaries(self) -> list[int]:
        return [0, *(batch.header.next_offset for batch in self.batches)]

    def replay(self) -> tuple[dict[int, ModelProducer], list[AbortedTxn]]:
        """The producers at the end, and the aborted transactions in the order of their markers."""
        producers = deepcopy(self.begins_with)
        aborted = []
        for batch in self.batches:
            header = batch.header
            if header.producer_id < 0:
                continue
            producer = producers.setdefault(header.producer_id, ModelProducer())
            if producer.epoch != header.producer_epoch:
                producer.epoch, producer.last_sequence = header.producer_epoch, -1
                producer.last_offset = -1
            if batch.marker is None:
                producer.last_sequence = header.last_sequence
                producer.last_offset = header.last_offset
                if header.is_transactional and producer.transaction_start < 0:
                    producer.transaction_start = header.base_offset
                continue
            producer.coordinator_epoch = 0
            start, producer.transaction_start = producer.transaction_start, -1
            if start >= 0 and batch.marker is ControlType.ABORT:
                opened = [p.transaction_start for p in producers.values()]
                stable = min((o for o in opened if o >= 0), default=header.base_offset + 1)
                entry = AbortedTxn(header.producer_id, start, header.base_offset, stable)
                aborted.append(entry)
        return producers, aborted

    def last_stable_offset(self) -> int:
        starts = [p.transaction_start for p in self.replay()[0].values()]
        return min((start for start in starts if start >= 0), default=self.end_offset)

    def first_at_or_after(self, timestamp_ms: int) -> tuple[int, int] | None:
        for batch in self.batches:
            for record in batch.records:
                if record.timestamp >= timestamp_ms:
                    return record.timestamp, record.offset
        return None


def client_batch(
    count: int,
    *,
    value_bytes: int = 10,
    timestamp_ms: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
    codec: int = 0,
) -> bytearray:
    """A batch as a producer sends it: offsets from 0."""
    records = [
        Record(offset, timestamp_ms + offset % 3, b"key", b"v" * value_bytes)
        for offset in range(count)
    ]
    return bytearray(
        build_batch(
            records,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            is_transactional=is_transactional,
            codec=codec,
        )
    )


def marker(
    control: ControlType, producer_id: int, *, epoch: int = 0, timestamp_ms: int
) -> bytearray:
    return bytearray(
        end_transaction_marker(
            control,
            timestamp=timestamp_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=0,
        )
    )

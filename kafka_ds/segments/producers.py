"""Pure: a log's producer state, for idempotence and transactions (KIP-98, KIP-360); Kafka's ProducerStateManager.

`check` validates a batch and changes nothing; `update` records a batch that was written. So if the write fails, the
state still matches the log. A producer without state may begin with any sequence. A producer expires by the broker's
clock, since its last batch, across restarts (`timestamp` in the snapshot); Kafka uses the records' timestamps, and so
drops a producer of old timestamps at the next start. Snapshots have Kafka's format (version 1).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.records.batch import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, BatchHeader
from kafka_ds.records.crc import crc32c
from kafka_ds.records.marker import Marker
from kafka_ds.records.sequences import sequence_after
from kafka_ds.segments.index import AbortedTxn

BATCHES_REMEMBERED = 5
NO_OFFSET = -1
ACTIVE = -1  # Since the last call of `begin_silence`.

SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_CHECKED_FROM = 6  # after the version and the checksum


class AppendOrigin(IntEnum):
    """The origin of an append, which determines the checks and who assigns offsets."""

    REPLICATION = 0
    """A follower: offsets and epochs are the leader's; only corrupt batches are refused."""
    COORDINATOR = 1
    """This broker itself (markers, group and transaction records)."""
    CLIENT = 2
    """A producer: everything is checked."""


class OwnBatch(NamedTuple):
    """A batch as it will be in the log."""

    header: BatchHeader
    marker: Marker | None


class CorruptSnapshot(Exception):
    """A producer snapshot whose length, version or checksum is wrong."""


class ProducerBatch(NamedTuple):
    """What is remembered of a batch, to recognise a duplicate and to repeat the response."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        if self.last_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return sequence_after(self.last_sequence, -self.offset_delta)

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerStateEntry:
    """One producer id's state in one log."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp_ms",
        "silent_since_ms",
        "transaction_start",
    )

    def __init__(self) -> None:
        self.epoch = NO_PRODUCER_EPOCH
        self.batches: deque[ProducerBatch] = deque(maxlen=BATCHES_REMEMBERED)
        self.coordinator_epoch = -1
        self.last_timestamp_ms = NO_TIMESTAMP
        self.silent_since_ms = ACTIVE
        self.transaction_start = NO_OFFSET

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    def enter_epoch(self, epoch: int) -> None:
        """Begin a new epoch, without earlier batches."""
        if epoch != self.epoch:
            self.batches.clear()
            self.epoch = epoch

    def duplicate_of(self, header: BatchHeader) -> ProducerBatch | None:
        """The remembered batch of which this one is a duplicate (KIP-98); None if there is none."""
        batches, first = self.batches, header.base_sequence
        if header.producer_epoch != self.epoch or not batches:
            return None
        if first == batches[-1].last_sequence + 1 and first:
            return None  # The usual one.
        last = header.last_sequence
        for batch in batches:
            if batch.last_sequence == last and batch.first_sequence == first:
                return batch
        return None

    def fingerprint(self) -> tuple[object, ...]:
        """The whole state as one value, for comparisons."""
        return (
            self.epoch,
            tuple(self.batches),
            self.coordinator_epoch,
            self.last_timestamp_ms,
            self.transaction_start,
        )


# The remaining batches of producers, by producer id.
Before = Mapping[int, Sequence[ProducerBatch]]


class Producers:
    """The producers of a log, and its transactions that are open or whose marker is not replicated yet."""

    def __init__(self) -> None:
        self._producers: dict[int, ProducerStateEntry] = {}
        self._ongoing: dict[int, int] = {}  # first offset → producer id, ascending
        self._settling: dict[int, int] = {}  # first offset → marker offset, above the watermark

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[tuple[int, ProducerStateEntry]]:
        return iter(self._producers.items())

    def get(self, producer_id: int) -> ProducerStateEntry | None:
        return self._producers.get(producer_id)

    def is_in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a producer of this epoch has a transaction open here."""
        found = self._producers.get(producer_id)
        return found is not None and found.transaction_start >= 0 and found.epoch == producer_epoch

    # -- idempotence ----------------------------------------------------------------------------

    def check(self, header: BatchHeader, origin: AppendOrigin) -> ProducerBatch | None:
        """The batch of which this one is a duplicate, or None; raises KafkaError if it must not be written."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        is_clients = origin is AppendOrigin.CLIENT
        if is_clients:
            duplicate = producer.duplicate_of(header)
            if duplicate is not None:
                return duplicate
        if header.producer_epoch < producer.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"epoch {header.producer_epoch} of producer {header.producer_id} is older than "
                f"{producer.epoch}",
            )
        if is_clients:
            self._check_sequence(producer, header)
        if producer.transaction_start != NO_OFFSET and not header.is_transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has a transaction open in this partition",
            )
        return None

    @staticmethod
    def _check_sequence(producer: ProducerStateEntry, header: BatchHeader) -> None:
        if producer.epoch == NO_PRODUCER_EPOCH:
            return
        sequence = header.base_sequence
        if header.producer_epoch != producer.epoch:
            if sequence == 0:
                return
            expected = 0
        else:
            last = producer.last_sequence
            expected = sequence_after(last, 1)
            # After a marker without data the epoch is known, but no sequence: then 0 is expected.
            if sequence == expected:
                return
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id} epoch {header.producer_epoch} sent sequence "
            f"{sequence}, expected is {expected}",
        )

    def update(self, header: BatchHeader) -> None:
        """Record a data batch that was written to the log."""
        producer_id, delta, time_ms = (
            header.producer_id,
            header.last_offset_delta,
            header.max_timestamp,
        )
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = ProducerStateEntry()
        if header.producer_epoch != producer.epoch:
            producer.enter_epoch(header.producer_epoch)
        producer.batches.append(
            ProducerBatch(header.last_sequence, header.base_offset + delta, delta, time_ms)
        )
        producer.last_timestamp_ms = time_ms
        producer.silent_since_ms = ACTIVE
        if header.is_transactional and producer.transaction_start == NO_OFFSET:
            producer.transaction_start = header.base_offset
            self._ongoing[header.base_offset] = producer_id

    # -- transactions ---------------------------------------------------------------------------

    def check_marker(self, header: BatchHeader, coordinator_epoch: int) -> None:
        """Raise KafkaError if the marker's coordinator or producer epoch is fenced."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return
        if header.producer_epoch < producer.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"a marker of epoch {header.producer_epoch}, the producer is at {producer.epoch}",
            )
        if coordinator_epoch < producer.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {coordinator_epoch} is older than {producer.coordinator_epoch}",
            )

    def end_transaction(
        self, header: BatchHeader, *, aborted: bool, coordinator_epoch: int
    ) -> AbortedTxn | None:
        """Record a marker that was written to the log; returns the entry for the transaction index, if any."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            producer = self._producers[header.producer_id] = ProducerStateEntry()
        first_offset = producer.transaction_start
        producer.enter_epoch(header.producer_epoch)
        producer.coordinator_epoch = coordinator_epoch
        producer.last_timestamp_ms = header.max_timestamp
        producer.silent_since_ms = ACTIVE
        producer.transaction_start = NO_OFFSET
        if first_offset == NO_OFFSET:
            return None  # The transaction has no records in this partition.
        marker_offset = header.base_offset
        self._ongoing.pop(first_offset, None)
        self._settling[first_offset] = marker_offset
        if not aborted:
            return None
        stable_offset = next(iter(self._ongoing), marker_offset + 1)
        return AbortedTxn(header.producer_id, first_offset, marker_offset, stable_offset)

    def on_high_watermark_updated(self, high_watermark: int) -> None:
        """Forget the ended transactions whose markers are replicated."""
        if self._settling:
            self._settling = {
                first: last for first, last in self._settling.items() if last >= high_watermark
            }

    def last_stable_offset(self, high_watermark: int, log_start_offset: int) -> int:
        """The first offset of the first transaction that is open or whose marker is not replicated yet."""
        if not self._ongoing and not self._settling:
            return high_watermark
        settling = (first for first, last in self._settling.items() if last >= high_watermark)
        unstable = min(
            min(settling, default=high_watermark), next(iter(self._ongoing), high_watermark)
        )
        return min(high_watermark, max(unstable, log_start_offset))

    # -- truncation -----------------------------------------------------------------------------

    def before(self, offset: int, gone: Iterable[BatchHeader]) -> Before | None:
        """The remaining batches of producers after a truncation to `offset`, which removes the batches `gone`.

        None if they are not known: a transaction began or ended there, or a producer has no remembered batch left.
        """
        left: dict[int, list[ProducerBatch]] = {}
        for header in gone:
            if header.is_transactional or header.is_control:
                return None
            if header.producer_id < 0 or header.producer_id in left:
                continue
            producer = self._producers.get(header.producer_id)
            # The epoch and the time of a marker cannot be restored from batches.
            if producer is None or producer.coordinator_epoch >= 0:
                return None
            kept = [batch for batch in producer.batches if batch.last_offset < offset]
            if not kept:
                return None
            left[header.producer_id] = kept
        return left

    def restore(self, before: Before) -> None:
        """Restore these batches after later ones were truncated."""
        for producer_id, batches in before.items():
            producer = self._producers[producer_id]
            producer.batches.clear()
            producer.batches.extend(batches)
            producer.last_timestamp_ms = batches[-1].timestamp_ms

    # -- expiration -----------------------------------------------------------------------------

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Remove producers without a batch for that long and without an open transaction; returns how many.

        A producer that was active since the last call counts as silent from now on, so that appends need no clock.
        """
        self.begin_silence(now_ms)
        for producer in self._producers.values():
            if producer.silent_since_ms > now_ms:  # The clock was set back.
                producer.silent_since_ms = now_ms
        silent = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.transaction_start == NO_OFFSET
            and now_ms - producer.silent_since_ms >= expiration_ms
        ]
        for producer_id in silent:
            del self._producers[producer_id]
        return len(silent)

    def begin_silence(self, now_ms: int) -> None:
        """Producers that were active since the last call count as silent from `now_ms` on."""
        for producer in self._producers.values():
            if producer.silent_since_ms == ACTIVE:
                producer.silent_since_ms = now_ms

    def go_on_with_silence_of(self, others: Producers) -> None:
        """Take over `silent_since_ms` from `others`, the state before the log was read again, if last batches agree."""
        for producer_id, producer in self._producers.items():
            known = others.get(producer_id)
            if known is not None and known.last_offset == producer.last_offset:
                producer.silent_since_ms = known.silent_since_ms

    def forget_transactions_below(self, log_start_offset: int) -> None:
        """Remove transactions that ended below the log start offset."""
        self._settling = {
            first: last for first, last in self._settling.items() if last >= log_start_offset
        }

    def forget_open_transactions(self) -> None:
        """Remove all open transactions, which are known to have ended."""
        self._ongoing.clear()
        for producer in self._producers.values():
            producer.transaction_start = NO_OFFSET

    # -- snapshots ------------------------------------------------------------------------------

    def fingerprint(self) -> dict[int, tuple[object, ...]]:
        return {key: producer.fingerprint() for key, producer in self._producers.items()}

    def encode_snapshot(self, now_ms: int | None = None) -> bytes:
        """All producers in Kafka's format. `now_ms`: the time for producers that are not silent, if known."""
        heard_ms = NO_TIMESTAMP if now_ms is None else now_ms
        body = bytearray(_SNAPSHOT_HEAD.pack(SNAPSHOT_VERSION, 0, len(self._producers)))
        for producer_id, producer in self._producers.items():
            last = producer.batches[-1] if producer.batches else None
            body += _SNAPSHOT_ENTRY.pack(
                producer_id,
                producer.epoch,
                last.last_sequence if last else NO_SEQUENCE,
                last.last_offset if last else NO_OFFSET,
                last.offset_delta if last else 0,
                producer.silent_since_ms
                if producer.silent_since_ms != ACTIVE
                else max(producer.last_timestamp_ms, heard_ms),
                producer.coordinator_epoch,
                producer.transaction_start,
            )
        checksum = crc32c(memoryview(body)[_CHECKED_FROM:])
        _SNAPSHOT_HEAD.pack_into(body, 0, SNAPSHOT_VERSION, checksum, len(self._producers))
        return bytes(body)

    @classmethod
    def decode_snapshot(cls, data: bytes, written_ms: int | None = None) -> Producers:
        """The producers of a snapshot; raises CorruptSnapshot for anything else.

        `written_ms`: when it was written. None: all producers count as active.
        """
        if len(data) < _SNAPSHOT_HEAD.size:
            raise CorruptSnapshot("truncated")
        version, checksum, count = _SNAPSHOT_HEAD.unpack_from(data)
        if version != SNAPSHOT_VERSION:
            raise CorruptSnapshot(f"version {version}")
        if checksum != crc32c(memoryview(data)[_CHECKED_FROM:]):
            raise CorruptSnapshot("checksum")
        if len(data) != _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size:
            raise CorruptSnapshot(f"{count} entries in {len(data)} bytes")
        producers = cls()
        entries = _SNAPSHOT_ENTRY.iter_unpack(memoryview(data)[_SNAPSHOT_HEAD.size :])
        producers._restore(entries, ACTIVE if written_ms is None else written_ms)
        return producers

    def _restore(self, entries: Iterable[tuple[int, ...]], written_ms: int) -> None:
        ongoing = {}
        for producer_id, epoch, sequence, offset, delta, timestamp, coordinator, start in entries:
            producer = self._producers[producer_id] = ProducerStateEntry()
            producer.epoch = epoch
            if offset >= 0:
                producer.batches.append(ProducerBatch(sequence, offset, delta, timestamp))
            producer.last_timestamp_ms = timestamp
            producer.silent_since_ms = min(timestamp, written_ms) if timestamp >= 0 else written_ms
            producer.coordinator_epoch = coordinator
            producer.transaction_start = start
            if start >= 0:
                ongoing[start] = producer_id
        self._ongoing = dict(sorted(ongoing.items()))


def record_own(batch: OwnBatch, producers: Producers) -> AbortedTxn | None:
    """Record a batch that was written to the log; returns the entry for the transaction index, if any."""
    header, marker = batch
    if header.producer_id < 0:
        return None
    if marker is None:
        if (
            not header.is_control
        ):  # Otherwise compaction has removed the marker, and its transaction before.
            producers.update(header)
        return None
    return producers.end_transaction(
        header, aborted=marker.aborted, coordinator_epoch=marker.coordinator_epoch
    )

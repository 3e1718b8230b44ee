"""Shell: what a follower does to its log: append what its leader wrote, truncate what its leader never had.

Rules of this file:
- A leader's batches are taken as they are: offsets, epochs, compression. Headers and checksums are checked, records
  never.
- A batch of a later epoch than that of the fetch is not appended, nor anything after it: between request and answer the
  log may have been truncated for another leader (KAFKA-18723).
- A partial batch at the end of an answer is dropped: only whole batches enter a log, and no more of them at once than a
  segment may hold.
- A log that is truncated below its first segment begins anew there: nothing of it is left.
"""

from __future__ import annotations

from collections.abc import Iterator

from broker.log.ending import UNKNOWN, Ending
from broker.log.log import Log
from broker.log.values import AppendOrigin
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.records.batch import HEADER, HEADER_BYTES, LOG_OVERHEAD_BYTES, BatchHeader


def append_as_follower(log: Log, records: memoryview, *, leader_epoch: int, now_ms: int) -> int:
    """Append the leader's batches, none of a later epoch than `leader_epoch`; returns their bytes.

    Raises:
        KafkaError: CORRUPT_MESSAGE for damage and for offsets that go back, KAFKA_STORAGE_ERROR for the disk's
            trouble. What came before stays appended.
    """
    appended = 0
    for run in runs(records, leader_epoch, log.config.segment_bytes):
        _make_room_below(log, run)
        log.append(run, leader_epoch=leader_epoch, now_ms=now_ms, origin=AppendOrigin.REPLICATION)
        appended += len(run)
    return appended


def runs(records: memoryview, leader_epoch: int, run_bytes_max: int) -> Iterator[memoryview]:
    """Runs of whole batches up to `run_bytes_max` each (at least one batch), before the first that is too new."""
    begin = position = 0
    while len(records) - position >= HEADER_BYTES:
        header = BatchHeader._make(HEADER.unpack_from(records, position))
        size = header.batch_length + LOG_OVERHEAD_BYTES
        if size < HEADER_BYTES:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a batch of {size} bytes")
        if position + size > len(records) or header.leader_epoch > leader_epoch:
            break
        if position + size - begin > run_bytes_max and position > begin:
            yield records[begin:position]
            begin = position
        position += size
    if position > begin:
        yield records[begin:position]


def _make_room_below(log: Log, run: memoryview) -> None:
    """Move an empty log's beginning down to the first offset of the batch that holds it.

    DeleteRecords may leave a leader's log start within a batch, and batches come whole.
    """
    header = BatchHeader._make(HEADER.unpack_from(run))
    end = log.log_end_offset
    is_empty = end == log.local_log_start_offset and not log.size_bytes
    if is_empty and header.base_offset < end <= header.last_offset:
        restart(log, header.base_offset)


def truncate(log: Log, offset: int) -> None:
    """Truncate the batches that hold `offset` or a later one. Raises OSError.

    If that lowers the recovery point, also if it raises, it has to be written down before anything is appended: what is
    to come is not durable, and what a recovery point covers is believed.
    """
    if offset < log.first_base_offset:
        log.restart_at(offset)
    else:
        log.truncate_to(offset)


def restart(log: Log, offset: int, ended: Ending = UNKNOWN) -> None:
    """Drop all that is local and continue at `offset`, with `ended` as all that is known before; see `truncate`."""
    # Cut first: what is forgotten of the epochs then is on disk, too.
    log.truncate_to(log.first_base_offset)
    log.leader_epochs.clear()
    log.restart_at(offset, ended)

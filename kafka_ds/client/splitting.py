"""Pure: a sealed batch that is too large for its topic, as smaller ones.

Rules of this file: the parts hold the batch's records in their order, and their sequences go on where the last part's
end (KIP-98). So what follows them in the partition stays what it is, and a broker takes each record once.
"""

from __future__ import annotations

from collections.abc import Iterator

from kafka_ds.records.batch import NO_SEQUENCE, build_batch, read_header, read_records
from kafka_ds.records.sequences import sequence_after


def split(data: bytes | bytearray, bytes_max: int) -> Iterator[tuple[bytes, int]]:
    """Two parts at least, each with its number of records: about ``bytes_max`` bytes, where records are alike."""
    header, records = read_header(data), read_records(data)
    assert len(records) > 1, "a record cannot be split"
    parts = min(len(records), max(2, -(-len(data) // max(1, bytes_max))))
    start = 0
    for part in range(1, parts + 1):
        end = len(records) * part // parts
        sequence = header.base_sequence
        part_of_batch = build_batch(
            [each._replace(offset=n) for n, each in enumerate(records[start:end])],
            codec=header.codec,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=sequence if sequence == NO_SEQUENCE else sequence_after(sequence, start),
            is_transactional=header.is_transactional,
        )
        yield part_of_batch, end - start
        start = end

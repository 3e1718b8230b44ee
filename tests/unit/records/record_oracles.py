"""The record readers and builders of other clients, and what they read of a batch."""

from __future__ import annotations

import warnings
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder

from kafka_ds.records.batch import Codec, Record

with warnings.catch_warnings():
    # It reads its message definitions in a way that Python 3.11 deprecates and 3.12 does not.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

# kafka-python asks for a snappy library that nothing else here needs; that codec has its own test.
CODECS_OF_OTHERS = (Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD)
READERS = [AiokafkaBatch, KafkaPythonBatch]
BUILDERS = [AiokafkaBuilder, KafkaPythonBuilder]


def records_of(batch_type: Any, batch: bytes) -> list[Record]:
    """What another client's reader finds in a batch."""
    theirs = batch_type(batch)
    assert theirs.validate_crc()
    return [
        Record(r.offset, _wrapped(r.timestamp), r.key, r.value, _headers(r.headers)) for r in theirs
    ]


def _headers(headers: Any) -> tuple[tuple[bytes, bytes | None], ...]:
    return tuple((key.encode(), value) for key, value in headers)


def _wrapped(timestamp: int) -> int:
    """Python's numbers do not wrap at 64 bits as Java's do."""
    return (timestamp + 2**63) % 2**64 - 2**63

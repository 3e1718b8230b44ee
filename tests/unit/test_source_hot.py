"""Hot reads: what a task makes of the batches that a leader sends, without Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from kafka_ds.source.options import parse_options
from kafka_ds.source.planning import HotPiece, Task
from kafka_ds.source.reading import CorruptBatch, ReadConfig, read_task
from kafka_ds.wire.batch import Record, build_batch
from kafka_ds.wire.crc import crc32c
from kafka_ds.wire.messages import FetchRequest, FetchResponse
from kafka_ds.wire.messages.data import FetchableTopicResponse, FetchPartitionData
from tests.unit.source_broker import TOPIC_ID, scripted

# Where a batch of format v2 has its checksum, and its first record.
CRC_AT, RECORDS_AT = 17, 61
SCHEMA = pa.schema([pa.field("value", pa.binary()), pa.field("offset", pa.int64())])


def batch(first: int, count: int) -> bytearray:
    records = [Record(first + n, 1000 + n, None, b"v%d" % (first + n)) for n in range(count)]
    return bytearray(build_batch(records, base_offset=first, leader_epoch=0))


def read(records: bytes, end: int) -> list[int]:
    """The offsets of a task that reads [0, end) of a leader with these records."""

    def script(request: Any) -> Any:
        if not isinstance(request, FetchRequest):
            return None
        partition = FetchPartitionData(partition_index=0, high_watermark=end, records=records)
        topic = FetchableTopicResponse(topic="t", topic_id=TOPIC_ID, partitions=[partition])
        return FetchResponse(responses=[topic])

    piece = HotPiece(start=0, end=end, leader_epoch=0)
    task = Task(topic="t", partition=0, topic_id=TOPIC_ID, pieces=(piece,))
    with scripted(script) as broker:
        given = {"kafka.bootstrap.servers": f"127.0.0.1:{broker.port}", "subscribe": "t"}
        config = ReadConfig(client=parse_options(given).client, schema=SCHEMA)
        rows = pa.Table.from_batches(read_task(task, config), SCHEMA)
    assert rows["value"].to_pylist() == [b"v%d" % n for n in rows["offset"].to_pylist()]
    offsets: list[int] = rows["offset"].to_pylist()
    return offsets


def test_batches_become_rows_up_to_the_end_of_the_plan() -> None:
    assert read(bytes(batch(0, 4) + batch(4, 6)), 8) == list(range(8))


@pytest.mark.parametrize("checksum_fits", [False, True])
def test_a_broken_batch_is_an_error_that_names_its_offsets(checksum_fits: bool) -> None:
    broken = batch(4, 6)
    broken[RECORDS_AT] ^= 0xFF
    if checksum_fits:
        broken[CRC_AT : CRC_AT + 4] = crc32c(broken[CRC_AT + 4 :]).to_bytes(4, "big")
    with pytest.raises(CorruptBatch, match="t-0: the batch of offsets 4 to 9 cannot be decoded"):
        read(bytes(batch(0, 4) + broken), 10)

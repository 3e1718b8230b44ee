"""Where fuzzing begins: right inputs of every target, made and not kept."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

from broker.registry import REGISTRY
from kafka_ds.protocol.frame import encode_request
from kafka_ds.protocol.messages import persisted
from kafka_ds.protocol.messages import persisted_transactions as transactions
from kafka_ds.records.batch import Codec, ControlType, Record, build_batch, end_transaction_marker
from tests.fuzz.targets import INPUT_BYTES_MAX, NOW_MS
from tests.unit.records.old_sets import encode, encode_all, some_entries
from tests.wire.random_messages import random_message

CORPUS = Path(__file__).with_name("corpus")
# A message of magic 1, and its set, as Kafka before 0.11 wrote them.
OLD_SET = "00000000000000000000001f6f1b1b6c0100000001890ea1b000000000016b00000008" + "76" * 8


def corpus(target: str) -> Iterator[bytes]:
    """The inputs found before: files of hexadecimal digits, one input per line, or of JSON for the Delta log."""
    for file in sorted((CORPUS / target).glob("*")):
        text = file.read_text()
        if file.suffix == ".json":
            yield text.encode()
        else:
            yield from map(bytes.fromhex, text.splitlines())


def seeds(target: str) -> Iterator[bytes]:
    """Inputs that are right, small ones."""
    return _SEEDS[target](Random(0))


def _frames(random: Random) -> Iterator[bytes]:
    for served in REGISTRY:
        for version in range(served.lowest, served.highest + 1):
            message = random_message(
                served.request, version, random, elements_max=2, sizes=[0, 1, 3]
            )
            yield encode_request(message, version, 1, "c")[4:][:INPUT_BYTES_MAX]


def _batches(_: Random) -> Iterator[bytes]:
    records = [Record(i, NOW_MS + i, b"k", b"v" * 20, ((b"h", None),)) for i in range(3)]
    for codec in Codec:
        yield build_batch(records, codec=codec)
    yield build_batch(records, producer_id=1, producer_epoch=0, base_sequence=0)
    yield end_transaction_marker(
        ControlType.COMMIT, timestamp=NOW_MS, producer_id=1, producer_epoch=0, coordinator_epoch=0
    )
    yield bytes.fromhex(OLD_SET)


def _old_sets(_: Random) -> Iterator[bytes]:
    yield bytes.fromhex(OLD_SET)
    entries = some_entries()
    yield from map(encode, entries)
    yield encode_all(entries)


def _delta_actions(_: Random) -> Iterator[bytes]:
    bounds = {"minValues": {"offset": 0}, "maxValues": {"offset": 0}}
    add = {
        "path": "partition=0/f.parquet",
        "partitionValues": {"partition": "0"},
        "size": 1,
        "modificationTime": 1,
        "dataChange": True,
        "stats": json.dumps({"numRecords": 1, **bounds}),
    }
    for action in (
        {"add": add},
        {"remove": {"path": "partition=0/f.parquet", "dataChange": True}},
        {"txn": {"appId": "kafka-ds/0", "version": 5}},
        {"metaData": {"id": "j", "configuration": {"a": "b"}}},
        {"protocol": {"minReaderVersion": 3, "readerFeatures": ["x"]}},
    ):
        yield json.dumps(action).encode()


def _group_records(random: Random) -> Iterator[bytes]:
    offset = persisted.OffsetCommitKey(group="g", topic="t", partition=0)
    group = persisted.GroupMetadataKey(group="g")
    for key, cls in (
        (offset, persisted.OffsetCommitValue),
        (group, persisted.GroupMetadataValue),
    ):
        for version in range(5):
            value = random_message(cls, version, random, elements_max=2, sizes=[0, 3])
            yield _record(persisted.encode_key(key), persisted.encode_value(value, version))
        yield _record(persisted.encode_key(key), b"")


def _transaction_records(random: Random) -> Iterator[bytes]:
    key = transactions.encode_key(transactions.TransactionLogKey(transactional_id="x"))
    for version in (0, 1):
        value = random_message(transactions.TransactionLogValue, version, random, sizes=[3])
        value.transaction_status = 1
        yield _record(key, transactions.encode_value(value, version))
    yield _record(key, b"")


def _parquet_files(_: Random) -> Iterator[bytes]:
    for table in (
        pa.table({"offset": pa.array([0, 1], pa.int64()), "value": [b"v", None]}),
        pa.table({"offset": ["no number"], "headers": [[1]]}),
    ):
        out = io.BytesIO()
        pq.write_table(table, out, compression="zstd")
        yield out.getvalue()


def _pages(_: Random) -> Iterator[bytes]:
    for codec, (values, encoding) in enumerate(_COLUMNS):
        yield _column(values, encoding, codec)


_SEEDS: dict[str, Callable[[Random], Iterator[bytes]]] = {
    "frame": _frames,
    "batches": _batches,
    "converted": _batches,
    "produced": _batches,
    "legacy": _old_sets,
    "delta_commit": _delta_actions,
    "group_record": _group_records,
    "transaction_record": _transaction_records,
    "parquet": _parquet_files,
    "pages": _pages,
}
_COLUMNS = (
    (pa.array([7, 8, 8, 1 << 40, -5], pa.int64()), "DELTA_BINARY_PACKED"),
    (pa.array([b"value", b"", b"v" * 40], pa.binary()), "DELTA_LENGTH_BYTE_ARRAY"),
    (pa.array([b"k", None, b"ey", None, None], pa.binary()), "DELTA_LENGTH_BYTE_ARRAY"),
)


def _column(values: pa.Array, encoding: str, codec: int) -> bytes:
    """The pages of a column, with the metadata that the target gets."""
    name = ("zstd", "snappy", "none")[codec]
    nullable = values.null_count > 0
    schema = pa.schema([pa.field("c", values.type, nullable=nullable)])
    out = io.BytesIO()
    pq.write_table(
        pa.table([values], schema=schema),
        out,
        use_dictionary=False,
        compression=name,
        column_encoding={"c": encoding},
    )
    chunk = pq.ParquetFile(out).metadata.row_group(0).column(0)
    start, size = chunk.data_page_offset, chunk.total_compressed_size
    told = bytes([codec | (nullable << 2)]) + len(values).to_bytes(4, "little")
    return told + out.getvalue()[start : start + size]


def _record(key: bytes, value: bytes) -> bytes:
    return bytes([len(key)]) + key + value

"""What reads bytes that others wrote, one function each: it returns, or raises an error that it declares.

A target takes any bytes and knows its declared errors; any other error is a finding. The same functions run under
coverage guidance (`make fuzz`) and over the corpus (`test_corpus.py`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

import broker.handlers  # noqa: F401 - registers what is served
from broker.config.broker import BrokerConfig
from broker.coordinator.group.metadata_image import CoordinatorMetadataImage
from broker.coordinator.group.shard import GroupCoordinatorShard
from broker.coordinator.result import Instant
from broker.coordinator.transaction.transaction_metadata import decode_record
from broker.log.validation import prepare
from broker.metadata.image import MetadataImage
from broker.registry import REGISTRY
from kafka_ds.delta.actions import CorruptLog
from kafka_ds.delta.log import DeltaLog, ForeignTable
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.protocol.codec import decode, encode
from kafka_ds.protocol.errors import KafkaError, MalformedFrame
from kafka_ds.protocol.frame import decode_request_header
from kafka_ds.records.arrays import read_only
from kafka_ds.records.batch import (
    ATTRIBUTES_POSITION,
    CRC_FIELD,
    CRC_POSITION,
    LOG_OVERHEAD_BYTES,
    Record,
    build_batch,
    crc_is_valid,
    iterate_headers,
    read_records,
)
from kafka_ds.records.compression import CorruptRecord
from kafka_ds.records.crc import crc32c
from kafka_ds.records.legacy import Upconverter
from kafka_ds.topic.batches.convert import decode_hot
from kafka_ds.topic.batches.residue import ResidueBatch
from kafka_ds.topic.files.pages import ColumnChunk, PagePart, UnsupportedLayout, binaries, numbers
from kafka_ds.topic.files.parquet import FileReader, UnreadableFile
from kafka_ds.topic.schemas import TOPIC_FILE_SCHEMA
from kafka_ds.topic.snapshot import TopicSnapshot
from tests.fakes.settings import log_settings
from tests.fakes.store import MemoryStore

NOW_MS = 1_700_000_000_000
# The largest input; larger ones teach nothing.
INPUT_BYTES_MAX = 4096
_PLAIN = log_settings()
_DEMANDING = log_settings(
    compression_type="gzip",
    cleanup_policy=("compact",),
    message_timestamp_before_max_ms=10**12,
)


def frame(data: bytes) -> None:
    """A request as it comes from a socket: header, then message. A decoded message is encoded and decoded again."""
    try:
        header, position = decode_request_header(data)
        served = REGISTRY.get(header.api_key)
        version = header.api_version
        if served is None or not served.lowest <= version <= served.highest:
            return
        request = decode(served.request, data, version, position)
    except MalformedFrame:
        return
    again = decode(served.request, encode(request, version), version)
    assert encode(again, version) == encode(request, version)


def batches(data: bytes) -> None:
    """A run of batches, as a log or a leader's answer holds it."""
    try:
        for position, header in iterate_headers(data):
            crc_is_valid(data, position, header)
            read_records(data, position, header)
    except CorruptRecord:
        return


def converted(data: bytes) -> None:
    """A run of batches on its way into a table: any bytes become rows or residue."""
    whole = bytearray(data)
    with suppress(CorruptRecord):
        # Otherwise most changed batches would be refused by their checksums.
        for position, header in iterate_headers(data):
            end = position + header.batch_length + LOG_OVERHEAD_BYTES
            checksum = crc32c(memoryview(data)[position + ATTRIBUTES_POSITION : end])
            CRC_FIELD.pack_into(whole, position + CRC_POSITION, checksum)
    residue: list[ResidueBatch] = []
    columns = frozenset(TOPIC_FILE_SCHEMA.names)
    rows = decode_hot(
        [bytes(whole)], columns=columns, start_offset=0, end_offset=10**9, residue=residue
    )
    for each in rows:
        each.validate(full=True)


def legacy(data: bytes) -> None:
    """A segment of an old Kafka: the result is whole batches, in order; the rest is reported as damage or cut."""
    upconverter = Upconverter(next_offset=0, leader_epoch=0)
    ready, taken = upconverter.feed(memoryview(data))
    assert taken <= len(data)
    next_offset = 0
    for batch in [*ready, *upconverter.finish()]:
        ((position, header),) = iterate_headers(batch)
        assert crc_is_valid(batch, position, header)
        assert header.base_offset >= next_offset
        next_offset = header.next_offset
    assert next_offset == upconverter.next_offset


def produced(data: bytes) -> None:
    """What a producer sends: into a topic that takes it as it is, and into one that demands all that there is."""
    for config in (_PLAIN, _DEMANDING):
        with suppress(KafkaError):
            prepare(memoryview(data), config, NOW_MS)


def group_record(data: bytes) -> None:
    """A record of `__consumer_offsets`: a byte for the key's length, key, value."""
    key, value = _pair(data)
    batch = build_batch([Record(0, NOW_MS, key, value)])
    (found,) = iterate_headers(batch)
    shard = GroupCoordinatorShard(BrokerConfig, str, CoordinatorMetadataImage(MetadataImage()))
    try:
        shard.replay_batch(batch, *found)
    except (MalformedFrame, CorruptRecord):
        return
    shard.loaded(Instant(0, NOW_MS))


def transaction_record(data: bytes) -> None:
    """A record of `__transaction_state`, likewise."""
    key, value = _pair(data)
    try:
        decode_record(key, value)
    except MalformedFrame:
        return


def _pair(data: bytes) -> tuple[bytes, bytes | None]:
    length = data[0] if data else 0
    return data[1 : 1 + length], data[1 + length :] or None


def delta_commit(data: bytes) -> None:
    """A version of a topic's table by another engine, on top of one that is ours."""
    store = MemoryStore()
    store.objects["t/_delta_log/00000000000000000000.json"] = (
        b'{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}\n'
        b'{"metaData":{"id":"i","format":{"provider":"parquet","options":{}},"schemaString":"{}",'
        b'"partitionColumns":["partition"],"configuration":{}}}\n'
    )
    store.objects["t/_delta_log/00000000000000000001.json"] = data
    store.modified = dict.fromkeys(store.objects, NOW_MS)
    try:
        snapshot = TopicSnapshot(DeltaLog(store, "t", clock=store.clock), "t")
        snapshot.read()
        for partition in snapshot.partitions():
            snapshot.index.find(partition, 0, 10**9)
    except (CorruptLog, ForeignTable, UnreadableFile):
        return


def parquet(data: bytes) -> None:
    """A file that a table names and we have not written."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "f.parquet").write_bytes(data)
        try:
            FileReader(LocalStore(folder)).read("f.parquet", start_offset=0, end_offset=10**9)
        except UnreadableFile:
            return


def pages(data: bytes) -> None:
    """A column's pages as input: one byte of footer metadata, its rows in four bytes, then the pages."""
    if len(data) < 5:
        return
    codec = ("zstd", "snappy", None)[data[0] % 3]
    chunk = ColumnChunk(
        0, len(data) - 5, int.from_bytes(data[1:5], "little"), codec, bool(data[0] & 4)
    )
    parts = [PagePart(chunk, read_only(data[5:], np.uint8))]
    for read in (numbers, binaries):
        with suppress(UnsupportedLayout):
            read(parts)


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        frame,
        batches,
        converted,
        legacy,
        produced,
        group_record,
        transaction_record,
        delta_commit,
        parquet,
        pages,
    )
}

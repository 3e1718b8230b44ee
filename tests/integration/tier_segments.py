"""Segments for tests of the tier: batches of every kind, as a leader would have written them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from broker.worker.delta.storage import RemoteStorageManager
from broker.worker.rpc import CopyRequest, LogSegmentData
from kafka_ds.process.buffers import Buffer
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.records.batch import Record, build_batch, iterate_headers, read_records
from kafka_ds.topic.remote_log_segment import RemoteLogSegment

TOPIC = "orders"
TOPIC_ID = bytes(range(16))
PARTITION = TopicIdPartition(TOPIC_ID, TOPIC, 0)
BATCH_RECORDS = 7
BASE_MS = 1_700_000_000_000


def records(start: int, count: int, *, size: int = 20) -> list[Record]:
    """Plain records of these offsets."""
    return [
        Record(
            offset=offset,
            timestamp=BASE_MS + offset,
            key=b"key-%d" % offset,
            value=(b"value-%d-" % offset).ljust(size, b"."),
            headers=((b"h", b"%d" % offset),),
        )
        for offset in range(start, start + count)
    ]


def write_segment(path: Path, batches: Iterable[bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(batches))
    return path


def segment(path: Path, start: int, count: int, *, epoch: int = 3) -> Path:
    """A segment file of plain records."""
    batches = [
        build_batch(records(at, min(BATCH_RECORDS, start + count - at)), leader_epoch=epoch)
        for at in range(start, start + count, BATCH_RECORDS)
    ]
    return write_segment(path, batches)


def copy_range(
    path: Path,
    start: int,
    end: int,
    *,
    topic: str = TOPIC,
    topic_id: bytes = TOPIC_ID,
    partition: int = 0,
    epoch: int = 3,
    position: int = 0,
    aborted: Sequence[tuple[int, int, int]] = (),
    log_start: int = 0,
) -> LogSegmentData:
    """The request for one range of a segment file."""
    return LogSegmentData(
        segment=RemoteLogSegment(
            topic=topic,
            topic_id=topic_id,
            partition=partition,
            start_offset=start,
            end_offset=end,
            leader_epoch=epoch,
            leader_epochs=((epoch, start),),
            size_bytes=path.stat().st_size - position if path.exists() else 1,
        ),
        path=str(path),
        position=position,
        aborted=tuple(aborted),
        producer_snapshot=b"snapshot",
        log_start_offset=log_start,
    )


def copy_request(
    ranges: Sequence[LogSegmentData], *, topic: str = TOPIC, topic_id: bytes = TOPIC_ID
) -> CopyRequest:
    """All of one topic, whichever the ranges were made for."""
    return CopyRequest(sources=[changed(each, topic=topic, topic_id=topic_id) for each in ranges])


def changed(source: LogSegmentData, **changes: Any) -> LogSegmentData:
    """The same, with other values in its segment."""
    return replace(source, segment=replace(source.segment, **changes))


def next_offset(chunks: Sequence[Buffer]) -> int:
    """The offset after batches."""
    (*_, (_, last)) = iterate_headers(bytes(chunks[-1]))
    return last.next_offset


def cold_reads(
    storage: RemoteStorageManager,
    offset: int = 0,
    *,
    partition: TopicIdPartition = PARTITION,
    max_bytes: int,
    committed_only: bool = True,
) -> Iterator[Sequence[Buffer]]:
    """The batches of one read after another, up to the tiered end, as a consumer goes on from where it came to."""
    while True:
        chunks = storage.reader.read(
            partition, offset, max_bytes=max_bytes, committed_only=committed_only
        ).chunks
        yield chunks
        following = next_offset(chunks)
        assert following > offset
        offset = following
        end = storage.state(partition).highest_offset_in_remote_storage
        if offset > end:
            assert offset == end + 1
            return


def all_records(chunks: Iterable[Buffer]) -> list[Record]:
    """The records of batches, of control batches too."""
    found: list[Record] = []
    for chunk in chunks:
        data = bytes(chunk)
        for position, header in iterate_headers(data):
            found.extend(read_records(data, position, header))
    return found

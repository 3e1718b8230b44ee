"""Segments for tests of the tier: batches of every kind, as a leader would have written them."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from broker.worker.rpc import CopyRange, CopyRequest, CopyTopic
from kafka_ds.protocol.types import uuid_text
from kafka_ds.records.batch import Record, build_batch, iterate_headers, read_records

TOPIC = "orders"
TOPIC_ID = bytes(range(16))
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
    partition: int = 0,
    epoch: int = 3,
    position: int = 0,
    aborted: Sequence[tuple[int, int, int]] = (),
    log_start: int = 0,
) -> CopyRange:
    """The request for one range of a segment file."""
    return CopyRange(
        partition=partition,
        start_offset=start,
        end_offset=end,
        leader_epoch=epoch,
        leader_epochs=[[epoch, start]],
        path=str(path),
        position=position,
        size_bytes=path.stat().st_size - position if path.exists() else 1,
        aborted=[list(each) for each in aborted],
        producer_snapshot=b"snapshot".hex(),
        log_start_offset=log_start,
    )


def copy_request(
    ranges: Sequence[CopyRange], *, topic: str = TOPIC, topic_id: bytes = TOPIC_ID
) -> CopyRequest:
    return CopyRequest(
        topics=[CopyTopic(topic=topic, topic_id=uuid_text(topic_id), ranges=list(ranges))]
    )


def all_records(chunks: Iterable[bytes]) -> list[Record]:
    """The records of batches, of control batches too."""
    found: list[Record] = []
    for chunk in chunks:
        data = bytes(chunk)
        for position, header in iterate_headers(data):
            found.extend(read_records(data, position, header))
    return found

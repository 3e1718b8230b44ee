"""A second remote storage, files in a folder: it shows that the protocols of `broker.worker.spi` suit another one."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from broker.worker.rpc import CopyRange, EndOfRange, TieredState
from broker.worker.spi import (
    ColdRead,
    CommittedRange,
    Front,
    OffsetOutOfRange,
    SourceGone,
    StorageError,
    WrittenFiles,
)
from kafka_ds.protocol.types import uuid_text
from kafka_ds.records.batch import iterate_headers, read_records
from kafka_ds.topic.remote_log_segment import (
    RemoteLogSegment,
    RemoteLogSegmentState,
    RemoteSegments,
)

DELETIONS = (
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
    RemoteLogSegmentState.DELETE_SEGMENT_FINISHED,
)


class FolderStorage:
    """Segments as they are, one file each; a commit is a manifest that names several of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "files").mkdir(parents=True, exist_ok=True)
        (root / "commits").mkdir(exist_ok=True)

    def _committed(self, topic_id: bytes, partition: int) -> list[dict[str, Any]]:
        found = []
        for path in sorted((self.root / "commits").iterdir()):
            for entry in json.loads(path.read_text()):
                if (entry["topic_id"], entry["partition"]) == (topic_id.hex(), partition):
                    found.append(entry)
        return sorted(found, key=lambda entry: entry["start"])

    def state(self, topic: str, topic_id: bytes, partition: int) -> TieredState:
        entries = self._committed(topic_id, partition)
        return TieredState(
            topic_id=uuid_text(topic_id),
            partition=partition,
            tiered_end=max((entry["end"] for entry in entries), default=-1),
            log_start_offset=self._start(topic_id, partition),
        )

    def states(self, topic: str, topic_id: bytes, partitions: Sequence[int]) -> list[TieredState]:
        return [self.state(topic, topic_id, each) for each in partitions]

    def _start(self, topic_id: bytes, partition: int) -> int:
        path = self.root / f"start-{topic_id.hex()}-{partition}"
        return int(path.read_text()) if path.exists() else 0

    def move_log_start(
        self, topic: str, topic_id: bytes, partition: int, *, leader_epoch: int, offset: int
    ) -> None:
        if leader_epoch >= self._fenced(topic_id).get(partition, -1):
            path = self.root / f"start-{topic_id.hex()}-{partition}"
            path.write_text(str(max(offset, self._start(topic_id, partition))))

    def front(self, topic: str, topic_id: bytes, partition: int) -> Front:
        state = self.state(topic, topic_id, partition)
        start, end = state.log_start_offset, state.tiered_end
        entries = [
            each
            for each in self._committed(topic_id, partition)
            if (self.root / "files" / each["file"]).exists()
        ]
        straddling = [each["start"] for each in entries if each["start"] < start <= each["end"]]
        horizon = min([start, end + 1, *straddling])
        return Front(
            log_start_offset=start,
            tiered_end=end,
            horizon=horizon,
            has_files_below=any(each["end"] < horizon for each in entries),
        )

    def remove_below(
        self, topic: str, topic_id: bytes, partition: int, *, leader_epoch: int, offset: int
    ) -> int:
        if leader_epoch < self._fenced(topic_id).get(partition, -1):
            raise StorageError("the leader is fenced")
        below = [each for each in self._committed(topic_id, partition) if each["end"] < offset]
        paths = [self.root / "files" / each["file"] for each in below]
        gone = [each for each in paths if each.exists()]
        for path in gone:
            path.unlink()
        return len(gone)

    def write(
        self, segments: Sequence[RemoteLogSegment], sources: Sequence[CopyRange]
    ) -> list[WrittenFiles]:
        return [self._write(*each) for each in zip(segments, sources, strict=True)]

    def _write(self, segment: RemoteLogSegment, source: CopyRange) -> WrittenFiles:
        try:
            with open(source.path, "rb") as file:
                file.seek(source.position)
                data = file.read(source.size_bytes)
        except FileNotFoundError as error:
            raise SourceGone(str(error)) from error
        name = segment.segment_id.hex()
        (self.root / "files" / name).write_bytes(data)
        mine = [
            header
            for _, header in iterate_headers(data)
            if segment.start_offset <= header.base_offset <= segment.end_offset
        ]
        made = replace(
            segment,
            files=(name,),
            lake_bytes=len(data),
            row_count=sum(each.record_count for each in mine),
            max_timestamp_ms=max((each.max_timestamp for each in mine), default=-1),
        )
        return WrittenFiles(segment=made)

    def _fenced(self, topic_id: bytes) -> dict[int, int]:
        path = self.root / f"fenced-{topic_id.hex()}"
        known: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}
        return {int(partition): epoch for partition, epoch in known.items()}

    def fence(self, topic: str, topic_id: bytes, leader_epochs: Mapping[int, int]) -> None:
        fenced = self._fenced(topic_id)
        if any(fenced.get(each, -1) > epoch for each, epoch in leader_epochs.items()):
            raise StorageError("a later epoch is there")
        path = self.root / f"fenced-{topic_id.hex()}"
        path.write_text(json.dumps({**fenced, **leader_epochs}))

    def commit(self, topic: str, topic_id: bytes, ranges: Sequence[WrittenFiles]) -> CommittedRange:
        dropped: dict[int, str] = {}
        fenced = self._fenced(topic_id)
        for each in ranges:
            segment = each.segment
            if segment.leader_epoch < fenced.get(segment.partition, -1):
                dropped[segment.partition] = "the leader is fenced"
            if self.state(topic, topic_id, segment.partition).tiered_end >= segment.start_offset:
                dropped[segment.partition] = "the range is there"
        written = tuple(each for each in ranges if each.segment.partition not in dropped)
        manifest = [
            {
                "topic_id": topic_id.hex(),
                "partition": each.segment.partition,
                "start": each.segment.start_offset,
                "end": each.segment.end_offset,
                "file": each.segment.files[0],
                "rows": each.segment.row_count,
            }
            for each in written
        ]
        number = len(list((self.root / "commits").iterdir()))
        temporary = self.root / f"{number}.tmp"
        temporary.write_text(json.dumps(manifest))
        os.rename(temporary, self.root / "commits" / f"{number:08d}")
        return CommittedRange(written=written, dropped=dropped)

    def holds(self, segment: RemoteLogSegment) -> RemoteLogSegment | None:
        name = segment.segment_id.hex()
        for entry in self._committed(segment.topic_id, segment.partition):
            if entry["file"] == name:
                path = self.root / "files" / name
                size = path.stat().st_size if path.exists() else 0
                return replace(segment, files=(name,), lake_bytes=size, row_count=entry["rows"])
        return None

    def verify(self, segment: RemoteLogSegment) -> None:
        for name in segment.files:
            if segment.end_offset < self._start(segment.topic_id, segment.partition):
                continue
            if not (self.root / "files" / name).exists():
                raise StorageError(f"{name} is gone")

    def confirm(self, topic: str, commit: tuple[int, str]) -> None:
        """Nobody renames over a commit here, and none is named."""

    def is_deleted(self, topic: str, topic_id: bytes) -> bool:
        return (self.root / "deleted" / topic_id.hex()).exists()

    def discard(self, segment: RemoteLogSegment) -> bool:
        (self.root / "files" / segment.segment_id.hex()).unlink(missing_ok=True)
        return True

    def _batches(self, topic_id: bytes, partition: int) -> Iterator[tuple[int, int, bytes]]:
        start = self._start(topic_id, partition)
        for entry in self._committed(topic_id, partition):
            if entry["end"] < start:
                continue
            data = (self.root / "files" / entry["file"]).read_bytes()
            for position, header in iterate_headers(data):
                if entry["start"] <= header.base_offset <= entry["end"]:
                    yield (
                        header.base_offset,
                        header.next_offset,
                        data[position : position + header.size_in_bytes],
                    )

    def read(
        self,
        topic: str,
        topic_id: bytes,
        partition: int,
        offset: int,
        *,
        max_bytes: int,
        committed_only: bool,
    ) -> ColdRead:
        state = self.state(topic, topic_id, partition)
        if not state.log_start_offset <= offset <= state.tiered_end:
            raise OffsetOutOfRange(f"{offset} is not in the folder")
        chunks: list[bytes] = []
        following = offset
        for _, next_offset, batch in self._batches(topic_id, partition):
            if next_offset <= offset:
                continue
            if chunks and sum(map(len, chunks)) + len(batch) > max_bytes:
                break
            chunks.append(batch)
            following = next_offset
        return ColdRead(
            chunks=tuple(chunks),
            next_offset=following,
            tiered_end=state.tiered_end,
            log_start_offset=state.log_start_offset,
        )

    def ending(self, topic: str, topic_id: bytes, partition: int, offset: int) -> EndOfRange:
        for entry in self._committed(topic_id, partition):
            if entry["start"] <= offset <= entry["end"]:
                return EndOfRange(end_offset=entry["end"])
        raise OffsetOutOfRange(f"{offset} is not in the folder")

    def offset_for_timestamp(
        self, topic: str, topic_id: bytes, partition: int, timestamp_ms: int, *, start_offset: int
    ) -> tuple[int, int, int] | None:
        for _, _, batch in self._batches(topic_id, partition):
            for record in read_records(batch):
                if record.timestamp >= timestamp_ms and record.offset >= start_offset:
                    epoch = next(iterate_headers(batch))[1].leader_epoch
                    return (record.timestamp, record.offset, epoch)
        return None

    def max_timestamp(
        self, topic: str, topic_id: bytes, partition: int, *, start_offset: int
    ) -> tuple[int, int, int] | None:
        latest: tuple[int, int, int] | None = None
        for _, _, batch in self._batches(topic_id, partition):
            epoch = next(iterate_headers(batch))[1].leader_epoch
            for record in read_records(batch):
                if record.offset < start_offset:
                    continue
                if latest is None or record.timestamp > latest[0]:
                    latest = (record.timestamp, record.offset, epoch)
        return latest

    def delete_topic(self, topic: str, topic_id: bytes) -> None:
        (self.root / "deleted").mkdir(exist_ok=True)
        (self.root / "deleted" / topic_id.hex()).touch()
        for path in list((self.root / "commits").iterdir()):
            kept = [
                each for each in json.loads(path.read_text()) if each["topic_id"] != topic_id.hex()
            ]
            path.write_text(json.dumps(kept))

    def maintain(self, topic: str) -> None:
        return


class FolderMetadata:
    """Events as lines of a file."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.path = root / "events"
        self.path.touch()

    def _append(self, kind: str, segments: Sequence[RemoteLogSegment]) -> None:
        with self.path.open("a") as file:
            for segment in segments:
                fields = {
                    name: value.hex() if isinstance(value, bytes) else value
                    for name, value in asdict(segment).items()
                }
                file.write(json.dumps({"kind": kind, **fields}) + "\n")

    def _events(self, kind: str) -> Iterator[RemoteLogSegment]:
        for line in self.path.read_text().splitlines():
            fields = json.loads(line)
            if fields.pop("kind") == kind:
                for name in ("topic_id", "segment_id", "event_id"):
                    fields[name] = bytes.fromhex(fields[name])
                fields["state"] = RemoteLogSegmentState(fields["state"])
                fields["leader_epochs"] = tuple(map(tuple, fields["leader_epochs"]))
                fields["files"] = tuple(fields["files"])
                yield RemoteLogSegment(**fields)

    def add(self, segments: Sequence[RemoteLogSegment]) -> None:
        self._append("event", segments)

    def update(self, segments: Sequence[RemoteLogSegment]) -> None:
        known = {(each.segment_id, each.state) for each in self._events("event")}
        self._append("event", [e for e in segments if (e.segment_id, e.state) not in known])

    def unfinished(self) -> list[RemoteLogSegment]:
        started = {e.segment_id: e for e in self._events("event") if e.state == 0}
        ended = {e.segment_id for e in self._events("event") if e.state != 0}
        return [each for key, each in started.items() if key not in ended]

    def given_up(self, segments: Sequence[RemoteLogSegment]) -> None:
        self.update([replace(each, state=state) for state in DELETIONS for each in segments])

    def is_deleting(self, topic_id: bytes, partition: int) -> bool:
        return any(each.state == 2 for each in self.list_segments(topic_id, partition))

    def _cache(self, topic_id: bytes, partition: int) -> RemoteSegments:
        key = (topic_id, partition)
        return RemoteSegments(e for e in self._events("event") if (e.topic_id, e.partition) == key)

    def list_segments(self, topic_id: bytes, partition: int) -> list[RemoteLogSegment]:
        return self._cache(topic_id, partition).list()

    def list_topic(self, topic_id: bytes) -> list[RemoteLogSegment]:
        numbers = {e.partition for e in self._events("event") if e.topic_id == topic_id}
        return [each for number in numbers for each in self.list_segments(topic_id, number)]

    def forget_topic(self, topic_id: bytes) -> None:
        """Does nothing: there is nothing in memory."""

    def segment(
        self, topic_id: bytes, partition: int, epoch: int, offset: int
    ) -> RemoteLogSegment | None:
        return self._cache(topic_id, partition).segment(epoch, offset)

    def highest_offset_for_epoch(self, topic_id: bytes, partition: int, epoch: int) -> int | None:
        return self._cache(topic_id, partition).highest_offset_for_epoch(epoch)

    def maintain(self) -> None:
        return

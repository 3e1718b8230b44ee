"""Shell: the batches of a range from a local segment, as rows and residue, a few MiB at a time.

The range is the `size_bytes` bytes from `position` on. They are read once, front to back, in chunks that end between
batches, so that a chunk and not a segment bounds the memory. `SegmentNotFound` is raised, and nothing of the range is
committed, if the segment is missing, is shorter, is another topic's, or continues although its batches end before the
range does. In a compacted log the segment may end early: compaction leaves gaps, also at the ends of segments. Bytes
that are no batch of this range become residue and do not stop it.
"""

import os
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pyarrow as pa

from broker.worker.errors import SegmentNotFound
from broker.worker.rpc import LogSegmentData
from kafka_ds.protocol.types import uuid_text
from kafka_ds.records import decoder, kernel
from kafka_ds.records.arrays import read_only
from kafka_ds.segments.checkpoint import CorruptCheckpoint, decode_partition_metadata
from kafka_ds.segments.names import PARTITION_METADATA
from kafka_ds.topic.batches.convert import UNPACKED_BYTES_MAX, decode_batches
from kafka_ds.topic.batches.residue import ResidueBatch

CHUNK_BYTES = 1024 * 1024


class RangeSource:
    """One range of a segment. After `rows` is exhausted, `residue` and the sums are complete."""

    def __init__(self, source: LogSegmentData) -> None:
        self._source = source
        self._segment = source.segment
        self.residue: list[ResidueBatch] = []
        self.row_count = 0
        self.max_timestamp_ms = -1
        self._may_end_early = False

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows of the range, in offset order."""
        start, end = self._segment.start_offset, self._segment.end_offset
        next_offset = start
        for chunk in self._chunks():
            decoded = decode_batches(
                [chunk],
                start_offset=next_offset,
                end_offset=end,
                aborted=self._source.aborted,
                # A larger batch is kept undecoded: that bounds the memory, whatever a batch may be.
                limit_bytes=UNPACKED_BYTES_MAX,
                # The log start may lie within the first batch.
                begins_within=next_offset == start,
            )
            next_offset = decoded.next_offset
            self.residue.extend(decoded.residue)
            self.row_count += decoded.record_count
            self.max_timestamp_ms = max(self.max_timestamp_ms, decoded.max_timestamp_ms)
            yield from decoded.table_batches
        if next_offset <= end and not self._may_end_early and not self.is_undecodable:
            raise SegmentNotFound(
                f"{self._source.path} ends at offset {next_offset - 1}, not at {end}"
            )

    def _check_topic_id(self) -> None:
        """Raise SegmentNotFound if the opened file is another topic's, deleted and created again with the same name.

        Checked after opening: a log's folder gets its topic id before its first record, and never another one.
        """
        folder = os.path.dirname(self._source.path)
        with suppress(FileNotFoundError, CorruptCheckpoint):
            with open(f"{folder}/{PARTITION_METADATA}", "rb") as file:
                found = decode_partition_metadata(file.read())
            if found != self._segment.topic_id:
                raise SegmentNotFound(f"{self._source.path} is of topic id {uuid_text(found)}")

    @property
    def is_undecodable(self) -> bool:
        """Whether a batch so far cannot be decoded."""
        return any(each.kind == "undecodable" for each in self.residue)

    def _chunks(self) -> Iterator[memoryview]:
        """The range's bytes, cut between batches."""
        left = self._segment.size_bytes
        carried = b""
        try:
            descriptor = os.open(self._source.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise SegmentNotFound(f"{self._source.path} does not exist") from error
        try:
            self._check_topic_id()
            position = self._source.position
            goes_on = os.fstat(descriptor).st_size > position + left
            self._may_end_early = self._source.may_have_gaps and not goes_on
            wanted = CHUNK_BYTES
            while left > 0:
                fresh = os.pread(descriptor, min(left, wanted), position)
                if not fresh:
                    raise SegmentNotFound(
                        f"{self._source.path} is shorter than {position + left} bytes"
                    )
                position += len(fresh)
                left -= len(fresh)
                data = carried + fresh if carried else fresh
                _, end, reason = kernel.scan(read_only(data, np.uint8))
                if left == 0:
                    end = len(data)
                elif reason == decoder.AT_GARBAGE:
                    # Where the next batch begins cannot be known: the rest is one chunk.
                    wanted, carried = left, data
                    continue
                if end:
                    yield memoryview(data)[:end]
                # A batch larger than a chunk: read more of it at once the longer it gets.
                carried = data[end:]
                wanted = max(CHUNK_BYTES, len(carried))
        finally:
            os.close(descriptor)

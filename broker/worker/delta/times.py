"""Shell: offsets by time in a table's Parquet files: the first record at or after a time, and the latest one.

Statistics choose the files and the rows decide; a file without statistics is read. Files are found through the index of
the table as it is now. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa
import pyarrow.compute as pc

from broker.worker.delta.tables import TopicTables, highest_offset_in_remote_storage
from broker.worker.errors import StorageError
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.records.timestamps import TimestampAndOffset
from kafka_ds.topic.files.parquet import FileReader, UnreadableFile
from kafka_ds.topic.index import FileEntry, FileIndex, latest_ms

TIME_COLUMNS = ("offset", "leader_epoch", "timestamp", "timestamp_ms")


class TimesReader:
    """Answers questions about times, of all topics."""

    def __init__(self, tables: TopicTables, reader: FileReader) -> None:
        self._tables = tables
        self._reader = reader

    def offset_for_timestamp(
        self, partition: TopicIdPartition, timestamp_ms: int, *, start_offset: int
    ) -> TimestampAndOffset | None:
        """The first record at or after a time, not below `start_offset`."""
        files, start, end = self._files_from(
            partition,
            start_offset,
            lambda index: index.find_timestamp(partition.partition, timestamp_ms),
        )
        best: TimestampAndOffset | None = None
        for entry in files:
            if best is not None and entry.min_offset > best.offset:
                break
            found = self._first_at(entry, timestamp_ms, start, end)
            if found is not None and (best is None or found.offset < best.offset):
                best = found
        return best

    def max_timestamp(
        self, partition: TopicIdPartition, *, start_offset: int
    ) -> TimestampAndOffset | None:
        """The first record of the greatest timestamp from `start_offset` on."""
        files, start, end = self._files_from(
            partition, start_offset, lambda index: index.files(partition.partition)
        )
        best: TimestampAndOffset | None = None
        # Files that may hold the greatest come first: usually one file is read, of a year of them.
        for entry in sorted(files, key=lambda each: -latest_ms(each)):
            if best is not None and latest_ms(entry) < best.timestamp_ms:
                break
            times, offsets, epochs = self._times(entry, start, end)
            greatest = pc.max(times).as_py()
            if greatest is None:
                continue
            index = pc.index(times, greatest).as_py()
            found = TimestampAndOffset(int(greatest), offsets[index].as_py(), epochs[index].as_py())
            if best is None or (found.timestamp_ms, -found.offset) > (
                best.timestamp_ms,
                -best.offset,
            ):
                best = found
        return best

    def _files_from(
        self,
        partition: TopicIdPartition,
        start_offset: int,
        choose: Callable[[FileIndex], Iterable[FileEntry]],
    ) -> tuple[list[FileEntry], int, int]:
        """The chosen files above log start and `start_offset`; the larger of these two, and the highest offset."""
        topic_id, topic, number = partition
        with self._tables.get(topic).view(fresh=True) as snapshot:
            end = highest_offset_in_remote_storage(snapshot, topic_id, number)
            if snapshot is None or end < 0:
                return [], start_offset, end
            start = max(snapshot.log_start(number) or 0, start_offset)
            return [each for each in choose(snapshot.index) if each.max_offset >= start], start, end

    def _first_at(
        self, entry: FileEntry, timestamp_ms: int, start: int, end: int
    ) -> TimestampAndOffset | None:
        times, offsets, epochs = self._times(entry, start, end)
        index = pc.index(pc.greater_equal(times, timestamp_ms), True).as_py()
        if index < 0:
            return None
        return TimestampAndOffset(
            int(times[index].as_py()), offsets[index].as_py(), epochs[index].as_py()
        )

    def _times(
        self, entry: FileEntry, start: int, end: int
    ) -> tuple[pa.ChunkedArray, pa.ChunkedArray, pa.ChunkedArray]:
        """Milliseconds, offsets and leader epochs of a file's rows of [start, end]."""
        try:
            table, _ = self._reader.read(
                entry.path,
                start_offset=start,
                end_offset=end,
                columns=TIME_COLUMNS,
                vector=entry.vector,
            )
        except (FileNotFoundError, UnreadableFile) as error:
            raise StorageError(str(error)) from error
        # Truncated to whole milliseconds, in integers: what is no date may be any number of 64 bits.
        moments = pc.divide(pc.cast(table.column("timestamp"), pa.int64()), 1000)
        moments = pc.coalesce(table.column("timestamp_ms"), moments)
        return moments, table.column("offset"), table.column("leader_epoch")

"""Shell: a partition's state at the end of a range, to rebuild a replica from: its leader epochs and producers.

A residue file has both at its range's end, unless the range ended within an active segment. If the file is lost, the
rows have the leader epochs, up to the last row. The producers are then those of the last earlier range that has them,
brought forward by the batches since, whose headers are in the table's rows or, for batches without rows, in the
residue. A batch whose rows are all removed is no longer known. Transactions open there stay open: their ends may lie
beyond. Any thread.
"""

import logging
from collections.abc import Iterator, Sequence
from heapq import merge

import pyarrow as pa
import pyarrow.compute as pc

from broker.worker.delta.residue import ResidueFiles
from broker.worker.delta.tables import TopicTables, highest_offset_in_remote_storage
from broker.worker.errors import OffsetOutOfRange, StorageError
from broker.worker.rpc import SegmentAuxState
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.records.batch import MAGIC, NO_LEADER_EPOCH, BatchHeader, CorruptRecord, read_header
from kafka_ds.records.marker import read_marker
from kafka_ds.segments.producers import CorruptSnapshot, OwnBatch, Producers, record_own
from kafka_ds.topic.files.parquet import FileReader, UnreadableFile, read_files
from kafka_ds.topic.index import FileEntry

log = logging.getLogger(__name__)

# Batch headers read at once.
CHUNK_BYTES = 16 * 1024 * 1024


class AuxStateReader:
    """Answers for all topics."""

    def __init__(self, tables: TopicTables, reader: FileReader, residue: ResidueFiles) -> None:
        self._tables = tables
        self._reader = reader
        self._residue = residue

    def at(
        self, where: TopicIdPartition, offset: int, *, has_producers: bool = True
    ) -> SegmentAuxState:
        """The partition's state at the end of the range that holds `offset`, with its producers if they are asked for.

        Raises OffsetOutOfRange if the lake does not hold it, StorageError.
        """
        with self._tables.get(where.topic).view(fresh=True) as snapshot:
            end = highest_offset_in_remote_storage(snapshot, where.topic_id, where.partition)
            start = snapshot.log_start(where.partition) if snapshot is not None else None
        if not 0 <= offset <= end:
            raise OffsetOutOfRange(
                f"{where}: offset {offset} is beyond the lake's last offset {end}"
            )
        header = self._residue.holding(where, offset, highest_offset_in_remote_storage=end)
        reached = end if header is None else header.end_offset
        known_to = None
        if header is not None:
            epochs = header.lineage or header.leader_epochs
        elif reached < (start or 0):
            epochs = ()  # Retention has taken all of it.
        else:
            log.warning("%s: no residue file covers offset %d", where, offset)
            epochs, known_to = self._epochs_of_rows(where, start or 0, reached)
        return SegmentAuxState(
            end_offset=reached,
            leader_epochs=tuple(each for each in epochs if each[1] <= reached),
            epochs_known_to=known_to,
            producer_snapshot=self._producers(where, start or 0, reached) if has_producers else b"",
        )

    def forget(self, topic: str) -> None:
        """The topic is deleted."""
        self._residue.forget(topic)

    def _epochs_of_rows(
        self, where: TopicIdPartition, start: int, end: int
    ) -> tuple[tuple[tuple[int, int], ...], int]:
        """The leader epochs of the last rows in [start, end], and the last row's offset; -1 if there is no row."""
        with self._tables.get(where.topic).view(fresh=False) as snapshot:
            files = [] if snapshot is None else snapshot.index.find(where.partition, start, end)
        while files:
            # Files may overlap: the last row may be in any that ends where the last one begins, or later.
            first = max(each.min_offset for each in files)
            last = [each for each in files if each.max_offset >= first]
            rows, _ = self._read(last, max(start, first), end, ("offset", "leader_epoch"))
            if len(rows):
                epochs, offsets = rows.column("leader_epoch"), rows.column("offset").to_pylist()
                runs: dict[int, int] = {}
                for epoch, offset in zip(epochs.to_pylist(), offsets, strict=True):
                    runs.setdefault(epoch, offset)
                return tuple(runs.items()), offsets[-1]
            files = [each for each in files if each.min_offset < first]
        return (), -1

    # -- producers --------------------------------------------------------------------------

    def _producers(self, where: TopicIdPartition, log_start: int, end: int) -> bytes:
        """A snapshot of the producers after the offset `end`."""
        known = self._residue.with_snapshot(where, end)
        if known is not None and known.end_offset == end:
            return known.producer_snapshot
        producers, next_offset = Producers(), log_start
        if known is not None:
            try:
                producers = Producers.decode_snapshot(known.producer_snapshot)
                next_offset = known.end_offset + 1
            except CorruptSnapshot as error:
                log.warning("%s: unusable producer snapshot at offset %d: %s", where, end, error)
        for batch in self._batches(where, next_offset, end):
            record_own(batch, producers)
        return producers.encode_snapshot()

    def _batches(self, where: TopicIdPartition, start: int, end: int) -> Iterator[OwnBatch]:
        """The headers of all batches of producers in [start, end], by offset."""
        ours = merge(
            self._of_rows(where, start, end),
            self._of_residue(where, start, end),
            key=lambda each: each.header.base_offset,
        )
        before = -1
        for batch in ours:
            if batch.header.base_offset > before:
                before = batch.header.base_offset
                yield batch

    def _of_residue(self, where: TopicIdPartition, start: int, end: int) -> Iterator[OwnBatch]:
        chunks = self._residue.between(
            where,
            start,
            end,
            highest_offset_in_remote_storage=end,
            # A lost file must not prevent replicas from being built.
            log_start_offset=end + 1,
        )
        for chunk in chunks:
            header = read_header(chunk.data)
            try:
                marker = (
                    read_marker(memoryview(chunk.data), header)
                    if header.is_control and header.record_count
                    else None
                )
            except CorruptRecord:
                continue
            yield OwnBatch(header, marker)

    def _of_rows(self, where: TopicIdPartition, start: int, end: int) -> Iterator[OwnBatch]:
        with self._tables.get(where.topic).view(fresh=False) as snapshot:
            files = [] if snapshot is None else snapshot.index.find(where.partition, start, end)
        while start <= end:
            framing, reached = self._framing(files, start, end)
            yield from _batches_of(framing)
            start = reached + 1

    def _framing(self, files: list[FileEntry], start: int, end: int) -> tuple[pa.Table, int]:
        left = [each for each in files if each.max_offset >= start]
        return self._read(left, start, end, ("offset", "batch"), max_bytes=CHUNK_BYTES)

    def _read(
        self,
        files: Sequence[FileEntry],
        start: int,
        end: int,
        columns: Sequence[str],
        *,
        max_bytes: int = 1 << 62,
    ) -> tuple[pa.Table, int]:
        try:
            return read_files(
                self._reader,
                files,
                start_offset=start,
                end_offset=end,
                max_bytes=max_bytes,
                columns=columns,
            )
        except (FileNotFoundError, UnreadableFile) as error:
            # It was replaced a moment ago: the caller asks again.
            raise StorageError(str(error)) from error


def _batches_of(framing: pa.Table) -> Iterator[OwnBatch]:
    """One header for each batch of a producer, from the rows that it became."""
    rows = framing.column("batch").combine_chunks()
    if isinstance(rows, pa.ChunkedArray):
        rows = pa.concat_arrays(rows.chunks) if rows.num_chunks else pa.array([], rows.type)
    rows = rows.filter(pc.greater_equal(rows.field("producer_id"), 0))
    if not len(rows):
        return
    bases = rows.field("base_offset")
    begins = pc.fill_null(pc.not_equal(bases[1:], bases[:-1]), True)
    rows = rows.filter(pa.concat_arrays([pa.array([True]), begins]))
    for row in rows.to_pylist():
        yield OwnBatch(_header(row), None)


def _header(row: dict[str, int]) -> BatchHeader:
    """The part of a batch's header from which a producer's state is made."""
    delta = row["last_offset"] - row["base_offset"]
    return BatchHeader(
        base_offset=row["base_offset"],
        batch_length=0,
        leader_epoch=NO_LEADER_EPOCH,
        magic=MAGIC,
        crc=0,
        attributes=row["attributes"],
        last_offset_delta=delta,
        base_timestamp=row["max_timestamp"],
        max_timestamp=row["max_timestamp"],
        producer_id=row["producer_id"],
        producer_epoch=row["producer_epoch"],
        base_sequence=row["base_sequence"],
        record_count=delta + 1,
    )

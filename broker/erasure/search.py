"""Shell: searches every file that may contain the records to erase: tables, residue, logs, caches.

Files are decoded, as compressed records cannot be found by their bytes. Files that no version references are searched,
too. A searched file is not read again while its size and time stay the same; one that disappears contains nothing. A
file that cannot be read is a finding.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from broker.erasure.checks import check_places, snapshot_of
from broker.erasure.wanted import Places, WantedRecords, sorted_distinct
from kafka_ds.delta.deletion_vector import BadVector, Positions, kept, positions_of, stored_span
from kafka_ds.delta.names import LOG_FOLDER, resolve_path
from kafka_ds.delta.store.store import TEMPORARY_SUFFIX, Store, StoreEntry
from kafka_ds.segments import names
from kafka_ds.segments.checkpoint import CorruptCheckpoint, decode_partition_metadata
from kafka_ds.topic.batches.convert import decode_hot
from kafka_ds.topic.batches.residue import CorruptResidue, Residue, ResidueBatch
from kafka_ds.topic.files.parquet import conform
from kafka_ds.topic.names import ICEBERG, RESIDUE
from kafka_ds.topic.schemas import TOPIC_FILE_SCHEMA

ROWS: Final = "rows"
HIDDEN: Final = "rows behind deletion vectors"
OLD: Final = "files of older versions"
RESIDUE_BATCHES: Final = "residue"
FORMER_RESIDUE: Final = "residue of deleted topics"
LOGGED: Final = "the table's log"
SEGMENTS: Final = "local segments"
FORMER: Final = "logs of deleted topics"
CACHED: Final = "cache of cold reads"
UNREADABLE: Final = "cannot be read"

# Magic, checksum and length of the header, before a cached chunk's header and batches.
_CACHE_HEAD: Final = 16
# Batches are decompressed as a whole, and may then be many times as large.
_SLICE_BYTES: Final = 4 << 20
_BATCH_ROWS: Final = 8192
# Damaged batches may have any offset.
_ALL_OFFSETS: Final = (-(2**63), 2**63 - 1)
# Iceberg metadata of all catalogs.
_OF_ICEBERG: Final = re.compile(rf"{ICEBERG}(_[^/]*)?/(metadata|deletes)/")
# Spark and delta-rs truncate texts in statistics.
_STATISTIC_CHARACTERS: Final = 32
_STATISTICS: Final = ("stats", "stats_parsed")
_UNREADABLE: Final = (OSError, pa.ArrowException, ValueError, KeyError)
# A batch that is being written is complete after this time.
_WHOLE_SOON_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Finding:
    """The wanted records in one file."""

    kind: str
    place: str
    """The table, or the directory of a broker."""
    path: str
    records: int
    places: Places = field(default_factory=dict)
    note: str = ""
    is_of_topic: bool = False
    """Whether these places are certainly the topic's: not a deleted topic's, and not from a typed table only."""
    modified_ms: int = 0
    """The file's modification time, for files of tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableKind:
    """The column names of a table."""

    offset: str
    partition: str
    key: str

    def partition_of(self, path: str) -> int | None:
        """The partition of a file's rows if the table is partitioned by it: the file has no such column."""
        found = re.search(rf"(?:^|/){self.partition}=(\d+)/", path)
        return None if found is None else int(found[1])


# Partitions and offsets of rows.
_RowsOfFile = tuple[NDArray[Any], NDArray[np.int64]]

TOPIC_TABLE: Final = TableKind(offset="offset", partition="partition", key="key")
TYPED_TABLE: Final = TableKind(offset="_offset", partition="_partition", key="_key")


class SearchTimeout(Exception):
    """The deadline passed before everything was searched."""


class TruncatedBatch(Exception):
    """An incomplete batch, after which the file cannot be read."""


class Search:
    """Searches files, and caches results while files do not change."""

    def __init__(
        self, wanted: WantedRecords, advance: Callable[[int], object] = lambda files: None
    ) -> None:
        """`advance` is called with the number of files read."""
        self._wanted = wanted
        self._known: dict[str, tuple[object, list[Finding]]] = {}
        self._generation = 0
        self.files: set[str] = set()
        """All searched files."""
        self.deadline = float("inf")
        self._log_starts: Mapping[int, int] = {}
        self._below: dict[str, int] = {}
        self.expired_rows: dict[str, int] = {}
        """By typed table, the rows below these offsets, whose records have expired."""
        self.advance = advance

    def stop_at(self, deadline: float) -> None:
        """No further file is searched after this time, by `time.monotonic()`."""
        self.deadline = deadline

    @property
    def knows_log_starts(self) -> bool:
        """Whether `update_log_starts` was called."""
        return bool(self._log_starts)

    def update_log_starts(self, starts: Mapping[int, int]) -> None:
        """The log start offset of each partition: rows below have expired."""
        self._log_starts = starts

    def places_changed(self) -> None:
        """More places are wanted: search typed tables again."""
        self._generation += 1

    def _once(self, path: str, state: object, look: Callable[[], list[Finding]]) -> list[Finding]:
        known = self._known.get(path)
        if known is None or known[0] != state:
            if time.monotonic() > self.deadline:
                raise SearchTimeout
            try:
                known = state, look()
            except FileNotFoundError:
                return []
            self._known[path] = known
            self.advance(1)
        self.files.add(path)
        return known[1]

    # -- tables ---------------------------------------------------------------------------------

    def table(
        self, store: Store, folder: str, kind: TableKind, topic_id: bytes = b""
    ) -> list[Finding]:
        """Search all files in the folder of a table, and check for those that it references elsewhere.

        `topic_id` is the topic's. Raises ErasureRefused.
        """
        snapshot = snapshot_of(store, folder, topic_id if kind is TOPIC_TABLE else None)
        found: list[Finding] = []
        entries = store.list(folder)
        for path in sorted(snapshot.files.keys() - {each.path for each in entries}):
            note = f"{folder} references it, but it is not in the folder"
            found.append(Finding(kind=UNREADABLE, place=folder, path=path, records=0, note=note))
        logs: list[StoreEntry] = []
        for entry in entries:
            name = entry.path.removeprefix(f"{folder}/")
            state: tuple[object, ...] = (entry.size, entry.modified_ms)
            file = snapshot.files.get(entry.path)
            if name.startswith(f"{LOG_FOLDER}/"):
                logs.append(entry)
            elif name.startswith(f"{RESIDUE}/"):
                found += self._once(
                    entry.path,
                    state,
                    self._residue(store, folder, entry.path, entry.size, topic_id),
                )
            elif _OF_ICEBERG.match(name):
                # kafka-ds' Iceberg metadata contain paths, counts and partition values only.
                continue
            elif file is not None or name.endswith((".parquet", TEMPORARY_SUFFIX)):
                vector = None if file is None else file.vector
                state = (*state, file is not None, None if vector is None else vector.id)
                state = (*state, self._generation if kind is TYPED_TABLE else 0)
                look = self._parquet(store, folder, entry, kind, file)
                found += self._once(entry.path, state, look)
        self.expired_rows[folder] = sum(self._below.get(path, 0) for path in snapshot.files)
        clean = snapshot.files.keys() - {each.path for each in found}
        for entry in logs if self._wanted.key else ():
            state = (entry.size, entry.modified_ms)
            look = self._log_file(store, folder, entry.path, clean)
            found += self._once(entry.path, state, look)
        if kind is TOPIC_TABLE:
            for each in found:
                check_places(snapshot, each.places if each.kind in (ROWS, HIDDEN) else {})
        return found

    def _parquet(
        self, store: Store, folder: str, entry: StoreEntry, kind: TableKind, file: Any
    ) -> Callable[[], list[Finding]]:
        path = entry.path

        def look() -> list[Finding]:
            finding = Finding(
                kind=OLD, place=folder, path=path, records=0, modified_ms=entry.modified_ms
            )
            try:
                deleted = None if file is None else _deleted(store, file)
                live, hidden = rows_in(store, path, kind, self._wanted, deleted)
                if kind is TYPED_TABLE and file is not None and any(self._log_starts.values()):
                    self._below[path] = _rows_below(store, path, self._log_starts, deleted)
            except FileNotFoundError:
                raise
            except _UNREADABLE as problem:
                return [replace(finding, kind=UNREADABLE, note=str(problem))]
            if file is None:
                return _some(replace(finding, places=live, records=_count(live)))
            finding = replace(finding, is_of_topic=kind is TOPIC_TABLE)
            return [
                *_some(replace(finding, kind=ROWS, places=live, records=_count(live))),
                *_some(replace(finding, kind=HIDDEN, places=hidden, records=_count(hidden))),
            ]

        return look

    def _log_file(
        self, store: Store, folder: str, path: str, clean: Set[str]
    ) -> Callable[[], list[Finding]]:
        def look() -> list[Finding]:
            finding = Finding(kind=LOGGED, place=folder, path=path, records=0)
            try:
                count = count_mentions(store, path, self._wanted.key or b"", folder, clean)
            except FileNotFoundError:
                raise
            except _UNREADABLE as problem:
                return [replace(finding, kind=UNREADABLE, note=str(problem))]
            return _some(replace(finding, records=count))

        return look

    def _residue(
        self, store: Store, folder: str, path: str, size: int, topic_id: bytes
    ) -> Callable[[], list[Finding]]:
        def look() -> list[Finding]:
            finding = Finding(kind=RESIDUE_BATCHES, place=folder, path=path, records=0)
            try:
                residue = Residue(
                    lambda at, length: store.read_range(path, at, length), name=path, size=size
                )
                batches = [
                    residue.batch(each)
                    for each in residue.header.batches
                    if each.kind in ("aborted", "undecodable")
                ]
            except CorruptResidue as problem:
                return [replace(finding, kind=UNREADABLE, note=str(problem))]
            is_of_topic = residue.header.topic_id == topic_id
            kind = RESIDUE_BATCHES if is_of_topic else FORMER_RESIDUE
            return self._of_batches(replace(finding, kind=kind), residue.header.partition, batches)

        return look

    # -- brokers' directories -------------------------------------------------------------------

    def directory(self, folder: str, topic: str, topic_id: bytes) -> list[Finding]:
        """Search the segments of a topic in a log directory, also deleted ones, and the remote cache."""
        found: list[Finding] = []
        for name in os.listdir(folder):
            log = names.parse_folder_name(name)
            if log is None or not (log.topic == topic or _is_truncated_name(name, topic)):
                continue
            path = f"{folder}/{name}"
            is_of_topic = not log.suffix and _topic_id_of(path) == topic_id
            for file in _files(path):
                segment = names.parse_file_name(file.name)
                if segment is not None and segment.kind == names.LOG:
                    kind = SEGMENTS if is_of_topic else FORMER
                    found += self._local(kind, folder, file, log.partition)
        for file in _files(f"{folder}/{names.REMOTE_CACHE}"):
            _, id_of_topic, rest = file.name.partition(f"_{topic_id.hex()}-")
            if id_of_topic:
                found += self._local(CACHED, folder, file, int(rest.partition("-")[0]))
        return found

    def _local(self, kind: str, folder: str, file: Path, partition: int) -> list[Finding]:
        finding = Finding(kind=kind, place=folder, path=str(file), records=0)

        def look() -> list[Finding]:
            try:
                with open(file, "rb", buffering=0) as opened:
                    start = 0
                    if kind == CACHED:
                        head = opened.read(_CACHE_HEAD)
                        start = _CACHE_HEAD + int.from_bytes(head[-4:], "big")
                        if len(head) < _CACHE_HEAD or start > status.st_size:
                            raise OSError("not a file of the remote cache")
                    return self._of_batches(finding, partition, slices_of(opened.fileno(), start))
            except FileNotFoundError:
                raise
            except OSError as problem:
                return [replace(finding, kind=UNREADABLE, note=str(problem))]

        try:
            status = file.stat()
        except FileNotFoundError:
            return []
        return self._once(str(file), (status.st_size, status.st_mtime_ns), look)

    def _of_batches(
        self, finding: Finding, partition: int, chunks: Sequence[Any] | Iterator[Any]
    ) -> list[Finding]:
        offsets: list[NDArray[np.int64]] = []
        unread = 0
        cut = ""
        try:
            for chunk in chunks:
                left: list[ResidueBatch] = []
                rows = decode_hot(
                    [chunk],
                    columns=self._wanted.columns,
                    start_offset=_ALL_OFFSETS[0],
                    end_offset=_ALL_OFFSETS[1],
                    isolation="read_uncommitted",
                    residue=left,
                )
                for batch in rows:
                    numbers = batch.column("offset")
                    at = self._wanted.among(partition, numbers, batch.column("key"), batch)
                    offsets.append(numbers.to_numpy()[at])
                unread += sum(each.kind == "undecodable" for each in left)
        except TruncatedBatch as problem:
            cut = str(problem)
        places = {partition: sorted_distinct(*offsets)} if offsets else {}
        count = sum(map(len, offsets))
        found = _some(replace(finding, records=count, places=places))
        if unread or cut:
            note = cut or f"{unread} batches cannot be decoded"
            found.append(replace(finding, kind=UNREADABLE, records=0, note=note))
        return found


def _some(finding: Finding) -> list[Finding]:
    return [finding] if finding.records else []


def _count(places: Places) -> int:
    return sum(map(len, places.values()))


def _is_truncated_name(name: str, topic: str) -> bool:
    """Whether a folder may be a deleted log of the topic, with a name that was truncated."""
    return len(name) == names.FOLDER_NAME_MAX and f"{topic}-".startswith(name.rpartition(".")[0])


def _topic_id_of(folder: str) -> bytes | None:
    with suppress(FileNotFoundError, CorruptCheckpoint):
        return decode_partition_metadata(Path(folder, names.PARTITION_METADATA).read_bytes())
    return None


def _files(folder: str) -> list[Path]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return sorted(Path(folder).iterdir())
    return []


def slices_of(file: int, start: int) -> Iterator[bytes]:
    """Yields whole batches in slices. The file may grow or be truncated meanwhile.

    Raises TruncatedBatch if bytes remain at the end: a damaged length would hide all that follows.
    """
    at = start
    cut_at = -1
    while (end := os.fstat(file).st_size) > at:
        head = os.pread(file, 12, at)
        size = 12 + int.from_bytes(head[8:], "big", signed=True) if len(head) == 12 else 0
        if len(head) == 12 and size > 12 and at + size <= end:
            at += size
            if at - start >= _SLICE_BYTES:
                yield os.pread(file, at - start, start)
                start = at
        elif _is_zero(file, at):
            break  # Preallocated space.
        elif cut_at != end:
            cut_at = end
            time.sleep(_WHOLE_SOON_S)
        else:
            if at > start:
                yield os.pread(file, at - start, start)
            raise TruncatedBatch(f"no complete batch at byte {at}")
    if at > start:
        yield os.pread(file, at - start, start)


def _is_zero(file: int, at: int) -> bool:
    """Whether only zeros follow."""
    while part := os.pread(file, _SLICE_BYTES, at):
        if np.frombuffer(part, "u1").any():
            return False
        at += len(part)
    return True


def _deleted(store: Store, file: Any) -> Positions | None:
    """The deletion vector of a file."""
    vector = file.vector
    if vector is None:
        return None
    start, length = stored_span(vector)
    stored = store.read_range(vector.path, start, length) if vector.path else b""
    try:
        return positions_of(vector, stored)
    except BadVector as problem:
        raise OSError(str(problem)) from problem


def rows_in(
    store: Store,
    path: str,
    kind: TableKind,
    wanted: WantedRecords,
    deleted: Positions | None = None,
) -> tuple[Places, Places]:
    """The places of the wanted rows of a Parquet file: live rows, and rows deleted by the vector."""
    local = store.local_path(path)
    live: list[_RowsOfFile] = []
    hidden: list[_RowsOfFile] = []
    source = pa.BufferReader(store.read(path)) if local is None else pa.memory_map(local)
    with source, pq.ParquetFile(source) as file:
        there = file.schema_arrow.names
        needed = wanted.columns if kind is TOPIC_TABLE else ()
        columns = [
            each
            for each in there
            if each in needed or each in (kind.offset, kind.partition, kind.key)
        ]
        of_path = kind.partition_of(path)
        first = 0
        for batch in file.iter_batches(columns=columns, batch_size=_BATCH_ROWS):
            if kind is TOPIC_TABLE:
                # Other engines may write other types, such as binary views.
                batch = _in_topic_schema(batch)
            keys = batch.column(kind.key) if kind.key in columns else None
            if of_path is not None:
                partitions: Any = np.full(batch.num_rows, of_path)
            else:
                column = batch.column(kind.partition)
                partitions = column.fill_null(-1).to_numpy(zero_copy_only=False)
            offsets = batch.column(kind.offset)
            rows = batch if kind is TOPIC_TABLE else None
            found = wanted.among(partitions, offsets, keys, rows, by_place=rows is None)
            if offsets.null_count and found[unnumbered := np.asarray(offsets.is_null())].any():
                row = first + int(np.flatnonzero(found & unnumbered)[0])
                raise ValueError(f"row {row} has no {kind.offset} to delete it by")
            is_there = np.ones(batch.num_rows, np.bool_)
            if deleted is not None:
                is_there = kept(deleted, first, batch.num_rows)
            for into, mask in ((live, found & is_there), (hidden, found & ~is_there)):
                if mask.any():
                    numbers = offsets.filter(pa.array(mask)).cast(pa.int64()).to_numpy()
                    into.append((partitions[mask], numbers))
            first += batch.num_rows
    return _places(live), _places(hidden)


def _rows_below(
    store: Store, path: str, starts: Mapping[int, int], deleted: Positions | None
) -> int:
    """How many rows of a typed table's file have offsets below these."""
    local = store.local_path(path)
    source = pa.BufferReader(store.read(path)) if local is None else pa.memory_map(local)
    of_path = TYPED_TABLE.partition_of(path)
    columns = [TYPED_TABLE.offset, *([TYPED_TABLE.partition] if of_path is None else [])]
    with source:
        rows = pq.read_table(source, columns=columns)
    offsets, *of_rows = (column.fill_null(-1).to_numpy() for column in rows.columns)
    partitions = of_rows[0] if of_path is None else np.full(len(offsets), of_path)
    is_below = np.zeros(len(offsets), np.bool_)
    for partition, start in starts.items():
        is_below |= (partitions == partition) & (offsets < start)
    if deleted is not None:
        is_below &= kept(deleted, 0, len(offsets))
    return int(is_below.sum())


def _places(rows: Sequence[_RowsOfFile]) -> Places:
    if not rows:
        return {}
    partitions, offsets = (np.concatenate(each) for each in zip(*rows, strict=True))
    return {
        partition: sorted_distinct(offsets[partitions == partition])
        for partition in np.unique(partitions).tolist()
    }


def _in_topic_schema(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns in the types of the topic's table. Raises ArrowException."""
    table = pa.Table.from_batches([batch])
    names = [each for each in table.column_names if each in TOPIC_FILE_SCHEMA.names]
    ours = conform(table, names)
    for name in set(table.column_names).difference(names):
        ours = ours.append_column(name, table.column(name))
    (found,) = ours.combine_chunks().to_batches() or [None]
    return batch if found is None else found


def count_mentions(
    store: Store, path: str, key: bytes, folder: str = "", clean: Set[str] = frozenset()
) -> int:
    """How often a file of a Delta log contains the key: in file statistics or commit parameters.

    Statistics of `clean` files do not count: those files do not contain the key.
    """
    adds, commits = _actions(store.read(path))
    count = sum(_is_in_parameters(each, key) for each in commits)
    with suppress(UnicodeDecodeError):
        text = key.decode()
        for add in adds:
            statistics = [each for name in _STATISTICS if (each := add.get(name))]
            if statistics and resolve_path(folder, add["path"]) not in clean:
                count += sum(_names(each, text) for each in statistics)
    return count


def _actions(data: bytes) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """The file actions and commitInfos of a Delta log file; none for other files, such as Hadoop's checksums."""
    adds: list[Any] = []
    commits: list[Any] = []
    if data.startswith(b"PAR1"):
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            there = file.read(columns=["add"]) if "add" in file.schema_arrow.names else None
        adds = [] if there is None else there.column("add").drop_null().to_pylist()
    elif data.startswith(b"{"):
        for line in data.splitlines():
            for kind, action in json.loads(line).items():
                if kind == "commitInfo":
                    commits.append(action)
                elif kind == "allFiles":  # In Spark's version checksum files.
                    adds += action
                elif isinstance(action, dict):
                    adds.append(action)
    return adds, commits


def _is_in_parameters(commit: Mapping[str, Any], key: bytes) -> bool:
    """Whether a commit's parameters contain the key, as of a DELETE by key. Spark's have no quotes."""
    spelled: tuple[str, ...] = ()
    with suppress(UnicodeDecodeError):
        plain = key.decode().replace("\\", "")
        spelled = (plain, plain.replace("'", "''"))
    said = json.dumps(commit.get("operationParameters"), ensure_ascii=False)
    # JSON within JSON and SQL dialects each add backslashes.
    said = said.replace("\\", "")
    if f"'{key.hex()}'" in said.lower() or any(f"'{each}'" in said for each in spelled):
        return True
    if "Spark" not in str(commit.get("engineInfo")):
        return False
    words = [f"0x{key.hex()}", key.hex(), *filter(None, spelled)]
    if "key" not in said.lower():
        words = [each for each in words if not each.isdigit()]  # A number is mostly an offset.
    return any(re.search(rf"(?<!\w){re.escape(each)}(?!\w)", said, re.IGNORECASE) for each in words)


def _names(statistics: Any, text: str) -> bool:
    if isinstance(statistics, str):
        statistics = json.loads(statistics)
    if not isinstance(statistics, dict):
        return False
    bounds = (statistics.get("minValues"), statistics.get("maxValues"))
    return any(_has(each, text) for each in bounds)


def _has(value: Any, text: str) -> bool:
    if isinstance(value, dict):
        return any(_has(each, text) for each in value.values())
    if not isinstance(value, str) or not text:
        return False
    beginning = text[:_STATISTIC_CHARACTERS]
    is_whole = len(text) < _STATISTIC_CHARACTERS
    return value == text if is_whole else value.startswith(beginning)

"""Shell: a checkpoint's Parquet files read into a table's state.

Classic checkpoints, of one part or many, of any engine. The statistics of all files are parsed in one call, as at
50,000 files a call each takes longer than all the rest; where that fails, each file's alone, so that one bad text costs
one file's statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq

from kafka_ds.delta.deletion_vector import DeletionVector, vector_of
from kafka_ds.delta.file_columns import FileColumns
from kafka_ds.delta.file_entry import FileEntry
from kafka_ds.delta.statistics import PARTITION, entry_of_add, partition_of
from kafka_ds.delta.store.store import Store

_ADD_COLUMNS = (
    "add.path",
    "add.partitionValues",
    "add.size",
    "add.modificationTime",
    "add.stats",
    "add.deletionVector",
)
_BOUNDS = pa.struct([pa.field("offset", pa.int64()), pa.field("timestamp", pa.string())])
_STATS_SCHEMA = pa.schema(
    [
        pa.field("numRecords", pa.int64()),
        pa.field("minValues", _BOUNDS),
        pa.field("maxValues", _BOUNDS),
        pa.field("nullCount", pa.struct([pa.field("timestamp", pa.int64())])),
    ]
)


class FilesElsewhere(ValueError):
    """A checkpoint (of v2Checkpoint) that is whole, and does not hold the files itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState:
    """The content of a checkpoint; the default is a table before version 0."""

    version: int = -1
    protocol: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    txns: Mapping[str, int] = field(default_factory=dict)
    files: FileColumns = field(default_factory=lambda: FileColumns.of_entries("", ()))
    removed: tuple[pa.ChunkedArray, ...] = ()
    """The paths of removed files, as the log spells them, as long as tombstones are kept."""


def read_checkpoint(
    store: Store, table: str, version: int, paths: Sequence[str]
) -> CheckpointState:
    """The state that a checkpoint's files hold; any error means that it cannot be used."""
    return _state_of(table, version, map(store.read, paths))


def _state_of(table: str, version: int, bodies: Iterable[bytes]) -> CheckpointState:
    protocol: Mapping[str, Any] = {}
    metadata: Mapping[str, Any] = {}
    txns: dict[str, int] = {}
    files: list[FileColumns | list[FileEntry]] = []
    removed: list[pa.ChunkedArray] = []
    for body in bodies:
        part = pq.ParquetFile(pa.BufferReader(body))
        names = part.schema_arrow.names
        if "sidecar" in names and part.read(columns=["sidecar"])["sidecar"].null_count < (
            part.metadata.num_rows
        ):
            raise FilesElsewhere(f"{table}: checkpoint {version} has its files in sidecars")
        wanted = [each for each in ("protocol", "metaData", "txn") if each in names]
        rows = part.read(columns=wanted, use_threads=False)
        for row in _present(rows, "protocol"):
            protocol = row
        for row in _present(rows, "metaData"):
            metadata = _metadata(row)
        for row in _present(rows, "txn"):
            txns[row["appId"]] = row["version"]
        if "add" in names:
            files.append(_files(table, part))
        if "remove" in names:
            removed.extend(_removed(part))
    if not protocol or not metadata:
        raise ValueError(f"{table}: checkpoint {version} holds no protocol or no metadata")
    return CheckpointState(
        version=version,
        protocol=protocol,
        metadata=metadata,
        txns=txns,
        files=_one(table, [each for each in files if len(each)]),
        removed=tuple(removed),
    )


def _one(table: str, parts: Sequence[FileColumns | list[FileEntry]]) -> FileColumns:
    """The files of all parts: columns as they are where one part has them all."""
    if len(parts) == 1 and isinstance(parts[0], FileColumns):
        return parts[0]
    return FileColumns.of_entries(table, (entry for part in parts for entry in part))


def is_torn(store: Store, table: str, version: int, paths: Sequence[str]) -> bool:
    """Whether a checkpoint's files exist but hold no checkpoint. Raises the store's error if it is unavailable."""
    bodies = [store.read(path) for path in paths]
    try:
        _state_of(table, version, bodies)
    except FilesElsewhere:
        return False
    except (OSError, ValueError, KeyError):
        return True
    return False


def _metadata(row: dict[str, Any]) -> dict[str, Any]:
    """The metaData action as the log spells it: maps are objects, what is absent is not there."""
    found = {name: value for name, value in row.items() if value is not None}
    found["configuration"] = dict(found.get("configuration") or ())
    layout = found["format"]
    found["format"] = {**layout, "options": dict(layout.get("options") or ())}
    return found


def _present(rows: pa.Table, name: str) -> list[dict[str, Any]]:
    if name not in rows.column_names:
        return []
    found: list[dict[str, Any]] = rows.column(name).drop_null().to_pylist()
    return found


def _files(table: str, part: pq.ParquetFile) -> FileColumns | list[FileEntry]:
    adds = part.read(columns=list(_ADD_COLUMNS), use_threads=False).column("add").drop_null()
    if len(adds) == 0:
        return []
    columns = {
        name: pa.chunked_array([chunk.field(name) for chunk in adds.chunks])
        for name in adds.type.names
    }
    vectors: dict[int, DeletionVector] = {}
    if "deletionVector" in columns and columns["deletionVector"].null_count < len(adds):
        for at, action in enumerate(columns["deletionVector"].to_pylist()):
            if (vector := vector_of(table, action)) is not None:
                vectors[at] = vector
    statistics = _parse_statistics(columns["stats"]) if "stats" in columns else None
    if statistics is None:
        return [entry_of_add(table, _with_values(row)) for row in adds.to_pylist()]
    return FileColumns.of(
        table,
        paths=columns["path"],
        partitions=_partitions(columns["partitionValues"]),
        sizes=columns["size"],
        modified=columns["modificationTime"],
        vectors=vectors,
        **statistics,
    )


def _removed(part: pq.ParquetFile) -> list[pa.ChunkedArray]:
    removes = part.read(columns=["remove.path"], use_threads=False).column("remove").drop_null()
    return [pc.struct_field(removes, ["path"])] if len(removes) else []


def _partitions(values: pa.ChunkedArray) -> pa.Array:
    """The partition of each file, -1 in a table that has none: most files have one value, of one key."""
    whole = pa.concat_arrays(values.chunks)
    keys, items = whole.keys, whole.items
    if len(keys) == len(whole) and pc.all(pc.equal(keys, PARTITION)).as_py():
        counts = np.diff(whole.offsets.to_numpy())
        if bool((counts == 1).all()):
            return items.cast(pa.int64())
    return pa.array([partition_of(dict(pairs or ())) for pairs in whole.to_pylist()], pa.int64())


def _with_values(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "partitionValues": dict(row.get("partitionValues") or ())}


def _parse_statistics(texts: pa.ChunkedArray) -> dict[str, pa.Array] | None:
    """The columns of the statistics, by the names that files have for them; None where a text is bad."""
    lines = [text.replace("\n", " ") if text else "{}" for text in texts.to_pylist()]
    try:
        parsed = pj.read_json(
            pa.BufferReader("\n".join(lines).encode()),
            read_options=pj.ReadOptions(use_threads=False, block_size=1 << 26),
            parse_options=pj.ParseOptions(
                explicit_schema=_STATS_SCHEMA, unexpected_field_behavior="ignore"
            ),
        ).combine_chunks()
        low = parsed.column("minValues").combine_chunks()
        high = parsed.column("maxValues").combine_chunks()
        found = {
            "rows": parsed.column("numRecords"),
            "starts": _child(low, "offset"),
            "ends": _child(high, "offset"),
            "earliest": _milliseconds(_child(low, "timestamp")),
            "latest": _milliseconds(_child(high, "timestamp")),
            "null_timestamps": _child(parsed.column("nullCount").combine_chunks(), "timestamp"),
        }
    except pa.ArrowException:
        return None
    return found if parsed.num_rows == len(texts) else None


def _child(bounds: pa.Array, name: str) -> pa.Array:
    """A field of a struct, null where the struct is."""
    if isinstance(bounds, pa.ChunkedArray):
        bounds = pa.concat_arrays(bounds.chunks)
    return pc.struct_field(bounds, [name])


def _milliseconds(texts: pa.Array) -> pa.Array:
    moments = texts.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    rounded = moments.fill_null(0).to_numpy() // 1000
    return pc.if_else(moments.is_valid(), pa.array(rounded), None)

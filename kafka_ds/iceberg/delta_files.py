"""Shell: the Iceberg data files and position delete files for one version of a Delta table.

Each deletion vector becomes a position delete file. Its name is a hash of data file and vector, so a changed vector
gets a new file, and an unchanged one keeps the file that it has.
"""

from __future__ import annotations

import hashlib
import io
import json
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import StringType

from kafka_ds.delta.deletion_vector import DeletionVector
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.names import resolve_path
from kafka_ds.delta.snapshot import TableSnapshot
from kafka_ds.delta.store.store import Store
from kafka_ds.iceberg.columns import (
    as_numbers,
    bounds,
    iceberg_names,
    iceberg_schema,
    partition_spec,
)
from kafka_ds.iceberg.store_io import location_of
from kafka_ds.topic.files.parquet import FileReader

DELETES: Final = "deletes"
_VECTORS: Final = "deletionVectors"
_COLUMN_MAPPING: Final = "delta.columnMapping.mode"
_PATH_ID, _POSITION_ID = 2147483546, 2147483545
_DELETE_SCHEMA: Final = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": str(_PATH_ID)}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": str(_POSITION_ID)}),
    ]
)


class UnsupportedTable(Exception):
    """The Delta table has a feature that Iceberg cannot express; the message names it."""


class DeltaFiles:
    """The data files and position delete files of a version, by their locations."""

    def __init__(self, store: Store, folder: str, delta: DeltaTable, place: str) -> None:
        """`place`: the folder of the Iceberg table. Raises UnsupportedTable."""
        self._store = store
        self._folder = folder
        self._delta = delta
        self.version = delta.version()
        self.table_id = str(delta.metadata().id)
        self._place = place
        self._reader = FileReader(store)
        adds: Any = pa.table(delta.get_add_actions(flatten=False))
        fields = [pa.field(each.name, as_numbers(each.type)) for each in adds.schema]
        self._adds: Any = adds.cast(pa.schema(fields))
        mode = delta.metadata().configuration.get(_COLUMN_MAPPING, "none")
        if mode != "none":
            raise UnsupportedTable(f"{_COLUMN_MAPPING}={mode} is not supported")
        self.delta_schema = json.loads(delta.schema().to_json())
        self.schema, self.left_out = iceberg_schema(self.delta_schema)
        self._names = iceberg_names(self.delta_schema)
        self._partition_columns = list(delta.metadata().partition_columns)
        there = {field.name for field in self.schema.fields}
        for name in self._partition_columns:
            if self._names.get(name) not in there:
                raise UnsupportedTable(f"partition column {name} is not supported in Iceberg")
        names = [self._names[name] for name in self._partition_columns]
        self.spec = partition_spec(self.schema, names)
        self._rows = {
            self._location(path): at for at, path in enumerate(self._adds["path"].to_pylist())
        }
        self._deletes = {
            self._delete_location(location, vector): (location, vector)
            for location, vector in self._vectors.items()
        }

    @property
    def locations(self) -> set[str]:
        """The locations of all of them."""
        return {*self._rows, *self._deletes}

    def data_file(self, location: str, schema: Schema, spec_id: int) -> DataFile:
        """A file's manifest entry; `schema` is the Iceberg table's, with its field ids."""
        if (deletes := self._deletes.get(location)) is not None:
            file = self._delete_file(location, *deletes)
        else:
            file = self._data_file(location, schema)
        file.spec_id = spec_id
        return file

    def _data_file(self, location: str, schema: Schema) -> DataFile:
        row = self._row(location)
        rows = row["num_records"]
        if rows is None:
            path = location.removeprefix(location_of(self._store, "").rstrip("/") + "/")
            rows = self._reader.footer(path).metadata.num_rows
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=location,
            file_format=FileFormat.PARQUET,
            partition=self._partition(row),
            record_count=rows,
            file_size_in_bytes=row["size_bytes"],
            lower_bounds=bounds(schema, self._names, row.get("min"), is_upper=False),
            upper_bounds=bounds(schema, self._names, row.get("max"), is_upper=True),
        )

    def _delete_file(self, location: str, of: str, vector: DeletionVector) -> DataFile:
        positions = self._reader.deleted(vector)
        table = pa.table([pa.repeat(of, len(positions)), positions], schema=_DELETE_SCHEMA)
        body = io.BytesIO()
        pq.write_table(table, body, compression="zstd")
        path = location.removeprefix(location_of(self._store, "").rstrip("/") + "/")
        self._store.put_durable(path, body.getvalue())
        bound = {_PATH_ID: to_bytes(StringType(), of)}
        return DataFile.from_args(
            content=DataFileContent.POSITION_DELETES,
            file_path=location,
            file_format=FileFormat.PARQUET,
            partition=self._partition(self._row(of)),
            record_count=len(positions),
            file_size_in_bytes=len(body.getvalue()),
            lower_bounds=bound,
            upper_bounds=bound,
        )

    def _row(self, location: str) -> dict[str, Any]:
        found: dict[str, Any] = self._adds.slice(self._rows[location], 1).to_pylist()[0]
        return found

    def _partition(self, row: dict[str, Any]) -> Record:
        return Record(*(row["partition"][name] for name in self._partition_columns))

    @cached_property
    def _vectors(self) -> dict[str, DeletionVector]:
        """Deletion vectors by data file; the Delta log is read only if the table can have any."""
        if _VECTORS not in (self._delta.protocol().reader_features or ()):
            return {}
        snapshot = TableSnapshot(DeltaLog(self._store, self._folder), reads_vectors=True)
        snapshot.read(self.version)
        return {self._address(path): vector for path, vector in snapshot.vectors().items()}

    def _location(self, action_path: str) -> str:
        return self._address(resolve_path(self._folder, action_path))

    def _address(self, path: str) -> str:
        if path.startswith("/"):
            return f"file://{path}"
        return path if "://" in path else location_of(self._store, path)

    def _delete_location(self, location: str, vector: DeletionVector) -> str:
        name = hashlib.sha256(f"{location} {vector.id}".encode()).hexdigest()[:32]
        return location_of(self._store, f"{self._place}/{DELETES}/{name}.parquet")

"""Shell: PyIceberg's FileIO over a lake's store, and a catalog of one table, which is its metadata folder.

A commit creates `v<N>.metadata.json` by put-if-absent, so one of two writers wins. Only readers use
`version-hint.text`; the catalog takes the highest version that is listed.
"""

from __future__ import annotations

import io
import re
from typing import Any, Final

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromByteStream
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata

from kafka_ds.delta.store.store import Store

METADATA: Final = "metadata"
HINT: Final = f"{METADATA}/version-hint.text"
_VERSION = re.compile(r"v(\d+)\.metadata\.json")


def location_of(store: Store, path: str) -> str:
    """The URI by which engines find a file of the lake."""
    uri = store.uri(path)
    return uri if "://" in uri else f"file://{uri}"


class StoreIO(FileIO):
    """Files of the lake by their URIs."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self._root = location_of(store, "").rstrip("/") + "/"

    def new_input(self, location: str) -> InputFile:
        return _InputFile(self._store, location, location.removeprefix(self._root))

    def new_output(self, location: str) -> OutputFile:
        return _InputFile(self._store, location, location.removeprefix(self._root))

    def delete(self, location: str | InputFile | OutputFile) -> None:
        found = location if isinstance(location, str) else location.location
        self._store.delete(found.removeprefix(self._root))


class _InputFile(InputFile, OutputFile):
    """A small file, read and written whole."""

    def __init__(self, store: Store, location: str, path: str) -> None:
        super().__init__(location)
        self._store = store
        self._path = path

    def __len__(self) -> int:
        return self._store.size(self._path) or 0

    def exists(self) -> bool:
        return self._store.size(self._path) is not None

    def open(self, seekable: bool = True) -> Any:
        return io.BytesIO(self._store.read(self._path))

    def to_input_file(self) -> InputFile:
        return self

    def create(self, overwrite: bool = False) -> Any:
        return _OutputBuffer(self._store, self._path)


class _OutputBuffer(io.BytesIO):
    """A buffer that becomes a durable file when it is closed."""

    def __init__(self, store: Store, path: str) -> None:
        super().__init__()
        self._store = store
        self._path = path

    def close(self) -> None:
        if not self.closed:
            self._store.put_durable(self._path, self.getvalue())
        super().close()


class FolderCatalog(NoopCatalog):
    """A catalog of the one table whose metadata is in a folder; DuckDB, Spark and PyIceberg open it by that path."""

    def __init__(self, store: Store, folder: str) -> None:
        super().__init__("folder")
        self._store = store
        self._folder = folder

    def load_table(self, identifier: Any) -> Table:
        """The table at its newest version. Raises NoSuchTableError."""
        version = self._newest()
        if version == 0:
            raise NoSuchTableError(self._folder)
        body = self._store.read(self._path(version))
        return self._table(version, FromByteStream.table_metadata(io.BytesIO(body)))

    def create_namespace_if_not_exists(self, namespace: Any, properties: Any = None) -> None:
        """Do nothing: a folder has no namespace."""

    def create_table(
        self,
        identifier: Any,
        schema: Schema,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: Any = UNSORTED_SORT_ORDER,
        properties: Any = None,
    ) -> Table:
        """Create the table. Raises CommitFailedException if another writer has."""
        metadata = new_table_metadata(
            schema, partition_spec, sort_order, str(location), dict(properties or {})
        )
        self._write(1, metadata)
        return self._table(1, metadata)

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """Create the next version. Raises CommitFailedException if another writer has."""
        for each in requirements:
            each.validate(table.metadata)
        metadata = update_table_metadata(
            table.metadata, updates, metadata_location=table.metadata_location
        )
        version = self._version_of(table.metadata_location) + 1
        self._write(version, metadata)
        return CommitTableResponse(
            metadata=metadata, **{"metadata-location": self._location(version)}
        )

    def recreated(
        self,
        former: Table,
        location: str,
        schema: Schema,
        spec: PartitionSpec,
        properties: dict[str, str],
    ) -> Table:
        """A new table without snapshots; its first commit replaces the former one."""
        metadata = new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, location, properties)
        return self._table(self._version_of(former.metadata_location), metadata)

    def write_version_hint(self) -> None:
        """Write the newest version to the hint: its writer may have crashed before, or have written an older one."""
        hint = f"{self._folder}/{HINT}"
        while True:
            version = str(self._newest()).encode()
            if self._store.size(hint) is not None and self._store.read(hint) == version:
                return
            self._store.put_durable(hint, version)

    def _write(self, version: int, metadata: TableMetadata) -> None:
        body = metadata.model_dump_json(exclude_none=True).encode()
        if not self._store.put_if_absent(self._path(version), body):
            raise CommitFailedException(f"{self._path(version)} exists already")

    def _newest(self) -> int:
        entries = self._store.list(f"{self._folder}/{METADATA}")
        return max((self._version_of(each.path) for each in entries), default=0)

    @staticmethod
    def _version_of(path: str) -> int:
        match = _VERSION.fullmatch(path.rpartition("/")[2])
        return int(match[1]) if match else 0

    def _path(self, version: int) -> str:
        return f"{self._folder}/{METADATA}/v{version}.metadata.json"

    def _location(self, version: int) -> str:
        return location_of(self._store, self._path(version))

    def _table(self, version: int, metadata: TableMetadata) -> Table:
        return Table((self._folder,), metadata, self._location(version), StoreIO(self._store), self)

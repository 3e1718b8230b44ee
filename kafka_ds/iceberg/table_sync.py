"""Shell: writes the Iceberg metadata of a Delta table, so that both tables have the same files.

Each sync commits the difference between the two tables. So a crash, a RESTORE and a second writer need no code of
their own: the next sync completes the work. Iceberg goes back to an earlier version only if the Delta table did.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from functools import partial
from typing import Final

from deltalake import DeltaTable
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ValidationError
from pyiceberg.manifest import ManifestContent
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update import SetPropertiesUpdate
from pyiceberg.types import NestedField

from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.store.store import Store
from kafka_ds.iceberg.columns import name_mapping
from kafka_ds.iceberg.delta_files import DeltaFiles, UnsupportedTable
from kafka_ds.iceberg.snapshots import NextSnapshot
from kafka_ds.iceberg.store_io import HINT, FolderCatalog, StoreIO, location_of
from kafka_ds.topic.names import ICEBERG

log = logging.getLogger("kafka_ds.iceberg")

# UniForm's name.
VERSION: Final = "delta-version"
TABLE_ID: Final = "delta-table-id"
NAME_MAPPING: Final = "schema.name-mapping.default"
# Delta owns the data files: no Iceberg engine may delete them.
PROPERTIES: Final = {"gc.enabled": "false"}
TRIES: Final = 5
# How often orphan metadata files are deleted, and the age at which a file without a reference is an orphan.
SNAPSHOTS_PER_CLEANUP: Final = 100
ORPHAN_AGE_MS_MIN: Final = 3_600_000


class TableSync:
    """The Iceberg table of one Delta table."""

    def __init__(self, store: Store, folder: str, catalog: Catalog | None = None) -> None:
        """`folder`: of the Delta table, in the lake. Without a catalog its subfolder is the Iceberg table."""
        self._store = store
        self._folder = folder
        self._place = f"{folder}/{ICEBERG}" + ("" if catalog is None else f"_{catalog.name}")
        self.catalog = catalog or FolderCatalog(store, self._place)
        # `topics.orders`: the parent folder is the namespace.
        self._identifier = tuple(folder.split("/"))
        self._synced = -1
        self._warned: set[str] = set()

    def sync(self) -> int | None:
        """Update the Iceberg table to the newest version of the Delta table: that version, or None if it was current.

        Raises UnsupportedTable; CommitFailedException if every try conflicted with another writer; and what the store
        and the catalog raise, after which the next sync completes the work.
        """
        if self._latest() in (-1, self._synced):
            return None
        uri = self._store.uri(self._folder)
        delta = DeltaTable(uri, storage_options=self._store.delta_options)
        files = DeltaFiles(self._store, self._folder, delta, self._place)
        for left in range(TRIES - 1, -1, -1):
            try:
                is_new = self._sync(files)
                break
            except CommitFailedException:
                if left == 0:
                    raise
        self._synced = files.version
        return files.version if is_new else None

    def _latest(self) -> int:
        # A new DeltaLog: one that has read a version does not notice that the table was recreated.
        return DeltaLog(self._store, self._folder).latest_version()

    def _sync(self, files: DeltaFiles) -> bool:
        table = self._opened(files)
        is_behind = self._is_behind(table, files)
        if is_behind:
            for line in files.left_out:
                if line not in self._warned:
                    log.warning("%s: not all of it is in the Iceberg table: %s", self._folder, line)
            self._warned.update(files.left_out)
            self._commit(table, files, {TABLE_ID: files.table_id, VERSION: str(files.version)})
        if isinstance(self.catalog, FolderCatalog):
            self.catalog.write_version_hint()
        return is_behind

    def _is_behind(self, table: Table, files: DeltaFiles) -> bool:
        """Whether the current snapshot is of another Delta table or version, or another engine's."""
        newest = table.current_snapshot()
        summary = {} if newest is None or newest.summary is None else newest.summary
        if summary.get(TABLE_ID) != files.table_id:
            return True
        version = int(summary.get(VERSION) or -1)
        if version > files.version:
            if self._latest() >= version:
                return False  # Another writer has synced a later version.
            log.warning(
                "%s: the Delta table went back from version %d to %d; rolling back the Iceberg table",
                self._folder, version, files.version,
            )  # fmt: skip
        return version != files.version

    def _opened(self, files: DeltaFiles) -> Table:
        place = location_of(self._store, self._place)
        try:
            table = self.catalog.load_table(self._identifier)
        except NoSuchTableError:
            self.catalog.create_namespace_if_not_exists(self._identifier[:-1])
            table = self.catalog.create_table(
                self._identifier, files.schema, place, files.spec, properties=dict(PROPERTIES)
            )
        # A folder's table was made before the lake was copied or moved.
        has_moved = table.location() != place
        if has_moved and not isinstance(self.catalog, FolderCatalog):
            raise UnsupportedTable(
                f"the catalog has another table of this name, at {table.location()}"
            )
        is_other = table.properties.get(TABLE_ID, files.table_id) != files.table_id
        is_repartitioned = _partitions(table.schema(), table.spec()) != _partitions(
            files.schema, files.spec
        )
        if isinstance(self.catalog, FolderCatalog) and (has_moved or is_other or is_repartitioned):
            if has_moved:
                log.warning(
                    "%s was at %s: making a new Iceberg table at %s",
                    self._folder,
                    table.location(),
                    place,
                )
            table = self.catalog.recreated(table, place, files.schema, files.spec, dict(PROPERTIES))
        elif is_repartitioned:
            text = "its partition columns changed: drop it from the catalog, without its files"
            raise UnsupportedTable(text)
        # The lake's store: its writes are durable, and it has the brokers' credentials.
        table.io = StoreIO(self._store)
        return table

    def _commit(self, table: Table, files: DeltaFiles, summary: dict[str, str]) -> None:
        """Commit schema and snapshot together, so that no reader sees one without the other."""
        transaction = table.transaction()
        _evolve(transaction, files.schema)
        metadata = transaction.table_metadata
        schema = metadata.schema()
        data_file = partial(files.data_file, schema=schema, spec_id=metadata.default_spec_id)
        snapshot, requirements = NextSnapshot(table, metadata).updates(
            files.locations, data_file, summary
        )
        mapping = name_mapping(schema, files.delta_schema, table.name_mapping()).model_dump_json()
        properties = SetPropertiesUpdate(updates={**PROPERTIES, **summary, NAME_MAPPING: mapping})
        answer = self.catalog.commit_table(
            table,
            (*transaction._requirements, *requirements),
            (*transaction._updates, *snapshot, properties),
        )
        table.metadata, table.metadata_location = answer.metadata, answer.metadata_location
        newest = table.metadata.current_snapshot()
        if newest is not None and (newest.sequence_number or 0) % SNAPSHOTS_PER_CLEANUP == 0:
            self._delete_orphan_files(table)

    def _delete_orphan_files(self, table: Table) -> None:
        """Delete metadata and position delete files that no snapshot refers to."""
        used = {table.metadata_location, *(e.metadata_file for e in table.metadata.metadata_log)}
        for snapshot in table.metadata.snapshots:
            used.add(snapshot.manifest_list)
            manifests = snapshot.manifests(table.io)
            new = [each for each in manifests if each.manifest_path not in used]
            used |= {each.manifest_path for each in new}
            for manifest in new:
                if manifest.content == ManifestContent.DELETES:
                    entries = manifest.fetch_manifest_entry(table.io)
                    used |= {each.data_file.file_path for each in entries}
        files = self._store.list(self._place)
        newest_ms = max((each.modified_ms for each in files), default=0)
        for each in files:
            is_old = newest_ms - each.modified_ms > ORPHAN_AGE_MS_MIN
            is_used = location_of(self._store, each.path) in used
            if is_old and not is_used and not each.path.endswith(HINT):
                self._store.delete(each.path)


def _evolve(transaction: Transaction, wanted: Schema) -> None:
    """Give the Iceberg table exactly the columns of the Delta table."""
    there = {f.name: f for f in transaction.table_metadata.schema().fields}
    fresh = {f.name: f for f in assign_fresh_schema_ids(wanted).fields}
    gone = there.keys() - fresh.keys()
    try:
        with transaction.update_schema() as update:
            update.union_by_name(wanted)
    except (ValidationError, ValueError):
        # The type cannot be promoted. Readers find columns by name, so a new column of the same name replaces the old.
        gone |= {name for name, f in there.items() if _shape(f) != _shape(fresh.get(name))}
        _delete(transaction, gone)
        with transaction.update_schema() as update:
            update.union_by_name(wanted)
    else:
        _delete(transaction, gone)


def _delete(transaction: Transaction, columns: Iterable[str]) -> None:
    with transaction.update_schema(allow_incompatible_changes=True) as update:
        for name in columns:
            update.delete_column((name,))


def _partitions(schema: Schema, spec: PartitionSpec) -> list[tuple[str, str]]:
    """The partition columns and their types."""
    fields = [schema.find_field(each.source_id) for each in spec.fields]
    return [(each.name, str(each.field_type)) for each in fields]


def _shape(field: NestedField | None) -> str:
    """A column's type without field ids."""
    return "" if field is None else re.sub(r"\d+: ", "", str(field.field_type))

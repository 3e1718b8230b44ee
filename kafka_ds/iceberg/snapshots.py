"""Shell: an Iceberg snapshot that replaces a table's present files by the wanted ones.

Manifests that lose no file are kept. The others are rewritten, and all of them once there are too many. Data files and
position delete files have separate manifests.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

# A reader opens every manifest.
MANIFESTS_MAX: Final = 50
SNAPSHOTS_KEPT: Final = 100
_CODEC: Final = "deflate"
_CONTENT: Final = {
    ManifestContent.DATA: "data",
    ManifestContent.DELETES: "deletes",
}


class _ManifestWriter(ManifestWriterV2):
    """PyIceberg's own writes only manifests of data files."""

    def __init__(self, content: ManifestContent, **arguments: Any) -> None:
        super().__init__(avro_compression=_CODEC, **arguments)
        self._content = content

    def content(self) -> ManifestContent:
        return self._content

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": _CONTENT[self._content]}


class NextSnapshot:
    """The snapshot that follows a table's current one."""

    def __init__(self, table: Table, metadata: TableMetadata) -> None:
        """`metadata`: the table's, with the other changes of the same commit applied (columns)."""
        self._table = table
        self._metadata = metadata
        self._parent = metadata.current_snapshot()
        self._id = metadata.new_snapshot_id()
        self._uuid = uuid.uuid4()
        self._written = 0
        manifests = [] if self._parent is None else self._parent.manifests(table.io)
        self._entries: list[tuple[ManifestFile, list[ManifestEntry]]] = [
            (each, each.fetch_manifest_entry(table.io, discard_deleted=True)) for each in manifests
        ]
        self._alive = {
            entry.data_file.file_path: entry.data_file
            for _, entries in self._entries
            for entry in entries
        }

    def updates(
        self,
        wanted: Collection[str],
        data_file: Callable[[str], DataFile],
        properties: Mapping[str, str],
    ) -> tuple[list[TableUpdate], list[TableRequirement]]:
        """The updates and requirements of a commit after which the table has exactly these files.

        `data_file` gives the manifest entry of a file that is new.
        """
        parent_id = None if self._parent is None else self._parent.snapshot_id
        is_last: TableRequirement = AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=parent_id)
        added = [data_file(path) for path in wanted if path not in self._alive]
        manifests = [each for kind in _CONTENT for each in self._manifests(kind, wanted, added)]
        path = self._location(f"snap-{self._id}-0-{self._uuid}.avro")
        number = self._metadata.next_sequence_number()
        with write_manifest_list(
            format_version=2,
            output_file=self._table.io.new_output(path),
            snapshot_id=self._id,
            parent_snapshot_id=parent_id,
            sequence_number=number,
            avro_compression=_CODEC,
        ) as writer:
            writer.add_manifests(manifests)
        snapshot = Snapshot(
            snapshot_id=self._id,
            parent_snapshot_id=parent_id,
            manifest_list=path,
            sequence_number=number,
            summary=self._summary(wanted, added, properties),
            schema_id=self._metadata.current_schema_id,
        )
        ref = SetSnapshotRefUpdate(
            snapshot_id=self._id,
            ref_name=MAIN_BRANCH,
            type=SnapshotRefType.BRANCH,
            max_ref_age_ms=None,
            max_snapshot_age_ms=None,
            min_snapshots_to_keep=None,
        )
        updates: list[TableUpdate] = [AddSnapshotUpdate(snapshot=snapshot), ref]
        if old := self._old_snapshots():
            updates.append(RemoveSnapshotsUpdate(snapshot_ids=old))
        return updates, [is_last]

    def _old_snapshots(self) -> list[int]:
        named = {each.snapshot_id for each in self._metadata.refs.values()}
        snapshots = sorted(self._metadata.snapshots, key=lambda each: each.sequence_number or 0)
        old = snapshots[: max(0, len(snapshots) + 1 - SNAPSHOTS_KEPT)]
        return [each.snapshot_id for each in old if each.snapshot_id not in named]

    def _manifests(
        self, content: ManifestContent, wanted: Collection[str], added: list[DataFile]
    ) -> Iterator[ManifestFile]:
        """The manifests of the new snapshot."""
        mine = [each for each in self._entries if each[0].content == content]
        is_many = len(mine) > MANIFESTS_MAX
        rewritten = []
        for manifest, entries in mine:
            if is_many or any(each.data_file.file_path not in wanted for each in entries):
                rewritten += entries
            elif entries:
                yield manifest
        for spec_id, entries in _by_spec(rewritten).items():
            with self._writer(content, spec_id) as writer:
                for entry in entries:
                    stays = entry.data_file.file_path in wanted
                    (writer.existing if stays else writer.delete)(entry)
            yield writer.to_manifest_file()
        is_data = content == ManifestContent.DATA
        if new := [each for each in added if _is_data(each) == is_data]:
            with self._writer(content, self._metadata.default_spec_id) as writer:
                for file in new:
                    status = ManifestEntryStatus.ADDED
                    writer.add(ManifestEntry.from_args(status=status, data_file=file))
            yield writer.to_manifest_file()

    def _writer(self, content: ManifestContent, spec_id: int) -> _ManifestWriter:
        path = self._location(f"{self._uuid}-m{self._written}.avro")
        self._written += 1
        return _ManifestWriter(
            content,
            spec=self._metadata.specs()[spec_id],
            schema=self._metadata.schema(),
            output_file=self._table.io.new_output(path),
            snapshot_id=self._id,
        )

    def _location(self, name: str) -> str:
        return self._table.location_provider().new_metadata_location(name)

    def _summary(
        self, wanted: Collection[str], added: list[DataFile], properties: Mapping[str, str]
    ) -> Summary:
        """The counts that Iceberg's specification names."""
        removed = [file for path, file in self._alive.items() if path not in wanted]
        kept = [file for path, file in self._alive.items() if path in wanted]
        counts = {
            **_counts(added, "added-{}", "added-{}"),
            **_counts(removed, "deleted-{}", "removed-{}"),
        }
        counts = {name: number for name, number in counts.items() if number}
        counts |= _counts([*kept, *added], "total-{}", "total-{}")
        only_adds = not removed and all(map(_is_data, added))
        operation = Operation.APPEND if only_adds else Operation.OVERWRITE
        return Summary(operation, **{n: str(number) for n, number in counts.items()}, **properties)


def _counts(files: list[DataFile], of_data: str, of_others: str) -> dict[str, int]:
    data = [each for each in files if _is_data(each)]
    deletes = [each for each in files if not _is_data(each)]
    return {
        of_data.format("data-files"): len(data),
        of_data.format("records"): sum(each.record_count for each in data),
        of_others.format("delete-files"): len(deletes),
        of_others.format("position-deletes"): sum(each.record_count for each in deletes),
        of_others.format("files-size"): sum(each.file_size_in_bytes for each in files),
    }


def _is_data(file: DataFile) -> bool:
    return file.content == DataFileContent.DATA


def _by_spec(entries: list[ManifestEntry]) -> dict[int, list[ManifestEntry]]:
    found: dict[int, list[ManifestEntry]] = {}
    for entry in entries:
        found.setdefault(entry.data_file.spec_id, []).append(entry)
    return found

"""Pure: the files of a table as columns, as a checkpoint has them. Entries are made on demand.

A table has tens of thousands of files, and a reader looks at a few. What is needed of all of them (offsets, times,
sizes) stays in arrays; files that later commits add or remove are kept beside the arrays. A path is found by scanning
the column, some 0.1 ms for 50,000 of them, until so many have been looked for that a dictionary pays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, ValuesView
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_ds.delta.deletion_vector import DeletionVector
from kafka_ds.delta.file_entry import UNKNOWN, FileEntries, FileEntry
from kafka_ds.delta.names import resolve_path

NO_TIME = np.iinfo(np.int64).min
SCANS_MAX = 64
# Paths that do not lie in the table's folder as they are spelled.
_ODD_PATH = "[:%]|^/"

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrays:
    """One value a file, in any order."""

    paths: pa.Array
    """As the log spells them."""
    partitions: Numbers
    sizes: Numbers
    rows: Numbers
    starts: Numbers
    ends: Numbers
    earliest: Numbers
    latest: Numbers
    null_timestamps: Numbers
    modified: Numbers
    vectors: Mapping[int, DeletionVector] = field(default_factory=dict)
    """Of those that have one, by place; `rows` counts what is left."""


class FileColumns(FileEntries):
    """Files that do not change."""

    def __init__(self, table: str, arrays: _Arrays) -> None:
        self._table = table
        self._arrays = arrays
        self._scans = 0
        self._places: dict[str, int] | None = None

    @classmethod
    def of(cls, table: str, **columns: Any) -> FileColumns:
        """The columns of Arrow arrays, in which null stands for what is not known."""
        paths, vectors = columns.pop("paths"), columns.pop("vectors")
        times = {name: _numbers(columns.pop(name), NO_TIME) for name in ("earliest", "latest")}
        others = {name: _numbers(each, UNKNOWN) for name, each in columns.items()}
        rows = others["rows"] = others["rows"].copy()
        for at, vector in vectors.items():
            rows[at] -= vector.cardinality if rows[at] >= 0 else 0
        return cls(table, _Arrays(paths=_whole(paths), vectors=vectors, **times, **others))

    @classmethod
    def of_entries(cls, table: str, entries: Iterable[FileEntry]) -> FileColumns:
        """The columns of entries that are there already."""
        known = list(entries)

        def numbers(values: Iterable[int | None]) -> Numbers:
            return np.array([NO_TIME if each is None else each for each in values], np.int64)

        return cls(
            table,
            _Arrays(
                paths=pa.array([each.action_path for each in known], pa.string()),
                partitions=numbers(each.partition for each in known),
                sizes=numbers(each.size for each in known),
                rows=numbers(each.rows for each in known),
                starts=numbers(each.min_offset for each in known),
                ends=numbers(each.max_offset for each in known),
                earliest=numbers(each.min_timestamp_ms for each in known),
                latest=numbers(each.max_timestamp_ms for each in known),
                null_timestamps=numbers(each.null_timestamps for each in known),
                modified=numbers(each.modified_ms for each in known),
                vectors={
                    at: each.vector for at, each in enumerate(known) if each.vector is not None
                },
            ),
        )

    def __len__(self) -> int:
        return len(self._arrays.sizes)

    def entry(self, at: int) -> FileEntry:
        """The entry at this place, made of its values."""
        arrays = self._arrays
        path = arrays.paths[at].as_py()
        return FileEntry(
            path=resolve_path(self._table, path),
            action_path=path,
            partition=int(arrays.partitions[at]),
            size=int(arrays.sizes[at]),
            rows=int(arrays.rows[at]),
            min_offset=int(arrays.starts[at]),
            max_offset=int(arrays.ends[at]),
            min_timestamp_ms=_time(arrays.earliest[at]),
            max_timestamp_ms=_time(arrays.latest[at]),
            null_timestamps=int(arrays.null_timestamps[at]),
            modified_ms=int(arrays.modified[at]),
            vector=arrays.vectors.get(at),
        )

    @property
    def partitions(self) -> Numbers:
        return self._arrays.partitions

    @property
    def rows(self) -> Numbers:
        return self._arrays.rows

    @property
    def starts(self) -> Numbers:
        return self._arrays.starts

    @property
    def ends(self) -> Numbers:
        return self._arrays.ends

    @property
    def latest(self) -> Numbers:
        """The latest timestamps, NO_TIME where that is not known."""
        return self._arrays.latest

    @property
    def null_timestamps(self) -> Numbers:
        """How many rows have no date, UNKNOWN where that is not known."""
        return self._arrays.null_timestamps

    @property
    def vectors(self) -> Mapping[int, DeletionVector]:
        """The deletion vectors of the files that have one, by place."""
        return self._arrays.vectors

    def incomplete(self) -> list[int]:
        """The places of files that the log has no statistics for."""
        rows, starts = self._arrays.rows, self._arrays.starts
        found: list[int] = np.flatnonzero((rows < 0) | ((rows > 0) & (starts < 0))).tolist()
        return found

    def paths(self) -> list[str]:
        """All paths, resolved."""
        return [resolve_path(self._table, each) for each in self._arrays.paths.to_pylist()]

    def sizes(self) -> dict[str, int]:
        """The size of each file by its path."""
        return dict(zip(self.paths(), self._arrays.sizes.tolist(), strict=True))

    def place(self, path: str) -> int | None:
        """Where a file is, by its path; the last one where there are several."""
        if self._places is None and self._scans < SCANS_MAX and self._is_plain():
            self._scans += 1
            prefix = f"{self._table}/"
            if not path.startswith(prefix):
                return None
            found = pc.index(self._arrays.paths, path.removeprefix(prefix)).as_py()
            return None if found < 0 else int(found)
        if self._places is None:
            self._places = {each: at for at, each in enumerate(self.paths())}
        return self._places.get(path)

    def _is_plain(self) -> bool:
        """Whether all paths are spelled as they lie in the table's folder."""
        if self._scans > 0:
            return True  # As it was found to be before.
        return not pc.any(pc.match_substring_regex(self._arrays.paths, _ODD_PATH)).as_py()


class FileMap(MutableMapping[str, FileEntry]):
    """Files by path: columns, and what came and went since."""

    def __init__(self, columns: FileColumns | None = None) -> None:
        self.columns = FileColumns.of_entries("", ()) if columns is None else columns
        self._gone: set[int] = set()
        self._came: dict[str, FileEntry] = {}

    def __len__(self) -> int:
        return len(self.columns) - len(self._gone) + len(self._came)

    def __contains__(self, path: object) -> bool:
        if path in self._came:
            return True
        return isinstance(path, str) and self._place(path) is not None

    def __getitem__(self, path: str) -> FileEntry:
        if (entry := self._came.get(path)) is not None:
            return entry
        at = self._place(path)
        if at is None:
            raise KeyError(path)
        return self.columns[at]

    def __setitem__(self, path: str, entry: FileEntry) -> None:
        if path not in self._came and (at := self._place(path)) is not None:
            self._gone.add(at)
        self._came[path] = entry

    def __delitem__(self, path: str) -> None:
        if self._came.pop(path, None) is not None:
            return
        at = self._place(path)
        if at is None:
            raise KeyError(path)
        self._gone.add(at)

    def __iter__(self) -> Iterator[str]:
        gone = self._gone
        for at, path in enumerate(self.columns.paths()):
            if at not in gone:
                yield path
        yield from self._came

    def values(self) -> ValuesView[FileEntry]:
        return _Entries(self)

    def entries(self) -> Iterator[FileEntry]:
        """All entries, made one by one."""
        for at in range(len(self.columns)):
            if at not in self._gone:
                yield self.columns[at]
        yield from self._came.values()

    def sizes(self) -> dict[str, int]:
        """The size of each file by its path."""
        found = self.columns.sizes()
        if self._gone:
            paths = self.columns.paths()
            for at in self._gone:
                del found[paths[at]]
        found.update((path, each.size) for path, each in self._came.items())
        return found

    def _place(self, path: str) -> int | None:
        at = self.columns.place(path) if len(self.columns) else None
        return None if at in self._gone else at


class _Entries(ValuesView[FileEntry]):
    """The values of a map, without a look-up by path."""

    def __init__(self, files: FileMap) -> None:
        super().__init__(files)
        self._files = files

    def __iter__(self) -> Iterator[FileEntry]:
        return self._files.entries()


def _whole(values: Any) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        return pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    return values


def _numbers(values: Any, absent: int) -> Numbers:
    whole = _whole(values).cast(pa.int64())
    found: Numbers = whole.fill_null(absent).to_numpy(zero_copy_only=False)
    return found


def _time(value: np.int64) -> int | None:
    return None if value == NO_TIME else int(value)

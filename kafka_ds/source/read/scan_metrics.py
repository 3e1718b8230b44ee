"""Pure: what a task has read: files, row groups, bytes and fetches.

One plain addition per file, row group or answer, never per row. Spark's Python API has no place for a source's own
metrics, so they go into a line of the log (`kafka_ds.scan_report`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import pyarrow.parquet as pq

# The counters, in the order of the log line.
COUNTERS: Final = (
    "files",
    "row_groups",
    "row_groups_left_out",
    "parquet_bytes",
    "fetches",
    "fetched_bytes",
    "rows",
)


class ScanMetrics:
    """The counters of one task."""

    __slots__ = COUNTERS

    def __init__(self) -> None:
        self.files = 0
        self.row_groups = 0
        self.row_groups_left_out = 0
        self.parquet_bytes = 0
        self.fetches = 0
        self.fetched_bytes = 0
        self.rows = 0

    def read(
        self, metadata: pq.FileMetaData, groups: Iterable[int], names: Collection[str]
    ) -> None:
        """Add the bytes of these columns of these row groups, as they lie in the file."""
        chosen = [
            n
            for n in range(metadata.num_columns)
            if metadata.schema.column(n).path.split(".", 1)[0] in names
        ]
        for number in groups:
            group = metadata.row_group(number)
            self.parquet_bytes += sum(group.column(n).total_compressed_size for n in chosen)

    def document(self) -> dict[str, str]:
        """Names and numbers, as text: Spark's view of logs has nothing else."""
        return {name: str(getattr(self, name)) for name in COUNTERS}

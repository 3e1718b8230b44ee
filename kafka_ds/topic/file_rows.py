"""Pure: the rows of a system table's small file, read by the thread that asks.

`pyarrow.parquet.read_table` scans with threads of Arrow's even where it is asked not to. One that lets go of a Python
buffer while the interpreter ends aborts the process (`terminate called without an active exception`).
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq


def read_rows(data: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of a Parquet file, of all its columns or of these, in the file's order."""
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        return file.read(columns=columns, use_threads=False)

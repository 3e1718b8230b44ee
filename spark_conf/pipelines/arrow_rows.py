"""Pure: rows of Arrow arrays, some of which were looked at alone."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def in_places(rows: pa.Array, is_there: pa.Array) -> pa.Array:
    """The rows of those places for which `is_there`, in the same order; null in the others."""
    if len(rows) == len(is_there):
        return rows
    # The running count of the places is each row's index.
    at = pc.subtract(pc.cumulative_sum(is_there.cast(pa.int64())), 1)
    return rows.take(pc.if_else(is_there, at, pa.scalar(None, pa.int64())))

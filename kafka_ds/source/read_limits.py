"""Shell: Spark's limits for a micro-batch, and their substitutes in PySpark 4.1, which has none.

4.1 passes a stream's source neither the start of a micro-batch nor its limit. Spark never makes one of the substitutes;
the source takes every question for one about all there is.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "HAS_LIMITS", "ReadAllAvailable", "ReadLimit", "ReadMaxBytes", "ReadMaxRows", "ReadMinRows",
    "SupportsTriggerAvailableNow",
]  # fmt: skip

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    _found = True
except ImportError:
    _found = False

    class ReadLimit:  # type: ignore[no-redef]
        """Stands in for Spark's, which this PySpark lacks."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """No limit: there are no others where PySpark has none."""

    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef]
        """Never made."""

    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """Never made."""

    class ReadMinRows(ReadLimit):  # type: ignore[no-redef]
        """Never made."""

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Spark 4.1 bounds such a query by itself."""


HAS_LIMITS: Final = _found

"""Shell: the reader of a stream whose options are wrong.

PySpark loses what `streamReader` raises: it stops the reader that it did not get, and the user's last line is about a
local variable. So the mistake is told by the first call of a reader that there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from kafka_ds.errors import OptionError

if TYPE_CHECKING:
    from kafka_ds.errors import OptionError
    from kafka_ds.source.read_limits import ReadLimit


class RefusedStream(DataSourceStreamReader):
    """Raises `problem`, whatever Spark asks for."""

    def __init__(self, problem: OptionError) -> None:
        self._problem = problem

    def _refuse(self) -> NoReturn:
        raise self._problem.with_traceback(None)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Raise."""
        self._refuse()

    def initialOffset(self) -> dict[str, Any]:
        """Raise."""
        self._refuse()

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Raise."""
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raise."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Raise."""
        self._refuse()

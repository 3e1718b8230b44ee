"""Shell: empties the typed tables of topics that were deleted.

The topic's own table says so: a topic that a client may not see, or of another cluster, is not taken for a deleted one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

from kafka_ds.delta.store.store import Store
from kafka_ds.protocol.types import uuid_from_text
from kafka_ds.topic.names import ERRORS, TYPED_TABLES
from kafka_ds.topic.table import TopicTable
from spark_conf.pipelines.progress import emptying_step
from spark_conf.pipelines.typed_table import TypedTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGER = logging.getLogger("kafka_ds.pipelines")
LOOK_S: Final = 60.0


class DeletedTopics:
    """The typed tables of a lake that no pipeline maintains."""

    def __init__(self, spark: SparkSession, store: Store, lake: str) -> None:
        self._spark, self._store, self._lake = spark, store, lake
        self._looked: float | None = None

    def tables(self, maintained: Collection[str]) -> Iterator[str]:
        """The topics of all other typed tables, each minute; none in between."""
        now = time.monotonic()
        if self._looked is not None and now - self._looked < LOOK_S:
            return
        self._looked = now
        there = {each.removesuffix(ERRORS) for each in self._store.folders(TYPED_TABLES)}
        yield from sorted(there.difference(maintained))

    def empty(self, topic: str) -> None:
        """Empty the tables of a topic if it was deleted; VACUUM removes their files, once they are old enough."""
        table = TypedTable(self._spark, self._store, self._lake, topic)
        known = [each for each in (table.last_step(), table.begun_step()) if each is not None]
        if not known or not (topic_id := known[0].topic_id):
            return
        if not TopicTable(self._store, topic).was_retired(uuid_from_text(topic_id)):
            return
        if any(each.end for each in known):
            LOGGER.warning("%s: the topic was deleted: emptying its typed table", topic)
            table.reset(emptying_step(*known, topic_id=topic_id, mode=known[0].mode))
        elif table.has_data_files():
            table.vacuum(topic_id)

"""Shell: maintains the typed tables of all topics with `lake.table.value.format`, in rounds.

If the update of a table fails, it is logged and retried; other topics are not affected.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from kafka_ds.client.admin import Admin
from kafka_ds.client.cluster import Cluster
from kafka_ds.client.settings import parse_settings
from kafka_ds.delta.store.uri import open_store
from kafka_ds.errors import KafkaDsError, OptionError
from kafka_ds.topic.names import CLUSTER_METADATA, TOPICS
from spark_conf.pipelines.deleted_topics import DeletedTopics
from spark_conf.pipelines.failure_log import FailureLog
from spark_conf.pipelines.pipeline import Pipeline, PipelineContext
from spark_conf.pipelines.registry import SchemaRegistry, registry_of
from spark_conf.pipelines.table_settings import SETTINGS, VALUE_FORMAT, table_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOGGER = logging.getLogger("kafka_ds.pipelines")
# How old the settings of topics may be in a round, in seconds: their brokers would be asked for all of them each time.
SETTINGS_S: Final = 3.0


class SparkEnded(RuntimeError):
    """The session's JVM or SparkContext has ended, so no table can be updated any more."""


class Pipelines:
    """All pipelines of a cluster and its lake; `options` are the data source's (`kafka.…`).

    A registry without a URL is the one that the brokers name. Raises OptionError for a lake without a cluster's tables.
    """

    def __init__(
        self,
        spark: SparkSession,
        options: Mapping[str, str],
        lake: str,
        registry: SchemaRegistry | None = None,
    ) -> None:
        self._spark = spark
        self._registry = registry if registry is not None else SchemaRegistry()
        # Whether the brokers say where it is.
        self._asks_for_registry = not self._registry
        store = open_store(lake)
        if not (store.folders(CLUSTER_METADATA) or store.folders(TOPICS)):
            raise OptionError(
                f"{lake} contains no tables of a cluster: is it the brokers' lake.uri?"
            )
        self._cluster = Cluster(parse_settings(dict(options)))
        self._admin = Admin(self._cluster)
        self._context = PipelineContext(
            spark=spark,
            store=store,
            lake=absolute(lake),
            options=dict(options),
            cluster=self._cluster,
            registry=self._registry,
        )
        self._pipelines: dict[str, Pipeline] = {}
        self._deleted = DeletedTopics(spark, self._context.store, self._context.lake)
        self._announced: list[str] | None = None
        # The topic ids and settings that the brokers told last, and when.
        self._told: tuple[dict[str, str], dict[str, dict[str, str | None]], float] | None = None
        self._failures = FailureLog()

    def close(self) -> None:
        """Close the connections to the brokers."""
        self._cluster.close()

    def wanted(self, settings_s: float = 0.0) -> list[Pipeline]:
        """Those of the topics that are configured to have a typed table, whose settings may be `settings_s` seconds
        old.
        """
        topics = {
            name: topic
            for name, topic in self._admin.describe_topics().items()
            if not topic.is_internal
        }
        found: dict[str, Pipeline] = {}
        ids = {name: topic.topic_id for name, topic in topics.items()}
        for name, told in sorted(self._settings(ids, settings_s).items()):
            settings = table_settings(topics[name], told)
            if settings is not None:
                found[name] = self._pipelines.get(name) or Pipeline(self._context, settings)
                found[name].settings = settings
        self._pipelines = found
        return list(found.values())

    def _settings(
        self, ids: dict[str, str], age_s: float
    ) -> Mapping[str, Mapping[str, str | None]]:
        """The settings of these topics, asked for again if a topic is new or the last answer is too old."""
        now = time.monotonic()
        if self._told is None or self._told[0] != ids or now - self._told[2] >= age_s:
            self._told = ids, self._admin.topic_settings(list(ids), SETTINGS), now
            if self._asks_for_registry:
                self._registry.move_to(registry_of(self._cluster))
        return self._told[1]

    def run_once(
        self, is_ended: Callable[[], bool] = lambda: False, *, by_turns: bool = False
    ) -> list[str]:
        """Update every table to the present end of its topic; the topics for which that failed.

        `by_turns`: by one step each at most. What a step may have is shared by the topics that were behind in the last
        round, so that none of them waits long for the others. Raises SparkEnded.
        """
        failed: list[str] = []
        self._check_spark()
        if self._announced is None:
            LOGGER.info("reading the settings of all topics")
        wanted = self.wanted(SETTINGS_S if by_turns else 0.0)
        topics = [each.topic for each in wanted]
        self._announce(topics)
        busy = sum(each.has_advanced for each in wanted)
        share = 1 / max(busy, 1) if by_turns else None
        for pipeline in wanted:
            if is_ended():
                break
            if not self._is_done(pipeline.topic, partial(pipeline.update, is_ended, share)):
                failed.append(pipeline.topic)
        for topic in () if is_ended() else self._deleted.tables(topics):
            if not self._is_done(topic, partial(self._deleted.empty, topic)):
                failed.append(topic)
        return failed

    def _is_done(self, topic: str, update: Callable[[], object]) -> bool:
        """Whether an update of a topic's table succeeded."""
        what = f"the typed table of {topic}"
        try:
            update()
        except Exception as problem:
            # Any class: PySpark has none for most errors from Java. Other topics are still updated.
            self._check_spark()
            self._failures.failed(what, problem)
            LOGGER.debug("%s cannot be updated", what, exc_info=problem)
            return False
        self._failures.succeeded(what)
        return True

    def _check_spark(self) -> None:
        """Raises SparkEnded if the JVM does not answer, or its SparkContext has stopped."""
        from py4j.protocol import Py4JError

        context = self._spark.sparkContext._jsc
        try:
            # A JVM that is killed, or short of memory, ends without a word to Python.
            has_ended = context is None or context.sc().isStopped()
        except (Py4JError, OSError) as problem:
            raise SparkEnded(f"its JVM does not answer: {problem}") from problem
        if has_ended:
            raise SparkEnded("its SparkContext has stopped")

    def _announce(self, topics: list[str]) -> None:
        """Log which topics have typed tables, when that changes: the first step may take a minute."""
        if topics != self._announced:
            self._announced = topics
            none = "no topic: none has the setting lake.table.value.format"
            LOGGER.info("maintaining typed tables of %s", ", ".join(topics) or none)

    def run(self, interval_s: float, is_ended: Callable[[], bool]) -> None:
        """Update the tables in rounds until `is_ended`; changed settings take effect in the next round.

        Raises SparkEnded.
        """
        while not is_ended():
            began = time.monotonic()
            try:
                self.run_once(is_ended, by_turns=True)
            except KafkaDsError as problem:
                LOGGER.error("this round of updates failed, and is tried again: %s", problem)
            left = began + interval_s - time.monotonic()
            while left > 0 and not is_ended():
                time.sleep(min(left, 0.2))
                left = began + interval_s - time.monotonic()

    def replay(self, topic: str) -> int:
        """Decode a topic's records with rescued data again, with the present settings; how many fit now."""
        return self._of(topic).replay()

    def view(self, topic: str) -> DataFrame:
        """The typed table and the committed records that it does not have yet. Raises OptionError or DataLoss."""
        return self._of(topic).view()

    def _of(self, topic: str) -> Pipeline:
        self.wanted()
        if topic not in self._pipelines:
            raise OptionError(f"topic {topic} has no {VALUE_FORMAT}: it has no typed table")
        return self._pipelines[topic]


def absolute(lake: str) -> str:
    """The lake's address with an absolute path, which Spark's writers need."""
    return lake.rstrip("/") if "://" in lake else os.path.abspath(lake)

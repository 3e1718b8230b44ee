"""The session of spark_conf: Delta, the format, the views over the system tables."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path

from pyspark.sql import SparkSession

import kafka_ds
from kafka_ds.source.datasource import REDACTED_OPTIONS, REDACTION_SETTING, KafkaDataSource
from kafka_ds.source.report import LOGGING_SETTING
from kafka_ds.topic.names import REMOTE_LOG_METADATA
from spark_conf.session import NO_TRACEBACK, defaults
from spark_conf.system_views import system_views
from tests.processes import BrokerProcess, wait_until
from tests.spark.topics import Topic


def test_the_defaults_are_spark_settings() -> None:
    assert defaults()["spark.sql.python.filterPushdown.enabled"] == "true"
    # A user's Python function that fails says where.
    assert not NO_TRACEBACK.keys() & defaults().keys()
    assert all(name.startswith("spark.") for name in defaults())


def test_the_format_and_push_down_are_there(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"


def test_what_spark_leaves_out_of_plans_by_itself_is_still_left_out(spark: SparkSession) -> None:
    kafka_ds.register(spark)
    wanted = spark.conf.get(REDACTION_SETTING)
    assert wanted == f"(?i)url|{REDACTED_OPTIONS}"


def test_python_processes_find_compiled_modules(spark: SparkSession) -> None:
    """No archive is in front of the installed package (`spark_conf.home`)."""
    assert spark._jvm is not None
    places = spark._jvm.org.apache.spark.api.python.PythonUtils.sparkPythonPath().split(":")
    assert [each for each in places if each.endswith(".zip") and Path(each).exists()] == []


def test_the_examples_of_the_source_run(spark: SparkSession, broker: BrokerProcess) -> None:
    Topic(broker, "flights").create().produce(10)
    for documented in (KafkaDataSource, kafka_ds.scan, kafka_ds.scan_report):
        text = (inspect.getdoc(documented) or "").replace("127.0.0.1:9092", broker.bootstrap)
        example = doctest.DocTestParser().get_doctest(text, {"spark": spark}, "example", None, None)
        try:
            assert doctest.DocTestRunner().run(example) == (0, len(example.examples))
        finally:
            spark.conf.unset(LOGGING_SETTING)
        assert example.examples


def test_a_topic_its_segments_and_their_state_are_sql(spark: SparkSession, topic: Topic) -> None:
    """The table read by Delta, and the views that describe its contents."""
    topic.create(partitions=1).produce(5000, size=500, partitions=1)

    # The table has the records before the metadata say that their copy has finished.
    end = topic.wait_until_tiered(0)
    path = topic.broker.lake / "topics" / topic.name
    frame = spark.read.format("delta").load(str(path)).where(f"offset < {end}")
    assert frame.count() == end
    # All views take longer to make than one table to look at.
    events = topic.broker.lake / REMOTE_LOG_METADATA
    of_this = f"topic = '{topic.name}' AND state = 'COPY_SEGMENT_FINISHED'"

    def finished() -> bool:
        return bool(spark.read.format("delta").load(str(events)).where(of_this).count())

    wait_until("a finished segment", finished)
    assert "remote_segments" in system_views(spark, topic.broker.lake)
    rows = spark.sql(
        f"SELECT * FROM remote_segments WHERE {of_this} ORDER BY start_offset"
    ).collect()
    assert rows[0]["start_offset"] == 0
    assert max(row["end_offset"] for row in rows) < topic.wait_until_tiered(0)
    assert all(row["size_bytes"] > row["lake_bytes"] > 0 for row in rows)
    assert spark.sql("SELECT count(*) FROM remote_log_events").collect()[0][0] > len(rows)


def test_views_of_tables_that_are_not_there_are_not_made(
    spark: SparkSession, tmp_path: object
) -> None:
    assert system_views(spark, str(tmp_path)) == []

"""Queries by TLS and SCRAM, with the options of Spark's Kafka source. A refused query names the option at fault, and no
password or key appears in anything that Spark writes. Streams are in test_sink.py.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import kafka_ds
from tests.integration.sink_life import read_all
from tests.processes import BrokerProcess
from tests.spark.secured import Options, Ways, assert_nothing_secret, written
from tests.spark.topics import Topic, found


def explained(frame: DataFrame, jvm: Any) -> str:
    """What `explain` says when it says most."""
    execution = frame._jdf.queryExecution()
    modes = jvm.org.apache.spark.sql.execution.ExplainMode
    words = ("extended", "formatted", "cost")
    return "\n".join(execution.explainString(modes.fromString(word)) for word in words)


def write(spark: SparkSession, target: str, options: Options) -> None:
    frame = spark.range(20).selectExpr("CAST(id AS STRING) AS value")
    frame.write.format("kafka_ds").options(**options, topic=target).mode("append").save()


@pytest.mark.timeout(900)
def test_queries_run_or_say_why_not_and_nothing_secret_is_written_down(
    spark: SparkSession,
    broker: BrokerProcess,
    topic: Topic,
    ways: Ways,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "kafka_ds")
    target = Topic(broker, f"{topic.name}-target").create(partitions=3)
    topic.create(partitions=1).produce(3000, size=500, partitions=1)
    assert topic.wait_until_tiered(0, least=1000) < len(topic.rows)
    said: list[str] = []
    with written(spark, tmp_path / "written"):
        batch = topic.read(spark, **ways.right)
        scanned = kafka_ds.scan(spark, topic.name, **ways.right)
        assert found(batch) == found(scanned) == topic.expected()
        said += [explained(frame, spark._jvm) for frame in (batch, scanned)]
        write(spark, target.name, ways.right)
        for option, options in ways.wrong.items():
            for query in (
                lambda given: topic.read(spark, **given).count(),
                lambda given: kafka_ds.scan(spark, topic.name, **given),
                lambda given: write(spark, target.name, given),
            ):
                with pytest.raises(Exception, match=f"option '{option}'") as refused:
                    query(options)
                said.append(str(refused.value))
    values = [message.value() for message in read_all(broker.bootstrap, [target.name])]
    assert sorted(values) == sorted(b"%d" % n for n in range(20))
    assert_nothing_secret(ways, tmp_path, caplog.text, *said)

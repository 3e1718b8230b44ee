"""Spark at a topic in a cloud: its own Delta reader by S3A, and our source, from one command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kafka_ds.delta.store.uri import open_store
from kafka_ds.topic.snapshot import TopicSnapshot
from tests.lake.conftest import Cloud
from tests.processes import BrokerProcess, running_broker, wait_until
from tests.s3_faults import bad_weather, faulty_way
from tests.s3_server import BUCKET, S3Server
from tests.topics import create_topic

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

COUNT = 20_000
URI = f"s3://{BUCKET}/spark"
VALUES = [b"%d" % number * 30 for number in range(COUNT)]
TIERED = {
    "log.segment.bytes": 1 << 20,
    "remote.log.manager.task.interval.ms": 200,
    "lake.start.delay.ms": 50,
    "lake.local.grace.ms": 100,
    "log.retention.check.interval.ms": 200,
    "log.local.retention.bytes": 1,
}
SUMMARY = "to_json(struct(count(*), count(DISTINCT offset), min(offset), max(offset), sum(length(value))))"


def fill(broker: BrokerProcess) -> None:
    """Produce the records, and wait until only the lake has the first of them."""
    create_topic(broker.bootstrap, "orders")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20})
    for value in VALUES:
        producer.produce("orders", value=value)
        producer.poll(0)
    assert producer.flush(60) == 0
    first = broker.data / "orders-0" / f"{0:020d}.log"
    wait_until("the first segment to go", lambda: not first.exists(), timeout_s=120)


def test_spark_reads_a_topics_table_over_s3a_and_the_topic_by_our_source(
    s3_server: S3Server,
    s3_environment: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        faulty_way(
            s3_server.endpoint, bad_weather(3, delay_ms=5, throttled=0.04, lost=0.02)
        ) as way,
        running_broker(tmp_path, {**TIERED, "lake.uri": URI}) as broker,
    ):
        fill(broker)
        # From here on by the bad way.
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.endpoint)
        command = [sys.executable, "-m", "spark_conf.console"]
        command += ["--brokers", broker.bootstrap, "--lake", URI]
        tables = [f"delta.`{scheme}://{BUCKET}/spark/topics/orders`" for scheme in ("s3a", "s3")]
        command += [f"SELECT {SUMMARY} AS summary FROM {each}" for each in (*tables, "orders")]
        command += ["SELECT to_json(struct(count(*))) AS segments FROM remote_segments"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        end = TopicSnapshot.load(open_store(URI), "orders").highest_offset_in_remote_storage(0)
        assert way.faults > 0, way.counts
    assert done.returncode == 0, done.stderr[-5000:]
    cold_a, cold, topic, segments = map(json.loads, re.findall(r"\{.*\}", done.stdout))
    assert list(topic.values()) == [COUNT, COUNT, 0, COUNT - 1, sum(map(len, VALUES))]
    # What the active segment holds is the source's alone.
    assert end is not None and 0 < end < COUNT - 1
    assert list(cold.values()) == [end + 1, end + 1, 0, end, sum(map(len, VALUES[: end + 1]))]
    assert cold_a == cold
    assert list(segments.values()) != [0]


@pytest.mark.parametrize("cloud", ["gcs", "azure"], indirect=True)
def test_our_source_reads_a_topic_where_spark_itself_finds_no_table(
    cloud: Cloud, tmp_path: Path
) -> None:
    uri = cloud.address_for(tmp_path)
    with running_broker(tmp_path, {**TIERED, "lake.uri": uri}) as broker:
        fill(broker)
        command = [sys.executable, "-m", "spark_conf.console"]
        command += ["--brokers", broker.bootstrap, "--lake", uri]
        command += [f"SELECT {SUMMARY} AS summary FROM orders"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    (topic,) = map(json.loads, re.findall(r"\{.*\}", done.stdout))
    assert list(topic.values()) == [COUNT, COUNT, 0, COUNT - 1, sum(map(len, VALUES))]
    assert f"this Spark has no file system for {uri.partition(':')[0]}://" in done.stderr

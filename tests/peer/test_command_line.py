"""`kafka-ds` against Apache Kafka: topics, records and groups are asked for in Kafka's own words."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import CommandLine
from tests.peer.apache_kafka import ApacheKafka

pytestmark = pytest.mark.jars


@pytest.fixture(scope="module")
def bootstrap(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("peer-cli") / "kafka"
    kafka = ApacheKafka(kafka_jars, folder, {"offsets.topic.num.partitions": 1})
    kafka.start()
    try:
        yield kafka.bootstrap
    finally:
        kafka.stop()


def test_topics_records_and_groups_of_apache_kafka(bootstrap: str, tmp_path: Path) -> None:
    kafka_ds = CommandLine(bootstrap, tmp_path)
    kafka_ds.ok("topic", "create", "orders", "--partitions", "2", "--config", "segment.ms=60000")
    kafka_ds.ok("topic", "alter", "orders", "--config", "retention.ms=600000", "--partitions", "3")
    found = kafka_ds.json("topic", "describe", "orders")
    assert found["configs"] == {"retention.ms": "600000", "segment.ms": "60000"}
    assert len(found["partitions"]) == 3
    assert [each["name"] for each in kafka_ds.json("topic", "list")] == ["orders"]
    kafka_ds.ok("produce", "orders", "--key-separator", ":", typed="a:1\nb:2\nc:3\n")
    words = ("tail", "orders", "--from", "beginning", "--max-messages", "3")
    assert {(each["key"], each["value"]) for each in kafka_ds.records(*words)} == {
        ("a", "1"),
        ("b", "2"),
        ("c", "3"),
    }
    kafka_ds.ok("consume", "orders", "--group", "billing", "--no-follow")
    assert kafka_ds.json("group", "describe", "billing")["lag"] == 0
    kafka_ds.ok("group", "reset", "billing", "--to", "beginning", "--execute")
    assert kafka_ds.json("group", "describe", "billing")["lag"] == 3
    assert [each["group"] for each in kafka_ds.json("group", "list")] == ["billing"]
    kafka_ds.ok("group", "delete", "billing")
    assert kafka_ds.run("group", "describe", "billing").complaint == "there is no group billing"
    status = kafka_ds.json("cluster", "status")
    assert (status["healthy"], len(status["brokers"])) == (True, 1)
    told = kafka_ds.run("tier", "optimize").complaint
    assert told == "these brokers have no lake (lake.uri): this is no kafka-ds cluster"
    kafka_ds.ok("topic", "delete", "orders")
    assert kafka_ds.run("topic", "describe", "orders").complaint == "there is no topic orders"

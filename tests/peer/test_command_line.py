"""`kafka-ds` against Apache Kafka: topics, records and groups are asked for in Kafka's own words."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from tests.apache_kafka import ApacheKafka
from tests.command_line import CommandLine
from tests.pages import ROOT, PageReader, blocks_of, own_blocks
from tests.processes import wait_until

pytestmark = pytest.mark.jars


@pytest.fixture(scope="module")
def kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    folder = tmp_path_factory.mktemp("peer-cli") / "kafka"
    kafka = ApacheKafka(kafka_jars, folder, {"offsets.topic.num.partitions": 1})
    kafka.start()
    try:
        yield kafka
    finally:
        kafka.stop()


def test_topics_records_and_groups_of_apache_kafka(kafka: ApacheKafka, tmp_path: Path) -> None:
    kafka_ds = CommandLine(kafka.bootstrap, tmp_path)
    kafka_ds.ok("topic", "create", "orders", "--partitions", "2", "--config", "segment.ms=60000")
    kafka_ds.ok("topic", "alter", "orders", "--config", "retention.ms=600000", "--partitions", "3")
    found = kafka_ds.json("topic", "describe", "orders")
    assert found["configs"] == {"retention.ms": "600000", "segment.ms": "60000"}
    assert len(found["partitions"]) == 3
    assert [each["name"] for each in kafka_ds.json("topic", "list")] == ["orders"]
    kafka_ds.ok("topic", "alter", "orders", "--delete-config", "segment.ms")
    kafka_ds.ok("topic", "create", "planned", "--dry-run")
    kafka_ds.ok("topic", "create", "orders", "--if-not-exists")
    assert kafka_ds.run("topic", "create", "orders").complaint == "topic orders exists already"
    told = kafka_ds.run("topic", "create", "wide", "--replication-factor", "3").complaint
    assert "REPLICATION_FACTOR" in told
    told = kafka_ds.run("topic", "alter", "orders", "--config", "retention.ms=soon").complaint
    assert "retention.ms" in told
    every = kafka_ds.json("topic", "describe", "orders", "--all-configs")["configs"]
    assert every["retention.ms"] == "600000"
    assert every["segment.ms"] == "604800000"
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
    reset = ("group", "reset", "billing", "--to")
    for position, lag in {"beginning": 3, "2999-01-01": 0, "-1h": 3, "0": 3}.items():
        before = kafka_ds.json("group", "describe", "billing")["lag"]
        assert sum(row["new_offset"] for row in kafka_ds.json(*reset, position)) == 3 - lag
        assert kafka_ds.json("group", "describe", "billing")["lag"] == before, "a dry run"
        kafka_ds.ok(*reset, position, "--execute")
        assert kafka_ds.json("group", "describe", "billing")["lag"] == lag
    assert [each["group"] for each in kafka_ds.json("group", "list")] == ["billing"]
    kafka_ds.ok("group", "delete", "billing")
    assert kafka_ds.run("group", "describe", "billing").complaint == "there is no group billing"
    status = kafka_ds.json("cluster", "status")
    assert (status["healthy"], len(status["brokers"])) == (True, 1)
    told = kafka_ds.run("cluster", "unregister", "--id", "1").complaint
    assert told == "broker 1 is alive and would register again: stop it first"
    told = kafka_ds.run("cluster", "unregister", "--id", "99").complaint
    assert told.startswith("BROKER_ID_NOT_REGISTERED")
    for words in (
        ("tier", "optimize"),
        ("tier", "status"),
        ("table", "show", "orders"),
        ("sql", "SELECT 1"),
    ):
        told = kafka_ds.run(*words).complaint
        assert told == "these brokers have no lake (lake.uri): this is not a kafka-ds cluster"
    kafka_ds.ok("topic", "delete", "orders")
    assert kafka_ds.run("topic", "describe", "orders").complaint == "there is no topic orders"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_members_of_apache_kafka_is_left_alone(
    kafka: ApacheKafka, tmp_path: Path, protocol: str
) -> None:
    kafka_ds = CommandLine(kafka.bootstrap, tmp_path)
    topic = f"busy-{protocol}"
    kafka_ds.ok("topic", "create", topic, "--partitions", "2")
    names = {"group.id": topic, "client.id": "reader", "group.protocol": protocol}
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, **names})
    try:
        consumer.subscribe([topic])
        wait_until("partitions", lambda: consumer.poll(0.2) or len(consumer.assignment()) == 2)
        found = kafka_ds.json("group", "describe", topic)
        assert (found["state"], found["type"], len(found["members"])) == ("Stable", protocol, 1)
        words = ("group", "reset", topic, "--topic", topic, "--to", "end", "--execute")
        assert "stop them first" in kafka_ds.run(*words).complaint
        assert "has members" in kafka_ds.run("group", "delete", topic).complaint
        assert "has members" in kafka_ds.run("consume", topic, "--group", topic).complaint
    finally:
        consumer.close()


def test_a_kafka_is_taken_over_as_the_pages_say(kafka: ApacheKafka, tmp_path: Path) -> None:
    """docs/how-to/from-kafka.md, "By the disks"; and with a copy of the disks the examples of docs/reference/cli.md."""
    kafka_ds = CommandLine(kafka.bootstrap, tmp_path)
    kafka_ds.ok("topic", "create", "orders")
    kafka_ds.ok("produce", "orders", typed="a\nb\n")
    kafka.stop()
    copied = tmp_path / "copied"
    shutil.copytree(kafka.data, copied)

    # Kafka's file, without what the check names, and without the controller's listener.
    settings = kafka.properties.read_text()
    settings = re.sub(r",CONTROLLER(://[\w.:]+|:PLAINTEXT)", "", settings)
    checked = tmp_path / "server.properties"
    checked.write_text(settings)
    told = kafka_ds.run("config", "check", "server.properties", cwd=tmp_path).errors
    named = re.findall(r"^kafka-ds: ([\w.]+)=", told, re.MULTILINE)
    assert named == ["controller.quorum.voters", "controller.listener.names"]
    lines = settings.splitlines()
    settings = "\n".join(line for line in lines if line.partition("=")[0] not in named)
    checked.write_text(settings)
    kafka_ds.ok("config", "check", "server.properties", cwd=tmp_path)

    (block,) = own_blocks("docs/how-to/from-kafka.md", __file__)
    *adopts, starts = block.code.splitlines()
    reader = PageReader(tmp_path, {"=/data/": f"={tmp_path}/data/"})
    for line in adopts:
        done = reader.run(line)
        assert done.returncode == 0, done.stderr
        assert re.search(r"\d logs? of this broker", done.stdout)
    with reader.broker(starts) as address:
        words = ("tail", "orders", "--from", "beginning", "--no-follow", "--values")
        assert CommandLine(address, tmp_path).ok(*words) == "a\nb\n"

    elsewhere = PageReader(tmp_path / "elsewhere", {})
    elsewhere.folder.mkdir()
    properties = settings.replace(str(kafka.data), str(copied))
    (elsewhere.folder / checked.name).write_text(properties)
    (block,) = (
        each
        for each in blocks_of(ROOT / "docs/reference/cli.md")
        if each.language == "sh" and "kafka-ds adopt" in each.code
    )
    for line in block.code.splitlines():
        done = elsewhere.run(line)
        assert done.returncode == 0, done.stderr
        assert re.search(r"\d logs? of this broker", done.stdout)

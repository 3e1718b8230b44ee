"""Java's clients through Kafka's own tools: what they wrote, read and committed is looked at from another side."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from kafka_ds.protocol.messages import ApiVersionsRequest, ListConfigResourcesRequest
from kafka_ds.protocol.messages.offsets import LATEST
from kafka_ds.topic.names import CLIENT_METRICS
from tests.apache_kafka import tool
from tests.clients.adaptors import librdkafka_read
from tests.clients.transactional_reads import read_committed, read_uncommitted
from tests.peer.jvm import TOOLS, ToolFailed
from tests.peer.safe_listeners import USER, SafeListeners, comes_by, make_user, run_safely
from tests.peer.tools import Tools
from tests.processes import wait_until

pytestmark = pytest.mark.jars

DESCRIBE_ACLS = 29


def events(text: str) -> list[dict[str, object]]:
    """The lines of a tool that are JSON."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def committed(tools: Tools, group: str) -> dict[tuple[str, int], int]:
    """The offsets of a group, as librdkafka gets them."""
    admin = AdminClient({"bootstrap.servers": tools.broker.bootstrap})
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    places = asked[group].result(120).topic_partitions
    return {(place.topic, place.partition): place.offset for place in places}


def fill(tools: Tools, topic: str, count: int, partitions: int = 1) -> None:
    producer = Producer({"bootstrap.servers": tools.broker.bootstrap})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=number % partitions)
    assert producer.flush(120) == 0


@pytest.mark.parametrize("acks", ["1", "-1"])
def test_verifiable_producer_writes_what_it_says(tools: Tools, kafka_jars: Path, acks: str) -> None:
    topic = f"written{acks}"
    tools.create(topic)
    words = ["--bootstrap-server", tools.broker.bootstrap, "--topic", topic, "--acks", acks]
    words += ["--max-messages", "500", "--value-prefix", "7", "--message-create-time", "1000"]
    told = events(tool(kafka_jars, f"{TOOLS}.VerifiableProducer", *words))
    sent = [event for event in told if event["name"] == "producer_send_success"]
    assert [event["value"] for event in sent] == [f"7.{number}" for number in range(500)]
    assert [event["offset"] for event in sent] == list(range(500))
    messages = librdkafka_read(tools.broker.bootstrap, topic, 500)
    assert [message.value for message in messages] == [b"7.%d" % number for number in range(500)]
    assert messages[0].timestamp_ms == 1000
    assert tools.offset(topic, 0, LATEST) == 500


@pytest.mark.parametrize(
    "assignor", ["RangeAssignor", "RoundRobinAssignor", "CooperativeStickyAssignor"]
)
def test_verifiable_consumer_commits_what_it_has_read(tools: Tools, assignor: str) -> None:
    topic = group = f"read-{assignor}"
    tools.create(topic, 3)
    fill(tools, topic, 300, partitions=3)
    words = ["--topic", topic, "--group-id", group, "--max-messages", "300"]
    words += ["--reset-policy", "earliest", "--verbose"]
    words += ["--assignment-strategy", f"org.apache.kafka.clients.consumer.{assignor}"]
    told = events(tools.run("VerifiableConsumer", *words))
    seen = Counter(event["partition"] for event in told if event["name"] == "record_data")
    assert seen == {0: 100, 1: 100, 2: 100}
    values = {event["value"] for event in told if event["name"] == "record_data"}
    assert values == {str(number) for number in range(300)}
    assert {event["success"] for event in told if event["name"] == "offsets_committed"} == {True}
    assert committed(tools, group) == {(topic, partition): 100 for partition in range(3)}


def test_consumer_group_command_shows_moves_and_deletes(tools: Tools) -> None:
    topic, group = "grouped", "the-group"
    tools.create(topic, 2)
    fill(tools, topic, 20, partitions=2)
    words = ("--topic", topic, "--group-id", group, "--max-messages", "20")
    tools.run("VerifiableConsumer", *words, "--reset-policy", "earliest")
    assert committed(tools, group) == {(topic, 0): 10, (topic, 1): 10}
    command = "consumer.group.ConsumerGroupCommand"

    def run(*words: str) -> str:
        return tools.run(f"{TOOLS}.{command}", *words)

    assert group in run("--list").split()
    rows = [
        line.split() for line in run("--describe", "--group", group).splitlines() if group in line
    ]
    # GROUP, TOPIC, PARTITION, CURRENT-OFFSET, LOG-END-OFFSET, LAG
    head = rows[-2:]
    assert sorted(row[1:6] for row in head) == [
        [topic, partition, "10", "10", "0"] for partition in ("0", "1")
    ]
    state = run("--describe", "--group", group, "--state")
    assert "Empty" in state.split()
    assert f"{tools.broker.bootstrap}" in state

    reset = ("--reset-offsets", "--group", group, "--topic", f"{topic}:1")
    run(*reset, "--to-earliest", "--dry-run")
    assert committed(tools, group)[topic, 1] == 10
    run(*reset, "--to-earliest", "--execute")
    assert committed(tools, group) == {(topic, 0): 10, (topic, 1): 0}
    run(*reset, "--shift-by", "4", "--execute")
    assert committed(tools, group)[topic, 1] == 4
    again = ("--topic", topic, "--group-id", group, "--max-messages", "6", "--verbose")
    told = events(tools.run("VerifiableConsumer", *again))
    seen = [(e["partition"], e["offset"]) for e in told if e["name"] == "record_data"]
    assert seen == [(1, offset) for offset in range(4, 10)]

    run("--delete-offsets", "--group", group, "--topic", f"{topic}:0")
    assert committed(tools, group) == {(topic, 1): 10}
    run("--delete", "--group", group)
    assert group not in run("--list").split()
    assert committed(tools, group) == {}


def test_transactions_command_sees_and_ends_what_hangs(tools: Tools) -> None:
    topic, name = "hanging", "the-transaction"
    tools.create(topic, 2)
    settings = {"bootstrap.servers": tools.broker.bootstrap, "transactional.id": name}
    producer = Producer(settings)
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=1)
    producer.flush(120)

    def run(*words: str) -> list[list[str]]:
        # This tool takes its options before the word that says what to do.
        where = ("--bootstrap-server", tools.broker.bootstrap)
        text = tools.jvm.run(f"{TOOLS}.TransactionsCommand", *where, *words)
        return [line.split() for line in text.splitlines() if line.strip()]

    (listed,) = [row for row in run("list") if row[0] == name]
    assert listed[3] == "Ongoing"
    for pattern, is_named in (("the-.*", True), ("the", False)):
        names = [row[0] for row in run("list", "--transactional-id-pattern", pattern)]
        assert (name in names) is is_named
    described = run("describe", "--transactional-id", name)[-1]
    assert f"{topic}-1" in described
    place = ("--topic", topic, "--partition", "1")
    producers = run("describe-producers", *place)[-1]
    producer_id, start = listed[2], producers[-1]
    assert (producers[0], start) == (producer_id, "0")

    assert read_committed_until(tools, topic, 1) == 0
    run("abort", *place, "--start-offset", start)
    # The marker stands behind the record, and readers of what is committed go past both.
    assert tools.offset(topic, 1, LATEST) == 2
    assert read_committed_until(tools, topic, 1) == 2
    assert run("describe-producers", *place)[-1][-1] == "None"
    # It lasts no longer than its coordinator allows: nothing hangs, so only the heading is told.
    scope = ("--topic", topic, "--max-transaction-timeout", "1")
    (heading,) = run("find-hanging", *scope)
    assert heading[0] == "Topic"
    with pytest.raises(ToolFailed, match="(?i)transaction|offset"):
        run("abort", *place, "--start-offset", start)
    producer.abort_transaction(20)

    # A transaction is ended for its producer, which is fenced.
    producer.begin_transaction()
    producer.produce(topic, b"ended", partition=0)
    producer.flush(120)
    assert run("forceTerminateTransaction", "--transactionalId", name) == []
    assert [row[3] for row in run("list") if row[0] == name] == ["Empty"]
    assert read_committed_until(tools, topic, 0) == tools.offset(topic, 0, LATEST)
    with pytest.raises(KafkaException, match="(?i)fenced"):
        producer.commit_transaction(20)


def read_committed_until(tools: Tools, topic: str, partition: int) -> int:
    """The last stable offset, as a client gets it."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": tools.broker.bootstrap,
            "group.id": "none",
            "isolation.level": "read_committed",
        }
    )
    try:
        _, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=120)
        end: int = high
        return end
    finally:
        consumer.close()


def test_producer_performance_writes_all_it_counts(tools: Tools) -> None:
    topic = "performed"
    tools.create(topic)
    words = ["--topic", topic, "--num-records", "5000", "--record-size", "100"]
    words += ["--throughput", "-1", "--command-property", "compression.type=lz4"]
    told = tools.run("ProducerPerformance", *words)
    assert told.splitlines()[-1].startswith("5000 records sent")
    assert tools.offset(topic, 0, LATEST) == 5000
    messages = librdkafka_read(tools.broker.bootstrap, topic, 5000)
    assert {len(message.value or b"") for message in messages} == {100}


def test_client_metrics_command_has_a_producer_push(tools: Tools) -> None:
    command = "ClientMetricsCommand"
    # What another try of this test pushed is there already.
    before = max(0, tools.offset(CLIENT_METRICS, 0, LATEST))
    words = ("--metrics", "*", "--interval", "100", "--match", "client_software_name=apache.*")
    tools.run(command, "--alter", "--name", "all", *words)
    # It ends by an exit, upon which it tells how it is used: here an exit is an exception.
    assert tools.run(command, "--list").split()[0] == "all"
    described = tools.run(command, "--describe", "--name", "all")
    assert "interval.ms=100" in described and "metrics=*" in described

    tools.create("pushing", may_exist=True)
    words = ("--num-records", "3000", "--record-size", "10", "--throughput", "2000")
    tools.run("ProducerPerformance", "--topic", "pushing", *words)
    # Brokers write what was pushed after they have answered.
    wait_until("a push with records", lambda: max(pushed_totals(tools, before), default=0) > 0)
    sent = pushed_totals(tools, before)
    assert 0 < max(sent) <= 3000 and sent == sorted(sent), "totals, not deltas"
    tools.run(command, "--delete", "--name", "all")
    assert tools.client.ask(ListConfigResourcesRequest(), 0).config_resources == []


def pushed_totals(tools: Tools, start: int) -> list[float]:
    """How many records a producer had sent, at each push whose rows lie at `start` or behind."""
    end = tools.offset(CLIENT_METRICS, 0, LATEST)
    messages = librdkafka_read(tools.broker.bootstrap, CLIENT_METRICS, end) if end > start else []
    rows = [json.loads(message.value or b"") for message in messages[start:]]
    assert {row["client_software_name"] for row in rows} <= {"apache-kafka-java"}
    return [
        row["value"] for row in rows if row["name"] == "org.apache.kafka.producer.record.send.total"
    ]


def test_producer_performance_in_transactions(tools: Tools) -> None:
    topic = "performed-in-transactions"
    tools.create(topic)
    words = ["--topic", topic, "--num-records", "2000", "--throughput", "-1"]
    words += ["--payload-monotonic", "--transactional-id", topic, "--transaction-duration-ms", "50"]
    tools.run("ProducerPerformance", *words)
    values = read_committed["librdkafka"](tools.broker.bootstrap, topic)
    assert values == [b"%d" % number for number in range(2000)]
    # Each transaction has left its marker.
    assert tools.offset(topic, 0, LATEST) > 2000


def test_transactional_message_copier_is_exact(tools: Tools) -> None:
    source, target = "copied-from", "copied-to"
    tools.create(source)
    tools.create(target)
    fill(tools, source, 400)
    words = ["--broker-list", tools.broker.bootstrap, "--transactional-id", "the-copier"]
    words += ["--input-topic", source, "--input-partition", "0", "--output-topic", target]
    words += ["--consumer-group", "the-copiers", "--transaction-size", "20"]
    words += ["--max-messages", "400", "--enable-random-aborts"]
    tools.jvm.run(f"{TOOLS}.TransactionalMessageCopier", *words)
    expected = [b"%d" % number for number in range(400)]
    assert read_committed["librdkafka"](tools.broker.bootstrap, target) == expected
    assert set(read_uncommitted["librdkafka"](tools.broker.bootstrap, target)) == set(expected)
    assert committed(tools, "the-copiers") == {(source, 0): 400}


def test_client_compatibility_test_finds_all_it_looks_for(tools: Tools) -> None:
    topic = "compatible"
    tools.create(topic)
    served = {each.api_key for each in tools.client.ask(ApiVersionsRequest(), 0).api_keys}
    words = ["--topic", topic, "--num-cluster-nodes", "1"]
    words += ["--expect-record-too-large-exception", "False"]
    words += ["--describe-acls-supported", str(DESCRIBE_ACLS in served)]
    for what in ("offsets-for-times", "cluster-id", "create-topics", "describe-configs"):
        words += [f"--{what}-supported", "True"]
    tools.run("ClientCompatibilityTest", *words, "--idempotent-producer-supported", "True")
    # It wrote two records, a large one among them, and looked for their times.
    assert tools.offset(topic, 0, LATEST) == 2
    messages = librdkafka_read(tools.broker.bootstrap, topic, 2)
    assert max(len(message.value or b"") for message in messages) > 100


def test_a_producer_and_a_consumer_come_in_by_tls_and_scram(
    tools: Tools, safe: SafeListeners
) -> None:
    """The other tools and ways are `test_safe_tools.py`'s."""
    make_user(tools)
    topic = "by-scram"
    tools.create(topic)
    words = ["--topic", topic, "--num-records", "500", "--record-size", "1000"]
    # More than one record of TLS.
    run_safely(tools, safe, "scram", "ProducerPerformance", *words, "--throughput", "-1")
    assert tools.offset(topic, 0, LATEST) == 500
    words = ["--topic", topic, "--from-beginning", "--max-messages", "500", "--group", topic]
    told = run_safely(tools, safe, "scram", "consumer.ConsoleConsumer", *words)
    read = [line for line in told.splitlines() if len(line) == 1000]
    written = [each.value for each in librdkafka_read(tools.broker.bootstrap, topic, 500)]
    assert [line.encode() for line in read] == written


def test_delegation_tokens_command_gives_what_a_client_comes_by(
    tools: Tools, safe: SafeListeners
) -> None:
    make_user(tools)
    command = "DelegationTokenCommand"
    words = ("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:other")
    told = run_safely(tools, safe, "scram", command, *words)
    token_id, secret, owner = told.split("MAXDATE")[1].split()[:3]
    assert owner == f"User:{USER}"
    # Without an owner the tool asks for the tokens of nobody, and is told of none.
    whose = ("--describe", "--owner-principal", owner)
    described = run_safely(tools, safe, "scram", command, *whose)
    assert token_id in described and "Total number of tokens : 1" in described

    config = ("--command-config", str(safe.token_file(token_id, secret)))
    where = comes_by(tools, "scram")
    name = f"{TOOLS}.TopicCommand"
    tools.jvm.run(name, *where, *config, "--create", "--topic", "by-token")
    assert len(tools.topic("by-token").partitions) == 1

    def asked(*more: str) -> str:
        return run_safely(tools, safe, "scram", command, *more, "--hmac", secret)

    assert "Completed renew operation" in asked("--renew", "--renew-time-period", "-1")
    assert "Completed expire operation" in asked("--expire", "--expiry-time-period", "-1")
    described = run_safely(tools, safe, "scram", command, *whose)
    assert "Total number of tokens : 0" in described

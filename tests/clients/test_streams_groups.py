"""Kafka Streams by its own group protocol (KIP-1071), and by the classic one: a word count in two processes.

The only broker is killed and started again, then one of the processes is killed for good.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from kafka_ds.protocol.messages import StreamsGroupDescribeRequest
from spark_conf import jars
from spark_conf.java import java_command
from tests.apache_kafka import tool
from tests.integration.raw_client import RawClient
from tests.processes import BrokerProcess, running_broker, wait_until
from tests.topics import create_topic

pytestmark = [pytest.mark.jars, pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).parent / "java" / "WordCount.java"
JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
QUIET = '<Configuration><Loggers><Root level="off"/></Loggers></Configuration>'
TOOLS = "org.apache.kafka.tools"
COMMANDS = {
    "streams": f"{TOOLS}.streams.StreamsGroupCommand",
    "classic": f"{TOOLS}.consumer.group.ConsumerGroupCommand",
}
# The set of Streams' jars, the protocol, and what an application of it is given.
STATIC = {"group.instance.id": "static"}
CASES = [
    pytest.param("kafka-streams-4.4", "streams", {}, id="4.4"),
    pytest.param("kafka-streams-4.4", "streams", STATIC, id="4.4, static"),
    pytest.param("kafka-streams-4.4", "classic", {}, id="4.4, classic"),
    pytest.param("kafka-streams", "streams", {}, id="4.3"),
]
WORDS = ["apple", "berry", "cherry", "date", "elder", "fig", "grape"]
GROUP, PARTITIONS = "word-count", 3
PATIENCE_S = 120.0
# So that a process that was killed is missed soon.
SETTINGS = {
    "group.streams.initial.rebalance.delay.ms": 500,
    "group.streams.heartbeat.interval.ms": 500,
    "group.streams.min.heartbeat.interval.ms": 100,
    "group.streams.session.timeout.ms": 6_000,
    "group.streams.min.session.timeout.ms": 1_000,
    "group.streams.num.standby.replicas": 1,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
}


class Application:
    """One process of the application, with two members."""

    def __init__(
        self,
        broker: BrokerProcess,
        folder: Path,
        classes: str,
        name: str,
        protocol: str,
        more: Mapping[str, object],
    ) -> None:
        self.output = folder / f"{name}.txt"
        quiet = folder / "log4j2.xml"
        quiet.write_text(QUIET)
        properties = {
            "bootstrap.servers": broker.bootstrap,
            "application.id": GROUP,
            "group.protocol": protocol,
            "processing.guarantee": "exactly_once_v2",
            "commit.interval.ms": 100,
            "num.stream.threads": 2,
            "state.dir": folder / name,
            "application.server": f"{name}:1",
            "producer.linger.ms": 0,
            **more,
        }
        if "group.instance.id" in more:
            properties["group.instance.id"] = f"{more['group.instance.id']}-{name}"
        if protocol == "classic":
            # What the broker decides of streams groups.
            properties |= {"num.standby.replicas": 1, "session.timeout.ms": 6_000}
        words = [java_command(), *JAVA, f"-Dlog4j2.configurationFile={quiet}"]
        words += ["-cp", classes, str(PROGRAM)]
        words += ["lines", "counted", *(f"{key}={value}" for key, value in properties.items())]
        with self.output.open("w") as file:
            self.process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT)

    def said(self) -> str:
        return self.output.read_text()

    def is_running(self) -> bool:
        assert self.process.poll() is None, self.said()
        return self.said().rstrip().endswith("state RUNNING")

    def end(self, number: int) -> None:
        self.process.send_signal(number)
        self.process.wait(PATIENCE_S)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path / "broker", SETTINGS) as running:
        yield running
    assert "Traceback" not in running.log_file.read_text()


class Counts:
    """What the application has counted, as far as its transactions are committed."""

    def __init__(self, broker: BrokerProcess) -> None:
        settings = {"bootstrap.servers": broker.bootstrap, "group.id": "reader"}
        self._consumer = Consumer({**settings, "isolation.level": "read_committed"})
        self._consumer.assign(
            [TopicPartition("counted", p, OFFSET_BEGINNING) for p in range(PARTITIONS)]
        )
        self.last: dict[str, int] = {}

    def equal(self, expected: Counter[str]) -> bool:
        for message in self._consumer.consume(500, 0.2):
            assert message.error() is None, message.error()
            word, count = message.key().decode(), int(message.value())
            assert count > self.last.get(word, 0), f"{word}: {count} after {self.last}"
            self.last[word] = count
        return self.last == expected


def write(broker: BrokerProcess, first: int, count: int) -> Counter[str]:
    """Write lines, and count their words as the application shall."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    words: Counter[str] = Counter()
    for number in range(first, first + count):
        line = [WORDS[number % 7], WORDS[number % 3], WORDS[number * number % 5]]
        words.update(line)
        producer.produce("lines", " ".join(line).encode(), partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0
    return words


def instances(broker: BrokerProcess) -> set[str | None]:
    """The instance ids of the group's members."""
    with RawClient(broker.bootstrap) as client:
        (group,) = client.ask(StreamsGroupDescribeRequest(group_ids=[GROUP]), 1).groups
    return {member.instance_id for member in group.members}


@pytest.mark.parametrize(("streams", "protocol", "more"), CASES)
def test_words_are_counted_though_broker_and_process_are_killed(
    broker: BrokerProcess,
    kafka_jars: Path,
    tmp_path: Path,
    streams: str,
    protocol: str,
    more: Mapping[str, object],
) -> None:
    def command(*words: str) -> str:
        return tool(kafka_jars, COMMANDS[protocol], "--bootstrap-server", broker.bootstrap, *words)

    create_topic(broker.bootstrap, "lines", partitions=PARTITIONS)
    create_topic(broker.bootstrap, "counted", partitions=PARTITIONS)
    expected = write(broker, 0, 300)
    counts = Counts(broker)
    with contextlib.ExitStack() as processes:
        classes = f"{jars.fetch(streams)}/*:{kafka_jars}/*"
        one, two = (
            Application(broker, tmp_path, classes, name, protocol, more) for name in ("one", "two")
        )
        for each in (one, two):
            processes.callback(each.process.kill)
        wait_until("both", lambda: one.is_running() and two.is_running(), timeout_s=PATIENCE_S)
        wait_until("the first counts", lambda: counts.equal(expected), timeout_s=PATIENCE_S)
        assert GROUP in command("--list")
        members = command("--describe", "--group", GROUP, "--members")
        assert members.count("word-count") >= 4, members
        state = command("--describe", "--group", GROUP, "--state")
        assert "Stable" in state, state
        if more is STATIC:
            assert instances(broker) == {f"static-{n}-{i}" for n in ("one", "two") for i in (1, 2)}
        broker.kill()
        broker.start()
        expected += write(broker, 300, 300)
        wait_until("more counts", lambda: counts.equal(expected), timeout_s=PATIENCE_S)
        two.end(signal.SIGKILL)
        expected += write(broker, 600, 300)
        wait_until("all counts", lambda: counts.equal(expected), timeout_s=PATIENCE_S)
        offsets = command("--describe", "--group", GROUP)
        assert "lines" in offsets and f"{GROUP}-counts-repartition" in offsets, offsets
        one.end(signal.SIGTERM)
        assert "closed" in one.said() and "state ERROR" not in one.said()

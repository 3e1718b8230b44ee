"""Apache Kafka's own transactional tool: consume, copy, commit offsets with each transaction, abort now and then."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Producer

from spark_conf.jars import java_command
from tests.clients.topics import create_topic
from tests.clients.transactional_reads import read_committed, read_uncommitted
from tests.processes import BrokerProcess

COUNT = 400


@pytest.mark.jars
def test_a_copy_in_transactions_is_exact(
    broker: BrokerProcess, topic: str, kafka_jars: Path
) -> None:
    source, target = f"{topic}-from", f"{topic}-to"
    create_topic(broker.bootstrap, source)
    create_topic(broker.bootstrap, target)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for i in range(COUNT):
        producer.produce(source, b"%d" % i, partition=0)
    assert producer.flush(20) == 0
    command = [java_command(), "-Xmx256m", "-cp", f"{kafka_jars}/*"]
    command += ["org.apache.kafka.tools.TransactionalMessageCopier"]
    command += ["--broker-list", broker.bootstrap, "--transactional-id", f"id-{topic}"]
    command += ["--input-topic", source, "--input-partition", "0", "--output-topic", target]
    command += ["--consumer-group", f"group-{topic}", "--transaction-size", "20"]
    command += ["--max-messages", str(COUNT), "--enable-random-aborts"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["stage"], last["consumed"]) == ("ShutdownComplete", COUNT)
    expected = [b"%d" % i for i in range(COUNT)]
    assert read_committed["librdkafka"](broker.bootstrap, target) == expected
    assert set(read_uncommitted["librdkafka"](broker.bootstrap, target)) == set(expected)

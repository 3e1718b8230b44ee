"""The two sides of every comparison: our broker, and Apache Kafka from its jars. Both at their defaults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka.admin import AdminClient, NewTopic

from broker.compiled.finder import OFF, SWITCH
from spark_conf import jars
from tests.apache_kafka import ApacheKafka
from tests.bench import machine
from tests.processes import BrokerProcess

# What kafka-server-start.sh and kafka-run-class.sh give a broker by default.
JVM = [
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
]
# The set of jars of the Apache Kafka that ours is compared with.
APACHE_JARS = "kafka-4.4"
# Where ours for tests differ from Kafka's own; nobody waits for the first rebalance of a group.
DEFAULTS = {
    "offsets.topic.num.partitions": 50,
    "transaction.state.log.num.partitions": 50,
    "group.initial.rebalance.delay.ms": 0,
}


class BenchSide(Protocol):
    name: str
    bootstrap: str

    def launch(self) -> object:
        """Start the process; it may not accept clients yet."""

    def pids(self) -> list[int]: ...

    def stop(self) -> object: ...


class Running(Protocol):
    """What is measured: a side, or a way into one (`client_options`)."""

    @property
    def name(self) -> str: ...

    @property
    def bootstrap(self) -> str: ...

    def pids(self) -> list[int]: ...


class OurSide(BrokerProcess):
    """Interpreted, whether or not there are compiled modules."""

    name = "kafka-ds"
    launch = BrokerProcess.start

    def __init__(self, *arguments: Any, compiled: bool = False, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.environment.setdefault(SWITCH, "on" if compiled else OFF)

    def pids(self) -> list[int]:
        return machine.children(self.pid)


class ApacheSide(ApacheKafka):
    name = "Apache Kafka"

    def __init__(
        self,
        folder: Path,
        more: Mapping[str, object] | None = None,
        *,
        jar_set: str = APACHE_JARS,
        **others: Any,
    ) -> None:
        settings = {**DEFAULTS, **(more or {})}
        found = jars.fetch(jar_set)
        super().__init__(found, folder, settings, options=JVM, level="WARN", **others)

    def pids(self) -> list[int]:
        return [self.pid]


def client(what: str, side: Running, topic: str, **options: object) -> dict[str, Any]:
    """Run a load process against the side and return what it printed."""
    words = [sys.executable, "-m", "tests.bench.load", what]
    words += ["--bootstrap", side.bootstrap, "--topic", topic]
    for name, value in {**getattr(side, "client_options", {}), **options}.items():
        words += [f"--{name}", str(value)]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=300, check=False, env=os.environ
    )
    if done.returncode != 0:
        raise RuntimeError(f"{what} on {side.name}: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def ready(side: BenchSide) -> None:
    """Wait until the side acknowledges a record."""
    client("first", side, "ready")


def create_topic(
    side: Running, topic: str, partitions: int = 1, replicas: int = 1, **settings: object
) -> None:
    admin = AdminClient({"bootstrap.servers": side.bootstrap})
    config = {name.replace("_", "."): str(value) for name, value in settings.items()}
    new = NewTopic(topic, num_partitions=partitions, replication_factor=replicas, config=config)
    admin.create_topics([new])[topic].result(120)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = admin.list_topics(topic, timeout=10).topics[topic]
        if len(found.partitions) == partitions and all(
            p.leader >= 0 for p in found.partitions.values()
        ):
            return
        time.sleep(0.05)
    raise RuntimeError(f"{side.name}: topic {topic} has no leaders")

"""The two sides of every comparison: our broker, and Apache Kafka from its jars. Both at their defaults."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka.admin import AdminClient, NewTopic

from spark_conf import jars
from spark_conf.java import java_command
from tests.bench import machine
from tests.processes import BrokerProcess

CLUSTER_ID = "a2Fma2EtZHMtYmVuY2gtMQ"
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
LOG4J = """
status=error
appender.console.type=Console
appender.console.name=STDOUT
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=[%d] %p %m (%c)%n
rootLogger.level=WARN
rootLogger.appenderRef.stdout.ref=STDOUT
"""


class Side(Protocol):
    name: str
    bootstrap: str

    def launch(self, *, clean: bool) -> None:
        """Start the process; it may not accept clients yet."""

    def pids(self) -> list[int]: ...

    def stop(self) -> None: ...


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Running(Protocol):
    """What is measured: a side, or a way into one (`client_options`)."""

    @property
    def name(self) -> str: ...

    @property
    def bootstrap(self) -> str: ...

    def pids(self) -> list[int]: ...


class OurSide:
    name = "kafka-ds"

    def __init__(self, folder: Path, overrides: Mapping[str, object] | None = None) -> None:
        self.folder = folder
        self.bootstrap = f"127.0.0.1:{free_port()}"
        self.broker = BrokerProcess(
            folder, {"listeners": f"PLAINTEXT://{self.bootstrap}", **(overrides or {})}
        )

    def launch(self, *, clean: bool) -> None:
        if clean:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.broker.start()

    def pids(self) -> list[int]:
        return machine.children(self.broker.pid)

    def stop(self) -> None:
        self.broker.stop()


class ApacheKafka:
    name = "Apache Kafka"

    def __init__(self, folder: Path, overrides: Mapping[str, object] | None = None) -> None:
        self.folder = folder
        port, controller = free_port(), free_port()
        self.bootstrap = f"127.0.0.1:{port}"
        self.classpath = f"{jars.fetch('kafka')}/*"
        self.process: subprocess.Popen[bytes] | None = None
        settings: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": folder / "data",
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            **(overrides or {}),
        }
        self.properties = "".join(f"{name}={value}\n" for name, value in settings.items())

    def _java(self, options: list[str], *words: str) -> list[str]:
        return [
            java_command(),
            *options,
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
            "-cp",
            self.classpath,
            *words,
        ]

    def format(self) -> None:
        """Its data folder, formatted beforehand: not part of a start."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        (self.folder / "server.properties").write_text(self.properties)
        (self.folder / "log4j2.properties").write_text(LOG4J)
        config = str(self.folder / "server.properties")
        tool = self._java(["-Xmx256M"], "kafka.tools.StorageTool")
        subprocess.run(
            [*tool, "format", "-t", CLUSTER_ID, "-c", config], check=True, capture_output=True
        )

    def launch(self, *, clean: bool) -> None:
        if clean or not self.folder.exists():
            self.format()
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                self._java(JVM, "kafka.Kafka", str(self.folder / "server.properties")),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def pids(self) -> list[int]:
        assert self.process is not None
        return [self.process.pid]

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None


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


def ready(side: Side) -> None:
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
